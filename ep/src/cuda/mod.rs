//! Both ways by kernels, on a GPU that is the PE's device.
//!
//! Peers whose memory the GPU reaches are written to by stores; others by requests to the proxy. Calls are in the order of
//! a stream, and wait for nothing on the host but where they say so.
//!
//! | file | concept |
//! |---|---|
//! | [`high_throughput`], [`routes`] | dispatch and combine of many tokens; where they go (`cu/high_throughput.cu`) |
//! | [`low_latency`] | those of few tokens (`cu/low_latency.cu`) |

pub mod high_throughput;
pub mod low_latency;
pub mod routes;

use std::ffi::CStr;
use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{CudaError, DeviceBuffer, Gpu, Module, Program};

use crate::error::{Error, Result};
pub use high_throughput::{DeviceHighThroughput, DeviceParts, DeviceTokens, DeviceTokensReceived, HighThroughputShape};
pub use low_latency::{DeviceLowLatency, DeviceReceived, DeviceShape};
pub use routes::DeviceRoutes;

/// What both programs include.
const HEADERS: [(&CStr, &str); 1] = [(c"rows.cuh", include_str!("../../cu/rows.cuh"))];
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
    let (major, minor) = device.gpu().compute_capability();
    let compiled = nvrtc.compile(program, &format!("sm_{major}{minor}")).map_err(failed)?;
    let module = Module::load(device.gpu(), &compiled).map_err(failed)?;
    device.attach(&module).map_err(failed)?;
    Ok(module)
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

/// Memory of the GPU's own with these words.
fn with_words(gpu: &Arc<Gpu>, words: &[u64]) -> Result<DeviceBuffer> {
    let buffer = zeroed(gpu, 8 * words.len())?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    buffer.write(0, &bytes).map_err(failed)?;
    Ok(buffer)
}

/// The words of a buffer.
fn words_of(buffer: &DeviceBuffer, count: usize) -> Result<Vec<u64>> {
    let mut bytes = vec![0; 8 * count];
    buffer.read(0, &mut bytes).map_err(failed)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}
