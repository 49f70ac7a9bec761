//! A PE's keys for a segment by which its heap has grown: those of all its proxy threads in one connection info.

use symrail_core::encoding;
use symrail_transport::grown::GrownKeys;
use symrail_transport::{Error, Pe};

/// The connection info that holds the keys of each of this PE's proxy threads.
pub(crate) fn together(of_threads: &[GrownKeys]) -> Vec<u8> {
    encoding::encode(&of_threads)
}

/// The keys of one of `threads` proxy threads in a PE's connection info. A PE without keys has an empty connection
/// info.
///
/// # Errors
/// [`Error::Malformed`].
pub(crate) fn of_thread(
    connection_info: &[u8],
    pe: Pe,
    threads: usize,
    thread: usize,
) -> Result<Option<GrownKeys>, Error> {
    if connection_info.is_empty() {
        return Ok(None);
    }
    let what = "a segment's keys";
    let mut keys: Vec<GrownKeys> = encoding::decode(connection_info, what, pe)?;
    if keys.len() != threads || thread >= threads {
        let why = format!("those of {} proxy threads, where {threads} are", keys.len());
        return Err(Error::Malformed { what, pe, why });
    }
    Ok(Some(keys.swap_remove(thread)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_thread_gets_what_its_peers_said() {
        let said = together(&[GrownKeys::Follow(8), GrownKeys::Given(vec![2, 2])]);
        assert_eq!(of_thread(&said, 0, 2, 0).unwrap(), Some(GrownKeys::Follow(8)));
        assert_eq!(of_thread(&said, 0, 2, 1).unwrap(), Some(GrownKeys::Given(vec![2, 2])));
        assert_eq!(of_thread(&[], 0, 2, 1).unwrap(), None);
        for (said, why) in [(&said[..], "2 proxy threads, where 3 are"), (&[9], "PE 7")] {
            let error = of_thread(said, 7, 3, 0).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
