//! Atomic memory operations, and their execution by a CPU.
//!
//! Every CPU that performs an AMO (for the target agent, a same-host peer, or the PE itself) uses [`apply`], so all
//! AMOs are atomic with one another.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use strum::VariantArray;

use crate::data_type::DataType;
use crate::error::{Error, Result};

/// The type of the word that an AMO works on. It is no [`DataType`], because it has the numbers of requests between PEs
/// and from devices, and a request has no other types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum AmoType {
    /// `i32`
    I32 = 0,
    /// `u32`
    U32 = 1,
    /// `i64`
    I64 = 2,
    /// `u64`
    U64 = 3,
    /// `f32`: fetch, set, swap and (an extension) add
    F32 = 4,
    /// `f64`: fetch, set, swap and (an extension) add
    F64 = 5,
}

/// The operation of an AMO. Whether it returns the old value is a property of the request, not of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum AmoOp {
    /// Returns the value and does not change it.
    Fetch = 0,
    /// Stores the operand (`swap` if the old value is returned).
    Set = 1,
    /// Adds the operand; integers wrap.
    Add = 2,
    /// Bitwise and; integers only.
    And = 3,
    /// Bitwise or; integers only.
    Or = 4,
    /// Bitwise exclusive or; integers only.
    Xor = 5,
    /// Stores the operand if the value equals the comparand; integers only.
    CompareSwap = 6,
}

impl AmoType {
    /// Size and alignment of the word in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            AmoType::I32 | AmoType::U32 | AmoType::F32 => 4,
            AmoType::I64 | AmoType::U64 | AmoType::F64 => 8,
        }
    }

    /// Whether the type is a floating-point one.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, AmoType::F32 | AmoType::F64)
    }
}

impl TryFrom<DataType> for AmoType {
    type Error = Error;

    fn try_from(ty: DataType) -> Result<AmoType> {
        use DataType::{Float32, Float64, Int32, Int64, Uint32, Uint64};
        let index = ty.index_in(&[Int32, Uint32, Int64, Uint64, Float32, Float64], "atomic memory operations")?;
        Ok(AmoType::VARIANTS[index])
    }
}

impl AmoOp {
    /// Whether the operation is defined on the type: bitwise operations and compare-swap are for integers only.
    #[must_use]
    pub const fn defined_on(self, ty: AmoType) -> bool {
        !(ty.is_float() && matches!(self, AmoOp::And | AmoOp::Or | AmoOp::Xor | AmoOp::CompareSwap))
    }

    /// Refuses a type that the operation is not [defined on](AmoOp::defined_on).
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    #[inline]
    pub fn must_be_defined_on(self, ty: AmoType) -> Result<()> {
        if self.defined_on(ty) { Ok(()) } else { Err(self.undefined_on(ty)) }
    }

    #[cold]
    fn undefined_on(self, ty: AmoType) -> Error {
        Error::Unsupported {
            what: format!("{self:?} on {ty:?}"),
            by: "atomic memory operations".into(),
            remedy: "use an integer type".into(),
        }
    }
}

/// Applies one AMO with the CPU and returns the old value, zero-extended to 64 bits.
///
/// `operand` and `compare` carry the value's bits in their low `ty.size()` bytes.
/// It is sequentially consistent: the caller's earlier stores are ordered before it. An operation that is not [defined
/// on](AmoOp::defined_on) the type does not change memory, and returns the value.
///
/// # Safety
/// `address` is valid for reads and writes of `ty.size()` bytes and aligned to it. Others access it only by atomic
/// operations while this call runs.
pub unsafe fn apply(address: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64) -> u64 {
    const ORDER: Ordering = Ordering::SeqCst;
    /// The AMO on a word of one width, by its atomic type, its bits' type and its floating-point type.
    macro_rules! apply_to {
        ($atomic:ident, $bits:ident, $float:ident) => {{
            // SAFETY: the caller guarantees validity, alignment and atomic sharing.
            let word = unsafe { $atomic::from_ptr(address.cast()) };
            let (operand, compare) = (operand as $bits, compare as $bits);
            let add = |old| Some(($float::from_bits(old) + $float::from_bits(operand)).to_bits());
            u64::from(match op {
                AmoOp::Fetch => word.load(ORDER),
                AmoOp::Set => word.swap(operand, ORDER),
                AmoOp::Add if ty.is_float() => word.fetch_update(ORDER, ORDER, add).unwrap_or_else(|old| old),
                AmoOp::Add => word.fetch_add(operand, ORDER),
                _ if !op.defined_on(ty) => word.load(ORDER),
                AmoOp::And => word.fetch_and(operand, ORDER),
                AmoOp::Or => word.fetch_or(operand, ORDER),
                AmoOp::Xor => word.fetch_xor(operand, ORDER),
                AmoOp::CompareSwap => match word.compare_exchange(compare, operand, ORDER, ORDER) {
                    Ok(old) | Err(old) => old,
                },
            })
        }};
    }
    if ty.size() == 4 { apply_to!(AtomicU32, u32, f32) } else { apply_to!(AtomicU64, u64, f64) }
}

