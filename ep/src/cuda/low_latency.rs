//! Low latency by kernels. See `cu/low_latency.cu`.
//!
//! Calls can be captured in graphs, because kernels read the routing when they run. A dispatch makes one request to the
//! proxy for each part. A combine returns one row for each token and rank, the sum of what the rank's experts have made
//! of the token; those of a part return together by one request, too. Each call is sent by one launch and received by
//! another. Between these no multiprocessor is occupied. Where all GPUs reach each other's memory, one launch may do
//! both. A dispatch may have no combine, or several. Memory holds the tokens of two dispatches, so that a combine may
//! follow the next dispatch.
//!
//! The calls of one object come one after the other, whatever their streams. At the first change of streams the host
//! waits for the GPU. Captured calls do not wait for earlier ones, nor do replays; the caller orders them.

use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Error as Failure, Failures, Gpu, Kernel, Shape, Stream};
use symrail::rounds::Poison;
use symrail::{Pe, Runtime};
use symrail_core::layout::bytes;

use super::layout::low_latency::{HAS_LEFT, Heap, NOT_HELD, OTHER_FORM, Parameters};
use super::lent::Used;
use super::turns::Turns;
use super::{PROGRAMS, all_or_free, failed, far_ranks, load_apart, with_bytes, zeroed};
use crate::admission::masks_after;
use crate::error::{Error, Result};
use crate::exchange::{WaitLimit, late as late_ranks};
use crate::low_latency::shape::{MOST_TOKEN_BYTES, MOST_TOKENS};
use crate::plan::layout::{MOST_TOP_K, share};
use crate::{fp8, logfmt};

/// The most blocks that send to each rank: behind the proxy each makes a request. Where all memory is mapped, and few
/// ranks would leave the GPU idle, there are more: about as many as the GPU has multiprocessors.
const PARTS: usize = 16;
const MOST_PARTS: usize = 64;
const BUSY: usize = 128;
/// The most blocks that add the rows of a token, and the number of sums that a block forms at a time for other ranks.
const BLOCKS_OF_TOKEN: u64 = 2;
const TOGETHER: u64 = 2;
/// The number of multiprocessors without a block that waits for other ranks.
const FREE: u64 = 4;
/// The number of memory sets that rounds use in rotation.
const SETS: usize = 2;
/// Why a combine is refused whose tokens are no longer there.
pub const NOT_HELD_ANY_MORE: &str = "low_latency_combine: the handle is not that of the last low_latency_dispatch, nor of \
     the one before; the memory of earlier ones was reused";
/// The alignment of the parts of the symmetric memory.
const ALIGNMENT: usize = 128;
/// The unit of a token's elements: rows are copied in pieces of 16 bytes, in bfloat16 and in FP8.
const ELEMENTS: usize = 16;

/// The limits of the memory. They are equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceShape {
    /// The most tokens of each rank.
    pub most_tokens: usize,
    /// The number of a token's bfloat16 elements.
    pub hidden: usize,
    /// Experts of all ranks.
    pub experts: usize,
    /// The most top-k slots of a token.
    pub k: usize,
}

/// How a dispatch sends its tokens. It is equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceRows {
    /// As they are.
    Bf16,
    /// As FP8 with a scale for each 128 elements.
    Fp8,
    /// The same, with scales that are rounded up to powers of two.
    Fp8PowerOfTwo,
}

impl DeviceRows {
    fn is_fp8(self) -> bool {
        self != DeviceRows::Bf16
    }
}

/// How rows return to a rank by a combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceReturns {
    /// As they are.
    Plain,
    /// In 10 bits for each element (LogFMT-10), where magnitudes are below 1, from ranks that do the same and whose GPUs
    /// reach this one's memory and the reverse. Rows of more than 65,536 elements return as they are.
    Encoded,
}

impl DeviceReturns {
    fn of(self, step: Step) -> Step {
        match (self, step) {
            (DeviceReturns::Encoded, Step::SendCombine) => Step::SendEncoded,
            (DeviceReturns::Encoded, Step::ReceiveCombine) => Step::ReceiveEncoded,
            (DeviceReturns::Encoded, Step::Combine) => Step::CombineEncoded,
            (_, step) => step,
        }
    }
}

/// The tokens of a dispatch, as GPU addresses.
#[derive(Debug, Clone, Copy)]
pub struct LowLatencyTokens {
    /// How they are sent.
    pub rows: DeviceRows,
    /// Rows of bfloat16.
    pub x: u64,
    /// Their top-k slots: 64-bit indices of experts. Those of no expert count as -1, without an error.
    pub topk: u64,
    /// The number of tokens.
    pub tokens: usize,
}

impl LowLatencyTokens {
    fn words(&self) -> [u64; 4] {
        [self.x, self.topk, self.tokens as u64, self.rows as u64]
    }
}

/// The destinations of a dispatch, as GPU addresses. `room` is `ranks` × [`DeviceShape::most_tokens`].
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceReceived {
    /// Rows of each of this rank's experts: `experts of a rank` × `room` rows of bfloat16, or FP8.
    pub rows: u64,
    /// Their scales: for each expert and each 128 elements `room` 32-bit floats, one for each row; unused without FP8.
    pub scales: u64,
    /// Whether scales are stored as their exponents, 8 bits each, those of four groups in a 32-bit word.
    pub packs: bool,
    /// The number of rows of each expert, 32 bits each.
    pub counts: u64,
    /// For each row the number of its token at the source, 32 bits each.
    pub sources: u64,
    /// For each expert and each rank 64 bits: the first row of that rank in the upper half, and their number.
    pub ranges: u64,
    /// 64 bits that identify the dispatch for its combines.
    pub number: u64,
    /// 32 bits for each expert, to which the number of its rows is added; 0 for none.
    pub all_counts: u64,
    /// 64 bits for each rank, to which the nanoseconds of waiting for it are added; 0 for none.
    pub waits: u64,
}

