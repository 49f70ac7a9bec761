//! The cores that proxy threads are pinned to.

use super::place::{CpuSet, Machine, Place};

/// The PE to whose proxy threads cores are assigned.
#[derive(Debug, Clone, Default)]
pub struct ProxyPe<'a> {
    /// The processing units that the PE may run on.
    pub allowed: CpuSet,
    /// The processing unit that the PE's own thread runs on, if it is pinned.
    pub own: Option<usize>,
    /// The NIC or GPU that each thread uses most.
    pub talks_to: Vec<Option<&'a Place>>,
    /// The PE's index among the PEs of this machine that may run on the same cores, from 0.
    pub sharing_index: usize,
    /// The number of those PEs, at least 1.
    pub sharing_pes: usize,
}

/// The processing unit to pin each proxy thread to. It is near the device that the thread uses most, on a physical core
/// that is not the PE's own and that no other of these threads or other PE's proxy has. `None` leaves the threads to
/// the scheduler: with two cores or fewer, or with less than one core for each of the PEs' own threads and proxy
/// threads, which poll while there is traffic.
#[must_use]
pub fn proxy_cores(machine: &Machine, pe: &ProxyPe<'_>) -> Vec<Option<usize>> {
    let threads = pe.talks_to.len();
    let usable: Vec<CpuSet> = machine
        .cores
        .iter()
        .map(|core| core.intersection(&pe.allowed).copied().collect::<CpuSet>())
        .filter(|core| !core.is_empty())
        .collect();
    if usable.len() <= 2 || usable.len() < (1 + threads) * pe.sharing_pes.max(1) {
        return vec![None; threads];
    }
    let own = |core: &CpuSet| pe.own.is_some_and(|own| core.contains(&own));
    let mut free: Vec<&CpuSet> = usable.iter().filter(|core| !own(core)).collect();
    // The nearest units come first and, among equals, the highest: threads that pin themselves tend to start from core
    // 0.
    free.reverse();
    let nearest = |place: &Option<&Place>| {
        let mut cores = free.clone();
        cores.sort_by_key(|core| machine.distance(Some(&Place::cores((*core).clone())), *place));
        cores
    };
    let lists: Vec<_> = pe.talks_to.iter().map(nearest).collect();
    let mut taken = CpuSet::new();
    let mut pick = |(thread, list): (usize, &Vec<&CpuSet>)| {
        // Threads with the same preferences, of this PE and of PEs that share its cores, get units one after the other.
        let alike = |lists: &[Vec<&CpuSet>]| lists.iter().filter(|other| *other == list).count();
        let from = pe.sharing_index * alike(&lists) + alike(&lists[..thread]);
        let units = list.iter().cycle().skip(from).take(list.len()).filter_map(|core| core.first());
        let unit = units.copied().find(|unit| !taken.contains(unit));
        taken.extend(unit);
        unit
    };
    lists.iter().enumerate().map(&mut pick).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::topology::place::tests::regular;

    fn proxy_core(machine: &Machine, pe: &ProxyPe<'_>) -> Option<usize> {
        proxy_cores(machine, &ProxyPe { talks_to: vec![pe.talks_to.first().copied().flatten()], ..pe.clone() })[0]
    }

    #[test]
    fn few_cores_are_left_to_the_scheduler() {
        for (cores, units, sharing_pes) in [(1, 1, 1), (2, 1, 1), (2, 2, 1), (7, 1, 4)] {
            let machine = regular(1, 1, cores, units);
            let pe = ProxyPe { allowed: machine.cpus(), sharing_pes, ..ProxyPe::default() };
            assert_eq!(proxy_core(&machine, &pe), None, "{cores} cores");
        }
        let machine = regular(1, 1, 8, 1);
        let pe = ProxyPe { allowed: [3, 4].into(), sharing_pes: 1, ..ProxyPe::default() };
        assert_eq!(proxy_core(&machine, &pe), None);
    }

    #[test]
    fn near_the_device_and_not_on_the_pes_own_core() {
        let machine = regular(2, 1, 4, 2);
        let nic = Place { cpus: (0..8).collect(), bridges: vec![1] };
        let pe = |own, sharing_index| ProxyPe {
            allowed: machine.cpus(),
            own,
            talks_to: vec![Some(&nic)],
            sharing_index,
            sharing_pes: 4,
        };
        assert_eq!(proxy_core(&machine, &pe(None, 0)), Some(6));
        // The PE's own core is excluded with its hardware threads.
        assert_eq!(proxy_core(&machine, &pe(Some(7), 0)), Some(4));
        let all: CpuSet = (0..4).filter_map(|index| proxy_core(&machine, &pe(None, index))).collect();
        assert_eq!(all, [0, 2, 4, 6].into());
        // Only allowed units count, even if others are nearer.
        let pe = ProxyPe { allowed: (8..16).collect(), sharing_pes: 2, ..pe(None, 0) };
        assert_eq!(proxy_core(&machine, &pe), Some(14));
        // Without a known device, the thread gets the last core.
        let pe = ProxyPe { talks_to: vec![], allowed: machine.cpus(), ..pe };
        assert_eq!(proxy_core(&machine, &pe), Some(14));
    }

    #[test]
    fn each_of_several_threads_is_near_its_nic_and_alone_on_its_core() {
        let machine = regular(2, 1, 4, 2);
        let nics = [0..8, 8..16].map(|cpus| Place { cpus: cpus.collect(), bridges: vec![] });
        let talks_to = vec![Some(&nics[0]), Some(&nics[1])];
        let pe = |talks_to: &[_], sharing_index, sharing_pes| {
            proxy_cores(
                &machine,
                &ProxyPe {
                    allowed: machine.cpus(),
                    own: None,
                    talks_to: talks_to.to_vec(),
                    sharing_index,
                    sharing_pes,
                },
            )
        };
        let of_all = |talks_to: &[_]| {
            [pe(talks_to, 0, 2), pe(talks_to, 1, 2)].concat().into_iter().flatten().collect::<Vec<_>>()
        };
        let units = of_all(&talks_to);
        assert_eq!(units.iter().copied().collect::<CpuSet>().len(), 4, "{units:?}");
        assert!(units.chunks(2).all(|pe| pe[0] < 8 && pe[1] >= 8), "{units:?}");
        let units = of_all(&[talks_to[1], talks_to[1]]);
        assert_eq!(units.iter().copied().collect::<CpuSet>().len(), 4, "{units:?}");
        assert!(units.iter().all(|unit| *unit >= 8), "{units:?}");
        // There are more threads than cores near the first NIC. The extra thread takes no core of the second NIC's
        // thread.
        let units = pe(&[talks_to[0], talks_to[0], talks_to[0], talks_to[0], talks_to[0], talks_to[1]], 0, 1);
        assert_eq!(units.iter().flatten().collect::<std::collections::BTreeSet<_>>().len(), 6, "{units:?}");
        // Three PEs would have two cores each, and each needs three.
        assert_eq!(pe(&talks_to, 0, 3), [None, None]);
    }
}
