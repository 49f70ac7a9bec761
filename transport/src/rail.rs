//! One rail: one NIC with one endpoint, one completion queue and one table of peers.
//!
//! [`Rail`] is the trait of a backend ([`ofi`](crate::ofi), [`verbs`](crate::verbs), `mock`). A rail posts single work
//! requests and reports their completions. Everything above a single work request (the choice of rails, the cutting
//! into pieces, the order, the waiting) belongs to [`Endpoint`](crate::endpoint::Endpoint).
//!
//! # Contract
//! - One thread at a time drives a rail (`&mut self`), so a rail needs no lock of its own.
//! - A post returns at once. [`PostError::Again`] means that nothing was posted and that polling may help.
//! - A work request with an [`OpId`] produces exactly one [`RailSink::done`] or [`RailSink::failed`].
//!   One without (`id: None`) produces none when it succeeds, and its bytes were copied before the post returned (so
//!   its length is at most [`RailCaps::inject`]). Its failure is reported as [`RailSink::broken`].
//! - `done` for a write that asked for [`Notify::Delivered`] means that the bytes are visible in the target's memory.

use std::os::fd::RawFd;

use crate::amo::{AmoOp, AmoType};
use crate::device::{DeviceMemory, unreached};
use crate::error::{Fault, Result};
use crate::pairing::InterfaceAddress;

/// The id of a work request: the poster chooses it, and the completion returns it.
pub type OpId = u64;

/// A destination of a rail: the index that [`Rail::connect`] was called with.
pub type Dest = u32;

/// The ports from which one end has opened connections to another; 0 stands for none. Mostly there is one connection.
pub type Ports = [u16; 3];

/// The key of local memory for the NIC: libfabric's descriptor or verbs' `lkey`; 0 where none is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalKey(pub u64);

impl LocalKey {
    /// No provider's key has this bit: keys are numbers of 32 bits or addresses of the program.
    const DEVICE: u64 = 1 << 63;

    /// The same key, marked as one of memory that the CPU does not touch.
    #[must_use]
    pub fn of_device(self) -> Self {
        LocalKey(self.0 | Self::DEVICE)
    }

    /// The provider's key.
    #[must_use]
    pub fn raw(self) -> u64 {
        self.0 & !Self::DEVICE
    }

    /// Whether the key is one of memory that the CPU does not touch.
    #[must_use]
    pub fn is_device(self) -> bool {
        self.0 & Self::DEVICE != 0
    }
}

/// The local memory of a work request.
#[derive(Debug, Clone, Copy)]
pub struct LocalBuf {
    /// Address of the first byte.
    pub ptr: *mut u8,
    /// Length in bytes.
    pub len: usize,
    /// The key from [`Rail::register`], where [`RailCaps::local_registration`] holds.
    pub key: LocalKey,
}

/// The remote memory of a work request, in the target rail's terms.
#[derive(Debug, Clone, Copy)]
pub struct RemoteBuf {
    /// An address or an offset, depending on the target's [`Registration`].
    pub address: u64,
    /// The target's key.
    pub key: u64,
}

/// When a write completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// The local buffer may be used again.
    Transmitted,
    /// The bytes are visible in the target's memory.
    Delivered,
}

/// The options of a write.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions {
    /// The id for a completion. `None` copies the bytes (see the module's contract).
    pub id: Option<OpId>,
    /// The meaning of the completion.
    pub notify: Notify,
    /// The immediate: its first [`RailCaps::immediate`] bytes reach the target's [`RailSink::immediate`] once the
    /// write's bytes are visible there.
    pub immediate: Option<u64>,
    /// Whether more work requests follow at once, or a poll where [`RailCaps::polls_post`] holds. Then the rail may
    /// delay the doorbell until then.
    pub more: bool,
}

/// A piece of a work request. Some work requests have several.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// The local bytes.
    pub local: LocalBuf,
    /// The remote bytes.
    pub remote: RemoteBuf,
}

/// The direction of a work request of several pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// To the target, with the meaning of the completion, and the immediate, if there is one.
    Written(Notify, Option<u64>),
    /// From the target.
    Read,
}

/// An atomic that the NIC or provider performs at the target.
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
    /// The destination of the old value (8 bytes, registered where [`RailCaps::local_registration`] holds), or `None`.
    pub result: Option<LocalBuf>,
}

/// Why a work request was not posted.
#[derive(Debug, Clone)]
pub enum PostError {
    /// A queue is full; poll and try again.
    Again,
    /// The work request cannot succeed.
    Failed(Fault),
}

impl PostError {
    /// The error for a work request that no rail would accept.
    #[cold]
    pub fn refused(code: i32, text: impl FnOnce() -> String) -> PostError {
        PostError::Failed(Fault { code, text: text(), retryable: false })
    }
}

/// Memory registered with one rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The key for local use.
    pub local: LocalKey,
    /// The key that peers put in [`RemoteBuf::key`].
    pub remote_key: u64,
    /// The address of the region's first byte in [`RemoteBuf::address`]: its virtual address, or 0 for offset
    /// addressing.
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