/// Memory and kernels for dispatch and combine on a GPU. See the [module](self).
pub struct DeviceLowLatency {
    shape: DeviceShape,
    share: usize,
    /// The symmetric memory, kept to be freed.
    block: usize,
    /// Addresses and bytes of its words, and of the rows that return.
    words: [(u64, u64); 5],
    returned: (u64, u64),
    parameters: Turns<Used>,
    /// For each rank whether it is masked, in which round it was late since the last check (64 bits), and whether it is
    /// lost; 32 bits each.
    masks: DeviceBuffer,
    late: DeviceBuffer,
    lost: DeviceBuffer,
    of_rows: [DeviceBuffer; 7],
    parts: u64,
    has_far: bool,
    kernels: Vec<Kernel>,
    failures: Failures,
    limit: WaitLimit,
    poison: Poison,
    device: GpuDevice,
}

/// The kernels.
#[derive(Clone, Copy)]
enum Step {
    SendDispatch,
    ReceiveDispatch,
    SendCombine,
    ReceiveCombine,
    EndCombine,
    Dispatch,
    Combine,
    SendEncoded,
    ReceiveEncoded,
    CombineEncoded,
}
const KERNELS: [&str; 10] = [
    "ep_send_dispatch",
    "ep_receive_dispatch",
    "ep_send_combine",
    "ep_receive_combine",
    "ep_end_combine",
    "ep_dispatch",
    "ep_combine",
    "ep_send_combine_encoded",
    "ep_receive_combine_encoded",
    "ep_combine_encoded",
];

impl Step {
    fn threads(self) -> u32 {
        match self {
            Step::EndCombine => 32,
            _ => 512,
        }
    }
}

impl DeviceShape {
    /// The most bytes of a dispatch row in transfer.
    fn most_row(&self) -> usize {
        self.row(DeviceRows::Bf16).max(self.row(DeviceRows::Fp8))
    }

    /// Bytes of a dispatch row in transfer: a token, its scales, and its slots.
    #[must_use]
    pub fn row(&self, rows: DeviceRows) -> usize {
        let (token, scales) =
            if rows.is_fp8() { (self.hidden, 4 * fp8::scales(self.hidden)) } else { (2 * self.hidden, 0) };
        let slots = (token.next_multiple_of(16) + scales).next_multiple_of(16);
        (slots + 4 * (self.k + 2)).next_multiple_of(16)
    }

    /// The number of blocks that send to each rank.
    fn parts(&self, ranks: usize, all_mapped: bool) -> usize {
        let parts = if all_mapped { (BUSY / ranks).clamp(PARTS, MOST_PARTS) } else { PARTS };
        parts.min(self.most_tokens)
    }

    fn part(&self, parts: usize) -> usize {
        16 + self.most_tokens.div_ceil(parts.max(1)) * self.most_row()
    }

    /// Bytes of the symmetric memory, part by part.
    fn parts_of_heap(&self, ranks: usize, all_mapped: bool) -> Heap {
        let parts = self.parts(ranks, all_mapped);
        let all_parts = ranks * SETS * parts;
        // Each rank has its own memory for returning rows and for weights.
        let (back, slots) = (ranks * self.most_tokens, self.most_tokens * self.k);
        let (row, back_words) = (2 * self.hidden, SETS * back + ranks * (parts + 1));
        let for_proxy = |bytes: usize| if all_mapped { 0 } else { bytes };
        let part = |bytes: usize| bytes.next_multiple_of(ALIGNMENT) as u64;
        Heap {
            incoming: part(all_parts * self.part(parts)),
            outgoing: part(for_proxy(all_parts * self.part(parts))),
            words: part(8 * all_parts),
            back: part(SETS * back * row),
            back_words: part(8 * back_words),
            back_out: part(for_proxy(back * row)),
            weights: part(8 * SETS * ranks * slots),
            weights_out: part(for_proxy(8 * slots)),
            left: part(8 * ranks),
            formats: part((8 * ranks).next_multiple_of(16) + SETS * back * self.format()),
        }
    }

    /// Bytes that describe how a returning row is encoded: a number, and a bit for each group, in 32-bit words.
    fn format(&self) -> usize {
        (4 + 4 * self.hidden.div_ceil(32 * logfmt::GROUP)).next_multiple_of(16)
    }

    /// The heap bytes of each rank, in a job of `ranks` ranks whose GPUs do not all reach each other's memory.
    #[must_use]
    pub fn bytes(&self, ranks: usize) -> usize {
        self.parts_of_heap(ranks, false).bytes()
    }

    fn check(&self, ranks: usize) -> Result<usize> {
        let most = MOST_TOKEN_BYTES / 2;
        if self.hidden == 0 || self.hidden > most || !self.hidden.is_multiple_of(ELEMENTS) {
            let wanted = format!("a multiple of {ELEMENTS}, at most {most}");
            return Err(Error::argument("elements of a token", self.hidden, wanted));
        }
        if !(1..=MOST_TOP_K).contains(&self.k) || !(1..=MOST_TOKENS).contains(&self.most_tokens) {
            let found = format!("{} slots, {} tokens", self.k, self.most_tokens);
            let wanted = format!("1 to {MOST_TOP_K} slots, 1 to {MOST_TOKENS} tokens");
            return Err(Error::argument("a shape", found, wanted));
        }
        share(self.experts, ranks)
    }
}

