//! What it takes to reach each PE: kept in little space until a PE is needed, since most never are.

use std::sync::{Arc, PoisonError, RwLock};

use symrail_transport::endpoint::{self, Addresses};
use symrail_transport::region::Segment;
use symrail_transport::{Error, Pe, Result};

use crate::columns::Columns;
use crate::connection_info::ConnectionInfo;
use crate::wire::keys;

/// All PEs, for all endpoints of this one.
pub(crate) struct Directory {
    entries: Columns,
    /// The ids of the segments that PEs joined with.
    first: Vec<u32>,
    /// Segments by which the heap has grown, with what each PE has said of them.
    grown: RwLock<Vec<(u32, Columns)>>,
    threads: usize,
}

impl Directory {
    /// That of PEs with these connection infos, encoded, which have this number of proxy threads, and joined with these
    /// segments.
    pub fn new(connection_infos: &[Vec<u8>], threads: usize, first: &[Segment]) -> Directory {
        Directory {
            entries: Columns::new(connection_infos),
            first: first.iter().map(Segment::id).collect(),
            grown: RwLock::default(),
            threads,
        }
    }

    /// Takes in what all PEs have said of a segment by which the heap has grown.
    pub fn add_segment(&self, id: u32, connection_infos: &[Vec<u8>]) {
        let segment = (id, Columns::new(connection_infos));
        self.grown.write().unwrap_or_else(PoisonError::into_inner).push(segment);
    }

    /// Bytes that each PE costs.
    #[cfg(feature = "simulation")]
    pub fn bytes_each(&self) -> usize {
        self.entries.width()
    }

    fn entry(&self, pe: Pe) -> Result<ConnectionInfo> {
        let bytes = self.entries.row(pe as usize).unwrap_or_default();
        let malformed = |e: postcard::Error| Error::Malformed { what: "connection info", pe, why: e.to_string() };
        postcard::from_bytes(&bytes).map_err(malformed)
    }
}

/// The directory for the endpoints that talk to proxy threads of one number.
pub(crate) struct OfThread {
    pub directory: Arc<Directory>,
    pub thread: usize,
}

impl endpoint::Directory for OfThread {
    /// Of the first thread also the host endpoint's, which that one answers.
    fn addresses(&self, pe: Pe) -> Result<Option<Addresses>> {
        let mut info = self.directory.entry(pe)?;
        if self.thread >= info.proxies.len() {
            return Ok(None);
        }
        let proxy = info.proxies.swap_remove(self.thread).addresses;
        Ok(Some(Addresses { host: if self.thread == 0 { info.host_addresses } else { Vec::new() }, proxy }))
    }

    fn keys(&self, pe: Pe, segment: u32) -> Result<Option<Vec<u8>>> {
        if self.directory.first.contains(&segment) {
            let mut proxies = self.directory.entry(pe)?.proxies;
            let there = self.thread < proxies.len();
            return Ok(there.then(|| proxies.swap_remove(self.thread).keys.segment));
        }
        let grown = self.directory.grown.read().unwrap_or_else(PoisonError::into_inner);
        let Some((_, said)) = grown.iter().find(|(id, _)| *id == segment) else { return Ok(None) };
        let said = said.row(pe as usize).unwrap_or_default();
        keys::of_thread(&said, pe, self.directory.threads, self.thread)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use endpoint::Directory as _;
    use rand::RngExt;
    use symrail_transport::env::Settings;

    use super::*;
    use crate::connection_info::Keys;

    /// What PE `pe` of a job says whose hosts have eight PEs and four rails each, over TCP.
    fn connection_info(pe: u32, random: &mut impl RngExt) -> ConnectionInfo {
        let (token, key): ([u8; 12], u64) = (random.random(), random.random());
        let mut address = |rail: u32| {
            let port: u16 = random.random();
            let ip = [10, rail as u8, (pe / 8 / 256) as u8, (pe / 8) as u8];
            [&b"\x51\x0btcp;ofi_rxm\x02\0"[..], &port.to_be_bytes(), &ip, &[0; 8], &token].concat()
        };
        let host_addresses = (0..4).map(&mut address).collect();
        let addresses = (0..4).map(&mut address).collect();
        let segment = [[0; 8], key.to_le_bytes()].concat().repeat(4);
        let keys = Keys { segment, ..Keys::default() };
        let proxies = vec![crate::connection_info::OfThread { addresses, keys }];
        let mut info = ConnectionInfo::without_wire(&Settings::default());
        (info.host_addresses, info.proxies) = (host_addresses, proxies);
        info
    }

    #[test]
    fn a_pe_with_four_rails_is_kept_in_few_bytes_and_found_again() {
        let mut random = rand::rng();
        let infos: Vec<_> = (0..2000).map(|pe| connection_info(pe, &mut random)).collect();
        // SAFETY: nobody follows the address.
        let first = unsafe { Segment::new(5, 0, std::ptr::null_mut(), 4096) };
        let encoded: Vec<_> = infos.iter().map(ConnectionInfo::encode).collect();
        let directory = Arc::new(Directory::new(&encoded, 1, &[first]));
        // A token, a key, eight ports, and the ends of addresses.
        assert!(directory.entries.width() <= 12 + 8 + 16 + 2, "{} bytes a PE", directory.entries.width());
        let of_thread = |thread| OfThread { directory: Arc::clone(&directory), thread };
        for (pe, info) in (0..).zip(&infos) {
            let expected = Addresses { host: info.host_addresses.clone(), proxy: info.proxies[0].addresses.clone() };
            assert_eq!(of_thread(0).addresses(pe).unwrap(), Some(expected));
            assert_eq!(of_thread(0).keys(pe, 5).unwrap().as_ref(), Some(&info.proxies[0].keys.segment));
        }
        assert_eq!(of_thread(1).addresses(7).unwrap(), None, "it has no such thread");
        assert_eq!(of_thread(0).keys(7, 6).unwrap(), None, "not known yet");
        directory.add_segment(6, &[keys::together(&[vec![1; 16]]), keys::together(&[vec![2; 16]])]);
        assert_eq!(of_thread(0).keys(1, 6).unwrap(), Some(vec![2; 16]));
    }
}
