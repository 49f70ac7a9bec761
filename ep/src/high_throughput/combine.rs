//! Combine: ranks send rows back within each host and add them there, and the sums go back between hosts.

use std::time::Instant;

use symrail_core::DataType;

use super::received::{Handle, first_rows};
use super::routes::Routes;
use super::transfer::Transfer;
use super::{Combined, HighThroughput, Parts};
use crate::element;
use crate::error::Result;
use crate::plan::hosts::Hosts;
use crate::plan::rows::RowFormat;

/// Rows with their weights, ordered by rank.
struct Rows {
    element: DataType,
    format: RowFormat,
    of_rank: Vec<(Vec<u8>, Vec<u8>)>,
    /// The index of the next row of each rank.
    next: Vec<usize>,
}

/// The sum of some rows.
struct Sum {
    values: Vec<f32>,
    weights: Vec<f32>,
}

/// The element type of sums that cross between hosts: FP32 where ranks share hosts.
fn between(parts: &Parts<'_>, hosts: &Hosts) -> DataType {
    if hosts.are_shared() { DataType::Float32 } else { parts.element }
}

/// The row formats within a host and between hosts.
pub(super) fn formats(parts: &Parts<'_>, hosts: &Hosts) -> [RowFormat; 2] {
    let weights = parts.weights.map_or(0, |(_, k)| k);
    let elements = parts.rows.bytes() / parts.element.size();
    [parts.element, between(parts, hosts)].map(|element| {
        let token = elements * element.size();
        RowFormat { token, scales: 0, indices: 0, weights, number: 0, mask: 0 }
    })
}

impl Rows {
    fn new(element: DataType, format: RowFormat, counts: &[u32]) -> Rows {
        let empty = |&rows: &u32| (vec![0; rows as usize * format.token], vec![0; rows as usize * 4 * format.weights]);
        Rows { element, format, of_rank: counts.iter().map(empty).collect(), next: vec![0; counts.len()] }
    }

    /// Stores a row that has arrived.
    fn take(&mut self, from: usize, row: usize, read: &mut dyn FnMut(usize, &mut [u8]) -> Result<()>) -> Result<()> {
        let RowFormat { token, weights, .. } = self.format;
        let (rows, of_slots) = &mut self.of_rank[from];
        read(0, &mut rows[row * token..][..token])?;
        read(self.format.rest_at(), &mut of_slots[row * 4 * weights..][..4 * weights])
    }

    /// Adds the next row of a rank.
    fn add_next(&mut self, rank: usize, sum: &mut Sum) {
        let (RowFormat { token, weights, .. }, row) = (self.format, self.next[rank]);
        let (rows, of_slots) = &self.of_rank[rank];
        element::add(self.element, &mut sum.values, &rows[row * token..][..token], None);
        element::add(DataType::Float32, &mut sum.weights, &of_slots[row * 4 * weights..][..4 * weights], None);
        self.next[rank] += 1;
    }
}

impl Sum {
    fn new(elements: usize, weights: usize) -> Sum {
        Sum { values: vec![0.0; elements], weights: vec![0.0; weights] }
    }

    fn clear(&mut self) {
        self.values.fill(0.0);
        self.weights.fill(0.0);
    }

