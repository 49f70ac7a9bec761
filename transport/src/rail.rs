//! One rail: one NIC with one endpoint, one completion queue and one table of peers.
//!
//! [`Rail`] is what a backend implements ([`ofi`](crate::ofi), [`verbs`](crate::verbs), `mock`).
//! It posts single work requests and reports what became of them; everything above a single work request
//! (which rail, how many segments, in what order, who waits) is [`Endpoint`](crate::endpoint::Endpoint)'s.
//!
//! # Contract
//! - A rail is driven by one thread at a time (`&mut self`), and needs no lock of its own.
//! - A post returns at once. [`PostError::Again`] means that nothing was posted and that polling may help.
//! - A work request with an [`OpId`] gives exactly one [`RailSink::done`] or [`RailSink::failed`].
//!   One without (`id: None`) gives none when it succeeds, and its bytes were copied before the post returned
//!   (so its length is at most [`RailCaps::inject`]); a failure of it is reported as [`RailSink::broken`].
//! - `done` for a write that asked for [`Notify::Delivered`] means that the bytes are visible in the target's memory.

use std::os::fd::RawFd;

use crate::amo::{AmoOp, AmoType};
use crate::device::{DeviceMemory, unreached};
use crate::error::{Fault, Result};

/// Chosen by the poster, handed back with the completion.
pub type OpId = u64;

/// A destination of a rail: the index that [`Rail::connect`] was called with.
pub type Dest = u32;

/// What makes local memory known to the NIC: libfabric's descriptor or verbs' `lkey`. 0 where none is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalKey(pub u64);

impl LocalKey {
    /// No provider's keys reach so far: they are numbers of 32 bits or addresses of the program.
    const DEVICE: u64 = 1 << 63;

    /// The same key, of memory that the CPU does not touch.
    #[must_use]
    pub fn of_device(self) -> Self {
        LocalKey(self.0 | Self::DEVICE)
    }

    /// What the provider has called it.
    #[must_use]
    pub fn raw(self) -> u64 {
        self.0 & !Self::DEVICE
    }

    /// Whether it is that of memory that the CPU does not touch.
    #[must_use]
    pub fn is_device(self) -> bool {
        self.0 & Self::DEVICE != 0
    }
}

/// Local memory of a work request.
#[derive(Debug, Clone, Copy)]
pub struct LocalBuf {
    /// First byte.
    pub ptr: *mut u8,
    /// Length in bytes.
    pub len: usize,
    /// From [`Rail::register`], when [`RailCaps::local_registration`] asks for it.
    pub key: LocalKey,
}

/// Remote memory of a work request, as the target's rail understands it.
#[derive(Debug, Clone, Copy)]
pub struct RemoteBuf {
    /// An address or an offset, as the target's [`Registration`] says.
    pub address: u64,
    /// The target's key.
    pub key: u64,
}

/// When a write counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// The local buffer may be used again.
    Transmitted,
    /// The bytes are visible in the target's memory.
    Delivered,
}

/// How a write is posted.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions {
    /// The completion wanted, if any. `None` copies the bytes (see the module's contract).
    pub id: Option<OpId>,
    /// What the completion means.
    pub notify: Notify,
    /// As many bytes of it as [`RailCaps::immediate`] says are handed to the target's [`RailSink::immediate`] once the
    /// write's bytes are visible there.
    pub immediate: Option<u64>,
    /// More work requests follow at once, or a poll does where [`RailCaps::polls_post`] says so: the rail may delay the
    /// doorbell until then.
    pub more: bool,
}

/// Bytes that a work request moves; some move several pieces.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Where its bytes are here.
    pub local: LocalBuf,
    /// Where they are at the target.
    pub remote: RemoteBuf,
}

/// Which way a work request of several pieces moves them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// To the target; what the completion means.
    Written(Notify),
    /// From the target.
    Read,
}

/// An atomic that the NIC or provider itself performs at the target.
#[derive(Debug, Clone, Copy)]
pub struct NativeAmo {
    /// The word's type.
    pub ty: AmoType,
    /// The operation.
    pub op: AmoOp,
    /// The operand's bits.
    pub operand: u64,
    /// The comparand's bits, for compare-swap.
    pub compare: u64,
    /// Where the old value goes (8 bytes, registered when [`RailCaps::local_registration`]), or `None`.
    pub result: Option<LocalBuf>,
}

/// Why a work request was not posted.
#[derive(Debug, Clone)]
pub enum PostError {
    /// A queue is full; poll and try again.
    Again,
    /// It will never work.
    Failed(Fault),
}

impl PostError {
    /// The failure of a work request that no rail would take.
    #[cold]
    pub fn refused(code: i32, text: impl FnOnce() -> String) -> PostError {
        PostError::Failed(Fault { code, text: text(), retryable: false })
    }
}

/// Memory registered with one rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// For local use.
    pub local: LocalKey,
    /// What peers put in [`RemoteBuf::key`].
    pub remote_key: u64,
    /// What peers put in [`RemoteBuf::address`] for the region's first byte: its address, or 0 for offset addressing.
    pub remote_base: u64,
}

