//! The ranks that forward tokens to each other: those of a host whose GPUs reach each other's memory. See
//! `cu/routes.cuh`.

use symrail::gpu::GpuDevice;

use super::far_ranks;
use super::layout::high_throughput::{FIRST_OF_HOST, IS_SUM};
use crate::error::Result;
use crate::plan::hosts::Hosts;

/// The ranks by host, for the routes of tokens and for the order of sums.
pub(super) struct DeviceHosts {
    /// The hosts for routes. A host whose GPUs do not all reach each other is split: each of its ranks is a host of its
    /// own.
    hosts: Hosts,
    /// The hosts of the job, which determine the order of all sums.
    job: Hosts,
}

/// The numbers of rows that memory must hold for each token of a rank, on the rank that needs the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Rows that return from ranks of other hosts (in a job of one host from all others), and sums of hosts.
    pub back: usize,
    pub sums: usize,
    /// Rows of other hosts' tokens that pass through a rank, and rows that are gathered there.
    pub passed: usize,
    pub gathered: usize,
}

impl DeviceHosts {
    /// Determines the hosts. Collective.
    pub fn new(device: &GpuDevice) -> Result<DeviceHosts> {
        let rt = device.runtime();
        let far = far_ranks(device)?;
        let first_here = rt.first_on_host(rt.my_pe());
        let here = (0..rt.n_pes()).filter(|&pe| rt.first_on_host(pe) == first_here);
        let reaches_all = here.into_iter().all(|pe| !far[pe as usize]);
        let of_ranks = rt.team_world()?.gather(&[reaches_all.into()])?;
        let first: Vec<_> = (0..rt.n_pes()).map(|pe| rt.first_on_host(pe)).collect();
        Ok(DeviceHosts::of(&first, &of_ranks.iter().map(|&all| all != 0).collect::<Vec<_>>()))
    }

    /// `first` holds for each rank the first rank of its host, and `reaches` whether it reaches all of its host.
    pub fn of(first: &[u32], reaches: &[bool]) -> DeviceHosts {
        let is_whole = |of: u32| first.iter().zip(reaches).all(|(&first, &all)| first != of || all);
        let ways = (0..).zip(first).map(|(rank, &first)| if is_whole(first) { first } else { rank });
        DeviceHosts { hosts: Hosts::new(&ways.collect::<Vec<_>>()), job: Hosts::new(first) }
    }

    /// The number of hosts.
    pub fn count(&self) -> usize {
        self.hosts.count()
    }

    /// The number of ranks of the largest host.
    pub fn most_members(&self) -> usize {
        (0..self.count()).map(|host| self.hosts.members(host).len()).max().unwrap_or(1)
    }

    /// Whether a source's tokens go directly to a rank.
    fn is_direct(&self, source: usize, rank: usize) -> bool {
        let host = self.hosts.of(rank);
        self.hosts.of(source) == host || self.hosts.members(host).len() == 1
    }

    /// The number of sources on other hosts whose tokens reach a rank's host through that rank.
    pub fn passed(&self, rank: usize) -> usize {
        self.hosts.served_by(rank).skip(1).filter(|&source| !self.is_direct(source, rank)).count()
    }

    /// The numbers of rows that memory must hold if each token has `k` slots.
    pub fn room(&self, k: usize) -> Room {
        let ranks: usize = (0..self.count()).map(|host| self.hosts.members(host).len()).sum();
        let mut most = Room { back: 0, sums: 0, passed: 0, gathered: 0 };
        if self.count() == 1 {
            return Room { back: ranks - 1, ..most };
        }
        for rank in 0..ranks {
            let own = self.hosts.of(rank);
            let back = |&other: &usize| self.hosts.of(other) != own && self.is_direct(rank, other);
            let back = (0..ranks).filter(back).count();
            let shared = |host: usize| host != own && self.hosts.members(host).len() > 1;
            let sums = (0..self.count()).filter(|&host| shared(host)).count();
            let passed = self.passed(rank);
            most.back = most.back.max(back.min(k));
            most.sums = most.sums.max(sums.min(k));
            most.passed = most.passed.max(passed);
            most.gathered = most.gathered.max(passed * self.hosts.members(own).len().min(k));
        }
        most
    }

