//! Orders rails for one PE, and spreads NICs over the PEs of a host.

use super::locate::NicLocation;
use super::mapping::NicPeMapping;
use super::place::{CpuSet, Distance, Machine, Place};
use crate::error::Result;

/// What a PE's NIC should be near to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaAffinity {
    /// The place of the PE's heap, if on a GPU. It has priority, because the NIC moves bytes there.
    pub gpu: Option<Place>,
    /// The cores that the PE may run on, one of which runs the proxy thread.
    pub cpus: CpuSet,
}

/// A NIC as seen from one PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranked {
    /// Its index in the given list of NICs.
    pub nic: usize,
    /// How far it is from the PE's GPU; `None` without a GPU.
    pub from_gpu: Option<Distance>,
    /// How far it is from the PE's cores.
    pub from_cores: Distance,
}

impl std::fmt::Display for Ranked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(distance) = self.from_gpu {
            write!(f, "GPU: {distance}; ")?;
        }
        write!(f, "cores: {}", self.from_cores)
    }
}

fn rank(machine: &Machine, nics: &[NicLocation], affinity: &NumaAffinity) -> Vec<Ranked> {
    let cores = Place::cores(affinity.cpus.clone());
    let rank = |(nic, location): (usize, &NicLocation)| {
        let place = location.place.as_ref();
        Ranked {
            nic,
            from_gpu: affinity.gpu.as_ref().map(|gpu| machine.distance(Some(gpu), place)),
            from_cores: machine.distance(Some(&cores), place),
        }
    };
    nics.iter().enumerate().map(rank).collect()
}

/// All NICs, the nearest first. Equally near ones keep their given order.
#[must_use]
pub fn order(machine: &Machine, nics: &[NicLocation], affinity: &NumaAffinity) -> Vec<Ranked> {
    let mut ranked = rank(machine, nics, affinity);
    ranked.sort_by_key(|nic| (nic.from_gpu, nic.from_cores));
    ranked
}

/// For each PE of a host the index of the NIC that it uses first. Empty without NICs.
///
/// A PE always gets one of its nearest NICs. Among those the choice minimizes the number of PEs of the busiest NIC. PEs
/// with fewer candidates choose first. The candidates of two PEs are disjoint or nested, because both are subtrees of
/// the machine's tree. So taking the least used candidate each time yields the even spread.
#[must_use]
pub fn spread(machine: &Machine, nics: &[NicLocation], pes: &[NumaAffinity]) -> Vec<usize> {
    if nics.is_empty() {
        return Vec::new();
    }
    let nearest: Vec<Vec<usize>> = pes
        .iter()
        .map(|affinity| {
            let ranked = order(machine, nics, affinity);
            let key = |nic: &Ranked| (nic.from_gpu, nic.from_cores);
            ranked.iter().take_while(|nic| key(nic) == key(&ranked[0])).map(|nic| nic.nic).collect()
        })
        .collect();
    let mut turn: Vec<usize> = (0..pes.len()).collect();
    turn.sort_by_key(|&pe| nearest[pe].len());
    let mut load = vec![0; nics.len()];
    let mut chosen = vec![0; pes.len()];
    for pe in turn {
        let least = nearest[pe].iter().copied().min_by_key(|&nic| load[nic]).unwrap_or(0);
        load[least] += 1;
        chosen[pe] = least;
    }
    chosen
}

/// The rails of one PE of a host, in the order in which it uses them: first the NIC that [`spread`] assigns, then all
/// others, the nearest first. With a mapping it is the mapped NIC alone.
///
/// `pes` has all PEs of the host in order, and `local_pe` is this PE's index in it. Every PE of the host that calls
/// this with the same NICs and PEs gets its own share.
///
/// # Errors
/// As for [`NicPeMapping::assign`]. A PE without NICs gets no rails, which is no error here.
pub fn rails_of(
    machine: &Machine,
    nics: &[NicLocation],
    pes: &[NumaAffinity],
    local_pe: usize,
    mapping: Option<&NicPeMapping>,
) -> Result<Vec<Ranked>> {
    let Some(affinity) = pes.get(local_pe) else { return Ok(Vec::new()) };
    let mut ranked = order(machine, nics, affinity);
    let chosen = if let Some(mapping) = mapping {
        let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
        let mapped = mapping.assign(pes.len(), &names)?[local_pe];
        ranked.retain(|nic| nic.nic == mapped);
        Some(mapped)
    } else {
        spread(machine, nics, pes).get(local_pe).copied()
    };
    if let Some(first) = ranked.iter().position(|nic| Some(nic.nic) == chosen) {
        ranked[..=first].rotate_right(1);
    }
    Ok(ranked)
}

#[cfg(test)]
#[path = "affinity_tests.rs"]
mod tests;
