//! The transport for runtimes that have a symmetric heap of their own. A session has one PE's rails, with the engine
//! and the target agent behind them, over memory that the runtime registers in pieces.
//!
//! | module | concept |
//! |---|---|
//! | this | opening, connecting, registering; progress |
//! | `operation` | put, get, AMOs, put_signal, fence, quiet, and a caller's wait |
//! | `request` | operations and lists of them, whose ends are tested |
//! | `peers` | peers that are added and removed while others communicate |
//! | [`rendezvous`] | connecting two sessions by a handle of 128 bytes |
//! | `links` | how many links each peer has, and those whose other ends are still open |
//! | [`memory`] | the handle by which peers address registered memory |
//! | `registered` | owners of registered memory, and of what is known of peers' |
//! | `connection_info` | the connection info that PEs exchange, and the settings that must agree |
//!
//! The C interface (`transport/include/symrail_transport.h`) and NVSHMEM's remote transport (`nvshmem/`) are interfaces
//! to it.
//!
//! # How memory is named
//! Each PE gives each registration offsets of its own, and never the same ones twice. So the target refuses a stale
//! handle, instead of accessing other memory (see [`Regions`](symrail_transport::region::Regions), memory that is laid
//! out *separately*). A peer learns a handle when it first uses it.
//!
//! # Memory that neither rails nor the CPU can access
//! Such memory, for example a GPU's, needs a [`CopyEngine`]. [`Session::register_staged`] registers it, and operations
//! on it are [staged](crate::stage): the same operations with the same handles. Either all PEs have a copy engine, or
//! none.
//!
//! # Progress
//! Any thread may call. A call drives the engine for as long as it waits. Between such calls, either the program calls
//! [`Session::progress`] repeatedly, or the session has a thread of its own ([`Progress::Thread`]). A PE that does
//! neither does not serve its peers' AMOs and signals.

mod connection_info;
pub mod kept;
mod links;
pub mod memory;
mod operation;
mod peers;
mod registered;
pub mod rendezvous;
mod request;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use symrail_heap::CopyEngine;
use symrail_heap::export::Exported;
use symrail_transport::backend::{self, Choice, HostPes};
use symrail_transport::endpoint::command::{AtomicPriority, Priority};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::{GpuDirect, ProxyPoll, Settings};
use symrail_transport::ofi::variables;
use symrail_transport::rail::{Rail, RailCaps};
use symrail_transport::region::Segment;
use symrail_transport::{Error, Pe, Result};

use crate::stage::{STAGING_BUFFER_BYTES, STAGING_BUFFER_OFFSET};
use crate::{Driver, Engine, Options, Proxy};
use connection_info::ConnectionInfo;
use links::Links;
use memory::{MOST_RAILS, Memory};
pub use operation::{Context, Place};
pub use peers::Identity;
use peers::Peers;
pub use registered::{Registered, Words};
use request::Requests;
pub use request::{Part, Request};

/// Registrations begin at multiples of this in their PE's offsets, as far as their addresses allow, with a gap of at
/// least this size between two of them.
const GRAIN: u64 = 4096;

/// What polls while no call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The session's own thread, which sleeps when nothing happens. Callers that wait or test take its place.
    Thread,
    /// The session's own thread. Callers that test leave all work to it while it polls, so that several sessions'
    /// threads work at the same time for one caller. Each such session needs a core of its own while there is traffic.
    Delegated,
    /// The caller of [`Session::progress`].
    Caller,
}

/// One PE's transport. See the module.
pub struct Session {
    me: Pe,
    n_pes: u32,
    driver: Arc<Driver>,
    _proxy: Option<Proxy>,
    /// Callers leave the work to the session's thread ([`Progress::Delegated`]).
    delegated: bool,
    /// The number of the engine's polls when a caller last looked.
    polls_seen: AtomicU32,
    connection_info: ConnectionInfo,
    rails: Vec<RailCaps>,
    reasons: Vec<String>,
    copy_limit: usize,
    message_limit: u64,
    priority: AtomicPriority,
    time_limit: Duration,
    gpudirect: GpuDirect,
    next: Mutex<Next>,
    identity: Identity,
    peers: Mutex<Peers>,
    links: Arc<Links>,
    /// The owners of records of peers' memory, by the peer and the offset.
    owners: Mutex<HashMap<(Pe, u64), u32>>,
    requests: Requests,
}

