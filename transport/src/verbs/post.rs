//! From the rail's operations to posted work requests.
//!
//! A work request is appended to the [`Chain`]. The chain is posted, in one call and so with one doorbell, as soon as a
//! work request announces no `more`. All work requests of a chain have the same destination.

use std::ptr::null_mut;

use verbs_sys as sys;

use super::domain::errno_fault;
use super::forget::left;
use super::open::{PeerState, VerbsRail};
use crate::error::Fault;
use crate::rail::{Dest, LocalBuf, OpId, PostError};
use crate::sparse::Slots;

/// The most work requests that are posted in one call.
const LENGTH: usize = 16;

/// Work requests that are not posted yet.
pub(super) struct Chain {
    /// The place of their destination's queue pair, if there are any.
    index: usize,
    length: usize,
    /// The work requests, linked to one another and to `sges`. They are boxed, so that they do not move.
    requests: Box<[sys::ibv_send_wr; LENGTH]>,
    sges: Box<[sys::ibv_sge; LENGTH]>,
    /// Copies of inline data that the owner may change before the chain is posted: `inline` bytes for each.
    copies: Box<[u8]>,
    inline: usize,
}

// SAFETY: its pointers point into its own boxes, or to local buffers that their owner keeps valid for the NIC, which is
// no thread of this process either.
unsafe impl Send for Chain {}

impl Chain {
    pub fn new(inline: usize) -> Self {
        Chain {
            index: 0,
            length: 0,
            requests: Box::new([sys::ibv_send_wr::default(); LENGTH]),
            sges: Box::new([sys::ibv_sge::default(); LENGTH]),
            copies: vec![0; inline * LENGTH].into_boxed_slice(),
            inline,
        }
    }
}

/// A work request, before it has a number.
pub(super) struct Request {
    pub opcode: sys::ibv_wr_opcode,
    /// The local bytes; `len` may be 0, and then nothing is read.
    pub local: LocalBuf,
    /// The immediate, when the opcode carries one.
    pub immediate: u32,
    pub target: sys::ibv_send_wr__bindgen_ty_2,
    pub id: Option<OpId>,
    pub more: bool,
    /// Whether the NIC reads `local` before the post returns.
    pub inline: bool,
}

impl VerbsRail {
    /// Appends to the chain, and posts the chain unless more work requests follow. `inline(always)`, here and in the
    /// functions that it calls, keeps a request from being built twice.
    #[inline(always)]
    pub(super) fn post(&mut self, dest: Dest, request: &Request) -> Result<(), PostError> {
        if let Some((fault, _)) = &self.down {
            return Err(PostError::Failed(fault.clone()));
        }
        let index = self.index(dest).unwrap_or(usize::MAX);
        if self.chain.length > 0 && self.chain.index != index {
            self.flush();
        }
        let name = &self.caps.name;
        let Some(peer) = self.peers.get_mut(index) else {
            return Err(PostError::refused(libc::EINVAL, || format!("rail {name} has no destination {dest}")));
        };
        match &peer.state {
            PeerState::Ready => {}
            PeerState::Waiting => {
                let (code, text) = (libc::EINVAL, format!("destination {dest} of rail {name} is not connected"));
                return Err(PostError::Failed(Fault { code, text, retryable: peer.theirs.is_some() }));
            }
            // The connection had ended before this work request, so the work request may be retried.
            PeerState::Leaving { .. } => return Err(PostError::Failed(left())),
            PeerState::Failed(why) => return Err(PostError::Failed(Fault { retryable: true, ..why.clone() })),
        }
        let Some(sequence) = peer.sent.admit(&mut self.credits, request.id) else {
            // The chain holds credits that are freed only once it is posted.
            self.flush();
            return Err(PostError::Again);
        };
        let last = !request.more || self.chain.length + 1 == LENGTH;
        let signalled = peer.sent.signal_last(&mut self.credits, last);
        self.chain.index = index;
        self.chain.append(index, sequence, signalled, request);
        if last { self.flush_but_last() } else { Ok(()) }
    }

