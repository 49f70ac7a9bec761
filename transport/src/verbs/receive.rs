//! The shared receive queue: where messages and immediates of all peers arrive.

use std::sync::Arc;

use verbs_sys as sys;

use super::domain::{Domain, errno_fault, failed};
use super::memory::OwnMemory;
use crate::error::{Fault, Result};

/// Bytes of one receive buffer, and so of the largest message. Messages are requests to the target agent with a small
/// payload; larger data travels by write.
pub(super) const MESSAGE: usize = 8 << 10;
/// Receives that are kept posted. When peers use up all, the NIC makes them retry until one is posted again.
pub(super) const RECEIVES: u32 = 512;

/// The bit that marks the work request ids of receives.
pub(super) const RECEIVE_BIT: u64 = 1 << 63;

/// The shared receive queue and its buffers.
pub(super) struct ReceiveQueue {
    domain: Arc<Domain>,
    srq: *mut sys::ibv_srq,
    buffers: OwnMemory,
    /// Buffers that have been used and must be posted again.
    used: Vec<u32>,
    count: u32,
}

// SAFETY: as for `Domain`; the buffers are the value's own.
unsafe impl Send for ReceiveQueue {}

impl ReceiveQueue {
    /// Creates a queue of `count` receives, and posts all of them.
    pub fn new(domain: &Arc<Domain>, count: u32) -> Result<Self> {
        let buffers = OwnMemory::new(domain, count as usize * MESSAGE)?;
        let attr = sys::ibv_srq_attr { max_wr: count, max_sge: 1, srq_limit: 0 };
        let mut init = sys::ibv_srq_init_attr { attr, ..Default::default() };
        // SAFETY: the domain is live and `init` a complete description.
        let srq = unsafe { (domain.verbs().ibv_create_srq)(domain.pd, &raw mut init) };
        if srq.is_null() {
            return Err(failed("ibv_create_srq", &domain.rail));
        }
        let mut queue = ReceiveQueue { domain: domain.clone(), srq, buffers, used: (0..count).collect(), count };
        queue.repost().map_err(|fault| crate::error::Error::Fabric {
            call: "ibv_post_srq_recv",
            rail: domain.rail.clone(),
            fault,
        })?;
        Ok(queue)
    }

    /// The queue's pointer, for creating queue pairs.
    pub fn raw(&self) -> *mut sys::ibv_srq {
        self.srq
    }

    /// The message of the receive with that work request id; its buffer will be posted again. `None` for an unknown id.
    pub fn take(&mut self, wr_id: u64) -> Option<*const u8> {
        let index = u32::try_from(wr_id & !RECEIVE_BIT).ok().filter(|index| *index < self.count)?;
        self.used.push(index);
        // SAFETY: `index` is below the number of buffers.
        Some(unsafe { self.buffers.start().add(index as usize * MESSAGE) })
    }

    /// Whether there are buffers to post again.
    #[inline]
    pub fn has_used(&self) -> bool {
        !self.used.is_empty()
    }

    /// Posts all used buffers again, in one list. Buffers that could not be posted are tried again next time.
    pub fn repost(&mut self) -> Result<(), Fault> {
        const BATCH: usize = 32;
        while !self.used.is_empty() {
            let from = self.used.len().saturating_sub(BATCH);
            let batch = &self.used[from..];
            let mut sges = [sys::ibv_sge::default(); BATCH];
            let mut wrs = [sys::ibv_recv_wr::default(); BATCH];
            for (nth, index) in batch.iter().enumerate() {
                sges[nth] = sys::ibv_sge {
                    addr: self.buffers.start() as u64 + u64::from(*index) * MESSAGE as u64,
                    length: MESSAGE as u32,
                    lkey: self.buffers.lkey(),
                };
                let next = if nth + 1 == batch.len() { std::ptr::null_mut() } else { &raw mut wrs[nth + 1] };
                let wr_id = RECEIVE_BIT | u64::from(*index);
                wrs[nth] = sys::ibv_recv_wr { wr_id, next, sg_list: &raw mut sges[nth], num_sge: 1 };
            }
            let mut bad = std::ptr::null_mut();
            // SAFETY: the list links `wrs` in order; each names one of our buffers that no posted receive names.
            let code = unsafe { sys::data_path::post_srq_recv(self.srq, &raw mut wrs[0], &mut bad) };
            if code != 0 {
                // The buffers before `bad` are posted. The batch is the end of the list, so they are removed from its
                // front.
                let posted = wrs[..batch.len()].iter().position(|wr| std::ptr::eq(wr, bad)).unwrap_or(0);
                self.used.drain(from..from + posted);
                return Err(errno_fault(code, "receives cannot be posted"));
            }
            self.used.truncate(from);
        }
        Ok(())
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: the rail drops its queue pairs first, so no object uses the queue any more.
        unsafe { (self.domain.verbs().ibv_destroy_srq)(self.srq) };
    }
}
