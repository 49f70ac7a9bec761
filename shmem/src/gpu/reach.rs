//! Which PEs' kernels access one another's heaps by loads and stores, as all PEs agree.
//!
//! Kernels' barriers use this table, host by host ([`barrier_plan`](crate::barrier_plan)). Any table that all PEs share
//! would be correct.

use std::collections::BTreeSet;
use std::sync::Arc;

use symrail_heap::cuda::NicWrites;
use symrail_transport::Pe;

use crate::staged::Staged;

/// Bits of a PE's report: its kernels access all heaps, which are in GPUs; its kernels access the heaps of its host.
const ALL: u8 = 1;
const HOST: u8 = 2;

/// The report of PE `me`. `bases` has 0 for heaps in host memory that are not mapped; `direct`: NICs write to the
/// heaps.
pub(crate) fn say(me: Pe, hosts: &[Pe], bases: &[usize], staged: Option<&Staged>, direct: bool) -> u8 {
    let shared = staged.and_then(Staged::shared);
    let in_gpus = shared.map(|shared| shared.bases());
    let reached: Vec<bool> = match (&in_gpus, staged) {
        (Some(bases), _) => bases.iter().map(|base| !base.is_null()).collect(),
        (None, Some(_)) => vec![false; hosts.len()],
        (None, None) => bases.iter().map(|&base| base != 0).collect(),
    };
    // A GPU that does not order NIC writes by itself must be flushed before a PE of another host signals it.
    let unseen = direct && shared.is_some_and(|shared| shared.gpu().nic_writes() != NicWrites::InOrder);
    let host = hosts.get(me as usize);
    let all_of_host = hosts.iter().zip(&reached).all(|(other, &reached)| Some(other) != host || reached);
    let all = in_gpus.is_some() && reached.iter().all(|&reached| reached);
    (if all { ALL } else { 0 }) | if all_of_host && !unseen { HOST } else { 0 }
}

/// Whether every PE's kernels access every heap; and for each PE the first PE of its group of PEs that access each
/// other.
pub(crate) fn agree(said: &[Vec<u8>], hosts: &[Pe]) -> (bool, Arc<[Pe]>) {
    let says = |said: &[u8], what: u8| said.first().is_some_and(|said| said & what != 0);
    if said.iter().all(|said| says(said, ALL)) {
        return (true, hosts.iter().map(|_| 0).collect());
    }
    let apart: BTreeSet<Pe> =
        hosts.iter().zip(said).filter(|(_, said)| !says(said, HOST)).map(|(&host, _)| host).collect();
    let first = |(&host, pe)| if apart.contains(&host) { pe } else { host };
    (false, hosts.iter().zip(0..).map(first).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_whose_pes_all_reach_each_other() {
        let agree = |said: [u8; 5]| agree(&said.map(|said| vec![said]), &[0, 0, 2, 2, 2]);
        assert_eq!(agree([HOST; 5]), (false, [0, 0, 2, 2, 2].into()));
        assert_eq!(agree([HOST, HOST, HOST, 0, HOST]), (false, [0, 0, 2, 3, 4].into()));
        assert_eq!(agree([ALL | HOST; 5]), (true, [0; 5].into()));
        assert_eq!(agree([ALL, ALL, ALL, ALL, HOST]), (false, [0, 1, 2, 3, 4].into()));
    }

    #[test]
    fn what_is_not_mapped_is_said() {
        assert_eq!(say(1, &[0, 0, 2], &[64, 128, 0], None, false), HOST);
        assert_eq!(say(1, &[0, 0, 2], &[0, 128, 64], None, false), 0);
        assert_eq!(say(2, &[0, 0, 2], &[0, 0, 64], None, false), HOST);
    }
}
