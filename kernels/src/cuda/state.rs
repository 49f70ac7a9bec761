//! The device state: a kernel's data about its PE, as in `include/symrail/state.cuh`, and the memory that it points to.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use symrail_cuda::{DeviceBuffer, DevicePtr, Gpu, Module, PinnedBuffer, Registration, global_of_others};
use symrail_heap::mailbox::{EPOCH_SHIFT, POSITION};
use symrail_proxy::channel::Producer;

use super::error::{Error, Result};
use super::failures::Failures;
use super::heap::{HeapView, Reach};
use super::team::plan_on_device;
use crate::barrier_words::Step;

/// The constant that `state.cuh` declares.
const STATE_SYMBOL: &str = "symrail_state";
/// The version, as `SYMRAIL_STATE_VERSION`, and sizes of that version.
const VERSION: u32 = 3;
const MAX_HEAPS: usize = 2;
const MAX_CHANNELS: usize = 16;
const FIRST_PES: usize = 32;
const HEAP_ATOMICS: u64 = 1;
/// A size above that of any copy.
const NEVER: u64 = u64::MAX;
const NO_CHANNEL: &str = "copies by an engine, and no channel to ask for them";
/// Bytes of the producers' words, which the reply entries' words follow.
const OWN_BYTES: usize = 512;

/// The parts of a device state.
#[derive(Debug, Clone)]
pub struct DeviceParts {
    /// This PE.
    pub me: u32,
    /// The number of PEs.
    pub n_pes: u32,
    /// The heaps, at most two. If both contain an address, the first one counts.
    pub heaps: Vec<HeapView>,
    /// The channels, at most 16, to which no CPU thread pushes.
    pub channels: Vec<Producer>,
    /// [`WORDS`](crate::barrier_words::WORDS) zeroed words in one of the heaps, at the same symmetric offset on every
    /// PE, for barriers.
    pub barrier_words: DevicePtr,
    /// The barrier plan of this PE.
    pub steps: Vec<Step>,
    /// The mailbox from which waiting threads take small writes, if there is one (see
    /// [`mailbox`](symrail_heap::mailbox)).
    pub mailbox: Option<Arc<PinnedBuffer>>,
    /// The time-out of device code.
    pub timeout: Duration,
    /// The size from which on a copy engine copies between PEs' memory of the first heap, on request through a channel;
    /// `None`: never.
    pub engine_from: Option<u64>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawHeap {
    base: u64,
    bytes: u64,
    offset: u64,
    flags: u64,
    peers: u64,
    first_peers: [u64; FIRST_PES],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawChannel {
    ring: u64,
    own: u64,
    slots: u64,
    replies: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawState {
    version: u32,
    me: i32,
    n_pes: i32,
    n_heaps: u32,
    n_channels: u32,
    reserved: u32,
    timeout_ns: u64,
    error: u64,
    barrier_plan: u64,
    barrier_words: u64,
    mailbox: u64,
    mail_word: u64,
    engine_from: u64,
    stopped: u64,
    heaps: [RawHeap; MAX_HEAPS],
    channels: [RawChannel; MAX_CHANNELS],
}

/// The size of the state, as `SYMRAIL_STATE_BYTES`.
pub const STATE_BYTES: usize = size_of::<RawState>();

/// A device's state, which lives as long as kernels use it.
pub struct DeviceState {
    gpu: Arc<Gpu>,
    raw: RawState,
    failures: Arc<Failures>,
    reach: Reach,
    // The memory that `raw` points to.
    _mailbox: Option<Arc<PinnedBuffer>>,
    _own: Vec<DeviceBuffer>,
    _rings: Vec<Registration>,
}

impl std::fmt::Debug for DeviceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceState").field("me", &self.raw.me).finish_non_exhaustive()
    }
}

impl DeviceState {
    /// Creates a state from its parts: registers the channels with the GPU and allocates words for them there.
    ///
    /// # Safety
    /// The heaps are mapped in the GPU's address space, with as many bytes on every PE. They and the channels' memory
    /// stay as long as kernels run that were attached to the state. No other producer pushes to the channels.
    ///
    /// # Errors
    /// Parts that contradict each other, or the error of the driver.
    pub unsafe fn new(gpu: &Arc<Gpu>, parts: DeviceParts) -> Result<Self> {
        examine(&parts)?;
        let failures = Arc::new(Failures::new(gpu, parts.me, parts.channels.clone())?);
        let mut own = Vec::new();
        let mut rings = Vec::new();
        let plan = plan_on_device(gpu, &parts.steps)?;
        // Readers continue to count where those of an earlier device stopped, well above any epoch that those may have
        // reached.
        let position = parts.mailbox.as_ref().map_or(0, |mailbox| (mailbox.word(0) + (16 << EPOCH_SHIFT)) & POSITION);
        let mail_word = gpu.alloc(8)?;
        mail_word.write(0, &position.to_le_bytes())?;
        let none = RawHeap { base: 0, bytes: 0, offset: 0, flags: 0, peers: 0, first_peers: [0; FIRST_PES] };
        let mut raw = RawState {
            version: VERSION,
            me: parts.me as i32,
            n_pes: parts.n_pes as i32,
            n_heaps: parts.heaps.len() as u32,
            n_channels: parts.channels.len() as u32,
            reserved: 0,
            timeout_ns: nanoseconds(parts.timeout),
            error: failures.record(),
            barrier_plan: plan.at().get(),
            barrier_words: parts.barrier_words.get(),
            mailbox: parts.mailbox.as_ref().map_or(0, |mailbox| mailbox.device().get()),
            mail_word: mail_word.at().get(),
            engine_from: parts.engine_from.unwrap_or(NEVER),
            stopped: failures.stopped(),
            heaps: [none; MAX_HEAPS],
            channels: [RawChannel { ring: 0, own: 0, slots: 0, replies: 0 }; MAX_CHANNELS],
        };
        own.extend([plan, mail_word]);
        for (heap, view) in raw.heaps.iter_mut().zip(&parts.heaps) {
            let table: Vec<u8> = view.peers.iter().flat_map(|base| base.get().to_le_bytes()).collect();
            let peers = gpu.alloc(table.len())?;
            peers.write(0, &table)?;
            let flags = if view.atomics { HEAP_ATOMICS } else { 0 };
            let RawHeap { first_peers, .. } = heap;
            first_peers.iter_mut().zip(&view.peers).for_each(|(first, base)| *first = base.get());
            (heap.base, heap.bytes, heap.offset) = (view.base.get(), view.bytes, view.offset);
            (heap.flags, heap.peers) = (flags, peers.at().get());
            own.push(peers);
        }
        for (channel, producer) in raw.channels.iter_mut().zip(&parts.channels) {
            let memory = producer.memory();
            // SAFETY: the channel's memory stays, as the caller promised, and is only accessed by atomics.
            let ring = unsafe { Registration::new(gpu, memory.base(), memory.bytes()) }?;
            let words = gpu.alloc(OWN_BYTES + memory.replies() * 4)?;
            *channel = RawChannel {
                ring: ring.device().get(),
                own: words.at().get(),
                slots: memory.slots() as u64,
                replies: memory.replies() as u64,
            };
            rings.push(ring);
            own.push(words);
        }
        let reach = parts.heaps.first().map_or_else(Reach::default, Reach::of);
        let (gpu, mailbox) = (Arc::clone(gpu), parts.mailbox);
        Ok(Self { gpu, raw, failures, reach, _mailbox: mailbox, _own: own, _rings: rings })
    }

