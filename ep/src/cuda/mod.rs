//! Both ways by kernels, on a GPU that is the PE's device.
//!
//! Kernels use the memory of peers that the GPU reaches by loads and stores, and write to others by requests to the
//! proxy. Calls are in the order of a stream. They wait on the host only where their documentation says so.
//!
//! | file | concept |
//! |---|---|
//! | [`high_throughput`] | dispatch and combine of many tokens (`cu/high_throughput.cu`) |
//! | [`shape`], `hosts` | the memory of these; the ranks that forward tokens |
//! | `calls` | the sequence of these calls |
//! | [`routes`] | the destinations of a dispatch's tokens |
//! | [`count`] | the layout that callers read |
//! | `lent` | the memory of routes, from one dispatch to the next |
//! | `turns` | the memory of short calls, from one stream to the next |
//! | `record` | what those kernels report to the host |
//! | `layout` | what kernels and the host share, and its headers |
//! | [`low_latency`] | dispatch and combine of few tokens (`cu/low_latency.cu`) |

mod calls;
pub mod count;
pub mod high_throughput;
mod hosts;
mod layout;
mod lent;
pub mod low_latency;
mod record;
pub mod routes;
pub mod shape;
mod turns;

use std::ffi::CStr;
use std::sync::Arc;

use symrail::Pe;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{CudaError, DeviceBuffer, Failures, Gpu, Module, Program};
use symrail::rounds::Error::PeerRefused;

use crate::error::{Error, Result};
use crate::exchange::WaitLimit;
pub use high_throughput::{Destinations, DeviceHighThroughput, DeviceParts, DeviceTokens, DeviceTokensReceived};
pub use low_latency::{
    DeviceLowLatency, DeviceReceived, DeviceReturns, DeviceRows, DeviceShape, LowLatencyMemory, LowLatencyTokens,
};
pub use record::Counts;
pub use routes::DeviceRoutes;
pub use shape::HighThroughputShape;

/// The headers of the programs.
const HEADERS: [(&CStr, &str); 13] = [
    (c"low_latency_layout.cuh", include_str!("../../cu/low_latency_layout.cuh")),
    (c"high_throughput_layout.cuh", include_str!("../../cu/high_throughput_layout.cuh")),
    (c"rows.cuh", include_str!("../../cu/rows.cuh")),
    (c"rounds.cuh", include_str!("../../cu/rounds.cuh")),
    (c"cast.cuh", include_str!("../../cu/cast.cuh")),
    (c"logfmt.cuh", include_str!("../../cu/logfmt.cuh")),
    (c"routes.cuh", include_str!("../../cu/routes.cuh")),
    (c"calls.cuh", include_str!("../../cu/calls.cuh")),
    (c"transfers.cuh", include_str!("../../cu/transfers.cuh")),
    (c"near.cuh", include_str!("../../cu/near.cuh")),
    (c"returns.cuh", include_str!("../../cu/returns.cuh")),
    (c"sums.cuh", include_str!("../../cu/sums.cuh")),
    (c"reduce.cuh", include_str!("../../cu/reduce.cuh")),
];
/// The programs of high throughput and of low latency.
pub const PROGRAMS: [Program<'static>; 2] = [
    Program::new("high_throughput.cu", include_str!("../../cu/high_throughput.cu")).with_headers(&HEADERS),
    Program::new("low_latency.cu", include_str!("../../cu/low_latency.cu")).with_headers(&HEADERS),
];

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Device { reason: error.to_string() }
}

/// Compiles a program for a device, and passes the PE's state to its kernels.
fn load(device: &GpuDevice, nvrtc: &Nvrtc, program: &Program<'_>) -> Result<Arc<Module>> {
    device.load(nvrtc, program).map_err(failed)
}

/// As above, for kernels that wait for ranks for as long as `limit`. The failures are those of these kernels alone.
fn load_apart(
    device: &GpuDevice,
    nvrtc: &Nvrtc,
    program: &Program<'_>,
    limit: WaitLimit,
) -> Result<(Arc<Module>, Failures)> {
    let module = load(device, nvrtc, program)?;
    let failures = device.state().attach_apart(&module, limit.time).map_err(failed)?;
    Ok((module, failures))
}

/// For each rank whether one of the two GPUs does not reach the other's memory. Collective.
fn far_ranks(device: &GpuDevice) -> Result<Vec<bool>> {
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

/// Passes on what a rank has `made` in symmetric memory, if all ranks have; otherwise all free that memory. `all` and
/// `free` are collective; no rank returns before all have called.
fn all_or_free<T>(
    pe: Pe,
    what: &'static str,
    made: Result<T>,
    all: impl FnOnce(bool) -> Result<bool>,
    free: impl FnOnce() -> Result<()>,
) -> Result<T> {
    if all(made.is_ok())? {
        return made;
    }
    let error = made.map(drop).err().unwrap_or(PeerRefused { pe, what }.into());
    free().and(Err(error))
}

/// Zeroed memory of the GPU.
fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<DeviceBuffer> {
    let make = || -> Result<DeviceBuffer, CudaError> {
        let buffer = gpu.alloc(bytes.max(16))?;
        buffer.fill(0)?;
        Ok(buffer)
    };
    make().map_err(failed)
}

/// Memory of the GPU with these bytes.
fn with_bytes(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<DeviceBuffer> {
    let buffer = zeroed(gpu, bytes.len())?;
    buffer.write(0, bytes).map_err(failed)?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn memory_is_freed_unless_all_have_made_what_uses_it() {
        let freed = Cell::new(0);
        let free = || {
            freed.set(freed.get() + 1);
            Ok(())
        };
        let refused = || Err::<u32, _>(failed("no memory"));
        assert!(matches!(all_or_free(1, "a test", Ok(7), Ok, free), Ok(7)) && freed.get() == 0);
        assert!(matches!(all_or_free(1, "a test", refused(), Ok, free), Err(Error::Device { .. })) && freed.get() == 1);
        let of_peer = all_or_free(1, "a test", Ok(7), |_| Ok(false), free);
        assert!(matches!(of_peer, Err(Error::Round(PeerRefused { pe: 1, what: "a test" }))) && freed.get() == 2);
        // Without an answer of all ranks nothing collective can follow.
        assert!(all_or_free(1, "a test", Ok(7), |_| Err(failed("late")), free).is_err() && freed.get() == 2);
    }
}