/// Symmetric memory of zeros for [`DeviceLowLatency`], whose shape is determined later.
pub struct LowLatencyMemory {
    block: usize,
    bytes: usize,
    /// For each rank whether one of the two GPUs does not reach the other's memory, and whether all GPUs reach all.
    far: Vec<bool>,
    all_mapped: bool,
    /// For each rank whether it will be masked.
    masked: Vec<bool>,
    device: GpuDevice,
}

impl LowLatencyMemory {
    /// Makes the memory. Collective.
    ///
    /// # Errors
    /// Sizes that differ, on every rank; an exhausted heap; an error of the driver.
    pub fn new(device: &GpuDevice, bytes: usize) -> Result<LowLatencyMemory> {
        LowLatencyMemory::of(device, |_| bytes)
    }

    /// `bytes` returns the size, given whether all GPUs reach each other's memory.
    fn of(device: &GpuDevice, bytes: impl FnOnce(bool) -> usize) -> Result<LowLatencyMemory> {
        let runtime = device.runtime();
        let far = far_ranks(device)?;
        let team = runtime.team_world()?;
        let all_mapped = team.all(!far.contains(&true))?;
        let bytes = bytes(all_mapped);
        let block = runtime.align(ALIGNMENT, bytes)?;
        let (at, masked, of) = (block.expose_provenance(), vec![false; far.len()], device.clone());
        let made = LowLatencyMemory { block: at, bytes, far, all_mapped, masked, device: of };
        // No rank may write to another one before all have cleared their words.
        let (what, all) = ("memory for low latency", |ok| Ok(team.all(ok)?));
        all_or_free(runtime.my_pe(), what, made.clear().map(|()| made), all, || Ok(runtime.free(block)?))
    }

    fn clear(&self) -> Result<()> {
        let at = self.device.address(std::ptr::with_exposed_provenance(self.block));
        clear_words(self.device.gpu(), &[(at, self.bytes as u64)])
    }

    /// As [`DeviceLowLatency::connect`], on a rank that has made no call: other ranks may have written to the memory.
    ///
    /// # Errors
    /// As for [`DeviceLowLatency::connect`].
    pub fn connect(&mut self, ranks: &[Pe]) -> Result<()> {
        self.masked = meet(&self.device, ranks, || Ok(self.masked.clone()))?;
        self.clear()?;
        // No rank may write to another one before all have cleared their words.
        Ok(self.device.runtime().barrier_all()?)
    }

    /// Frees the memory. Collective.
    ///
    /// # Errors
    /// A peer that does not respond.
    pub fn free(self) -> Result<()> {
        Ok(self.device.runtime().free(std::ptr::with_exposed_provenance_mut(self.block))?)
    }

    /// Whether the memory holds buffers of a shape.
    #[must_use]
    pub fn fits(&self, shape: &DeviceShape) -> bool {
        shape.parts_of_heap(self.far.len(), self.all_mapped).bytes() <= self.bytes
    }
}

impl DeviceLowLatency {
    /// Makes memory and loads the kernels, which wait for other ranks within `limit`. Collective.
    ///
    /// # Errors
    /// An invalid shape; shapes that differ, on every rank; an exhausted heap; errors of the compiler and the driver;
    /// [`PeerRefused`](symrail::rounds::Error::PeerRefused) if only other ranks have these.
    pub fn new(device: &GpuDevice, nvrtc: &Nvrtc, shape: DeviceShape, limit: WaitLimit) -> Result<DeviceLowLatency> {
        let (what, team) = ("low latency on GPUs", device.runtime().team_world()?);
        let ranks = device.runtime().n_pes() as usize;
        shape.check(ranks)?;
        team.compare(
            what,
            &[
                ("tokens of a rank, at most", shape.most_tokens as u64),
                ("elements of a token", shape.hidden as u64),
                ("number of experts", shape.experts as u64),
                ("top-k slots of a token", shape.k as u64),
            ],
        )?;
        let memory = LowLatencyMemory::of(device, |all_mapped| shape.parts_of_heap(ranks, all_mapped).bytes())?;
        let block = memory.block;
        let made = DeviceLowLatency::within(memory, nvrtc, shape, limit).map_err(|refused| refused.1);
        let free = || Ok(device.runtime().free(std::ptr::with_exposed_provenance_mut(block))?);
        all_or_free(device.runtime().my_pe(), what, made, |ok| Ok(team.all(ok)?), free)
    }

    /// Loads the kernels for memory that was not used before. Local: it waits for no rank. A rank with another shape is
    /// late for the others.
    ///
    /// # Errors
    /// The memory, which is still to be freed, and why: an invalid shape, or one that does not fit; errors of the
    /// compiler and the driver.
    pub fn within(
        memory: LowLatencyMemory,
        nvrtc: &Nvrtc,
        shape: DeviceShape,
        limit: WaitLimit,
    ) -> std::result::Result<DeviceLowLatency, Box<(LowLatencyMemory, Error)>> {
        match DeviceLowLatency::prepare(&memory, nvrtc, shape, limit) {
            Ok(make) => Ok(make(memory)),
            Err(error) => Err(Box::new((memory, error))),
        }
    }

