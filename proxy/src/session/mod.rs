//! The transport for runtimes that have a symmetric heap of their own: a session is one PE's rails, with the engine and
//! the target agent behind them, over memory that the runtime registers piece by piece.
//!
//! | module | concept |
//! |---|---|
//! | this | opening, connecting, registering; progress |
//! | `operation` | put, get, AMOs, put_signal, fence, quiet, and how a caller waits |
//! | [`memory`] | the handle by which peers reach registered memory |
//! | `connection_info` | what PEs tell each other to connect, and what must be the same on all |
//!
//! The C interface (`transport/include/symrail_transport.h`) and NVSHMEM's remote transport (`nvshmem/`) are faces of
//! it.
//!
//! # How memory is named
//! Each PE gives what it registers offsets of its own, never the same ones twice, so that a handle that is out of date
//! is refused at the target instead of reaching something else (see [`Regions`](symrail_transport::region::Regions),
//! memory that is laid out *separately*). A peer learns a handle when it first uses it.
//!
//! # Memory that neither rails nor the CPU reach
//! A GPU's, say. With a [`CopyEngine`] for it, such memory is registered by [`Session::register_staged`], and
//! operations on it are [staged](crate::stage): the same operations, by the same handles. All PEs have a copy engine,
//! or none.
//!
//! # Who drives
//! Any thread may call. A call drives the engine for as long as it waits; in between, [`Session::progress`] has to be
//! called again and again, or the session has a thread of its own ([`Progress::Thread`]). A PE that does neither does
//! not serve its peers' AMOs and signals.

mod connection_info;
pub mod memory;
mod operation;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use symrail_heap::CopyEngine;
use symrail_heap::export::Exported;
use symrail_transport::backend::{self, HostPes};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::{GpuDirect, ProxyPoll, Settings};
use symrail_transport::rail::RailCaps;
use symrail_transport::region::Segment;
use symrail_transport::{Error, Pe, Result};

use crate::stage::{STAGING_BUFFER_BYTES, STAGING_BUFFER_OFFSET};
use crate::{Driver, Engine, Options, Proxy};
use connection_info::ConnectionInfo;
use memory::{MOST_RAILS, Memory};
pub use operation::{Context, Place};

/// Registrations begin at multiples of this in their PE's offsets, as far as their addresses allow, with at least as
/// much between two of them.
const GRAIN: u64 = 4096;

/// Who polls while nobody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The session's own thread, which sleeps when nothing happens.
    Thread,
    /// Whoever calls [`Session::progress`].
    Caller,
}

/// One PE's transport. See the module.
pub struct Session {
    me: Pe,
    n_pes: u32,
    driver: Arc<Driver>,
    _proxy: Option<Proxy>,
    connection_info: ConnectionInfo,
    rails: Vec<RailCaps>,
    reasons: Vec<String>,
    copy_limit: usize,
    time_limit: Duration,
    gpudirect: GpuDirect,
    next: Mutex<Next>,
}

/// What the next registration gets.
struct Next {
    id: u32,
    offset: u64,
}

impl Session {
    /// Opens the rails of PE `me` of `n_pes`.
    ///
    /// `host` are the PEs of this host, over which NICs are spread; [`HostPes::alone`] if they are not known.
    /// `copy_engine` is for memory that only it reaches, and has a window of [`STAGING_BUFFER_BYTES`].
    ///
    /// # Errors
    /// What choosing and opening rails says; a PE outside of the job.
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
        let native_amo = choice.native_amo(settings);
        let mut rails = choice.open(Role::Proxy, n_pes, settings)?;
        rails.truncate(MOST_RAILS);
        let endpoint = Endpoint::new(Role::Proxy, me, n_pes, rails, Policy::new(settings, native_amo))?;
        let rails = endpoint.caps().to_vec();
        let mut connection_info = ConnectionInfo {
            version: ConnectionInfo::VERSION,
            native_amo,
            fabric: rails.first().map_or_else(String::new, |c| c.provider.clone()),
            ib_mode: choice.ib_mode.as_ref().map_or_else(String::new, |(mode, _)| mode.to_string()),
            rails: endpoint.addresses(),
            window: Vec::new(),
        };
        let copy_limit = endpoint.copy_limit();
        let mut engine = Engine::new(endpoint, me, n_pes);
        if let Some(copy_engine) = copy_engine {
            connection_info.window = engine.stage(copy_engine)?;
        }
        let system =
            |e: std::io::Error| Error::System { what: "starting the transport's thread", reason: e.to_string() };
        let (driver, proxy) = match progress {
            Progress::Caller => (Arc::new(Driver::new(engine).map_err(system)?), None),
            Progress::Thread => {
                let spin = settings.proxy_poll == ProxyPoll::Spin;
                let core = choice.proxy_cores.first().copied().flatten();
                let options = Options { spin, core, spare_core: choice.spare_core(1), number: 0 };
                let proxy = Proxy::start(engine, options).map_err(system)?;
                (Arc::clone(proxy.driver()), Some(proxy))
            }
        };
        Ok(Session {
            me,
            n_pes,
            driver,
            _proxy: proxy,
            connection_info,
            rails,
            reasons: choice.reasons,
            copy_limit,
            // Operations end by themselves after TIMEOUT_S of polling; a little later is a time-out of last resort.
            time_limit: Duration::from_secs(settings.timeout_s.saturating_mul(2).saturating_add(5)),
            gpudirect: settings.gpudirect,
            next: Mutex::new(Next { id: 1, offset: GRAIN }),
        })
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

