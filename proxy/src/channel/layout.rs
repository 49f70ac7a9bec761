//! The layout of a channel: this file defines every word and bit once, and [`cuda_header`] renders a C header for CUDA.
//!
//! Memory: a header of [`HEADER_BYTES`], then the slots, then the reply table. All words are 64-bit little endian.

use symrail_core::layout::{Constant as _, Header};
use symrail_core::{AmoOp, AmoType, VariantArray};

/// The version of the layout. It changes with the meaning of anything in this file.
pub const LAYOUT_VERSION: u64 = 1;

/// Bytes of a slot: one cache line.
pub const SLOT_BYTES: usize = 64;
/// Bytes of a chunk: the widest store of a GPU thread.
pub const CHUNK_BYTES: usize = 16;
/// Chunks of a slot.
pub const CHUNKS: usize = SLOT_BYTES / CHUNK_BYTES;
/// Bytes of a reply entry: `{value, state}`.
pub const REPLY_BYTES: usize = 16;

/// Producers' word: the next position to reserve. It is for CPU producers only; a GPU keeps its own in device memory.
pub const HEAD: usize = 0;
/// Producers' word: a copy of [`TAIL`]. It is for CPU producers only, as [`HEAD`].
pub const CACHED_TAIL: usize = 128;
/// Consumer's word: every position before it was taken, and its slot may be written again.
pub const TAIL: usize = 256;
/// Consumer's word: every position before it is delivered (the flush word).
pub const COMPLETED: usize = 384;
/// Consumer's word: the number of failed requests. It is beside [`COMPLETED`], so that one 16-byte load reads both.
pub const ERRORS: usize = COMPLETED + 8;
/// Consumer's word: 1 while the consumer sleeps and needs the doorbell. The producer that rings it sets the word to 0.
pub const SLEEPING: usize = 512;
/// Constant words: [`LAYOUT_VERSION`], slots, reply entries.
pub const CONSTANTS: usize = 640;
/// Bytes of the header, which the slots follow.
pub const HEADER_BYTES: usize = 1024;

/// In every `w0`: the lap's parity. The other fields of this block are chunk 0's `w0`.
pub const PARITY_SHIFT: u32 = 63;
/// The opcode, 8 bits.
pub const OPCODE_SHIFT: u32 = 0;
/// The atomic operation, 8 bits ([`AmoOp`]'s wire value).
pub const AMO_OP_SHIFT: u32 = 8;
/// 8 bits: [`AmoType`]'s wire value, the binary logarithm of a value's size, or how a local buffer is specified.
pub const TYPE_SHIFT: u32 = 16;
/// The chunks that the request uses, 4 bits. The 4 bits above it are zero.
pub const MASK_SHIFT: u32 = 24;
/// The PE, 31 bits.
pub const PE_SHIFT: u32 = 32;
/// Bits of the PE.
pub const PE_BITS: u32 = 31;
/// Bits of offsets and sizes.
pub const OFFSET_BITS: u32 = 63;

/// Chunk 3's `w0`: the reply's index in the low 32 bits, its generation (31 bits) from here.
pub const GENERATION_SHIFT: u32 = 32;
/// Bits of a reply's generation.
pub const GENERATION_BITS: u32 = 31;
/// In a reply's state: set when the request failed. The generation is in the low bits.
pub const REPLY_FAILED_SHIFT: u32 = 63;

/// A local buffer is specified by its address.
pub const LOCAL_ADDRESS: u8 = 0;
/// A local buffer is specified by its symmetric offset.
pub const LOCAL_SYMMETRIC: u8 = 1;
/// The source bytes of a put are in the slot, in place of an address.
pub const LOCAL_VALUE: u8 = 2;

/// Chunk 0 in a mask: operation, PE, destination.
pub const MASK_HEAD: u8 = 1 << 0;
/// Chunk 1 in a mask: size and local buffer.
pub const MASK_LOCAL: u8 = 1 << 1;
/// Chunk 2 in a mask: signal and value.
pub const MASK_VALUE: u8 = 1 << 2;
/// Chunk 3 in a mask: reply and comparand.
pub const MASK_REPLY: u8 = 1 << 3;