    /// All but the memory itself.
    fn prepare(
        memory: &LowLatencyMemory,
        nvrtc: &Nvrtc,
        shape: DeviceShape,
        limit: WaitLimit,
    ) -> Result<impl FnOnce(LowLatencyMemory) -> DeviceLowLatency + use<>> {
        let &LowLatencyMemory { block, bytes: most, ref far, all_mapped, ref masked, ref device } = memory;
        let (runtime, gpu) = (device.runtime(), device.gpu());
        let ranks = runtime.n_pes() as usize;
        let share = shape.check(ranks)?;
        let has_far = far.contains(&true);
        let (parts, sizes) = (shape.parts(ranks, all_mapped), shape.parts_of_heap(ranks, all_mapped));
        if sizes.bytes() > most {
            return Err(Error::argument("bytes of low latency", most, format!("at least {}", sizes.bytes())));
        }
        let heap = sizes.from(device.address(std::ptr::with_exposed_provenance_mut(block)));
        let words = [
            (heap.words, sizes.words),
            (heap.back_words, sizes.back_words),
            (heap.weights, sizes.weights),
            (heap.left, sizes.left),
            (heap.formats, sizes.formats),
        ];
        let slots = shape.most_tokens * shape.k;
        // This rank's own parts, and copies of those of far ranks.
        let copied = if has_far { 1 + ranks } else { 1 };
        let (masks, late, lost) = (zeroed(gpu, 4 * ranks)?, zeroed(gpu, 8 * ranks)?, zeroed(gpu, 4 * ranks)?);
        let of_rows = [
            zeroed(gpu, 4 * ranks)?,
            zeroed(gpu, SETS * 4 * slots)?,
            zeroed(gpu, SETS * 8 * ranks * slots)?,
            zeroed(gpu, 4 * ranks * parts)?,
            zeroed(gpu, SETS * copied * parts * shape.part(parts))?,
            zeroed(gpu, 2 * shape.hidden * shape.most_tokens)?,
            zeroed(gpu, difference(ranks, parts) + 8 + 8 * ranks)?,
        ];
        of_rows[0].write(0, &flags(far)).map_err(failed)?;
        masks.write(0, &flags(masked)).map_err(failed)?;
        let own = of_rows.each_ref().map(|buffer| buffer.at().get());
        let [far, back_numbers, places, ready, own_in, own_back, notes] = own;
        let parameters = Parameters {
            ranks: ranks as u64,
            me: runtime.my_pe().into(),
            share: share as u64,
            k: shape.k as u64,
            most: shape.most_tokens as u64,
            hidden: shape.hidden as u64,
            parts: parts as u64,
            part: shape.part(parts) as u64,
            has_far: has_far.into(),
            heap,
            masks: masks.at().get(),
            late: late.at().get(),
            far,
            back_numbers,
            places,
            ready,
            lost: lost.at().get(),
            own_in,
            own_back,
            notes,
            sent: 0,
            tickets: 0,
            own_words: 0,
            received: 0,
            combining: 0,
            combined: 0,
            combining_of: 0,
            formats: [0; 2],
            mask_late: 0,
            round: 0,
            fp8: 0,
            combine: 0,
        };
        let parameters = Turns::new(Used::new(gpu, with_bytes(gpu, &bytes(&[parameters]))?)?);
        let (module, failures) = load_apart(device, nvrtc, &PROGRAMS[1], limit)?;
        let kernels = KERNELS.iter().map(|name| module.kernel(name).map_err(failed)).collect::<Result<Vec<_>>>()?;
        let parts = parts as u64;
        Ok(move |LowLatencyMemory { block, device, .. }: LowLatencyMemory| DeviceLowLatency {
            shape,
            share,
            block,
            words,
            returned: (heap.back, sizes.back),
            parameters,
            masks,
            late,
            lost,
            of_rows,
            parts,
            has_far: !all_mapped,
            kernels,
            failures,
            limit,
            poison: Poison::default(),
            device,
        })
    }

    /// Frees the memory when the GPU has ended all rounds. Collective.
    ///
    /// # Errors
    /// A peer that does not respond.
    pub fn free(self) -> Result<()> {
        Ok(self.runtime().free(std::ptr::with_exposed_provenance_mut(self.block))?)
    }

    fn runtime(&self) -> &Runtime {
        self.device.runtime()
    }

    fn parameters(&self) -> &DeviceBuffer {
        &self.parameters.memory().buffer
    }

    fn multiprocessors(&self) -> u64 {
        u64::from(self.device.gpu().multiprocessors())
    }

    /// # Safety
    /// The kernel receives the parameters' address and these arguments. All memory that they point to stays valid.
    unsafe fn launch(&self, stream: &Stream, step: Step, blocks: u64, arguments: &[u64]) -> Result<()> {
        self.runtime().check_joined()?;
        self.poison.check(self.runtime().my_pe(), "low latency on GPUs")?;
        let words = [&[self.parameters().at().get()], arguments].concat();
        let shape = Shape { blocks: blocks as u32, threads: step.threads() };
        let launched = self.parameters.launch(stream, || {
            // SAFETY: the caller's promise.
            unsafe { stream.launch(&self.kernels[step as usize], shape, &words) }.map_err(failed)
        });
        // The first kernel announces the dispatch to the others.
        if matches!(step, Step::SendDispatch | Step::Dispatch) { launched } else { self.poison.poison_on_err(launched) }
    }

