//! The number of rows from each rank to each other one in a call: between hosts, and within this rank's host.
//!
//! A dispatch sends between hosts first, and then within each host. A combine follows the same routes back.

use super::received::{Handle, first_rows};
use crate::plan::hosts::Hosts;

/// The routes of a call from the view of one rank.
pub struct Routes<'a> {
    pub hosts: &'a Hosts,
    pub handle: &'a Handle,
    pub me: usize,
}

impl Routes<'_> {
    fn ranks(&self) -> usize {
        self.handle.received.len()
    }

    /// The ranks of this host.
    pub fn here(&self) -> &[usize] {
        self.hosts.members(self.hosts.of(self.me))
    }

    /// The other hosts.
    pub fn elsewhere(&self) -> impl Iterator<Item = usize> + '_ {
        let here = self.hosts.of(self.me);
        (0..self.hosts.count()).filter(move |&host| host != here)
    }

    /// The sources on other hosts whose tokens this rank forwards on its host.
    pub fn passed(&self) -> impl Iterator<Item = usize> + '_ {
        self.hosts.served_by(self.me).skip(1)
    }

    /// For each other host, the rank there that receives this rank's tokens for the host, and those tokens.
    pub fn tokens_between(&self) -> Vec<(usize, Vec<u32>)> {
        let layout = &self.handle.layout;
        let to = |host| (self.hosts.through(self.me, host), layout.tokens_for_any(self.hosts.members(host)));
        self.elsewhere().map(to).collect()
    }

    /// The number of rows of a dispatch from this rank to each rank of the host, and back. This rank's own tokens for
    /// itself count. Tokens that it would forward to itself do not count: they stay in place.
    pub fn within(&self) -> (Vec<u32>, Vec<u32>) {
        let (mut out, mut into) = (vec![0; self.ranks()], vec![0; self.ranks()]);
        for &rank in self.here() {
            let sources =
                |through: usize| self.hosts.served_by(through).take(if rank == self.me { 1 } else { usize::MAX });
            out[rank] = sources(self.me).map(|source| self.handle.between(source, rank) as u32).sum();
            into[rank] = sources(rank).map(|source| self.handle.between(source, self.me) as u32).sum();
        }
        (out, into)
    }

    /// For each rank of this host, the indices of the received rows that come from it, in order of arrival.
    pub fn rows_from(&self) -> Vec<Vec<usize>> {
        let first = first_rows(&self.handle.received);
        let mut rows = vec![Vec::new(); self.ranks()];
        for &rank in self.here() {
            for source in self.hosts.served_by(rank).take(if rank == self.me { 1 } else { usize::MAX }) {
                rows[rank].extend(first[source]..first[source] + self.handle.between(source, self.me));
            }
        }
        rows
    }
}
