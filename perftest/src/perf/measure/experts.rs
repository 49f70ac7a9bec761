//! Expert-parallel dispatch and combine: every rank has the same number of tokens, each for 8 of 256 experts.
//!
//! Two bandwidths are reported. The algorithm's bandwidth counts the tokens that had to reach a rank or an expert,
//! including this PE's own. The physical bandwidth counts the bytes that left this PE for others, including headers.

use std::hint::black_box;

use symrail::Runtime;
use symrail_ep::high_throughput::{Parts, Tokens};
use symrail_ep::{DataType, HighThroughput, Layout, LowLatency, Rows, TopK, WaitLimit};

use super::Bench;
use crate::perf::backend::Backend;
use crate::perf::catalog::Phase;
use crate::perf::error::{Error, Result};
use crate::perf::heap::{self, FEW, K, MANY, experts, shape};
use crate::perf::sample::Figures;

/// 1 as bfloat16.
const ONE: [u8; 2] = [0x80, 0x3f];

/// Bytes of a call.
pub struct Traffic {
    pub algorithm: usize,
    pub physical: usize,
}

impl Traffic {
    /// Both bandwidths of calls that take `micros` microseconds.
    pub fn over(&self, micros: f64) -> String {
        let rate = |bytes: usize| bytes as f64 / micros;
        let (algorithm, physical) = (rate(self.algorithm), rate(self.physical));
        format!("bandwidth of the algorithm {algorithm:.0} MB/s, physical {physical:.0} MB/s")
    }
}

/// One rank's input.
pub(super) struct Input {
    pub rows: Vec<u8>,
    token: usize,
    pub indices: Vec<i64>,
    pub weights: Vec<f32>,
}

impl Input {
    /// Distinct experts for each token, spread evenly.
    pub fn new(tokens: usize, token: usize, n_pes: u32) -> Input {
        let experts = experts(n_pes);
        let step = (experts / K).max(1);
        let index = |token: usize, slot: usize| ((token * 37 + slot * step + token / 8) % experts) as i64;
        let indices = (0..tokens).flat_map(|token| (0..K).map(move |slot| index(token, slot))).collect();
        Input { rows: ONE.repeat(tokens * token / 2), token, indices, weights: vec![0.125; tokens * K] }
    }

    fn rows(&self) -> Result<Rows<'_>> {
        Ok(Rows::new(&self.rows, self.token)?)
    }

    fn topk(&self) -> Result<TopK<'_>> {
        Ok(TopK::new(&self.indices, K)?)
    }

    /// The ranks and experts of the tokens.
    pub fn layout(&self, n_pes: u32) -> Result<Layout> {
        Ok(Layout::of(&self.topk()?, experts(n_pes), n_pes as usize)?)
    }
}

/// The number of ranks that a token goes to.
pub(super) fn ranks_of(layout: &Layout, token: usize) -> f32 {
    layout.in_rank()[token * layout.ranks()..][..layout.ranks()].iter().filter(|gets| **gets).count() as f32
}

/// Refuses token sizes that are no whole number of elements.
pub(super) fn must_be_of_elements(token: usize) -> Result<()> {
    if token.is_multiple_of(2) {
        return Ok(());
    }
    Err(Error::Arguments(format!("-b {token}: a token is a whole number of 2-byte elements")))
}

impl<C: Backend> Bench<'_, C> {
    /// Measures one size of token. PE 0 returns the figures. Collective.
    pub fn experts(&mut self, rt: &Runtime, phase: Phase, token: usize) -> Result<(Option<Figures>, Traffic)> {
        must_be_of_elements(token)?;
        let (samples, warmup, traffic) = match phase {
            Phase::LowLatency => self.low_latency(rt, token)?,
            _ => self.high_throughput(rt, phase, token)?,
        };
        Ok((self.is_first().then(|| samples.latency(1.0, warmup)), traffic))
    }

    fn high_throughput(&mut self, rt: &Runtime, phase: Phase, token: usize) -> Result<(super::Samples, u64, Traffic)> {
        let n_pes = rt.n_pes();
        let input = Input::new(MANY, token, n_pes);
        let mut buffers = HighThroughput::new(rt, heap::of_experts(phase, token, n_pes), WaitLimit::of(rt))?;
        let layout = input.layout(n_pes)?;
        let tokens = Tokens { rows: input.rows()?, scales: None, topk: Some((input.topk()?, &input.weights)) };
        let (first, handle) = buffers.dispatch(&tokens, &layout)?;
        let rows = Rows::new(&first.rows, token)?;
        let parts = Parts { rows, element: DataType::Bfloat16, weights: None, biases: [None, None] };
        let combined = buffers.combine(&parts, &handle)?;
        self.ones(&first.rows, token, |_| 1.0)?;
        self.ones(&combined.rows, token, |row| ranks_of(&layout, row))?;
        let (samples, warmup) = self.timed_together(token, |_| {
            match phase {
                Phase::Dispatch => drop(black_box(buffers.dispatch(&tokens, &layout)?)),
                _ => drop(black_box(buffers.combine(&parts, &handle)?)),
            }
            Ok(())
        })?;
        let statistics = buffers.statistics();
        let rows: u32 =
            if phase == Phase::Dispatch { &statistics.to_ranks } else { &statistics.from_ranks }.iter().sum();
        let traffic = Traffic {
            algorithm: rows as usize * token,
            physical: (statistics.mapped.bytes + statistics.wire.bytes) as usize,
        };
        buffers.free()?;
        Ok((samples, warmup, traffic))
    }

    fn low_latency(&mut self, rt: &Runtime, token: usize) -> Result<(super::Samples, u64, Traffic)> {
        let n_pes = rt.n_pes();
        let input = Input::new(FEW, token, n_pes);
        let mut buffers = LowLatency::new(rt, shape(token, n_pes), WaitLimit::of(rt))?;
        let mut round = |last: bool| {
            let sent = buffers.send_dispatch(input.rows()?, None, input.topk()?)?;
            let found = buffers.receive_dispatch(&sent)?;
            let sent = buffers.send_combine(Rows::new(&found.rows, token)?, DataType::Bfloat16, &found.ranges)?;
            let sums = buffers.receive_combine(&sent, input.topk()?, &input.weights)?;
            Ok::<_, Error>(if last { sums } else { Vec::new() })
        };
        let sums = round(true)?;
        self.ones(&sums, token, |_| 1.0)?;
        let (samples, warmup) = self.timed_together(token, |_| round(false).map(drop))?;
        let physical =
            buffers.statistics().map(|statistics| statistics.mapped.bytes + statistics.wire.bytes).iter().sum::<u64>()
                as usize;
        buffers.free()?;
        Ok((samples, warmup, Traffic { algorithm: 2 * FEW * K * token, physical }))
    }

    /// Checks that all elements of each row have this value.
    pub(super) fn ones(&self, rows: &[u8], token: usize, value: impl Fn(usize) -> f32) -> Result<()> {
        for (row, bytes) in rows.chunks_exact(token).enumerate() {
            let expected = half::bf16::from_f32(value(row)).to_ne_bytes();
            if let Some(at) = bytes.as_chunks::<2>().0.iter().position(|found| *found != expected) {
                let (test, pe) = (self.test.name, self.backend.pe());
                let (found, expected) = (bytes[2 * at + 1], expected[1]);
                return Err(Error::WrongData { test, size: token, pe, at: row * token + 2 * at, found, expected });
            }
        }
        Ok(())
    }
}
