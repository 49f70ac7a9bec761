//! A request survives encoding and decoding, and no content of a slot crashes the reader.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use symrail_core::VariantArray;
use symrail_proxy::channel::codec::chunks_used;
use symrail_proxy::channel::layout::{OPCODE_SHIFT, Opcode};
use symrail_proxy::channel::{Local, Refused, ReplyTo, Request, SignalOp, Width};
use symrail_transport::amo::{AmoOp, AmoType};

fn bits(bits: u32) -> impl Strategy<Value = u64> {
    prop_oneof![0..1u64 << bits, Just((1u64 << bits) - 1), Just(0)]
}

fn pe() -> impl Strategy<Value = u32> {
    bits(31).prop_map(|pe| pe as u32)
}

fn local() -> impl Strategy<Value = Local> {
    prop_oneof![
        any::<u64>().prop_map(Local::Address),
        bits(63).prop_map(Local::Symmetric),
        any::<u64>().prop_map(Local::Value)
    ]
}

fn reply() -> impl Strategy<Value = ReplyTo> {
    (any::<u32>(), pe()).prop_map(|(index, generation)| ReplyTo { index, generation })
}

fn width() -> impl Strategy<Value = Width> {
    prop::sample::select(vec![Width::W1, Width::W2, Width::W4, Width::W8])
}

fn amo() -> impl Strategy<Value = (AmoType, AmoOp)> {
    let all = AmoType::VARIANTS.iter().flat_map(|&ty| AmoOp::VARIANTS.iter().map(move |&op| (ty, op)));
    let defined = all.filter(|(ty, op)| op.defined_on(*ty));
    prop::sample::select(defined.collect::<Vec<_>>())
}

fn request() -> impl Strategy<Value = Request> {
    let copy = || {
        let parts = (pe(), bits(63), local(), bits(63), prop::option::of(reply()));
        // A value in the slot is small.
        parts.prop_map(|(pe, offset, local, size, reply)| match local {
            Local::Value(_) => (pe, offset, local, size % 9, reply),
            _ => (pe, offset, local, size, reply),
        })
    };
    let signal_op = prop::sample::select(SignalOp::VARIANTS);
    let atomic = || (pe(), bits(63), amo(), any::<u64>(), any::<u64>());
    let comparand = |op, compare| if op == AmoOp::CompareSwap { compare } else { 0 };
    prop_oneof![
        Just(Request::Nop),
        Just(Request::Fence),
        copy().prop_map(|(pe, offset, local, size, reply)| Request::Put { pe, offset, local, size, reply }),
        copy().prop_map(|(pe, offset, local, size, reply)| match local {
            Local::Value(_) => Request::Put { pe, offset, local, size, reply },
            _ => Request::Get { pe, offset, local, size, reply },
        }),
        (pe(), bits(63), width(), any::<u64>()).prop_map(|(pe, offset, width, value)| Request::P {
            pe,
            offset,
            width,
            value
        }),
        (pe(), bits(63), width(), reply()).prop_map(|(pe, offset, width, reply)| Request::G {
            pe,
            offset,
            width,
            reply
        }),
        (copy(), bits(63), signal_op, any::<u64>()).prop_map(
            |((pe, offset, local, size, reply), signal, op, value)| Request::PutSignal {
                pe,
                offset,
                local,
                size,
                signal,
                op,
                value,
                reply
            }
        ),
        atomic().prop_filter("no result", |(_, _, (_, op), _, _)| *op != AmoOp::Fetch).prop_map(
            move |(pe, offset, (ty, op), operand, compare)| Request::Amo {
                pe,
                offset,
                ty,
                op,
                operand,
                compare: comparand(op, compare)
            }
        ),
        (atomic(), reply()).prop_map(move |((pe, offset, (ty, op), operand, compare), reply)| Request::FetchAmo {
            pe,
            offset,
            ty,
            op,
            operand: if op == AmoOp::Fetch { 0 } else { operand },
            compare: comparand(op, compare),
            reply
        }),
    ]
}

/// The properties below hold for all operations.
#[test]
fn every_operation_is_tried() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut opcode = || {
        let request = request().new_tree(&mut runner).unwrap().current();
        Opcode::from_repr((request.encode().unwrap().chunks[0][0] >> OPCODE_SHIFT) as u8).unwrap()
    };
    let tried: Vec<_> = (0..1000).map(|_| opcode()).collect();
    assert_eq!(Opcode::VARIANTS.iter().find(|opcode| !tried.contains(opcode)), None);
}

proptest! {
    #[test]
    fn a_request_comes_out_as_it_went_in(request in request(), parity: bool, litter: u64) {
        let encoded = request.encode().unwrap();
        let mut chunks = encoded.chunks;
        for (index, chunk) in chunks.iter_mut().enumerate() {
            // A chunk that is not used holds data of an earlier request.
            if encoded.mask & (1 << index) == 0 {
                *chunk = [litter, !litter];
            }
            prop_assert_eq!(encoded.chunks[index][0] >> 63, 0, "the parity's bit is left free");
            chunk[0] = chunk[0] & !(1 << 63) | u64::from(parity) << 63;
        }
        prop_assert_eq!(chunks_used(chunks[0][0]), Ok(encoded.mask));
        prop_assert_eq!(Request::decode(&chunks), request);
    }

    #[test]
    fn anything_can_be_read(chunks: [[u64; 2]; 4]) {
        let _ = Request::decode(&chunks);
    }

    #[test]
    fn what_almost_makes_sense_can_be_read(
        opcode in 0u64..13, op in 0u64..9, kind in 0u64..8, mask in 0u64..32, mut chunks: [[u64; 2]; 4],
    ) {
        chunks[0][0] = chunks[0][0] & !0xffff_ffff | opcode | op << 8 | kind << 16 | mask << 24;
        match Request::decode(&chunks) {
            Request::Invalid { w0, .. } => prop_assert_eq!(w0, chunks[0][0]),
            valid => {
                // A valid request can be encoded again to the same meaning.
                let encoded = valid.encode().unwrap();
                prop_assert_eq!(Some(encoded.mask), chunks_used(chunks[0][0]).ok());
                prop_assert_eq!(Request::decode(&encoded.chunks), valid);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let put = |pe, offset, local, size, reply| Request::Put { pe, offset, local, size, reply }.encode().unwrap_err();
    let big = 1u64 << 63;
    let at = Local::Address(u64::MAX);
    assert_eq!(put(1 << 31, 0, at, 1, None), Refused::TooLarge { field: "PE", value: 1 << 31, bits: 31 });
    assert_eq!(put(0, big, at, 1, None), Refused::TooLarge { field: "symmetric offset", value: big, bits: 63 });
    assert_eq!(put(0, 0, at, big, None), Refused::TooLarge { field: "size", value: big, bits: 63 });
    assert!(matches!(put(0, 0, Local::Symmetric(big), 1, None), Refused::TooLarge { .. }));
    let reply = Some(ReplyTo { index: 0, generation: 1 << 31 });
    assert!(matches!(put(0, 0, at, 1, reply), Refused::TooLarge { field: "reply generation", .. }));
    let amo = |ty, op| Request::Amo { pe: 0, offset: 0, ty, op, operand: 0, compare: 0 }.encode().unwrap_err();
    assert!(matches!(amo(AmoType::F32, AmoOp::Xor), Refused::Amo { .. }));
    assert!(matches!(amo(AmoType::U64, AmoOp::Fetch), Refused::Amo { .. }));
}
