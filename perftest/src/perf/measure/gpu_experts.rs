//! Expert-parallel dispatch and combine by a GPU's kernels, one call behind the other on a stream, which times them.
//!
//! A dispatch includes the copy of received rows to the caller's memory. Low latency is replayed as a graph. The physical
//! bandwidth counts the bytes that leave this PE over mapped memory, computed from the destinations of all tokens, and
//! the bytes that this PE's rails have counted.

use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail_ep::cuda::high_throughput::USUAL_BLOCKS;
use symrail_ep::cuda::{
    DeviceHighThroughput, DeviceLowLatency, DeviceParts, DeviceReceived, DeviceReturns, DeviceRows, DeviceTokens,
    DeviceTokensReceived, LowLatencyTokens,
};
use symrail_ep::plan::hosts::Hosts;
use symrail_ep::{DataType, Layout, WaitLimit};
use symrail_kernels::cuda::compile::Nvrtc;
use symrail_kernels::cuda::{DeviceBuffer, Gpu, Stream};

use super::Bench;
use super::experts::{Input, Traffic, must_be_of_elements, ranks_of};
use super::on_stream::{content, patience, room, with};
use crate::perf::backend::Backend;
use crate::perf::catalog::Phase;
use crate::perf::error::{Error, Result};
use crate::perf::heap::{self, FEW, K, MANY};
use crate::perf::sample::{Figures, Samples};

/// Bytes that accompany a row of a dispatch: indices, weights, and the number at the source.
const BESIDE: usize = (4 * (2 * K + 1)).next_multiple_of(16);

/// A rank's input on its GPU.
struct OnGpu {
    rows: DeviceBuffer,
    indices: DeviceBuffer,
    weights: DeviceBuffer,
    /// Space for as many rows as the input has.
    out: DeviceBuffer,
}

impl OnGpu {
    fn new(gpu: &Arc<Gpu>, input: &Input) -> Result<OnGpu> {
        let indices: Vec<u8> = input.indices.iter().flat_map(|index| index.to_ne_bytes()).collect();
        let weights: Vec<u8> = input.weights.iter().flat_map(|weight| weight.to_ne_bytes()).collect();
        let out = room(gpu, input.rows.len())?;
        Ok(OnGpu { rows: with(gpu, &input.rows)?, indices: with(gpu, &indices)?, weights: with(gpu, &weights)?, out })
    }

    /// Addresses of the indices, and of the weights.
    fn topk(&self) -> (u64, u64) {
        (self.indices.at().get(), self.weights.at().get())
    }
}

/// Bytes that leave this PE over mapped memory, by its stores or by other PEs' loads, if all PEs have this layout.
struct MappedBytes {
    hosts: Hosts,
    me: usize,
    /// The other ranks whose memory this PE's GPU reaches.
    mapped: Vec<usize>,
    layout: Layout,
}

impl MappedBytes {
    fn new(device: &GpuDevice, layout: Layout) -> MappedBytes {
        let rt = device.runtime();
        let mapped = (0..rt.n_pes()).filter(|&pe| pe != rt.my_pe() && device.is_mapped(pe)).map(|pe| pe as usize);
        MappedBytes { hosts: Hosts::of_job(rt), me: rt.my_pe() as usize, mapped: mapped.collect(), layout }
    }

    /// For a high-throughput dispatch or combine: rows of this rank, and of the ranks that it serves on its host.
    fn of_many(&self, phase: Phase, token: usize) -> usize {
        let per_rank = self.layout.per_rank();
        let served = |rank: usize| self.hosts.served_by(rank).count();
        let rows = |&rank: &usize| match phase {
            Phase::Dispatch => served(self.me) * per_rank[rank] as usize,
            _ => served(rank) * per_rank[self.me] as usize,
        };
        let of_row = if phase == Phase::Dispatch { token + BESIDE } else { token };
        self.mapped.iter().map(rows).sum::<usize>() * of_row
    }

    /// For a low-latency round: rows to the experts, with all weights, and one row for each token that came back.
    fn of_few(&self, row: usize, token: usize) -> usize {
        let there: usize = self.mapped.iter().map(|&rank| self.layout.per_rank()[rank] as usize).sum();
        let back = self.mapped.len() * self.layout.per_rank()[self.me] as usize;
        there * row + back * token + self.mapped.len() * 8 * FEW * K
    }
}

