//! An operation and its fragments: which memory it touches, and the endpoint operation of each fragment.

use symrail_heap::copy::copy;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{AgentRequest, Command, Fetch, Owner, Payload, Signal, Source as From};
use symrail_transport::wire::{Place, RequestKind};
use symrail_transport::{Error, Pe, Result};

use super::context::StageContext;
use super::staging_buffer::{Chunk, EAGER, Pool, STAGING_BUFFER_OFFSET};

/// The state of an operation.
pub(super) struct Staged {
    pub pe: Pe,
    pub command: Command,
    pub owner: Owner,
    /// A copy of the source, if the caller may reuse it at once.
    pub kept: Option<[u8; 16]>,
    /// Whether the CPU cannot touch the local buffer.
    pub local_is_device: bool,
    /// Whether the CPU cannot touch the target's memory.
    pub remote_is_device: bool,
    pub route: Route,
    /// Bytes split so far, and whether that is all.
    pub split: u64,
    pub all_split: bool,
    /// Whether it is in `to_split`.
    pub queued: bool,
    /// Fragments under way.
    pub fragments: u32,
    /// The signal to send when all fragments are done.
    pub signal: Option<Signal>,
    pub value: u64,
    pub error: Option<Error>,
    /// Whether the result has been reported; fragments may still be under way.
    pub reported: bool,
    pub since: u32,
}

/// How an operation's bytes move between the two memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// In fragments, through staging buffers and messages.
    Staged,
    /// Rails, which can access both.
    Rails,
    /// The device, which can access both: it has mapped the peer's memory at this address.
    Device(usize),
}

/// The part of its operation that a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Bytes.
    Data,
    /// The signal, and no data.
    Signal,
    /// The whole operation, unchanged.
    Whole,
}

pub(super) struct Fragment {
    pub staged: usize,
    pub part: Part,
    /// Offset in the operation's bytes.
    pub at: u64,
    pub len: usize,
    pub chunk: Option<Chunk>,
    /// Whether its bytes travel in the message.
    pub eager: bool,
    /// Whether the copy under way is the last step.
    pub last: bool,
}

/// The endpoint operation of a fragment.
pub(super) fn message(s: &Staged, fragment: &Fragment, pool: &Pool) -> Command {
    let chunk = fragment.chunk.map(|chunk| (pool.ptr(chunk), pool.place(chunk, fragment.len)));
    let none = Payload::Inline([0; 16], 0);
    let plain = |kind, offset, payload| AgentRequest {
        kind,
        op: AmoOp::Fetch,
        ty: AmoType::U64,
        offset,
        operand: 0,
        second: 0,
        payload,
    };
    let signalled = |ask: AgentRequest, signal: Signal| AgentRequest {
        op: signal.op,
        operand: signal.value,
        second: signal.offset,
        ..ask
    };
    match (s.command, fragment.part) {
        (Command::PutSignal { signal, .. }, Part::Signal) => {
            Command::AgentRequest(signalled(plain(RequestKind::PutSignal, signal.offset, none), signal))
        }
        (Command::Put { dest, .. } | Command::PutSignal { dest, .. }, Part::Data) if s.route == Route::Rails => {
            Command::Put { dest, source: From::Stable(s.command.local()), len: fragment.len as u64 }
        }
        (Command::Get { .. }, Part::Data) if s.route == Route::Rails => s.command,
        (Command::Put { dest, len, .. } | Command::PutSignal { dest, len, .. }, Part::Data) => {
            let whole = fragment.len as u64 == len;
            let signal = match s.command {
                Command::PutSignal { signal, .. } if whole => Some(signal),
                _ => None,
            };
            let dest = dest + fragment.at;
            let bytes = match (chunk, s.kept) {
                (Some((ptr, _)), _) => Payload::Stable(ptr, fragment.len),
                (None, Some(kept)) => Payload::Inline(kept, fragment.len as u8),
                (None, None) => Payload::Stable(s.command.local(), fragment.len),
            };
            let ask = match chunk {
                _ if !s.remote_is_device => {
                    let source = chunk.map_or(std::ptr::null(), |(ptr, _)| ptr.cast_const());
                    return Command::Put { dest, source: From::Stable(source), len: fragment.len as u64 };
                }
                Some((_, place)) if !fragment.eager => {
                    plain(RequestKind::Pull, dest, Payload::Inline(place.encode(), 16))
                }
                _ => plain(RequestKind::Put, dest, bytes),
            };
            Command::AgentRequest(match signal {
                None => ask,
                Some(signal) if ask.kind == RequestKind::Pull => {
                    signalled(AgentRequest { kind: RequestKind::PullSignal, ..ask }, signal)
                }
                Some(signal) => signalled(AgentRequest { kind: RequestKind::PutSignal, ..ask }, signal),
            })
        }
        (Command::Get { source, .. }, Part::Data) => {
            let (ptr, place) = chunk.unwrap_or((std::ptr::null_mut(), Place { offset: 0, len: 0 }));
            let source = source + fragment.at;
            if s.remote_is_device {
                Command::AgentRequest(plain(RequestKind::Push, source, Payload::Inline(place.encode(), 16)))
            } else {
                Command::Get { source, dest: ptr, len: fragment.len as u64 }
            }
        }
        (Command::Amo { offset, ty, op, operand, compare, fetch }, _) if s.remote_is_device => {
            let unseen = fetch == Fetch::No && matches!(op, AmoOp::Set | AmoOp::Add);
            if unseen && matches!(ty, AmoType::I64 | AmoType::U64) {
                let signal = Signal { offset, value: operand, op };
                return Command::AgentRequest(signalled(plain(RequestKind::PutSignal, offset, none), signal));
            }
            Command::AgentRequest(AgentRequest {
                ty,
                op,
                operand,
                second: compare,
                ..plain(RequestKind::Amo, offset, none)
            })
        }
        (Command::Amo { offset, ty, op, operand, compare, .. }, _) if s.local_is_device => {
            Command::Amo { offset, ty, op, operand, compare, fetch: Fetch::Returned }
        }
        (mut command, _) => {
            if let (Some(kept), Command::Put { source, .. } | Command::PutSignal { source, .. }) =
                (&s.kept, &mut command)
            {
                *source = From::Copied(kept.as_ptr());
            }
            command
        }
    }
}

