//! The tokens for each rank and each expert.

use crate::error::{Error, Result};

/// The most experts of a job.
pub const MOST_EXPERTS: usize = 2048;
/// The most experts of a token.
pub const MOST_TOP_K: usize = 32;

/// The experts of each token: `k` slots for each token, with -1 in unused slots. A token may name an expert twice.
#[derive(Debug, Clone, Copy)]
pub struct TopK<'a> {
    indices: &'a [i64],
    k: usize,
}

impl<'a> TopK<'a> {
    /// `k` slots for each token, in the order of the tokens.
    ///
    /// # Errors
    /// No slots, too many slots, or a length that is not a multiple of `k`.
    pub fn new(indices: &'a [i64], k: usize) -> Result<TopK<'a>> {
        if k == 0 || k > MOST_TOP_K {
            return Err(Error::argument("top-k slots of a token", k, format!("1 to {MOST_TOP_K}")));
        }
        if !indices.len().is_multiple_of(k) {
            return Err(Error::argument("top-k indices", indices.len(), format!("a multiple of {k}")));
        }
        Ok(TopK { indices, k })
    }

    /// The number of slots of a token.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// The number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.indices.len() / self.k
    }

    /// The slots of a token.
    #[must_use]
    pub fn of(&self, token: usize) -> &'a [i64] {
        &self.indices[token * self.k..][..self.k]
    }

    /// Refuses experts that do not exist.
    ///
    /// # Errors
    /// [`Error::NoSuchExpert`], for the first one.
    pub fn check(&self, experts: usize) -> Result<()> {
        match self.indices.iter().position(|&expert| expert < -1 || expert >= experts as i64) {
            None => Ok(()),
            Some(at) => Err(Error::NoSuchExpert {
                token: at / self.k,
                slot: at % self.k,
                expert: self.indices[at],
                last: experts.saturating_sub(1),
            }),
        }
    }
}

/// The number of experts of each rank: expert `e` belongs to rank `e / share`.
///
/// # Errors
/// Numbers of ranks and experts that do not agree.
pub fn share(experts: usize, ranks: usize) -> Result<usize> {
    if experts == 0 || experts > MOST_EXPERTS || !experts.is_multiple_of(ranks) {
        let wanted = format!("a multiple of {ranks} ranks, at most {MOST_EXPERTS}");
        return Err(Error::argument("number of experts", experts, wanted));
    }
    Ok(experts / ranks)
}

/// The destinations of this rank's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    ranks: usize,
    per_rank: Vec<u32>,
    per_expert: Vec<u32>,
    /// For each token, whether each rank gets it.
    in_rank: Vec<bool>,
}

impl Layout {
    /// The layout of these tokens. A token counts once for each rank, and once for each slot of an expert.
    ///
    /// # Errors
    /// Indices out of range; numbers of ranks and experts that do not agree.
    pub fn of(topk: &TopK<'_>, experts: usize, ranks: usize) -> Result<Layout> {
        let share = share(experts, ranks)?;
        topk.check(experts)?;
        let mut layout = Layout {
            ranks,
            per_rank: vec![0; ranks],
            per_expert: vec![0; experts],
            in_rank: vec![false; topk.tokens() * ranks],
        };
        for (token, row) in layout.in_rank.chunks_exact_mut(ranks).enumerate() {
            for &expert in topk.of(token).iter().filter(|&&expert| expert >= 0) {
                layout.per_expert[expert as usize] += 1;
                row[expert as usize / share] = true;
            }
            for (count, _) in layout.per_rank.iter_mut().zip(&*row).filter(|(_, gets)| **gets) {
                *count += 1;
            }
        }
        Ok(layout)
    }

    /// A layout that the caller has computed: for each token, whether each rank gets it; the number of tokens for each
    /// expert.
    ///
    /// # Errors
    /// A length that is not a multiple of the number of ranks; numbers that do not agree.
    pub fn from_parts(in_rank: Vec<bool>, per_expert: Vec<u32>, ranks: usize) -> Result<Layout> {
        share(per_expert.len(), ranks)?;
        if !in_rank.len().is_multiple_of(ranks) {
            return Err(Error::argument("is_token_in_rank", in_rank.len(), format!("a multiple of {ranks} ranks")));
        }
        let count = |rank| in_rank.iter().skip(rank).step_by(ranks).filter(|gets| **gets).count() as u32;
        let per_rank = (0..ranks).map(count).collect();
        Ok(Layout { ranks, per_rank, per_expert, in_rank })
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The number of experts.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.per_expert.len()
    }