    /// The shape of the buffers.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    /// The address, and bytes, of the rows that return here. Other ranks write only rows there, and only for weights that
    /// a combine of this rank has sent. A combine that has the indices of its dispatch waits for all of them. So from its
    /// end to the next combine the caller may use the memory. Waits for the GPU.
    ///
    /// # Errors
    /// [`Error::Order`] while a rank is masked, or was late: its rows may come at any time. An error of the driver.
    pub fn returned_rows(&self) -> Result<(u64, u64)> {
        self.device.gpu().synchronize().map_err(failed)?;
        let ranks = self.runtime().n_pes();
        for of_ranks in [&self.masks, &self.lost] {
            if numbers(of_ranks, ranks)?.iter().any(|&number| number != 0) {
                return Err(Error::Order {
                    what: "a rank is masked, or was late, whose rows may come at any time: connect_ranks, which all ranks \
                           call, includes it again",
                });
            }
        }
        Ok(self.returned)
    }

    fn must_fit(&self, tokens: usize) -> Result<()> {
        let most = self.shape.most_tokens;
        if tokens > most { Err(Error::TooManyTokens { tokens, most }) } else { Ok(()) }
    }

    /// Sends tokens to the ranks that own their experts. The last dispatch must have been received.
    ///
    /// # Safety
    /// Addresses are GPU addresses of memory for the given number of tokens, valid until the stream has executed the
    /// launch. This object must live until then, too.
    ///
    /// # Errors
    /// [`Error::TooManyTokens`]; an error of the driver; [`Error::Round`] after a later launch of a round has failed.
    pub unsafe fn send_dispatch(&self, stream: &Stream, of: &LowLatencyTokens) -> Result<()> {
        self.must_fit(of.tokens)?;
        let blocks = u64::from(self.runtime().n_pes()) * self.parts;
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, Step::SendDispatch, blocks, &of.words()) }
    }

    /// Waits on the GPU for the tokens of all ranks, and stores them at `to`. A rank that does not arrive in time
    /// contributes none, and leaves an error for [`DeviceLowLatency::check`].
    ///
    /// # Safety
    /// As for [`DeviceLowLatency::send_dispatch`].
    ///
    /// # Errors
    /// An error of the driver.
    pub unsafe fn receive_dispatch(&self, stream: &Stream, to: &DeviceReceived) -> Result<()> {
        let (launched, arguments) = self.received(to);
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, Step::ReceiveDispatch, launched, &arguments) }
    }

    /// The number of receiving blocks of a dispatch, and their arguments.
    fn received(&self, to: &DeviceReceived) -> (u64, [u64; 10]) {
        let (launched, of_expert) = receiving_blocks(self.multiprocessors(), self.share as u64, BUSY as u64);
        let packs = u64::from(to.packs);
        let [rows, scales, counts, sources] = [to.rows, to.scales, to.counts, to.sources];
        (launched, [rows, scales, counts, sources, to.ranges, to.number, packs, to.all_counts, to.waits, of_expert])
    }

    /// [`DeviceLowLatency::send_dispatch`] and [`DeviceLowLatency::receive_dispatch`], by one launch where all GPUs reach
    /// each other's memory.
    ///
    /// # Safety
    /// As for these.
    ///
    /// # Errors
    /// As for these.
    pub unsafe fn dispatch(&self, stream: &Stream, of: &LowLatencyTokens, to: &DeviceReceived) -> Result<()> {
        if self.has_far {
            // SAFETY: the caller's promise.
            return unsafe {
                self.send_dispatch(stream, of)?;
                self.receive_dispatch(stream, to)
            };
        }
        self.must_fit(of.tokens)?;
        let parts = u64::from(self.runtime().n_pes()) * self.parts;
        let (receiving, received) = self.received(to);
        let blocks = receiving.max(waiting_blocks(self.multiprocessors(), parts));
        let arguments = [&of.words()[..], &received].concat();
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, Step::Dispatch, blocks, &arguments) }
    }

    /// Sends what the experts have made of the tokens back: bfloat16 rows in the layout that
    /// [`DeviceLowLatency::receive_dispatch`] has written. `weights` are those of this rank's own tokens, a 32-bit float
    /// for each slot. For each received token its rank gets one row: the sum of the experts' rows, times their weights,
    /// in the order of the slots, which is formed in FP32 and rounded. The launch waits on the GPU for the weights of
    /// the other ranks. `number` is [`DeviceReceived::number`] of the dispatch: the last one that was received, or the one
    /// before that. A combine of another one does nothing, and leaves an error for [`DeviceLowLatency::check`].
    ///
    /// `form` is that of the rows that return to this rank, and the same for [`DeviceLowLatency::receive_combine`]. Ranks
    /// need not agree: rows travel encoded between two ranks that both want it and reach each other's memory.
    ///
    /// # Safety
    /// As for [`DeviceLowLatency::send_dispatch`].
    ///
    /// # Errors
    /// As for [`DeviceLowLatency::send_dispatch`].
    pub unsafe fn send_combine(
        &self,
        stream: &Stream,
        [rows, weights, number]: [u64; 3],
        tokens: usize,
        form: DeviceReturns,
    ) -> Result<()> {
        self.must_fit(tokens)?;
        let rows_back = u64::from(self.runtime().n_pes()) * self.shape.most_tokens as u64;
        let (blocks, _) = receiving_blocks(self.multiprocessors(), rows_back.div_ceil(TOGETHER), 1);
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, form.of(Step::SendCombine), blocks, &[rows, weights, tokens as u64, number]) }
    }

    /// Waits on the GPU for the rows of this rank's tokens (`topk`, as for the dispatch), and adds them in FP32 and in the
    /// order of the ranks. `out` receives rows of bfloat16; `waits` is as [`DeviceReceived::waits`]. If two dispatches
    /// were sent after the combine's, it adds nothing, and leaves an error for [`DeviceLowLatency::check`].
    ///
    /// # Safety
    /// As for [`DeviceLowLatency::send_dispatch`].
    ///
    /// # Errors
    /// As for [`DeviceLowLatency::send_dispatch`].
    pub unsafe fn receive_combine(
        &self,
        stream: &Stream,
        tokens: usize,
        [topk, out, waits]: [u64; 3],
        form: DeviceReturns,
    ) -> Result<()> {
        self.must_fit(tokens)?;
        if tokens == 0 {
            // SAFETY: the kernel has no other arguments.
            return unsafe { self.launch(stream, Step::EndCombine, 1, &[]) };
        }
        let (tokens, ends) = (tokens as u64, 1);
        let (launched, of_token) = receiving_blocks(self.multiprocessors(), tokens, BLOCKS_OF_TOKEN);
        // SAFETY: the caller's promise.
        unsafe {
            let arguments = [topk, tokens, out, of_token, waits, ends];
            self.launch(stream, form.of(Step::ReceiveCombine), launched, &arguments)
        }
    }

    /// [`DeviceLowLatency::send_combine`] and [`DeviceLowLatency::receive_combine`], by one launch where all GPUs reach each
    /// other's memory.
    ///
    /// # Safety
    /// As for these.
    ///
    /// # Errors
    /// As for these.
    pub unsafe fn combine(
        &self,
        stream: &Stream,
        [rows, weights, number]: [u64; 3],
        tokens: usize,
        [topk, out, waits]: [u64; 3],
        form: DeviceReturns,
    ) -> Result<()> {
        if self.has_far {
            // SAFETY: the caller's promise.
            return unsafe {
                self.send_combine(stream, [rows, weights, number], tokens, form)?;
                self.receive_combine(stream, tokens, [topk, out, waits], form)
            };
        }
        self.must_fit(tokens)?;
        let rows_back = u64::from(self.runtime().n_pes()) * self.shape.most_tokens as u64;
        let (receiving, of_token) = receiving_blocks(self.multiprocessors(), tokens as u64, BLOCKS_OF_TOKEN);
        let blocks = receiving.max(waiting_blocks(self.multiprocessors(), rows_back.div_ceil(TOGETHER)));
        let arguments = [rows, weights, tokens as u64, number, topk, out, of_token, waits];
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, form.of(Step::Combine), blocks, &arguments) }
    }

    /// Leaves a rank out of later launches, or includes it again, when the GPU has ended all launches so far.
    ///
    /// The caller must run a barrier before it includes a rank again. A rank for which others did not wait may still
    /// read the data of an earlier round, from memory that the next round writes.
    ///
    /// # Errors
    /// A rank that does not exist; [`Error::Order`] for the inclusion of a rank that was late; an error of the driver.
    pub fn mask(&self, rank: Pe, mask: bool) -> Result<()> {
        let ranks = self.runtime().n_pes();
        if rank >= ranks {
            return Err(Error::argument("rank to mask", rank, format!("0 to {}", ranks - 1)));
        }
        let has_lost = self.masked()?[rank as usize] && numbers(&self.lost, ranks)?[rank as usize] != 0;
        if !mask && has_lost {
            return Err(Error::Order {
                what: "a rank that did not come in time comes back by connect_ranks, which all ranks call",
            });
        }
        self.masks.write(4 * rank as usize, &u32::from(mask).to_ne_bytes()).map_err(failed)
    }

    /// Includes masked ranks again, whether they were late or took part in no call. Collective over all ranks, masked
    /// ones too, and `ranks` is the same on all. It waits until the GPU has ended all launches. Calls that were sent and
    /// not received are abandoned, handles of earlier dispatches become invalid, errors of late ranks are forgotten, and
    /// graphs stay valid. Afterwards the masked ranks are those of the first rank that is not in `ranks`, which has to
    /// take part.
    ///
    /// # Errors
    /// A rank that does not exist; ranks that differ, on all of them; a rank that does not arrive; an error of the
    /// driver.
    pub fn connect(&self, ranks: &[Pe]) -> Result<()> {
        let masked = meet(&self.device, ranks, || self.masked())?;
        // What the kernels have reported of ranks that did not arrive.
        drop(self.take_failures());
        clear_words(self.device.gpu(), &self.words)?;
        let [_, back_numbers, places, ready, _, _, notes] = &self.of_rows;
        for buffer in [back_numbers, places, ready, notes, &self.late, &self.lost] {
            buffer.fill(0).map_err(failed)?;
        }
        let counts = offset_of!(Parameters, sent)..offset_of!(Parameters, mask_late);
        self.parameters().write(counts.start, &vec![0; counts.len()]).map_err(failed)?;
        let rounds = offset_of!(Parameters, round)..size_of::<Parameters>();
        self.parameters().write(rounds.start, &vec![0; rounds.len()]).map_err(failed)?;
        self.masks.write(0, &flags(&masked)).map_err(failed)?;
        // No rank may write to another one before all have cleared their words.
        Ok(self.runtime().barrier_all()?)
    }

    /// Whether the GPU itself masks ranks that do not arrive in time, so that later rounds go on without them.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn mask_late(&self, mask: bool) -> Result<()> {
        self.parameters().write(offset_of!(Parameters, mask_late), &u64::from(mask).to_ne_bytes()).map_err(failed)
    }

    /// Which ranks are masked when the GPU has ended all launches so far.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn masked(&self) -> Result<Vec<bool>> {
        // Copies wait for no stream of the callers'.
        self.device.gpu().synchronize().map_err(failed)?;
        Ok(numbers(&self.masks, self.runtime().n_pes())?.iter().map(|&mask| mask != 0).collect())
    }

    /// Waits on the host until all launches on the stream are complete, and returns their first error.
    ///
    /// # Errors
    /// As for [`DeviceLowLatency::check`]; an error if the stream has not ended within `limit`.
    pub fn finish(&self, stream: &Stream, limit: Duration) -> Result<()> {
        let waited = stream.wait(limit).map_err(failed);
        self.check().and(waited)
    }

    /// What a kernel has noted of a call that differs from those of the other ranks, or from what memory holds.
    fn take_difference(&self) -> Result<u64> {
        let at = difference(self.runtime().n_pes() as usize, self.parts as usize);
        let (notes, mut bytes) = (&self.of_rows[6], [0; 8]);
        notes.read(at, &mut bytes).map_err(failed)?;
        notes.write(at, &[0; 8]).map_err(failed)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// All failures since the last call.
    fn take_failures(&self) -> Vec<Failure> {
        std::iter::from_fn(|| self.failures.check().err()).collect()
    }

    /// Returns errors since the last check, as far as the GPU has progressed; if there are any, it waits for the GPU.
    /// Late ranks that were masked for that are no error.
    ///
    /// # Errors
    /// [`Error::Round`] for late ranks; [`Error::Left`] where others go on without this rank; [`Error::Device`] for
    /// other failures.
    pub fn check(&self) -> Result<()> {
        if self.failures.are_none() {
            return Ok(());
        }
        // The ranks are in the GPU's memory, and running launches change them.
        self.device.gpu().synchronize().map_err(failed)?;
        let failures = self.take_failures();
        if failures.is_empty() {
            return Ok(());
        }
        let ranks = self.runtime().n_pes();
        let (rounds, lost) = (numbers(&self.late, 2 * ranks)?, numbers(&self.lost, ranks)?);
        let late = (0..ranks).zip(rounds.as_chunks::<2>().0).filter(|(_, round)| **round != [0, 0]);
        let late: Vec<Pe> = late.map(|(rank, _)| rank).collect();
        let left: Vec<Pe> = (0..).zip(lost).filter(|(_, lost)| *lost == HAS_LEFT).map(|(rank, _)| rank).collect();
        self.late.fill(0).map_err(failed)?;
        let (me, seconds) = (self.runtime().my_pe(), self.limit.time.as_secs_f64());
        if !left.is_empty() {
            return Err(Error::Left { me, ranks: left });
        }
        let difference = self.take_difference()?;
        if difference == NOT_HELD {
            return Err(Error::Order { what: NOT_HELD_ANY_MORE });
        }
        if difference == OTHER_FORM {
            return Err(Error::Order {
                what: "a combine is received in the form in which it was sent, plain or encoded",
            });
        }
        if difference != 0 {
            let named = format!("those of rank {}", difference - 1);
            return Err(Error::argument("the kind of a dispatch's rows, FP8 or bfloat16", "the other one", named));
        }
        let masked = self.masked()?;
        if late.is_empty() {
            return other(failures, &masked);
        }
        // Others belong to it: requests to a late rank fail, too.
        match late.iter().all(|&rank| masked[rank as usize]) {
            true => Ok(()),
            false => Err(late_ranks(me, "low latency on GPUs", late, seconds)),
        }
    }
}

