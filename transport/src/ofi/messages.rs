//! Receive buffers, which are kept posted.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;

use libfabric_sys as ffi;

use super::domain::{Domain, Object};
use super::memory::{self, Mode};
use super::variables::RXM_BUFFERS;
use crate::error::{Error, Result};
use crate::wire::Request;

/// Largest message. Control messages have tens of bytes. Small payloads that need the target's CPU fit beside them:
/// four of 1 KiB, or one of 4 KiB, in the buffers that `load` requests of `ofi_rxm`. So a message waits for no
/// handshake, and a ring of buffers of this size stays in the L2 cache.
pub(super) const MAX_MESSAGE: usize = EAGER + Request::alone(0) + 3 * Request::SIZE;
/// Every provider sends 4 KiB by its eager protocol.
const EAGER: usize = 4 << 10;

/// The smallest buffer size that a user may set for `ofi_rxm`: any request fits, and an answer.
const LEAST: usize = 1 << 10;

/// The largest message of a provider.
///
/// # Errors
/// [`Error::Setting`] when the user has set too small buffers.
pub(super) fn largest(provider: &str) -> Result<usize> {
    if super::provider::traits(provider).buffers {
        largest_in(std::env::var(RXM_BUFFERS).ok().as_deref())
    } else {
        Ok(EAGER)
    }
}

/// The largest message for `ofi_rxm` with buffers of so many bytes. A larger one would wait for a peer that may not
/// poll.
fn largest_in(buffers: Option<&str>) -> Result<usize> {
    match buffers.map(|text| (text, text.trim().parse::<usize>())) {
        Some((value, Ok(bytes))) if bytes < LEAST => Err(Error::Setting {
            name: RXM_BUFFERS.to_owned(),
            value: value.to_owned(),
            accepted: format!("{LEAST} bytes or more"),
        }),
        Some((_, Ok(bytes))) => Ok(MAX_MESSAGE.min(bytes)),
        // For invalid text libfabric uses its own default, which is larger.
        Some((_, Err(_))) | None => Ok(MAX_MESSAGE),
    }
}

/// Posted buffers: more than a poll's batch of completions, so that some are posted while a batch is handled. Further
/// messages are not lost: reliable endpoints hold them at the provider or at the sender.
const BUFFERS: usize = 64;

/// One receive buffer. It is in a cell, because the provider writes to it while the ring is borrowed.
#[repr(C, align(64))]
struct Buffer(UnsafeCell<[u8; MAX_MESSAGE]>);

/// The posted receive buffers of an endpoint.
pub(super) struct Receives {
    /// The registration of `buffers`, where local buffers need one.
    region: Option<Object<ffi::fid_mr>>,
    buffers: Box<[Buffer]>,
    contexts: Box<[UnsafeCell<ffi::fi_context2>]>,
    /// Numbers of buffers that could not be posted again yet.
    waiting: Vec<usize>,
}

impl Receives {
    pub fn new(queue: usize) -> Self {
        let count = BUFFERS.min(queue).max(1);
        // SAFETY: all-zero is a valid context.
        let context = || UnsafeCell::new(unsafe { std::mem::zeroed() });
        Receives {
            region: None,
            buffers: (0..count).map(|_| Buffer(UnsafeCell::new([0; MAX_MESSAGE]))).collect(),
            contexts: (0..count).map(|_| context()).collect(),
            waiting: (0..count).rev().collect(),
        }
    }

    /// Registers the buffers, if needed, and posts them all.
    pub fn start(&mut self, domain: &Domain, endpoint: &Object<ffi::fid_ep>, mode: Mode) -> Result<()> {
        if mode.local {
            let bytes = (self.buffers.as_ptr().cast_mut().cast(), size_of_val::<[_]>(&self.buffers));
            // SAFETY: `buffers` is freed after `region` is closed (field order).
            self.region = Some(unsafe { memory::register(domain, endpoint, mode, bytes) }?);
        }
        match self.post_waiting(endpoint) {
            0 => Ok(()),
            code => domain.check("fi_recvmsg", code as i32),
        }
    }

