//! Low latency: ranks send tokens to the ranks that own their experts, and receive them by expert.

use std::time::Instant;

use symrail::Pe;

use super::LowLatency;
use super::block::{self, Start};
use crate::element::types;
use crate::error::{Error, Result};
use crate::high_throughput::received::slots;
use crate::plan::layout::{TopK, share};
use crate::plan::pairs::local;
use crate::plan::rows::{RowFormat, Rows};
use crate::statistics::Statistics;

/// A dispatch that was sent but not yet received.
#[derive(Debug)]
pub struct Dispatching {
    call: u64,
    start: Start,
    /// This rank's block for itself.
    own: Vec<u8>,
    statistics: Statistics,
}

/// The received tokens, by expert. Each expert has memory for `ranks` ×
/// [`Shape::most_tokens`](super::Shape::most_tokens) rows. The rows are consecutive from the first one on, ordered by
/// source and then by token.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatched {
    /// For each of this rank's experts, its rows.
    pub rows: Vec<u8>,
    /// For each of this rank's experts, the scales of its rows.
    pub scales: Vec<u8>,
    /// The number of rows of each expert.
    pub counts: Vec<u32>,
    /// For each row of each expert, the index of its token at the source.
    pub source_tokens: Vec<i32>,
    /// For each expert and each rank, the index of its first row and the number of its rows.
    pub ranges: Vec<(u32, u32)>,
}

/// Memory for the rows of one expert, or of all.
struct Room {
    format: RowFormat,
    /// The most rows of each expert.
    most: usize,
}

impl LowLatency {
    /// Sends each token to the ranks that own its experts. The caller may change the arguments after the return.
    /// Collective, with [`LowLatency::receive_dispatch`].
    ///
    /// # Errors
    /// Before anything is sent: [`Error::TooManyTokens`]; [`Error::NoSuchExpert`]; rows larger than the buffers allow;
    /// more calls in flight than allowed; [`Error::Round`].
    pub fn send_dispatch(&mut self, rows: Rows<'_>, scales: Option<Rows<'_>>, topk: TopK<'_>) -> Result<Dispatching> {
        self.dispatch.exchange.runtime().check_joined()?;
        let (me, shape) = (self.me(), self.shape);
        let share = share(shape.experts, self.ranks())?;
        let start = self.start_of(rows, scales, topk)?;
        let (rt, since) = (&self.dispatch.exchange.runtime().clone(), Instant::now());
        let mut statistics = Statistics { to_ranks: vec![0; self.ranks()], ..Statistics::of(self.dispatch.what) };
        let call = self.dispatch.begin(&mut self.masks, self.limit)?;
        let since = statistics.phase(rt, "waiting for room", since);
        let mut own = Vec::new();
        let others: Vec<Pe> = self.masks.others(me).collect();
        for rank in others.into_iter().chain([me as Pe]) {
            let mut list = Vec::new();
            for token in 0..topk.tokens() {
                if local(topk.of(token), rank as usize, share).next().is_some() {
                    list.push(token);
                }
            }
            let start = Start { rows: list.len(), ..start };
            let bytes = block::BYTES + list.len() * start.format.bytes();
            statistics.to_ranks[rank as usize] = list.len() as u32;
            statistics.sent(rt, rank, list.len(), bytes);
            if rank as usize == me {
                own = vec![0; bytes];
            }
            let mut write = |at: usize, part: &[u8]| {
                if rank as usize == me {
                    own[at..][..part.len()].copy_from_slice(part);
                    return Ok(());
                }
                self.dispatch.exchange.write(rank, at, part)
            };
            write(0, &start.to_bytes())?;
            for (i, &token) in list.iter().enumerate() {
                let at = block::BYTES + i * start.format.bytes();
                write(at, rows.row(token))?;
                if let Some(scales) = scales {
                    write(at + start.format.scales_at(), scales.row(token))?;
                }
                let mut rest = Vec::with_capacity(start.format.rest());
                slots(topk.of(token), &[], rank as usize, share, &mut rest);
                rest.extend((token as u32).to_ne_bytes());
                write(at + start.format.rest_at(), &rest)?;
            }
            if rank as usize != me {
                self.dispatch.exchange.send(rank, bytes)?;
            }
        }
        statistics.phase(rt, "sending", since);
        Ok(Dispatching { call, start, own, statistics })
    }

