//! Operations in the order of a stream: behind earlier launches on it, and before later ones.
//!
//! A put to or get from a peer whose memory the GPU can access is a copy by multiprocessors or by a copy engine
//! ([`Copies`]). Common waits are the stream's own. Everything else is a kernel of one block, which accesses peers as
//! any kernel does. Graphs can capture everything. An endless kernel elsewhere must leave room for launches here.
//!
//! **Failures.** When a kernel of the device has failed, such as a wait or a barrier whose time is over, or a request to
//! the proxy, what was enqueued before [`DeviceState::check`] has returned that failure does nothing any more, on any
//! stream: it copies nothing, signals nobody and comes to no barrier, and is an error, too. So no PE is told of data that
//! have not come, and none's memory is changed that may still be read. What is enqueued later goes on. A graph that was
//! captured before is captured again. Copies by a copy engine ([`Copies::Engine`]) are the exception: the driver starts
//! them all the same, but no signal follows them.

use std::sync::Arc;

pub use symrail_core::{Cmp, SignalOp, SignalUpdate};
use symrail_cuda::error::check;
use symrail_cuda::sys::{self, CUdeviceptr};
use symrail_cuda::{Compiled, Gpu, Kernel, Module, Shape, Stream};

use super::error::Result;
use super::failures::{Enqueued, Failures};
use super::heap::Reach;
use super::state::DeviceState;
use super::team::DeviceTeam;

/// Threads of a block for copies.
const COPYING: u32 = 1024;
/// Bytes for which one more such block is worthwhile, and the limit of their number.
pub(super) const BLOCK_BYTES: u64 = 32 << 10;
pub(super) const MOST_BLOCKS: u64 = 64;
/// One thread, for a kernel that only sends a request.
pub(super) const ASKING: Shape = Shape { blocks: 1, threads: 1 };
pub(super) const ONE_WARP: Shape = Shape { blocks: 1, threads: 32 };

/// The unit that copies to memory that the GPU can access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// Multiprocessors, which look before each 256 KiB whether something has failed.
    #[default]
    Kernel,
    /// A copy engine, which leaves multiprocessors to other kernels, and is faster between GPUs
    /// (docs/benchmarks/README.md). It cannot be kept from copying behind a failure. So it is for programs in which no
    /// wait of a kernel stands before the copy, or whose destinations nobody reads without a signal.
    Engine,
}

/// The loaded kernels, attached to the PE's state.
#[derive(Debug, Clone)]
pub struct OnStream {
    gpu: Arc<Gpu>,
    pub(super) reach: Reach,
    copies: Copies,
    put: Kernel,
    get: Kernel,
    put_signal: Kernel,
    wait: Kernel,
    fence: Kernel,
    quiet: Kernel,
    barrier: Kernel,
    sync: Kernel,
    pub(super) wait_in_chain: Kernel,
    failures: Arc<Failures>,
}

/// The word of no chain.
pub(super) const NO_CHAIN: u64 = 0;

/// What a copy moves, at addresses of the GPU.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// The destination.
    pub dest: u64,
    /// The source.
    pub source: u64,
    /// The number of bytes.
    pub bytes: u64,
}

const NO_BYTES: Transfer = Transfer { dest: 0, source: 0, bytes: 0 };

