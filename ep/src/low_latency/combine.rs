//! Low latency: ranks send rows back from the experts, and add them.

use std::time::Instant;

use symrail::Pe;
use symrail_core::DataType;

use super::LowLatency;
use super::block::{self, Start};
use crate::element;
use crate::error::{Error, Result};
use crate::logfmt;
use crate::plan::layout::{TopK, share};
use crate::plan::pairs::Pairs;
use crate::plan::rows::{RowFormat, Rows};
use crate::statistics::Statistics;

/// A combine that was sent but not yet received.
#[derive(Debug)]
pub struct Combining {
    call: u64,
    start: Start,
    element: DataType,
    own: Vec<u8>,
    statistics: Statistics,
}

impl LowLatency {
    /// Sends the experts' rows back to the sources of their tokens. `rows` and `ranges` have the layout of
    /// [`Dispatched`](super::Dispatched). The caller may change the arguments after the return. Collective, with
    /// [`LowLatency::receive_combine`]. After [`LowLatency::encode_combines`], rows for a rank travel in 10 bits for each
    /// element where that is shorter.
    ///
    /// # Errors
    /// Before anything is sent: numbers that do not agree; rows larger than the buffers allow; more calls in flight
    /// than allowed; [`Error::Round`].
    pub fn send_combine(&mut self, rows: Rows<'_>, element: DataType, ranges: &[(u32, u32)]) -> Result<Combining> {
        self.combine.exchange.runtime().check_joined()?;
        let (me, ranks, shape) = (self.me(), self.ranks(), self.shape);
        let (share, most) = (share(shape.experts, ranks)?, ranks * shape.most_tokens);
        rows.must_be("rows to combine", share * most)?;
        element::must_be_summed(element)?;
        if rows.bytes() > shape.token || !rows.bytes().is_multiple_of(element.size()) {
            let wanted = format!("at most {}, for which the buffers were made, and whole elements", shape.token);
            return Err(Error::argument("bytes of a row", rows.bytes(), wanted));
        }
        let inside = |&(first, count): &(u32, u32)| first as usize + count as usize <= most;
        if ranges.len() != share * ranks || !ranges.iter().all(inside) {
            let wanted = format!("{} within {most} rows of each expert", share * ranks);
            return Err(Error::argument("ranges of rows", format!("{ranges:?}"), wanted));
        }
        let format = RowFormat { token: rows.bytes(), scales: 0, indices: 0, weights: 0, number: 0, mask: 0 };
        let fit = (self.combine.exchange.block() - block::BYTES) / format.bytes();
        let of = |rank: usize| (0..share).map(move |expert| (expert, ranges[expert * ranks + rank]));
        let count = |rank: usize| of(rank).map(|(_, (_, count))| count as usize).sum::<usize>();
        if let Some(rank) = (0..ranks).find(|&rank| rank != me && count(rank) > fit) {
            let (found, wanted) = (count(rank), format!("at most {fit}, for which the buffers were made"));
            return Err(Error::argument("rows for a rank", found, wanted));
        }
        let (rt, since) = (&self.combine.exchange.runtime().clone(), Instant::now());
        let to_ranks = (0..ranks).map(|rank| count(rank) as u32).collect();
        let mut statistics = Statistics { to_ranks, ..Statistics::of(self.combine.what) };
        let call = self.combine.begin(&mut self.masks, self.limit)?;
        let since = statistics.phase(rt, "waiting for room", since);
        let start =
            Start { format, types: element::types(Some(element), None), experts: shape.experts, rows: 0, encoded: 0 };
        let row = |expert: usize, i: u32| rows.row(expert * most + i as usize);
        let others: Vec<Pe> = self.masks.others(me).collect();
        for rank in others {
            let its_rows = of(rank as usize).flat_map(|(expert, (first, count))| {
                let row = &row;
                (first..first + count).map(move |i| row(expert, i))
            });
            let rows = count(rank as usize);
            let encoded =
                if self.encodes { encoded(its_rows.clone(), element, rows * format.bytes()) } else { Vec::new() };
            let start = Start { rows, encoded: encoded.len(), ..start };
            self.combine.exchange.write(rank, 0, &start.to_bytes())?;
            let mut at = block::BYTES;
            if encoded.is_empty() {
                for row in its_rows {
                    self.combine.exchange.write(rank, at, row)?;
                    at += format.bytes();
                }
            } else {
                self.combine.exchange.write(rank, at, &encoded)?;
                at += encoded.len();
            }
            self.combine.exchange.send(rank, at)?;
            statistics.sent(rt, rank, start.rows, at);
        }
        let mut own = Vec::with_capacity(count(me) * rows.bytes());
        for (expert, (first, count)) in of(me) {
            (first..first + count).for_each(|i| own.extend_from_slice(row(expert, i)));
        }
        statistics.sent(rt, me as Pe, count(me), own.len());
        statistics.phase(rt, "sending", since);
        Ok(Combining { call, start, element, own, statistics })
    }

