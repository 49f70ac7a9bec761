//! Low latency by kernels. See `cu/low_latency.cu`.
//!
//! Calls can be captured in graphs: routing is read when they run. Requests to the proxy are one for each part of a
//! dispatch, whose rows a combine brings back together by one request, too. A round is a dispatch and then a combine,
//! each of which is sent and received by a call of its own; between them no multiprocessor is held.

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Kernel, Shape, Stream};
use symrail::{Pe, Runtime};

use super::{PROGRAMS, failed, far_ranks, load, with_words, zeroed};
use crate::error::{Error, Result};
use crate::exchange::hold_for_all;
use crate::fp8;
use crate::plan::layout::{MOST_TOP_K, share};

/// Threads of a block, and blocks that send to each rank, at most.
const THREADS: u32 = 512;
const PARTS: usize = 16;
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

/// Memory and kernels for dispatch and combine on a GPU. See the [module](self).
pub struct DeviceLowLatency<'d> {
    device: &'d GpuDevice<'d>,
    shape: DeviceShape,
    share: usize,
    /// Symmetric memory, to be given back.
    block: *mut u8,
    parameters: DeviceBuffer,
    _rounds: DeviceBuffer,
    /// For each rank whether it is masked, and whether it was late, 32 bits each.
    masks: DeviceBuffer,
    late: DeviceBuffer,
    /// Where rows are found by the kernel that takes them.
    places: DeviceBuffer,
    _of_far: [DeviceBuffer; 4],
    parts: u64,
    kernels: [Kernel; 5],
}

impl DeviceShape {
    /// Bytes of a row of a dispatch.
    fn row(&self) -> usize {
        let (token, scales) = if self.fp8 { (self.hidden, 4 * fp8::scales(self.hidden)) } else { (2 * self.hidden, 0) };
        let slots = (token.next_multiple_of(16) + scales).next_multiple_of(16);
        (slots + 4 * (self.k + 2)).next_multiple_of(16)
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
        let (runtime, gpu) = (device.runtime(), device.gpu());
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
        let far = far_ranks(device)?;
        let all_mapped = hold_for_all(runtime, !far.contains(&true))?;
        let parts = PARTS.min(shape.most_tokens);
        let part = 16 + shape.most_tokens.div_ceil(parts) * shape.row();
        let (all_parts, slots) = (ranks * SETS * parts, shape.most_tokens * shape.k);
        let of_far = if all_mapped { 0 } else { ranks * shape.most_tokens * shape.k.min(share) };
        let (back_rows, back_words) = (if all_mapped { slots } else { 2 * slots }, SETS * slots + ranks * parts);
        let row = 2 * shape.hidden;
        let sizes =
            [all_parts * part, all_parts * part, SETS * back_rows * row, 8 * all_parts, 8 * back_words, of_far * row];
        let sizes = sizes.map(|bytes| bytes.next_multiple_of(128));
        let block = runtime.align(128, sizes.iter().sum())?;
        let mut next = device.address(block);
        let starts = sizes.map(|bytes| {
            let start = next;
            next += bytes as u64;
            start
        });
        let [into, out, back, words, back_words_at, back_out] = starts;
        // SAFETY: the block that was just allocated.
        unsafe { gpu.fill(DevicePtr::new(words), 0, sizes[3] + sizes[4]) }.map_err(failed)?;
        let (_rounds, masks, late) = (zeroed(gpu, 8)?, zeroed(gpu, 4 * ranks)?, zeroed(gpu, 4 * ranks)?);
        let places = zeroed(gpu, 8 * share * ranks * shape.most_tokens)?;
        let of_far = [
            zeroed(gpu, 4 * ranks)?,
            zeroed(gpu, 4 * slots)?,
            zeroed(gpu, places.bytes())?,
            zeroed(gpu, 4 * ranks * parts)?,
        ];
        let flags: Vec<u8> = far.iter().flat_map(|&far| u32::from(far).to_ne_bytes()).collect();
        of_far[0].write(0, &flags).map_err(failed)?;
        let numbers = [ranks, runtime.my_pe() as usize, share, shape.k, shape.most_tokens, shape.hidden];
        let numbers = numbers.map(|number| number as u64);
        let of_memory =
            [shape.fp8.into(), parts as u64, back_rows as u64, into, out, words, back, back_words_at, back_out];
        let own =
            [&_rounds, &masks, &late, &of_far[0], &of_far[1], &of_far[2], &of_far[3]].map(|buffer| buffer.at().get());
        let parameters = with_words(gpu, &[&numbers[..], &of_memory[..], &own[..], &[0]].concat())?;
        let module = load(device, nvrtc, &PROGRAMS[1])?;
        let kernel = |name: &str| module.kernel(name).map_err(failed);
        let kernels = [
            kernel("ep_send_dispatch")?,
            kernel("ep_receive_dispatch")?,
            kernel("ep_send_combine")?,
            kernel("ep_receive_combine")?,
            kernel("ep_end_round")?,
        ];
        let (parts, _of_far) = (parts as u64, of_far);
        // Nobody may be written to before all have cleared their words.
        runtime.barrier_all()?;
        Ok(DeviceLowLatency {
            device,
            shape,
            share,
            block,
            parameters,
            _rounds,
            masks,
            late,
            places,
            _of_far,
            parts,
            kernels,
        })
    }

