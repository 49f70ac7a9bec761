//! The rows that have arrived: by source, and by expert.

use super::header::{self, Header};
use super::transfer::Read;
use crate::error::{Error, Result};
use crate::plan::groups::Groups;
use crate::plan::hosts::Hosts;
use crate::plan::layout::Layout;
use crate::plan::rows::RowFormat;

/// The routes of a dispatch. A combine sends rows back on them, and another dispatch may reuse them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The layout of this rank's tokens.
    pub layout: Layout,
    /// The number of rows from each rank.
    pub received: Vec<u32>,
    /// For each rank, the number of its rows for each rank: `ranks` × `ranks`.
    pub matrix: Vec<u32>,
    /// The index of each row's token at its source.
    pub source_tokens: Vec<u32>,
    /// For each source, the number of its rows that reach this rank's host through this rank: 0 for sources on that
    /// host.
    pub(super) passed: Vec<u32>,
    /// For each source, which ranks of this host get each of those rows.
    pub(super) masks: Vec<Vec<u64>>,
    /// A checksum of the numbers of rows, by which ranks compare their handles.
    pub(super) routes: u32,
}

impl Handle {
    pub(super) fn new(layout: Layout, headers: &[Header], hosts: &Hosts, me: usize) -> Handle {
        let received = headers.iter().map(|header| header.per_rank[me]).collect();
        let matrix = headers.iter().flat_map(|header| header.per_rank.iter().copied()).collect();
        let mut passed = vec![0; headers.len()];
        for source in hosts.served_by(me).skip(1) {
            passed[source] = headers[source].per_host[hosts.of(me)];
        }
        let routes = header::routes(headers);
        Handle { layout, received, matrix, source_tokens: Vec::new(), passed, masks: Vec::new(), routes }
    }

    /// How many rows have arrived.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.received.iter().map(|&rows| rows as usize).sum()
    }

    /// The number of rows from one rank to another.
    pub(super) fn between(&self, from: usize, to: usize) -> usize {
        self.matrix[from * self.received.len() + to] as usize
    }
}

/// Refuses more rows than memory suffices for. The number comes from peers.
pub(super) fn must_have_room(rows: usize, format: RowFormat) -> Result<()> {
    let bytes = rows.checked_mul(format.bytes());
    let room = bytes.is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    if room { Ok(()) } else { Err(Error::NoMemory { rows, bytes: format.bytes() }) }
}

/// The index of each rank's first row.
pub(super) fn first_rows(counts: &[u32]) -> Vec<usize> {
    counts
        .iter()
        .scan(0, |next, &count| {
            let first = *next;
            *next += count as usize;
            Some(first)
        })
        .collect()
}

/// Appends the slots of a token in the receiving rank's numbering: the indices of its own experts, counted from its
/// first one, and their weights; -1 and 0 for experts of other ranks.
pub(crate) fn slots(indices: &[i64], weights: &[f32], rank: usize, share: usize, to: &mut Vec<u8>) {
    let own = |&expert: &i64| expert >= 0 && expert as usize / share == rank;
    for expert in indices {
        let seen = if own(expert) { (*expert as usize % share) as i32 } else { -1 };
        to.extend(seen.to_ne_bytes());
    }
    for (expert, weight) in indices.iter().zip(weights) {
        to.extend(if own(expert) { *weight } else { 0.0 }.to_ne_bytes());
    }
}

/// Rewrites the slots of a row, which name experts of all ranks, in the receiving rank's numbering.
pub(super) fn localize(rest: &mut [u8], k: usize, rank: usize, share: usize) {
    let (indices, weights) = rest.split_at_mut(4 * k);
    for (slot, index) in indices.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let expert = i32::from_ne_bytes(*index);
        let own = expert >= 0 && expert as usize / share == rank;
        *index = if own { (expert as usize % share) as i32 } else { -1 }.to_ne_bytes();
        if !own {
            weights[4 * slot..][..4].fill(0);
        }
    }
}

/// The rows that have arrived, ordered by source and within a source by token.
#[derive(Debug, Clone, PartialEq)]
pub struct Received {
    /// A row for each token.
    pub rows: Vec<u8>,
    /// Scales of each token.
    pub scales: Vec<u8>,
    /// For each slot of each token the expert, counted from this rank's first one; -1 for experts of other ranks.
    pub indices: Vec<i32>,
    /// For each slot its weight; 0 for experts of other ranks.
    pub weights: Vec<f32>,
    /// For each of this rank's experts, the number of slots that name it. Empty for a dispatch by a handle.
    pub per_expert: Vec<u32>,
    pub(super) numbers: Vec<u32>,
    pub(super) format: RowFormat,
}

impl Received {
    pub(super) fn new(format: RowFormat, rows: usize) -> Result<Received> {
        must_have_room(rows, format)?;
        Ok(Received {
            rows: vec![0; rows * format.token],
            scales: vec![0; rows * format.scales],
            indices: vec![0; rows * format.indices],
            weights: vec![0.0; rows * format.weights],
            per_expert: Vec::new(),
            numbers: vec![0; rows],
            format,
        })
    }

    /// The same tokens grouped by expert. Each expert's rows begin at a multiple of `alignment`.
    ///
    /// # Errors
    /// An alignment of 0, or tokens without top-k indices.
    pub fn by_expert(&self, experts: usize, alignment: usize) -> Result<Groups> {
        Groups::of(&self.indices, self.format.indices, experts, alignment)
    }

    /// Stores a row that has arrived.
    pub(super) fn take(&mut self, row: usize, read: Read<'_>) -> Result<()> {
        let RowFormat { token, scales, indices, weights, .. } = self.format;
        read(0, &mut self.rows[row * token..][..token])?;
        read(self.format.scales_at(), &mut self.scales[row * scales..][..scales])?;
        let mut rest = vec![0; self.format.rest()];
        read(self.format.rest_at(), &mut rest)?;
        let mut words = rest.as_chunks::<4>().0.iter();
        for (index, word) in self.indices[row * indices..][..indices].iter_mut().zip(&mut words) {
            *index = i32::from_ne_bytes(*word);
        }
        for (weight, word) in self.weights[row * weights..][..weights].iter_mut().zip(&mut words) {
            *weight = f32::from_ne_bytes(*word);
        }
        if let Some(word) = words.next() {
            self.numbers[row] = u32::from_ne_bytes(*word);
        }
        Ok(())
    }
}
