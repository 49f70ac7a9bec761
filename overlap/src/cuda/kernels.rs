//! The kernels, loaded on a PE's GPU.

use symrail::Team;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Kernel, OnStream, Program, Shape, Stream};
use symrail_cuda::cublaslt::Number;

use crate::error::Result;

/// The program: plans, and copies between two ranks.
pub const PROGRAM: Program<'static> = Program::new(
    "overlap.cu",
    concat!(
        include_str!("../../cu/plan.cuh"),
        include_str!("../../cu/overlap.cu"),
        include_str!("../../cu/point_to_point.cu")
    ),
);

const ONE: Shape = Shape { blocks: 1, threads: 1 };
const ONE_WARP: Shape = Shape { blocks: 1, threads: 32 };
/// Threads of a block that copies, and bytes for which one more block is worth it.
const SENDING: u32 = 512;
const SENT_BY_A_BLOCK: u64 = 16 << 10;
/// Threads of a block that sums, and numbers for which one more block is worth it.
const SUMMING: u32 = 256;
const NUMBERS_OF_A_BLOCK: usize = 4096;

/// Bytes that move: to and from addresses of the GPU.
pub(super) struct Moved {
    pub to: u64,
    pub from: u64,
    pub bytes: u64,
}

/// What plans on a GPU need: made once for a device.
pub struct GpuKernels<'d> {
    pub(super) device: &'d GpuDevice<'d>,
    /// Puts and gets.
    pub(super) moves: OnStream,
    begin: Kernel,
    wait: Kernel,
    tell: Kernel,
    ask: Kernel,
    settle: Kernel,
    send: Kernel,
    gather: Kernel,
    gather_packets: Kernel,
    meet: Kernel,
    receive: Kernel,
    packets: Kernel,
    ready: Kernel,
    say: Kernel,
    copy: Kernel,
    delay: Kernel,
    sum_f32: Kernel,
    reduce_f32: Kernel,
    reduce_packets_f32: Kernel,
    sum_f16: Kernel,
    reduce_f16: Kernel,
    reduce_packets_f16: Kernel,
    sum_bf16: Kernel,
    reduce_bf16: Kernel,
    reduce_packets_bf16: Kernel,
    /// Blocks that sum at most: half of the multiprocessors go on multiplying.
    most: usize,
}