/// The properties of a rail. They are constant after opening.
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
    /// Whether a delayed doorbell rings with the next poll at the latest, for writes and reads with
    /// [`more`](WriteOptions::more). One doorbell then serves all of them.
    pub polls_post: bool,
    /// Most pieces in [`Rail::move_pieces`]; 1 where it is not available or brings no gain.
    pub pieces: usize,
    /// Largest message in bytes.
    pub max_send: usize,
    /// Maximum number of outstanding work requests.
    pub queue_depth: usize,
    /// Bytes under way to one destination, of writes that ask for delivery, beyond which the endpoint should not start
    /// another.
    pub window: u64,
    /// Ordering guarantees.
    pub order: Order,
    /// Whether local buffers must be registered.
    pub local_registration: bool,
    /// Bytes of the immediate that a write carries to the target, at most 8; 0 where there is none.
    pub immediate: usize,
    /// Whether the target's CPU moves the bytes, inside of the provider. Then a message to the target agent costs no
    /// more than a write.
    pub software: bool,
    /// Whether a connection may have failed at one end while the other still believes in it, and refuses a new one
    /// until it has sent something.
    pub half_open: bool,
    /// Whether both ends have to be connected before any message passes; otherwise only the sending end has to.
    pub paired: bool,
    /// The progress model of the rail, for `symrail info` (e.g. `manual`, `auto (probed)`).
    pub progress: String,
}

/// The receiver of a rail's reports. A rail calls it only within [`Rail::poll`].
pub trait RailSink {
    /// A work request completed.
    fn done(&mut self, id: OpId);
    /// A work request failed.
    fn failed(&mut self, id: OpId, fault: Fault);
    /// A message arrived. The bytes come from a peer, so the receiver must check them. They are valid only during the
    /// call.
    fn message(&mut self, bytes: &[u8]);
    /// A write with an immediate arrived and its bytes are visible.
    fn immediate(&mut self, immediate: u64);
    /// The rail itself, or a work request without id, failed. All unacknowledged work on the rail may be lost.
    fn broken(&mut self, fault: Fault);
    /// The port has gone down. See [`Rail::port_down`].
    fn port_down(&mut self) {}
}

/// One rail of one endpoint. See the module for its contract.
///
/// # Safety
/// The poster of a work request lends memory to the rail until the rail reports the work request. So an implementation:
/// - accesses local memory only as a work request specifies, and not after it has reported that one as done or failed;
/// - reports each posted work request at most once, by its id, and none that was not posted;
/// - passes to [`RailSink::message`] bytes that stay valid and unchanged during the call;
/// - does not access memory that was deregistered, nor any registered memory once the rail is dropped.
pub unsafe trait Rail: Send {
    /// The rail's properties.
    fn caps(&self) -> &RailCaps;

    /// The address that peers need to connect to this rail. Only the same backend can read it.
    fn address(&self) -> Vec<u8>;

    /// As [`Rail::address`], for the peer that will be the destination `dest`. Connection-oriented backends prepare a queue
    /// pair for it, if they have not prepared some for all peers. The caller uses it for this peer only.
    ///
    /// # Errors
    /// The error of the provider.
    fn address_to(&mut self, _dest: Dest) -> Result<Vec<u8>> {
        Ok(self.address())
    }

    /// The address of the network interface of the rail that has this [`Rail::address`], one of this PE or of a peer;
    /// `None` where it does not show which rails reach each other.
    fn interface(&self, _address: &[u8]) -> Option<InterfaceAddress> {
        None
    }

    /// Makes a peer's rail reachable as `dest`. `address` is the peer's [`Rail::address`]. `return_dest` is the index
    /// under which the peer connects to this rail; connection-oriented backends use it to pair queue pairs.
    ///
    /// # Errors
    /// A malformed address, or the error of the provider.
    fn connect(&mut self, dest: Dest, address: &[u8], return_dest: Dest) -> Result<()>;