/// The most bytes of a registration: those of an address space.
const LONGEST: u64 = 1 << 57;

/// A registration of a local buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalBuffer {
    base: usize,
    id: u32,
}

impl LocalBuffer {
    /// Its address and number, for [`LocalBuffer::from_parts`].
    #[must_use]
    pub fn into_parts(self) -> (usize, u32) {
        (self.base, self.id)
    }

    /// The registration with this address and number.
    #[must_use]
    pub fn from_parts(base: usize, id: u32) -> LocalBuffer {
        LocalBuffer { base, id }
    }
}

/// Offsets below have numbers by which peers count arrivals: see [`Session::counts_in`].
const COUNTED_END: u64 = (size_of::<u64>() as u64) << 32;

/// The id and the offset of the next registration. Words in which peers count have offsets of their own, which other
/// memory does not use up.
struct Next {
    id: u32,
    offset: u64,
    counted: u64,
    /// It was said that words in which peers count have no offsets left.
    told: bool,
}

impl Session {
    /// Opens the rails of PE `me` of `n_pes`.
    ///
    /// `host` has the PEs of this host, which share its NICs; [`HostPes::alone`] if they are not known. `copy_engine`
    /// is for memory that only it can access; its staging buffer has [`STAGING_BUFFER_BYTES`].
    ///
    /// # Errors
    /// The error of choosing or opening rails; a PE outside of the job.
    pub fn open(
        me: Pe,
        n_pes: u32,
        host: &HostPes,
        settings: &Settings,
        progress: Progress,
        copy_engine: Option<Box<dyn CopyEngine>>,
    ) -> Result<Session> {
        if me >= n_pes {
            return Err(Error::NoSuchPe { pe: me.into(), last: n_pes.saturating_sub(1) });
        }
        let choice = backend::choose(settings, host)?;
        choice.log(host);
        let rails = choice.open(Role::Proxy, n_pes, settings)?;
        Session::open_over(&choice, (me, n_pes), rails, settings, progress, copy_engine)
    }

