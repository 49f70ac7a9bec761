//! What serves only providers whose CPU moves the bytes ([`RailCaps::software`], [`RailCaps::pieces`]): fewer and larger
//! messages and work requests. For a NIC that moves them itself no operation comes here.
//!
//! | file | concept |
//! |---|---|
//! | `outbox` | requests that are gathered for one message |
//! | `coalescing` | puts and gets that travel in one work request |
//!
//! [`Protocols::select`](super::protocol::Protocols::select) decides by the limits below which operations may.

mod coalescing;
mod outbox;

use crate::rail::RailCaps;
pub(super) use coalescing::Held;
pub(super) use outbox::append;

/// The maximum number of pieces in one work request.
const MAX_PIECES: usize = 4;
/// The largest put or get, in bytes, that is coalesced. Beyond, the cost of the bytes exceeds all that coalescing could
/// save: a work request and its acknowledgement cost as much as 20 to 30 KiB over `tcp;ofi_rxm`.
const COALESCED_MAX: u64 = 256 << 10;

/// The largest put, in bytes, for which a message holds at least as many as a work request of several pieces; 0 where
/// NICs move the bytes.
pub(super) fn cheap_message(caps: &RailCaps, in_message: u64) -> u64 {
    let largest = (caps.max_send / caps.pieces.clamp(1, MAX_PIECES)) as u64;
    if caps.software { largest.min(in_message) } else { 0 }
}

/// The largest put or get, in bytes, that may be coalesced with others; 0 where a work request has one piece.
pub(super) fn coalesced_max(caps: &RailCaps) -> u64 {
    if caps.pieces > 1 { COALESCED_MAX } else { 0 }
}
