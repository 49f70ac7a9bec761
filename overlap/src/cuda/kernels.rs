//! The kernels, loaded on a PE's GPU.

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Kernel, OnStream, Program, Shape, Stream};
use symrail_cuda::cublaslt::Number;

use crate::error::Result;

/// The program.
pub const PROGRAM: Program<'static> = Program::new("overlap.cu", include_str!("../../cu/overlap.cu"));

const ONE: Shape = Shape { blocks: 1, threads: 1 };
/// Threads of a block that sums, and numbers for which one more block is worth it.
const SUMMING: u32 = 256;
const NUMBERS_OF_A_BLOCK: usize = 4096;

/// What plans on a GPU need: made once for a device.
pub struct GpuKernels<'d> {
    pub(super) device: &'d GpuDevice<'d>,
    /// Puts and gets.
    pub(super) moves: OnStream,
    begin: Kernel,
    wait: Kernel,
    tell: Kernel,
    delay: Kernel,
    sum_f32: Kernel,
    sum_f16: Kernel,
    sum_bf16: Kernel,
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
            delay: kernel("delay")?,
            sum_f32: kernel("sum_f32")?,
            sum_f16: kernel("sum_f16")?,
            sum_bf16: kernel("sum_bf16")?,
            most: (gpu.multiprocessors() as usize / 2).max(1),
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &'d GpuDevice<'d> {
        self.device
    }

    /// Begins the next round of the plan at an address.
    ///
    /// # Safety
    /// There is a plan, which stays until the stream has come so far. The same for the functions below.
    pub(super) unsafe fn begin(&self, stream: &Stream, plan: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.begin, ONE, &[plan]) }?)
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

    /// Does nothing for so many nanoseconds.
    pub(super) fn delay(&self, stream: &Stream, nanoseconds: u64) -> Result<()> {
        // SAFETY: the kernel's argument; it touches no memory.
        Ok(unsafe { stream.launch(&self.delay, ONE, &[nanoseconds]) }?)
    }

    /// Sums `rows` of `width` numbers: the arguments are those of `overlap_sum` in `cu/overlap.cu`.
    ///
    /// # Safety
    /// The addresses are of memory for these numbers, which stays until the stream has come so far.
    pub(super) unsafe fn sum(&self, stream: &Stream, number: Number, arguments: &[u64; 8]) -> Result<()> {
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
