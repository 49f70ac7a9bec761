//! The kernels, loaded on a PE's GPU.

use std::sync::Arc;
use symrail::Team;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Copies, Kernel, OnStream, Program, Shape, Stream, Transfer};
use symrail_core::DataType;

use crate::error::Result;

/// The program: plans, and copies between two ranks.
pub const PROGRAM: Program<'static> = Program::new(
    "overlap.cu",
    concat!(
        include_str!("../../cu/plan.cuh"),
        include_str!("../../cu/overlap.cu"),
        include_str!("../../cu/point_to_point.cu")
    ),
)
.with_headers(&[(c"layout.cuh", include_str!("../../cu/layout.cuh"))]);

const ONE: Shape = Shape { blocks: 1, threads: 1 };
const ONE_WARP: Shape = Shape { blocks: 1, threads: 32 };
/// Threads of a block that copies, and the bytes that are worth one more block.
const SENDING: u32 = 512;
const SENT_BY_A_BLOCK: u64 = 16 << 10;
/// Threads of a block that sums, and the numbers that are worth one more block.
const SUMMING: u32 = 256;
const NUMBERS_OF_A_BLOCK: usize = 4096;

/// The kernels and streams that plans on a GPU need. They are made once for a device: a handle, whose
/// clones are of the same kernels.
#[derive(Clone)]
pub struct GpuKernels(Arc<Loaded>);

struct Loaded {
    /// Gets.
    moves: OnStream,
    begin: Kernel,
    wait: Kernel,
    signal: Kernel,
    put_nbi: Kernel,
    quiet: Kernel,
    send: Kernel,
    put: Kernel,
    put_proxied: Kernel,
    gather: Kernel,
    gather_packets: Kernel,
    offer: Kernel,
    receive: Kernel,
    packets: Kernel,
    ready: Kernel,
    signal_count: Kernel,
    copy: Kernel,
    delay: Kernel,
    /// For float32, float16 and bfloat16.
    sums: [Sums; 3],
    /// The most blocks that sum: half of the multiprocessors continue to multiply.
    most: usize,
    device: GpuDevice,
}

/// The kernels that sum numbers of a type.
struct Sums {
    sum: Kernel,
    reduce: Kernel,
    reduce_packets: Kernel,
}

