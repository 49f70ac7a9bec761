//! The kernels, loaded on a PE's GPU.

use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Kernel, Program, Shape, Stream};

use super::layout::{BLOCKS, THREADS};
use crate::error::Result;

/// The program.
pub const PROGRAM: Program<'static> = Program::new("pencils.cu", include_str!("../../cu/pencils.cu")).with_headers(&[
    (c"copy.cuh", include_str!("../../cu/copy.cuh")),
    (c"layout.cuh", include_str!("../../cu/layout.cuh")),
]);

/// The units that a block copies, of a copy that is too large for the blocks that are resident at once.
const RUN: usize = 4 * 4 * THREADS as usize;

/// The units of copies, in bytes.
const UNITS: [usize; 5] = [1, 2, 4, 8, 16];

/// The kernels that plans on a GPU need. They are made once for a device: a handle, whose
/// clones are of the same kernels.
#[derive(Clone)]
pub struct GpuKernels(Arc<Loaded>);

struct Loaded {
    meet: Kernel,
    arrive: Kernel,
    /// For each of [`UNITS`]: the kernel that only copies, and the kernel of a whole round.
    copies: Vec<Kernel>,
    rounds: Vec<Kernel>,
    blocks: u32,
    device: GpuDevice,
}

impl GpuKernels {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// An error of the compiler or of the driver.
    pub fn new(device: &GpuDevice, nvrtc: &Nvrtc) -> Result<GpuKernels> {
        let gpu = device.gpu();
        let module = device.load(nvrtc, &PROGRAM)?;
        let all = |what| UNITS.iter().map(move |unit| format!("decomp_{what}_{unit}"));
        let load = |what| all(what).map(|name| module.kernel(&name)).collect::<Result<Vec<_>, _>>();
        Ok(GpuKernels(Arc::new(Loaded {
            device: device.clone(),
            meet: module.kernel("decomp_meet")?,
            arrive: module.kernel("decomp_arrive")?,
            copies: load("copy")?,
            rounds: load("round")?,
            blocks: gpu.multiprocessors() * BLOCKS,
        })))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &GpuDevice {
        &self.0.device
    }

    /// Signals to the others where blocks may go, and waits for their answers.
    ///
    /// # Safety
    /// The arguments are the kernel's, and stay valid until the stream has completed it.
    pub(super) unsafe fn meet(&self, stream: &Stream, arguments: &[u64; 4]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.meet, Shape { blocks: 1, threads: THREADS }, arguments) }?)
    }

    /// Signals to the others that blocks have arrived, and waits for this PE's.
    ///
    /// # Safety
    /// As for [`GpuKernels::meet`].
    pub(super) unsafe fn arrive(&self, stream: &Stream, arguments: &[u64; 4]) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(&self.0.arrive, Shape { blocks: 1, threads: THREADS }, arguments) }?)
    }

    /// Performs `count` copies, the largest of which has `units` units of `unit` bytes.
    ///
    /// # Safety
    /// As for [`GpuKernels::meet`].
    pub(super) unsafe fn copy(
        &self,
        stream: &Stream,
        unit: usize,
        units: usize,
        [copies, count, landings]: [u64; 3],
    ) -> Result<()> {
        let kernel = &self.0.copies[unit.trailing_zeros() as usize];
        let shape = self.shape(units, count, None);
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(kernel, shape, &[copies, count, landings]) }?)
    }

    /// Performs the copies of a round, signals that to the others, and waits for their blocks. If there is room for
    /// `most` waiting blocks, the kernel first signals where blocks may go, and waits for the answers. The arguments
    /// are those of [`GpuKernels::meet`] and of [`GpuKernels::copy`], and whether it meets.
    ///
    /// # Safety
    /// As for [`GpuKernels::meet`].
    pub(super) unsafe fn round(
        &self,
        stream: &Stream,
        unit: usize,
        units: usize,
        most: Option<u32>,
        arguments: &[u64; 7],
    ) -> Result<()> {
        let kernel = &self.0.rounds[unit.trailing_zeros() as usize];
        let shape = self.shape(units, arguments[5], most);
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(kernel, shape, arguments) }?)
    }

    /// A launch with the same number of blocks for each of `count` copies, and `most` blocks at most, if they wait.
    fn shape(&self, units: usize, count: u64, most: Option<u32>) -> Shape {
        let count = count as u32;
        let each = blocks_of(units, (most.unwrap_or(self.0.blocks) / count).max(1), most.is_some());
        Shape { blocks: each.min(i32::MAX as u32 / count) * count, threads: THREADS }
    }
}

/// The blocks of a copy of `units` units, of which `resident` run at once. Further ones start as others end, in the
/// order of memory, unless the copy is `limited` to those.
fn blocks_of(units: usize, resident: u32, limited: bool) -> u32 {
    let at_once = (units.div_ceil(4 * THREADS as usize).min(resident as usize) as u32).max(1);
    if limited { at_once } else { at_once.max(u32::try_from(units.div_ceil(RUN)).unwrap_or(u32::MAX)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_copies_have_blocks_that_start_one_after_the_other() {
        for (units, resident, limited, expected) in [
            (0, 528, false, 1),
            (1025, 528, false, 2),
            (1 << 20, 528, false, 528),
            // 8 GiB of complex doubles: four tiles of 1,024 for each block.
            (1 << 29, 528, false, 1 << 17),
            (1 << 29, 528, true, 528),
        ] {
            assert_eq!(blocks_of(units, resident, limited), expected, "{units} {resident} {limited}");
        }
    }
}
