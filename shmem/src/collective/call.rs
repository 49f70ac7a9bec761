//! A collective call, as PEs exchange it to compare their calls.

use symrail_heap::agreement::ALLOC_CALL_LEN;
use symrail_heap::{AllocCall, AllocOp};
use symrail_transport::Pe;

use super::element::{ElementType, Extent};
use crate::error::Result;
use crate::rma::Strided;

/// The names of the calls. PEs exchange the index.
const CALLS: [&str; 23] = [
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
    "average reduction",
    "reduce_scatter",
    "other reduction",
];

/// The numbers with which a team's PEs compare calls: the call, its reduction, the elements' type and the root; the
/// bytes; the strides.
pub(super) const NUMBERS: usize = 3;
/// Bits of the first one, from the lowest on: the root, the type, the reduction, and the call.
const TYPE: u32 = 32;
const REDUCTION: u32 = TYPE + 8;
const WHAT: u32 = REDUCTION + 8;

/// Bytes of a call in the comparison of all PEs: those numbers, and the call on the heap.
pub(crate) const CALL_LEN: usize = 8 * NUMBERS + ALLOC_CALL_LEN;

/// A call, as one PE makes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// One of [`CALLS`].
    pub what: &'static str,
    /// Bytes of each PE's contribution, if all contribute the same.
    pub bytes: usize,
    /// The type of the elements.
    pub ty: ElementType,
    /// One of [`CALLS`], if the call is not itself a reduction.
    pub reduction: Option<&'static str>,
    pub root: u32,
    /// Strides of destination and source; at most `u32::MAX` each.
    pub strides: [u32; 2],
    /// The parameters of a call on the heap.
    pub heap: Option<AllocCall>,
}

impl Call {
    pub fn new(what: &'static str, extent: impl Into<Extent>) -> Call {
        let Extent { bytes, ty } = extent.into();
        Call { what, bytes, ty, reduction: None, root: 0, strides: [1, 1], heap: None }
    }

    pub fn strided(what: &'static str, shape: Strided, ty: ElementType) -> Call {
        let strides = [shape.dest_stride, shape.source_stride].map(|stride| u32::try_from(stride).unwrap_or(u32::MAX));
        Call { strides, ..Call::new(what, Extent { bytes: shape.count.saturating_mul(shape.size), ty }) }
    }

    pub fn on_heap(call: AllocCall) -> Call {
        Call { heap: Some(call), ..Call::new(CALLS[0], 0) }
    }

    pub fn to_numbers(self) -> [u64; NUMBERS] {
        let number = |what| CALLS.iter().position(|call| *call == what).unwrap_or(CALLS.len() - 1) as u64;
        let [dest_stride, source_stride] = self.strides.map(u64::from);
        [
            number(self.what) << WHAT
                | self.reduction.map_or(0, number) << REDUCTION
                | self.ty.number() << TYPE
                | u64::from(self.root),
            self.bytes as u64,
            dest_stride << 32 | source_stride,
        ]
    }

    pub fn encode(&self) -> [u8; CALL_LEN] {
        let mut bytes = [0; CALL_LEN];
        let (numbers, heap) = bytes.split_at_mut(8 * NUMBERS);
        for (to, number) in numbers.as_chunks_mut::<8>().0.iter_mut().zip(self.to_numbers()) {
            *to = number.to_le_bytes();
        }
        if let Some(call) = &self.heap {
            heap.copy_from_slice(&call.encode());
        }
        bytes
    }

    /// A call in words, as PE `pe` has encoded it, and its parameters if it is a call on the heap.
    pub fn decode(bytes: &[u8], pe: Pe) -> Result<(String, Option<AllocCall>)> {
        if bytes.len() != CALL_LEN {
            let why = format!("it has {} bytes instead of {CALL_LEN}", bytes.len());
            return Err(symrail_transport::Error::Malformed { what: "collective call", pe, why }.into());
        }
        let (first, heap) = bytes.split_at(8 * NUMBERS);
        let mut numbers = [0; NUMBERS];
        numbers.iter_mut().zip(first.as_chunks::<8>().0).for_each(|(to, bytes)| *to = u64::from_le_bytes(*bytes));
        if numbers[0] >> WHAT != 0 {
            return Ok((describe(numbers), None));
        }
        let call = AllocCall::decode(heap, pe)?;
        Ok((describe_on_heap(&call), Some(call)))
    }