    /// Opens a session over the chosen rails.
    fn open_over(
        choice: &Choice,
        (me, n_pes): (Pe, u32),
        mut rails: Vec<Box<dyn Rail>>,
        settings: &Settings,
        progress: Progress,
        copy_engine: Option<Box<dyn CopyEngine>>,
    ) -> Result<Session> {
        let native_amo = choice.native_amo(settings);
        rails.truncate(MOST_RAILS);
        let endpoint = Endpoint::new(Role::Proxy, me, n_pes, rails, Policy::new(settings, native_amo))?;
        let rails = endpoint.caps().to_vec();
        let mut connection_info = ConnectionInfo {
            version: ConnectionInfo::VERSION,
            native_amo,
            fabric: rails.first().map_or_else(String::new, |c| c.provider.clone()),
            rxm_buffers: variables::in_force(variables::RXM_BUFFERS),
            ib_mode: choice.ib_mode.as_ref().map_or_else(String::new, |(mode, _)| mode.to_string()),
            rails: endpoint.addresses(),
            window: Vec::new(),
        };
        let (copy_limit, message_limit) = (endpoint.copy_limit(), endpoint.message_limit());
        let mut engine = Engine::new(endpoint);
        if let Some(copy_engine) = copy_engine {
            connection_info.window = engine.stage(copy_engine)?;
        }
        let system =
            |e: std::io::Error| Error::System { what: "starting the transport's thread", reason: e.to_string() };
        // A thread that never sleeps leaves nothing to callers.
        let spin = settings.proxy_poll == ProxyPoll::Spin;
        let delegated = progress == Progress::Delegated || (spin && progress == Progress::Thread);
        let (driver, proxy) = match progress {
            Progress::Caller => (Arc::new(Driver::new(engine).map_err(system)?), None),
            Progress::Thread | Progress::Delegated => {
                let core = choice.proxy_cores.first().copied().flatten().filter(|_| !delegated);
                let options = Options { spin, core, spare_core: delegated || choice.spare_core(1), number: 0 };
                let proxy = Proxy::start(engine, options).map_err(system)?;
                (Arc::clone(proxy.driver()), Some(proxy))
            }
        };
        let requests = Requests::default();
        driver.take_ends({
            let requests = requests.clone();
            move |finished| requests.note_ends(finished)
        });
        Ok(Session {
            me,
            n_pes,
            driver,
            _proxy: proxy,
            delegated,
            polls_seen: AtomicU32::new(0),
            connection_info,
            rails,
            reasons: choice.reasons.iter().chain(&choice.left_out).cloned().collect(),
            identity: Session::new_identity()?,
            peers: Mutex::default(),
            links: Arc::default(),
            owners: Mutex::default(),
            requests,
            copy_limit,
            message_limit,
            priority: AtomicPriority::default(),
            // Operations end by themselves after TIMEOUT_S of polling. A wait of this length is a time-out of last
            // resort.
            time_limit: Duration::from_secs(settings.timeout_s.saturating_mul(2).saturating_add(5)),
            gpudirect: settings.gpudirect,
            next: Mutex::new(Next { id: 1, offset: COUNTED_END, counted: GRAIN, told: false }),
        })
    }

    /// Sets the priority of later operations; at first they are urgent. The small operations of a bulk session remain
    /// urgent.
    pub fn set_priority(&self, priority: Priority) {
        self.priority.store(priority);
    }

    /// This PE.
    #[must_use]
    pub fn me(&self) -> Pe {
        self.me
    }

    /// The number of PEs in the job.
    #[must_use]
    pub fn n_pes(&self) -> u32 {
        self.n_pes
    }

    /// The properties of the rails.
    #[must_use]
    pub fn rails(&self) -> &[RailCaps] {
        &self.rails
    }

    /// Why these rails were chosen, one sentence each.
    #[must_use]
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// The most bytes of a put whose source the caller may reuse at once.
    #[must_use]
    pub fn copy_limit(&self) -> usize {
        self.copy_limit
    }

    /// The most bytes of data that travel in one message with their signal.
    #[must_use]
    pub fn message_limit(&self) -> u64 {
        self.message_limit
    }

    /// The data that all PEs need for [`Session::connect`]: some hundred bytes.
    #[must_use]
    pub fn connection_info(&self) -> Vec<u8> {
        self.connection_info.encode()
    }

    /// Connects to all PEs. `connection_infos` has one entry per PE in their order, including this one. It is called
    /// once, before the first operation.
    ///
    /// # Errors
    /// A malformed connection info, PEs that do not agree, or the error of the backend about an address.
    pub fn connect(&self, connection_infos: &[Vec<u8>]) -> Result<()> {
        let connection_infos = ConnectionInfo::decode_all(connection_infos, self.n_pes)?;
        let mut engine = self.driver.engine();
        for (connection_info, pe) in connection_infos.into_iter().zip(0..) {
            engine.endpoint().connect(pe, &Addresses { host: Vec::new(), proxy: connection_info.rails })?;
            if !connection_info.window.is_empty() {
                engine.endpoint().learn_separate(
                    pe,
                    STAGING_BUFFER_OFFSET,
                    STAGING_BUFFER_BYTES as u64,
                    &connection_info.window,
                )?;
            }
        }
        Ok(())
    }

