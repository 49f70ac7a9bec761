//! A communicator: a separate job, whose PEs are the ranks. Data passes through its heap, in the GPU's memory or in
//! host memory that the GPU can access.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use symrail::bootstrap::uid::{self, UniqueId};
use symrail::gpu::{GpuDevice, heap_kind};
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Event, Gpu, Stream};
use symrail::{Runtime, Settings, SymSlice};
use symrail_collectives::gpu::{GpuCommunicator, Memory};
use symrail_collectives::{DataType, Factor, Transfer};
use symrail_core::lock;

use crate::guard::{self, Failure};
use crate::held::{Held, POLL};
use crate::types::CudaStream;

/// The heap's size, unless `SYMRAIL_HEAP_SIZE` is set.
const HEAP: usize = 256 << 20;
/// The time-out of every wait in seconds, unless the setting `SYMRAIL_TIMEOUT_S` is given: programs let ranks wait much
/// longer for one another than PEs of one job usually do.
const TIMEOUT_S: u64 = 600;

/// Words of an id of a job.
pub const ID_WORDS: usize = UniqueId::LEN / 8;
/// Words of the board: an id, and a word that marks its arrival.
const BOARD_WORDS: usize = ID_WORDS + 1;

/// The parts of a communicator. They are dropped in this order.
struct Parts {
    collectives: GpuCommunicator<'static>,
    /// Words for the ids of further communicators: see `split`.
    board: SymSlice<'static, u64>,
    owned: Owned,
}

// SAFETY: handles of the driver that any thread may use, and memory that the parts own; a mutex guards them.
unsafe impl Send for Parts {}

/// This process's rank of a communicator.
pub struct Communicator {
    pub rank: u32,
    pub size: u32,
    pub gpu: i32,
    /// The factors of its scaled sums, by number; numbers are reused: see `operations`.
    pub scaled_sums: Mutex<Vec<Option<(Factor, DataType)>>>,
    parts: Held<Parts>,
    /// The first failure that makes the communicator unusable.
    failed: Mutex<Option<Failure>>,
}

/// The parts that calls use.
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
        // SAFETY: it lives until `owned` is dropped, after everything that borrows it.
        let stays: &'static Runtime = unsafe { &*owned.runtime };
        let made = Self::parts(stays, &gpu, nvrtc, owned)?;
        let waits = made.collectives.abort_handle();
        parts.put(made, move || waits.abort());
        Ok(Communicator {
            rank,
            size,
            gpu: gpu.ordinal(),
            scaled_sums: Mutex::default(),
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

    /// Calls `body` with the parts, unless they are gone.
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

    /// Fails if a lasting failure is known.
    pub fn check_failed(&self) -> Result<(), Failure> {
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }

    /// Makes the communicator unusable, because a group was begun only in part: waits end, later calls are refused, and
    /// the other ranks are told, by waiting kernels of this one or, if no call is in progress, by its host.
    pub fn fail(&self, why: &Failure) {
        lock(&self.failed).get_or_insert_with(|| why.clone().within("a group was begun in part only"));
        self.parts.let_kernels_end();
        if let Some(Err(error)) = self.parts.look(|parts| parts.collectives.give_up()) {
            guard::write(&Failure::from(error).within("others wait until their time is over"));
        }
    }

    /// The lasting failure, if any call has failed so far. Does not wait for calls in progress.
    pub fn check(&self) -> Result<(), Failure> {
        let mut failed = lock(&self.failed);
        if failed.is_none() {
            let checked = self.parts.look(|parts| parts.collectives.check().map_err(Failure::from)).unwrap_or(Ok(()));
            *failed = checked.inspect_err(guard::write).err();
        }
        failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until all launches have ended, and leaves. If proxies carry data it is collective: no rank leaves while
    /// another rank's proxy may write to it. After a failure it waits for no other rank.
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
        // Peers may have mapped this rank's memory, which stays until they have left, too.
        if !all.is_direct() {
            // SAFETY: it lives as long as the parts.
            unsafe { &*parts.owned.runtime }.barrier_all()?;
        }
        Ok(())
    }

    /// Ends all waits of this rank, including those of a call or of `finalize` in another thread, and leaves without
    /// the others.
    pub fn abort(&self) -> Result<(), Failure> {
        self.parts.let_waits_end();
        self.parts.finish(|parts| Ok(parts.collectives.wait()?)).unwrap_or(Ok(()))
    }
}

impl Inside<'_> {
    /// A CUDA runtime stream, for one call.
    pub fn stream(&self, raw: CudaStream) -> Stream {
        // SAFETY: C's caller vouches for its stream; the communicator's GPU is the one that was current when it was
        // made.
        unsafe { Stream::of_others(self.collectives.gpu(), raw.cast()) }
    }

    /// Performs sends and receives of a group, some of which were issued on `others`. They run on `stream`, after the
    /// earlier work of all these streams and before their later work.
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

/// Parts that the other parts borrow: dropped after them.
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