    pub fn words(&self) -> String {
        self.heap.as_ref().map_or_else(|| describe(self.to_numbers()), describe_on_heap)
    }
}

/// A call in words, from its numbers.
pub(super) fn describe([first, bytes, strides]: [u64; NUMBERS]) -> String {
    let call = |number: u64| CALLS.get(number as usize).copied().unwrap_or("something unknown");
    let (what, root) = (call(first >> WHAT), first as u32);
    let reduction = match first >> REDUCTION & 0xff {
        0 => String::new(),
        number => format!(" by {}", call(number)),
    };
    let ty = match ElementType::of_number(first >> TYPE & 0xff) {
        Some(ElementType::Bytes) => String::new(),
        ty => format!(" ({})", ty.map_or("an unknown type", ElementType::name)),
    };
    match what {
        "broadcast" => format!("broadcast of {bytes} bytes from root {root}{ty}"),
        "collect" => format!("collect{ty}"),
        "alltoalls" => {
            format!("alltoalls of {bytes} bytes with strides of {} and {}{ty}", strides >> 32, strides as u32)
        }
        "alltoall" | "fcollect" | "scan" | "reduce_scatter" => format!("{what} of {bytes} bytes{reduction}{ty}"),
        _ if what.ends_with("reduction") => format!("{what} of {bytes} bytes{ty}"),
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
    use symrail_core::DataType;

    use super::super::element::NUMBERED;
    use super::*;

    #[test]
    fn calls_are_told_by_numbers() {
        let of = |bytes, ty| Extent { bytes, ty: ElementType::Of(ty) };
        let broadcast = Call { root: 3, ..Call::new("broadcast", of(24, DataType::Float32)) };
        assert_eq!(describe(broadcast.to_numbers()), "broadcast of 24 bytes from root 3 (float32)");
        let sum = Call::new("sum reduction", of(1 << 37, DataType::Bfloat16));
        assert_eq!(describe(sum.to_numbers()), "sum reduction of 137438953472 bytes (bfloat16)");
        assert_eq!(describe(Call::new("sync", 0).to_numbers()), "sync");
        let scattered =
            Call { reduction: Some("max reduction"), ..Call::new("reduce_scatter", of(16, DataType::Int32)) };
        assert_eq!(scattered.words(), "reduce_scatter of 16 bytes by max reduction (int32)");
        let shape = Strided { dest_stride: 2, source_stride: 1, size: 8, count: 3 };
        let strided = Call::strided("alltoalls", shape, ElementType::Bits64);
        assert_eq!(strided.words(), "alltoalls of 24 bytes with strides of 2 and 1 (64-bit words)");
        assert_eq!(Call::decode(&broadcast.encode(), 0).unwrap(), (broadcast.words(), None));
        let free = AllocCall { sequence: 3, op: AllocOp::Free, size: 0, align: 0, offset: 64 };
        let (words, call) = Call::decode(&Call::on_heap(free).encode(), 0).unwrap();
        assert_eq!((words.as_str(), call), ("free of offset 0x40", Some(free)));
        assert!(Call::decode(&[0; CALL_LEN - 1], 0).is_err());
        let calls = CALLS.iter().flat_map(|c| NUMBERED.map(|ty| Call::new(c, Extent { bytes: 8, ty })));
        let numbers: std::collections::BTreeSet<_> = calls.map(Call::to_numbers).collect();
        for &ty in DataType::ALL {
            assert_eq!(ElementType::of_number(ElementType::Of(ty).number()), Some(ElementType::Of(ty)));
        }
        let numbered =
            [ElementType::Of(DataType::Bool), ElementType::LongDouble, ElementType::Of(DataType::Complex128)];
        assert_eq!(numbered.map(ElementType::number), [3, 16, 18]);
        assert_eq!(numbers.len(), CALLS.len() * NUMBERED.len());
    }
}