    /// Registers memory for local and remote use under the local name `id`. Where the provider lets the rail choose the
    /// key, that is a random number of the maximum length, or the suggested key.
    ///
    /// # Safety
    /// The memory stays mapped until [`Rail::deregister`] or until the rail is dropped.
    ///
    /// # Errors
    /// The error of the provider.
    unsafe fn register(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<Registration>;

    /// Suggests the key of the next registration, for rails that choose their keys. Equal keys on all rails of an
    /// endpoint save memory at peers.
    fn suggest_key(&mut self, _key: u64) {}

    /// Registers memory for local use only: no peer can read or write it by any key.
    ///
    /// # Safety
    /// As for [`Rail::register`].
    ///
    /// # Errors
    /// The error of the provider.
    unsafe fn register_local(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<LocalKey> {
        // SAFETY: the caller's promise.
        unsafe { self.register(ptr, len, id) }.map(|registration| registration.local)
    }

    /// Registers memory that the CPU does not touch, as [`Rail::register`] does host memory. Its local key is
    /// [marked](LocalKey::is_device): only the NIC reads and writes such bytes, even if they are few.
    ///
    /// # Safety
    /// As for [`Rail::register`].
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) where rails of this kind, or this device's memory, do not
    /// permit it; the error of the provider.
    unsafe fn register_device(&mut self, memory: DeviceMemory<'_>, _id: u32) -> Result<Registration> {
        Err(unreached(self.caps(), memory.len))
    }

    /// Removes the registration `id`; unknown ids are ignored.
    fn deregister(&mut self, id: u32);

    /// Writes the piece's local bytes to its remote bytes.
    ///
    /// # Safety
    /// The local bytes stay valid and unchanged until the completion. The remote address was received from `dest`'s PE.
    ///
    /// # Errors
    /// [`PostError`].
    unsafe fn write(&mut self, dest: Dest, piece: Piece, options: WriteOptions) -> Result<(), PostError>;

    /// Reads the piece's remote bytes into its local bytes.
    ///
    /// # Safety
    /// As for [`Rail::write`], and no one else uses the local bytes until the completion.
    ///
    /// # Errors
    /// [`PostError`].
    unsafe fn read(&mut self, dest: Dest, piece: Piece, id: OpId, more: bool) -> Result<(), PostError>;

    /// Writes or reads several pieces as one work request: at most [`RailCaps::pieces`] of them, and
    /// [`RailCaps::max_rma`] bytes in all.
    ///
    /// # Safety
    /// As for [`Rail::write`] or [`Rail::read`], for each piece.
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

    /// Whether [`Rail::amo`] works for this type and operation. The answer comes from the provider.
    fn supports_amo(&self, ty: AmoType, op: AmoOp, fetching: bool) -> bool;

    /// Lets the provider or NIC perform an atomic in `dest`'s memory.
    ///
    /// # Safety
    /// As for [`Rail::read`].
    ///
    /// # Errors
    /// [`PostError`].
    unsafe fn amo(&mut self, dest: Dest, remote: RemoteBuf, amo: NativeAmo, id: OpId) -> Result<(), PostError>;

    /// Makes progress and reports completions and messages. Returns the number of reports.
    fn poll(&mut self, sink: &mut dyn RailSink) -> usize;

    /// Whether the connection to a destination works, as far as this end knows. After `false` it stays failed until
    /// both ends have made a new one ([`Rail::renew`]). Rails that reconnect by themselves always return `true`.
    fn is_connected(&self, _dest: Dest) -> bool {
        true
    }

    /// The fault of the port, if it is down and the sink has got [`RailSink::port_down`]. The rail ends no connection
    /// because of it: if the port is up again in time, all connections continue. The owner of a connection may end it
    /// ([`Rail::disconnect`]) once another path has proved to work. On rails that report ports, a message completes
    /// when the other end has it.
    fn port_down(&mut self) -> Option<Fault> {
        None
    }

    /// Whether work is under way to a destination and its host has acknowledged nothing for more than a second, as
    /// where packets are dropped on the way. A host answers for processes that get no core, too. `false` where the rail
    /// cannot tell.
    fn is_silent(&self, _dest: Dest) -> bool {
        false
    }

    /// The ports from which this end has opened connections to a destination.
    fn opened(&self, _dest: Dest) -> Ports {
        Ports::default()
    }

    /// Ends the connections to a destination that this end has opened, and those that the other end has opened from
    /// these ports: outstanding work fails, and nothing that either end has sent over them arrives here any more. Later
    /// posts connect again. Returns whether it has ended one; never where [`Rail::is_silent`] cannot tell.
    fn cut(&mut self, _dest: Dest, _opened_there: Ports) -> bool {
        false
    }

    /// As [`Rail::cut`], for all connections that may be the destination's: the one that this end has opened. If there is
    /// none, all that were opened to this rail from the destination's address, since nothing tells them apart.
    fn cut_all(&mut self, _dest: Dest) -> bool {
        false
    }

    /// Closes a connection: its outstanding work fails, and later posts to it fail with `why`.
    fn disconnect(&mut self, _dest: Dest, _why: &Fault) {}

    /// Ends the work requests for a destination that is to be forgotten, where nothing else may: those that have arrived and
    /// that only a later one would report, which nobody posts. The caller polls, and repeats the call once a second.
    fn leave(&mut self, _dest: Dest) {}

    /// Forgets a destination: no work request for it is under way, and none follows, but messages from it may. Its number
    /// is not connected again. Returns whether it is forgotten; until then the caller polls and repeats the call, no more
    /// than once a second.
    fn forget(&mut self, _dest: Dest) -> bool {
        true
    }

    /// Prepares a failed destination for a new connection, and returns the offer that the other end needs for its
    /// [`Rail::reconnect`]. Both ends have to call both, and a new offer makes earlier ones void. Registrations and
    /// other connections do not change. `Ok(None)` means not now (the port is down, or failed work requests are still
    /// to be reported; the caller polls and tries again), or that there is nothing to renew.
    ///
    /// # Errors
    /// An error that only a user can mend, such as an address that this machine has lost.
    fn renew(&mut self, _dest: Dest) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Connects a renewed destination; `offer` is the result of the other end's [`Rail::renew`].
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

    /// Prepares to sleep on [`Rail::wait_fd`]. Returns `false` when an event is pending, so that the caller polls
    /// instead.
    fn arm(&mut self) -> bool {
        true
    }
}
