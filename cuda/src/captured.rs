//! Allocation of memory with content, which also works while a stream captures.

use std::sync::Arc;

use crate::driver::{DeviceBuffer, Gpu};
use crate::error::{Result, cuda};
use crate::pointer::DevicePtr;
use crate::relaxed::RelaxedCapture;
use crate::stream::Stream;

impl Gpu {
    /// Allocates device memory that begins with the bytes that `first` makes for its address; the rest is zero. It may
    /// be called while a stream captures, unlike other allocations: the thread's capture mode is relaxed meanwhile, and
    /// the bytes travel on a stream of their own, which waits for no other one.
    ///
    /// # Errors
    /// The driver's error.
    pub fn alloc_with(
        self: &Arc<Self>,
        bytes: usize,
        first: impl FnOnce(DevicePtr) -> Vec<u8>,
    ) -> Result<DeviceBuffer> {
        self.bind()?;
        let _relaxed = RelaxedCapture::begin(self.ordinal())?;
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