    /// Copies the state to a program, for its kernels.
    ///
    /// # Errors
    /// The program does not include the device API, or another version of it.
    pub fn attach(&self, module: &Module) -> Result<()> {
        // SAFETY: the module's own state.
        unsafe { attach(module.gpu(), state_of(module)?, &self.raw) }
    }

    /// As [`DeviceState::attach`], for a program that CUDA's runtime has loaded.
    ///
    /// # Safety
    /// `at` is the device address of the program's `symrail_state`, which has `bytes` bytes.
    ///
    /// # Errors
    /// The program was compiled with another version of the device API, or the error of the driver.
    pub unsafe fn attach_at(&self, at: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { attach(&self.gpu, (at, bytes), &self.raw) }
    }

    /// As [`DeviceState::attach`], for a module that other code has loaded with the driver.
    ///
    /// # Safety
    /// `module` is the `CUmodule` of a loaded module of this GPU.
    ///
    /// # Errors
    /// As for [`DeviceState::attach`].
    pub unsafe fn attach_to(&self, module: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        let found = unsafe { global_of_others(&self.gpu, module, STATE_SYMBOL) }?;
        // SAFETY: the module's own state.
        unsafe { attach(&self.gpu, found.ok_or(Error::NoState { name: STATE_SYMBOL })?, &self.raw) }
    }

    /// As [`DeviceState::attach`], with another size from which on a copy engine copies ([`DeviceParts::engine_from`]).
    ///
    /// # Errors
    /// As for [`DeviceState::attach`], or there is no channel for copy requests.
    pub fn attach_with(&self, module: &Module, engine_from: Option<u64>) -> Result<()> {
        if engine_from.is_some() && self.raw.n_channels == 0 {
            return Err(Error::Parts(NO_CHANNEL.into()));
        }
        let raw = RawState { engine_from: engine_from.unwrap_or(NEVER), ..self.raw };
        // SAFETY: the module's own state.
        unsafe { attach(module.gpu(), state_of(module)?, &raw) }
    }