    /// Registers `len` bytes at `base` for operations of all PEs, and as a local buffer. Peers need the handle.
    ///
    /// # Safety
    /// The memory stays mapped until [`Session::deregister`], or until the session is dropped. Other code uses it only
    /// in ways that allow for concurrent changes.
    ///
    /// # Errors
    /// The error of the provider.
    pub unsafe fn register(&self, base: *mut u8, len: usize) -> Result<Memory> {
        let place = self.take_next(base, len)?;
        // SAFETY: the caller's promise.
        unsafe { self.register_as(place, base, len) }
    }

    /// As [`Session::register`], with this id at this offset.
    unsafe fn register_as(&self, (id, offset): (u32, u64), base: *mut u8, len: usize) -> Result<Memory> {
        // SAFETY: the caller's promise.
        let segment = unsafe { Segment::new(id, offset, base, len as u64) };
        let mut engine = self.driver.engine();
        // SAFETY: the caller's promise.
        let connection_info = unsafe { engine.register(segment) }?;
        let memory = Memory::new(self.me, segment, &connection_info);
        match memory.and_then(|memory| {
            engine.endpoint().learn_separate(self.me, offset, segment.bytes(), &connection_info).map(|()| memory)
        }) {
            Ok(memory) => Ok(memory),
            Err(error) => {
                engine.deregister(id);
                Err(error)
            }
        }
    }

    /// As [`Session::register`], for memory that the CPU does not touch. Where the settings permit it and all rails can
    /// register it as `exported`, they move large operations' bytes themselves; otherwise the copy engine does.
    /// `exported` may be the reason for which the memory has no such form.
    ///
    /// # Safety
    /// As for [`Session::register`].
    ///
    /// # Errors
    /// The session has no copy engine, or a rail cannot access the memory although the settings demand it.
    pub unsafe fn register_staged(
        &self,
        base: *mut u8,
        len: usize,
        exported: Result<&Exported, String>,
    ) -> Result<Memory> {
        let exported = match (exported, self.gpudirect) {
            (Err(why), GpuDirect::On) => {
                return Err(Error::Unsupported {
                    what: format!("access of NICs to {len} bytes at {base:p} (SYMRAIL_GPUDIRECT=on)"),
                    by: format!("this memory ({why})"),
                    remedy: "use memory that NICs can access, or SYMRAIL_GPUDIRECT=auto, which stages it".into(),
                });
            }
            (exported, GpuDirect::Auto | GpuDirect::On) => exported.ok(),
            (_, GpuDirect::Off) => None,
        };
        let (id, offset) = self.take_next(base, len)?;
        // SAFETY: the caller's promise.
        let segment = unsafe { Segment::new(id, offset, base, len as u64) };
        let mut engine = self.driver.engine();
        engine.learn_staged(self.me, offset, segment.bytes())?;
        // SAFETY: the caller's promise: the memory stays.
        unsafe { engine.add_staged_segment(segment) };
        let staged = Memory::staged(self.me, segment);
        let Some(exported) = exported else { return Ok(staged) };
        // SAFETY: the caller's promise.
        let connection_info = unsafe { engine.register_direct(segment, exported.as_export()) };
        match connection_info.and_then(|connection_info| Memory::direct(self.me, segment, &connection_info)) {
            Err(error) if self.gpudirect == GpuDirect::Auto => {
                tracing::info!(%error, len, "all that concerns this memory is staged");
                engine.endpoint().deregister(id);
                Ok(staged)
            }
            Err(error) => {
                engine.deregister(id);
                engine.forget_separate(self.me, offset);
                Err(error)
            }
            direct => direct,
        }
    }