impl<C: Backend> Bench<'_, C> {
    /// Measures one size of token. PE 0 returns the figures. Collective.
    pub fn gpu_experts(
        &mut self,
        device: &GpuDevice,
        nvrtc: &Nvrtc,
        phase: Phase,
        token: usize,
    ) -> Result<(Option<Figures>, Traffic)> {
        must_be_of_elements(token)?;
        let (samples, warmup, traffic) = match phase {
            Phase::LowLatency => self.few_on_gpu(device, nvrtc, token)?,
            _ => self.many_on_gpu(device, nvrtc, phase, token)?,
        };
        Ok((self.is_first().then(|| samples.latency(1.0, warmup)), traffic))
    }

    fn many_on_gpu(
        &mut self,
        device: &GpuDevice,
        nvrtc: &Nvrtc,
        phase: Phase,
        token: usize,
    ) -> Result<(Samples, u64, Traffic)> {
        let (rt, gpu) = (device.runtime(), device.gpu());
        let (n_pes, limit) = (rt.n_pes(), patience(rt));
        let input = Input::new(MANY, token, n_pes);
        let (layout, own) = (input.layout(n_pes)?, OnGpu::new(gpu, &input)?);
        let buffers =
            DeviceHighThroughput::new(device, nvrtc, heap::many_on_gpu(token, n_pes), USUAL_BLOCKS, WaitLimit::of(rt))?;
        let stream = Stream::new(gpu)?;
        let mut routes = buffers.routes(&stream)?;
        let tokens = DeviceTokens {
            rows: own.rows.at().get(),
            bytes: token,
            scales: (0, 0),
            topk: Some(own.topk()),
            elements: [None; 2],
            room: None,
        };
        // SAFETY: this function's memory for all tokens, which lives until the stream is idle.
        unsafe {
            buffers.layout(&stream, &mut routes, own.indices.at().get(), MANY)?;
            buffers.dispatch(&stream, &routes, &tokens, false)?;
        }
        let come = buffers.counts(&stream, limit)?.rows();
        let [made, indices, weights, sources] = [token, 8 * K, 4 * K, 4].map(|each| room(gpu, each * come));
        let (made, indices, weights, sources) = (made?, indices?, weights?, sources?);
        let (topk, sources) = ((indices.at().get(), weights.at().get()), sources.at().get());
        let to = DeviceTokensReceived { rows: made.at().get(), scales: 0, topk, sources };
        let (rows, out, biases) = (made.at().get(), own.out.at().get(), [0, 0]);
        let parts = DeviceParts {
            rows,
            count: None,
            bytes: token,
            element: DataType::Bfloat16,
            weights: None,
            biases,
            out,
            slots: None,
        };
        // SAFETY: as above, with space for all rows that may arrive.
        unsafe {
            buffers.receive(&stream, &routes, &tokens, &to)?;
            buffers.combine(&stream, &routes, &parts)?;
        }
        stream.wait(limit)?;
        buffers.check()?;
        self.ones(&content(&made, come * token)?, token, |_| 1.0)?;
        self.ones(&content(&own.out, MANY * token)?, token, |row| ranks_of(&layout, row))?;
        let (samples, warmup, on_rails) = self.timed_on(&stream, rt, token, || {
            // SAFETY: as above.
            unsafe {
                if phase != Phase::Dispatch {
                    return Ok(buffers.combine(&stream, &routes, &parts)?);
                }
                buffers.dispatch(&stream, &routes, &tokens, false)?;
                Ok(buffers.receive(&stream, &routes, &tokens, &to)?)
            }
        })?;
        buffers.check()?;
        let algorithm = layout.per_rank().iter().sum::<u32>() as usize * token;
        let physical = MappedBytes::new(device, layout).of_many(phase, token) + on_rails;
        drop((routes, stream));
        buffers.free()?;
        Ok((samples, warmup, Traffic { algorithm, physical }))
    }

    fn few_on_gpu(&mut self, device: &GpuDevice, nvrtc: &Nvrtc, token: usize) -> Result<(Samples, u64, Traffic)> {
        let (rt, gpu) = (device.runtime(), device.gpu());
        let (n_pes, limit) = (rt.n_pes(), patience(rt));
        let input = Input::new(FEW, token, n_pes);
        let (layout, own, shape) = (input.layout(n_pes)?, OnGpu::new(gpu, &input)?, heap::few_on_gpu(token, n_pes));
        let (share, most) = (layout.share(), n_pes as usize * FEW);
        let buffers = DeviceLowLatency::new(device, nvrtc, shape, WaitLimit::of(rt))?;
        let stream = Stream::new(gpu)?;
        let sizes = [share * most * token, 4 * share, 4 * share * most, 8 * (share * n_pes as usize + 1)];
        let [rows, counts, sources, ranges] = sizes.map(|bytes| room(gpu, bytes));
        let (rows, counts, sources, ranges) = (rows?, counts?, sources?, ranges?);
        let (x, out) = (own.rows.at().get(), own.out.at().get());
        let [rows, counts, sources, ranges] = [&rows, &counts, &sources, &ranges].map(|buffer| buffer.at().get());
        // The dispatch's number lies behind the ranges.
        let number = ranges + 8 * (share * n_pes as usize) as u64;
        let found = DeviceReceived { rows, counts, sources, ranges, number, ..DeviceReceived::default() };
        let round = || {
            // SAFETY: this function's memory for all rows, which lives as long as the graph.
            unsafe {
                let topk = own.indices.at().get();
                buffers.send_dispatch(&stream, &LowLatencyTokens { rows: DeviceRows::Bf16, x, topk, tokens: FEW })?;
                buffers.receive_dispatch(&stream, &found)?;
                let parts = [found.rows, own.weights.at().get(), number];
                buffers.send_combine(&stream, parts, FEW, DeviceReturns::Plain)?;
                let to = [own.indices.at().get(), out, 0];
                Ok::<_, Error>(buffers.receive_combine(&stream, FEW, to, DeviceReturns::Plain)?)
            }
        };
        round()?;
        buffers.finish(&stream, limit)?;
        self.ones(&content(&own.out, FEW * token)?, token, |_| 1.0)?;
        let graph = stream.capture(round)?;
        // SAFETY: as for the round.
        let replay = || Ok(unsafe { stream.replay(&graph) }?);
        let (samples, warmup, on_rails) = self.timed_on(&stream, rt, token, replay)?;
        buffers.check()?;
        self.ones(&content(&own.out, FEW * token)?, token, |_| 1.0)?;
        let physical = MappedBytes::new(device, layout).of_few(shape.row(DeviceRows::Bf16), token) + on_rails;
        drop((graph, stream));
        buffers.free()?;
        Ok((samples, warmup, Traffic { algorithm: 2 * FEW * K * token, physical }))
    }
}