impl<'d> GpuKernels<'d> {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The compiler's or the driver's.
    pub fn new(device: &'d GpuDevice<'d>, nvrtc: &Nvrtc) -> Result<GpuKernels<'d>> {
        let gpu = device.gpu();
        let module = device.load(nvrtc, &PROGRAM)?;
        let kernel = |name: &str| module.kernel(&format!("overlap_{name}"));
        Ok(GpuKernels {
            device,
            moves: OnStream::new(gpu, nvrtc, device.state())?,
            begin: kernel("begin")?,
            wait: kernel("wait")?,
            tell: kernel("tell")?,
            ask: kernel("ask")?,
            settle: kernel("settle")?,
            send: kernel("send")?,
            gather: kernel("gather")?,
            gather_packets: kernel("gather_packets")?,
            meet: kernel("meet")?,
            receive: kernel("receive")?,
            packets: kernel("packets")?,
            ready: kernel("ready")?,
            say: kernel("say")?,
            copy: kernel("copy")?,
            delay: kernel("delay")?,
            sum_f32: kernel("sum_f32")?,
            reduce_f32: kernel("reduce_f32")?,
            reduce_packets_f32: kernel("reduce_packets_f32")?,
            sum_f16: kernel("sum_f16")?,
            reduce_f16: kernel("reduce_f16")?,
            reduce_packets_f16: kernel("reduce_packets_f16")?,
            sum_bf16: kernel("sum_bf16")?,
            reduce_bf16: kernel("reduce_bf16")?,
            reduce_packets_bf16: kernel("reduce_packets_bf16")?,
            most: (gpu.multiprocessors() as usize / 2).max(1),
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &'d GpuDevice<'d> {
        self.device
    }

    /// Whether rows of some ranks move by the proxy, since their GPUs do not reach each other: the same on all.
    /// Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn move_by_proxy(&self, team: &Team<'_>) -> Result<bool> {
        let group = team.group();
        let mut far = [u64::from((0..group.size()).any(|rank| !self.device.is_mapped(group.pe(rank))))];
        team.max_of_all(&mut far)?;
        Ok(far != [0])
    }

    /// Begins the next round of the plan at an address, behind so many words, listed with their PEs, that were told in
    /// the round before.
    ///
    /// # Safety
    /// There is a plan, which stays until the stream has come so far. The same for the functions below.
    pub(super) unsafe fn begin(&self, stream: &Stream, plan: u64, waits: u64, count: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.begin, ONE_WARP, &[plan, waits, count as u64]) }?)
    }

    /// Waits for a PE's word of so many rounds before this one.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`].
    pub(super) unsafe fn wait(&self, stream: &Stream, plan: u64, word: usize, before: u64, pe: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.wait, ONE, &[plan, word as u64, before, pe.into()]) }?)
    }

    /// Tells a PE's word, behind what was put there.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`].
    pub(super) unsafe fn tell(&self, stream: &Stream, plan: u64, word: usize, pe: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.tell, ONE, &[plan, word as u64, pe.into()]) }?)
    }

    /// Has the proxy put bytes of the heap to a PE and tell its word, and does not wait for that. `in_order`: behind all
    /// that it was asked for before.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`], and for the bytes until [`GpuKernels::settle`] has ended.
    pub(super) unsafe fn ask(
        &self,
        stream: &Stream,
        plan: u64,
        what: &Moved,
        (word, pe): (usize, u32),
        in_order: bool,
    ) -> Result<()> {
        let arguments = [plan, what.to, what.from, what.bytes, word as u64, pe.into(), in_order.into()];
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.ask, ONE, &arguments) }?)
    }

    /// Waits until what was asked for has left.
    pub(super) fn settle(&self, stream: &Stream) -> Result<()> {
        // SAFETY: a kernel without arguments, which touches no memory of the caller's.
        Ok(unsafe { stream.launch(&self.settle, ONE, &[]) }?)
    }

    /// Waits until the GPU has done all that it was given, and proxies have delivered it: then memory that others were
    /// told of can be used for something else.
    pub(super) fn finish(&self) -> Result<()> {
        let gpu = self.device.gpu();
        self.settle(&Stream::new(gpu)?)?;
        Ok(gpu.synchronize()?)
    }

    /// Copies bytes to where this GPU reaches them at a PE, and tells its word, where this GPU reaches it.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`], and for the bytes. One copy of a plan at a time.
    pub(super) unsafe fn send(&self, stream: &Stream, plan: u64, what: &Moved, word: u64) -> Result<()> {
        let blocks = what.bytes.div_ceil(SENT_BY_A_BLOCK).clamp(1, self.most as u64) as u32;
        let arguments = [plan, what.to, what.from, what.bytes, word];
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.send, Shape { blocks, threads: SENDING }, &arguments) }?)
    }

    /// Counts a round, and gathers all rows by so many blocks: the arguments are those of `overlap_gather` in
    /// `cu/overlap.cu`.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`], and for the bytes. All ranks have the same blocks.
    pub(super) unsafe fn gather(&self, stream: &Stream, blocks: u32, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.gather, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// Counts a round, and sums this rank's rows of all products, by so many blocks: the arguments are those of
    /// `overlap_reduce` in `cu/overlap.cu`.
    ///
    /// # Safety
    /// As for [`GpuKernels::gather`].
    pub(super) unsafe fn reduce(&self, stream: &Stream, blocks: u32, number: Number, arguments: &[u64]) -> Result<()> {
        let kernel = match number {
            Number::F16 => &self.reduce_f16,
            Number::Bf16 => &self.reduce_bf16,
            _ => &self.reduce_f32,
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(kernel, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// As [`GpuKernels::gather`], by packets.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn gather_packets(&self, stream: &Stream, blocks: u32, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.gather_packets, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// As [`GpuKernels::reduce`], by packets.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn reduce_packets(
        &self,
        stream: &Stream,
        blocks: u32,
        number: Number,
        arguments: &[u64],
    ) -> Result<()> {
        let kernel = match number {
            Number::F16 => &self.reduce_packets_f16,
            Number::Bf16 => &self.reduce_packets_bf16,
            _ => &self.reduce_packets_f32,
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(kernel, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// Copies between two ranks: the arguments are those of the kernels in `cu/point_to_point.cu`.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`]. The same for the functions below.
    pub(super) unsafe fn meet(&self, stream: &Stream, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.meet, ONE, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::meet`].
    pub(super) unsafe fn receive(&self, stream: &Stream, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.receive, Shape { blocks: 1, threads: SENDING }, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::meet`], and for the bytes.
    pub(super) unsafe fn packets(&self, stream: &Stream, bytes: u64, arguments: &[u64]) -> Result<()> {
        let threads = bytes.div_ceil(8).next_multiple_of(32).clamp(32, SENDING.into()) as u32;
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.packets, Shape { blocks: 1, threads }, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::meet`].
    pub(super) unsafe fn ready(&self, stream: &Stream, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.ready, ONE, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::meet`].
    pub(super) unsafe fn say(&self, stream: &Stream, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.say, ONE, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::meet`], and for the bytes.
    pub(super) unsafe fn copy(&self, stream: &Stream, bytes: u64, arguments: &[u64]) -> Result<()> {
        let blocks = bytes.div_ceil(SENT_BY_A_BLOCK).clamp(1, self.most as u64) as u32;
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.copy, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// Does nothing for so many nanoseconds.
    pub(super) fn delay(&self, stream: &Stream, nanoseconds: u64) -> Result<()> {
        // SAFETY: the kernel's argument; it touches no memory.
        Ok(unsafe { stream.launch(&self.delay, ONE, &[nanoseconds]) }?)
    }

    /// Sums `rows` of `width` numbers: the arguments are those of `overlap_sum` in `cu/overlap.cu`.
    ///
    /// # Safety
    /// The addresses are of memory for these numbers, which stays until the stream has come so far.
    pub(super) unsafe fn sum(&self, stream: &Stream, number: Number, arguments: &[u64; 9]) -> Result<()> {
        let kernel = match number {
            Number::F16 => &self.sum_f16,
            Number::Bf16 => &self.sum_bf16,
            _ => &self.sum_f32,
        };
        let numbers = (arguments[4] as usize).saturating_mul(arguments[5] as usize);
        let blocks = numbers.div_ceil(NUMBERS_OF_A_BLOCK).clamp(1, self.most);
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(kernel, Shape { blocks: blocks as u32, threads: SUMMING }, arguments) }?)
    }
}
