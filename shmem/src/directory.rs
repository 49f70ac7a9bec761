//! The directory of all PEs' addresses and keys: stored compactly until a PE is needed, since most never are.

use std::sync::{Arc, PoisonError, RwLock};

use symrail_core::encoding;
use symrail_transport::endpoint::{self, Addresses};
use symrail_transport::region::Segment;
use symrail_transport::{Pe, Result};

use crate::columns::Columns;
use crate::connection_info::ConnectionInfo;
use crate::wire::keys;

/// All PEs, for all endpoints of this PE.
pub(crate) struct Directory {
    entries: Columns,
    /// The segment of the heap at start.
    first: Segment,
    /// Segments by which the heap has grown, with each PE's keys.
    grown: RwLock<Vec<(Segment, Columns)>>,
    threads: usize,
}

impl Directory {
    /// The directory of PEs with these encoded connection infos and this number of proxy threads; `first` is the
    /// segment of the heap at start.
    pub fn new(connection_infos: &[Vec<u8>], threads: usize, first: Segment) -> Directory {
        Directory { entries: Columns::new(connection_infos), first, grown: RwLock::default(), threads }
    }

    /// The segment of the heap at start.
    pub fn first(&self) -> &Segment {
        &self.first
    }

    /// Adds all PEs' keys of a segment by which the heap has grown.
    pub fn add_segment(&self, segment: Segment, connection_infos: &[Vec<u8>]) {
        let segment = (segment, Columns::new(connection_infos));
        self.grown.write().unwrap_or_else(PoisonError::into_inner).push(segment);
    }

    /// Bytes stored for each PE.
    #[cfg(feature = "simulation")]
    pub fn bytes_each(&self) -> usize {
        self.entries.width()
    }

    fn entry(&self, pe: Pe) -> Result<ConnectionInfo> {
        let bytes = self.entries.row(pe as usize).unwrap_or_default();
        encoding::decode(&bytes, "connection info", pe)
    }
}

/// The directory for the endpoints that talk to proxy threads with one index.
pub(crate) struct OfThread {
    pub directory: Arc<Directory>,
    pub thread: usize,
}

impl endpoint::Directory for OfThread {
    /// For the first thread also the addresses of the host endpoint, which talks to that thread.
    fn addresses(&self, pe: Pe) -> Result<Option<Addresses>> {
        let mut info = self.directory.entry(pe)?;
        if self.thread >= info.proxies.len() {
            return Ok(None);
        }
        let proxy = info.proxies.swap_remove(self.thread).addresses;
        Ok(Some(Addresses { host: if self.thread == 0 { info.host_addresses } else { Vec::new() }, proxy }))
    }

    fn keys(&self, pe: Pe, segment: u32) -> Result<Option<Vec<u8>>> {
        let Directory { first, grown, threads, .. } = &*self.directory;
        let mut proxies = self.directory.entry(pe)?.proxies;
        if self.thread >= proxies.len() {
            return Ok(None);
        }
        let of_first = proxies.swap_remove(self.thread).keys.segment;
        if segment == first.id() {
            return Ok(Some(of_first));
        }
        let grown = grown.read().unwrap_or_else(PoisonError::into_inner);
        let Some((grown, said)) = grown.iter().find(|(grown, _)| grown.id() == segment) else { return Ok(None) };
        let said = keys::of_thread(&said.row(pe as usize).unwrap_or_default(), pe, *threads, self.thread)?;
        said.map(|said| said.connection_info(pe, (first, &of_first), grown)).transpose()
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
    use symrail_transport::grown::GrownKeys;

    /// The connection info of PE `pe` of a job whose hosts have eight PEs and four rails each, over TCP.
    fn connection_info(pe: u32, random: &mut impl RngExt) -> ConnectionInfo {
        let (token, key): ([u8; 12], u64) = (random.random(), random.random());
        let mut address = |rail: u32| {
            let port: u16 = random.random();
            let ip = [10, rail as u8, (pe / 8 / 256) as u8, (pe / 8) as u8];
            // The prefix and the network namespace, then a socket address.
            let network = (pe / 8).wrapping_mul(0x9e37_79b9).to_le_bytes();
            let head = [&b"\x52\x0btcp;ofi_rxm\x18"[..], &network, &[2, 0]].concat();
            [&head[..], &port.to_be_bytes(), &ip, &[0; 8], &token].concat()
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
        // SAFETY: no code dereferences the address.
        let segment = |id, offset| unsafe { Segment::new(id, offset, std::ptr::null_mut(), 4096) };
        let (first, grown, other) = (segment(5, 0), segment(6, 4096), segment(7, 8192));
        let encoded: Vec<_> = infos.iter().map(ConnectionInfo::encode).collect();
        let directory = Arc::new(Directory::new(&encoded, 1, first));
        // A token, a key, eight ports, the ends of addresses, and a network namespace.
        assert!(directory.entries.width() <= 12 + 8 + 16 + 2 + 4, "{} bytes a PE", directory.entries.width());
        let of_thread = |thread| OfThread { directory: Arc::clone(&directory), thread };
        for (pe, info) in (0..).zip(&infos) {
            let expected = Addresses { host: info.host_addresses.clone(), proxy: info.proxies[0].addresses.clone() };
            assert_eq!(of_thread(0).addresses(pe).unwrap(), Some(expected));
            assert_eq!(of_thread(0).keys(pe, 5).unwrap().as_ref(), Some(&info.proxies[0].keys.segment));
        }
        assert_eq!(of_thread(1).addresses(7).unwrap(), None, "it has no such thread");
        assert_eq!(of_thread(0).keys(7, 6).unwrap(), None, "not known yet");

        let said =
            |keys: &dyn Fn(usize) -> GrownKeys| -> Vec<_> { (0..2000).map(|pe| keys::together(&[keys(pe)])).collect() };
        directory.add_segment(grown, &said(&|_| GrownKeys::Follow(8)));
        directory.add_segment(other, &said(&|pe| GrownKeys::Given(vec![pe as u8; 64])));
        let widths: Vec<_> = directory.grown.read().unwrap().iter().map(|(_, said)| said.width()).collect();
        assert_eq!(widths, [0, 1], "what follows from the first keys costs nothing");
        let all = |pe| of_thread(0).keys(pe, 6).unwrap().unwrap();
        for (pe, info) in (0..).zip(&infos) {
            let keys = all(pe);
            let first_keys = (&first, &info.proxies[0].keys.segment[..]);
            assert_eq!(keys, GrownKeys::Follow(8).connection_info(pe, first_keys, &grown).unwrap());
            assert_ne!(keys, info.proxies[0].keys.segment);
            assert_ne!(keys, all((pe + 1) % 2000), "each PE has its own");
            assert_eq!(of_thread(0).keys(pe, 7).unwrap(), Some(vec![pe as u8; 64]));
        }
    }
}