    /// As [`DeviceState::attach`], for a program whose kernels wait for `timeout`, and whose failures concern nobody
    /// else: they are not among those of [`DeviceState::check`]. The result lives as long as the kernels run.
    ///
    /// # Errors
    /// As for [`DeviceState::attach`].
    pub fn attach_apart(&self, module: &Module, timeout: Duration) -> Result<Failures> {
        let failures = self.failures.apart(&self.gpu)?;
        let (error, stopped) = (failures.record(), failures.stopped());
        let raw = RawState { timeout_ns: nanoseconds(timeout), error, stopped, ..self.raw };
        // SAFETY: the module's own state.
        unsafe { attach(module.gpu(), state_of(module)?, &raw) }?;
        Ok(failures)
    }

    /// The size from which on a copy engine copies for kernels; `None`: never.
    #[must_use]
    pub fn engine_from(&self) -> Option<u64> {
        Some(self.raw.engine_from).filter(|&bytes| bytes != NEVER)
    }

    /// The number of kernels' requests that the proxy has completed.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.failures.completed()
    }

    /// The part of the first heap that kernels can access by themselves.
    #[must_use]
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The failures of kernels and the proxy.
    pub(super) fn failures(&self) -> &Arc<Failures> {
        &self.failures
    }

    /// Returns errors of kernels and the proxy since the last call. It is called after a kernel has ended. What was
    /// enqueued by [`OnStream`](super::OnStream) before it returns one does nothing behind the failure.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<()> {
        self.failures.check()
    }
}

/// A limit for kernels, whose sum with the GPU's clock does not overflow.
fn nanoseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2)
}

/// The address and the size of a module's state.
fn state_of(module: &Module) -> Result<(DevicePtr, usize)> {
    module.global(STATE_SYMBOL)?.ok_or(Error::NoState { name: STATE_SYMBOL })
}

/// # Safety
/// The address is that of a program's `symrail_state` of this size.
unsafe fn attach(gpu: &Gpu, (at, bytes): (DevicePtr, usize), raw: &RawState) -> Result<()> {
    if bytes != STATE_BYTES {
        return Err(Error::Parts(format!("a state of {bytes} bytes in a program, and of {STATE_BYTES} here")));
    }
    // SAFETY: a plain struct of numbers without padding, as its size in CUDA shows.
    let raw = unsafe { std::slice::from_raw_parts((&raw const *raw).cast::<u8>(), STATE_BYTES) };
    // SAFETY: the caller's promise.
    Ok(unsafe { gpu.write(at, raw) }?)
}

fn examine(parts: &DeviceParts) -> Result<()> {
    let wrong = if parts.me >= parts.n_pes || i32::try_from(parts.n_pes).is_err() {
        format!("PE {} of {}", parts.me, parts.n_pes)
    } else if parts.heaps.is_empty() || parts.heaps.len() > MAX_HEAPS {
        format!("{} heaps: give 1 to {MAX_HEAPS}", parts.heaps.len())
    } else if parts.channels.len() > MAX_CHANNELS {
        format!("{} channels: set SYMRAIL_PROXY_CHANNELS to at most {MAX_CHANNELS}", parts.channels.len())
    } else if parts.engine_from.is_some() && parts.channels.is_empty() {
        NO_CHANNEL.into()
    } else if let Some(heap) = parts.heaps.iter().find(|h| h.peers.len() != parts.n_pes as usize) {
        format!("{} addresses of {} PEs' heaps", heap.peers.len(), parts.n_pes)
    } else if parts.heaps.iter().any(|h| h.bytes < 64) {
        "a heap of less than 64 bytes".into()
    } else if parts.heaps.iter().any(|h| h.peers.iter().chain([&h.base]).any(|at| at.get() % 64 != 0)) {
        "a heap that does not start at a multiple of 64".into()
    } else {
        return Ok(());
    };
    Err(Error::Parts(wrong))
}

#[cfg(test)]
mod tests {
    use super::STATE_BYTES;

    #[test]
    fn the_mailbox_is_where_the_header_says() {
        use symrail_heap::mailbox as m;
        let header = include_str!("../../include/symrail/mail.cuh");
        for (name, value) in [
            ("ENTRIES_AT", format!("{}ull", m::ENTRIES_AT)),
            ("ENTRIES", format!("{}ull", m::ENTRIES)),
            ("HALF_BYTES", format!("{}ull", m::HALF_BYTES)),
            ("EPOCH_SHIFT", m::EPOCH_SHIFT.to_string()),
            ("SIZE_SHIFT", m::SIZE_SHIFT.to_string()),
            ("PRESENT", format!("(1ull << {})", m::PRESENT.trailing_zeros())),
            ("POSITION", format!("((1ull << {}) - 1)", m::POSITION.trailing_ones())),
        ] {
            let line = format!("#define SYMRAIL_MAIL_{name} {value}\n");
            assert!(header.contains(&line), "{line}");
        }
    }

    #[test]
    fn the_state_has_the_size_that_the_header_says() {
        let line = format!("#define SYMRAIL_STATE_BYTES {STATE_BYTES}u\n");
        assert!(include_str!("../../include/symrail/state.cuh").contains(&line), "{line}");
    }
}