/// Which later work requests the fabric keeps behind earlier ones to the same destination on the same rail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Order {
    /// A write is not visible before an earlier write.
    pub write_after_write: bool,
    /// A message is not received before an earlier write is visible.
    pub send_after_write: bool,
    /// Messages arrive in the order in which they were sent.
    pub send_after_send: bool,
    /// An atomic is not performed before an earlier write is visible.
    pub amo_after_write: bool,
}

/// What a rail is and can do. Constant after opening.
#[derive(Debug, Clone)]
pub struct RailCaps {
    /// The rail's name, as in `NIC_LIST` (a device, or an address where devices have no names).
    pub name: String,
    /// The provider or driver, e.g. `tcp;ofi_rxm` or `verbs`.
    pub provider: String,
    /// Largest write or read in bytes.
    pub max_rma: usize,
    /// Largest write or message that can be posted without a completion, in bytes.
    pub inject: usize,
    /// Writes and reads that say that [`more`](WriteOptions::more) follow go out with the next poll at the latest: one
    /// doorbell does for all.
    pub polls_post: bool,
    /// Most pieces of [`Rail::move_pieces`]; 1 where that does not exist, or is worth nothing.
    pub pieces: usize,
    /// Largest message in bytes.
    pub max_send: usize,
    /// Work requests that may be outstanding.
    pub queue_depth: usize,
    /// Bytes of writes that ask for delivery beyond which it is better not to begin another one to the same
    /// destination.
    pub window: u64,
    /// Ordering guarantees.
    pub order: Order,
    /// Local buffers must be registered.
    pub local_registration: bool,
    /// Bytes of the immediate that a write can carry and the target receives, at most 8; 0 where there is none.
    pub immediate: usize,
    /// The target's CPU moves the bytes, inside of the provider; a message to the target agent costs no more than a
    /// write.
    pub software: bool,
    /// A connection may have failed at one end while the other believes in it, and refuses a new one until it has sent
    /// something.
    pub half_open: bool,
    /// Both ends have to be connected before anything passes; else the end that sends.
    pub paired: bool,
    /// How the rail progresses, in words for `symrail info` (e.g. `manual`, `auto (probed)`).
    pub progress: String,
}

/// Where a rail reports. Called from within [`Rail::poll`] only.
pub trait RailSink {
    /// The work request completed.
    fn done(&mut self, id: OpId);
    /// The work request failed.
    fn failed(&mut self, id: OpId, fault: Fault);
    /// A message arrived. The bytes are valid during the call only, and come from a peer: check them.
    fn message(&mut self, bytes: &[u8]);
    /// A write with an immediate arrived and its bytes are visible.
    fn immediate(&mut self, immediate: u64);
    /// The rail itself, or work that had no id, failed: nothing unacknowledged on it can be trusted.
    fn broken(&mut self, fault: Fault);
    /// The port has gone down: see [`Rail::port_down`].
    fn port_down(&mut self) {}
}

/// One rail of one endpoint. See the module for its contract.
///
/// # Safety
/// Whoever posts to a rail gives up memory until the rail reports, and takes it back then. So an implementation:
/// - touches local memory only as a work request says, and not after it has reported that one done or failed;
/// - reports each posted work request at most once, by the id it was given, and none that was not posted;
/// - hands to [`RailSink::message`] bytes that stay valid and unchanged during the call;
/// - leaves alone what was deregistered, and all registered memory once it is dropped.
pub unsafe trait Rail: Send {
    /// What it is and can do.
    fn caps(&self) -> &RailCaps;

    /// What peers need to connect to this rail; opaque to everyone but the same backend.
    fn address(&self) -> Vec<u8>;

    /// Makes a peer's rail reachable as `dest`. `address` is the peer's [`Rail::address`] and `return_dest` the
    /// index under which the peer connects to this rail (connection-oriented backends pair queue pairs by it).
    ///
    /// # Errors
    /// A malformed address, or what the provider says.
    fn connect(&mut self, dest: Dest, address: &[u8], return_dest: Dest) -> Result<()>;

