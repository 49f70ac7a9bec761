//! Places in a stream's work.

use std::ffi::c_uint;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags};

use crate::driver::Gpu;
use crate::error::{Result, cuda};
use crate::stream::Stream;

/// A place in a stream's work, for which others can wait.
#[derive(Debug)]
pub struct Event {
    gpu: Arc<Gpu>,
    raw: CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event that is not timed, and that nothing is behind yet.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::with(gpu, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// One that is timed.
    pub(crate) fn timed(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::with(gpu, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(gpu: &Arc<Gpu>, flags: CUevent_flags) -> Result<Self> {
        gpu.bind()?;
        let mut raw = null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { cuda!(gpu.ordinal(), cuEventCreate(&raw mut raw, flags as c_uint)) }?;
        Ok(Self { gpu: Arc::clone(gpu), raw })
    }

    /// The driver's handle, alive as long as this.
    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Puts the event behind everything that was launched on a stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: an event of `self` and a stream that is there.
        unsafe { cuda!(self.gpu.ordinal(), cuEventRecord(self.raw, stream.raw())) }
    }

    /// Waits until the stream has come to where this was last recorded; at once if it never was.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait(&self) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the event is alive.
        unsafe { cuda!(self.gpu.ordinal(), cuEventSynchronize(self.raw)) }
    }

    /// The time from this event to a later one, both timed, in nanoseconds.
    pub(crate) fn until(&self, later: &Event) -> Result<f64> {
        let mut ms = 0f32;
        // SAFETY: two events that are there, and a place for the answer.
        unsafe { cuda!(self.gpu.ordinal(), cuEventElapsedTime_v2(&raw mut ms, self.raw, later.raw)) }?;
        Ok(f64::from(ms) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: created by `with`, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
