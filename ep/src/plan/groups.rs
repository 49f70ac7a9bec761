//! Received tokens by expert: a row for each expert that a token names, and the sums of these rows by token.

use symrail_core::DataType;

use super::rows::Rows;
use crate::element;
use crate::error::{Error, Result};

/// The received tokens that each of this rank's experts processes.
///
/// Rows are ordered by expert, and within an expert by the order in which tokens were received. Each expert's rows
/// begin at a multiple of the alignment. Rows in the gaps belong to no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    tokens: usize,
    k: usize,
    /// The index of each expert's first row, and the end of the last expert's rows.
    starts: Vec<usize>,
    /// The number of each expert's rows that belong to a token.
    counts: Vec<usize>,
    /// For each slot of each token its row. Slots of a token that name the same expert share a row.
    row_of_slot: Vec<Option<u32>>,
    /// For each row its token.
    token_of_row: Vec<Option<u32>>,
}

impl Groups {
    /// Groups tokens with `k` slots each, which name experts below `experts`, or none (-1).
    ///
    /// # Errors
    /// Numbers that do not agree; an expert that does not exist.
    pub fn of(indices: &[i32], k: usize, experts: usize, alignment: usize) -> Result<Groups> {
        if k == 0 || !indices.len().is_multiple_of(k) || alignment == 0 {
            let wanted = format!("a multiple of {k} slots, and an alignment of at least 1");
            return Err(Error::argument("indices of received tokens", indices.len(), wanted));
        }
        if let Some(at) = indices.iter().position(|&expert| expert < -1 || expert >= experts as i32) {
            let (token, slot, last) = (at / k, at % k, experts.saturating_sub(1));
            return Err(Error::NoSuchExpert { token, slot, expert: indices[at].into(), last });
        }
        let first_of = |at: usize| (at / k * k..at).all(|before| indices[before] != indices[at]);
        let named = |expert: usize| {
            (0..indices.len()).filter(move |&at| indices[at] == expert as i32 && first_of(at)).collect::<Vec<_>>()
        };
        let mut groups = Groups {
            tokens: indices.len() / k,
            k,
            starts: vec![0],
            counts: Vec::new(),
            row_of_slot: vec![None; indices.len()],
            token_of_row: Vec::new(),
        };
        for expert in 0..experts {
            let slots = named(expert);
            groups.counts.push(slots.len());
            for at in slots {
                let (token, row) = (at / k, groups.token_of_row.len() as u32);
                let slots = indices[token * k..].iter().zip(&mut groups.row_of_slot[token * k..]).take(k);
                for (_, to) in slots.filter(|(named, _)| **named == expert as i32) {
                    *to = Some(row);
                }
                groups.token_of_row.push(Some(token as u32));
            }
            groups.token_of_row.resize(groups.token_of_row.len().next_multiple_of(alignment), None);
            groups.starts.push(groups.token_of_row.len());
        }
        Ok(groups)
    }

    /// The index of each expert's first row, and then the end of the last expert's rows.
    #[must_use]
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// The number of tokens that each expert processes.
    #[must_use]
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// For each row its token, if there is one.
    #[must_use]
    pub fn tokens(&self) -> &[Option<u32>] {
        &self.token_of_row
    }

    /// The rows of received tokens, by expert. Rows that belong to no token are 0.
    ///
    /// # Errors
    /// A different number of tokens.
    pub fn gather(&self, rows: Rows<'_>) -> Result<Vec<u8>> {
        rows.must_be("received tokens", self.tokens)?;
        let mut all = vec![0; self.token_of_row.len() * rows.bytes()];
        for (to, token) in all.chunks_exact_mut(rows.bytes()).zip(&self.token_of_row) {
            if let Some(token) = token {
                to.copy_from_slice(rows.row(*token as usize));
            }
        }
        Ok(all)
    }