/// Refuses users' operations on staging buffers.
pub(super) fn outside_staging_buffer(ctx: &StageContext<'_>, pe: Pe, command: &Command) -> Result<()> {
    let operation = command.operation();
    let offset = command.highest_offset();
    let local = command.local().addr();
    let staging_buffer = ctx.copies.staging_buffer();
    if offset < STAGING_BUFFER_OFFSET
        && !(staging_buffer.0.addr().get()..staging_buffer.0.addr().get() + staging_buffer.1).contains(&local)
    {
        return Ok(());
    }
    Err(Error::OutOfSegment { operation, pe, offset, bytes: command.bytes() })
}

/// Whether the local buffer is memory that the CPU cannot touch.
pub(super) fn local_is_device(ctx: &StageContext<'_>, pe: Pe, command: &Command) -> Result<bool> {
    let (ptr, bytes) = (command.local(), command.bytes());
    if ptr.is_null() || bytes == 0 || !ctx.memory.owns(ptr, 1) {
        return Ok(false);
    }
    if ctx.memory.owns(ptr, bytes) {
        return Ok(true);
    }
    Err(Error::LocalBuffer { operation: command.operation(), pe, address: ptr.addr() as u64, bytes })
}

/// Whether the CPU cannot touch the target's memory. If so, checks what the endpoint would check.
pub(super) fn remote_is_device(ctx: &StageContext<'_>, pe: Pe, command: &Command) -> Result<bool> {
    let operation = command.operation();
    let inside = |offset: u64| ctx.memory.check(operation, pe, offset, 1).is_ok();
    let range = |offset: u64, len: u64| ctx.memory.check(operation, pe, offset, len);
    let word = |offset: u64, size: usize| {
        if offset.is_multiple_of(size as u64) {
            return Ok(());
        }
        Err(Error::Misaligned { operation, pe, offset, needed: size })
    };
    match *command {
        Command::Put { dest: offset, len, .. } | Command::Get { source: offset, len, .. } => {
            Ok(len > 0 && inside(offset) && range(offset, len).map(|()| true)?)
        }
        Command::PutSignal { dest, len, signal, .. } => {
            word(signal.offset, 8)?;
            let data = len > 0 && inside(dest);
            if data {
                range(dest, len)?;
            }
            // The target agent determines the memory of the signal.
            Ok(data || inside(signal.offset))
        }
        Command::Amo { offset, ty, op, .. } => {
            if !inside(offset) {
                return Ok(false);
            }
            op.must_be_defined_on(ty)?;
            word(offset, ty.size())?;
            range(offset, ty.size() as u64).map(|()| true)
        }
        Command::AgentRequest(_) => Ok(false),
    }
}

/// Chooses how an operation's bytes move.
pub(super) fn route(
    ctx: &StageContext<'_>,
    pe: Pe,
    command: &Command,
    (local_is_device, remote_is_device): (bool, bool),
) -> Route {
    let (Command::Put { dest: offset, len, .. }
    | Command::PutSignal { dest: offset, len, .. }
    | Command::Get { source: offset, len, .. }) = *command
    else {
        return Route::Staged;
    };
    match ctx.peers.find(pe, offset, len) {
        Some(there) if local_is_device => Route::Device(there),
        _ if by_rails(ctx, pe, command, (local_is_device, remote_is_device)) => Route::Rails,
        _ => Route::Staged,
    }
}

/// Whether rails move the data directly. A PE's operations on itself are staged: the endpoint would use the CPU.
fn by_rails(
    ctx: &StageContext<'_>,
    pe: Pe,
    command: &Command,
    (local_is_device, remote_is_device): (bool, bool),
) -> bool {
    let regions = ctx.endpoint.regions();
    let (Command::Put { dest: offset, len, .. }
    | Command::PutSignal { dest: offset, len, .. }
    | Command::Get { source: offset, len, .. }) = *command
    else {
        return false;
    };
    let here = !local_is_device || regions.owns(command.local(), len);
    let there = || {
        let known = regions.remote(pe, 0, offset).is_some();
        !remote_is_device || (known && regions.check(command.operation(), pe, offset, len).is_ok())
    };
    pe != ctx.endpoint.me() && len > EAGER as u64 && here && there()
}

/// Copies a source that the caller may reuse at once.
///
/// # Safety
/// Such a source is valid.
pub(super) unsafe fn keep(command: &Command, local_is_device: bool) -> Result<Option<[u8; 16]>> {
    let (Command::Put { source: From::Copied(from), len, .. }
    | Command::PutSignal { source: From::Copied(from), len, .. }) = *command
    else {
        return Ok(None);
    };
    let mut kept = [0; 16];
    if local_is_device || len as usize > kept.len() {
        return Err(Error::Unsupported {
            what: format!("{} of a copied source of {len} bytes", command.operation()),
            by: "staging".into(),
            remedy: "pass a stable source and wait for the operation".into(),
        });
    }
    // SAFETY: the caller's promise; it fits.
    unsafe { copy(kept.as_mut_ptr(), from, len as usize) };
    Ok(Some(kept))
}
