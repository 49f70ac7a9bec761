//! The shape of low-latency buffers, and their sizes.

use super::block;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::plan::layout::{MOST_TOP_K, share};
use crate::plan::rows::RowFormat;

/// The most slots of a token in buffers whose creator does not give a number.
pub const USUAL_TOP_K: usize = 16;

/// The most tokens of a rank. This limit and the next one keep all sizes within 64 bits.
pub const MOST_TOKENS: usize = 1 << 20;
/// The most bytes of a token.
pub const MOST_TOKEN_BYTES: usize = 1 << 24;

/// The limits of the buffers. They are equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The most tokens of each rank.
    pub most_tokens: usize,
    /// Bytes of a token.
    pub token: usize,
    /// Bytes of a token's scales.
    pub scales: usize,
    /// Experts of all ranks.
    pub experts: usize,
    /// Top-k slots of a token.
    pub k: usize,
}

impl Shape {
    /// The shape for bfloat16 tokens with `hidden` elements, or for FP8 with scales.
    #[must_use]
    pub fn of_bf16(most_tokens: usize, hidden: usize, experts: usize) -> Shape {
        let scales = 4 * crate::fp8::scales(hidden);
        Shape { most_tokens, token: hidden.saturating_mul(2), scales, experts, k: USUAL_TOP_K }
    }

    /// The heap bytes of each rank.
    #[must_use]
    pub fn bytes(&self, ranks: usize) -> usize {
        Exchange::bytes(ranks, self.dispatch_block()) + Exchange::bytes(ranks, self.combine_block(ranks))
    }

    /// The format of a dispatch row.
    pub(super) fn dispatch_row(&self) -> RowFormat {
        RowFormat { token: self.token, scales: self.scales, indices: self.k, weights: 0, number: 4, mask: 0 }
    }

    /// Bytes of a block of a dispatch.
    pub(super) fn dispatch_block(&self) -> usize {
        block::BYTES + self.most_tokens * self.dispatch_row().bytes()
    }

    /// Bytes of a block of a combine: at most a row for each token and expert.
    pub(super) fn combine_block(&self, ranks: usize) -> usize {
        let row = RowFormat { token: self.token, scales: 0, indices: 0, weights: 0, number: 0, mask: 0 };
        block::BYTES + self.most_tokens * self.k.min(self.experts / ranks) * row.bytes()
    }

    /// Refuses an invalid shape.
    ///
    /// # Errors
    /// The number that is out of range.
    pub fn check(&self, ranks: usize) -> Result<()> {
        share(self.experts, ranks)?;
        for (what, number, most) in [
            ("tokens of a rank", self.most_tokens, MOST_TOKENS),
            ("bytes of a token", self.token, MOST_TOKEN_BYTES),
            ("top-k slots of a token", self.k, MOST_TOP_K),
        ] {
            if number == 0 || number > most {
                return Err(Error::argument(what, number, format!("1 to {most}")));
            }
        }
        Ok(())
    }

    /// The numbers that all ranks compare.
    pub(super) fn numbers(&self) -> [(&'static str, u64); 5] {
        let Shape { most_tokens, token, scales, experts, k } = *self;
        [
            ("tokens of a rank, at most", most_tokens as u64),
            ("bytes of a token", token as u64),
            ("bytes of a token's scales", scales as u64),
            ("number of experts", experts as u64),
            ("top-k slots of a token", k as u64),
        ]
    }
}
