//! A communicator: a separate job, whose PEs are the ranks. Data passes through its heap, in the GPU's memory or in
//! host memory that the GPU can access.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use symrail::bootstrap::uid::{self, UniqueId};
use symrail::gpu::heap_kind::{self, HeapKind};
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Event, Stream};
use symrail::{Runtime, Settings, SymSlice, with_timeout};
use symrail_collectives::gpu::{GpuCommunicator, Memory};
use symrail_collectives::{DataType, Factor, Transfer};
use symrail_core::lock;

use crate::guard::{self, Failure};
use crate::held::{Held, POLL};
use crate::ids::{Ranks, board_words};
use crate::one_sided::{self, OneSided};
use crate::together::{Leaving, Place, Together};
use crate::types::CudaStream;
use crate::window::Windows;

/// The heap's size, unless `SYMRAIL_HEAP_SIZE` is set.
const HEAP: usize = 256 << 20;
/// The time-out of every wait in seconds, unless the setting `SYMRAIL_TIMEOUT_S` is given: programs let ranks wait much
/// longer for one another than PEs of one job usually do.
const TIMEOUT_S: u64 = 600;

/// The ranks of this process, by the ids of their jobs.
static RANKS: Together<[u8; UniqueId::LEN], Leaving<Parts>> = Together::new();

/// The parts of a communicator.
struct Parts {
    collectives: GpuCommunicator,
    one_sided: OneSided,
    /// Words for the ids of further communicators: see `ids`.
    board: Arc<SymSlice<u64>>,
    runtime: Runtime,
    /// `None` once the rank leaves.
    place: Option<Place<[u8; UniqueId::LEN], Leaving<Parts>>>,
}

impl Parts {
    /// Fails if a call has failed so far. Does not wait for calls.
    fn check(&self) -> Result<(), Failure> {
        self.collectives.check()?;
        self.one_sided.check()
    }

    /// Tells the other ranks that this one has failed. Returns at once.
    fn give_up(&self) -> Result<(), Failure> {
        Ok(self.collectives.give_up()?)
    }

    /// Waits until all launches have ended, except for those of graphs.
    fn wait(&self) -> Result<(), Failure> {
        self.collectives.wait()?;
        self.one_sided.wait()
    }
}

/// This process's rank of a communicator.
pub struct Communicator {
    pub rank: u32,
    pub size: u32,
    pub gpu: i32,
    /// The factors of its scaled sums, by number; numbers are reused: see `operations`.
    pub scaled_sums: Mutex<Vec<Option<(Factor, DataType)>>>,
    pub windows: Windows,
    parts: Held<Parts>,
    /// The first failure that makes the communicator unusable.
    failed: Mutex<Option<Failure>>,
    /// Bytes of the GPU's memory that it has.
    gpu_bytes: u64,
    direct: bool,
    state: Mutex<State>,
}

/// Whether calls are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    #[default]
    Active,
    /// Until `ncclCommResume`.
    Suspended,
    /// For ever: only what makes smaller communicators of it is, and what ends it.
    Revoked,
}