    /// What the rails are and can do.
    #[must_use]
    pub fn rails(&self) -> &[RailCaps] {
        &self.rails
    }

    /// Why these rails were chosen, one sentence each.
    #[must_use]
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// The most bytes of a put whose source may be used again at once.
    #[must_use]
    pub fn copy_limit(&self) -> usize {
        self.copy_limit
    }

    /// What all PEs have to be told for [`Session::connect`]: some hundred bytes.
    #[must_use]
    pub fn connection_info(&self) -> Vec<u8> {
        self.connection_info.encode()
    }

    /// Connects to all PEs, whose connection infos are given in their order, this one's too. Once, before the first
    /// operation.
    ///
    /// # Errors
    /// connection info that cannot be read, PEs that do not agree, what the backend says about an address.
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

    /// Registers `len` bytes at `base` for operations of all PEs, and as a buffer of this one's. Peers need the handle.
    ///
    /// # Safety
    /// The memory stays mapped until [`Session::deregister`], or until the session is dropped, and is used by others
    /// only in ways that allow for concurrent changes.
    ///
    /// # Errors
    /// What the provider says.
    pub unsafe fn register(&self, base: *mut u8, len: usize) -> Result<Memory> {
        let (id, offset) = self.take_next(base, len);
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

    /// As [`Session::register`], for memory that the CPU does not touch. Where the settings permit it and all rails
    /// take what is `exported` of it, they move large operations' bytes themselves; else the copy engine does.
    ///
    /// # Safety
    /// As for [`Session::register`].
    ///
    /// # Errors
    /// The session has no copy engine; a rail that does not reach the memory, where the settings demand it.
    pub unsafe fn register_staged(&self, base: *mut u8, len: usize, exported: Option<&Exported>) -> Result<Memory> {
        let (id, offset) = self.take_next(base, len);
        // SAFETY: the caller's promise.
        let segment = unsafe { Segment::new(id, offset, base, len as u64) };
        let mut engine = self.driver.engine();
        engine.learn_staged(self.me, offset, segment.bytes())?;
        // SAFETY: the caller's promise: the memory stays.
        unsafe { engine.add_staged_segment(segment) };
        let staged = Memory::staged(self.me, segment);
        let Some(exported) = exported.filter(|_| self.gpudirect != GpuDirect::Off) else { return Ok(staged) };
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

    /// As [`Session::register_local`], for memory that only the copy engine reaches. Without it the buffer cannot be
    /// used.
    ///
    /// # Safety
    /// As for [`Session::register_local`]; the copy engine reaches the memory.
    pub unsafe fn register_local_staged(&self, base: *mut u8, len: usize) {
        let (id, _) = self.take_next(base, 0);
        // SAFETY: the caller's promise.
        unsafe { self.driver.engine().add_staged_buffer(base, len, id) };
    }

    /// Registers a buffer of this PE's own, as a source or destination. Without it a buffer outside of registered
    /// memory is copied through the transport's own, where the fabric needs registration.
    ///
    /// # Safety
    /// The memory stays mapped until [`Session::deregister_local`].
    ///
    /// # Errors
    /// What the provider says.
    pub unsafe fn register_local(&self, base: *mut u8, len: usize) -> Result<()> {
        let (id, _) = self.take_next(base, 0);
        // SAFETY: the caller's promise.
        unsafe { self.driver.engine().endpoint().register_buffer(base, len, id) }
    }

    /// Undoes [`Session::register_local`] and [`Session::register_local_staged`].
    pub fn deregister_local(&self, base: *const u8) {
        let mut engine = self.driver.engine();
        engine.endpoint().deregister_buffer(base);
        engine.remove_staged_buffer(base);
    }

    /// Undoes [`Session::register`] and [`Session::register_staged`] for memory of this PE; forgets that of another. No
    /// operation on it may be under way.
    pub fn deregister(&self, memory: &Memory) {
        let mut engine = self.driver.engine();
        if memory.pe() == self.me {
            engine.deregister(memory.id());
        }
        engine.forget_separate(memory.pe(), memory.offset());
    }

    /// Takes in what has arrived, sends what waits: call it again and again where the session has no thread of its own.
    /// Returns how much happened. Does not block: another thread that drives the engine right now does just this.
    pub fn progress(&self) -> usize {
        self.driver.try_poll()
    }

    fn take_next(&self, base: *const u8, len: usize) -> (u32, u64) {
        let mut next = symrail_core::lock(&self.next);
        // What is aligned in memory is aligned in offsets: AMOs are checked by these.
        let offset = next.offset + base.addr() as u64 % GRAIN;
        let id = next.id;
        next.id += 1;
        next.offset = (offset + len as u64).next_multiple_of(GRAIN) + GRAIN;
        (id, offset)
    }
}