/// What failures mean if no rank was late. Requests to a rank that has died fail later than the wait for it, when it is
/// masked; they name no rank. A rank that lives and has not got its data leaves this one behind.
fn other(failures: Vec<Failure>, masked: &[bool]) -> Result<()> {
    let excused = |failure: &Failure| matches!(failure, Failure::Requests { .. }) && masked.contains(&true);
    failures.into_iter().find(|failure| !excused(failure)).map_or(Ok(()), |failure| Err(failed(failure)))
}

/// The first part of a connection of `ranks`: all ranks end their launches and requests. Returns which ranks are masked
/// afterwards; `masked` reads those that are so far.
fn meet(device: &GpuDevice, ranks: &[Pe], masked: impl FnOnce() -> Result<Vec<bool>>) -> Result<Vec<bool>> {
    device.gpu().synchronize().map_err(failed)?;
    device.runtime().quiet()?;
    masks_after(device.runtime(), ranks, &masked()?)
}

/// A 32-bit number for each rank.
fn flags(of_ranks: &[bool]) -> Vec<u8> {
    of_ranks.iter().flat_map(|&flag| u32::from(flag).to_ne_bytes()).collect()
}

/// Clears an object's words: their addresses and bytes. No kernel uses them meanwhile.
fn clear_words(gpu: &Arc<Gpu>, words: &[(u64, u64)]) -> Result<()> {
    for &(at, bytes) in words {
        // SAFETY: parts of the object's block of the heap.
        unsafe { gpu.fill(DevicePtr::new(at), 0, bytes as usize) }.map_err(failed)?;
    }
    Ok(())
}