    /// Registers memory for local and remote use; `id` is what it is called here. Where the provider lets us choose the
    /// key, that is a random number, of as many bits as it takes, or the one that was suggested.
    ///
    /// # Safety
    /// The memory stays mapped until [`Rail::deregister`] or until the rail is dropped.
    ///
    /// # Errors
    /// What the provider says.
    unsafe fn register(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<Registration>;

    /// The next registration is to have this number for its key, where that is ours to choose. One number for all rails
    /// of an endpoint is less for peers to remember.
    fn suggest_key(&mut self, _key: u64) {}

    /// Registers memory for local use alone: no peer reads or writes it, whatever key it names.
    ///
    /// # Safety
    /// As for [`Rail::register`].
    ///
    /// # Errors
    /// What the provider says.
    unsafe fn register_local(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<LocalKey> {
        // SAFETY: the caller's promise.
        unsafe { self.register(ptr, len, id) }.map(|registration| registration.local)
    }

    /// Registers memory that the CPU does not touch, as [`Rail::register`] does host memory. Its local key
    /// [says so](LocalKey::is_device): bytes there are the NIC's to read and write, also where there are few of them.
    ///
    /// # Safety
    /// As for [`Rail::register`].
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) where rails of this kind, or this device's memory, do not
    /// permit it; what the provider says.
    unsafe fn register_device(&mut self, memory: DeviceMemory<'_>, _id: u32) -> Result<Registration> {
        Err(unreached(self.caps(), memory.len))
    }

    /// Forgets what was registered under `id`; unknown ids are ignored.
    fn deregister(&mut self, id: u32);

    /// Writes the piece's local bytes to its remote place.
    ///
    /// # Safety
    /// The local bytes stay valid and unchanged until the completion; the remote place was given by `dest`'s PE.
    ///
    /// # Errors
    /// [`PostError`].
    unsafe fn write(&mut self, dest: Dest, piece: Piece, options: WriteOptions) -> Result<(), PostError>;

    /// Reads the piece's remote bytes into its local place.
    ///
    /// # Safety
    /// As for [`Rail::write`], and nobody else uses the local place until the completion.
    ///
    /// # Errors
    /// [`PostError`].
    unsafe fn read(&mut self, dest: Dest, piece: Piece, id: OpId, more: bool) -> Result<(), PostError>;

    /// Writes or reads several pieces, at most [`RailCaps::pieces`], of [`RailCaps::max_rma`] bytes together, as one
    /// work request.
    ///
    /// # Safety
    /// As for [`Rail::write`] or [`Rail::read`], for each.
    ///
    /// # Errors
    /// [`PostError`].
    unsafe fn move_pieces(&mut self, _dest: Dest, pieces: &[Piece], _way: Pieces, _id: OpId) -> Result<(), PostError> {
        let text = || format!("rail {} moves no {} pieces at once", self.caps().name, pieces.len());
        Err(PostError::refused(libc::EOPNOTSUPP, text))
    }

    /// Sends a message of at most [`RailCaps::max_send`] bytes. With `id: None` the bytes are copied.
    ///
    /// # Safety
    /// `local` stays valid and unchanged until the completion.
    ///
    /// # Errors
    /// [`PostError`].
    unsafe fn send(&mut self, dest: Dest, local: LocalBuf, id: Option<OpId>) -> Result<(), PostError>;

    /// Whether [`Rail::amo`] works for this type and operation. Asked of the provider, never assumed.
    fn supports_amo(&self, ty: AmoType, op: AmoOp, fetching: bool) -> bool;

    /// Performs an atomic in `dest`'s memory with the provider's or NIC's own means.
    ///
    /// # Safety
    /// As for [`Rail::read`].
    ///
    /// # Errors
    /// [`PostError`].
    unsafe fn amo(&mut self, dest: Dest, remote: RemoteBuf, amo: NativeAmo, id: OpId) -> Result<(), PostError>;

    /// Makes progress and reports what happened. Returns how many things were reported.
    fn poll(&mut self, sink: &mut dyn RailSink) -> usize;

    /// Whether the connection to a destination works as far as is known here. `false`: it has failed, and stays so
    /// until both ends have taken part in making another ([`Rail::renew`]). Rails that connect again by themselves have
    /// nothing to say here.
    fn is_connected(&self, _dest: Dest) -> bool {
        true
    }

    /// Why nothing comes through at present, if the port is down and the sink has been told of that. No connection is
    /// ended for it: if the port is up again in time all go on, and whoever has seen another way work may end them
    /// ([`Rail::disconnect`]). With rails that say this, a message is done when the other end has it.
    fn port_down(&mut self) -> Option<Fault> {
        None
    }

    /// Gives a connection up: what is under way on it fails, and `why` is told of what is posted to it.
    fn disconnect(&mut self, _dest: Dest, _why: &Fault) {}

    /// Prepares a destination whose connection has failed for another one, and says what the other end needs for its
    /// [`Rail::reconnect`]. Both ends have to do both; what was said before is void. Registrations and other
    /// connections stay as they are. `Ok(None)`: not now (the port is down, or failed work requests are still to be
    /// reported), poll and try again; or there is nothing to renew.
    ///
    /// # Errors
    /// Why it will not work without somebody's help, such as an address that this machine has lost.
    fn renew(&mut self, _dest: Dest) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Connects a destination that was renewed; `offer` is what the other end's [`Rail::renew`] has said.
    ///
    /// # Errors
    /// The call that failed, or that there is nothing to connect.
    fn reconnect(&mut self, _dest: Dest, _offer: u64) -> Result<()> {
        Ok(())
    }

    /// A descriptor that becomes readable when polling is worthwhile, if the provider has one.
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    /// Prepares to sleep on [`Rail::wait_fd`]: `false` means that something is pending, so poll again instead.
    fn arm(&mut self) -> bool {
        true
    }
}
