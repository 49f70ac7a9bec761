//! Operations in the order of a stream: after what was launched on it before, and before what is launched after.
//!
//! A put to a peer whose memory the GPU reaches is a copy by multiprocessors or by a copy engine ([`Copies`]); a wait
//! is the stream's own. All else is a kernel of one block, so it reaches peers as any kernel does. Everything can be
//! captured in graphs. A kernel elsewhere that never ends must leave room for what is launched here.

use std::sync::Arc;

pub use symrail_core::SignalOp;
use symrail_cuda::error::check;
use symrail_cuda::sys::{self, CUdeviceptr};
use symrail_cuda::{Gpu, Kernel, Module, Shape, Stream};

use super::compile::{Nvrtc, Program};
use super::error::Result;
use super::heap::Reach;
use super::state::DeviceState;

/// Threads of a block that copies.
const COPYING: u32 = 1024;
/// Bytes for which it is worth having one more of them, and how many can be worth it.
const BLOCK_BYTES: u64 = 32 << 10;
const MOST_BLOCKS: u64 = 64;
/// A block that only asks.
const ASKING: Shape = Shape { blocks: 1, threads: 1 };
const BARRIER: Shape = Shape { blocks: 1, threads: 32 };

/// The condition that a wait ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// It equals the value.
    Equal,
    /// It is the value or up to 2^63 - 1 more, wrapping.
    AtLeast,
}

/// The party that copies to memory that the GPU reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// Whoever is faster (docs/benchmarks.md): a copy engine between GPUs, multiprocessors to and from host memory.
    #[default]
    Auto,
    /// Multiprocessors.
    Kernel,
    /// A copy engine, which leaves multiprocessors to others.
    Engine,
}

/// The kernels, loaded and told about the PE.
#[derive(Debug, Clone)]
pub struct OnStream {
    gpu: Arc<Gpu>,
    reach: Reach,
    copies: Copies,
    put: Kernel,
    signal: Kernel,
    quiet: Kernel,
    barrier: Kernel,
}

impl OnStream {
    /// Compiles and loads the kernels for the device whose state this is.
    ///
    /// # Errors
    /// The compiler's or the driver's error.
    pub fn new(gpu: &Arc<Gpu>, nvrtc: &Nvrtc, state: &DeviceState) -> Result<Self> {
        let (major, minor) = gpu.compute_capability();
        let module = Module::load(gpu, &nvrtc.compile(&Program::STREAM, &format!("sm_{major}{minor}"))?)?;
        // Who is chosen to copy here does copy.
        state.attach_with(&module, None)?;
        let [put, signal, quiet, barrier] =
            ["put", "signal", "quiet", "barrier"].map(|name| module.kernel(&format!("{name}_on_stream")));
        let (gpu, reach, copies) = (Arc::clone(gpu), state.reach().clone(), Copies::default());
        Ok(Self { gpu, reach, copies, put: put?, signal: signal?, quiet: quiet?, barrier: barrier? })
    }

    /// The same with another choice of who copies.
    #[must_use]
    pub fn with_copies(self, copies: Copies) -> Self {
        Self { copies, ..self }
    }

    /// Copies `bytes` from `source` to the symmetric `dest` on `pe`. What follows in the stream may write to the
    /// source.
    ///
    /// # Safety
    /// `source` is valid for reads by the GPU until then.
    ///
    /// # Errors
    /// What the driver says. What the device finds wrong is told by [`DeviceState::check`].
    pub unsafe fn put(&self, stream: &Stream, dest: u64, source: u64, bytes: u64, pe: u32) -> Result<()> {
        let reached = self.reach.find(dest, bytes, pe);
        let by_engine = match self.copies {
            Copies::Auto => self.reach.in_gpus(),
            Copies::Kernel => false,
            Copies::Engine => true,
        };
        if let (Some(to), true) = (reached, by_engine) {
            self.gpu.bind()?;
            // SAFETY: inside of a mapped heap, as was found; the caller's promise for the source.
            let answer = unsafe { sys::cuMemcpyAsync(to, source as CUdeviceptr, bytes as usize, stream.raw()) };
            return Ok(check(self.gpu.ordinal(), "cuMemcpyAsync", answer)?);
        }
        // What the proxy has to do is one request.
        let blocks = reached.map_or(1, |_| bytes.div_ceil(BLOCK_BYTES).clamp(1, MOST_BLOCKS)) as u32;
        // SAFETY: the kernel's arguments; the caller's promise.
        Ok(unsafe { stream.launch(&self.put, Shape { blocks, threads: COPYING }, &[dest, source, bytes, pe.into()]) }?)
    }

    /// Updates a signal word on `pe`, behind everything that this PE has put there before.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub fn signal(&self, stream: &Stream, signal: u64, value: u64, op: SignalOp, pe: u32) -> Result<()> {
        // SAFETY: the kernel's arguments; it checks the address.
        Ok(unsafe { stream.launch(&self.signal, ASKING, &[signal, value, op.device(), pe.into()]) }?)
    }

    /// Lets the stream wait for a 64-bit word of this PE's memory.
    ///
    /// # Safety
    /// `word` is an aligned word of the GPU's, or of pinned host memory, that stays until then.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn wait(&self, stream: &Stream, word: u64, until: Until, value: u64) -> Result<()> {
        use sys::CUstreamWaitValue_flags as Flags;
        let flags = match until {
            Until::Equal => Flags::CU_STREAM_WAIT_VALUE_EQ,
            Until::AtLeast => Flags::CU_STREAM_WAIT_VALUE_GEQ,
        };
        self.gpu.bind()?;
        // SAFETY: the caller's promise.
        let answer = unsafe { sys::cuStreamWaitValue64_v2(stream.raw(), word as CUdeviceptr, value, flags as u32) };
        Ok(check(self.gpu.ordinal(), "cuStreamWaitValue64", answer)?)
    }

    /// Lets the stream wait until everything that this device has issued is delivered.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub fn quiet(&self, stream: &Stream) -> Result<()> {
        // SAFETY: a kernel without arguments.
        Ok(unsafe { stream.launch(&self.quiet, ASKING, &[]) }?)
    }

    /// A quiet, and then the stream waits for all PEs to have come here. Collective.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        // SAFETY: a kernel without arguments.
        Ok(unsafe { stream.launch(&self.barrier, BARRIER, &[]) }?)
    }
}
