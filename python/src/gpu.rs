//! The PE's GPU: the heap in its address space, and operations in the order of its streams.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use symrail::gpu::{GpuDevice, Scratch};
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Chain, Collectives, Error, Gpu, Module, OnStream, Program, Stream, Transfer, compiled};
use symrail::{Pe, Result, Runtime, SignalUpdate, Team};
use symrail_core::Cmp;
use symrail_ep::cuda::count::DeviceLayout;

use crate::errors::{Kind, failed_on_gpu, raise, raise_of};
use crate::foreign::ANY_GPU;
use crate::interrupt;
use crate::view::{Span, View};

pub use symrail::kernels::cuda::DeviceTeam;

/// The default stream: all streams wait for it, except those made as non-blocking.
pub const DEFAULT_STREAM: usize = 0;

/// The GPU that the heap is in or pinned for.
pub struct HeldGpu {
    /// The kernels, or the reason why there are none.
    ops: std::result::Result<(OnStream, Collectives), Error>,
    device: GpuDevice,
    scratch: Scratch,
    /// Folders in which NVRTC may be.
    nvrtc: Vec<PathBuf>,
    /// It lives as long as the job, because launches may not have ended when what uses it is dropped.
    layout: OnceLock<DeviceLayout>,
}

/// A signal word's update.
pub type Signal = SignalUpdate<Span>;

impl HeldGpu {
    /// Makes the GPU the PE's device, and compiles the kernels for streams; NVRTC is in one of the folders, or where
    /// CUDA's toolkit usually is. Collective.
    pub fn new(runtime: &Runtime, gpu: &Arc<Gpu>, nvrtc: &[PathBuf]) -> Result<HeldGpu> {
        let device = runtime.gpu_device(gpu)?;
        let scratch = device.scratch()?;
        let ops = compiler(nvrtc).and_then(|nvrtc| kernels(&device, &nvrtc));
        Ok(HeldGpu { ops, device, scratch, nvrtc: nvrtc.to_vec(), layout: OnceLock::new() })
    }

    pub fn gpu(&self) -> &Arc<Gpu> {
        self.device.gpu()
    }

    /// The compiler for further kernels.
    pub fn nvrtc(&self) -> std::result::Result<Nvrtc, Error> {
        compiler(&self.nvrtc)
    }

    /// Compiles and loads a program.
    pub fn load(&self, program: &Program<'_>) -> std::result::Result<Arc<Module>, Error> {
        self.device.load(&self.nvrtc()?, program)
    }

    /// The kernel that counts the tokens of ranks, compiled at its first use.
    pub fn layout(&self) -> symrail_ep::Result<&DeviceLayout> {
        if let Some(made) = self.layout.get() {
            return Ok(made);
        }
        let nvrtc = self.nvrtc().map_err(|error| symrail_ep::Error::Device { reason: error.to_string() })?;
        let made = DeviceLayout::new(&self.device, &nvrtc)?;
        Ok(self.layout.get_or_init(|| made))
    }

    /// Passes the PE's state to the kernels of a module by its handle, a `CUmodule`; `false`: it has no device
    /// functions.
    pub fn attach(&self, module: usize) -> PyResult<bool> {
        // SAFETY: the program's promise, as for streams: the handle is that of a module, which is loaded.
        match unsafe { self.device.state().attach_to(std::ptr::with_exposed_provenance_mut(module)) } {
            Ok(()) => Ok(true),
            Err(Error::NoState { .. }) => Ok(false),
            Err(error) => Err(failed_on_gpu(error)),
        }
    }

    pub fn ordinal(&self) -> i32 {
        self.device.gpu().ordinal()
    }

    /// Whether the GPU accesses a PE's heap by loads and stores.
    pub fn is_mapped(&self, pe: Pe) -> bool {
        self.device.is_mapped(pe)
    }

    /// The GPU's address of a peer's copy of symmetric memory, if it is mapped.
    pub fn of_peer(&self, span: Span, pe: Pe) -> Option<usize> {
        self.peer_address(self.address(span), span.bytes() as u64, pe).map(|there| there as usize)
    }

    /// As above, for an address of the GPU.
    pub fn peer_address(&self, address: u64, bytes: u64, pe: Pe) -> Option<u64> {
        self.device.state().reach().find(address, bytes, pe)
    }

    /// A team for kernels. Collective over the team.
    pub fn team(&self, team: &Team) -> Result<DeviceTeam> {
        self.device.team(team)
    }

    /// Returns the failures of streams and kernels since the last call.
    pub fn check(&self) -> PyResult<()> {
        self.device.state().check().map_err(failed_on_gpu)
    }

    fn ops(&self) -> PyResult<&OnStream> {
        self.ops.as_ref().map(|(ops, _)| ops).map_err(|error| failed_on_gpu(error.clone()))
    }

    /// The kernels of collectives.
    pub fn collectives(&self) -> PyResult<&Collectives> {
        self.ops.as_ref().map(|(_, collectives)| collectives).map_err(|error| failed_on_gpu(error.clone()))
    }

