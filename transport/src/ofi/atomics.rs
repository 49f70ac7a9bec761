//! Atomics that the provider performs.

use std::ffi::c_void;

use libfabric_sys as ffi;
use symrail_core::VariantArray;

use super::completion::Slot;
use super::domain::{Domain, Object};
use crate::amo::{AmoOp, AmoType};
use crate::rail::{LocalBuf, NativeAmo, RemoteBuf};

/// libfabric's code of an operation.
fn op(op: AmoOp) -> ffi::fi_op {
    match op {
        AmoOp::Fetch => ffi::FI_ATOMIC_READ,
        AmoOp::Set => ffi::FI_ATOMIC_WRITE,
        AmoOp::Add => ffi::FI_SUM,
        AmoOp::And => ffi::FI_BAND,
        AmoOp::Or => ffi::FI_BOR,
        AmoOp::Xor => ffi::FI_BXOR,
        AmoOp::CompareSwap => ffi::FI_CSWAP,
    }
}

/// libfabric's code of a type.
fn datatype(ty: AmoType) -> ffi::fi_datatype {
    match ty {
        AmoType::I32 => ffi::FI_INT32,
        AmoType::U32 => ffi::FI_UINT32,
        AmoType::I64 => ffi::FI_INT64,
        AmoType::U64 => ffi::FI_UINT64,
        AmoType::F32 => ffi::FI_FLOAT,
        AmoType::F64 => ffi::FI_DOUBLE,
    }
}

/// The libfabric call for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Plain,
    Fetching,
    Comparing,
}

fn call(op: AmoOp, fetching: bool) -> Call {
    match op {
        AmoOp::CompareSwap => Call::Comparing,
        AmoOp::Fetch => Call::Fetching,
        _ if fetching => Call::Fetching,
        _ => Call::Plain,
    }
}

/// The provider's answers about atomics, queried once.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    supported: [[[bool; 2]; AmoOp::VARIANTS.len()]; AmoType::VARIANTS.len()],
}

impl Atomics {
    /// Queries all atomics from the domain, if it was opened with atomics.
    pub fn query(domain: &Domain) -> Self {
        let mut this = Atomics::default();
        // SAFETY: a live info.
        if unsafe { (*domain.info.as_ptr()).caps } & ffi::FI_ATOMIC == 0 {
            return this;
        }
        for (ty, by_op) in AmoType::VARIANTS.iter().zip(&mut this.supported) {
            for (op, by_fetching) in AmoOp::VARIANTS.iter().zip(by_op) {
                for (fetching, supported) in [false, true].into_iter().zip(by_fetching) {
                    *supported = op.defined_on(*ty) && is_supported(domain, *ty, *op, fetching);
                }
            }
        }
        this
    }

    /// Whether the provider performs any atomic.
    pub fn any(&self) -> bool {
        self.supported.as_flattened().as_flattened().contains(&true)
    }

    pub fn supports(&self, ty: AmoType, op: AmoOp, fetching: bool) -> bool {
        self.supported[ty as usize][op as usize][usize::from(fetching)]
    }
}

fn is_supported(domain: &Domain, ty: AmoType, amo: AmoOp, fetching: bool) -> bool {
    let flags = match call(amo, fetching) {
        Call::Plain => 0,
        Call::Fetching => ffi::FI_FETCH_ATOMIC,
        Call::Comparing => ffi::FI_COMPARE_ATOMIC,
    };
    let mut attr = ffi::fi_atomic_attr { count: 0, size: 0 };
    // SAFETY: an open domain and our own place for the answer.
    let code = unsafe { ffi::fi_query_atomic(domain.domain.as_ptr(), datatype(ty), op(amo), &raw mut attr, flags) };
    code == 0 && attr.count > 0 && attr.size == ty.size()
}

/// Posts an atomic whose operands are in `slot`. Returns 0, or the provider's error.
///
/// # Safety
/// As for [`Rail::amo`](crate::rail::Rail::amo). `slot` is taken and stays until the completion; `descriptor` belongs
/// to its registration where one is needed.
pub(super) unsafe fn post(
    endpoint: &Object<ffi::fid_ep>,
    peer: ffi::fi_addr_t,
    slot: *mut Slot,
    descriptor: *mut c_void,
    remote: RemoteBuf,
    amo: NativeAmo,
) -> isize {
    // SAFETY: the slot is ours until it is posted.
    let (operand, compare, unwanted) = unsafe {
        store(&raw mut (*slot).operand, amo.ty, amo.operand);
        store(&raw mut (*slot).compare, amo.ty, amo.compare);
        (&raw mut (*slot).operand, &raw mut (*slot).compare, &raw mut (*slot).result)
    };
    let ioc = |address: *mut u64| ffi::fi_ioc { addr: address.cast(), count: 1 };
    let (operands, compares) = (ioc(operand), ioc(compare));
    let target = ffi::fi_rma_ioc { addr: remote.address, count: 1, key: remote.key };
    let (mut operand_desc, mut compare_desc) = (descriptor, descriptor);
    let message = ffi::fi_msg_atomic {
        msg_iov: &raw const operands,
        desc: &raw mut operand_desc,
        iov_count: 1,
        addr: peer,
        rma_iov: &raw const target,
        rma_iov_count: 1,
        datatype: datatype(amo.ty),
        op: op(amo.op),
        context: slot.cast(),
        data: 0,
    };
    let (mut results, mut result_desc) = match amo.result {
        Some(LocalBuf { ptr, key, .. }) => (ioc(ptr.cast()), key.raw() as *mut c_void),
        None => (ioc(unwanted), descriptor),
    };
    let (results, result_desc) = (&raw mut results, &raw mut result_desc);
    let endpoint = endpoint.as_ptr();
    // SAFETY: the call copies the lists; their targets stay until the completion, by the contract.
    unsafe {
        match call(amo.op, amo.result.is_some()) {
            Call::Plain => {
                ffi::fi_atomicmsg(endpoint, &raw const message, ffi::FI_COMPLETION | ffi::FI_DELIVERY_COMPLETE)
            }
            Call::Fetching => {
                ffi::fi_fetch_atomicmsg(endpoint, &raw const message, results, result_desc, 1, ffi::FI_COMPLETION)
            }
            Call::Comparing => ffi::fi_compare_atomicmsg(
                endpoint,
                &raw const message,
                &raw const compares,
                &raw mut compare_desc,
                1,
                results,
                result_desc,
                1,
                ffi::FI_COMPLETION,
            ),
        }
    }
}

/// Stores a value's bits where the provider reads a word of the type.
///
/// # Safety
/// `place` may be written.
unsafe fn store(place: *mut u64, ty: AmoType, bits: u64) {
    // SAFETY: the caller's promise; a u64 has room for and is aligned for both sizes.
    unsafe {
        if ty.size() == 4 {
            place.cast::<u32>().write(bits as u32);
        } else {
            place.write(bits);
        }
    }
}
