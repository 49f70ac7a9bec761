//! The hosts of a job's PEs, for the choice of rails.

use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use symrail_core::encoding;
use symrail_transport::Error;
use symrail_transport::backend::HostPes;
use symrail_transport::topology::{CpuSet, PciAddress, allowed_cpus};

use crate::host::HostIdentity;

/// A PE's host and GPU. PEs exchange them before they choose their rails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Its host.
    pub host: HostIdentity,
    /// The inode of its network namespace. Another namespace has another loopback interface. 0 if it cannot be read.
    pub network: u64,
    /// The cores that it may use.
    pub cpus: CpuSet,
    /// The GPU of its heap, if any.
    pub gpu: Option<PciAddress>,
}

impl Site {
    /// This process's host, with its heap on `gpu`, if any.
    #[must_use]
    pub fn of_this_process(host: HostIdentity, gpu: Option<PciAddress>) -> Site {
        let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
        Site { host, network, cpus: allowed_cpus(), gpu }
    }

    /// Whether both run on one machine, in one network namespace.
    fn shares_network(&self, other: &Site) -> bool {
        self.host.same_machine(&other.host) && self.network == other.network && self.network != 0
    }

    /// The site as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoding::encode(self)
    }

    /// Decodes the sites of all PEs.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn decode_all(all: &[Vec<u8>]) -> Result<Vec<Site>, Error> {
        encoding::decode_all(all, "site")
    }

    /// The PEs of `me`'s host, from all PEs' sites. Cores belong to the machine, even if PEs simulate different hosts.
    #[must_use]
    pub fn pes_of_host(all: &[Site], me: usize) -> HostPes {
        let Some(mine) = all.get(me) else { return HostPes::alone(CpuSet::new()) };
        let local = (0..all.len()).filter(|&pe| pe == me || all[pe].host.same_host(&mine.host));
        let local_pe = local.clone().filter(|&pe| pe < me).count();
        let (cpus, gpus) = local.map(|pe| (all[pe].cpus.clone(), all[pe].gpu)).unzip();
        let shares = |pe: usize| all[pe].host.same_machine(&mine.host) && !all[pe].cpus.is_disjoint(&mine.cpus);
        let sharers = (0..all.len()).filter(|&pe| pe == me || shares(pe));
        let (sharing_index, sharing_pes) = (sharers.clone().filter(|&pe| pe < me).count(), sharers.count());
        let all_here = all.iter().all(|site| site.shares_network(mine));
        HostPes { cpus, local_pe, sharing_index, sharing_pes, gpus, all_here }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn site(host: &str, boot_id: u128, cpus: std::ops::Range<usize>, bus: u8) -> Site {
        let gpu = Some(PciAddress { domain: 0, bus, device: 0, function: 0 });
        let host = HostIdentity { name: host.into(), boot_id, pid_namespace: 1 };
        Site { host, network: 5, cpus: cpus.collect(), gpu }
    }

    #[test]
    fn cores_are_shared_by_machine_and_memory_by_host() {
        let all = [
            site("a", 7, 0..8, 1),
            site("b", 7, 0..8, 2),
            site("a", 7, 8..16, 3),
            site("a", 9, 0..8, 4),
            site("a", 7, 4..8, 5),
        ];
        let of = |me| Site::pes_of_host(&all, me);
        let sharing = |me| (of(me).sharing_index, of(me).sharing_pes);
        assert_eq!([0, 1, 2, 3, 4].map(sharing), [(0, 3), (1, 3), (0, 1), (0, 1), (2, 3)]);
        assert_eq!((0..5).map(|me| of(me).local_pe).collect::<Vec<_>>(), [0, 0, 1, 0, 2]);
        assert_eq!((0..5).map(|me| of(me).cpus.len()).collect::<Vec<_>>(), [3, 1, 3, 1, 3]);
        let buses = |me| of(me).gpus.iter().flatten().map(|gpu| gpu.bus).collect::<Vec<_>>();
        assert_eq!((buses(4), buses(1)), (vec![1, 3, 5], vec![2]));
    }

    #[test]
    fn all_are_here_where_one_loopback_interface_reaches_them() {
        let all_here = |all: &[Site]| [0, 1].map(|me| Site::pes_of_host(all, me).all_here);
        assert_eq!(all_here(&[site("a", 7, 0..2, 1), site("b", 7, 0..2, 1)]), [true; 2], "whatever they are called");
        assert_eq!(all_here(&[site("a", 7, 0..2, 1), site("a", 8, 0..2, 1)]), [false; 2], "two machines");
        let (here, there) = (site("a", 7, 0..2, 1), Site { network: 6, ..site("a", 7, 0..2, 1) });
        assert_eq!(all_here(&[here.clone(), there]), [false; 2], "two networks");
        let unknown = Site { network: 0, ..here };
        assert_eq!(all_here(&[unknown.clone(), unknown]), [false; 2]);
    }

    #[test]
    fn a_host_that_is_not_known_is_its_pes_own() {
        let all = [site("a", 0, 0..2, 1), site("a", 0, 0..2, 2)];
        let of = |me| Site::pes_of_host(&all, me);
        assert_eq!((of(1).local_pe, of(1).cpus.len(), of(1).sharing_index, of(1).sharing_pes), (0, 1, 0, 1));
    }

    #[test]
    fn sites_come_back_and_garbage_is_refused() {
        let all = [site("a", 7, 0..3, 1), Site { gpu: None, ..site("b", u128::MAX, 2..2, 0) }];
        let mut bytes: Vec<_> = all.iter().map(Site::encode).collect();
        assert_eq!(Site::decode_all(&bytes).unwrap(), all);
        bytes[1].truncate(3);
        let error = Site::decode_all(&bytes).unwrap_err().to_string();
        assert!(error.contains("PE 1"), "{error}");
    }
}
