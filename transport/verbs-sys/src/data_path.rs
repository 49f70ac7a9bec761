//! Posting and polling. C has these as inline functions that call through the device's table of operations.

use libc::{ENOSYS, c_int};

use crate::bindings::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc};

/// Posts a list of send work requests. Returns 0 or an errno. On an errno `*bad` is the first one that was not posted.
///
/// # Safety
/// `qp` is a live queue pair, and `wr` a list of valid work requests, linked by `next`.
#[inline]
pub unsafe fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller vouches for `qp`, whose context the library filled in when it was created.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: the arguments are the caller's.
        Some(post) => unsafe { post(qp, wr, bad) },
        None => ENOSYS,
    }
}

/// Posts a list of receive work requests to a shared receive queue. Returns 0 or an errno.
///
/// # Safety
/// `srq` is a live shared receive queue, and `wr` a list of valid work requests, linked by `next`.
#[inline]
pub unsafe fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as in `post_send`.
    match unsafe { (*(*srq).context).ops.post_srq_recv } {
        // SAFETY: the arguments are the caller's.
        Some(post) => unsafe { post(srq, wr, bad) },
        None => ENOSYS,
    }
}

/// Reads completions into `entries`. Returns their number, or a negative number when the queue has failed.
///
/// # Safety
/// `cq` is a live completion queue that no other thread polls now.
#[inline]
pub unsafe fn poll_cq(cq: *mut ibv_cq, entries: &mut [ibv_wc]) -> c_int {
    let room = c_int::try_from(entries.len()).unwrap_or(c_int::MAX);
    // SAFETY: as in `post_send`.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: `entries` has as much room as the call says.
        Some(poll) => unsafe { poll(cq, room, entries.as_mut_ptr()) },
        None => -ENOSYS,
    }
}

/// Requests an event on the queue's channel at the next completion. Returns 0 or an errno.
///
/// # Safety
/// `cq` is a live completion queue.
#[inline]
pub unsafe fn req_notify_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: as in `post_send`.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: `cq` is the caller's.
        Some(arm) => unsafe { arm(cq, 0) },
        None => ENOSYS,
    }
}
