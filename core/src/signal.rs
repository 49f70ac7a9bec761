//! Updates of signal words, and the numbers that interfaces have for them.

use crate::amo::AmoOp;

/// The update of a signal word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum SignalOp {
    /// Sets the word to the value.
    Set,
    /// Adds the value to the word.
    Add,
}

impl From<SignalOp> for AmoOp {
    fn from(op: SignalOp) -> AmoOp {
        match op {
            SignalOp::Set => AmoOp::Set,
            SignalOp::Add => AmoOp::Add,
        }
    }
}

impl SignalOp {
    /// The update that equals this AMO, if there is one.
    #[must_use]
    pub const fn from_amo(op: AmoOp) -> Option<Self> {
        match op {
            AmoOp::Set => Some(SignalOp::Set),
            AmoOp::Add => Some(SignalOp::Add),
            _ => None,
        }
    }

    /// `SHMEM_SIGNAL_*` of OpenSHMEM's C interface.
    #[must_use]
    pub const fn openshmem(self) -> i32 {
        match self {
            SignalOp::Set => 0,
            SignalOp::Add => 1,
        }
    }

    /// The update with this number in OpenSHMEM's C interface.
    #[must_use]
    pub fn from_openshmem(code: i32) -> Option<Self> {
        <Self as strum::VariantArray>::VARIANTS.iter().copied().find(|op| op.openshmem() == code)
    }

    /// `SYMRAIL_SIGNAL_*` and `NVSHMEM_SIGNAL_*` of kernels.
    #[must_use]
    pub const fn device(self) -> u64 {
        match self {
            SignalOp::Set => 9,
            SignalOp::Add => 10,
        }
    }
}

/// An update of a signal word. The word is named as the operation names memory: by an address, a slice and an index, a
/// symmetric offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalUpdate<W> {
    /// The signal word.
    pub word: W,
    /// The value that it is set to, or that is added to it.
    pub value: u64,
    /// Which of both.
    pub op: SignalOp,
}

impl<W> SignalUpdate<W> {
    /// The update that sets `word` to `value`.
    #[must_use]
    pub const fn set(word: W, value: u64) -> Self {
        SignalUpdate { word, value, op: SignalOp::Set }
    }

    /// The update that adds `value` to `word`.
    #[must_use]
    pub const fn add(word: W, value: u64) -> Self {
        SignalUpdate { word, value, op: SignalOp::Add }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::{AmoOp, SignalOp};

    #[test]
    fn every_number_of_an_interface_means_one_update() {
        for op in SignalOp::VARIANTS {
            assert_eq!(SignalOp::from_openshmem(op.openshmem()), Some(*op));
            assert_eq!(SignalOp::from_amo((*op).into()), Some(*op));
        }
        assert_eq!((SignalOp::from_openshmem(9), SignalOp::from_amo(AmoOp::Xor)), (None, None));
        assert_ne!(SignalOp::Set.device(), SignalOp::Add.device());
    }
}
