//! Contexts of posted work, and reading the completion queue.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use libfabric_sys as ffi;

use super::domain::{Domain, Object};
use super::fault::{fault, is_path_error};
use crate::error::Fault;
use crate::rail::OpId;

/// Completions read from the queue at once: enough to amortize the call, few enough to stay in the L1 cache.
pub(super) const BATCH: usize = 32;

/// The state of one posted operation, shared with the provider.
///
/// Its size is a power of two, so that an address becomes an index by shifting.
#[repr(C, align(128))]
pub(super) struct Slot {
    /// The provider's own part (FI_CONTEXT2 needs this much).
    context: ffi::fi_context2,
    /// The id of the operation.
    id: OpId,
    /// The operands of an atomic, which must stay in place until it completes, and a buffer for an unwanted result.
    pub operand: u64,
    pub compare: u64,
    pub result: u64,
    /// Whether an operation was posted with it and has not completed.
    busy: bool,
}

/// The number of a taken slot, from [`Slab::take`] until it is posted or given back.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotIndex(u32);

/// A fixed number of slots, which bounds the outstanding operations.
pub(super) struct Slab {
    /// The slots are in cells, because the provider writes to a slot's context and results while the slab is borrowed.
    slots: Box<[UnsafeCell<Slot>]>,
    free: Vec<u32>,
}

impl Slab {
    pub fn new(slots: u32) -> Self {
        // SAFETY: all-zero is a valid slot.
        let slot = || UnsafeCell::new(unsafe { std::mem::zeroed::<Slot>() });
        Slab { slots: (0..slots).map(|_| slot()).collect(), free: (0..slots).rev().collect() }
    }

    /// The slots' memory, for registration.
    pub fn bytes(&self) -> (*mut u8, usize) {
        (self.slots.as_ptr().cast_mut().cast(), size_of_val::<[_]>(&self.slots))
    }

    /// Takes a free slot for `id`.
    #[inline]
    pub fn take(&mut self, id: OpId) -> Option<SlotIndex> {
        let index = self.free.pop()?;
        let slot = self.slots[index as usize].get();
        // SAFETY: a free slot is ours alone: no posted operation refers to it.
        unsafe {
            (*slot).id = id;
            (*slot).busy = true;
        }
        Some(SlotIndex(index))
    }

    /// The slot's memory; its first bytes are the context to post with.
    #[inline]
    pub fn get(&self, index: SlotIndex) -> *mut Slot {
        self.slots[index.0 as usize].get()
    }

    /// Takes back a slot whose operation was not posted.
    #[inline]
    pub fn give_back(&mut self, index: SlotIndex) {
        // SAFETY: nothing was posted with it.
        unsafe { (*self.slots[index.0 as usize].get()).busy = false };
        self.free.push(index.0);
    }

    /// Ends the operation that was posted with `context`. Returns its id, or `None` when the context is not an
    /// outstanding one of this slab.
    #[inline]
    pub fn finish(&mut self, context: *mut c_void) -> Option<OpId> {
        let offset = (context as usize).wrapping_sub(self.slots.as_ptr() as usize);
        let index = offset / size_of::<Slot>();
        let slot = self.slots.get(index)?.get();
        // SAFETY: the provider is done with a slot that it reports, and a slot that it does not own is only read.
        unsafe {
            if !(*slot).busy {
                return None;
            }
            (*slot).busy = false;
            self.free.push(index as u32);
            Some((*slot).id)
        }
    }
}

/// The result of one poll of the completion queue.
pub(super) enum Polled {
    /// The number of entries for [`Queue::entry`].
    Entries(usize),
    /// No completion.
    Empty,
    /// One operation failed.
    Failed(Failure),
    /// The queue itself has failed.
    Broken(Fault),
}

/// One entry of the error queue.
pub(super) struct Failure {
    /// The context of the operation, if the provider knows it.
    pub context: *mut c_void,
    /// libfabric's error number, positive.
    pub code: i32,
    pub fault: Fault,
}

/// The completion queue and a buffer for its entries.
pub(super) struct Queue {
    pub cq: Object<ffi::fid_cq>,
    entries: Box<[MaybeUninit<ffi::fi_cq_data_entry>; BATCH]>,
}

