//! A communicator: a job of its own, whose PEs are the ranks, with a heap in the GPU's memory, or in host memory that
//! the GPU reaches, through which data passes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use symrail::bootstrap::uid::{self, UniqueId};
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Event, Gpu, Stream};
use symrail::{Runtime, Settings, SymSlice};
use symrail_collectives::Transfer;
use symrail_collectives::gpu::{GpuCommunicator, Memory};
use symrail_core::lock;

use crate::guard::{self, Failure};
use crate::heap_kind;
use crate::held::{Held, POLL};
use crate::operations::ScaledSums;
use crate::split::BOARD_WORDS;
use crate::types::CudaStream;

/// The heap, unless `SYMRAIL_HEAP_SIZE` says otherwise.
const HEAP: usize = 256 << 20;
/// Seconds of every wait, unless `SYMRAIL_TIMEOUT_S` says otherwise: programs let ranks wait much longer for one
/// another than PEs of one job usually do.
const TIMEOUT_S: u64 = 600;

/// What a communicator is made of. Its fields are dropped in this order.
struct Parts {
    collectives: GpuCommunicator<'static>,
    /// For ids of further communicators: see `split`.
    board: SymSlice<'static, u64>,
    owned: Owned,
}

// SAFETY: handles of the driver's that any thread may use, and memory that the parts own; a mutex is around them.
unsafe impl Send for Parts {}

/// This process's rank of a communicator.
pub struct Communicator {
    pub rank: u32,
    pub size: u32,
    pub gpu: i32,
    pub scaled_sums: ScaledSums,
    parts: Held<Parts>,
    /// The first failure that was not a call's own fault.
    failed: Mutex<Option<Failure>>,
}

/// What calls work with.
pub struct Inside<'a> {
    pub collectives: &'a mut GpuCommunicator<'static>,
    pub board: &'a SymSlice<'static, u64>,
    pub runtime: &'a Runtime,
}

impl Communicator {
    /// Joins as rank `rank` of `size`. Collective.
    pub fn join(id: UniqueId, rank: u32, size: u32) -> Result<Communicator, Failure> {
        let mut settings = Settings::from_env().map_err(symrail::Error::from)?;
        if !Settings::is_set("SYMRAIL_HEAP_SIZE") {
            settings.heap_size = HEAP;
        }
        if !Settings::is_set("SYMRAIL_TIMEOUT_S") {
            settings.timeout_s = TIMEOUT_S;
        }
        let nvrtc = Nvrtc::find().map_err(symrail_collectives::Error::from)?;
        let mut bootstrap = uid::open_within(id, rank, size, Duration::from_secs(settings.timeout_s))?;
        let kind = heap_kind::agree(&settings, &mut bootstrap)?;
        if !Settings::is_set("SYMRAIL_HEAP_KIND") {
            settings.heap_kind = kind;
        }
        let runtime = Box::new(Runtime::join(settings, Box::new(bootstrap))?);
        let parts = Held::default();
        let ended = parts.ended();
        runtime.set_interrupt(move || (!ended.load(Ordering::Acquire)).then_some(POLL));
        let gpu = runtime.own_gpu()?;
        let owned = Owned { device: None, runtime: Box::into_raw(runtime) };
        // SAFETY: it stays until `owned` goes, after everything that borrows it.
        let stays: &'static Runtime = unsafe { &*owned.runtime };
        let made = Self::parts(stays, &gpu, nvrtc, owned)?;
        let waits = made.collectives.abort_handle();
        parts.put(made, move || waits.abort());
        Ok(Communicator {
            rank,
            size,
            gpu: gpu.ordinal(),
            scaled_sums: ScaledSums::default(),
            parts,
            failed: Mutex::new(None),
        })
    }

    fn parts(stays: &'static Runtime, gpu: &Arc<Gpu>, nvrtc: Nvrtc, mut owned: Owned) -> Result<Parts, Failure> {
        let board = stays.alloc_slice::<u64>(BOARD_WORDS)?;
        let device = Box::into_raw(Box::new(stays.gpu_device(gpu)?));
        owned.device = Some(device);
        // SAFETY: as for the runtime.
        let mut collectives = GpuCommunicator::new(unsafe { &*device }, nvrtc)?;
        collectives.accept_any_memory()?;
        Ok(Parts { collectives, board, owned })
    }

