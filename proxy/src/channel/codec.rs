//! The encoding of a request in a slot.
//!
//! | chunk | `w0` (bit 63 is the parity) | `w1` |
//! |---|---|---|
//! | 0 | PE, mask, type, atomic operation, opcode | destination's (for a get: source's) symmetric offset |
//! | 1 | size in bytes | local buffer: an address, a symmetric offset, or the bytes themselves |
//! | 2 | signal's symmetric offset | value: operand, signal's value, P's value |
//! | 3 | reply: generation and index | comparand |

use symrail_core::{AmoOp, AmoType, Pe, SignalOp};

use super::error::{Malformed, Refused};
use super::layout::{self, CHUNKS, MASK_HEAD, MASK_LOCAL, MASK_REPLY, MASK_VALUE, Opcode};
use super::request::{Local, ReplyTo, Request};

/// The words of a slot, without parity; chunks outside the mask are not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded {
    /// Which chunks are used: bit `i` for chunk `i`.
    pub mask: u8,
    /// `[w0, w1]` of each chunk.
    pub chunks: [[u64; 2]; CHUNKS],
}

/// The size of a value that travels inside a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum Width {
    /// 1 byte.
    W1 = 0,
    /// 2 bytes.
    W2 = 1,
    /// 4 bytes.
    W4 = 2,
    /// 8 bytes.
    W8 = 3,
}

impl Width {
    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self as u8
    }

    /// The width of `bytes` bytes: 1, 2, 4 or 8.
    #[must_use]
    pub const fn of(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() { Self::from_repr(bytes.trailing_zeros() as u8) } else { None }
    }
}

const PARITY: u64 = 1 << layout::PARITY_SHIFT;

impl Request {
    /// Encodes the request.
    ///
    /// # Errors
    /// A value does not fit its field, or an atomic operation is not defined on its type.
    #[inline]
    pub fn encode(&self) -> Result<Encoded, Refused> {
        let mut slot = Encoder { mask: MASK_HEAD, chunks: [[0; 2]; CHUNKS] };
        match *self {
            Request::Nop => slot.head(Opcode::Nop, 0, 0, 0, 0)?,
            Request::Fence => slot.head(Opcode::Fence, 0, 0, 0, 0)?,
            Request::Put { pe, offset, local, size, reply } => {
                let kind = slot.local(local, size)?;
                slot.reply(reply, None)?;
                slot.head(Opcode::Put, kind, 0, pe, offset)?;
            }
            Request::Get { pe, offset, local, size, reply } => {
                if matches!(local, Local::Value(_)) {
                    return Err(Refused::Invalid);
                }
                let kind = slot.local(local, size)?;
                slot.reply(reply, None)?;
                slot.head(Opcode::Get, kind, 0, pe, offset)?;
            }
            Request::P { pe, offset, width, value } => {
                slot.value(0, value)?;
                slot.head(Opcode::P, width as u8, 0, pe, offset)?;
            }
            Request::G { pe, offset, width, reply } => {
                slot.reply(Some(reply), None)?;
                slot.head(Opcode::G, width as u8, 0, pe, offset)?;
            }
            Request::PutSignal { pe, offset, local, size, signal, op, value, reply } => {
                let kind = slot.local(local, size)?;
                slot.value(signal, value)?;
                slot.reply(reply, None)?;
                slot.head(Opcode::PutSignal, kind, AmoOp::from(op) as u8, pe, offset)?;
            }
            Request::Amo { pe, offset, ty, op, operand, compare } => {
                if op == AmoOp::Fetch {
                    return Err(Refused::Amo { what: "a fetch without a result", remedy: "use FetchAmo" });
                }
                check_amo(ty, op)?;
                slot.value(0, operand)?;
                slot.reply(None, (op == AmoOp::CompareSwap).then_some(compare))?;
                slot.head(Opcode::Amo, ty as u8, op as u8, pe, offset)?;
            }
            Request::FetchAmo { pe, offset, ty, op, operand, compare, reply } => {
                check_amo(ty, op)?;
                if op != AmoOp::Fetch {
                    slot.value(0, operand)?;
                }
                slot.reply(Some(reply), (op == AmoOp::CompareSwap).then_some(compare))?;
                slot.head(Opcode::FetchAmo, ty as u8, op as u8, pe, offset)?;
            }
            Request::Invalid { .. } => return Err(Refused::Invalid),
        }
        Ok(Encoded { mask: slot.mask, chunks: slot.chunks })
    }

