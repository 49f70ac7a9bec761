//! Calls that the host puts on a GPU's stream, which times them; and their memory.

use std::sync::Arc;
use std::time::Duration;

use symrail::Runtime;
use symrail_kernels::cuda::{DeviceBuffer, Gpu, Stream};

use super::Bench;
use crate::perf::backend::Backend;
use crate::perf::error::Result;
use crate::perf::sample::Samples;

/// Each wait of a kernel ends after `SYMRAIL_TIMEOUT_S`; a launch has many waits, and the first that is late ends all.
const TIME_LIMIT: u32 = 4;

/// Zeros in the GPU's memory: `bytes` bytes, and a few if that is 0.
pub fn room(gpu: &Arc<Gpu>, bytes: usize) -> Result<DeviceBuffer> {
    let buffer = gpu.alloc(bytes.max(16))?;
    buffer.fill(0)?;
    Ok(buffer)
}

/// These bytes in the GPU's memory.
pub fn with(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<DeviceBuffer> {
    let buffer = room(gpu, bytes.len())?;
    buffer.write(0, bytes)?;
    Ok(buffer)
}

/// The first bytes of a buffer.
pub fn content(buffer: &DeviceBuffer, bytes: usize) -> Result<Vec<u8>> {
    let mut content = vec![0; bytes];
    if bytes > 0 {
        buffer.read(0, &mut content)?;
    }
    Ok(content)
}

impl<C: Backend> Bench<'_, C> {
    /// Times the work that `call` launches on a stream. Also returns the number of calls before, and the bytes of a
    /// call that this PE's rails have counted. Collective.
    pub(super) fn timed_on(
        &mut self,
        stream: &Stream,
        rt: &Runtime,
        size: usize,
        mut call: impl FnMut() -> Result<()>,
    ) -> Result<(Samples, u64, usize)> {
        let on_rails = || rt.counters().iter().map(|lane| lane.bytes).sum::<u64>();
        self.backend.barrier()?;
        let before = on_rails();
        let (samples, warmup, calls) = self.timed_launches(size, |_, _, calls| {
            stream.mark(0)?;
            (0..calls).try_for_each(|_| call())?;
            stream.mark(1)?;
            stream.wait(patience(rt))?;
            Ok(stream.between()? / 1e3 / calls as f64)
        })?;
        Ok((samples, warmup, ((on_rails() - before) / calls.max(1)) as usize))
    }
}

/// How long the host waits for its launches.
pub fn patience(rt: &Runtime) -> Duration {
    Duration::from_secs(rt.settings().timeout_s) * TIME_LIMIT
}
