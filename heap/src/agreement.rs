//! Agreement of all PEs: the heap's shape, and the sequence of collective allocation calls.

use std::fmt;

use symrail_core::agreement::same;
use symrail_transport::{Error, Pe};

use crate::handle::HeapHandle;

/// Checks that all heaps have the same shape. Handles are in the order of PEs.
///
/// # Errors
/// [`Error::Mismatch`] that names a PE with a differing value, one with the most common value, and both values.
pub fn check_agreement(handles: &[HeapHandle]) -> Result<(), Error> {
    let handles = || (0..).zip(handles);
    same("SYMRAIL_HEAP_SIZE", handles().map(|(pe, handle)| (pe, handle.capacity)))?;
    same("SYMRAIL_HEAP_KIND", handles().map(|(pe, handle)| (pe, format!("{:?}", handle.kind).to_lowercase())))?;
    same("the heap's growth granule", handles().map(|(pe, handle)| (pe, handle.granule)))
}

/// The kind of a collective call on the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum AllocOp {
    /// `malloc`, `calloc` and `align`: takes a block.
    Alloc = 0,
    /// Changes a block's size.
    Realloc = 1,
    /// Returns a block.
    Free = 2,
}

/// One collective call on the heap, which the PEs compare before they make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocCall {
    /// The number of such calls that this PE made before.
    pub sequence: u64,
    /// The name of the call.
    pub op: AllocOp,
    /// The size in bytes; 0 for [`AllocOp::Free`].
    pub size: u64,
    /// The alignment in bytes; 0 for [`AllocOp::Free`].
    pub align: u64,
    /// The symmetric offset of the block that is resized or freed; 0 for [`AllocOp::Alloc`].
    pub offset: u64,
}

/// The size of an encoded [`AllocCall`] in bytes.
pub const ALLOC_CALL_LEN: usize = 40;

impl AllocCall {
    /// The call as bytes, little-endian.
    #[must_use]
    pub fn encode(&self) -> [u8; ALLOC_CALL_LEN] {
        let mut bytes = [0; ALLOC_CALL_LEN];
        let fields = [self.sequence, self.op as u64, self.size, self.align, self.offset];
        for (to, field) in bytes.chunks_exact_mut(8).zip(fields) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Decodes a call that PE `pe` is about to make.
    ///
    /// # Errors
    /// [`Error::Malformed`] with the reason.
    pub fn decode(bytes: &[u8], pe: Pe) -> Result<Self, Error> {
        let bad = |why: String| Error::Malformed { what: "allocation call", pe, why };
        let bytes: &[u8; ALLOC_CALL_LEN] =
            bytes.try_into().map_err(|_| bad(format!("it has {} bytes instead of {ALLOC_CALL_LEN}", bytes.len())))?;
        let mut fields = [0; ALLOC_CALL_LEN / 8];
        for (field, from) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
            *field = from.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        }
        let [sequence, op, size, align, offset] = fields;
        let known = u8::try_from(op).ok().and_then(AllocOp::from_repr);
        let op = known.ok_or_else(|| bad(format!("operation {op} does not exist")))?;
        Ok(AllocCall { sequence, op, size, align, offset })
    }

    /// Checks that all PEs are about to make the same call. Calls are in the order of PEs.
    ///
    /// # Errors
    /// [`Error::Mismatch`] that names a PE with a differing call, one with the most common call, and both calls.
    pub fn check(calls: &[AllocCall]) -> Result<(), Error> {
        same("the collective call on the symmetric heap", (0..).zip(calls.iter().copied()))
    }
}

impl fmt::Display for AllocCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AllocCall { sequence, op, size, align, offset } = self;
        match op {
            AllocOp::Alloc => write!(f, "call {sequence}: {size} bytes aligned to {align}"),
            AllocOp::Realloc => write!(f, "call {sequence}: realloc of offset {offset:#x} to {size} bytes"),
            AllocOp::Free => write!(f, "call {sequence}: free of offset {offset:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn call(size: u64) -> AllocCall {
        AllocCall { sequence: 7, op: AllocOp::Alloc, size, align: 64, offset: 0 }
    }

    #[test]
    fn any_field_that_differs_is_seen() {
        let differing = [
            AllocCall { sequence: 8, ..call(8) },
            AllocCall { op: AllocOp::Realloc, ..call(8) },
            AllocCall { align: 128, ..call(8) },
            AllocCall { offset: 64, ..call(8) },
        ];
        for other in differing {
            assert!(AllocCall::check(&[call(8), other]).is_err(), "{other:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn calls_come_back_as_they_went(fields in any::<[u64; 4]>(), op in 0u64..4) {
            let mut bytes = AllocCall { sequence: fields[0], op: AllocOp::Free, size: fields[1], align: fields[2], offset: fields[3] }
                .encode();
            bytes[8] = op as u8;
            match AllocCall::decode(&bytes, 2) {
                Ok(call) => prop_assert_eq!(call.encode(), bytes),
                Err(error) => prop_assert!(op > 2 && error.to_string().contains("PE 2")),
            }
            prop_assert!(AllocCall::decode(&bytes[1..], 2).is_err());
        }
    }
}
