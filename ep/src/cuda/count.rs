//! Numbers of tokens for each rank and of slots for each expert, by one launch.

use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Gpu, Kernel, Shape, Stream};

use super::{PROGRAMS, failed, load};
use crate::error::Result;
use crate::plan::layout::share;

/// The experts of a block (`COUNTED` of `cu/routes.cuh`).
const COUNTED: usize = 4;

/// The kernel. It needs no memory of its own, and sends nothing.
pub struct DeviceLayout {
    kernel: Kernel,
    _gpu: Arc<Gpu>,
}

/// The experts of tokens, in a GPU's memory.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTopK {
    /// The GPU address of 64-bit indices.
    pub at: u64,
    /// The number of tokens.
    pub tokens: usize,
    /// The number of indices of each token.
    pub k: usize,
}

/// The destinations, as GPU addresses.
#[derive(Debug, Clone, Copy)]
pub struct DeviceCounts {
    /// The number of tokens for each rank, 32 bits each.
    pub per_rank: u64,
    /// The number of slots for each expert, 32 bits each.
    pub per_expert: u64,
    /// A byte for each token and rank: 1 if the rank gets the token, else 0.
    pub in_rank: u64,
}

impl DeviceLayout {
    /// Loads the kernel. Local.
    ///
    /// # Errors
    /// Errors of the compiler and the driver.
    pub fn new(device: &GpuDevice, nvrtc: &Nvrtc) -> Result<DeviceLayout> {
        let module = load(device, nvrtc, &PROGRAMS[0])?;
        Ok(DeviceLayout { kernel: module.kernel("ep_count").map_err(failed)?, _gpu: Arc::clone(device.gpu()) })
    }

    /// Counts the slots of tokens. Indices without an expert count nowhere.
    ///
    /// # Safety
    /// Addresses are GPU addresses of memory for these numbers, valid until the stream has executed the launch.
    /// This object must live until then, too.
    ///
    /// # Errors
    /// Ranks that do not divide the number of experts; an error of the driver.
    pub unsafe fn count(
        &self,
        stream: &Stream,
        topk: DeviceTopK,
        experts: usize,
        ranks: usize,
        to: &DeviceCounts,
    ) -> Result<()> {
        share(experts, ranks)?;
        let DeviceTopK { at: topk, tokens, k } = topk;
        let sizes = [tokens, k, experts, ranks].map(|number| number as u64);
        let words = [&[0, topk][..], &sizes, &[to.per_rank, to.per_expert, to.in_rank]].concat();
        let shape = Shape { blocks: (experts.div_ceil(COUNTED) + ranks) as u32, threads: 512 };
        // SAFETY: the caller's promise.
        unsafe { stream.launch(&self.kernel, shape, &words) }.map_err(failed)
    }
}
