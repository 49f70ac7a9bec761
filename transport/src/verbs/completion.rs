//! The completion queue of a rail: the only source of completions and arrivals.

use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Arc;

use verbs_sys as sys;

use super::domain::{Domain, errno_fault, failed};
use crate::error::{Fault, Result};

/// Completions that are read at a time.
pub(super) const BATCH: usize = 32;

/// The completion queue, with a wait descriptor on request.
pub(super) struct CompletionQueue {
    domain: Arc<Domain>,
    cq: *mut sys::ibv_cq,
    wait: Option<Wait>,
    /// Completions that were read while arming and have not been returned yet.
    stash: [sys::ibv_wc; BATCH],
    stashed: usize,
}

/// The wait object of a rail: an epoll descriptor over the completion channel and the device's asynchronous events.
struct Wait {
    channel: *mut sys::ibv_comp_channel,
    epoll: RawFd,
}

// SAFETY: as for `Domain`; only `&mut` methods poll the queue.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue for `capacity` completions.
    pub fn new(domain: &Arc<Domain>, capacity: u32, waitable: bool) -> Result<Self> {
        let mut queue = CompletionQueue {
            domain: domain.clone(),
            cq: null_mut(),
            wait: None,
            stash: [sys::ibv_wc::default(); BATCH],
            stashed: 0,
        };
        let mut channel = null_mut();
        if waitable {
            let wait = Wait::new(domain)?;
            channel = wait.channel;
            queue.wait = Some(wait);
        }
        let capacity = i32::try_from(capacity).unwrap_or(i32::MAX);
        let context = domain.context.raw;
        // SAFETY: context and channel (which may be null) are live.
        queue.cq = unsafe { (domain.verbs().ibv_create_cq)(context, capacity, null_mut(), channel, 0) };
        if queue.cq.is_null() {
            return Err(failed("ibv_create_cq", &domain.rail));
        }
        Ok(queue)
    }

    /// The queue's pointer, for creating queue pairs.
    pub fn raw(&self) -> *mut sys::ibv_cq {
        self.cq
    }

    /// Reads completions into `entries`; returns their number.
    pub fn take(&mut self, entries: &mut [sys::ibv_wc; BATCH]) -> Result<usize, Fault> {
        if self.stashed > 0 {
            *entries = self.stash;
            return Ok(std::mem::take(&mut self.stashed));
        }
        // SAFETY: the queue is live, and `&mut self` keeps other threads from polling it.
        let count = unsafe { sys::data_path::poll_cq(self.cq, entries) };
        usize::try_from(count).map_err(|_| errno_fault(count, "the completion queue is broken"))
    }

    /// A descriptor that becomes readable at the next completion after [`CompletionQueue::arm`], or at an event.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.wait.as_ref().map(|wait| wait.epoll)
    }

    /// Requests a wake-up. Returns `false` if a completion is there already.
    pub fn arm(&mut self) -> bool {
        let Some(wait) = &self.wait else { return false };
        if self.stashed > 0 {
            return false;
        }
        wait.drain(&self.domain);
        // SAFETY: the queue is live.
        if unsafe { sys::data_path::req_notify_cq(self.cq) } != 0 {
            return false;
        }
        // Completions from before arming cause no wake-up, so poll once more.
        // SAFETY: as in `take`.
        match usize::try_from(unsafe { sys::data_path::poll_cq(self.cq, &mut self.stash) }) {
            Ok(0) => true,
            Ok(count) => {
                self.stashed = count;
                false
            }
            Err(_) => false,
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if let Some(wait) = &self.wait {
            // Destroying the queue waits until its events are acknowledged.
            wait.drain(&self.domain);
        }
        if !self.cq.is_null() {
            // SAFETY: the rail drops its queue pairs first.
            unsafe { (self.domain.verbs().ibv_destroy_cq)(self.cq) };
        }
        if let Some(wait) = self.wait.take() {
            wait.close(&self.domain);
        }
    }
}

impl Wait {
    fn new(domain: &Domain) -> Result<Self> {
        // SAFETY: the context is open.
        let channel = unsafe { (domain.verbs().ibv_create_comp_channel)(domain.context.raw) };
        if channel.is_null() {
            return Err(failed("ibv_create_comp_channel", &domain.rail));
        }
        // SAFETY: creates a descriptor that `drop` closes.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let wait = Wait { channel, epoll };
        match wait.watch(domain) {
            Ok(()) => Ok(wait),
            Err(error) => {
                wait.close(domain);
                Err(error)
            }
        }
    }

    fn watch(&self, domain: &Domain) -> Result<()> {
        if self.epoll < 0 {
            return Err(failed("epoll_create1", &domain.rail));
        }
        // SAFETY: both are live, so their descriptors are open.
        let (completions, events) = unsafe { ((*self.channel).fd, (*domain.context.raw).async_fd) };
        // SAFETY: the channel's descriptor is open; draining it must not block.
        let flags = unsafe { libc::fcntl(completions, libc::F_GETFL) };
        // SAFETY: as above.
        if flags < 0 || unsafe { libc::fcntl(completions, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            return Err(failed("fcntl(completion channel)", &domain.rail));
        }
        for fd in [completions, events] {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: three open descriptors and a complete event.
            if unsafe { libc::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } < 0 {
                return Err(failed("epoll_ctl", &domain.rail));
            }
        }
        Ok(())
    }

    /// Closes the channel. It is called once, when no completion queue uses it.
    fn close(&self, domain: &Domain) {
        // SAFETY: `new` made both; a negative descriptor, if `new` got none, is refused without effect.
        unsafe {
            (domain.verbs().ibv_destroy_comp_channel)(self.channel);
            libc::close(self.epoll);
        }
    }

    /// Reads and acknowledges the channel's events.
    fn drain(&self, domain: &Domain) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is live and does not block; the queue named by its event is the one that uses it.
        unsafe {
            while (domain.verbs().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                (domain.verbs().ibv_ack_cq_events)(cq, 1);
            }
        }
    }
}
