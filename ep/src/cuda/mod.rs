//! Both ways by kernels, on a GPU that is the PE's device.
//!
//! Peers whose memory the GPU reaches are written to by stores; others by requests to the proxy. Calls are in the order
//! of a stream, and wait for nothing on the host but where they say so.
//!
//! | file | concept |
//! |---|---|
//! | [`high_throughput`] | dispatch and combine of many tokens (`cu/high_throughput.cu`) |
//! | [`shape`], `hosts` | what memory that takes; which ranks hand tokens on |
//! | [`routes`] | where the tokens of a dispatch go |
//! | `lent` | their memory, from one dispatch to the next |
//! | `record` | what those kernels tell the host |
//! | `broken` | why buffers cannot be used any more |
//! | [`low_latency`] | those of few tokens (`cu/low_latency.cu`) |

mod broken;
pub mod high_throughput;
mod hosts;
mod lent;
pub mod low_latency;
mod record;
pub mod routes;
pub mod shape;

use std::ffi::CStr;
use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{CudaError, DeviceBuffer, Gpu, Module, Program};

use crate::error::{Error, Result};
pub use high_throughput::{DeviceHighThroughput, DeviceParts, DeviceTokens, DeviceTokensReceived};
pub use low_latency::{DeviceLowLatency, DeviceReceived, DeviceShape};
pub use routes::DeviceRoutes;
pub use shape::HighThroughputShape;

/// What the programs include.
const HEADERS: [(&CStr, &str); 8] = [
    (c"rows.cuh", include_str!("../../cu/rows.cuh")),
    (c"rounds.cuh", include_str!("../../cu/rounds.cuh")),
    (c"cast.cuh", include_str!("../../cu/cast.cuh")),
    (c"routes.cuh", include_str!("../../cu/routes.cuh")),
    (c"calls.cuh", include_str!("../../cu/calls.cuh")),
    (c"transfers.cuh", include_str!("../../cu/transfers.cuh")),
    (c"near.cuh", include_str!("../../cu/near.cuh")),
    (c"sums.cuh", include_str!("../../cu/sums.cuh")),
];
/// The kernels of high throughput, and those of low latency.
pub const PROGRAMS: [Program<'static>; 2] = [
    Program::new("high_throughput.cu", include_str!("../../cu/high_throughput.cu")).with_headers(&HEADERS),
    Program::new("low_latency.cu", include_str!("../../cu/low_latency.cu")).with_headers(&HEADERS),
];

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Device { reason: error.to_string() }
}

/// Compiles a program for a device, and tells its kernels about the PE.
fn load(device: &GpuDevice<'_>, nvrtc: &Nvrtc, program: &Program<'_>) -> Result<Arc<Module>> {
    device.load(nvrtc, program).map_err(failed)
}

/// Which ranks' memory this GPU does not reach, or whose GPUs do not reach this one's. Collective.
fn far_ranks(device: &GpuDevice<'_>) -> Result<Vec<bool>> {
    let rt = device.runtime();
    let reached_by = rt.alloc_slice::<u64>(rt.n_pes() as usize)?;
    for pe in 0..rt.n_pes() {
        reached_by.p(rt.my_pe() as usize, device.is_mapped(pe).into(), pe)?;
    }
    rt.barrier_all()?;
    let far = |pe| Ok(!device.is_mapped(pe) || reached_by.g(pe as usize, rt.my_pe())? == 0);
    let far = (0..rt.n_pes()).map(far).collect::<Result<_>>()?;
    reached_by.free()?;
    Ok(far)
}

/// Memory of the GPU's own, zeroed.
fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<DeviceBuffer> {
    let make = || -> Result<DeviceBuffer, CudaError> {
        let buffer = gpu.alloc(bytes.max(16))?;
        buffer.fill(0)?;
        Ok(buffer)
    };
    make().map_err(failed)
}

/// Memory of the GPU's own with these bytes.
fn with_bytes(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<DeviceBuffer> {
    let buffer = zeroed(gpu, bytes.len())?;
    buffer.write(0, bytes).map_err(failed)?;
    Ok(buffer)
}

/// Memory of the GPU's own with these words.
fn with_words(gpu: &Arc<Gpu>, words: &[u64]) -> Result<DeviceBuffer> {
    with_bytes(gpu, &words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
}
