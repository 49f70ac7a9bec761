//! Loaded programs, their kernels, and launches.

use std::ffi::{CString, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream};
use symrail_heap::cuda::Gpu;
use symrail_heap::cuda::error::{check, failed};

use super::compile::Compiled;
use super::error::{Error, Result};

/// The constant that `state.cuh` declares.
const STATE_SYMBOL: &str = "symrail_state";

/// A loaded program.
#[derive(Debug)]
pub struct Module {
    gpu: Arc<Gpu>,
    raw: CUmodule,
}

// SAFETY: modules belong to a context, which any thread may use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a compiled program: its machine code, or its PTX where that does not fit the GPU.
    ///
    /// # Errors
    /// What the driver says.
    pub fn load(gpu: &Arc<Gpu>, program: &Compiled) -> Result<Arc<Self>> {
        gpu.bind()?;
        let mut raw = null_mut();
        // SAFETY: a whole cubin or a terminated PTX text, as NVRTC gave it.
        let load = |image: &[u8], raw: &mut CUmodule| unsafe { sys::cuModuleLoadData(raw, image.as_ptr().cast()) };
        let mut answer = load(&program.cubin, &mut raw);
        if answer == CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU {
            answer = load(&program.ptx, &mut raw);
        }
        check(gpu.ordinal(), "cuModuleLoadData", answer)?;
        Ok(Arc::new(Self { gpu: Arc::clone(gpu), raw }))
    }

    /// One of its kernels, loaded into the GPU now: a kernel that is loaded at its first launch can deadlock with one
    /// that waits for it.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        self.gpu.bind()?;
        let missing = || Error::NotInModule { what: "kernel", name: name.into() };
        let text = CString::new(name).map_err(|_| missing())?;
        let (mut raw, mut registers) = (null_mut(), 0);
        // SAFETY: a loaded module, a terminated string, and places for the answers. Asking for an attribute loads it.
        unsafe {
            if sys::cuModuleGetFunction(&raw mut raw, self.raw, text.as_ptr()) != CUresult::CUDA_SUCCESS {
                return Err(missing());
            }
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
            check(
                self.gpu.ordinal(),
                "cuFuncGetAttribute",
                sys::cuFuncGetAttribute(&raw mut registers, attribute, raw),
            )?;
        }
        Ok(Kernel { _module: Arc::clone(self), raw, registers })
    }

    /// Where the program's device state is, and its size.
    ///
    /// # Errors
    /// The program does not include the device API.
    pub fn state(&self) -> Result<(CUdeviceptr, usize)> {
        self.gpu.bind()?;
        let (mut at, mut bytes) = (0, 0);
        let missing = || Error::NotInModule { what: "constant", name: STATE_SYMBOL.into() };
        let name = CString::new(STATE_SYMBOL).map_err(|_| missing())?;
        // SAFETY: a loaded module, a terminated string, and places for the answers.
        let answer = unsafe { sys::cuModuleGetGlobal_v2(&raw mut at, &raw mut bytes, self.raw, name.as_ptr()) };
        if answer == CUresult::CUDA_SUCCESS { Ok((at, bytes)) } else { Err(missing()) }
    }

    /// The GPU that it is loaded into.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: loaded by `load`; kernels hold the module.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel of a module.
#[derive(Debug, Clone)]
pub struct Kernel {
    // Loaded as long as there is a kernel of it.
    _module: Arc<Module>,
    raw: CUfunction,
    registers: i32,
}

// SAFETY: as for `Module`.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Registers of a thread.
    #[must_use]
    pub fn registers(&self) -> i32 {
        self.registers
    }
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
}

/// A queue of launches of its own: the legacy default stream would wait for kernels that never end by themselves.
#[derive(Debug)]
pub struct Stream {
    gpu: Arc<Gpu>,
    raw: CUstream,
    marks: [CUevent; 2],
}