    /// Adds the rows of each token, times the weights of its slots, in FP32 and in the order of the slots. The result
    /// is the input of a combine.
    ///
    /// # Errors
    /// Numbers that do not agree.
    pub fn add_up(&self, rows: Rows<'_>, element: DataType, weights: &[f32]) -> Result<Vec<u8>> {
        rows.must_be("rows by expert", self.token_of_row.len())?;
        element::must_be_summed(element)?;
        if weights.len() != self.row_of_slot.len() || !rows.bytes().is_multiple_of(element.size()) {
            let found = format!("{}, rows of {} bytes", weights.len(), rows.bytes());
            return Err(Error::argument("weights of received tokens", found, self.row_of_slot.len()));
        }
        let mut all = Vec::with_capacity(self.tokens * rows.bytes());
        let mut sums = vec![0.0; rows.bytes() / element.size()];
        for (slots, weights) in self.row_of_slot.chunks_exact(self.k).zip(weights.chunks_exact(self.k)) {
            sums.fill(0.0);
            for (row, weight) in slots.iter().zip(weights) {
                if let Some(row) = row {
                    element::add(element, &mut sums, rows.row(*row as usize), Some(*weight));
                }
            }
            element::round(element, &sums, &mut all);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_expert_has_the_tokens_that_name_it(
            indices in proptest::collection::vec(-1i32..5, 0..120), alignment in 1usize..5,
        ) {
            let indices = &indices[..indices.len() / 3 * 3];
            let groups = Groups::of(indices, 3, 5, alignment).unwrap();
            for expert in 0..5 {
                let named = |token: &usize| indices[token * 3..][..3].contains(&(expert as i32));
                let wanted: Vec<Option<u32>> =
                    (0..indices.len() / 3).filter(named).map(|token| Some(token as u32)).collect();
                let start = groups.starts()[expert];
                prop_assert_eq!(start % alignment, 0);
                prop_assert_eq!(groups.counts()[expert], wanted.len());
                let rows = &groups.tokens()[start..groups.starts()[expert + 1]];
                prop_assert_eq!(&rows[..wanted.len()], &wanted[..]);
                prop_assert!(rows.len() - wanted.len() < alignment && rows[wanted.len()..].iter().all(Option::is_none));
            }
        }

        #[test]
        fn rows_are_added_by_the_weights_of_their_slots(
            indices in proptest::collection::vec(-1i32..5, 0..60), weights in proptest::collection::vec(-2f32..2.0, 60),
        ) {
            let indices = &indices[..indices.len() / 3 * 3];
            let weights = &weights[..indices.len()];
            let groups = Groups::of(indices, 3, 5, 4).unwrap();
            let tokens: Vec<u8> = (0..indices.len() / 3).flat_map(|token| (token as f32).to_ne_bytes()).collect();
            let mut rows = groups.gather(Rows::new(&tokens, 4).unwrap()).unwrap();
            // Expert `e` adds `100 e`.
            for (row, value) in rows.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let expert = groups.starts()[1..].iter().filter(|&&start| start <= row).count();
                *value = (f32::from_ne_bytes(*value) + 100.0 * expert as f32).to_ne_bytes();
            }
            let sums = groups.add_up(Rows::new(&rows, 4).unwrap(), DataType::Float32, weights).unwrap();
            let mut wanted = Vec::new();
            for token in 0..indices.len() / 3 {
                let slots = (token * 3..token * 3 + 3).filter(|&slot| indices[slot] >= 0);
                let value = |slot: usize| (token as f32 + 100.0 * indices[slot] as f32) * weights[slot];
                wanted.extend(slots.fold(0.0, |sum, slot| sum + value(slot)).to_ne_bytes());
            }
            prop_assert_eq!(sums, wanted);
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        assert!(matches!(Groups::of(&[0, 5, -1], 3, 5, 1), Err(Error::NoSuchExpert { slot: 1, expert: 5, .. })));
        assert!(Groups::of(&[0; 4], 3, 5, 1).is_err());
        let groups = Groups::of(&[0, 1, -1], 3, 5, 2).unwrap();
        assert!(groups.gather(Rows::new(&[0; 8], 4).unwrap()).is_err());
        assert!(groups.add_up(Rows::new(&[0; 8], 4).unwrap(), DataType::Float32, &[1.0; 3]).is_err());
        assert!(groups.add_up(Rows::new(&[0; 16], 4).unwrap(), DataType::Float16, &[1.0; 3]).is_err());
        assert!(groups.add_up(Rows::new(&[0; 16], 4).unwrap(), DataType::Float32, &[1.0; 2]).is_err());
    }
}