impl Queue {
    pub fn new(cq: Object<ffi::fid_cq>) -> Self {
        Queue { cq, entries: Box::new([const { MaybeUninit::uninit() }; BATCH]) }
    }

    /// Makes progress and reads completions.
    #[inline]
    pub fn read(&mut self, domain: &Domain) -> Polled {
        // SAFETY: an open queue and room for BATCH entries of the queue's format.
        let count = unsafe { ffi::fi_cq_read(self.cq.as_ptr(), self.entries.as_mut_ptr().cast(), BATCH) };
        if count > 0 {
            Polled::Entries((count as usize).min(BATCH))
        } else if count == 0 || count == -(ffi::FI_EAGAIN as isize) {
            Polled::Empty
        } else if count == -(ffi::FI_EAVAIL as isize) {
            self.read_failure(domain)
        } else {
            Polled::Broken(fault(&domain.library, count))
        }
    }

    /// One of the entries just read.
    ///
    /// # Safety
    /// `index` is below the count of the last [`Polled::Entries`].
    #[inline]
    pub unsafe fn entry(&self, index: usize) -> ffi::fi_cq_data_entry {
        // SAFETY: the provider has filled in that many.
        unsafe { self.entries[index].assume_init() }
    }

    #[cold]
    fn read_failure(&self, domain: &Domain) -> Polled {
        // SAFETY: all-zero is a valid entry, and asks for error data in the provider's own buffer.
        let mut entry: ffi::fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: an open queue and our own entry.
        let count = unsafe { ffi::fi_cq_readerr(self.cq.as_ptr(), &raw mut entry, 0) };
        if count < 0 {
            return if count == -(ffi::FI_EAGAIN as isize) {
                Polled::Empty
            } else {
                Polled::Broken(fault(&domain.library, count))
            };
        }
        let mut text = domain.library.strerror(entry.err);
        let mut buffer = [0 as c_char; 256];
        // SAFETY: the entry is the queue's own, and the buffer is ours. The result is null or a zero-terminated string
        // in the buffer or in the provider, which is copied at once. The last byte of the buffer stays 0.
        let own = unsafe {
            let own = ffi::fi_cq_strerror(
                self.cq.as_ptr(),
                entry.prov_errno,
                entry.err_data,
                buffer.as_mut_ptr(),
                buffer.len() - 1,
            );
            if own.is_null() { None } else { Some(CStr::from_ptr(own).to_string_lossy()) }
        };
        // Without an error of its own the provider says "Success".
        if let Some(own) = own.filter(|own| entry.prov_errno != 0 && !own.is_empty() && **own != *text) {
            text = format!("{text} ({own})");
        }
        let fault = Fault { code: entry.err, text, retryable: is_path_error(entry.err) };
        Polled::Failed(Failure { context: entry.op_context, code: entry.err, fault })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_slot_ends_once_and_strangers_end_none() {
        let mut slab = Slab::new(2);
        let (first, second) = (slab.take(10).unwrap(), slab.take(20).unwrap());
        assert!(slab.take(30).is_none());
        let context = |slab: &Slab, index| slab.get(index).cast::<c_void>();
        assert_eq!(slab.finish(context(&slab, second)), Some(20));
        assert_eq!(slab.finish(context(&slab, second)), None);
        let beyond = slab.bytes().0.wrapping_add(slab.bytes().1).cast();
        let before = slab.bytes().0.wrapping_sub(1).cast();
        for stranger in [std::ptr::null_mut(), beyond, before] {
            assert_eq!(slab.finish(stranger), None);
        }
        slab.give_back(first);
        assert_eq!(slab.finish(context(&slab, first)), None);
        assert!(slab.take(40).is_some() && slab.take(50).is_some() && slab.take(60).is_none());
    }

    #[test]
    fn the_context_comes_first_and_slots_divide_by_shifting() {
        assert_eq!(std::mem::offset_of!(Slot, context), 0);
        assert_eq!(size_of::<Slot>(), 128);
    }
}
