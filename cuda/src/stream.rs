//! Launches in order, and graphs of them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstream};
use symrail_core::Backoff;

use crate::driver::{Current, Gpu};
use crate::error::{CudaError, Result, check, cuda, failed};
use crate::event::Event;
use crate::module::Kernel;
use crate::pinned::PinnedBuffer;
use crate::pointer::DevicePtr;

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The number of blocks.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
}

/// The number of queries in a wait before it sleeps between queries. Each query needs about a microsecond.
const QUERIES: u32 = 2000;

/// A queue of launches. It is a stream of its own, because the legacy default stream would wait for kernels that never
/// end by themselves; or it is a foreign stream.
#[derive(Debug)]
pub struct Stream {
    gpu: Arc<Gpu>,
    raw: CUstream,
    /// The start and the end of timed work; none for a foreign stream.
    marks: Option<[Event; 2]>,
}

// SAFETY: streams and events may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a non-blocking stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Stream::of_priority(gpu, 0)
    }

    /// As [`Stream::new`], of the greatest priority: its blocks start before waiting ones of other streams.
    ///
    /// # Errors
    /// The driver's error.
    pub fn with_priority(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.bind()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the driver writes two numbers.
        unsafe { cuda!(gpu.ordinal(), cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)) }?;
        Stream::of_priority(gpu, greatest)
    }

    fn of_priority(gpu: &Arc<Gpu>, priority: c_int) -> Result<Self> {
        let marks = [Event::timed(gpu)?, Event::timed(gpu)?];
        let mut raw = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the driver writes one handle.
        unsafe { cuda!(gpu.ordinal(), cuStreamCreateWithPriority(&raw mut raw, flags, priority)) }?;
        Ok(Self { gpu: Arc::clone(gpu), raw, marks: Some(marks) })
    }

    /// Wraps a foreign stream, or one of the driver's own: 0 or 1 is the default stream, 2 the calling thread's. It
    /// cannot be timed.
    ///
    /// # Safety
    /// It is a stream of this GPU's primary context, and stays as long as this value is used.
    #[must_use]
    pub unsafe fn of_others(gpu: &Arc<Gpu>, raw: CUstream) -> Self {
        Self { gpu: Arc::clone(gpu), raw, marks: None }
    }

    /// The driver's handle, alive as long as this.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Starts a kernel. Every argument is one 64-bit word: an address or a number.
    ///
    /// # Safety
    /// The kernel has exactly these parameters, and memory that they point to stays valid until the kernel has ended.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn launch(&self, kernel: &Kernel, shape: Shape, arguments: &[u64]) -> Result<()> {
        let mut words = arguments.to_vec();
        let mut places: Vec<*mut c_void> = words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(kernel, shape, &mut places) }
    }

    /// Starts a kernel whose only parameter is a structure of these words, by value.
    ///
    /// # Safety
    /// The kernel has exactly this parameter, and memory that it points to stays valid until the kernel has ended.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn launch_struct(&self, kernel: &Kernel, shape: Shape, argument: &[u64]) -> Result<()> {
        // SAFETY: the caller's promise; the driver only reads the argument.
        unsafe { self.launch_with(kernel, shape, &mut [argument.as_ptr().cast_mut().cast()]) }
    }

    /// As [`launch_struct`](Self::launch_struct), but the kernel's blocks may begin when those of the kernel before it
    /// on the stream permit it (`griddepcontrol.launch_dependents`). They themselves wait for that kernel's results
    /// (`griddepcontrol.wait`). It needs compute capability 9.0 or later.
    ///
    /// # Safety
    /// As for [`launch_struct`](Self::launch_struct).
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn launch_early(&self, kernel: &Kernel, shape: Shape, argument: &[u64]) -> Result<()> {
        self.gpu.bind()?;
        let mut places = [argument.as_ptr().cast_mut().cast::<c_void>()];
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: shape.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.raw,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        // SAFETY: the caller's promise; the driver copies the argument and reads the rest during the call.
        let answer = unsafe { sys::cuLaunchKernelEx(&raw const config, kernel.raw, places.as_mut_ptr(), null_mut()) };
        self.launched("cuLaunchKernelEx", kernel, shape, answer)
    }

    fn launched(&self, call: &'static str, kernel: &Kernel, shape: Shape, answer: CUresult) -> Result<()> {
        if answer == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let detail = format!(
            ": {} blocks of {} threads with {} registers each",
            shape.blocks,
            shape.threads,
            kernel.registers()
        );
        Err(failed(self.gpu.ordinal(), call, answer, detail))
    }

    /// # Safety
    /// The kernel's parameters match the values at these places.
    unsafe fn launch_with(&self, kernel: &Kernel, shape: Shape, places: &mut [*mut c_void]) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the caller's promise; the driver copies the arguments during the call.
        let answer = unsafe {
            sys::cuLaunchKernel(
                kernel.raw,
                shape.blocks,
                1,
                1,
                shape.threads,
                1,
                1,
                0,
                self.raw,
                places.as_mut_ptr(),
                null_mut(),
            )
        };
        self.launched("cuLaunchKernel", kernel, shape, answer)
    }

    /// Copies bytes between memory that this GPU can access: its own, a mapped peer's, or pinned host memory.
    ///
    /// # Safety
    /// Both ranges stay until the stream has reached this point, and no one else writes to them.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the caller's promise.
        unsafe { cuda!(self.gpu.ordinal(), cuMemcpyAsync(to.get(), from.get(), bytes as usize, self.raw)) }
    }

    /// Copies `bytes` at `offset` of pinned memory to memory of the GPU, in the order of the stream.
    ///
    /// # Safety
    /// The GPU's memory is valid, and no one else uses it until then; the pinned memory stays unchanged.
    ///
    /// # Errors
    /// The driver's error, or a range outside of the pinned memory.
    pub unsafe fn write(&self, to: DevicePtr, from: &PinnedBuffer, offset: usize, bytes: usize) -> Result<()> {
        self.gpu.bind()?;
        let gpu = self.gpu.ordinal();
        if offset.saturating_add(bytes) > from.bytes() {
            return Err(failed(gpu, "cuMemcpyHtoDAsync", CUresult::CUDA_ERROR_INVALID_VALUE, String::new()));
        }
        let source = from.base().as_ptr().wrapping_add(offset);
        // SAFETY: the caller's promise; the source is inside of the buffer.
        unsafe { cuda!(gpu, cuMemcpyHtoDAsync_v2(to.get(), source.cast(), bytes, self.raw)) }
    }

    /// Captures the work that `work` puts on this stream as a graph, instead of running it.
    ///
    /// # Errors
    /// The error of `work` or of the driver.
    pub fn capture<E: From<CudaError>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        self.gpu.bind()?;
        let gpu = self.gpu.ordinal();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: our own stream.
        unsafe { cuda!(gpu, cuStreamBeginCapture_v2(self.raw, mode)) }?;
        let worked = work();
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: the capture began above; the driver writes one handle.
        let ended = unsafe { cuda!(gpu, cuStreamEndCapture(self.raw, &raw mut graph)) };
        worked?;
        ended?;
        // SAFETY: a graph that was just made; its executable form does not need it.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            made
        };
        check(gpu, "cuGraphInstantiate", made)?;
        Ok(Graph { gpu: Arc::clone(&self.gpu), raw: executable })
    }

    /// Starts all work of a graph.
    ///
    /// # Safety
    /// The promises of the captured calls.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn replay(&self, graph: &Graph) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the caller's promise.
        unsafe { cuda!(self.gpu.ordinal(), cuGraphLaunch(graph.raw, self.raw)) }
    }

    /// Whether launches are being captured instead of run.
    ///
    /// # Errors
    /// The driver's error.
    pub fn is_capturing(&self) -> Result<bool> {
        self.gpu.bind()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a stream of `self`; the driver writes one number.
        unsafe { cuda!(self.gpu.ordinal(), cuStreamIsCapturing(self.raw, &raw mut status)) }?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Its number, which no other stream of this process has had or will have.
    ///
    /// # Errors
    /// The driver's error.
    pub fn number(&self) -> Result<u64> {
        self.gpu.bind()?;
        let mut number = 0;
        // SAFETY: a stream of `self`; the driver writes one number.
        unsafe { cuda!(self.gpu.ordinal(), cuStreamGetId(self.raw, &raw mut number)) }?;
        Ok(number)
    }

    /// Its GPU.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Makes later launches wait for the work before an event's last record.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.wait_with(event, 0)
    }

    /// As [`Stream::wait_for`] while the stream captures, for an event outside of the graph: each replay waits for the
    /// event's last record at that time.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn wait_for_outside(&self, event: &Event) -> Result<()> {
        self.wait_with(event, sys::CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL as c_uint)
    }

    fn wait_with(&self, event: &Event, flags: c_uint) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: a stream of `self` and a live event.
        unsafe { cuda!(self.gpu.ordinal(), cuStreamWaitEvent(self.raw, event.raw(), flags)) }
    }

    /// Marks the start (0) or end (1) of timed work.
    ///
    /// # Errors
    /// The driver's error, or a foreign stream.
    pub fn mark(&self, which: usize) -> Result<()> {
        self.marks()?[which % 2].record(self)
    }

    /// The time between the marks, in nanoseconds, after [`wait`](Self::wait) has returned.
    ///
    /// # Errors
    /// A mark is missing.
    pub fn between(&self) -> Result<f64> {
        let [start, end] = self.marks()?;
        start.until(end)
    }

    fn marks(&self) -> Result<&[Event; 2]> {
        let (what, remedy) = ("does not time streams of somebody else", "time a stream of this library's");
        self.marks.as_ref().ok_or(CudaError::Lacks { gpu: self.gpu.ordinal(), what, remedy })
    }

    /// Whether all launched work has ended.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn is_idle(&self) -> Result<bool> {
        self.gpu.bind()?;
        // SAFETY: a stream of `self`.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => check(self.gpu.ordinal(), "a kernel", answer).map(|()| true),
        }
    }

    /// Waits until all launched work has ended, for at most `time_limit`.
    ///
    /// # Errors
    /// A kernel failed, or has not ended in time.
    pub fn wait(&self, time_limit: Duration) -> Result<()> {
        let (started, mut backoff) = (Instant::now(), Backoff::new(QUERIES, 0, Duration::from_micros(200)));
        while !self.is_idle()? {
            let waited = started.elapsed();
            if waited > time_limit {
                let what = "runs a kernel that does not end";
                let remedy = "look whether its peers run; SYMRAIL_TIMEOUT_S bounds its waits";
                return Err(CudaError::Lacks { gpu: self.gpu.ordinal(), what, remedy });
            }
            backoff.pause();
        }
        Ok(())
    }
}

/// A captured graph of a stream's work.
#[derive(Debug)]
pub struct Graph {
    gpu: Arc<Gpu>,
    raw: sys::CUgraphExec,
}

// SAFETY: any thread may launch graphs, one thread at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: instantiated by `capture`, destroyed once.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _current = Current::keep();
        if self.marks.is_some() && self.gpu.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver keeps the resources of running kernels.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}
