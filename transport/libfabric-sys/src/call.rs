//! The inline functions of libfabric's headers: calls through an object's tables.
//!
//! Each function is documented in the manual page of its name, which has its safety rules: objects are live, buffers
//! are valid for as long as the operation may use them, and the destinations of results are writable. A table entry
//! that a provider leaves empty returns `-FI_ENOSYS`. Results are 0 or a count, or a negated `FI_E…`.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

use std::ffi::{c_char, c_int, c_void};

use crate::*;

/// Defines functions that pass their arguments to a table entry of their first argument.
macro_rules! inline_functions {
    ($($(#[$doc:meta])* fn $name:ident($object:ident: $kind:ty $(, $arg:ident: $ty:ty)*) -> $result:ty
        => $($table:ident).+ => $entry:ident($($pass:expr),*);)*) => {$(
        $(#[$doc])*
        #[inline]
        #[must_use]
        pub unsafe fn $name($object: $kind $(, $arg: $ty)*) -> $result {
            // SAFETY: the caller vouches for the object, whose tables live as long as it does, and for the arguments.
            unsafe {
                match (*(*$object).$($table).+).$entry {
                    Some(function) => function($($pass),*),
                    None => -(FI_ENOSYS as $result),
                }
            }
        }
    )*};
}

inline_functions! {
    /// `fi_domain(3)`
    fn fi_domain(fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain, context: *mut c_void) -> c_int
        => ops => domain(fabric, info, domain, context);
    /// `fi_poll(3)`: whether it is safe to sleep on the wait objects of `fids`
    fn fi_trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: usize) -> c_int
        => ops => trywait(fabric, fids, count as c_int);
    /// `fi_endpoint(3)`
    fn fi_endpoint(domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void) -> c_int
        => ops => endpoint(domain, info, ep, context);
    /// `fi_cq(3)`
    fn fi_cq_open(domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void) -> c_int
        => ops => cq_open(domain, attr, cq, context);
    /// `fi_av(3)`
    fn fi_av_open(domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void) -> c_int
        => ops => av_open(domain, attr, av, context);
    /// `fi_atomic(3)`
    fn fi_query_atomic(
        domain: *mut fid_domain, datatype: fi_datatype, op: fi_op, attr: *mut fi_atomic_attr, flags: u64
    ) -> c_int => ops => query_atomic(domain, datatype, op, attr, flags);
    /// `fi_mr(3)`
    fn fi_mr_reg(
        domain: *mut fid_domain, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
        mr: *mut *mut fid_mr, context: *mut c_void
    ) -> c_int => mr => reg(&raw mut (*domain).fid, buf, len, access, offset, requested_key, flags, mr, context);
    /// `fi_mr(3)`
    fn fi_mr_regattr(domain: *mut fid_domain, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int
        => mr => regattr(&raw mut (*domain).fid, attr, flags, mr);
    /// `fi_mr(3)`
    fn fi_mr_bind(mr: *mut fid_mr, fid: *mut fid, flags: u64) -> c_int
        => fid.ops => bind(&raw mut (*mr).fid, fid, flags);
    /// `fi_mr(3)`
    fn fi_mr_enable(mr: *mut fid_mr) -> c_int
        => fid.ops => control(&raw mut (*mr).fid, FI_ENABLE as c_int, std::ptr::null_mut());
    /// `fi_endpoint(3)`
    fn fi_ep_bind(ep: *mut fid_ep, fid: *mut fid, flags: u64) -> c_int
        => fid.ops => bind(&raw mut (*ep).fid, fid, flags);
    /// `fi_endpoint(3)`
    fn fi_enable(ep: *mut fid_ep) -> c_int
        => fid.ops => control(&raw mut (*ep).fid, FI_ENABLE as c_int, std::ptr::null_mut());
    /// `fi_endpoint(3)`
    fn fi_cancel(ep: *mut fid_ep, context: *mut c_void) -> isize
        => ops => cancel(&raw mut (*ep).fid, context);
    /// `fi_endpoint(3)`
    fn fi_setopt(ep: *mut fid_ep, level: c_int, optname: c_int, optval: *const c_void, optlen: usize) -> c_int
        => ops => setopt(&raw mut (*ep).fid, level, optname, optval, optlen);
    /// `fi_cm(3)`
    fn fi_getname(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int
        => cm => getname(&raw mut (*ep).fid, addr, addrlen);
    /// `fi_av(3)`: the number of addresses inserted
    fn fi_av_insert(
        av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void
    ) -> c_int => ops => insert(av, addr, count, fi_addr, flags, context);
    /// `fi_av(3)`
    fn fi_av_remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int
        => ops => remove(av, fi_addr, count, flags);
    /// `fi_cq(3)`: the number of entries read
    fn fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize
        => ops => read(cq, buf, count);
    /// `fi_cq(3)`: the number of entries read, with the addresses of their senders
    fn fi_cq_readfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t) -> isize
        => ops => readfrom(cq, buf, count, src_addr);
    /// `fi_cq(3)`
    fn fi_cq_readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize
        => ops => readerr(cq, buf, flags);
    /// `fi_rma(3)`
    fn fi_writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize
        => rma => writemsg(ep, msg, flags);
    /// `fi_rma(3)`
    fn fi_readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize
        => rma => readmsg(ep, msg, flags);
    /// `fi_rma(3)`
    fn fi_inject_write(
        ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64
    ) -> isize => rma => inject(ep, buf, len, dest_addr, addr, key);
    /// `fi_rma(3)`
    fn fi_inject_writedata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64, key: u64
    ) -> isize => rma => injectdata(ep, buf, len, data, dest_addr, addr, key);
    /// `fi_msg(3)`
    fn fi_sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize
        => msg => sendmsg(ep, msg, flags);
    /// `fi_msg(3)`
    fn fi_inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize
        => msg => inject(ep, buf, len, dest_addr);
    /// `fi_msg(3)`
    fn fi_recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize
        => msg => recvmsg(ep, msg, flags);
    /// `fi_atomic(3)`
    fn fi_atomicmsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize
        => atomic => writemsg(ep, msg, flags);
    /// `fi_atomic(3)`
    fn fi_fetch_atomicmsg(
        ep: *mut fid_ep, msg: *const fi_msg_atomic, results: *mut fi_ioc, result_desc: *mut *mut c_void,
        result_count: usize, flags: u64
    ) -> isize => atomic => readwritemsg(ep, msg, results, result_desc, result_count, flags);
    /// `fi_atomic(3)`
    fn fi_compare_atomicmsg(
        ep: *mut fid_ep, msg: *const fi_msg_atomic, compares: *const fi_ioc, compare_desc: *mut *mut c_void,
        compare_count: usize, results: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize, flags: u64
    ) -> isize => atomic => compwritemsg(
        ep, msg, compares, compare_desc, compare_count, results, result_desc, result_count, flags);
    /// `fi_control(3)`
    fn fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int
        => ops => control(fid, command, arg);
    /// `fi_close(3)`
    fn fi_close(fid: *mut fid) -> c_int
        => ops => close(fid);
}

/// `fi_cq(3)`: the provider's text for an error entry, in `buf` or static.
///
/// # Safety
/// As the manual page: the entry's `prov_errno` and `err_data`, and `len` bytes at `buf`.
#[inline]
#[must_use]
pub unsafe fn fi_cq_strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller vouches for the queue and the arguments.
    unsafe {
        match (*(*cq).ops).strerror {
            Some(function) => function(cq, prov_errno, err_data, buf, len),
            None => std::ptr::null(),
        }
    }
}

/// `fi_mr(3)`: the descriptor for local operations.
///
/// # Safety
/// `mr` is live.
#[inline]
#[must_use]
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: live by the contract.
    unsafe { (*mr).mem_desc }
}

/// `fi_mr(3)`: the key for peers.
///
/// # Safety
/// `mr` is live.
#[inline]
#[must_use]
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: live by the contract.
    unsafe { (*mr).key }
}