    fn add(&mut self, other: &Sum) {
        self.values.iter_mut().zip(&other.values).for_each(|(sum, value)| *sum += value);
        self.weights.iter_mut().zip(&other.weights).for_each(|(sum, value)| *sum += value);
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

impl HighThroughput {
    /// Sends rows back and adds them.
    pub(super) fn add_up(&mut self, parts: &Parts<'_>, formats: [RowFormat; 2], handle: &Handle) -> Result<Combined> {
        let added = self.add_on_hosts(parts, formats, handle);
        self.poison_on_err(added)
    }

    fn add_on_hosts(
        &mut self,
        parts: &Parts<'_>,
        [within, between]: [RowFormat; 2],
        handle: &Handle,
    ) -> Result<Combined> {
        let (rt, since) = (&self.rows.runtime().clone(), Instant::now());
        rt.check_joined()?;
        let mut rows = self.back_within(parts, within, handle)?;
        let since = self.statistics.phase(rt, "within the host", since);
        let mut sums = self.back_between(parts, between, handle, &mut rows)?;
        let since = self.statistics.phase(rt, "between hosts", since);
        let combined = self.sums_of_tokens(parts, handle, &mut rows, &mut sums);
        self.statistics.phase(rt, "adding", since);
        Ok(combined)
    }

    /// Sends each row to the rank of this host through which its token came.
    fn back_within(&mut self, parts: &Parts<'_>, format: RowFormat, handle: &Handle) -> Result<Rows> {
        let routes = Routes { hosts: &self.hosts, handle, me: self.rows.runtime().my_pe() as usize };
        let ((into, out), rows_from) = (routes.within(), routes.rows_from());
        let mut rows = Rows::new(parts.element, format, &into);
        let transfer = Transfer::new(&mut self.rows, &mut self.statistics, format, self.limit, "combine");
        transfer.run(
            &out,
            &into,
            |to, row, write| {
                let row = rows_from[to][row];
                write(0, parts.rows.row(row))?;
                let weights = parts.weights.map_or(&[][..], |(all, k)| &all[row * k..][..k]);
                write(format.rest_at(), &bytes_of(weights))
            },
            |from, row, read| rows.take(from, row, read),
        )?;
        Ok(rows)
    }

    /// Sends this host's sums to sources on other hosts, and receives their sums for this rank's tokens.
    fn back_between(&mut self, parts: &Parts<'_>, format: RowFormat, handle: &Handle, rows: &mut Rows) -> Result<Rows> {
        let (me, ranks) = (self.me(), self.ranks());
        let routes = Routes { hosts: &self.hosts, handle, me };
        let element = between(parts, &self.hosts);
        let mut into = vec![0; ranks];
        for (from, list) in routes.tokens_between() {
            into[from] = list.len() as u32;
        }
        // Among the rows that a rank sends back, those for its own host's tokens precede those for others'.
        rows.next = (0..ranks).map(|rank| handle.between(me, rank)).collect();
        let first = first_rows(&handle.received);
        let mut sums = vec![(Vec::new(), Vec::new()); ranks];
        let mut sum = Sum::new(format.token / element.size(), format.weights);
        for source in routes.passed() {
            let mut own = first[source]..;
            for &mask in &handle.masks[source] {
                sum.clear();
                for &rank in routes.here().iter().filter(|&&rank| mask & self.hosts.bit(rank) != 0) {
                    if rank != me {
                        rows.add_next(rank, &mut sum);
                        continue;
                    }
                    let row = own.next().unwrap_or_default();
                    element::add(parts.element, &mut sum.values, parts.rows.row(row), None);
                    if let Some((all, k)) = parts.weights {
                        sum.weights.iter_mut().zip(&all[row * k..][..k]).for_each(|(sum, weight)| *sum += weight);
                    }
                }
                element::round(element, &sum.values, &mut sums[source].0);
                sums[source].1.extend(bytes_of(&sum.weights));
            }
        }
        rows.next = vec![0; ranks];
        let mut come = Rows::new(element, format, &into);
        let limit = self.limit_of_forwarded();
        let transfer = Transfer::new(&mut self.rows, &mut self.statistics, format, limit, "combine");
        transfer.run(
            &handle.passed,
            &into,
            |to, row, write| {
                write(0, &sums[to].0[row * format.token..][..format.token])?;
                write(format.rest_at(), &sums[to].1[row * 4 * format.weights..][..4 * format.weights])
            },
            |from, row, read| come.take(from, row, read),
        )?;
        Ok(come)
    }

    /// The sums of this rank's tokens. They are added within each host in the order of its ranks, then in the order of
    /// the hosts, and then the biases are added.
    fn sums_of_tokens(&self, parts: &Parts<'_>, handle: &Handle, rows: &mut Rows, sums: &mut Rows) -> Combined {
        let (me, layout, hosts, k) = (self.me(), &handle.layout, &self.hosts, rows.format.weights);
        let elements = parts.rows.bytes() / parts.element.size();
        let mut combined =
            Combined { rows: Vec::with_capacity(layout.tokens() * parts.rows.bytes()), weights: Vec::new() };
        let (mut all, mut of_host) = (Sum::new(elements, k), Sum::new(elements, k));
        for (token, gets) in layout.in_rank().chunks_exact(layout.ranks()).enumerate() {
            all.clear();
            for host in 0..hosts.count() {
                let members = hosts.members(host).iter().filter(|&&rank| gets[rank]);
                if members.clone().next().is_none() {
                    continue;
                }
                of_host.clear();
                if host == hosts.of(me) {
                    members.for_each(|&rank| rows.add_next(rank, &mut of_host));
                } else {
                    sums.add_next(hosts.through(me, host), &mut of_host);
                }
                all.add(&of_host);
            }
            for bias in parts.biases.iter().flatten() {
                element::add(parts.element, &mut all.values, bias.row(token), None);
            }
            element::round(parts.element, &all.values, &mut combined.rows);
            combined.weights.extend(&all.weights);
        }
        combined
    }
}