    /// Decodes a request from words that may have any value. Chunks that [`chunks_used`] does not name are ignored.
    #[must_use]
    #[inline]
    pub fn decode(chunks: &[[u64; 2]; CHUNKS]) -> Self {
        Self::decode_with(chunks, head(chunks[0][0]))
    }

    /// As [`Request::decode`], for a caller that has decoded chunk 0's `w0` already.
    #[inline]
    pub(super) fn decode_with(chunks: &[[u64; 2]; CHUNKS], head: Result<(Opcode, u8), Malformed>) -> Self {
        match head {
            Ok((opcode, used)) => decode(chunks, opcode, used),
            Err(why) => Request::Invalid { w0: chunks[0][0], why },
        }
    }
}

/// The chunks that a slot needs before it can be decoded, from chunk 0's `w0`.
///
/// # Errors
/// An operation that does not exist, or that needs other chunks than the mask has.
pub fn chunks_used(w0: u64) -> Result<u8, Malformed> {
    head(w0).map(|(_, used)| used)
}

/// The operation of a slot, and the chunks that it needs, from chunk 0's `w0`.
#[inline]
pub(super) fn head(w0: u64) -> Result<(Opcode, u8), Malformed> {
    let (opcode, op) = (byte(w0, layout::OPCODE_SHIFT), byte(w0, layout::AMO_OP_SHIFT));
    let given = byte(w0, layout::MASK_SHIFT);
    if given >> CHUNKS != 0 {
        return Err(Malformed::Reserved);
    }
    let known = Opcode::from_repr(opcode).ok_or(Malformed::Opcode(opcode))?;
    let compares = op == AmoOp::CompareSwap as u8;
    let (needed, optional) = match known {
        Opcode::Nop | Opcode::Fence => (MASK_HEAD, 0),
        Opcode::Put | Opcode::Get => (MASK_HEAD | MASK_LOCAL, MASK_REPLY),
        Opcode::P => (MASK_HEAD | MASK_VALUE, 0),
        Opcode::G => (MASK_HEAD | MASK_REPLY, 0),
        Opcode::PutSignal => (MASK_HEAD | MASK_LOCAL | MASK_VALUE, MASK_REPLY),
        Opcode::Amo if compares => (MASK_HEAD | MASK_VALUE | MASK_REPLY, 0),
        Opcode::Amo => (MASK_HEAD | MASK_VALUE, 0),
        Opcode::FetchAmo if op == AmoOp::Fetch as u8 => (MASK_HEAD | MASK_REPLY, 0),
        Opcode::FetchAmo => (MASK_HEAD | MASK_VALUE | MASK_REPLY, 0),
    };
    if given & !optional == needed { Ok((known, given)) } else { Err(Malformed::Chunks { given, needed }) }
}

#[inline]
fn decode(chunks: &[[u64; 2]; CHUNKS], opcode: Opcode, mask: u8) -> Request {
    let [[w0, offset], [size, local], [signal, value], [reply, compare]] = *chunks;
    let (size, signal) = (size & !PARITY, signal & !PARITY);
    /// The value, or a request that is invalid for this reason. A `Result` of all requests would be copied.
    macro_rules! valid {
        ($value:expr) => {
            match $value {
                Ok(value) => value,
                Err(why) => return Request::Invalid { w0, why },
            }
        };
    }
    if offset & PARITY != 0 {
        return Request::Invalid { w0, why: Malformed::Offset };
    }
    let pe = ((w0 & !PARITY) >> layout::PE_SHIFT) as Pe;
    let (kind, op_wire) = (byte(w0, layout::TYPE_SHIFT), byte(w0, layout::AMO_OP_SHIFT));
    let to = || ReplyTo { index: reply as u32, generation: ((reply & !PARITY) >> layout::GENERATION_SHIFT) as u32 };
    let reply = || (mask & MASK_REPLY != 0).then(to);
    let local = || match kind {
        layout::LOCAL_VALUE if size <= 8 && opcode != Opcode::Get => Ok(Local::Value(local)),
        layout::LOCAL_ADDRESS => Ok(Local::Address(local)),
        layout::LOCAL_SYMMETRIC if local & PARITY == 0 => Ok(Local::Symmetric(local)),
        layout::LOCAL_SYMMETRIC => Err(Malformed::Offset),
        _ => Err(Malformed::Type(kind)),
    };
    let width = || Width::from_repr(kind).ok_or(Malformed::Type(kind));
    let amo = || {
        let ty = AmoType::from_repr(kind).ok_or(Malformed::Type(kind))?;
        let op = AmoOp::from_repr(op_wire).filter(|op| op.defined_on(ty)).ok_or(Malformed::Op(op_wire))?;
        Ok((ty, op, if op == AmoOp::CompareSwap { compare } else { 0 }))
    };
    match opcode {
        Opcode::Nop => Request::Nop,
        Opcode::Fence => Request::Fence,
        Opcode::Put => Request::Put { pe, offset, local: valid!(local()), size, reply: reply() },
        Opcode::Get => Request::Get { pe, offset, local: valid!(local()), size, reply: reply() },
        Opcode::P => Request::P { pe, offset, width: valid!(width()), value },
        Opcode::G => Request::G { pe, offset, width: valid!(width()), reply: to() },
        Opcode::PutSignal => {
            let op = valid!(AmoOp::from_repr(op_wire).and_then(SignalOp::from_amo).ok_or(Malformed::Op(op_wire)));
            Request::PutSignal { pe, offset, local: valid!(local()), size, signal, op, value, reply: reply() }
        }
        Opcode::Amo => {
            let (ty, op, compare) = valid!(amo());
            if op == AmoOp::Fetch {
                return Request::Invalid { w0, why: Malformed::Op(op_wire) };
            }
            Request::Amo { pe, offset, ty, op, operand: value, compare }
        }
        Opcode::FetchAmo => {
            let (ty, op, compare) = valid!(amo());
            let operand = if op == AmoOp::Fetch { 0 } else { value };
            Request::FetchAmo { pe, offset, ty, op, operand, compare, reply: to() }
        }
    }
}

