//! Low latency: the rows of a token at a rank (one for each expert of that rank that it names), and their order.
//!
//! Both sides compute the same order: by expert, and then by token. A token that names an expert twice has one row
//! there.

use super::layout::TopK;

/// The tokens that each expert of a rank gets from one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pairs {
    /// For each of the rank's experts, its tokens.
    by_expert: Vec<Vec<u32>>,
}

impl Pairs {
    /// The pairs of these tokens and the experts of a rank that owns `share` experts.
    #[must_use]
    pub fn of(topk: &TopK<'_>, rank: usize, share: usize) -> Pairs {
        let mut pairs = Pairs { by_expert: vec![Vec::new(); share] };
        for token in 0..topk.tokens() {
            for expert in local(topk.of(token), rank, share) {
                pairs.add(expert, token as u32);
            }
        }
        pairs
    }

    /// No pairs.
    #[must_use]
    pub fn none(share: usize) -> Pairs {
        Pairs { by_expert: vec![Vec::new(); share] }
    }

    /// Adds a row. Its token must not precede those already added for the expert. A second row of the same token is
    /// ignored.
    pub fn add(&mut self, expert: usize, token: u32) {
        let tokens = &mut self.by_expert[expert];
        if tokens.last() != Some(&token) {
            tokens.push(token);
        }
    }

    /// The tokens of one of the rank's experts.
    #[must_use]
    pub fn of_expert(&self, expert: usize) -> &[u32] {
        &self.by_expert[expert]
    }

    /// The number of experts that the rank owns.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.by_expert.len()
    }

    /// The number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_expert.iter().map(Vec::len).sum()
    }

    /// The index of a row in the common order, if the row exists.
    #[must_use]
    pub fn number(&self, expert: usize, token: u32) -> Option<usize> {
        let before: usize = self.by_expert[..expert].iter().map(Vec::len).sum();
        self.by_expert[expert].binary_search(&token).ok().map(|at| before + at)
    }
}

/// The experts among those of a token that a rank owns, numbered from the rank's first one.
pub fn local(slots: &[i64], rank: usize, share: usize) -> impl Iterator<Item = usize> + '_ {
    let owned = move |&&expert: &&i64| expert >= 0 && expert as usize / share == rank;
    slots.iter().filter(owned).map(move |&expert| expert as usize % share)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_a_row_of_distinct_ones(indices in proptest::collection::vec(-1i64..12, 0..120), rank in 0usize..3) {
            let indices = &indices[..indices.len() / 4 * 4];
            let topk = TopK::new(indices, 4).unwrap();
            let pairs = Pairs::of(&topk, rank, 4);
            let mut numbers = Vec::new();
            for expert in 0..4 {
                for token in 0..topk.tokens() {
                    let named = topk.of(token).contains(&((rank * 4 + expert) as i64));
                    let number = pairs.number(expert, token as u32);
                    prop_assert_eq!(number.is_some(), named);
                    numbers.extend(number);
                }
            }
            prop_assert_eq!(numbers, (0..pairs.count()).collect::<Vec<_>>());
        }
    }
}
