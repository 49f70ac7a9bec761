//! The PEs of a group by host. Every plan that distinguishes hosts uses this table, so that all PEs have the same plan.
//!
//! Members are numbered by their index in the group. Hosts are in the order of their first members, and so are the
//! members of each host. The first member of a host acts for it where one does. The members with the same *place* on
//! all hosts are a *column*, and communicate for their hosts where several share the work.

use symrail_transport::Pe;

use super::group::Group;

/// Larger groups are not divided: each PE counts as a host.
const MOST: u32 = 1 << 15;

/// The members of a group by host, from the view of one of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hosts {
    members: Box<[Box<[u32]>]>,
    /// Each member's host and its place there.
    homes: Box<[(u32, u32)]>,
    me: u32,
}

impl Hosts {
    /// The hosts of a group. `first` has, for each PE of the job, the first PE that shares memory with it.
    pub fn new(group: Group, first: &[Pe]) -> Hosts {
        let host_of = |index: u32| match first.get(group.pe(index) as usize) {
            Some(&first) if group.size() <= MOST => first,
            _ => group.pe(index),
        };
        let mut numbers = std::collections::BTreeMap::new();
        let mut members: Vec<Vec<u32>> = Vec::new();
        let mut last = None;
        let homes = (0..group.size()).map(|index| {
            let first = host_of(index);
            // Most members follow one of the same host.
            let host = match last {
                Some((known, host)) if known == first => host,
                _ => *numbers.entry(first).or_insert_with(|| {
                    members.push(Vec::new());
                    members.len() - 1
                }),
            };
            last = Some((first, host));
            members[host].push(index);
            (host as u32, members[host].len() as u32 - 1)
        });
        let homes = homes.collect();
        Hosts { members: members.into_iter().map(Vec::into_boxed_slice).collect(), homes, me: group.me() }
    }

    /// The number of hosts.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// The number of members on all hosts.
    pub fn members(&self) -> usize {
        self.homes.len()
    }

    /// This PE's index.
    pub fn me(&self) -> u32 {
        self.me
    }

    /// The host of a member, and its place there.
    pub fn home(&self, index: u32) -> (usize, usize) {
        self.homes.get(index as usize).map_or((0, 0), |&(host, place)| (host as usize, place as usize))
    }

    /// This PE's host.
    pub fn here(&self) -> usize {
        self.home(self.me).0
    }

    /// This PE's place on its host.
    pub fn place(&self) -> usize {
        self.home(self.me).1
    }

    /// The members on this PE's host, itself included.
    pub fn mates(&self) -> &[u32] {
        self.on(self.here())
    }

    /// The other members on this PE's host, starting behind it, so that not all address the same one first.
    pub fn other_mates(&self) -> impl Iterator<Item = u32> + '_ {
        let (mates, place) = (self.mates(), self.place());
        (1..mates.len()).map(move |i| mates[(place + i) % mates.len()])
    }

    /// The members on a host.
    pub fn on(&self, host: usize) -> &[u32] {
        self.members.get(host).map_or(&[], |members| members)
    }

    /// The least number of members on a host: so many columns reach all hosts.
    pub fn width(&self) -> usize {
        self.members.iter().map(|members| members.len()).min().unwrap_or(1)
    }

    /// The largest number of members on a host.
    pub fn most(&self) -> usize {
        self.members.iter().map(|members| members.len()).max().unwrap_or(1)
    }

    /// The members with this place on their hosts, for a place that all hosts have.
    pub fn column(&self, place: usize) -> Vec<u32> {
        self.members.iter().filter_map(|members| members.get(place).copied()).collect()
    }

    /// Whether some members, but not all, share a host.
    pub fn are_mixed(&self) -> bool {
        self.count() > 1 && self.count() < self.members()
    }
}

/// Tables of `n` PEs' hosts, in blocks and interleaved, with `per_host` PEs a host.
#[cfg(test)]
pub(crate) fn shapes(n: u32) -> impl Iterator<Item = (u32, Vec<Pe>)> {
    (1..=n).flat_map(move |of_a_host| {
        let blocks = (0..n).map(|pe| pe / of_a_host * of_a_host).collect();
        let in_turn = (0..n).map(|pe| pe % of_a_host).collect();
        [(of_a_host, blocks), (of_a_host, in_turn)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_by_host_and_place() {
        // PEs 0, 2 and 5 share a host, PEs 1 and 3 another, and PE 4 is alone.
        let first = [0, 1, 0, 1, 4, 0];
        let hosts = Hosts::new(Group::world(3, 6), &first);
        assert_eq!((hosts.count(), hosts.width(), hosts.most(), hosts.here(), hosts.place()), (3, 1, 3, 1, 1));
        assert_eq!((hosts.on(0), hosts.mates(), hosts.on(2)), (&[0, 2, 5][..], &[1, 3][..], &[4][..]));
        assert_eq!((hosts.column(0), hosts.home(5)), (vec![0, 1, 4], (0, 2)));
        assert!(hosts.are_mixed());
        // In reverse without PE 4: indexes 0 to 2 are PEs 5, 3 and 1.
        let odd = Group::new(5, -2, 3, 1, 6).map(|group| Hosts::new(group, &first));
        assert_eq!(odd.map(|hosts| (hosts.mates().to_vec(), hosts.on(0).to_vec())), Some((vec![1, 2], vec![0])));
        assert!(!Hosts::new(Group::world(0, 3), &[0, 0, 0]).are_mixed());
        assert!(!Hosts::new(Group::world(0, 3), &[0, 1, 2]).are_mixed());
    }
}
