//! The AMOs that a provider performs, and how it performs them.

use symrail_core::VariantArray;

use crate::amo::{AmoOp, AmoType};
use crate::rail::Rail;

/// The lane of all AMOs that a provider performs.
pub(super) const AMO_LANE: usize = 0;

/// How a provider performs an AMO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// With one work request.
    Itself,
    /// With fetches and compare-swaps of a word of this type.
    Loop(AmoType),
    /// Not at all.
    Never,
}

/// The AMOs of a provider, queried once.
pub(super) struct Abilities([[[How; 2]; AmoOp::VARIANTS.len()]; AmoType::VARIANTS.len()]);

impl Abilities {
    pub fn of(rail: &dyn Rail) -> Abilities {
        let loops = |ty| rail.supports_amo(ty, AmoOp::Fetch, true) && rail.supports_amo(ty, AmoOp::CompareSwap, true);
        // The word's own size is tried first, because it leaves neighbouring words alone.
        let (small, large) = (loops(AmoType::U32), loops(AmoType::U64));
        let mut all = [[[How::Never; 2]; AmoOp::VARIANTS.len()]; AmoType::VARIANTS.len()];
        for (ty, by_op) in AmoType::VARIANTS.iter().copied().zip(&mut all) {
            for (op, by_fetching) in AmoOp::VARIANTS.iter().copied().zip(by_op) {
                for (fetching, how) in [false, true].into_iter().zip(by_fetching) {
                    *how = match () {
                        () if rail.supports_amo(ty, op, fetching) => How::Itself,
                        () if small && ty.size() == 4 => How::Loop(AmoType::U32),
                        () if large => How::Loop(AmoType::U64),
                        () => How::Never,
                    };
                }
            }
        }
        Abilities(all)
    }

    #[inline]
    pub fn how(&self, ty: AmoType, op: AmoOp, fetching: bool) -> How {
        self.0[ty as usize][op as usize][usize::from(fetching)]
    }
}
