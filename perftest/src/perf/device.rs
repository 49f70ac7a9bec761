//! The CPU device backend: a thread that sends requests to the proxy through a channel, as a thread of a GPU kernel
//! does.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use symrail::Runtime;
use symrail_kernels::cpu::{Cmp, DeviceError, DeviceView, Grid, SignalOp, SignalUpdate, Symmetric, Thread};

use super::backend::{Backend, Batch, area};
use super::catalog::Work;
use super::error::{Error, Result};

/// Runs `kernel` on one thread of the CPU device, with an area at `base`, which is in the symmetric heap.
pub fn launch(
    runtime: &Arc<Runtime>,
    base: *mut u8,
    bytes: usize,
    kernel: impl FnMut(&mut Device<'_>) -> Result<()> + Send,
) -> Result<()> {
    let offset = runtime.symmetric_offset(base, bytes)?;
    let view = view(runtime)?;
    let area = view.symmetric::<u8>(offset, bytes as u64)?;
    let words = view.symmetric::<u64>(offset, bytes as u64 / 8)?;
    let address = base.expose_provenance();
    let kernel = Mutex::new(kernel);
    let grid = Grid { blocks: 1, threads_per_block: 1 };
    let done = grid.launch(&view, |thread| {
        let base = std::ptr::with_exposed_provenance_mut(address);
        let mut device = Device { view: &view, thread, base, area, words };
        let mut kernel = symrail_core::lock(&kernel);
        kernel(&mut device).map_err(|error| Failure(error.into()))
    });
    match done {
        Ok(_) => Ok(()),
        Err(symrail_kernels::cpu::LaunchError::Kernel { error: Failure(error), .. }) => Err(*error),
        Err(error) => Err(Error::Device(error.to_string())),
    }
}

/// An error of this crate in the form that the device's launch accepts: small.
#[derive(Debug)]
struct Failure(Box<Error>);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        Failure(Box::new(error.into()))
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Error {
        Error::Device(error.to_string())
    }
}

fn view(runtime: &Arc<Runtime>) -> Result<DeviceView> {
    let driver = Arc::clone(runtime);
    let parts = runtime.cpu_device_parts(Arc::new(move || driver.progress()));
    // SAFETY: the bases are those of the runtime's mappings, which live as long as the runtime, and the view holds it.
    Ok(unsafe { DeviceView::new(parts) }?)
}

/// A thread of the device with an area in the symmetric heap.
pub struct Device<'a> {
    view: &'a DeviceView,
    thread: &'a Thread<'a>,
    base: *mut u8,
    area: Symmetric<u8>,
    words: Symmetric<u64>,
}

impl Device<'_> {
    #[inline]
    fn bytes(&self, offset: usize, len: usize) -> Result<Symmetric<u8>> {
        Ok(self.area.part(offset as u64, len as u64)?)
    }

    #[inline]
    fn one(&self, word: usize) -> Result<Symmetric<u64>> {
        Ok(self.words.at(word as u64 / 8)?)
    }
}

impl Backend for Device<'_> {
    fn launch(&mut self, batch: &Batch) -> Result<Duration> {
        let (Work::Gets(threads) | Work::FetchAdds(threads)) = batch.work else {
            return Err(Error::Arguments("what carries this test's data has no kernels".into()));
        };
        let Batch { spread, peer, .. } = *batch;
        let grid = Grid { blocks: 1, threads_per_block: threads };
        let each = |thread: &Thread<'_>| {
            let slot = thread.thread_id();
            let from = self.area.part(spread.source(slot) as u64, spread.size as u64)?;
            let to = self.area.part(spread.dest(slot) as u64, spread.size as u64)?;
            let (word, result) =
                (self.words.at(spread.source(slot) as u64 / 8)?, self.words.at(spread.dest(slot) as u64 / 8)?);
            let counter = self.words.at(area::COUNTER as u64 / 8)?;
            thread.sync_block()?;
            let begun = Instant::now();
            for _ in 0..batch.calls {
                match batch.work {
                    Work::FetchAdds(_) => drop(thread.atomic_fetch_add(counter, 1, peer)?),
                    _ if spread.size == size_of::<u64>() => thread.store_local(result, &[thread.g(word, peer)?])?,
                    _ => thread.get(to, from, peer)?,
                }
            }
            Ok::<_, DeviceError>((begun, Instant::now()))
        };
        let times = grid.launch(self.view, each).map_err(|error| Error::Device(error.to_string()))?;
        let begun = times.iter().map(|(begun, _)| begun).min();
        let ended = times.iter().map(|(_, ended)| ended).max();
        Ok(begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| *ended - *begun))
    }

    fn pe(&self) -> u32 {
        self.thread.my_pe()
    }

    fn n_pes(&self) -> u32 {
        self.thread.n_pes()
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline]
    fn start_put(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        Ok(self.thread.put_nbi(self.bytes(dest, len)?, self.bytes(source, len)?, pe)?)
    }

    #[inline]
    fn put_word(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        Ok(self.thread.p(self.one(word)?, value, pe)?)
    }

    #[inline]
    fn start_get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        Ok(self.thread.get_nbi(self.bytes(dest, len)?, self.bytes(source, len)?, pe)?)
    }

    #[inline]
    fn get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        Ok(self.thread.get(self.bytes(dest, len)?, self.bytes(source, len)?, pe)?)
    }

    #[inline]
    fn quiet(&mut self) -> Result<()> {
        Ok(self.thread.quiet()?)
    }

    #[inline]
    fn fence(&mut self) -> Result<()> {
        Ok(self.thread.fence()?)
    }

    #[inline]
    fn fetch_add(&mut self, pe: u32, word: usize, value: u64) -> Result<u64> {
        Ok(self.thread.atomic_fetch_add(self.one(word)?, value, pe)?)
    }

    #[inline]
    fn start_add(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        Ok(self.thread.atomic_add(self.one(word)?, value, pe)?)
    }

    #[inline]
    fn start_signal(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        Ok(self.thread.signal_op(self.one(word)?, value, SignalOp::Add, pe)?)
    }

    #[inline]
    fn signal(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        Ok(self.thread.signal_op(self.one(word)?, value, SignalOp::Set, pe)?)
    }

    #[inline]
    fn put_signal(
        &mut self,
        pe: u32,
        (dest, source, len): (usize, usize, usize),
        word: usize,
        value: u64,
    ) -> Result<()> {
        let (dest, source) = (self.bytes(dest, len)?, self.bytes(source, len)?);
        Ok(self.thread.put_signal_nbi(dest, source, SignalUpdate::set(self.one(word)?, value), pe)?)
    }

    #[inline]
    fn wait(&mut self, word: usize, value: u64) -> Result<()> {
        self.thread.wait_until(self.one(word)?, Cmp::Ge, value)?;
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        Ok(self.thread.barrier_all()?)
    }
}
