//! Writes and reads, of one piece or several, in libfabric's words.

use std::ffi::c_void;
use std::ptr;

use libfabric_sys as ffi;
use libfabric_sys::Info;

use super::provider::traits;
use crate::rail::{Notify, Piece};

/// The most pieces of one write or read: what providers over TCP take.
const MOST_PIECES: usize = 4;

/// What lies in sockets should be in the CPUs' caches still when it is taken out: on one machine, 16 writes of 1 MiB
/// under way together take a quarter longer than one after the other. It is more than a network of 100 Gbit/s and 100
/// µs holds.
const TCP_WINDOW: u64 = 2 << 20;

/// See [`RailCaps::window`](crate::rail::RailCaps::window).
pub(super) fn window(provider: &str) -> u64 {
    if traits(provider).over_tcp { TCP_WINDOW } else { u64::MAX }
}

/// How many pieces it is worth while to let a write or read have: several where each work request costs a system call
/// or more, and a packet.
pub(super) fn pieces(info: &Info) -> usize {
    if !traits(&info.provider()).over_tcp {
        return 1;
    }
    // SAFETY: whatever libfabric offers has its attribute structs.
    let (here, there) = unsafe {
        let tx = &*(*info.as_ptr()).tx_attr;
        (tx.iov_limit, tx.rma_iov_limit)
    };
    here.min(there).clamp(1, MOST_PIECES)
}

/// A write's completion flags.
#[inline]
pub(super) fn asked_for(notify: Notify) -> u64 {
    match notify {
        // Any completion means that the buffer is free again. FI_TRANSMIT_COMPLETE would mean more: tcp answers it with
        // an acknowledgement of the target, as slow as delivery.
        Notify::Transmitted => 0,
        Notify::Delivered => ffi::FI_DELIVERY_COMPLETE,
    }
}

/// Builds the message of a write or a read of at most [`MOST_PIECES`] pieces and hands it to `post`.
///
/// # Safety
/// `post` keeps nothing of the message itself, only what it points to in turn.
#[inline]
pub(super) unsafe fn message(
    peer: ffi::fi_addr_t,
    pieces: &[Piece],
    context: *mut c_void,
    data: u64,
    post: impl FnOnce(*const ffi::fi_msg_rma) -> isize,
) -> isize {
    let mut iovs = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MOST_PIECES];
    let mut targets = [ffi::fi_rma_iov { addr: 0, len: 0, key: 0 }; MOST_PIECES];
    let mut descriptors = [ptr::null_mut::<c_void>(); MOST_PIECES];
    let count = pieces.len().min(MOST_PIECES);
    for (at, &Piece { local, remote }) in pieces[..count].iter().enumerate() {
        iovs[at] = libc::iovec { iov_base: local.ptr.cast(), iov_len: local.len };
        targets[at] = ffi::fi_rma_iov { addr: remote.address, len: local.len, key: remote.key };
        descriptors[at] = local.key.raw() as *mut c_void;
    }
    let message = ffi::fi_msg_rma {
        msg_iov: iovs.as_ptr(),
        desc: descriptors.as_mut_ptr(),
        iov_count: count,
        addr: peer,
        rma_iov: targets.as_ptr(),
        rma_iov_count: count,
        context,
        data,
    };
    post(&raw const message)
}