    /// Checks these rows and returns the start of their blocks.
    fn start_of(&self, rows: Rows<'_>, scales: Option<Rows<'_>>, topk: TopK<'_>) -> Result<Start> {
        let shape = &self.shape;
        if rows.count() > shape.most_tokens {
            return Err(Error::TooManyTokens { tokens: rows.count(), most: shape.most_tokens });
        }
        if topk.tokens() != rows.count() {
            return Err(Error::argument("tokens of the top-k indices", topk.tokens(), rows.count()));
        }
        if let Some(scales) = scales {
            scales.must_be("scales", rows.count())?;
        }
        let types = types(rows.element(), scales.and_then(|scales| scales.element()));
        let scales = scales.map_or(0, |scales| scales.bytes());
        for (what, here, most) in [
            ("bytes of a token", rows.bytes(), shape.token),
            ("bytes of a token's scales", scales, shape.scales),
            ("top-k slots of a token", topk.k(), shape.k),
        ] {
            if here > most {
                return Err(Error::argument(what, here, format!("at most {most}, for which the buffers were made")));
            }
        }
        topk.check(shape.experts)?;
        let format = RowFormat { token: rows.bytes(), scales, indices: topk.k(), weights: 0, number: 4, mask: 0 };
        Ok(Start { format, types, experts: shape.experts, rows: 0, encoded: 0 })
    }

    /// Waits for the tokens of all ranks.
    ///
    /// # Errors
    /// [`TimedOut`](symrail::rounds::Error::TimedOut), after which the call may be repeated (for example with the late
    /// ranks [masked](LowLatency::mask)); [`ParametersDiffer`](symrail::Error::ParametersDiffer) and [`Error::TypesDiffer`], after which this
    /// dispatch is over.
    pub fn receive_dispatch(&mut self, dispatching: &Dispatching) -> Result<Dispatched> {
        let Dispatching { call, start, own, statistics } = dispatching;
        let (rt, since, mut statistics) =
            (&self.dispatch.exchange.runtime().clone(), Instant::now(), statistics.clone());
        self.dispatch.await_blocks(*call, &mut self.masks, self.limit)?;
        let since = statistics.phase(rt, "waiting for blocks", since);
        let (me, ranks) = (self.me(), self.ranks());
        let room = Room { format: start.format, most: ranks * self.shape.most_tokens };
        let mut found = room.empty(share(self.shape.experts, ranks)?, ranks);
        let exchange = &self.dispatch.exchange;
        let taken = (0..ranks).filter(|&rank| rank == me || !self.masks.masked[rank]).try_for_each(|rank| {
            let read = |at: usize, part: &mut [u8]| {
                if rank != me {
                    return exchange.read(rank as Pe, at, part);
                }
                part.copy_from_slice(&own[at..][..part.len()]);
                Ok(())
            };
            room.take(&mut found, start, self.shape.most_tokens, &read, me as Pe, rank as Pe)
        });
        statistics.phase(rt, "taking", since);
        statistics.per_expert.clone_from(&found.counts);
        let from = |rank: usize| found.ranges.iter().skip(rank).step_by(ranks).map(|(_, rows)| rows).sum();
        statistics.from_ranks = (0..ranks).map(from).collect();
        self.dispatch.end(&self.masks, statistics)?;
        taken?;
        Ok(found)
    }
}

impl Room {
    fn empty(&self, share: usize, ranks: usize) -> Dispatched {
        Dispatched {
            rows: vec![0; share * self.most * self.format.token],
            scales: vec![0; share * self.most * self.format.scales],
            counts: vec![0; share],
            source_tokens: vec![0; share * self.most],
            ranges: vec![(0, 0); share * ranks],
        }
    }

    /// Reads a rank's block and distributes its rows to their experts.
    fn take(
        &self,
        found: &mut Dispatched,
        start: &Start,
        most_tokens: usize,
        read: &dyn Fn(usize, &mut [u8]) -> Result<()>,
        me: Pe,
        rank: Pe,
    ) -> Result<()> {
        let mut first = [0; block::BYTES];
        read(0, &mut first)?;
        let (rows, _) = start.rows_of(first, most_tokens, me, rank)?;
        let (RowFormat { token, scales, indices, .. }, share) = (self.format, found.counts.len());
        let ranks = found.ranges.len() / share;
        for expert in 0..share {
            found.ranges[expert * ranks + rank as usize] = (found.counts[expert], 0);
        }
        let (mut row, mut rest) = (vec![0; token + scales], vec![0; self.format.rest()]);
        for i in 0..rows {
            let at = block::BYTES + i * self.format.bytes();
            read(at, &mut row[..token])?;
            read(at + self.format.scales_at(), &mut row[token..])?;
            read(at + self.format.rest_at(), &mut rest)?;
            let words = rest.as_chunks::<4>().0;
            let named = words[..indices].iter().map(|word| i32::from_ne_bytes(*word));
            let named: Vec<usize> = named.filter_map(|e| usize::try_from(e).ok()).filter(|&e| e < share).collect();
            for (slot, &expert) in named.iter().enumerate() {
                if named[..slot].contains(&expert) {
                    continue;
                }
                let to = expert * self.most + found.counts[expert] as usize;
                found.rows[to * token..][..token].copy_from_slice(&row[..token]);
                found.scales[to * scales..][..scales].copy_from_slice(&row[token..]);
                found.source_tokens[to] = i32::from_ne_bytes(words[indices]);
                found.counts[expert] += 1;
                found.ranges[expert * ranks + rank as usize].1 += 1;
            }
        }
        Ok(())
    }
}