/// The offset of the note of a difference among the notes of words; a decision for each rank follows.
fn difference(ranks: usize, parts: usize) -> usize {
    8 * ranks * (5 * parts + 1)
}

/// Returns the number of receiving blocks, and the number of units, up to `most`, of each of `things` things. Blocks
/// that wait for other ranks do not outnumber the multiprocessors, and leave some of these free. Other kernels have to
/// run beside them: those of another object on another stream, for which the other ranks may wait.
fn receiving_blocks(multiprocessors: u64, things: u64, most: u64) -> (u64, u64) {
    let of_each = (waiting_blocks(multiprocessors, u64::MAX) / things.max(1)).clamp(1, most);
    (waiting_blocks(multiprocessors, things * of_each), of_each)
}

/// The number of blocks for so many units of work, in a kernel that waits for other ranks.
fn waiting_blocks(multiprocessors: u64, units: u64) -> u64 {
    units.min(multiprocessors.saturating_sub(FREE).clamp(1, BUSY as u64))
}

/// So many 32-bit numbers.
fn numbers(buffer: &DeviceBuffer, count: u32) -> Result<Vec<u32>> {
    let mut bytes = vec![0; 4 * count as usize];
    buffer.read(0, &mut bytes).map_err(failed)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|number| u32::from_ne_bytes(*number)).collect())
}