/// The kind of a request: the low 8 bits of chunk 0's `w0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Opcode {
    /// No operation; completes at once.
    Nop = 1,
    /// Copies local memory to remote memory.
    Put = 2,
    /// Writes a value in the slot to remote memory.
    P = 3,
    /// Copies remote memory to local memory.
    Get = 4,
    /// Reads remote memory into the reply.
    G = 5,
    /// Puts, then updates a signal word, which is not visible before the data.
    PutSignal = 6,
    /// Performs an atomic without a result.
    Amo = 7,
    /// Performs an atomic and returns the old value in the reply.
    FetchAmo = 8,
    /// Orders later requests of this channel behind earlier ones, per destination.
    Fence = 9,
}

/// The parity bit, in place, for every `w0` of `position` in a ring of `slots` (a power of two).
#[must_use]
pub const fn parity(position: u64, slots: u64) -> u64 {
    // Even laps are 1, odd ones 0. A division would cost more than the rest of a poll of an empty channel.
    ((position & slots == 0) as u64) << PARITY_SHIFT
}

/// Size of a channel's memory in bytes.
#[must_use]
pub const fn channel_bytes(slots: usize, replies: usize) -> usize {
    HEADER_BYTES + slots * SLOT_BYTES + replies * REPLY_BYTES
}

/// Constants with their names.
macro_rules! named {
    ($($constant:ident),*) => { [$((stringify!($constant).to_owned(), $constant as u64)),*] };
}

/// Renders this file's constants as the C header `symrail_layout.h`.
#[must_use]
pub fn cuda_header() -> String {
    let literals = |constants: &[(String, u64)]| -> Vec<(String, String)> {
        constants.iter().map(|(name, value)| (format!("SYMRAIL_{name}"), value.literal())).collect()
    };
    let sizes = named![LAYOUT_VERSION, SLOT_BYTES, CHUNK_BYTES, CHUNKS, REPLY_BYTES];
    let offsets = named![HEAD, CACHED_TAIL, TAIL, COMPLETED, ERRORS, SLEEPING, CONSTANTS, HEADER_BYTES];
    let fields = named![
        PARITY_SHIFT,
        OPCODE_SHIFT,
        AMO_OP_SHIFT,
        TYPE_SHIFT,
        MASK_SHIFT,
        PE_SHIFT,
        PE_BITS,
        OFFSET_BITS,
        GENERATION_SHIFT,
        GENERATION_BITS,
        REPLY_FAILED_SHIFT,
        LOCAL_ADDRESS,
        LOCAL_SYMMETRIC,
        LOCAL_VALUE,
        MASK_HEAD,
        MASK_LOCAL,
        MASK_VALUE,
        MASK_REPLY
    ];
    let place = "byte offsets in a channel's memory; slots follow the header, replies follow the slots";
    Header::new("SYMRAIL_LAYOUT_H", "proxy/src/channel/layout.rs")
        .section("sizes in bytes, counts", &literals(&sizes))
        .section(place, &literals(&offsets))
        .section("bit fields", &literals(&fields))
        .section("opcodes", &literals(&constants("OP", Opcode::VARIANTS, |op| op as u64)))
        .section("types of atomics", &literals(&constants("TYPE", AmoType::VARIANTS, |ty| ty as u64)))
        .section("atomic operations", &literals(&constants("AMO", AmoOp::VARIANTS, |op| op as u64)))
        .finish()
}

/// Every value of an enum with its name: `OP_PUT_SIGNAL`.
fn constants<T: Copy + Into<&'static str>>(prefix: &str, all: &[T], value: impl Fn(T) -> u64) -> Vec<(String, u64)> {
    all.iter().map(|&each| (format!("{prefix}_{}", each.into().to_uppercase()), value(each))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_memory_reads_as_not_yet() {
        assert_eq!(parity(0, 4), 1 << 63);
        assert_eq!(parity(3, 4), 1 << 63);
        assert_eq!(parity(4, 4), 0);
        assert_eq!(parity(8, 4), 1 << 63);
    }

    #[test]
    fn words_of_different_writers_are_on_different_lines() {
        let lines = [HEAD, CACHED_TAIL, TAIL, COMPLETED, SLEEPING, CONSTANTS, HEADER_BYTES].map(|at| at / 128);
        assert!(lines.is_sorted_by(|a, b| a < b), "{lines:?}");
        assert_eq!(COMPLETED % 16, 0, "one 16-byte load reads the flush word and the errors");
    }
}