    /// Scratch memory for collectives.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// The device.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// The GPU's address of memory that it can access, symmetric or not.
    pub fn reached(&self, span: Span) -> u64 {
        (span.address() as u64).wrapping_add(self.apart(span).unwrap_or(0))
    }

    fn address(&self, span: Span) -> u64 {
        self.device.address(std::ptr::with_exposed_provenance(span.address()))
    }

    /// The distance of the GPU's addresses of a symmetric array from the host's; `None` if it is not symmetric.
    fn apart(&self, span: Span) -> Option<u64> {
        let start = std::ptr::with_exposed_provenance(span.address());
        let is_symmetric = self.device.runtime().is_symmetric(start, span.bytes());
        is_symmetric.then(|| self.address(span).wrapping_sub(span.address() as u64))
    }

    /// As above, for an array that must be symmetric.
    fn symmetric(&self, span: Span, role: &str) -> PyResult<u64> {
        let wrong = || raise(Kind::Argument, &format!("{role} is not symmetric memory of this job"));
        self.apart(span).ok_or_else(wrong)
    }

    /// The GPU's address of a symmetric array.
    pub fn symmetric_address(&self, span: Span, role: &str) -> PyResult<u64> {
        Ok((span.address() as u64).wrapping_add(self.symmetric(span, role)?))
    }

    /// The distance of the GPU's addresses from the host's for the other side of an operation with `pe`: any memory
    /// that the GPU can access, or memory of the heap, if the proxy copies.
    pub fn local(&self, view: &View, pe: Pe, role: &str) -> PyResult<u64> {
        if let Some(apart) = self.apart(view.bounds()) {
            return Ok(apart);
        }
        let own = self.ordinal();
        let wrong = match view.gpu {
            Some(gpu) if gpu != own && gpu != ANY_GPU => {
                format!("{role} is in the memory of GPU {gpu}, and this PE's GPU is {own}")
            }
            _ if !self.is_mapped(pe) => format!(
                "{role} is outside of the symmetric heap, and PE {pe} is reached through the proxy, which copies to and \
                 from the heap alone; use an array of symrail.array"
            ),
            None if !Gpu::reaches(view.bounds().address()) => format!(
                "{role} is memory of the host that no GPU reaches; use pinned memory, an array of symrail.array, or no \
                 stream"
            ),
            _ => return Ok(0),
        };
        Err(raise_of(Kind::Argument, &wrong, pe))
    }

    /// A stream by its handle.
    pub fn stream(&self, handle: usize) -> Stream {
        let raw = std::ptr::with_exposed_provenance_mut(handle);
        // SAFETY: the program's promise, as for every function that accepts streams; the driver refuses most invalid
        // ones.
        unsafe { Stream::of_others(self.device.gpu(), raw) }
    }

    /// Copies `from` to the symmetric `to` on `pe`, and then updates a signal word there, in the order of a stream.
    pub fn put(&self, to: &View, from: &View, signal: Option<Signal>, pe: Pe, stream: usize) -> PyResult<()> {
        let (ops, stream) = (self.ops()?, self.stream(stream));
        let (there, here) = (self.symmetric(to.bounds(), "dst")?, self.local(from, pe, "src")?);
        let place = |span: Span, apart: u64| (span.address() as u64).wrapping_add(apart);
        let piece = |(to, from): (Span, Span)| Transfer {
            dest: place(to, there),
            source: place(from, here),
            bytes: to.bytes() as u64,
        };
        let signal = signal.map(|signal| self.there(signal)).transpose()?;
        let mut pieces = to.pieces(from);
        let work = || {
            if let (Some(signal), 1) = (signal, pieces.number())
                && let Some(only) = pieces.next()
            {
                // SAFETY: the check has shown that the GPU can access the memory; the program keeps it until then.
                return unsafe { ops.put_signal(&stream, piece(only), signal, pe) };
            }
            // SAFETY: as above.
            unsafe { ops.put_pieces(&stream, pieces.map(piece), signal, pe) }
        };
        work().map_err(failed_on_gpu)
    }

    /// Copies the symmetric `from` on `pe` to `to`, in the order of a stream.
    pub fn get(&self, to: &View, from: &View, pe: Pe, stream: usize) -> PyResult<()> {
        let (ops, stream) = (self.ops()?, self.stream(stream));
        let (here, there) = (self.local(to, pe, "dst")?, self.symmetric(from.bounds(), "src")?);
        for (to, from) in to.pieces(from) {
            let (dest, source) =
                ((to.address() as u64).wrapping_add(here), (from.address() as u64).wrapping_add(there));
            let piece = Transfer { dest, source, bytes: to.bytes() as u64 };
            // SAFETY: the check has shown that the GPU can access the memory; the program keeps it until then.
            unsafe { ops.get(&stream, piece, pe) }.map_err(failed_on_gpu)?;
        }
        Ok(())
    }

    /// The GPU's address of a signal word.
    fn word(&self, word: Span) -> PyResult<u64> {
        self.symmetric_address(word, "signal_var")
    }