    /// As [`Session::register_local`], for memory that only the copy engine can access. Without it operations cannot
    /// use the buffer.
    ///
    /// # Safety
    /// As for [`Session::register_local`]; the copy engine can access the memory.
    ///
    /// # Errors
    /// An impossible length.
    pub unsafe fn register_local_staged(&self, base: *mut u8, len: usize) -> Result<LocalBuffer> {
        let (id, _) = self.take_next(base, 0)?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.engine().add_staged_buffer(base, len, id) };
        Ok(LocalBuffer { base: base.addr(), id })
    }

    /// Registers a local buffer, as a source or destination. Without it, where the fabric needs registration, a buffer
    /// outside of registered memory is copied through the transport's own buffers.
    ///
    /// # Safety
    /// The memory stays mapped until [`Session::deregister_local`].
    ///
    /// # Errors
    /// The error of the provider.
    pub unsafe fn register_local(&self, base: *mut u8, len: usize) -> Result<LocalBuffer> {
        let (id, _) = self.take_next(base, 0)?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.engine().endpoint().register_buffer(base, len, id) }?;
        Ok(LocalBuffer { base: base.addr(), id })
    }

    /// Undoes [`Session::register_local`] and [`Session::register_local_staged`].
    pub fn deregister_local(&self, buffer: LocalBuffer) {
        let LocalBuffer { base, id } = buffer;
        let (mut engine, base) = (self.driver.engine(), std::ptr::without_provenance(base));
        engine.endpoint().deregister_buffer(base, id);
        engine.remove_staged_buffer(base, id);
    }

    /// The oldest local buffer that begins at `base` and is not staged, if there is one.
    #[must_use]
    pub fn local_buffer_at(&self, base: *const u8) -> Option<LocalBuffer> {
        let id = self.driver.engine().endpoint().regions().buffer_at(base.addr())?;
        Some(LocalBuffer { base: base.addr(), id })
    }

    /// Undoes [`Session::register`] and [`Session::register_staged`] for memory of this PE; for a peer's memory it
    /// drops the local record. No operation on the memory may be under way.
    pub fn deregister(&self, memory: &Memory) {
        let mut engine = self.driver.engine();
        if memory.pe() == self.me {
            engine.deregister(memory.id());
        }
        engine.forget_separate(memory.pe(), memory.offset());
    }

    /// Ends the connections over which a peer may be writing to memory that was deregistered. Its operations and those of
    /// this session to it are repeated over new ones or fail. Returns whether there was a connection; never where the
    /// fabric itself stops such writes, or has no connections.
    pub fn end_connections(&self, pe: Pe) -> bool {
        self.driver.engine().endpoint().end_connections(pe)
    }

    /// Handles arrivals and posts waiting operations. A program calls it repeatedly where the session has no thread of
    /// its own. Returns the number of events. It does not block: if another thread drives the engine right now, that
    /// one does the work.
    pub fn progress(&self) -> usize {
        if self.delegated {
            return if self.is_polled() { 0 } else { self.driver.try_poll() };
        }
        // The session's thread leaves the engine to callers that poll it repeatedly.
        self.driver.wait_turn().poll()
    }

    /// Whether the session's thread has polled the engine since a caller last looked. If not, callers do: a thread that
    /// sleeps, which is woken, or whose core another one has taken, may be back after milliseconds only.
    fn is_polled(&self) -> bool {
        self.driver.expect_traffic();
        let polls = self.driver.polls();
        self.polls_seen.swap(polls, Ordering::Relaxed) != polls && !self.driver.rests()
    }

    /// Waits until the other ends of all links that this session has closed have closed theirs, at most for `limit`.
    /// Until then peers may wait for acknowledgements. A session that ends earlier is
    /// [`State::Left`](rendezvous::State::Left) for them.
    pub fn wait_for_closed_links(&self, limit: Duration) {
        self.links.wait(limit, || {
            self.progress();
        });
    }

    fn take_next(&self, base: *const u8, len: usize) -> Result<(u32, u64)> {
        let mut next = symrail_core::lock(&self.next);
        let (taken, end) = Session::place(next.id, next.offset, base, len)?;
        (next.id, next.offset) = (taken.0 + 1, end);
        Ok(taken)
    }

    /// As [`Session::take_next`], among the offsets of words in which peers count. Without any left it is one of the
    /// others.
    fn take_next_counted(&self, base: *const u8, len: usize) -> Result<(u32, u64)> {
        let mut next = symrail_core::lock(&self.next);
        let (taken, end) = Session::place(next.id, next.counted, base, len)?;
        if end <= COUNTED_END {
            (next.id, next.counted) = (taken.0 + 1, end);
            return Ok(taken);
        }
        if !std::mem::replace(&mut next.told, true) {
            tracing::warn!(
                bytes = COUNTED_END,
                "this session has no numbers left for words in which peers count arrivals, such as those of NCCL's \
                 connections. New connections are slower: their messages have signals. Restart the program, or use fewer \
                 connections"
            );
        }
        drop(next);
        self.take_next(base, len)
    }

    /// The id and the offset of a registration from these on, and where the next one may begin.
    fn place(id: u32, offset: u64, base: *const u8, len: usize) -> Result<((u32, u64), u64)> {
        // Offsets keep the alignment of addresses, because AMOs are checked by offset.
        let offset = offset + base.addr() as u64 % GRAIN;
        // Each offset and id is given once: peers may have operations under way by those of earlier registrations.
        let end = offset.checked_add(len as u64).filter(|_| len as u64 <= LONGEST);
        let next = end.and_then(|end| id.checked_add(1).and(end.checked_next_multiple_of(GRAIN)?.checked_add(GRAIN)));
        let Some(next) = next else {
            return Err(Error::System {
                what: "registering memory",
                reason: format!(
                    "{len} bytes at {base:p}: use at most {LONGEST} bytes, and open another session when the numbers are used up"
                ),
            });
        };
        Ok(((id, offset), next))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use symrail_transport::amo::AmoOp;
    use symrail_transport::endpoint::command::Source;
    use symrail_transport::topology::allowed_cpus;

    const MEBIBYTE: usize = 1 << 20;

    /// Two sessions that are connected over these rails.
    fn two(nics: &str, progress: Progress) -> Option<[Session; 2]> {
        two_with(nics, progress, "adaptive")
    }

    fn two_with(nics: &str, progress: Progress, proxy_poll: &str) -> Option<[Session; 2]> {
        let settings = Settings::from_iter([
            ("SYMRAIL_TRANSPORT", "libfabric"),
            ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
            ("SYMRAIL_NIC_LIST", nics),
            ("SYMRAIL_PROXY_POLL", proxy_poll),
        ])
        .unwrap();
        let alone = HostPes::alone(allowed_cpus());
        let open = |me| Session::open(me, 2, &alone, &settings, progress, None);
        let sessions = match [open(0), open(1)] {
            [Ok(first), Ok(second)] => [first, second],
            [Err(error), _] | [_, Err(error)] => {
                println!("SKIPPED: {error}");
                return None;
            }
        };
        let infos = sessions.each_ref().map(Session::connection_info);
        sessions.iter().for_each(|session| session.connect(&infos).unwrap());
        Some(sessions)
    }

    /// Registers memory for words in which peers count.
    unsafe fn counting(session: &Session, heap: &mut [u8]) -> Memory {
        let place = session.take_next_counted(heap.as_ptr(), heap.len()).unwrap();
        // SAFETY: the caller's promise.
        unsafe { session.register_as(place, heap.as_mut_ptr(), heap.len()) }.unwrap()
    }

    /// The word at the end of memory, which a peer changes.
    fn last_word(heap: &[u8]) -> u64 {
        // SAFETY: an aligned word inside, as the allocator aligns large memory.
        unsafe { heap.as_ptr().add(heap.len() - 8).cast::<u64>().read_volatile() }
    }

    #[test]
    fn a_counted_put_is_one_message_without_an_answer() {
        let Some(sessions) = two("127.0.0.2", Progress::Caller) else { return };
        let mut heaps = [vec![7u8; MEBIBYTE], vec![0u8; MEBIBYTE]];
        // Other memory uses up none of the numbers for counting.
        sessions[1].take_next(std::ptr::null(), 1 << 40).unwrap();
        // SAFETY: the sessions are dropped before the heaps.
        let there = unsafe { counting(&sessions[1], &mut heaps[1]) };
        // SAFETY: as above.
        unsafe { sessions[0].register(heaps[0].as_mut_ptr(), MEBIBYTE) }.unwrap();
        let word = there.place(MEBIBYTE as u64 - 8);
        assert!(sessions[0].counts_in(word));
        let counters = |at: usize| sessions[at].driver.engine().endpoint().counters()[0];
        let before = [counters(0), counters(1)];
        for count in 1..=3 {
            let part = |at, len| Part { place: there.place(at), local: heaps[0].as_ptr().cast_mut(), len };
            // SAFETY: the source stays.
            let request = unsafe { sessions[0].start_counted([part(0, 8), part(64, 100_000)], word) };
            let request = request.unwrap().unwrap();
            while !sessions[0].test(&request).unwrap() || last_word(&heaps[1]) != count {
                sessions[1].progress();
            }
            assert!(heaps[1][..8] == [7; 8] && heaps[1][64..100_064].iter().all(|&byte| byte == 7));
            heaps[1][..200_000].fill(0);
        }
        let after = [counters(0), counters(1)];
        assert_eq!((after[0].messages - before[0].messages, after[1].messages - before[1].messages), (0, 0));
        assert_eq!(after[0].acknowledgements, before[0].acknowledgements);
        // Without numbers left, words are those of a connection with signals, which is said once.
        symrail_core::lock(&sessions[1].next).counted = COUNTED_END - MEBIBYTE as u64;
        let mut late = vec![0u8; MEBIBYTE];
        // SAFETY: as above.
        let there = unsafe { counting(&sessions[1], &mut late) };
        assert!(there.offset() >= COUNTED_END && !sessions[0].counts_in(there.place(0)));
        assert!(symrail_core::lock(&sessions[1].next).told);
        drop(sessions);
    }

    #[test]
    fn put_signals_that_nobody_waits_for_share_a_message_and_its_acknowledgement() {
        let Some(sessions) = two("127.0.0.2,127.0.0.3", Progress::Caller) else { return };
        let mut heaps = [vec![7u8; MEBIBYTE], vec![0u8; MEBIBYTE]];
        // SAFETY: the sessions are dropped before the heaps.
        let there = unsafe { sessions[1].register(heaps[1].as_mut_ptr(), MEBIBYTE) }.unwrap();
        let word = there.place(MEBIBYTE as u64 - 8);
        assert!(!sessions[0].counts_in(word), "over several rails a put may have to be repeated");
        let counters = || {
            let mut engine = sessions[0].driver.engine();
            let all = engine.endpoint().counters();
            (all.iter().map(|c| c.messages).sum::<u64>(), all.iter().map(|c| c.requests).sum::<u64>())
        };
        let start = |at: u64| {
            let (source, signal) = (Source::Copied(heaps[0].as_ptr()), (AmoOp::Add, 1));
            // SAFETY: the source is copied.
            unsafe { sessions[0].start_put_signal_at_leisure(there.place(64 * at), (source, 64), word, signal) }
                .unwrap()
                .unwrap()
        };
        let finish = |requests: &[Request], count| {
            while requests.iter().any(|request| !sessions[0].test(request).unwrap()) || last_word(&heaps[1]) != count {
                sessions[1].progress();
            }
        };
        // The first one connects.
        finish(&[start(0)], 1);
        let before = counters();
        let requests: Vec<Request> = (0..5).map(start).collect();
        sessions[0].send_gathered();
        let after = counters();
        assert_eq!((after.0 - before.0, after.1 - before.1), (1, 5));
        finish(&requests, 6);
        assert!(heaps[1][..320].iter().all(|&byte| byte == 7));
        drop(sessions);
    }

    #[test]
    fn callers_poll_a_delegated_session_whose_thread_does_not() {
        let Some(sessions) = two("127.0.0.2", Progress::Delegated) else { return };
        let mut heaps = [vec![7u8; MEBIBYTE], vec![0u8; MEBIBYTE]];
        // SAFETY: the sessions are dropped before the heaps.
        let there = unsafe { sessions[1].register(heaps[1].as_mut_ptr(), MEBIBYTE) }.unwrap();
        for session in &sessions {
            let proxy = session._proxy.as_ref().unwrap();
            proxy.stop();
            while !proxy.has_ended() {
                std::thread::yield_now();
            }
        }
        // SAFETY: the source stays.
        let request = unsafe { sessions[0].start_put(there.place(0), Source::Stable(heaps[0].as_ptr()), 100_000) };
        let (request, begun) = (request.unwrap().unwrap(), std::time::Instant::now());
        while !sessions[0].test(&request).unwrap() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody polls");
            sessions[1].progress();
        }
        drop(sessions);
        assert!(heaps[1][..100_000].iter().all(|&byte| byte == 7));
        drop(std::mem::take(&mut heaps[0]));
    }

    #[test]
    fn whoever_polls_notes_the_ends_of_requests() {
        for (progress, proxy_poll) in [(Progress::Delegated, "adaptive"), (Progress::Thread, "spin")] {
            let Some(sessions) = two_with("127.0.0.2", progress, proxy_poll) else { return };
            let mut heaps = [vec![7u8; MEBIBYTE], vec![0u8; MEBIBYTE]];
            // SAFETY: the sessions are dropped before the heaps.
            let there = unsafe { sessions[1].register(heaps[1].as_mut_ptr(), MEBIBYTE) }.unwrap();
            // SAFETY: the source stays.
            let request = unsafe { sessions[0].start_put(there.place(0), Source::Stable(heaps[0].as_ptr()), 100_000) };
            let (request, begun) = (request.unwrap().unwrap(), std::time::Instant::now());
            while request.outcome().is_none() {
                assert!(begun.elapsed() < Duration::from_secs(60), "the threads do not note it");
                std::thread::yield_now();
            }
            assert!(sessions.iter().all(|session| session.delegated));
            drop(sessions);
            assert!(heaps[1][..100_000].iter().all(|&byte| byte == 7));
            drop(std::mem::take(&mut heaps[0]));
        }
    }

    #[test]
    fn large_puts_of_a_bulk_session_travel_in_pieces() {
        let Some(sessions) = two("127.0.0.2", Progress::Thread) else { return };
        let mut heaps = [vec![7u8; MEBIBYTE], vec![0u8; MEBIBYTE]];
        // SAFETY: the sessions are dropped before the heaps.
        let there = unsafe { sessions[1].register(heaps[1].as_mut_ptr(), MEBIBYTE) }.unwrap();
        // SAFETY: as above.
        unsafe { sessions[0].register(heaps[0].as_mut_ptr(), MEBIBYTE) }.unwrap();
        let writes = || sessions[0].driver.engine().endpoint().counters()[0].writes;
        for (priority, pieces) in [(Priority::Urgent, 1), (Priority::Bulk, 16)] {
            sessions[0].set_priority(priority);
            let before = writes();
            let source = Source::Stable(heaps[0].as_ptr());
            // SAFETY: the source stays until the quiet.
            unsafe { sessions[0].put(0, there.place(0), source, MEBIBYTE as u64) }.unwrap();
            sessions[0].quiet(0).unwrap();
            assert_eq!(writes() - before, pieces, "{priority:?}");
            // SAFETY: as above.
            let request = unsafe { sessions[0].start_put(there.place(0), source, MEBIBYTE as u64) }.unwrap().unwrap();
            while !sessions[0].test(&request).unwrap() {}
            assert_eq!(writes() - before, 2 * pieces, "{priority:?}");
        }
        drop(sessions);
        assert!(heaps[1].iter().all(|&byte| byte == 7));
    }
}