/// The parts that calls use.
pub struct Inside<'a> {
    pub collectives: &'a mut GpuCommunicator,
    pub one_sided: &'a mut OneSided,
    pub ranks: Ranks<'a>,
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
        let place = RANKS.enter(id.to_bytes());
        let nvrtc = Nvrtc::find().map_err(symrail_collectives::Error::from)?;
        let mut bootstrap = uid::open_within(id, rank, size, Duration::from_secs(settings.timeout_s))?;
        let kind = heap_kind::agree(&settings, &mut bootstrap)?;
        if !Settings::is_set("SYMRAIL_HEAP_KIND") {
            settings.heap_kind = kind;
        }
        let gpu_bytes = if settings.heap_kind == HeapKind::Device { settings.heap_size as u64 } else { 0 };
        let runtime = Runtime::join(settings, Box::new(bootstrap))?;
        let parts = Held::default();
        let ended = parts.ended();
        runtime.set_interrupt(move || (ended.load(Ordering::Acquire) == 0).then_some(POLL));
        let gpu = runtime.own_gpu()?;
        let words = |number| with_timeout(runtime.timeout(), || runtime.alloc_slice::<u64>(number));
        let (board, signals) = (words(board_words(size))?, words(one_sided::words(size))?);
        let device = with_timeout(runtime.timeout(), || runtime.gpu_device(&gpu))?;
        let mut collectives = GpuCommunicator::new(&device, nvrtc)?;
        collectives.accept_any_memory()?;
        // NCCL does not look for overlaps: programs run whose results they do not read, such as warm-ups.
        collectives.accept_any_overlap();
        collectives.prepare_memory()?;
        let one_sided = OneSided::new(&device, signals, collectives.stop())?;
        let made = Parts { collectives, one_sided, board: Arc::new(board), runtime, place: Some(place) };
        let direct = made.collectives.is_direct();
        let (waits, signals) = (made.collectives.abort_handle(), made.one_sided.end_waits());
        parts.put(made, move || {
            waits.abort();
            signals();
        });
        Ok(Communicator {
            rank,
            size,
            gpu: gpu.ordinal(),
            scaled_sums: Mutex::default(),
            windows: Windows::default(),
            parts,
            failed: Mutex::new(None),
            gpu_bytes,
            direct,
            state: Mutex::default(),
        })
    }

    /// Calls `body` with the parts, unless they are gone.
    pub fn with<R>(&self, body: impl FnOnce(Inside<'_>) -> Result<R, Failure>) -> Result<R, Failure> {
        let done = self.parts.with(|parts| {
            let Parts { collectives, one_sided, board, runtime, .. } = parts;
            body(Inside { collectives, one_sided, ranks: Ranks { runtime, board } })
        });
        let done = done.unwrap_or_else(|| Err(Failure::usage("the communicator was finalized or aborted")));
        if let Some(failure) = done.as_ref().err().filter(|failure| failure.lasts()) {
            lock(&self.failed).get_or_insert_with(|| failure.clone());
        }
        done
    }

    /// Fails if a lasting failure is known, or calls are not accepted now.
    pub fn check_failed(&self) -> Result<(), Failure> {
        match self.state() {
            State::Active => {}
            State::Suspended => return Err(Failure::usage("the communicator is suspended: call ncclCommResume first")),
            State::Revoked => {
                return Err(Failure::usage("the communicator was revoked: shrink or split it, and destroy it"));
            }
        }
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }

    /// Makes the communicator unusable, because a group was begun only in part: waits end, later calls are refused, and
    /// the other ranks are told, by waiting kernels of this one or, if no call is in progress, by its host.
    pub fn fail(&self, why: &Failure) {
        lock(&self.failed).get_or_insert_with(|| why.clone().within("a group was begun in part only"));
        self.parts.let_kernels_end();
        if let Some(Err(error)) = self.parts.look(Parts::give_up) {
            guard::write(&error.within("others wait until their time is over"));
        }
    }

    /// Waits until all puts have ended, except for those of graphs.
    pub fn wait_for_puts(&self) -> Result<(), Failure> {
        self.parts.with(|parts| parts.one_sided.wait_for_sends()).unwrap_or(Ok(()))
    }

    /// Whether all ranks access one another's memory without proxies.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether calls are accepted.
    pub fn state(&self) -> State {
        *lock(&self.state)
    }

    /// Suspends the communicator, or resumes it. Its memory stays.
    pub fn set_suspended(&self, suspended: bool) -> Result<(), Failure> {
        let (from, to) = if suspended { (State::Active, State::Suspended) } else { (State::Suspended, State::Active) };
        let mut state = lock(&self.state);
        if *state != from {
            let so_far = format!("{:?}", *state).to_lowercase();
            return Err(Failure::usage(format!("the communicator is {so_far} already")));
        }
        *state = to;
        Ok(())
    }

    /// Calls `body` with the collectives and the one-sided calls, unless another thread is in a call or they are gone.
    pub fn look<R>(&self, body: impl FnOnce(&GpuCommunicator, &OneSided) -> R) -> Option<R> {
        self.parts.look(|parts| body(&parts.collectives, &parts.one_sided))
    }

    /// Bytes of the GPU's memory that it has.
    pub fn gpu_bytes(&self) -> u64 {
        self.gpu_bytes
    }

    /// Ends the waits of all calls of this rank, and of those under way in other threads, and refuses later ones.
    /// Returns when its kernels have ended.
    pub fn revoke(&self) -> Result<(), Failure> {
        *lock(&self.state) = State::Revoked;
        let ended = self.parts.interrupt(|parts| parts.wait());
        ended.unwrap_or_else(|| Err(Failure::usage("the communicator was finalized or aborted")))
    }

    /// The lasting failure, if any call has failed so far. Does not wait for calls in progress.
    pub fn check(&self) -> Result<(), Failure> {
        if self.state() == State::Revoked {
            return Ok(());
        }
        let mut failed = lock(&self.failed);
        if failed.is_none() {
            let checked = self.parts.look(Parts::check).unwrap_or(Ok(()));
            *failed = checked.inspect_err(guard::write).err();
        }
        failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until all launches have ended, and leaves. If proxies carry data it is collective: no rank leaves while
    /// another rank's proxy may write to it. The last rank of this process waits for the others then, for all ranks of
    /// this process. After a failure it waits for no other rank, and never for one that is lost or has left alone.
    pub fn finalize(&self) -> Result<(), Failure> {
        self.parts.finish(|parts| self.leave(parts)).unwrap_or(Ok(()))
    }

    fn leave(&self, mut parts: Parts) -> Result<(), Failure> {
        if self.state() == State::Revoked {
            return parts.wait();
        }
        let so_far = lock(&self.failed).clone().map_or_else(|| parts.check(), Err);
        if so_far.is_err() {
            self.parts.let_kernels_end();
        }
        let ended = parts.wait();
        so_far.and(ended).and_then(|()| parts.check())?;
        // Peers may have mapped this rank's memory, which stays until they have left, too.
        match parts.place.take().filter(|_| !self.direct) {
            Some(place) => {
                let (runtime, board) = (parts.runtime.clone(), Arc::clone(&parts.board));
                place.leave_with_all(Leaving { runtime, board, ended: self.parts.ended(), keeps: parts })
            }
            None => Ok(()),
        }
    }

    /// Ends all waits of this rank, including those of a call or of `finalize` in another thread, and leaves without
    /// the others.
    pub fn abort(&self) -> Result<(), Failure> {
        self.parts.let_waits_end();
        self.parts.finish(|parts| parts.wait()).unwrap_or(Ok(()))
    }
}

impl Inside<'_> {
    /// A CUDA runtime stream, for one call.
    pub fn stream(&self, raw: CudaStream) -> Stream {
        // SAFETY: C's caller vouches for its stream; the communicator's GPU is the one that was current when it was
        // made.
        unsafe { Stream::of_others(self.collectives.gpu(), std::ptr::with_exposed_provenance_mut(raw)) }
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