    /// The number of experts of each rank.
    #[must_use]
    pub fn share(&self) -> usize {
        self.experts() / self.ranks
    }

    /// The number of this rank's tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.in_rank.len() / self.ranks
    }

    /// The number of tokens for each rank.
    #[must_use]
    pub fn per_rank(&self) -> &[u32] {
        &self.per_rank
    }

    /// The number of slots that name each expert.
    #[must_use]
    pub fn per_expert(&self) -> &[u32] {
        &self.per_expert
    }

    /// For each token, whether each rank gets it: `tokens` × `ranks`.
    #[must_use]
    pub fn in_rank(&self) -> &[bool] {
        &self.in_rank
    }

    /// The tokens that at least one of these ranks gets, in order.
    #[must_use]
    pub fn tokens_for_any(&self, ranks: &[usize]) -> Vec<u32> {
        let some = |gets: &[bool]| ranks.iter().any(|&rank| gets[rank]);
        let rows = self.in_rank.chunks_exact(self.ranks).enumerate();
        rows.filter(|(_, gets)| some(gets)).map(|(token, _)| token as u32).collect()
    }

    /// The tokens that a rank gets, in order.
    #[must_use]
    pub fn tokens_for(&self, rank: usize) -> Vec<u32> {
        let gets = self.in_rank.iter().skip(rank).step_by(self.ranks);
        gets.enumerate().filter(|(_, gets)| **gets).map(|(token, _)| token as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// Ranks, experts, slots of a token, and the indices of up to 40 tokens.
    fn cases() -> impl Strategy<Value = (usize, usize, usize, Vec<i64>)> {
        (1usize..9, 1usize..9, 1usize..17, 0usize..40).prop_flat_map(|(ranks, share, k, tokens)| {
            let experts = ranks * share;
            let indices = proptest::collection::vec(-1..experts as i64, tokens * k);
            (Just(ranks), Just(experts), Just(k), indices)
        })
    }

    proptest! {
        #[test]
        fn counts_are_what_the_slots_say((ranks, experts, k, indices) in cases()) {
            let topk = TopK::new(&indices, k).unwrap();
            let layout = Layout::of(&topk, experts, ranks).unwrap();
            for expert in 0..experts {
                let slots = indices.iter().filter(|&&e| e == expert as i64).count();
                prop_assert_eq!(layout.per_expert()[expert] as usize, slots);
            }
            let share = experts / ranks;
            for rank in 0..ranks {
                let owned = |e: &i64| *e >= 0 && *e as usize / share == rank;
                let tokens: Vec<u32> =
                    (0..topk.tokens()).filter(|&t| topk.of(t).iter().any(owned)).map(|t| t as u32).collect();
                prop_assert_eq!(layout.per_rank()[rank] as usize, tokens.len());
                prop_assert_eq!(layout.tokens_for(rank), tokens);
            }
            let copy = Layout::from_parts(layout.in_rank().to_vec(), layout.per_expert().to_vec(), ranks).unwrap();
            prop_assert_eq!(copy, layout);
        }

        #[test]
        fn an_index_out_of_range_is_named(
            (ranks, experts, k, mut indices) in cases(), at in any::<proptest::sample::Index>(), far in 0i64..1 << 40,
        ) {
            prop_assume!(!indices.is_empty());
            let at = at.index(indices.len());
            for wrong in [experts as i64, -2, experts as i64 + far, -2 - far] {
                indices[at] = wrong;
                match Layout::of(&TopK::new(&indices, k).unwrap(), experts, ranks) {
                    Err(Error::NoSuchExpert { token, slot, expert, .. }) => {
                        prop_assert_eq!((token, slot, expert), (at / k, at % k, wrong));
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }

    #[test]
    fn numbers_that_do_not_go_together_are_refused() {
        assert!(TopK::new(&[0; 6], 4).is_err());
        assert!(TopK::new(&[], 0).is_err());
        assert!(TopK::new(&[], MOST_TOP_K + 1).is_err());
        for (experts, ranks) in [(0, 2), (7, 2), (MOST_EXPERTS + 2, 2)] {
            assert!(matches!(share(experts, ranks), Err(Error::Argument { .. })), "{experts} {ranks}");
        }
        assert_eq!(share(MOST_EXPERTS, 8).unwrap(), 256);
        assert!(Layout::from_parts(vec![true; 7], vec![0; 8], 2).is_err());
    }
}
