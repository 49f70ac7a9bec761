//! Small puts that have no record among the operations.

use super::Endpoint;
use super::command::{Command, Issuer, Owner, Source};
use super::protocol::{Form, Gather, Protocol};
use super::queue::{Work, WorkRequest};
use crate::amo::{AmoOp, AmoType};
use crate::error::Result;
use crate::pe::Pe;
use crate::rail::{LocalBuf, LocalKey, Notify, Piece, WriteOptions};
use crate::wire::RequestKind;

/// The issuer of flags that need an operation, so that a failed flag is no error of another operation. Host threads are
/// issuer 0.
pub(super) const FLAGS: Issuer = 1;

impl Endpoint {
    /// Posts a put without a record; a quiet flushes the connection. Returns `false` when the rail cannot take it now.
    #[inline(always)]
    pub(super) fn launch_unrecorded(&mut self, pe: Pe, lane: usize, command: &Command, protocol: Protocol) -> bool {
        let Command::Put { dest, source, len } = *command else { return false };
        let ptr = source.ptr();
        if protocol.form == Form::UnrecordedMessage {
            let request = self.core.profile.request(RequestKind::Put, AmoOp::Set, AmoType::U64, (dest, 0, 0), 0);
            self.send_request(pe, lane, request, (ptr.cast_mut(), len as usize), protocol.flags);
            if protocol.flags.gather == Gather::Yes {
                self.core.lanes.note_gathered(pe, lane, protocol.form);
            }
            return true;
        }
        let written = self.inject_write(pe, lane, (dest, ptr, len), None);
        if written {
            self.core.lanes.make_dirty(pe, lane);
        }
        written
    }

    /// Writes `len` bytes, which the lane's rail copies, from an address to a symmetric offset without a completion.
    /// Returns `false` when the rail cannot take them now.
    pub(super) fn inject_write(
        &mut self,
        pe: Pe,
        lane: usize,
        (dest, ptr, len): (u64, *const u8, u64),
        immediate: Option<u64>,
    ) -> bool {
        let core = &mut self.core;
        let Some(c) = core.lanes.get(pe, lane) else { return false };
        if core.queue.holds(lane, pe) || c.outbox.is_some() {
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
            let work = Work::TransmittedWrite { offset: dest, immediate: None };
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