impl OnStream {
    /// Loads the [kernels](super::Program::STREAM) for the device with this state.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>, kernels: &Compiled, state: &DeviceState) -> Result<Self> {
        let module = Module::load(gpu, kernels)?;
        // These kernels never delegate copies to an engine, since the choice is made here.
        state.attach_with(&module, None)?;
        let kernel = |name: &str| module.kernel(&format!("{name}_on_stream"));
        Ok(Self {
            gpu: Arc::clone(gpu),
            reach: state.reach().clone(),
            copies: Copies::default(),
            put: kernel("put")?,
            get: kernel("get")?,
            put_signal: kernel("put_signal")?,
            wait: kernel("wait")?,
            fence: kernel("fence")?,
            quiet: kernel("quiet")?,
            barrier: kernel("barrier")?,
            sync: kernel("sync")?,
            wait_in_chain: module.kernel("wait_in_chain")?,
            failures: Arc::clone(state.failures()),
        })
    }

    /// Chooses the unit that copies.
    #[must_use]
    pub fn with_copies(self, copies: Copies) -> Self {
        Self { copies, ..self }
    }

    /// For the kernels of one call, which are enqueued together.
    pub(super) fn now(&self) -> Enqueued {
        self.failures.now()
    }

    /// Copies between memory that the GPU can access, by a copy engine.
    ///
    /// # Safety
    /// Both ranges are valid for the GPU until the stream has passed this point.
    unsafe fn engine(&self, stream: &Stream, to: u64, from: u64, bytes: u64) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the caller's promise.
        let answer =
            unsafe { sys::cuMemcpyAsync(to as CUdeviceptr, from as CUdeviceptr, bytes as usize, stream.raw()) };
        Ok(check(self.gpu.ordinal(), "cuMemcpyAsync", answer)?)
    }

    /// Copies `bytes` from `source` to the symmetric `dest` on `pe`. Later work on the stream may overwrite the source.
    ///
    /// # Safety
    /// `source` is valid for reads by the GPU until then. Where only the proxy can access `pe`, it is memory of the
    /// heap.
    ///
    /// # Errors
    /// The error of the driver. [`DeviceState::check`] returns errors that the device detects.
    pub unsafe fn put(&self, stream: &Stream, what: Transfer, pe: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.put_of(self.now(), NO_CHAIN, stream, what, pe) }
    }

    /// As [`OnStream::put`], for a call, and for the chain with this word.
    ///
    /// # Safety
    /// As for [`OnStream::put`].
    pub(super) unsafe fn put_of(
        &self,
        Enqueued { era, told }: Enqueued,
        chain: u64,
        stream: &Stream,
        what: Transfer,
        pe: u32,
    ) -> Result<()> {
        let Transfer { dest, source, bytes } = what;
        let reached = self.reach.find(dest, bytes, pe);
        // SAFETY: checked to be inside of a mapped heap; the kernel's arguments; the caller's promise.
        unsafe {
            match reached {
                Some(to) if self.copies == Copies::Engine && chain == NO_CHAIN => {
                    self.engine(stream, to, source, bytes)
                }
                _ => {
                    let arguments = [dest, source, bytes, pe.into(), chain, era, told];
                    Ok(stream.launch(&self.put, copying(reached.is_some(), bytes), &arguments)?)
                }
            }
        }
    }

    /// Copies `bytes` from the symmetric `source` on `pe` to `dest`, for later work on the stream.
    ///
    /// # Safety
    /// As for [`OnStream::put`], for `dest`, which no one else uses until then.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub unsafe fn get(&self, stream: &Stream, what: Transfer, pe: u32) -> Result<()> {
        let Transfer { dest, source, bytes } = what;
        let reached = self.reach.find(source, bytes, pe);
        // SAFETY: as in `put_of`.
        unsafe {
            match reached {
                Some(from) if self.copies == Copies::Engine => self.engine(stream, dest, from, bytes),
                _ => {
                    let Enqueued { era, told } = self.now();
                    let arguments = [dest, source, bytes, pe.into(), era, told];
                    Ok(stream.launch(&self.get, copying(reached.is_some(), bytes), &arguments)?)
                }
            }
        }
    }

    /// As [`OnStream::put`], and then updates a signal word there. A reader that observes the signal also observes the
    /// bytes.
    ///
    /// # Safety
    /// As for [`OnStream::put`].
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub unsafe fn put_signal(&self, stream: &Stream, what: Transfer, signal: SignalUpdate<u64>, pe: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.put_then_signal(self.now(), NO_CHAIN, stream, what, signal, pe) }
    }

    /// As [`OnStream::put`] for each of the pieces, and then as [`OnStream::signal`], if there is a signal: in one call,
    /// so that the signal does not come without a piece that a failure has kept from starting.
    ///
    /// # Safety
    /// As for [`OnStream::put`].
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub unsafe fn put_pieces(
        &self,
        stream: &Stream,
        pieces: impl Iterator<Item = Transfer>,
        signal: Option<SignalUpdate<u64>>,
        pe: u32,
    ) -> Result<()> {
        let now = self.now();
        for piece in pieces {
            // SAFETY: the caller's promise.
            unsafe { self.put_of(now, NO_CHAIN, stream, piece, pe) }?;
        }
        let Some(signal) = signal else { return Ok(()) };
        // SAFETY: no bytes; the kernel checks the address of the word.
        unsafe { self.put_then_signal(now, NO_CHAIN, stream, NO_BYTES, signal, pe) }
    }

    /// As [`OnStream::put_signal`], for a call, and for the chain with this word. Without bytes it updates the word.
    ///
    /// # Safety
    /// As for [`OnStream::put`].
    pub(super) unsafe fn put_then_signal(
        &self,
        now: Enqueued,
        chain: u64,
        stream: &Stream,
        what: Transfer,
        signal: SignalUpdate<u64>,
        pe: u32,
    ) -> Result<()> {
        let Transfer { dest, source, bytes } = what;
        let mut here = bytes;
        if bytes > BLOCK_BYTES && self.reach.find(dest, bytes, pe).is_some() {
            // SAFETY: the caller's promise.
            unsafe { self.put_of(now, chain, stream, what, pe) }?;
            here = 0;
        }
        let Enqueued { era, told } = now;
        let SignalUpdate { word, value, op } = signal;
        let arguments = [dest, source, here, word, value, op.device(), pe.into(), chain, era, told];
        let shape = if here == 0 { ASKING } else { copying(false, here) };
        // SAFETY: the kernel's arguments; the caller's promise.
        Ok(unsafe { stream.launch(&self.put_signal, shape, &arguments) }?)
    }

    /// Updates a signal word on `pe`, behind all earlier puts of this PE to it.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub fn signal(&self, stream: &Stream, signal: SignalUpdate<u64>, pe: u32) -> Result<()> {
        // SAFETY: no bytes; the kernel checks the address of the word.
        unsafe { self.put_then_signal(self.now(), NO_CHAIN, stream, NO_BYTES, signal, pe) }
    }

    /// Makes the stream wait for a 64-bit word of this PE's memory. The stream itself waits, without limit, until the
    /// word equals the value, or is the value or up to 2^63 - 1 more, wrapping ([`Cmp::Ge`]). A kernel waits for the
    /// other conditions, within the device's time-out.
    ///
    /// # Safety
    /// `word` is an aligned word of the GPU or of pinned host memory that stays until then.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub unsafe fn wait(&self, stream: &Stream, word: u64, cmp: Cmp, value: u64) -> Result<()> {
        use sys::CUstreamWaitValue_flags as Flags;
        let flags = match cmp {
            Cmp::Eq => Flags::CU_STREAM_WAIT_VALUE_EQ,
            Cmp::Ge => Flags::CU_STREAM_WAIT_VALUE_GEQ,
            _ => {
                let Enqueued { era, told } = self.now();
                let arguments = [word, cmp.device() as u64, value, era, told];
                // SAFETY: the kernel's arguments; the caller's promise.
                return Ok(unsafe { stream.launch(&self.wait, ASKING, &arguments) }?);
            }
        };
        self.gpu.bind()?;
        // SAFETY: the caller's promise.
        let answer = unsafe { sys::cuStreamWaitValue64_v2(stream.raw(), word as CUdeviceptr, value, flags as u32) };
        Ok(check(self.gpu.ordinal(), "cuStreamWaitValue64", answer)?)
    }

    /// Orders earlier puts and signals on streams before later ones, at each PE.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub fn fence(&self, stream: &Stream) -> Result<()> {
        // SAFETY: a kernel without arguments.
        Ok(unsafe { stream.launch(&self.fence, ASKING, &[]) }?)
    }

    /// Makes the stream wait until all operations of this device are delivered.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub fn quiet(&self, stream: &Stream) -> Result<()> {
        // SAFETY: a kernel without arguments.
        Ok(unsafe { stream.launch(&self.quiet, ASKING, &[]) }?)
    }

    /// Calls a quiet, and then makes the stream wait for all PEs of the team, or of the job without a team. The team
    /// stays until then. Collective over the team.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub fn barrier(&self, stream: &Stream, team: Option<&DeviceTeam>) -> Result<()> {
        self.meet(self.now(), stream, true, team)
    }

    /// As [`OnStream::barrier`], without the quiet.
    ///
    /// # Errors
    /// As for [`OnStream::put`].
    pub fn sync(&self, stream: &Stream, team: Option<&DeviceTeam>) -> Result<()> {
        self.meet(self.now(), stream, false, team)
    }

    /// A barrier of a call, with or without a quiet.
    pub(super) fn meet(
        &self,
        Enqueued { era, told }: Enqueued,
        stream: &Stream,
        quiet: bool,
        team: Option<&DeviceTeam>,
    ) -> Result<()> {
        let kernel = if quiet { &self.barrier } else { &self.sync };
        // SAFETY: the kernel's arguments; the team is alive as the caller keeps it.
        Ok(unsafe { stream.launch(kernel, ONE_WARP, &[team.map_or(0, DeviceTeam::handle), era, told]) }?)
    }
}

/// The shape of a kernel that copies. The work of the proxy is one request.
pub(super) fn copying(reached: bool, bytes: u64) -> Shape {
    let blocks = if reached { bytes.div_ceil(BLOCK_BYTES).clamp(1, MOST_BLOCKS) } else { 1 };
    Shape { blocks: blocks as u32, threads: COPYING }
}
