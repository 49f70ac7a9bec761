//! The PEs through which blocks reach other hosts, each once: a block goes to the PE with the same index on its host.
//! If a host has fewer PEs, its PEs take over the blocks of higher indexes in turn.

use crate::team::hosts::Hosts;

/// The PEs that receive this PE's block, one on each other host.
pub(super) fn takers(hosts: &Hosts) -> Vec<u32> {
    // Starts behind this host, so that not all PEs send to the same host first.
    let others = (1..hosts.count()).map(|i| hosts.on((hosts.here() + i) % hosts.count()));
    others.map(|there| there[hosts.place() % there.len()]).collect()
}

/// The PEs whose blocks this PE receives from other hosts.
pub(super) fn givers(hosts: &Hosts) -> Vec<u32> {
    let (here, place, size) = (hosts.here(), hosts.place(), hosts.mates().len());
    let others = (0..hosts.count()).filter(|&host| host != here);
    others.flat_map(|host| hosts.on(host).iter().skip(place).step_by(size)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::group::Group;

    #[test]
    fn each_block_comes_to_each_other_host_once() {
        for n in 1..=12u32 {
            for shape in 0..6u32 {
                let first = |pe: u32| match shape {
                    0 => pe,
                    1 => 0,
                    2 => pe / 3 * 3,
                    3 => pe % 3,
                    4 => u32::from(pe > 0),
                    _ => [0, 0, 0, 3, 3, 5, 5, 5, 5, 9, 0, 9][pe as usize],
                };
                let homes: Vec<u32> = (0..n).map(first).collect();
                let hosts = |pe: u32| Hosts::new(Group::world(pe, n), &homes);
                let pairs = |of: &dyn Fn(u32) -> Vec<(u32, u32)>| {
                    let mut pairs: Vec<_> = (0..n).flat_map(of).collect();
                    pairs.sort_unstable();
                    pairs
                };
                let given = pairs(&|pe| takers(&hosts(pe)).into_iter().map(|to| (pe, to)).collect());
                let taken = pairs(&|pe| givers(&hosts(pe)).into_iter().map(|from| (from, pe)).collect());
                assert_eq!(given, taken, "{homes:?}");
                for pe in 0..n {
                    let mut reached: Vec<u32> =
                        given.iter().filter(|to| to.0 == pe).map(|to| homes[to.1 as usize]).collect();
                    reached.push(homes[pe as usize]);
                    reached.sort_unstable();
                    let mut all = homes.clone();
                    all.sort_unstable();
                    all.dedup();
                    assert_eq!(reached, all, "PE {pe} of {homes:?}");
                }
            }
        }
    }
}