    /// The number of buffers.
    pub fn count(&self) -> usize {
        self.contexts.len()
    }

    /// The number of the buffer that was posted with `context`.
    #[inline]
    pub fn find(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).wrapping_sub(self.contexts.as_ptr() as usize);
        let index = offset / size_of::<ffi::fi_context2>();
        (index < self.contexts.len()).then_some(index)
    }

    /// The bytes of a buffer that completed with `length` bytes.
    ///
    /// # Safety
    /// The buffer completed and was not posted again, so that nothing writes to it while the slice lives.
    #[inline]
    pub unsafe fn bytes(&self, index: usize, length: usize) -> &[u8] {
        // SAFETY: inside the buffer (a longer length is cut), initialised at the start, and not written to, by the
        // contract.
        unsafe { std::slice::from_raw_parts(self.buffers[index].0.get().cast(), length.min(MAX_MESSAGE)) }
    }

    /// Posts a buffer again after its message was handled. Returns 0, or the provider's error. If the queue is full,
    /// the next [`Receives::post_waiting`] tries again.
    #[inline]
    pub fn post(&mut self, endpoint: &Object<ffi::fid_ep>, index: usize) -> isize {
        // Completed buffers and waiting ones together never exceed the count, so this does not allocate.
        self.waiting.push(index);
        self.post_waiting(endpoint)
    }

    /// Posts the buffers that wait.
    #[inline]
    pub fn post_waiting(&mut self, endpoint: &Object<ffi::fid_ep>) -> isize {
        while let Some(&index) = self.waiting.last() {
            let iov = libc::iovec { iov_base: self.buffers[index].0.get().cast(), iov_len: MAX_MESSAGE };
            // SAFETY: an open region.
            let mut descriptor =
                self.region.as_ref().map_or(ptr::null_mut(), |region| unsafe { ffi::fi_mr_desc(region.as_ptr()) });
            let message = ffi::fi_msg {
                msg_iov: &raw const iov,
                desc: &raw mut descriptor,
                iov_count: 1,
                addr: ffi::FI_ADDR_UNSPEC,
                context: self.contexts[index].get().cast(),
                data: 0,
            };
            // SAFETY: the buffer and its context stay in place until the endpoint is closed, and are not accessed until
            // the receive completes.
            match unsafe { ffi::fi_recvmsg(endpoint.as_ptr(), &raw const message, ffi::FI_COMPLETION) } {
                0 => {
                    self.waiting.pop();
                }
                code if code == -(ffi::FI_EAGAIN as isize) => return 0,
                code => return code,
            }
        }
        0
    }

    /// Whether any buffer waits for [`Receives::post_waiting`].
    #[inline]
    pub fn is_short(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ofi::variables::DEFAULTS;
    use crate::wire::Token;

    #[test]
    fn ofi_rxm_has_buffers_for_our_messages() {
        let bytes =
            DEFAULTS.iter().find(|(name, _)| *name == "FI_OFI_RXM_BUFFER_SIZE").and_then(|(_, v)| v.parse().ok());
        assert!(bytes >= Some(MAX_MESSAGE), "{bytes:?}");
        assert_eq!(MAX_MESSAGE, Token::SIZE + 4 * (Request::SIZE + 1024));
        assert_eq!(largest("shm").unwrap(), 4 << 10);
    }

    #[test]
    fn messages_fit_the_buffers_that_the_user_has_asked_for() {
        for (asked, fits) in
            [(None, MAX_MESSAGE), (Some("1024"), 1024), (Some("16384"), MAX_MESSAGE), (Some("x"), MAX_MESSAGE)]
        {
            assert_eq!(largest_in(asked).unwrap(), fits, "{asked:?}");
        }
        let error = largest_in(Some("1023")).unwrap_err().to_string();
        assert!(error.contains("FI_OFI_RXM_BUFFER_SIZE") && error.contains("1024 bytes or more"), "{error}");
    }
}