    /// Gives the memory back, when the GPU has ended all rounds. Collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn free(self) -> Result<()> {
        Ok(self.runtime().free(self.block)?)
    }

    fn runtime(&self) -> &Runtime {
        self.device.runtime()
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

    /// Sends tokens (`x`: rows of bfloat16) to the ranks that own their experts (`topk`: 64-bit indices; those of no
    /// expert, which are not told apart, count as -1).
    ///
    /// # Safety
    /// Addresses for the GPU, valid until the stream has come so far, and of so many tokens. This object stays until
    /// then, too.
    ///
    /// # Errors
    /// [`Error::TooManyTokens`]; what the driver says.
    pub unsafe fn send_dispatch(&self, stream: &Stream, x: u64, topk: u64, tokens: usize) -> Result<()> {
        self.must_fit(tokens)?;
        let blocks = u64::from(self.runtime().n_pes()) * self.parts;
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, 0, blocks, &[x, topk, tokens as u64]) }
    }

    /// Waits on the GPU for the tokens of all ranks, and takes them. A rank that does not come within `TIMEOUT_S` has
    /// none, and is an error of the device's state ([`DeviceLowLatency::check`] names it).
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

    /// Sends the experts' rows back: bfloat16, laid out as [`DeviceLowLatency::receive_dispatch`] has left them.
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
        if rank >= self.runtime().n_pes() {
            return Err(Error::argument("rank to mask", rank, format!("0 to {}", self.runtime().n_pes() - 1)));
        }
        self.masks.write(4 * rank as usize, &u32::from(mask).to_ne_bytes()).map_err(failed)
    }

    /// Has the GPU itself mask ranks that do not come in time: later rounds go on without them.
    ///
    /// # Errors
    /// What the driver says.
    pub fn mask_late(&mut self, mask: bool) -> Result<()> {
        let last = self.parameters.bytes() - 8;
        self.parameters.write(last, &u64::from(mask).to_ne_bytes()).map_err(failed)
    }

    /// Which ranks are masked.
    ///
    /// # Errors
    /// What the driver says.
    pub fn masked(&self) -> Result<Vec<bool>> {
        Ok(flags(&self.masks, self.runtime().n_pes() as usize)?.collect())
    }

    /// What went wrong since the last check, when the GPU is idle. Ranks that were late and have been masked for that are
    /// no error.
    ///
    /// # Errors
    /// [`Error::Late`]; what the device's state says.
    pub fn check(&self) -> Result<()> {
        let state = self.device.state().check();
        let Err(error) = state else { return Ok(()) };
        let ranks = self.runtime().n_pes();
        let late: Vec<Pe> =
            (0..).zip(flags(&self.late, ranks as usize)?).filter(|(_, late)| *late).map(|(rank, _)| rank).collect();
        self.late.fill(0).map_err(failed)?;
        if late.is_empty() {
            return Err(failed(error));
        }
        let masked = self.masked()?;
        let (me, seconds) = (self.runtime().my_pe(), self.runtime().settings().timeout_s as f64);
        match late.iter().all(|&rank| masked[rank as usize]) {
            true => Ok(()),
            false => Err(Error::Late { what: "low latency on GPUs", me, ranks: late, seconds }),
        }
    }
}

/// Numbers of 32 bits, as whether they are not 0.
fn flags(buffer: &DeviceBuffer, count: usize) -> Result<impl Iterator<Item = bool>> {
    let mut bytes = vec![0; 4 * count];
    buffer.read(0, &mut bytes).map_err(failed)?;
    Ok((0..count).map(move |at| bytes[4 * at..4 * at + 4] != [0; 4]))
}