    /// Waits for the rows of this rank's tokens, and adds them. The rows of each rank are added in FP32, times their
    /// weights, in the order of the slots, and the sum is rounded to the type of the rows. Then these sums are added in
    /// FP32, in the order of the ranks, as GPUs do it. `topk` and `weights` are those of the dispatch. Slots of masked
    /// ranks are left out.
    ///
    /// # Errors
    /// As for [`LowLatency::receive_dispatch`], and numbers that do not agree.
    pub fn receive_combine(&mut self, combining: &Combining, topk: TopK<'_>, weights: &[f32]) -> Result<Vec<u8>> {
        let Combining { call, start, element, own, statistics } = combining;
        let (rt, since, mut statistics) =
            (&self.combine.exchange.runtime().clone(), Instant::now(), statistics.clone());
        if weights.len() != topk.tokens() * topk.k() {
            return Err(Error::argument("weights", weights.len(), topk.tokens() * topk.k()));
        }
        topk.check(self.shape.experts)?;
        self.combine.await_blocks(*call, &mut self.masks, self.limit)?;
        let since = statistics.phase(rt, "waiting for blocks", since);
        let (me, ranks) = (self.me(), self.ranks());
        let share = share(self.shape.experts, ranks)?;
        let token = start.format.token;
        let mut of_rank = vec![(Pairs::none(share), Vec::new()); ranks];
        let exchange = &self.combine.exchange;
        let taken = (0..ranks).filter(|&rank| rank == me || !self.masks.masked[rank]).try_for_each(|rank| {
            let pairs = Pairs::of(&topk, rank, share);
            let mut rows = Vec::with_capacity(pairs.count() * token);
            let sent = if rank == me {
                rows.extend_from_slice(own);
                own.len() / token
            } else {
                let mut first = [0; block::BYTES];
                exchange.read(rank as Pe, 0, &mut first)?;
                let fit = (exchange.block() - block::BYTES) / start.format.bytes();
                let (sent, encoded) = start.rows_of(first, fit, me as Pe, rank as Pe)?;
                rows.resize(sent * token, 0);
                if encoded == 0 {
                    for (i, row) in rows.chunks_exact_mut(token).enumerate() {
                        exchange.read(rank as Pe, block::BYTES + i * start.format.bytes(), row)?;
                    }
                } else {
                    let mut bytes = vec![0; encoded.min(exchange.block() - block::BYTES)];
                    exchange.read(rank as Pe, block::BYTES, &mut bytes)?;
                    if decode_rows(&bytes, *element, token, &mut rows) != Some(encoded) {
                        let what = "bytes of encoded rows: those that make up the rows, and those that were sent";
                        return Err(Error::differ(what, me as Pe, bytes.len() as u64, rank as Pe, encoded as u64));
                    }
                }
                sent
            };
            if sent != pairs.count() {
                let what = "rows that come back: those that this rank's top-k indices name, and those that were sent";
                let (here, there) = (pairs.count() as u64, sent as u64);
                return Err(Error::differ(what, me as Pe, here, rank as Pe, there));
            }
            of_rank[rank] = (pairs, rows);
            Ok(())
        });
        let since = statistics.phase(rt, "taking", since);
        let sums = taken.map(|()| sum(&of_rank, topk, weights, *element, token));
        statistics.phase(rt, "adding", since);
        statistics.from_ranks = of_rank.iter().map(|(_, rows)| (rows.len() / token) as u32).collect();
        self.combine.end(&self.masks, statistics)?;
        sums
    }
}

/// Rows in their encoded form; nothing if that is not shorter than `most` bytes.
fn encoded<'a>(rows: impl Iterator<Item = &'a [u8]>, element: DataType, most: usize) -> Vec<u8> {
    let mut encoded = Vec::new();
    rows.for_each(|row| logfmt::encode(row, element, &mut encoded));
    if encoded.len() < most.min(u32::MAX as usize) { encoded } else { Vec::new() }
}

/// Decodes rows of `token` bytes. Returns the number of bytes read; `None` if there are too few.
fn decode_rows(bytes: &[u8], element: DataType, token: usize, rows: &mut [u8]) -> Option<usize> {
    let mut left = bytes;
    for row in rows.chunks_exact_mut(token) {
        left = logfmt::decode(left, element, row)?;
    }
    Some(bytes.len() - left.len())
}

/// The sum of each token's rows: of each rank in the order of the slots, then of all ranks.
fn sum(of_rank: &[(Pairs, Vec<u8>)], topk: TopK<'_>, weights: &[f32], element: DataType, bytes: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(topk.tokens() * bytes);
    let [mut sums, mut of_one] = [(); 2].map(|()| vec![0.0; bytes / element.size()]);
    let mut rounded = Vec::with_capacity(bytes);
    for token in 0..topk.tokens() {
        sums.fill(0.0);
        for (rank, (pairs, rows)) in of_rank.iter().enumerate() {
            let share = pairs.experts();
            let slots = topk.of(token).iter().enumerate().filter(|(_, expert)| **expert >= 0);
            let mut numbers = slots
                .filter(|(_, expert)| **expert as usize / share == rank)
                .filter_map(|(slot, &expert)| Some((slot, pairs.number(expert as usize % share, token as u32)?)))
                .peekable();
            if numbers.peek().is_none() {
                continue;
            }
            of_one.fill(0.0);
            for (slot, number) in numbers {
                let weight = Some(weights[token * topk.k() + slot]);
                element::add(element, &mut of_one, &rows[number * bytes..][..bytes], weight);
            }
            rounded.clear();
            element::round(element, &of_one, &mut rounded);
            element::add(element, &mut sums, &rounded, None);
        }
        element::round(element, &sums, &mut all);
    }
    all
}
