//! Which ranks share a host, and through which rank tokens reach it.

use symrail::{Pe, Runtime};

/// The most ranks of a host, as a row's mask has a bit for each. On larger hosts each rank counts as a host of its own.
const MOST_MEMBERS: usize = u64::BITS as usize;

/// The ranks by host. Hosts are in the order of their first ranks, and the ranks of each host are in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// For each rank its host, and its position there.
    homes: Vec<(usize, usize)>,
    members: Vec<Vec<usize>>,
}

impl Hosts {
    /// The hosts of a job.
    #[must_use]
    pub fn of_job(rt: &Runtime) -> Hosts {
        Hosts::new(&(0..rt.n_pes()).map(|pe| rt.first_on_host(pe)).collect::<Vec<_>>())
    }

    /// The hosts of ranks; `first` holds for each rank the first rank that shares memory with it.
    #[must_use]
    pub fn new(first: &[Pe]) -> Hosts {
        let mut hosts = Hosts { homes: Vec::new(), members: Vec::new() };
        let crowded = |of: Pe| first.iter().filter(|&&other| other == of).count() > MOST_MEMBERS;
        for (rank, &first) in first.iter().enumerate() {
            let known = hosts.homes.get(first as usize).map(|home| home.0).filter(|_| !crowded(first));
            let host = known.unwrap_or(hosts.members.len());
            if host == hosts.members.len() {
                hosts.members.push(Vec::new());
            }
            hosts.homes.push((host, hosts.members[host].len()));
            hosts.members[host].push(rank);
        }
        hosts
    }

    /// The number of hosts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Whether some ranks share a host.
    #[must_use]
    pub fn are_shared(&self) -> bool {
        self.members.len() < self.homes.len()
    }

    /// The host of a rank.
    #[must_use]
    pub fn of(&self, rank: usize) -> usize {
        self.homes[rank].0
    }

    /// The bit of a rank in the masks of its host.
    #[must_use]
    pub fn bit(&self, rank: usize) -> u64 {
        1 << self.homes[rank].1
    }

    /// The ranks of a host.
    #[must_use]
    pub fn members(&self, host: usize) -> &[usize] {
        &self.members[host]
    }

    /// The rank through which a source's tokens reach a host: on its own host the source itself. On other hosts the
    /// ranks serve sources in rotation, so that all share the work.
    #[must_use]
    pub fn through(&self, source: usize, host: usize) -> usize {
        let ((home, place), members) = (self.homes[source], &self.members[host]);
        if home == host { source } else { members[place % members.len()] }
    }

    /// The sources whose tokens reach a rank's host through that rank: itself, and then sources of other hosts.
    pub fn served_by(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        let host = self.of(rank);
        let others = (0..self.homes.len()).filter(move |&source| self.of(source) != host);
        std::iter::once(rank).chain(others.filter(move |&source| self.through(source, host) == rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_comes_to_each_host_through_one_of_its_ranks() {
        for first in [vec![0, 0, 0, 0], vec![0, 1, 2], vec![0, 1, 0, 1, 1], vec![0, 0, 2, 2, 4]] {
            let hosts = Hosts::new(&first);
            for source in 0..first.len() {
                for host in 0..hosts.count() {
                    let by: Vec<usize> = hosts
                        .members(host)
                        .iter()
                        .copied()
                        .filter(|&r| hosts.served_by(r).any(|s| s == source))
                        .collect();
                    assert_eq!(by, [hosts.through(source, host)], "{first:?}, rank {source}, host {host}");
                }
            }
        }
        let crowd = vec![0; MOST_MEMBERS + 1];
        assert_eq!(Hosts::new(&crowd).count(), crowd.len());
        assert_eq!(Hosts::new(&crowd[1..]).count(), 1);
    }
}
