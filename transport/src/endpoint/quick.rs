//! Small puts that need no operation of their own.

use super::Endpoint;
use super::command::{Command, Issuer, Owner, Source};
use super::queue::{Work, WorkRequest};
use crate::amo::{AmoOp, AmoType};
use crate::error::Result;
use crate::pe::Pe;
use crate::rail::{LocalBuf, LocalKey, Notify, Piece, WriteOptions};
use crate::wire::RequestKind;

/// The issuer of flags that need an operation, so that a failed flag is no error of another operation. Host threads are
/// issuer 0.
const FLAGS: Issuer = 1;

impl Endpoint {
    /// Issues a small put without a completion; a quiet flushes the connection. Returns `false` when the put needs an
    /// operation.
    #[inline]
    pub(super) fn quick_put(&mut self, pe: Pe, command: &Command) -> bool {
        let Command::Put { dest, source, len } = *command else { return false };
        let core = &mut self.core;
        let peer = core.lanes.peer(pe);
        let Some(lane) = core.lanes.only(pe) else { return false };
        let Some(c) = core.lanes.get(pe, lane) else { return false };
        let order = core.profile.caps(lane).order;
        if peer.defers() || !order.send_after_write || !order.send_after_send {
            return false;
        }
        let unfenced = core.lanes.is_unfenced(peer);
        if c.later > 0 && !unfenced {
            return false;
        }
        let repeatable = c.failover.is_some();
        if repeatable && !(c.is_straight() && (unfenced || core.lanes.is_alone(pe, lane))) {
            return false;
        }
        let after_requests = c.unacked.is_empty() || unfenced;
        let ptr = source.ptr();
        if core.profile.is_cheap_request(lane, len) && core.bounce.plentiful() {
            // The caller completes a put from stable memory by a quiet, so it may wait to be coalesced. A put that
            // copies its source is sent at once, since a peer may wait for it, unless it follows closely behind
            // another.
            let waits = matches!(source, Source::Stable(_)) || core.follows_closely(pe, lane);
            let request = core.profile.request(RequestKind::Put, AmoOp::Set, AmoType::U64, (dest, 0, 0), 0);
            self.launch_message_or_gather(pe, lane, request, (ptr.cast_mut(), len as usize), waits);
            return true;
        }
        // A write without a completion cannot be repeated.
        let written = after_requests && !repeatable && self.quick_write(pe, lane, (dest, ptr, len), None);
        if written {
            self.core.lanes.make_dirty(pe, lane);
        }
        written
    }

    /// Writes `len` bytes from an address to a symmetric offset without a completion, if the lane's rail accepts that
    /// now.
    pub(super) fn quick_write(
        &mut self,
        pe: Pe,
        lane: usize,
        (dest, ptr, len): (u64, *const u8, u64),
        immediate: Option<u64>,
    ) -> bool {
        let core = &mut self.core;
        let Some(c) = core.lanes.get(pe, lane) else { return false };
        let caps = core.profile.caps(lane);
        if !caps.order.write_after_write
            || len as usize > caps.inject
            || core.queue.holds(lane, pe)
            || c.outbox.is_some()
        {
            return false;
        }
        let Some((remote, covered)) = core.regions.remote(pe, c.theirs(lane), dest) else { return false };
        if covered < len {
            return false;
        }
        let local = LocalBuf { ptr: ptr.cast_mut(), len: len as usize, key: LocalKey::default() };
        let options = WriteOptions { id: None, notify: Notify::Transmitted, immediate, more: false };
        // SAFETY: the source is valid during this call, which copies it; the remote place comes from the peer's
        // connection info.
        if unsafe { self.rails[lane].write(pe, Piece { local, remote }, options) }.is_err() {
            return false; // the ordinary path queues it, or reports the error
        }
        core.observer.written(lane, len);
        true
    }

    /// Writes one byte that no quiet waits for: a flag that a reader polls. It is for host endpoints. The endpoint is
    /// active until the byte has left. If the flag does not arrive, only its reader notices, or a PE that waits for
    /// what would follow. Flags arrive in the order in which they are put.
    ///
    /// # Errors
    /// As for [`Endpoint::submit`].
    pub fn put_flag(&mut self, pe: Pe, dest: u64, value: u8) -> Result<()> {
        let command = Command::Put { dest, source: Source::Copied(&raw const value), len: 1 };
        self.core.validate(pe, &command)?;
        if pe != self.core.profile.me() {
            self.need(pe)?;
        }
        let undeferred = !self.core.lanes.peer(pe).defers();
        if pe != self.core.profile.me()
            && undeferred
            && let Some(lane) = self.core.lanes.only(pe)
            && self.core.lanes.is_alone(pe, lane)
            && self.ready()
            && let Some(slot) = self.core.bounce.alloc(1)
        {
            let ptr = self.core.bounce.ptr(slot).as_ptr();
            // SAFETY: a slot of our own with room for a byte.
            unsafe { ptr.write(value) };
            let work = Work::Flag { offset: dest, immediate: None };
            self.post(WorkRequest::new(work, pe, lane, 0, (ptr, 1), Some(slot)));
            return Ok(());
        }
        if self.core.lanes.count(pe) > 1 {
            self.fence(); // behind flags that are under way over other lanes
        }
        // SAFETY: the byte is copied during the call.
        unsafe { self.submit(pe, command, Owner { issuer: FLAGS, tag: None }) }.map(drop)
    }
}