    /// Does something with the parts, unless they are gone.
    pub fn with<R>(&self, body: impl FnOnce(Inside<'_>) -> Result<R, Failure>) -> Result<R, Failure> {
        let done = self.parts.with(|parts| {
            // SAFETY: it lives as long as the parts.
            let runtime = unsafe { &*parts.owned.runtime };
            body(Inside { collectives: &mut parts.collectives, board: &parts.board, runtime })
        });
        let done = done.unwrap_or_else(|| Err(Failure::usage("the communicator was finalized or aborted")));
        if let Some(failure) = done.as_ref().err().filter(|failure| failure.lasts()) {
            lock(&self.failed).get_or_insert_with(|| failure.clone());
        }
        done
    }

    /// Whether nothing that lasts was found so far.
    pub fn check_failed(&self) -> Result<(), Failure> {
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }

    /// Is of no more use, because a group was begun in part only: waits end, later calls are refused, and the other
    /// ranks are told, by kernels of this one that wait or, where no call is under way, by its host.
    pub fn fail(&self, why: &Failure) {
        lock(&self.failed).get_or_insert_with(|| why.clone().within("a group was begun in part only"));
        self.parts.let_kernels_end();
        if let Some(Err(error)) = self.parts.look(|parts| parts.collectives.give_up()) {
            guard::write(&Failure::from(error).within("others wait until their time is over"));
        }
    }

    /// What has failed so far, which stays. It does not wait for calls that are under way.
    pub fn check(&self) -> Result<(), Failure> {
        let mut failed = lock(&self.failed);
        if failed.is_none() {
            let checked = self.parts.look(|parts| parts.collectives.check().map_err(Failure::from)).unwrap_or(Ok(()));
            *failed = checked.inspect_err(guard::write).err();
        }
        failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until everything that was launched has ended, and leaves. Where proxies carry data it is collective:
    /// nobody leaves whom another one's proxy still writes to. After a failure nobody is waited for.
    pub fn finalize(&self) -> Result<(), Failure> {
        self.parts.finish(|parts| self.leave(&parts)).unwrap_or(Ok(()))
    }

    fn leave(&self, parts: &Parts) -> Result<(), Failure> {
        let all = &parts.collectives;
        let so_far = lock(&self.failed).clone().map_or_else(|| Ok(all.check()?), Err);
        if so_far.is_err() {
            all.abort();
        }
        let ended = all.wait().map_err(Failure::from);
        so_far.and(ended).and_then(|()| Ok(all.check()?))?;
        // What peers have mapped of this rank's memory stays until they have left, too.
        if !all.is_direct() {
            // SAFETY: it lives as long as the parts.
            unsafe { &*parts.owned.runtime }.barrier_all()?;
        }
        Ok(())
    }

    /// Ends all waits of this rank, those of a call or of `finalize` that is under way in another thread, too, and
    /// leaves without the others.
    pub fn abort(&self) -> Result<(), Failure> {
        self.parts.let_waits_end();
        self.parts.finish(|parts| Ok(parts.collectives.wait()?)).unwrap_or(Ok(()))
    }
}

impl Inside<'_> {
    /// The stream of a number of CUDA's runtime, for one call.
    pub fn stream(&self, raw: CudaStream) -> Stream {
        // SAFETY: C's caller vouches for its stream; the communicator's GPU is the one that was current when it was
        // made.
        unsafe { Stream::of_others(self.collectives.gpu(), raw.cast()) }
    }

    /// Sends and receives, of which some were called for on `others`: they are on `stream`, behind what all hold, and
    /// what all get later comes after them.
    pub fn exchange(
        self,
        stream: &Stream,
        others: &[CudaStream],
        transfers: &[Transfer<Memory>],
    ) -> Result<(), Failure> {
        let others: Vec<Stream> = others.iter().map(|&raw| self.stream(raw)).collect();
        for other in &others {
            let before = Event::new(self.collectives.gpu())?;
            before.record(other)?;
            stream.wait_for(&before)?;
        }
        // SAFETY: C's caller vouches for its memory.
        unsafe { self.collectives.exchange(stream, transfers) }?;
        if !others.is_empty() {
            let after = Event::new(self.collectives.gpu())?;
            after.record(stream)?;
            others.iter().try_for_each(|other| other.wait_for(&after))?;
        }
        Ok(())
    }
}

/// What the other parts borrow: it goes after them.
struct Owned {
    device: Option<*mut GpuDevice<'static>>,
    runtime: *mut Runtime,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: both were boxes, and nothing borrows them any more.
        unsafe {
            if let Some(device) = self.device {
                drop(Box::from_raw(device));
            }
            drop(Box::from_raw(self.runtime));
        }
    }
}
