//! Memory with content, also while a stream captures.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUstreamCaptureMode};

use crate::driver::{DeviceBuffer, Gpu};
use crate::error::{Result, cuda};
use crate::pointer::DevicePtr;
use crate::stream::Stream;

impl Gpu {
    /// Device memory that begins with the bytes that are made for its address, and is zeroed behind them. May be called
    /// while a stream captures, when no other way of getting memory may: the thread's capture mode is relaxed
    /// meanwhile, and the bytes go by a stream of their own, which waits for no other one.
    ///
    /// # Errors
    /// The driver's error.
    pub fn alloc_with(
        self: &Arc<Self>,
        bytes: usize,
        first: impl FnOnce(DevicePtr) -> Vec<u8>,
    ) -> Result<DeviceBuffer> {
        self.bind()?;
        let _relaxed = RelaxedCapture::begin(self)?;
        let (stream, mut at) = (Stream::new(self)?, 0);
        // SAFETY: the driver writes the address; the memory is ours from then on.
        unsafe { cuda!(self.ordinal(), cuMemAlloc_v2(&raw mut at, bytes.max(1))) }?;
        let buffer = DeviceBuffer { gpu: Arc::clone(self), at: DevicePtr::new(at), bytes };
        let mut content = first(buffer.at);
        content.resize(bytes, 0);
        // SAFETY: as many bytes as the memory has, which stay until the stream is idle.
        unsafe {
            let copied = cuda!(self.ordinal(), cuMemcpyHtoDAsync_v2(at, content.as_ptr().cast(), bytes, stream.raw()));
            copied.and(cuda!(self.ordinal(), cuStreamSynchronize(stream.raw())))
        }?;
        Ok(buffer)
    }
}

/// This thread may do while it lives what would end the capture of a stream else, such as allocating.
struct RelaxedCapture {
    before: CUstreamCaptureMode,
    /// The mode is the thread's.
    _here: PhantomData<*const ()>,
}

impl RelaxedCapture {
    fn begin(gpu: &Gpu) -> Result<RelaxedCapture> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver reads the mode, and writes that of before.
        unsafe { cuda!(gpu.ordinal(), cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
        Ok(RelaxedCapture { before: mode, _here: PhantomData })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.before) };
    }
}