    /// Posts the chain, if there is one. The next poll reports work requests that could not be posted as failed.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.chain.length > 0 {
            self.flush_all();
        }
    }

    fn flush_all(&mut self) {
        // The chain's last request may have been written with more to follow.
        if let Some(peer) = self.peers.get_mut(self.chain.index)
            && peer.sent.signal_last(&mut self.credits, true)
        {
            self.chain.requests[self.chain.length - 1].send_flags |= sys::IBV_SEND_SIGNALED;
        }
        if let Err((refused, why)) = self.post_chain() {
            self.unposted.extend(refused.into_iter().map(|id| (id, why.clone())));
        }
    }

    /// As [`VerbsRail::flush`], but the error of the last work request is returned to the caller instead of reported.
    #[inline(always)]
    fn flush_but_last(&mut self) -> Result<(), PostError> {
        let Err((mut refused, why)) = self.post_chain() else { return Ok(()) };
        refused.pop();
        self.unposted.extend(refused.into_iter().map(|id| (id, why.clone())));
        Err(PostError::Failed(why))
    }

    /// Posts a work request that its failed queue pair discards at once, with a completion. That ends earlier work
    /// requests which have no completion of their own, and comes behind all completions of the queue pair. Returns
    /// whether it was posted.
    pub(super) fn post_last(&mut self, index: usize) -> bool {
        let Some(peer) = self.peers.get_mut(index) else { return false };
        // Without room, other work requests will be completed.
        let Some(sequence) = peer.sent.admit_last(&mut self.credits) else { return false };
        let mut request = sys::ibv_send_wr {
            wr_id: work_id(index, sequence),
            opcode: sys::IBV_WR_SEND,
            send_flags: sys::IBV_SEND_SIGNALED,
            ..Default::default()
        };
        let mut bad = null_mut();
        // SAFETY: one request without data; the queue pair is live.
        let code = unsafe { sys::data_path::post_send(peer.queue.raw(), &raw mut request, &mut bad) };
        if code != 0 {
            // It is tried again each second, and those that forget or renew the destination tell when that ends.
            tracing::debug!("rail {}: a queue pair takes nothing any more (code {code})", self.caps.name);
            peer.sent.retract(&mut self.credits, 1).for_each(drop);
        }
        code == 0
    }

    /// Posts the chain; the error has the ids of refused work requests, which are always the last ones.
    #[inline(always)]
    fn post_chain(&mut self) -> Result<(), (Vec<Option<OpId>>, Fault)> {
        let chain = &mut self.chain;
        let length = std::mem::take(&mut chain.length);
        let Some(peer) = self.peers.get_mut(chain.index) else { return Ok(()) };
        chain.requests[length - 1].next = null_mut();
        let mut bad = null_mut();
        // SAFETY: the requests are linked in order and end at the last one. Their buffers are the chain's, or the
        // poster keeps them valid. The queue pair is live.
        let code = unsafe { sys::data_path::post_send(peer.queue.raw(), &raw mut chain.requests[0], &mut bad) };
        if code == 0 {
            return Ok(());
        }
        let posted = chain.requests[..length].iter().position(|request| std::ptr::eq(request, bad)).unwrap_or(0);
        let why = errno_fault(
            code,
            &format!("work requests cannot be posted to destination {}", named(&self.slots, chain.index)),
        );
        let refused = peer.sent.retract(&mut self.credits, length - posted).collect();
        if posted > 0 {
            // The completion that would have ended those before may be among the refused ones, so the queue pair has to
            // end them.
            self.fail_peer(self.chain.index, &why);
        }
        Err((refused, why))
    }
}

impl Chain {
    #[inline(always)]
    fn append(&mut self, index: usize, sequence: u32, signalled: bool, request: &Request) {
        let nth = self.length;
        let mut address = request.local.ptr as u64;
        let mut flags = if signalled { sys::IBV_SEND_SIGNALED } else { 0 };
        if request.inline && request.local.len > 0 {
            flags |= sys::IBV_SEND_INLINE;
            if request.id.is_none() && request.more {
                // The caller may change the bytes at once if it gets no completion, and the chain is not posted at
                // once.
                let copy = &mut self.copies[nth * self.inline..][..request.local.len];
                // SAFETY: the caller vouches for `local`; `copy` is as long and is the chain's own.
                unsafe { std::ptr::copy_nonoverlapping(request.local.ptr, copy.as_mut_ptr(), copy.len()) };
                address = copy.as_ptr() as u64;
            }
        }
        self.sges[nth] = sys::ibv_sge {
            addr: address,
            // The length is at most that of the port's largest message, which has 32 bits.
            length: request.local.len as u32,
            lkey: request.local.key.raw() as u32,
        };
        // The fields are set in place; the other fields of a work request are never set.
        let written = &mut self.requests[nth];
        written.wr_id = work_id(index, sequence);
        written.next = null_mut();
        written.sg_list = &raw mut self.sges[nth];
        written.num_sge = i32::from(request.local.len > 0);
        written.opcode = request.opcode;
        written.send_flags = flags;
        written.__bindgen_anon_1.imm_data = request.immediate.to_be();
        written.wr = request.target;
        if nth > 0 {
            self.requests[nth - 1].next = &raw mut self.requests[nth];
        }
        self.length += 1;
    }
}

/// The number of the destination whose queue pair is at a place.
pub(super) fn named(slots: &Slots, index: usize) -> Dest {
    slots.number(index).unwrap_or(Dest::MAX)
}

/// The work request id of a post: the place of its queue pair and its sequence number. Receives have the highest bit.
fn work_id(index: usize, sequence: u32) -> u64 {
    (index as u64 & 0x7fff_ffff) << 32 | u64::from(sequence)
}

/// The place of the queue pair and the sequence number of a work request id.
pub(super) fn from_work_id(wr_id: u64) -> (usize, u32) {
    ((wr_id >> 32) as usize & 0x7fff_ffff, wr_id as u32)
}
