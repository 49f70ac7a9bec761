//! What a PE tells of a segment: the keys of each proxy thread's rails, in one connection info.

use symrail_transport::{Error, Pe};

/// The connection info that holds what each of this PE's proxy threads has to say.
pub(super) fn together(of_threads: &[Vec<u8>]) -> Vec<u8> {
    // Serialising plain vectors into memory has no way to fail.
    postcard::to_allocvec(of_threads).unwrap_or_default()
}

/// What all PEs' connection infos say, in the order of PEs, for each of so many proxy threads. Who has nothing to say
/// has an empty connection info.
///
/// # Errors
/// [`Error::Malformed`].
pub(super) fn apart(connection_infos: &[Vec<u8>], threads: usize) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    let mut all = vec![Vec::with_capacity(connection_infos.len()); threads];
    for (connection_info, pe) in connection_infos.iter().zip(0..) {
        let malformed = |why: String| Error::Malformed { what: "a segment's keys", pe: pe as Pe, why };
        let keys: Vec<Vec<u8>> = match connection_info.is_empty() {
            true => vec![Vec::new(); threads],
            false => postcard::from_bytes(connection_info).map_err(|e| malformed(e.to_string()))?,
        };
        if keys.len() != threads {
            return Err(malformed(format!("those of {} proxy threads, where {threads} are", keys.len())));
        }
        all.iter_mut().zip(keys).for_each(|(of_thread, keys)| of_thread.push(keys));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_thread_gets_what_its_peers_said() {
        let connection_infos = [together(&[vec![1], vec![2, 2]]), Vec::new(), together(&[vec![3], Vec::new()])];
        let all = apart(&connection_infos, 2).unwrap();
        assert_eq!(all, [[vec![1], vec![], vec![3]], [vec![2, 2], vec![], vec![]]]);
        for (connection_infos, why) in
            [(&connection_infos, "2 proxy threads, where 3 are"), (&[vec![9], vec![], vec![]], "PE 0")]
        {
            let error = apart(connection_infos, 3).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
