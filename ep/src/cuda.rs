//! Low latency by kernels, on a GPU that is the PE's device. See `cu/low_latency.cu`.
//!
//! Peers whose memory the GPU reaches are written to by stores; others by requests to the proxy, one for each part of a
//! dispatch and each row of a combine. Calls are in the order of a stream, wait for nothing on the host, and can be
//! captured in graphs: routing is read when they run. A round is a dispatch and then a combine, each of which is sent
//! and received by a call of its own; between them no multiprocessor is held.

use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{CudaError, DeviceBuffer, DevicePtr, Gpu, Kernel, Module, Program, Shape, Stream};
use symrail::{Pe, Runtime};

use crate::error::{Error, Result};
use crate::fp8;
use crate::plan::layout::{MOST_TOP_K, share};

/// The kernels.
pub const PROGRAM: Program<'static> = Program::new("low_latency.cu", include_str!("../cu/low_latency.cu"));
/// Threads of a block, and blocks that send to each rank.
const THREADS: u32 = 512;
const PARTS: u64 = 16;
/// Blocks that send back for each expert.
const BLOCKS_OF_EXPERT: u64 = 4;
/// Rounds that use memory of their own in turns.
const SETS: usize = 2;
/// Rows are copied in pieces of 16 bytes, in bfloat16 and in FP8.
const ELEMENTS: usize = 16;

/// What memory is made for; the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceShape {
    /// Tokens of each rank.
    pub most_tokens: usize,
    /// Elements of a token, of bfloat16.
    pub hidden: usize,
    /// Experts of all ranks.
    pub experts: usize,
    /// Top-k slots of a token.
    pub k: usize,
    /// Tokens are sent as FP8 with a scale for each 128 elements.
    pub fp8: bool,
}

/// Addresses for the GPU of what a dispatch has brought. `room` is `ranks` × [`DeviceShape::most_tokens`].
#[derive(Debug, Clone, Copy)]
pub struct DeviceReceived {
    /// Rows of each of this rank's experts: `experts of a rank` × `room` rows of bfloat16, or FP8.
    pub rows: u64,
    /// Their scales: a 32-bit float for each 128 elements of each row; unused without FP8.
    pub scales: u64,
    /// Rows of each expert, 32 bits each.
    pub counts: u64,
    /// For each row 64 bits: the source in the upper half, its slot among those of the source's tokens in the lower.
    pub sources: u64,
}

/// As `parameters` in the kernels.
#[repr(C)]
struct Parameters([u64; 15]);

/// Memory and kernels for dispatch and combine on a GPU. See the [module](self).
pub struct DeviceLowLatency<'d> {
    runtime: &'d Runtime,
    gpu: Arc<Gpu>,
    shape: DeviceShape,
    share: usize,
    /// Symmetric memory, to be given back.
    block: *mut u8,
    words: [(u64, usize); 2],
    parameters: DeviceBuffer,
    rounds: DeviceBuffer,
    masks: DeviceBuffer,
    /// Where rows are found by the kernel that takes them.
    places: DeviceBuffer,
    kernels: [Kernel; 5],
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Device { reason: error.to_string() }
}

impl DeviceShape {
    /// Bytes of a row of a dispatch.
    fn row(&self) -> usize {
        let (token, scales) = if self.fp8 { (self.hidden, 4 * fp8::scales(self.hidden)) } else { (2 * self.hidden, 0) };
        let slots = (token.next_multiple_of(16) + scales).next_multiple_of(16);
        (slots + 4 * (self.k + 1)).next_multiple_of(16)
    }

    fn check(&self, ranks: usize) -> Result<usize> {
        if self.hidden == 0 || !self.hidden.is_multiple_of(ELEMENTS) {
            return Err(Error::argument("elements of a token", self.hidden, format!("a multiple of {ELEMENTS}")));
        }
        if self.k == 0 || self.k > MOST_TOP_K || self.most_tokens == 0 {
            let found = format!("{} slots, {} tokens", self.k, self.most_tokens);
            return Err(Error::argument("a shape", found, format!("1 to {MOST_TOP_K} slots, and a token at least")));
        }
        share(self.experts, ranks)
    }
}