/// The value of a word of `ty` after the AMO if it held `old` before; bits as in [`apply`].
#[must_use]
pub fn value_after(old: u64, ty: AmoType, op: AmoOp, operand: u64, compare: u64) -> u64 {
    let mask = u64::MAX >> (64 - 8 * ty.size());
    let value = match op {
        AmoOp::Fetch => old,
        AmoOp::Set => operand,
        AmoOp::Add if ty == AmoType::F32 => {
            (f32::from_bits(old as u32) + f32::from_bits(operand as u32)).to_bits().into()
        }
        AmoOp::Add if ty == AmoType::F64 => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        AmoOp::Add => old.wrapping_add(operand),
        _ if !op.defined_on(ty) => old,
        AmoOp::And => old & operand,
        AmoOp::Or => old | operand,
        AmoOp::Xor => old ^ operand,
        AmoOp::CompareSwap if (old ^ compare) & mask == 0 => operand,
        AmoOp::CompareSwap => old,
    };
    value & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(start: u64, ty: AmoType, op: AmoOp, operand: u64, compare: u64) -> (u64, u64) {
        let mut word = start;
        // SAFETY: a local word, aligned for both sizes, that no other thread accesses.
        let old = unsafe { apply((&raw mut word).cast(), ty, op, operand, compare) };
        (old, word)
    }

    #[test]
    fn integers_follow_their_width() {
        assert_eq!(on(u64::MAX, AmoType::U32, AmoOp::Add, 1, 0), (u64::from(u32::MAX), 0xffff_ffff_0000_0000));
        assert_eq!(on(u64::MAX, AmoType::U64, AmoOp::Add, 1, 0), (u64::MAX, 0));
        assert_eq!(on(0b1100, AmoType::I64, AmoOp::And, 0b1010, 0), (0b1100, 0b1000));
        assert_eq!(on(0b1100, AmoType::I64, AmoOp::Or, 0b1010, 0), (0b1100, 0b1110));
        assert_eq!(on(0b1100, AmoType::I64, AmoOp::Xor, 0b1010, 0), (0b1100, 0b0110));
        assert_eq!(on(5, AmoType::I32, AmoOp::CompareSwap, 9, 5), (5, 9));
        assert_eq!(on(5, AmoType::I32, AmoOp::CompareSwap, 9, 6), (5, 5));
        assert_eq!(on(5, AmoType::U64, AmoOp::Set, 9, 0), (5, 9));
        assert_eq!(on(5, AmoType::U64, AmoOp::Fetch, 9, 0), (5, 5));
    }

    #[test]
    fn words_are_elements_of_the_same_size() {
        let words = DataType::ALL.iter().filter_map(|&ty| Some((ty, AmoType::try_from(ty).ok()?)));
        let alike = words.filter(|(ty, word)| (ty.size(), ty.is_float()) == (word.size(), word.is_float()));
        assert_eq!((alike.count(), AmoType::try_from(DataType::Uint32).ok()), (6, Some(AmoType::U32)));
        assert!(AmoType::try_from(DataType::Int16).is_err_and(|error| error.to_string().contains("int16")));
    }

    #[test]
    fn floats_add_and_swap_but_have_no_bits() {
        let (old, new) = on(1.5f64.to_bits(), AmoType::F64, AmoOp::Add, 2.25f64.to_bits(), 0);
        assert_eq!((f64::from_bits(old), f64::from_bits(new)), (1.5, 3.75));
        let (old, new) = on(u64::from(1.5f32.to_bits()), AmoType::F32, AmoOp::Add, u64::from(1.0f32.to_bits()), 0);
        assert_eq!((f32::from_bits(old as u32), f32::from_bits(new as u32)), (1.5, 2.5));
        assert_eq!(on(7, AmoType::F64, AmoOp::Xor, 1, 0), (7, 7));
        assert!(!AmoOp::CompareSwap.defined_on(AmoType::F32));
    }
}
