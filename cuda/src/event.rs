//! Events: points in a stream's work.

use std::ffi::c_uint;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult};

use crate::driver::{Current, Gpu};
use crate::error::{Result, check, cuda};
use crate::relaxed::RelaxedCapture;
use crate::stream::Stream;

/// The driver's errors about captures.
const CAPTURES: std::ops::RangeInclusive<u32> =
    CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as u32;

/// A point in a stream's work for which others can wait.
#[derive(Debug)]
pub struct Event {
    gpu: Arc<Gpu>,
    raw: CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event without timing, which is not recorded yet.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::with(gpu, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event with timing.
    pub(crate) fn timed(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::with(gpu, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(gpu: &Arc<Gpu>, flags: CUevent_flags) -> Result<Self> {
        gpu.bind()?;
        let _relaxed = RelaxedCapture::begin(gpu.ordinal());
        let mut raw = null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { cuda!(gpu.ordinal(), cuEventCreate(&raw mut raw, flags as c_uint)) }?;
        Ok(Self { gpu: Arc::clone(gpu), raw })
    }

    /// The driver's handle, alive as long as this.
    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Records the event behind everything that was launched on a stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: an event of `self` and a live stream.
        unsafe { cuda!(self.gpu.ordinal(), cuEventRecord(self.raw, stream.raw())) }
    }

    /// Waits until the stream has reached the event's last record; at once if it was never recorded.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait(&self) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the event is alive.
        unsafe { cuda!(self.gpu.ordinal(), cuEventSynchronize(self.raw)) }
    }

    /// Whether the stream has reached the event's last record; `true` if it was never recorded.
    ///
    /// # Errors
    /// The driver's error, also one of the work before the event. A capture that forbids the question is none.
    pub fn has_passed(&self) -> Result<bool> {
        self.gpu.bind()?;
        let _relaxed = RelaxedCapture::begin(self.gpu.ordinal());
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer if CAPTURES.contains(&(answer as u32)) => Ok(false),
            answer => check(self.gpu.ordinal(), "cuEventQuery", answer).map(|()| true),
        }
    }

    /// The time from this event to a later one, in nanoseconds. Both have timing.
    pub(crate) fn until(&self, later: &Event) -> Result<f64> {
        let mut ms = 0f32;
        // SAFETY: two live events, and a place for the result.
        unsafe { cuda!(self.gpu.ordinal(), cuEventElapsedTime_v2(&raw mut ms, self.raw, later.raw)) }?;
        Ok(f64::from(ms) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _current = Current::keep();
        if self.gpu.bind().is_ok() {
            let _relaxed = RelaxedCapture::begin(self.gpu.ordinal());
            // SAFETY: created by `with`, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