impl<'d> DeviceLowLatency<'d> {
    /// Makes memory and loads the kernels. Collective.
    ///
    /// # Errors
    /// A shape that makes no sense; shapes that differ, on every rank; the heap is exhausted; what compiler and driver
    /// say.
    pub fn new(device: &'d GpuDevice<'_>, nvrtc: &Nvrtc, shape: DeviceShape) -> Result<DeviceLowLatency<'d>> {
        let (runtime, gpu) = (device.runtime(), Arc::clone(device.gpu()));
        let ranks = runtime.n_pes() as usize;
        let share = shape.check(ranks)?;
        runtime.team_world()?.compare(
            "low latency on GPUs",
            &[
                ("tokens of a rank, at most", shape.most_tokens as u64),
                ("elements of a token", shape.hidden as u64),
                ("number of experts", shape.experts as u64),
                ("top-k slots of a token", shape.k as u64),
                ("FP8 (1 or 0)", shape.fp8.into()),
            ],
        )?;
        let part = 16 + shape.most_tokens.div_ceil(PARTS as usize) * shape.row();
        let parts = ranks * SETS * PARTS as usize;
        let slots = SETS * shape.most_tokens * shape.k;
        let sizes = [parts * part, parts * part, slots * 2 * shape.hidden, parts * 8, slots * 8];
        let sizes = sizes.map(|bytes| bytes.next_multiple_of(128));
        let block = runtime.align(128, sizes.iter().sum())?;
        let mut next = device.address(block);
        let starts = sizes.map(|bytes| {
            let start = next;
            next += bytes as u64;
            start
        });
        let [into, out, back, words, back_words] = starts;
        // SAFETY: the block that was just allocated.
        unsafe { gpu.fill(DevicePtr::new(words), 0, sizes[3] + sizes[4]) }.map_err(failed)?;
        let buffer = |bytes: usize| -> Result<DeviceBuffer, CudaError> {
            let buffer = gpu.alloc(bytes)?;
            buffer.fill(0)?;
            Ok(buffer)
        };
        let (rounds, masks) = (buffer(8).map_err(failed)?, buffer(4 * ranks).map_err(failed)?);
        let places = buffer(8 * share * ranks * shape.most_tokens).map_err(failed)?;
        let parameters = buffer(size_of::<Parameters>()).map_err(failed)?;
        let numbers = [ranks, runtime.my_pe() as usize, share, shape.k, shape.most_tokens, shape.hidden];
        let mut all = Parameters([0; 15]);
        all.0[..6].copy_from_slice(&numbers.map(|number| number as u64));
        all.0[6..].copy_from_slice(&[
            shape.fp8.into(),
            PARTS,
            into,
            out,
            words,
            back,
            back_words,
            rounds.at().get(),
            masks.at().get(),
        ]);
        let bytes: Vec<u8> = all.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
        parameters.write(0, &bytes).map_err(failed)?;
        let (major, minor) = gpu.compute_capability();
        let compiled = nvrtc.compile(&PROGRAM, &format!("sm_{major}{minor}")).map_err(failed)?;
        let module = Module::load(&gpu, &compiled).map_err(failed)?;
        device.attach(&module).map_err(failed)?;
        let kernel = |name: &str| module.kernel(name).map_err(failed);
        let kernels = [
            kernel("ep_send_dispatch")?,
            kernel("ep_receive_dispatch")?,
            kernel("ep_send_combine")?,
            kernel("ep_receive_combine")?,
            kernel("ep_end_round")?,
        ];
        let words = [(words, parts), (back_words, slots)];
        // Nobody may be written to before all have cleared their words.
        runtime.barrier_all()?;
        Ok(DeviceLowLatency { runtime, gpu, shape, share, block, words, parameters, rounds, masks, places, kernels })
    }

    /// Gives the memory back, when the GPU has ended all rounds. Collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn free(self) -> Result<()> {
        Ok(self.runtime.free(self.block)?)
    }

    /// # Safety
    /// The kernel takes the parameters' address and these arguments, and what they point to stays.
    unsafe fn launch(&self, stream: &Stream, kernel: usize, blocks: u64, arguments: &[u64]) -> Result<()> {
        let words = [&[self.parameters.at().get()], arguments].concat();
        let threads = if kernel == 4 { 1 } else { THREADS };
        // SAFETY: the caller's promise.
        unsafe { stream.launch(&self.kernels[kernel], Shape { blocks: blocks as u32, threads }, &words) }
            .map_err(failed)
    }

    /// What it was made for.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    fn must_fit(&self, tokens: usize) -> Result<()> {
        let most = self.shape.most_tokens;
        if tokens > most { Err(Error::TooManyTokens { tokens, most }) } else { Ok(()) }
    }

    /// Sends tokens (`x`: rows of bfloat16) to the ranks that own their experts (`topk`: 64-bit indices, -1 for none;
    /// others must be below the number of experts, which nobody checks).
    ///
    /// # Safety
    /// Addresses for the GPU, valid until the stream has come so far, and of so many tokens.
    ///
    /// # Errors
    /// [`Error::TooManyTokens`]; what the driver says.
    pub unsafe fn send_dispatch(&self, stream: &Stream, x: u64, topk: u64, tokens: usize) -> Result<()> {
        self.must_fit(tokens)?;
        let blocks = u64::from(self.runtime.n_pes()) * PARTS;
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, 0, blocks, &[x, topk, tokens as u64]) }
    }

    /// Waits on the GPU for the tokens of all ranks, and takes them. A rank that does not come within `TIMEOUT_S` has
    /// none, and is an error of the device's state ([`DeviceLowLatency::late`] names it).
    ///
    /// # Safety
    /// As for [`DeviceLowLatency::send_dispatch`].
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn receive_dispatch(&self, stream: &Stream, to: &DeviceReceived) -> Result<()> {
        let arguments = [to.rows, to.scales, to.counts, to.sources, self.places.at().get()];
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, 1, self.share as u64, &arguments) }
    }

    /// Sends the experts' rows back: bfloat16, laid out as [`DeviceLowLatency::receive_dispatch`] has left them. They
    /// stay as they are until [`DeviceLowLatency::receive_combine`] is over, and are symmetric memory where peers are
    /// not mapped.
    ///
    /// # Safety
    /// As for [`DeviceLowLatency::send_dispatch`].
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn send_combine(&self, stream: &Stream, rows: u64, of: &DeviceReceived) -> Result<()> {
        let blocks = self.share as u64 * BLOCKS_OF_EXPERT;
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, 2, blocks, &[rows, of.counts, of.sources, BLOCKS_OF_EXPERT]) }
    }

    /// Waits on the GPU for the rows of this rank's tokens, and adds them, times their weights (32-bit floats), in the
    /// order of the slots: `out` gets rows of bfloat16. Ends the round.
    ///
    /// # Safety
    /// As for [`DeviceLowLatency::send_dispatch`].
    ///
    /// # Errors
    /// As for [`DeviceLowLatency::send_dispatch`].
    pub unsafe fn receive_combine(
        &self,
        stream: &Stream,
        (topk, weights): (u64, u64),
        tokens: usize,
        out: u64,
    ) -> Result<()> {
        self.must_fit(tokens)?;
        if tokens > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.launch(stream, 3, tokens as u64, &[topk, weights, out]) }?;
        }
        // SAFETY: it takes nothing else.
        unsafe { self.launch(stream, 4, 1, &[]) }
    }

    /// Leaves a rank out of what is launched from now on, or takes part with it again.
    ///
    /// # Errors
    /// A rank that is not there; what the driver says.
    pub fn mask(&self, rank: Pe, mask: bool) -> Result<()> {
        if rank >= self.runtime.n_pes() {
            return Err(Error::argument("rank to mask", rank, format!("0 to {}", self.runtime.n_pes() - 1)));
        }
        self.masks.write(4 * rank as usize, &u32::from(mask).to_ne_bytes()).map_err(failed)
    }

    /// The ranks whose tokens of the present round have not all come.
    ///
    /// # Errors
    /// What the driver says.
    pub fn late(&self) -> Result<Vec<Pe>> {
        let (at, count) = self.words[0];
        let mut bytes = vec![0; 8 * count];
        // SAFETY: symmetric memory of this object.
        unsafe { self.gpu.read(DevicePtr::new(at), &mut bytes) }.map_err(failed)?;
        let mut round = [0; 8];
        self.rounds.read(0, &mut round).map_err(failed)?;
        let round = u64::from_ne_bytes(round) + 1;
        let word = |at: usize| bytes[8 * at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        let set = (round as usize % SETS) * PARTS as usize;
        let has_come = |rank: usize| {
            let first = rank * SETS * PARTS as usize + set;
            (first..first + PARTS as usize).all(|at| word(at) >= round)
        };
        Ok((0..self.runtime.n_pes()).filter(|&rank| !has_come(rank as usize)).collect())
    }
}