#[inline]
const fn byte(w0: u64, shift: u32) -> u8 {
    (w0 >> shift) as u8
}

fn check_amo(ty: AmoType, op: AmoOp) -> Result<(), Refused> {
    let what = "a bitwise operation or compare-swap on a floating-point word";
    if op.defined_on(ty) { Ok(()) } else { Err(Refused::Amo { what, remedy: "use an integer type" }) }
}

fn fits(field: &'static str, value: u64, bits: u32) -> Result<u64, Refused> {
    if value >> bits == 0 { Ok(value) } else { Err(Refused::TooLarge { field, value, bits }) }
}

struct Encoder {
    mask: u8,
    chunks: [[u64; 2]; CHUNKS],
}

impl Encoder {
    /// It must be called last, because the word contains the mask.
    #[inline]
    fn head(&mut self, opcode: Opcode, kind: u8, op: u8, pe: Pe, offset: u64) -> Result<(), Refused> {
        let pe = fits("PE", pe.into(), layout::PE_BITS)?;
        let w0 = u64::from(opcode as u8) << layout::OPCODE_SHIFT
            | u64::from(op) << layout::AMO_OP_SHIFT
            | u64::from(kind) << layout::TYPE_SHIFT
            | u64::from(self.mask) << layout::MASK_SHIFT
            | pe << layout::PE_SHIFT;
        self.chunks[0] = [w0, fits("symmetric offset", offset, layout::OFFSET_BITS)?];
        Ok(())
    }

    #[inline]
    fn local(&mut self, local: Local, size: u64) -> Result<u8, Refused> {
        let (kind, place) = match local {
            Local::Address(address) => (layout::LOCAL_ADDRESS, address),
            Local::Symmetric(offset) => {
                (layout::LOCAL_SYMMETRIC, fits("local symmetric offset", offset, layout::OFFSET_BITS)?)
            }
            Local::Value(bits) => {
                fits("size of a value", size, 4).and_then(|size| fits("size of a value", size.saturating_sub(1), 3))?;
                (layout::LOCAL_VALUE, bits)
            }
        };
        self.mask |= MASK_LOCAL;
        self.chunks[1] = [fits("size", size, layout::OFFSET_BITS)?, place];
        Ok(kind)
    }

    #[inline]
    fn value(&mut self, signal: u64, value: u64) -> Result<(), Refused> {
        self.mask |= MASK_VALUE;
        self.chunks[2] = [fits("signal's symmetric offset", signal, layout::OFFSET_BITS)?, value];
        Ok(())
    }

    #[inline]
    fn reply(&mut self, reply: Option<ReplyTo>, compare: Option<u64>) -> Result<(), Refused> {
        if reply.is_none() && compare.is_none() {
            return Ok(());
        }
        let w0 = match reply {
            Some(ReplyTo { index, generation }) => {
                let generation = fits("reply generation", generation.into(), layout::GENERATION_BITS)?;
                generation << layout::GENERATION_SHIFT | u64::from(index)
            }
            None => 0,
        };
        self.mask |= MASK_REPLY;
        self.chunks[3] = [w0, compare.unwrap_or(0)];
        Ok(())
    }
}
