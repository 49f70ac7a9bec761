//! A thread's mode of captures, relaxed for calls that a capture would otherwise not survive.

use std::marker::PhantomData;

use cudarc::driver::sys::{self, CUstreamCaptureMode};

use crate::error::{Result, cuda};

/// While it lives, this thread may make calls that would otherwise end a stream's capture: those that make and free
/// memory.
pub(crate) struct RelaxedCapture {
    before: CUstreamCaptureMode,
    /// It makes the type stay on its thread, whose mode it changes.
    _here: PhantomData<*const ()>,
}

impl RelaxedCapture {
    /// Relaxes the mode. The GPU with this number is bound to the thread.
    pub(crate) fn begin(gpu: i32) -> Result<RelaxedCapture> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver reads the mode, and writes the former one.
        unsafe { cuda!(gpu, cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
        Ok(RelaxedCapture { before: mode, _here: PhantomData })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.before) };
    }
}
