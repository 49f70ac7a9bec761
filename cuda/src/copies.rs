//! Many copies between memory of GPUs, by one call of the driver where it has such a call.

use cudarc::driver::sys::{self, CUdeviceptr};

use super::driver::Gpu;
use super::error::{Result, cuda};
use super::pointer::DevicePtr;
use super::stream::Stream;

/// The first driver with `cuMemcpyBatchAsync_v2`: CUDA 13.0's.
const FIRST_WITH_BATCHES: i32 = 13_000;

/// Copies to be started together. No order holds between them.
#[derive(Debug, Default)]
pub struct Copies {
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    bytes: Vec<usize>,
}

impl Copies {
    /// Adds a copy.
    pub fn add(&mut self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        self.to.push(to.get());
        self.from.push(from.get());
        self.bytes.push(bytes);
    }

    /// The number of copies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Starts them on a stream, by copy engines rather than by a kernel, and forgets them.
    ///
    /// # Safety
    /// All ranges are memory that the stream's GPU can access. No other code uses the destinations or changes the
    /// sources until the copies have ended.
    ///
    /// # Errors
    /// The driver's error. Some of the copies may be under way then.
    pub unsafe fn start(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        let started = unsafe { self.start_all(stream) };
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
        started
    }

    unsafe fn start_all(&mut self, stream: &Stream) -> Result<()> {
        let (gpu, count) = (stream.gpu(), self.len());
        gpu.bind()?;
        if count < 2 || Gpu::driver_version() < FIRST_WITH_BATCHES {
            for ((&to, &from), &bytes) in self.to.iter().zip(&self.from).zip(&self.bytes) {
                // SAFETY: the caller's promise.
                unsafe { cuda!(gpu.ordinal(), cuMemcpyAsync(to, from, bytes, stream.raw())) }?;
            }
            return Ok(());
        }
        // SAFETY: a struct of numbers; zero means no hint.
        let mut attributes: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        attributes.srcAccessOrder = sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        attributes.flags = sys::CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32;
        // The first attributes are those of all copies.
        let mut first = 0usize;
        let (to, from, bytes) = (self.to.as_mut_ptr(), self.from.as_mut_ptr(), self.bytes.as_mut_ptr());
        let (attributes, first) = (&raw mut attributes, &raw mut first);
        // SAFETY: arrays of `count` elements that the driver reads during the call; the caller's promise.
        unsafe {
            cuda!(gpu.ordinal(), cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, first, 1, stream.raw()))
        }
    }
}
