//! A collective call, as PEs exchange it to compare their calls.

use symrail_heap::agreement::ALLOC_CALL_LEN;
use symrail_heap::{AllocCall, AllocOp};
use symrail_transport::Pe;

use crate::error::Result;

/// The names of the calls. PEs exchange the index.
const CALLS: [&str; 22] = [
    "a call on the heap",
    "barrier_all",
    "sync_all",
    "finalize",
    "sync",
    "broadcast",
    "collect",
    "fcollect",
    "alltoall",
    "alltoalls",
    "scan",
    "split of a team",
    "end of a team",
    "sum reduction",
    "product reduction",
    "min reduction",
    "max reduction",
    "and reduction",
    "or reduction",
    "xor reduction",
    "reduce_scatter",
    "other reduction",
];

/// Bits of the number with which a team's PEs compare calls: size, root, and the call above them.
const SIZE_BITS: u32 = 38;
const ROOT_BITS: u32 = 20;

/// Bytes of a call in the comparison of all PEs: that number, the bytes, and the call on the heap.
pub(crate) const CALL_LEN: usize = 16 + ALLOC_CALL_LEN;

/// A call, as one PE makes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// One of [`CALLS`].
    pub what: &'static str,
    /// Bytes of each PE's contribution, if all contribute the same.
    pub bytes: usize,
    pub root: u32,
    /// The parameters of a call on the heap.
    pub heap: Option<AllocCall>,
}

impl Call {
    pub fn new(what: &'static str, bytes: usize) -> Call {
        Call { what, bytes, root: 0, heap: None }
    }

    pub fn on_heap(call: AllocCall) -> Call {
        Call { heap: Some(call), ..Call::new(CALLS[0], 0) }
    }

    pub fn to_number(self) -> u64 {
        let what = CALLS.iter().position(|call| *call == self.what).unwrap_or(CALLS.len() - 1) as u64;
        let (root, bytes) = (u64::from(self.root) & ((1 << ROOT_BITS) - 1), self.bytes as u64 & ((1 << SIZE_BITS) - 1));
        what << (ROOT_BITS + SIZE_BITS) | root << SIZE_BITS | bytes
    }

    pub fn encode(&self) -> [u8; CALL_LEN] {
        let mut bytes = [0; CALL_LEN];
        bytes[..8].copy_from_slice(&self.to_number().to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        if let Some(call) = &self.heap {
            bytes[16..].copy_from_slice(&call.encode());
        }
        bytes
    }

    /// A call in words, as PE `pe` has encoded it, and its parameters if it is a call on the heap.
    pub fn decode(bytes: &[u8], pe: Pe) -> Result<(String, Option<AllocCall>)> {
        let Some((number, rest)) = bytes.split_first_chunk::<8>().filter(|_| bytes.len() == CALL_LEN) else {
            let why = format!("it has {} bytes instead of {CALL_LEN}", bytes.len());
            return Err(symrail_transport::Error::Malformed { what: "collective call", pe, why }.into());
        };
        let number = u64::from_le_bytes(*number);
        if number >> (ROOT_BITS + SIZE_BITS) != 0 {
            return Ok((describe(number), None));
        }
        let call = AllocCall::decode(&rest[8..], pe)?;
        Ok((describe_on_heap(&call), Some(call)))
    }

    pub fn words(&self) -> String {
        self.heap.as_ref().map_or_else(|| describe(self.to_number()), describe_on_heap)
    }
}

/// A call in words, from its number.
pub(super) fn describe(number: u64) -> String {
    let what = CALLS.get((number >> (ROOT_BITS + SIZE_BITS)) as usize).copied().unwrap_or("something unknown");
    let (root, bytes) = (number >> SIZE_BITS & ((1 << ROOT_BITS) - 1), number & ((1 << SIZE_BITS) - 1));
    match what {
        "broadcast" => format!("broadcast of {bytes} bytes from root {root}"),
        "alltoall" | "alltoalls" | "fcollect" | "scan" => format!("{what} of {bytes} bytes"),
        _ if what.ends_with("reduction") => format!("{what} of {bytes} bytes"),
        _ => what.to_owned(),
    }
}

fn describe_on_heap(call: &AllocCall) -> String {
    match call.op {
        AllocOp::Alloc => format!("allocation of {} bytes aligned to {}", call.size, call.align),
        AllocOp::Realloc => format!("realloc of offset {:#x} to {} bytes", call.offset, call.size),
        AllocOp::Free => format!("free of offset {:#x}", call.offset),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn calls_are_told_by_numbers() {
        let broadcast = Call { root: 3, ..Call::new("broadcast", 24) };
        assert_eq!(describe(broadcast.to_number()), "broadcast of 24 bytes from root 3");
        assert_eq!(describe(Call::new("sum reduction", 1 << 37).to_number()), "sum reduction of 137438953472 bytes");
        assert_eq!(describe(Call::new("sync", 0).to_number()), "sync");
        assert_eq!(Call::decode(&broadcast.encode(), 0).unwrap(), (broadcast.words(), None));
        let free = AllocCall { sequence: 3, op: AllocOp::Free, size: 0, align: 0, offset: 64 };
        let (words, call) = Call::decode(&Call::on_heap(free).encode(), 0).unwrap();
        assert_eq!((words.as_str(), call), ("free of offset 0x40", Some(free)));
        assert!(Call::decode(&[0; CALL_LEN - 1], 0).is_err());
        assert!(Call::new("other reduction", usize::MAX).to_number() < u64::MAX, "there is one more number");
        let numbers: std::collections::BTreeSet<u64> = CALLS.iter().map(|c| Call::new(c, 8).to_number()).collect();
        assert_eq!(numbers.len(), CALLS.len());
    }
}
