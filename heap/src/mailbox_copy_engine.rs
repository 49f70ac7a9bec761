//! A copy engine that leaves small writes to a waiting kernel, where there is one.

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::copy_engine::{Between, Copy, CopyCompletion, CopyEngine};
use crate::mailbox::Mailbox;

/// Another copy engine, and a [`Mailbox`] beside it.
///
/// Writes take effect in the order in which they were started. A write behind one in the mailbox goes there too, or is
/// held back until the mailbox is empty. No write goes to the mailbox while copies to the memory are under way.
pub struct MailboxCopyEngine<M> {
    inner: M,
    mailbox: Mailbox,
    /// Copies to the memory that wait until the mailbox is empty, the oldest first.
    held: VecDeque<(Copy, u64)>,
    /// Kept for its memory.
    back: VecDeque<(Copy, u64)>,
}

// SAFETY: the pointers of waiting copies are in the copy engine's staging buffer.
unsafe impl<M: Send> Send for MailboxCopyEngine<M> {}

impl<M: CopyEngine> MailboxCopyEngine<M> {
    /// Leaves copies that do not use the mailbox to `inner`.
    pub fn new(inner: M, mailbox: Mailbox) -> Self {
        MailboxCopyEngine { inner, mailbox, held: VecDeque::new(), back: VecDeque::new() }
    }
}

// SAFETY: staging buffer and copies are the inner copy engine's. A write that is left to a reader is reported when the
// reader or the inner copy engine has done it.
unsafe impl<M: CopyEngine> CopyEngine for MailboxCopyEngine<M> {
    fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        self.inner.staging_buffer()
    }

    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String> {
        if copy.to_memory && !self.held.is_empty() {
            self.held.push_back((copy, ticket));
            return Ok(());
        }
        // SAFETY: the caller's promise.
        if copy.to_memory && self.inner.writing() == 0 && unsafe { self.mailbox.offer(copy, ticket) } {
            return Ok(());
        }
        if copy.to_memory && !self.mailbox.is_empty() {
            self.held.push_back((copy, ticket));
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.start(copy, ticket) }
    }

    fn prepare_peer(&mut self, peer: usize) -> Result<(), String> {
        self.inner.prepare_peer(peer)
    }

    unsafe fn start_between(&mut self, copy: Between, ticket: u64) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.start_between(copy, ticket) }
    }

    fn flush_nic_writes(&mut self) {
        self.inner.flush_nic_writes();
    }

    fn room_for_words(&mut self) -> usize {
        if self.held.is_empty() && self.inner.writing() == 0 { self.mailbox.room() } else { 0 }
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize {
        let mut count = 0;
        let back = &mut self.back;
        let mut taken = |ticket| {
            count += 1;
            ended(CopyCompletion { ticket, result: Ok(()) });
        };
        self.mailbox.poll(&mut taken, &mut |copy, ticket| back.push_back((copy, ticket)));
        // Returned writes are older than those held back.
        while let Some(copy) = self.back.pop_back() {
            self.held.push_front(copy);
        }
        while self.mailbox.is_empty()
            && let Some((copy, ticket)) = self.held.pop_front()
        {
            // SAFETY: the caller of `start` keeps it valid until the copy is reported.
            if let Err(why) = unsafe { self.inner.start(copy, ticket) } {
                count += 1;
                ended(CopyCompletion { ticket, result: Err(why) });
            }
        }
        count + self.inner.poll(ended)
    }

    fn pending(&self) -> usize {
        self.mailbox.len() + self.held.len() + self.inner.pending()
    }

    fn writing(&self) -> usize {
        self.mailbox.len() + self.held.len() + self.inner.writing()
    }
}