#[cfg(test)]
mod tests {
    use symrail_core::layout::words as words_of;

    use super::*;

    #[test]
    fn what_no_memory_is_made_for_is_refused() {
        let shape = DeviceShape { most_tokens: 1 << 20, hidden: 1 << 23, experts: 2048, k: 32 };
        assert_eq!(shape.check(2).ok(), Some(1024));
        assert!(shape.bytes(2048) > 0);
        for wrong in [
            DeviceShape { most_tokens: shape.most_tokens + 1, ..shape },
            DeviceShape { hidden: shape.hidden + 16, ..shape },
            DeviceShape { hidden: 24, ..shape },
            DeviceShape { k: 33, ..shape },
            DeviceShape { experts: 2049, ..shape },
        ] {
            assert!(wrong.check(2).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn requests_that_fail_when_their_rank_was_masked_are_no_error_of_a_later_call() {
        let requests = || Failure::Requests { count: 3, channel: 1 };
        let kernel = || Failure::NoState { name: "a test" };
        assert!(other(vec![], &[false; 2]).is_ok());
        assert!(other(vec![requests()], &[false; 2]).is_err(), "all ranks take part");
        assert!(other(vec![requests(), requests()], &[false, true]).is_ok());
        assert!(other(vec![requests(), kernel()], &[false, true]).is_err());
    }

    #[test]
    fn receiving_blocks_leave_room_for_what_others_wait_for() {
        let bounds = |multiprocessors: u64| multiprocessors.saturating_sub(FREE).max(1);
        for multiprocessors in [1, 8, 46, 108, 114, 132, 160] {
            for things in (1..300).chain([1024, 2048, 1 << 20]) {
                for most in [BLOCKS_OF_TOKEN, BUSY as u64] {
                    let (blocks, of_each) = receiving_blocks(multiprocessors, things, most);
                    let case = format!("{multiprocessors} multiprocessors, {things} by {most}: {blocks}, {of_each}");
                    assert!((1..=bounds(multiprocessors).min(128)).contains(&blocks), "{case}");
                    // There is a block for all work, and no block is idle.
                    assert!((1..=most).contains(&of_each) && blocks <= things * of_each, "{case}");
                }
            }
        }
        // The usual shapes on an H100: each expert, and each token, has a block.
        assert_eq!(receiving_blocks(132, 128, BUSY as u64), (128, 1));
        assert_eq!(receiving_blocks(132, 32, BUSY as u64), (128, 4));
        assert_eq!(receiving_blocks(132, 128, BLOCKS_OF_TOKEN), (128, 1));
        assert_eq!(receiving_blocks(132, 4096, BLOCKS_OF_TOKEN), (128, 1));
    }

    #[test]
    fn memory_has_room_for_all_that_comes_and_goes() {
        // Each of 16 blocks has two of the 24 tokens. A row has its elements, and then 2 + 2 numbers. A row returns for
        // each token, and a word for each of its 2 slots goes before.
        let shape = DeviceShape { most_tokens: 24, hidden: 64, experts: 8, k: 2 };
        let part = 16 + 2 * (128 + 16);
        let all_parts = 2 * 4 * 16 * part;
        let (words, back) = (8 * 2 * 4 * 16, 4 * 24);
        let parts = |shape: DeviceShape, ranks, mapped| words_of(&[shape.parts_of_heap(ranks, mapped)]);
        let back_words = 8 * (2 * back + 4 * 16 + 4);
        let (weights, weights_out) = (8 * 2 * 4 * 24 * 2, 8 * 24 * 2);
        let (returns, left) = (back * 128, 32);
        let formats = 32 + 2 * back * 16;
        let wanted =
            [all_parts, all_parts, words, 2 * returns, back_words, returns, weights, weights_out, left, formats];
        assert_eq!(parts(shape, 4, false), wanted.map(|bytes: u64| bytes.next_multiple_of(128)));
        assert_eq!(shape.bytes(4), shape.parts_of_heap(4, false).bytes());
        // The figures of docs/ep.md.
        let usual = DeviceShape { most_tokens: 128, hidden: 7168, experts: 256, k: 16 };
        assert_eq!(usual.bytes(8), 103_394_560 + 32_896);
        assert_eq!(usual.parts_of_heap(8, true).bytes(), 59_170_048 + 32_896);
        // No data passes through the proxy where all memory is mapped.
        let (back_words, formats) = (8 * (4 * back + 8 * 17), 64 + 4 * back * 16);
        let wanted = [2 * all_parts, 0, 2 * words, 4 * returns, back_words, 0, 2 * weights, 0, 64, formats];
        assert_eq!(parts(shape, 8, true), wanted.map(|bytes: u64| bytes.next_multiple_of(128)));
        // There is a part for each of 24 tokens, because few ranks would leave the GPU idle otherwise.
        assert_eq!(parts(shape, 4, true)[0], 2 * 4 * 24 * (16 + 128 + 16));
    }
}