    /// The table for kernels: for each rank its host, then its position there; the index of each host's first rank in
    /// the list of ranks; and that list.
    pub fn homes(&self, ranks: usize) -> Vec<u32> {
        let members = |host: usize| self.hosts.members(host);
        let place = |rank: usize| members(self.hosts.of(rank)).iter().position(|&other| other == rank).unwrap_or(0);
        let mut starts = vec![0];
        (0..self.count()).for_each(|host| starts.push(starts[host] + members(host).len()));
        let all = (0..ranks).map(|rank| self.hosts.of(rank)).chain((0..ranks).map(place)).chain(starts);
        let all = all.chain((0..self.count()).flat_map(|host| members(host).iter().copied()));
        all.map(|number| number as u32).collect()
    }

    /// The terms of a rank's sums, in order: rows of ranks, and sums of hosts.
    pub fn terms(&self, me: usize) -> Vec<u32> {
        let of_host = |host: usize| {
            let members = self.job.members(host).iter().enumerate();
            members.filter_map(|(i, &rank)| {
                let mark = if i == 0 { FIRST_OF_HOST } else { 0 };
                match (self.is_direct(me, rank), i) {
                    (true, _) => Some(rank as u32 | mark),
                    (false, 0) => Some(self.hosts.of(rank) as u32 | IS_SUM | mark),
                    (false, _) => None,
                }
            })
        };
        (0..self.job.count()).flat_map(of_host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: [bool; 6] = [true; 6];

    #[test]
    fn each_sum_has_each_rank_once_in_the_order_of_hosts() {
        let hosts = DeviceHosts::of(&[0, 0, 2, 2, 4, 5], &WHOLE);
        assert_eq!(
            hosts.terms(1),
            [FIRST_OF_HOST, 1, 1 | IS_SUM | FIRST_OF_HOST, 4 | FIRST_OF_HOST, 5 | FIRST_OF_HOST]
        );
        assert_eq!(hosts.terms(4)[..2], [IS_SUM | FIRST_OF_HOST, 1 | IS_SUM | FIRST_OF_HOST]);
        assert_eq!(hosts.homes(6), [0, 0, 1, 1, 2, 3, 0, 1, 0, 1, 0, 0, 0, 2, 4, 5, 6, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn ranks_of_a_host_that_do_not_reach_each_other_are_by_themselves_but_their_sums_are_not() {
        let hosts = DeviceHosts::of(&[0, 0, 2, 2], &[true, true, true, false]);
        assert_eq!((hosts.count(), hosts.most_members()), (3, 2));
        assert_eq!(hosts.terms(0), [FIRST_OF_HOST, 1, 2 | FIRST_OF_HOST, 3]);
        assert_eq!(hosts.terms(3), [IS_SUM | FIRST_OF_HOST, 2 | FIRST_OF_HOST, 3]);
    }

    #[test]
    fn room_is_for_the_rank_that_has_the_most() {
        // Two hosts of three ranks: each source's tokens reach the other host through one rank.
        let room = DeviceHosts::of(&[0, 0, 0, 3, 3, 3], &WHOLE).room(8);
        assert_eq!(room, Room { back: 0, sums: 1, passed: 1, gathered: 3 });
        // The tokens of all single ranks pass through the first rank of the shared host.
        let room = DeviceHosts::of(&[0, 0, 2, 3, 4, 5], &WHOLE).room(1);
        assert_eq!(room, Room { back: 1, sums: 1, passed: 4, gathered: 4 });
        // One host, and hosts of one rank each: no rank forwards tokens.
        for (first, back) in [([0; 6], 5), ([0, 1, 2, 3, 4, 5], 4)] {
            let room = DeviceHosts::of(&first, &WHOLE).room(4);
            assert_eq!(room, Room { back, sums: 0, passed: 0, gathered: 0 });
        }
    }
}
