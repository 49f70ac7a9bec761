//! The GPU backend: kernels make a test's calls (`kernels/cu/perf.cu`), and the PE's host thread does everything else.

use std::sync::Arc;
use std::time::Duration;

use symrail::gpu::GpuDevice;
use symrail_kernels::cuda::compile::Nvrtc;
use symrail_kernels::cuda::{DeviceBuffer, Kernel, Module, Program, Shape, Stream};

use super::backend::{Backend, Batch, area};
use super::catalog::Work;
use super::error::{Error, Result};
use super::host::Host;
use super::plan::STREAM;

/// One thread performs operations of up to so many bytes, as in a program.
const ONE_THREAD: usize = 64;
/// Bytes of an operation for each thread of its block.
const THREAD_BYTES: usize = 16;
/// Blocks among which a window is divided. They are on the GPU at the same time, since few PEs share one.
const BLOCKS: u32 = 32;
const THREADS: u32 = 1024;
/// Each wait of a kernel ends after `SYMRAIL_TIMEOUT_S`; a kernel has many waits.
const TIME_LIMIT: u32 = 4;

/// A PE's GPU, and the area of its host thread.
pub struct Cuda<'h, 'r> {
    host: &'h mut Host<'r>,
    device: &'h GpuDevice,
    stream: Stream,
    module: Arc<Module>,
    out: DeviceBuffer,
    time_limit: Duration,
}

impl From<symrail_kernels::cuda::Error> for Error {
    fn from(error: symrail_kernels::cuda::Error) -> Error {
        Error::Gpu(error.to_string())
    }
}

impl From<symrail_kernels::cuda::CudaError> for Error {
    fn from(error: symrail_kernels::cuda::CudaError) -> Error {
        Error::Gpu(error.to_string())
    }
}

impl<'h, 'r> Cuda<'h, 'r> {
    /// Compiles the kernels. Collective.
    pub fn new(device: &'h GpuDevice, host: &'h mut Host<'r>) -> Result<Cuda<'h, 'r>> {
        let gpu = device.gpu();
        let module = device.load(&Nvrtc::find()?, &Program::PERF)?;
        let (stream, out) = (Stream::new(gpu)?, gpu.alloc(64)?);
        let time_limit = Duration::from_secs(device.runtime().settings().timeout_s) * TIME_LIMIT;
        Ok(Cuda { host, device, stream, module, out, time_limit })
    }

    fn kernel(&self, name: &str) -> Result<Kernel> {
        Ok(self.module.kernel(name)?)
    }
}

/// A description of the device, for readers of the figures.
#[must_use]
pub fn describe(device: &GpuDevice) -> String {
    let kind = device.runtime().settings().heap_kind;
    format!("cuda ({}, {} heap)", device.gpu().name(), format!("{kind:?}").to_lowercase())
}

/// The kernel for a kind of work, its grid, and the number of operations in a call.
fn shape(batch: &Batch) -> (&'static str, Shape, usize) {
    let size = batch.spread.size;
    let threads = if size <= ONE_THREAD { 1 } else { (size / THREAD_BYTES).next_power_of_two().clamp(32, 1024) as u32 };
    let one = Shape { blocks: 1, threads };
    let spread = |operations: usize| {
        if size > ONE_THREAD {
            return Shape { blocks: BLOCKS.min(operations as u32), threads };
        }
        let operations = operations as u32;
        Shape { blocks: operations.div_ceil(THREADS).clamp(1, BLOCKS), threads: operations.clamp(1, THREADS) }
    };
    let single = Shape { blocks: 1, threads: 1 };
    match batch.work {
        Work::Put => ("put_latency", one, 1),
        Work::Get => ("get_latency", one, 1),
        Work::PutWindows(window) => ("put_windows", spread(window), window),
        Work::GetWindows(window) => ("get_windows", spread(window), window),
        Work::PutStream => ("put_windows", spread(STREAM), STREAM),
        Work::FetchAdd => ("fetch_add", single, 1),
        Work::AddWindows(window) => ("add_windows", spread(window), window),
        Work::SignalWindows(window) => ("signal_windows", spread(window), window),
        Work::Gets(threads) => ("gets", Shape { blocks: 1, threads: threads as u32 }, threads),
        Work::FetchAdds(threads) => ("fetch_adds", Shape { blocks: 1, threads: threads as u32 }, threads),
        Work::SignalPingPong => ("signal_ping_pong", single, 1),
        Work::PutPingPong => ("put_ping_pong", single, 1),
        Work::PutSignalPingPong => ("put_signal_ping_pong", one, 1),
        Work::FencedPuts => ("fenced_puts", one, 1),
        Work::AllToAll => ("all_to_all", Shape { blocks: spread(BLOCKS as usize).blocks, threads: threads.max(32) }, 1),
        Work::Barrier
        | Work::Init
        | Work::Memory
        | Work::Idle
        | Work::Experts(_)
        | Work::Collective(_)
        | Work::Pencils(_)
        | Work::Product(_) => ("barrier", Shape { blocks: 1, threads: 32 }, 1),
    }
}

impl Backend for Cuda<'_, '_> {
    const LAUNCHES: bool = true;

    fn launch(&mut self, batch: &Batch) -> Result<Duration> {
        let (name, shape, window) = shape(batch);
        let at = |offset: usize| self.device.address(self.host.at(offset));
        let word = if batch.work.counts() { area::COUNTER } else { area::PING };
        let spread = batch.spread;
        let arguments = [
            at(spread.dest(0)),
            at(spread.source(0)),
            spread.stride as u64,
            spread.slots as u64,
            spread.size as u64,
            window as u64,
            batch.peer.into(),
            at(word),
            batch.first,
            batch.calls,
            self.out.at().get(),
        ];
        let start = [u64::MAX.to_le_bytes(), [0; 8], [0; 8], [0; 8]].concat();
        self.out.write(0, &start)?;
        // SAFETY: the arguments of all kernels of `cu/perf.cu`; their targets live as long as `self`, which waits here.
        unsafe { self.stream.launch(&self.kernel(name)?, shape, &arguments) }?;
        self.stream.wait(self.time_limit)?;
        self.device.state().check()?;
        let mut words = [0; 24];
        self.out.read(0, &mut words)?;
        let [start, end, wrong] = [0, 8, 16].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&words[at..at + 8]);
            u64::from_le_bytes(word)
        });
        if wrong > 0 {
            return Err(Error::Gpu(format!("{wrong} of {} calls of {name} returned a wrong value", batch.calls)));
        }
        Ok(Duration::from_nanos(end.saturating_sub(start)))
    }

    fn pe(&self) -> u32 {
        self.host.pe()
    }

    fn n_pes(&self) -> u32 {
        self.host.n_pes()
    }

    fn base(&self) -> *mut u8 {
        self.host.base()
    }

    fn start_put(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.host.start_put(pe, dest, source, len)
    }

    fn put_word(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        self.host.put_word(pe, word, value)
    }

    fn start_get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.host.start_get(pe, dest, source, len)
    }

    fn get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.host.get(pe, dest, source, len)
    }

    fn quiet(&mut self) -> Result<()> {
        self.host.quiet()
    }

    fn wait(&mut self, word: usize, value: u64) -> Result<()> {
        self.host.wait(word, value)
    }

    fn barrier(&mut self) -> Result<()> {
        self.host.barrier()
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.host.store(offset, bytes);
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) {
        self.host.load(offset, bytes);
    }

    fn word(&self, word: usize) -> u64 {
        self.host.word(word)
    }

    fn set_word(&mut self, word: usize, value: u64) {
        self.host.set_word(word, value);
    }
}