impl GpuKernels {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// An error of the compiler or of the driver.
    pub fn new(device: &GpuDevice, nvrtc: &Nvrtc) -> Result<GpuKernels> {
        let gpu = device.gpu();
        let module = device.load(nvrtc, &PROGRAM)?;
        let kernel = |name: &str| module.kernel(&format!("overlap_{name}"));
        let sums = |ty: &str| -> Result<Sums> {
            let kernel = |name: &str| kernel(&format!("{name}_{ty}"));
            let (sum, reduce) = (kernel("sum")?, kernel("reduce")?);
            Ok(Sums { sum, reduce, reduce_packets: kernel("reduce_packets")? })
        };
        let copies = if device.state().reach().in_gpus() { Copies::Engine } else { Copies::Kernel };
        Ok(GpuKernels(Arc::new(Loaded {
            device: device.clone(),
            moves: device.on_stream(nvrtc)?.with_copies(copies),
            begin: kernel("begin")?,
            wait: kernel("wait")?,
            signal: kernel("signal")?,
            put_nbi: kernel("put_nbi")?,
            quiet: kernel("quiet")?,
            send: kernel("send")?,
            put: kernel("put")?,
            put_proxied: kernel("put_proxied")?,
            gather: kernel("gather")?,
            gather_packets: kernel("gather_packets")?,
            offer: kernel("offer")?,
            receive: kernel("receive")?,
            packets: kernel("packets")?,
            ready: kernel("ready")?,
            signal_count: kernel("signal_count")?,
            copy: kernel("copy")?,
            delay: kernel("delay")?,
            sums: [sums("f32")?, sums("f16")?, sums("bf16")?],
            most: (gpu.multiprocessors() as usize / 2).max(1),
        })))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &GpuDevice {
        &self.0.device
    }

    fn sums(&self, ty: DataType) -> &Sums {
        let [f32, f16, bf16] = &self.0.sums;
        match ty {
            DataType::Float16 => f16,
            DataType::Bfloat16 => bf16,
            _ => f32,
        }
    }

    /// Gets.
    pub(super) fn moves(&self) -> &OnStream {
        &self.0.moves
    }

    /// Whether the proxy moves rows of some ranks, since their GPUs do not reach each other. The result is the same on
    /// all ranks. Collective over the team.
    ///
    /// # Errors
    /// An error that names a peer that does not answer.
    pub fn move_by_proxy(&self, team: &Team) -> Result<bool> {
        let group = team.group();
        Ok(team.any((0..group.size()).any(|rank| !self.0.device.is_mapped(group.pe(rank))))?)
    }

    /// Begins the next round of the plan at an address, after `count` words, listed with their PEs, were set in the
    /// round before.
    ///
    /// # Safety
    /// `plan` is the address of a plan, which stays valid until the stream has completed the kernel. The same holds for
    /// the functions below.
    pub(super) unsafe fn begin(&self, stream: &Stream, plan: u64, waits: u64, count: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.begin, ONE_WARP, &[plan, waits, count as u64]) }?)
    }

    /// Waits for this PE's word, which a PE sets, of the round that is `before` rounds before this one.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`].
    pub(super) unsafe fn wait(&self, stream: &Stream, plan: u64, word: usize, before: u64, pe: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.wait, ONE, &[plan, word as u64, before, pe.into()]) }?)
    }

    /// Sets a PE's word, after all puts to that PE.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`].
    pub(super) unsafe fn signal(&self, stream: &Stream, plan: u64, word: usize, pe: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.signal, ONE, &[plan, word as u64, pe.into()]) }?)
    }

    /// Requests from the proxy a put of bytes of the heap to a PE and then of its word, and does not wait for it. With
    /// `in_order` a fence orders the put after all earlier requests.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`], and the same for the bytes until [`GpuKernels::quiet`] has ended.
    pub(super) unsafe fn put_nbi(
        &self,
        stream: &Stream,
        plan: u64,
        what: &Transfer,
        word: usize,
        pe: u32,
        in_order: bool,
    ) -> Result<()> {
        let arguments = [plan, what.dest, what.source, what.bytes, word as u64, pe.into(), in_order.into()];
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.put_nbi, ONE, &arguments) }?)
    }

    /// Waits until the requested puts have completed.
    pub(super) fn quiet(&self, stream: &Stream) -> Result<()> {
        // SAFETY: a kernel without arguments, which touches no memory of the caller's.
        Ok(unsafe { stream.launch(&self.0.quiet, ONE, &[]) }?)
    }

    /// Waits until the GPU has completed all its work and proxies have delivered it. Then memory whose addresses other
    /// PEs know can be reused.
    pub(super) fn finish(&self) -> Result<()> {
        let gpu = self.0.device.gpu();
        self.quiet(&Stream::new(gpu)?)?;
        Ok(gpu.synchronize()?)
    }

    /// Copies bytes to an address at which this GPU reaches a PE's memory, and then sets its word at such an address.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`], and the same for the bytes. One copy of a plan runs at a time.
    pub(super) unsafe fn send(&self, stream: &Stream, plan: u64, what: &Transfer, word: u64) -> Result<()> {
        let arguments = [plan, what.dest, what.source, what.bytes, word];
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.send, self.sending(what.bytes), &arguments) }?)
    }

    /// Puts bytes of the heap to a PE, by multiprocessors or by the proxy, unless this PE has given up.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`], and the same for the bytes.
    pub(super) unsafe fn put(&self, stream: &Stream, plan: u64, what: &Transfer, pe: u32) -> Result<()> {
        let arguments = [plan, what.dest, what.source, what.bytes, pe.into()];
        let is_mapped = self.0.device.state().reach().find(what.dest, what.bytes, pe).is_some();
        // SAFETY: the caller's promise.
        unsafe {
            match is_mapped {
                true => stream.launch(&self.0.put, self.sending(what.bytes), &arguments)?,
                false => stream.launch(&self.0.put_proxied, ONE, &arguments)?,
            }
        }
        Ok(())
    }

    /// The shape of a kernel that copies so many bytes.
    fn sending(&self, bytes: u64) -> Shape {
        Shape { blocks: bytes.div_ceil(SENT_BY_A_BLOCK).clamp(1, self.0.most as u64) as u32, threads: SENDING }
    }

    /// Counts a round, and gathers all rows with `blocks` blocks. The arguments are those of `overlap_gather` in
    /// `cu/overlap.cu`.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`], and the same for the bytes. All ranks pass the same `blocks`.
    pub(super) unsafe fn gather(&self, stream: &Stream, blocks: u32, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.gather, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// Counts a round, and sums this rank's rows of all products with `blocks` blocks. The arguments are those of
    /// `overlap_reduce` in `cu/overlap.cu`.
    ///
    /// # Safety
    /// As for [`GpuKernels::gather`].
    pub(super) unsafe fn reduce(&self, stream: &Stream, blocks: u32, ty: DataType, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.sums(ty).reduce, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// As [`GpuKernels::gather`], with packets.
    ///
    /// # Safety
    /// As for [`GpuKernels::gather`].
    pub(super) unsafe fn gather_packets(&self, stream: &Stream, blocks: u32, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.gather_packets, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// As [`GpuKernels::reduce`], with packets.
    ///
    /// # Safety
    /// As for [`GpuKernels::reduce`].
    pub(super) unsafe fn reduce_packets(
        &self,
        stream: &Stream,
        blocks: u32,
        ty: DataType,
        arguments: &[u64],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.sums(ty).reduce_packets, Shape { blocks, threads: SENDING }, arguments) }?)
    }

    /// Launches a kernel of a copy between two ranks. The arguments are those of the kernels in `cu/point_to_point.cu`.
    ///
    /// # Safety
    /// As for [`GpuKernels::begin`]. The same holds for the functions below.
    pub(super) unsafe fn offer(&self, stream: &Stream, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.offer, ONE, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::offer`].
    pub(super) unsafe fn receive(&self, stream: &Stream, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.receive, Shape { blocks: 1, threads: SENDING }, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::offer`], and the same for the bytes.
    pub(super) unsafe fn packets(&self, stream: &Stream, bytes: u64, arguments: &[u64]) -> Result<()> {
        let threads = bytes.div_ceil(8).next_multiple_of(32).clamp(32, SENDING.into()) as u32;
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.packets, Shape { blocks: 1, threads }, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::offer`].
    pub(super) unsafe fn ready(&self, stream: &Stream, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.ready, ONE, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::offer`].
    pub(super) unsafe fn signal_count(&self, stream: &Stream, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.signal_count, ONE, arguments) }?)
    }

    /// # Safety
    /// As for [`GpuKernels::offer`], and the same for the bytes.
    pub(super) unsafe fn copy(&self, stream: &Stream, bytes: u64, arguments: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.copy, self.sending(bytes), arguments) }?)
    }

    /// Does nothing for `nanoseconds`.
    pub(super) fn delay(&self, stream: &Stream, nanoseconds: u64) -> Result<()> {
        // SAFETY: the kernel's argument; it touches no memory.
        Ok(unsafe { stream.launch(&self.0.delay, ONE, &[nanoseconds]) }?)
    }

    /// Sums rows. The arguments are those of `overlap_sum` in `cu/overlap.cu`.
    ///
    /// # Safety
    /// The addresses are of memory for these numbers, which stays valid until the stream has completed the kernel.
    pub(super) unsafe fn sum(&self, stream: &Stream, ty: DataType, arguments: &[u64; 9]) -> Result<()> {
        let numbers = (arguments[4] as usize).saturating_mul(arguments[5] as usize);
        let blocks = numbers.div_ceil(NUMBERS_OF_A_BLOCK).clamp(1, self.0.most);
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.sums(ty).sum, Shape { blocks: blocks as u32, threads: SUMMING }, arguments) }?)
    }
}