// SAFETY: streams and events may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// A new, non-blocking stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.bind()?;
        let mut raw = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the driver writes one handle.
        check(gpu.ordinal(), "cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut raw, flags) })?;
        let mut stream = Self { gpu: Arc::clone(gpu), raw, marks: [null_mut(); 2] };
        for mark in &mut stream.marks {
            // SAFETY: as above.
            check(gpu.ordinal(), "cuEventCreate", unsafe { sys::cuEventCreate(mark, 0) })?;
        }
        Ok(stream)
    }

    /// The driver's handle, alive as long as this.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Starts a kernel. Every argument is one 64-bit word: an address or a number.
    ///
    /// # Safety
    /// The kernel takes exactly these arguments, and what they point to stays valid until the kernel has ended.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn launch(&self, kernel: &Kernel, shape: Shape, arguments: &[u64]) -> Result<()> {
        self.gpu.bind()?;
        let mut words = arguments.to_vec();
        let mut places: Vec<*mut c_void> = words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
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
        if answer == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let detail =
            format!(": {} blocks of {} threads with {} registers each", shape.blocks, shape.threads, kernel.registers);
        Err(failed(self.gpu.ordinal(), "cuLaunchKernel", answer, detail).into())
    }

    /// Captures what `work` puts on this stream as a graph, instead of doing it.
    ///
    /// # Errors
    /// What `work` or the driver says.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.gpu.bind()?;
        let gpu = self.gpu.ordinal();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream of ours.
        check(gpu, "cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) })?;
        let worked = work();
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: the capture began above; the driver writes one handle.
        let ended = check(gpu, "cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.raw, &raw mut graph) });
        worked?;
        ended?;
        // SAFETY: a graph that was just made, which its executable form does not need any more.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            made
        };
        check(gpu, "cuGraphInstantiate", made)?;
        Ok(Graph { gpu: Arc::clone(&self.gpu), raw: executable })
    }

    /// Starts everything that a graph holds.
    ///
    /// # Safety
    /// As for what was captured.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn replay(&self, graph: &Graph) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the caller's promise.
        Ok(check(self.gpu.ordinal(), "cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.raw, self.raw) })?)
    }

    /// Marks the start (0) or end (1) of what is timed.
    ///
    /// # Errors
    /// What the driver says.
    pub fn mark(&self, which: usize) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: an event and a stream of `self`.
        let answer = unsafe { sys::cuEventRecord(self.marks[which % 2], self.raw) };
        Ok(check(self.gpu.ordinal(), "cuEventRecord", answer)?)
    }

    /// The time between the marks, in nanoseconds, once [`wait`](Self::wait) has returned.
    ///
    /// # Errors
    /// A mark is missing.
    pub fn between(&self) -> Result<f64> {
        let mut ms = 0f32;
        // SAFETY: two events of `self`, and a place for the answer.
        let answer = unsafe { sys::cuEventElapsedTime_v2(&raw mut ms, self.marks[0], self.marks[1]) };
        check(self.gpu.ordinal(), "cuEventElapsedTime", answer)?;
        Ok(f64::from(ms) * 1e6)
    }

    /// Whether everything that was launched has ended.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn is_idle(&self) -> Result<bool> {
        self.gpu.bind()?;
        // SAFETY: a stream of `self`.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => Ok(check(self.gpu.ordinal(), "a kernel", answer).map(|()| true)?),
        }
    }

    /// Waits until everything that was launched has ended, at most for `patience`.
    ///
    /// # Errors
    /// A kernel failed, or has not ended in time.
    pub fn wait(&self, patience: Duration) -> Result<()> {
        let started = Instant::now();
        while !self.is_idle()? {
            let waited = started.elapsed();
            if waited > patience {
                let what = "runs a kernel that does not end";
                let remedy = "look whether its peers run; SYMRAIL_TIMEOUT_S bounds its waits";
                return Err(symrail_heap::cuda::CudaError::Lacks { gpu: self.gpu.ordinal(), what, remedy }.into());
            }
            if waited > Duration::from_millis(2) {
                std::thread::sleep(Duration::from_micros(200));
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }
}

/// What was captured on a stream.
#[derive(Debug)]
pub struct Graph {
    gpu: Arc<Gpu>,
    raw: sys::CUgraphExec,
}

// SAFETY: graphs may be launched from any thread, one at a time.
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
        if self.gpu.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver keeps what kernels under way need. Marks that were
            // not created are null, which the driver refuses.
            unsafe {
                for mark in self.marks {
                    let _ = sys::cuEventDestroy_v2(mark);
                }
                let _ = sys::cuStreamDestroy_v2(self.raw);
            }
        }
    }
}
