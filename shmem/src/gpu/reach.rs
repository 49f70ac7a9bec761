//! Which PEs' kernels reach one another's heaps by loads and stores, as all PEs know it alike.
//!
//! Kernels' barriers go by it, host by host ([`barrier_plan`](crate::barrier_plan)). They would be right with any table
//! that all PEs share.

use std::collections::BTreeSet;
use std::sync::Arc;

use symrail_heap::cuda::NicWrites;
use symrail_transport::Pe;

use crate::staged::Staged;

/// What a PE says: its kernels reach all heaps, which are in GPUs; and those of its host.
const ALL: u8 = 1;
const HOST: u8 = 2;

/// What PE `me` has to say. `bases` has 0 for the heaps in host memory that are not mapped; `direct`: NICs write to the
/// heaps.
pub(crate) fn say(me: Pe, hosts: &[Pe], bases: &[usize], staged: Option<&Staged>, direct: bool) -> u8 {
    let shared = staged.and_then(Staged::shared);
    let in_gpus = shared.map(|shared| shared.bases());
    let reached: Vec<bool> = match (&in_gpus, staged) {
        (Some(bases), _) => bases.iter().map(|base| !base.is_null()).collect(),
        (None, Some(_)) => vec![false; hosts.len()],
        (None, None) => bases.iter().map(|&base| base != 0).collect(),
    };
    // A GPU that does not see by itself what NICs have written sees it before a PE of another host tells it something.
    let unseen = direct && shared.is_some_and(|shared| shared.gpu().nic_writes() != NicWrites::InOrder);
    let host = hosts.get(me as usize);
    let all_of_host = hosts.iter().zip(&reached).all(|(other, &reached)| Some(other) != host || reached);
    let all = in_gpus.is_some() && reached.iter().all(|&reached| reached);
    (if all { ALL } else { 0 }) | if all_of_host && !unseen { HOST } else { 0 }
}

/// Whether every PE's kernels reach every heap; and, for each PE, the first one of those that reach each other and it.
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