    /// The update of a signal word by the GPU's address.
    fn there(&self, Signal { word, value, op }: Signal) -> PyResult<SignalUpdate<u64>> {
        Ok(SignalUpdate { word: self.word(word)?, value, op })
    }

    pub fn signal(&self, signal: Signal, pe: Pe, stream: usize) -> PyResult<()> {
        self.ops()?.signal(&self.stream(stream), self.there(signal)?, pe).map_err(failed_on_gpu)
    }

    /// Makes a stream wait for a word of this PE.
    pub fn wait(&self, word: Span, cmp: Cmp, value: u64, stream: usize) -> PyResult<()> {
        let word = self.word(word)?;
        // SAFETY: a word of the heap, which stays as long as the job.
        unsafe { self.ops()?.wait(&self.stream(stream), word, cmp, value) }.map_err(failed_on_gpu)
    }

    /// A chain with `pe`, whose word is symmetric.
    fn chain(&self, ended: Span, pe: Pe) -> PyResult<Chain> {
        Ok(Chain { ended: self.word(ended)?, pe })
    }

    /// Makes a stream wait until a word of this PE, which `pe` sets, is in a range, unless the chain with it has ended.
    pub fn wait_in_chain(
        &self,
        word: Span,
        within: RangeInclusive<u64>,
        (ended, pe): (Span, Pe),
        stream: usize,
    ) -> PyResult<()> {
        let (word, chain) = (self.word(word)?, self.chain(ended, pe)?);
        // SAFETY: words of the heap, which stays as long as the job.
        let started = unsafe { self.ops()?.wait_in(chain, &self.stream(stream), word, *within.start(), *within.end()) };
        started.map_err(failed_on_gpu)
    }

    /// As `put`, of contiguous arrays, and then sets a word there, unless the chain with that PE has ended. Without
    /// arrays it sets the word alone.
    pub fn put_in_chain(
        &self,
        arrays: Option<(&View, &View)>,
        (word, value): (Span, u64),
        (ended, pe): (Span, Pe),
        stream: usize,
    ) -> PyResult<()> {
        let (signal, chain) = (self.word(word)?, self.chain(ended, pe)?);
        let mut moved = Transfer { dest: 0, source: 0, bytes: 0 };
        if let Some((to, from)) = arrays {
            let (span, here) = (from.bounds(), self.local(from, pe, "src")?);
            let dest = self.symmetric_address(to.bounds(), "dst")?;
            let (bytes, room) = (span.bytes(), to.bounds().bytes());
            if !(to.contiguous && from.contiguous) || bytes != room {
                let wrong =
                    format!("dst has {room} bytes, and src {bytes}; wanted are contiguous arrays of one length");
                return Err(raise_of(Kind::Argument, &wrong, pe));
            }
            moved = Transfer { dest, source: (span.address() as u64).wrapping_add(here), bytes: bytes as u64 };
        }
        // SAFETY: the check has shown that the GPU can access the memory; the program keeps it until then.
        unsafe { self.ops()?.put_signal_in(chain, &self.stream(stream), moved, (signal, value)) }.map_err(failed_on_gpu)
    }

    pub fn fence(&self, stream: usize) -> PyResult<()> {
        self.ops()?.fence(&self.stream(stream)).map_err(failed_on_gpu)
    }

    pub fn quiet(&self, stream: usize) -> PyResult<()> {
        self.ops()?.quiet(&self.stream(stream)).map_err(failed_on_gpu)
    }

    /// A barrier of a team's PEs, or of all; with or without a quiet before it.
    pub fn barrier(&self, team: Option<&DeviceTeam>, quiet: bool, stream: usize) -> PyResult<()> {
        let (ops, stream) = (self.ops()?, self.stream(stream));
        let done = if quiet { ops.barrier(&stream, team) } else { ops.sync(&stream, team) };
        done.map_err(failed_on_gpu)
    }

    /// Waits until a stream has completed its work, and raises its failures.
    pub fn finish(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let stream = self.stream(stream);
        interrupt::until(py, move || stream.is_idle())?.map_err(failed_on_gpu)?;
        self.check()
    }
}

/// The kernels for streams. Both programs are compiled at the same time, each in about a second.
fn kernels(device: &GpuDevice, nvrtc: &Nvrtc) -> std::result::Result<(OnStream, Collectives), Error> {
    let (arch, folder) = (device.gpu().arch(), device.runtime().settings().cache_dir.clone());
    let (ops, compiled) = std::thread::scope(|scope| {
        let compiling = scope.spawn(|| compiled(nvrtc, &Program::COLLECTIVES, &arch, folder.as_deref()));
        (device.on_stream(nvrtc), compiling.join())
    });
    let compiled = compiled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let ops = ops?;
    let collectives = Collectives::new(device.gpu(), &compiled, device.state(), &ops)?;
    Ok((ops, collectives))
}

fn compiler(folders: &[PathBuf]) -> std::result::Result<Nvrtc, Error> {
    if folders.is_empty() { Nvrtc::find() } else { Nvrtc::load(folders).or_else(|_| Nvrtc::find()) }
}
