//! Named cases that are always tested.

use symrail_ep::DataType::{self, Bfloat16, Float32};

use super::case::Choice;
use super::case::Choice::{Any, Distinct, Last, Nobody, Same, Sparse};

/// The number of tokens of each rank.
#[derive(Debug, Clone, Copy)]
pub enum Tokens {
    All(usize),
    /// Odd ranks have no tokens.
    EvenRanks(usize),
    /// All other ranks have no tokens.
    Rank1(usize),
}

impl Tokens {
    pub fn of(self, rank: usize) -> usize {
        match self {
            Tokens::All(tokens) => tokens,
            Tokens::EvenRanks(tokens) => tokens * usize::from(rank.is_multiple_of(2)),
            Tokens::Rank1(tokens) => tokens * usize::from(rank == 1),
        }
    }

    pub fn most(self) -> usize {
        let (Tokens::All(tokens) | Tokens::EvenRanks(tokens) | Tokens::Rank1(tokens)) = self;
        tokens
    }
}

pub struct Named {
    pub what: &'static str,
    pub experts: usize,
    pub k: usize,
    pub hidden: usize,
    pub element: DataType,
    /// Whether tokens have scales.
    pub scaled: bool,
    pub tokens: Tokens,
    pub choice: Choice,
}

const fn of(
    what: &'static str,
    (experts, k, hidden): (usize, usize, usize),
    (element, scaled): (DataType, bool),
    tokens: Tokens,
    choice: Choice,
) -> Named {
    Named { what, experts, k, hidden, element, scaled, tokens, choice }
}

#[rustfmt::skip]
pub const NAMED: [Named; 15] = [
    of("top-1, a hidden size that is no multiple of 128", (8, 1, 24), (Float32, true), Tokens::All(9), Any),
    of("top-2", (64, 2, 128), (Bfloat16, true), Tokens::All(20), Distinct),
    of("top-8, hidden 7,168", (256, 8, 7168), (Bfloat16, false), Tokens::All(2), Distinct),
    of("top-16, 2,048 experts", (2048, 16, 24), (Bfloat16, false), Tokens::All(9), Distinct),
    of("top-1, 2,048 experts", (2048, 1, 128), (Float32, false), Tokens::All(20), Any),
    of("top-2, hidden 8,192", (8, 2, 8192), (Float32, true), Tokens::All(2), Any),
    of("top-16 of 8 experts, so that all are named twice", (8, 16, 128), (Float32, false), Tokens::All(9), Any),
    of("one expert in all slots of a token", (64, 8, 128), (Bfloat16, false), Tokens::All(9), Same),
    of("all tokens to one expert, top-1", (8, 1, 7168), (Bfloat16, true), Tokens::All(3), Last),
    of("all tokens to one expert, top-16", (2048, 16, 24), (Float32, false), Tokens::All(9), Last),
    of("no tokens on every other rank", (64, 8, 24), (Bfloat16, true), Tokens::EvenRanks(9), Any),
    of("tokens on one rank only, hidden 8,192", (16, 2, 8192), (Bfloat16, false), Tokens::Rank1(3), Any),
    of("no tokens at all", (8, 2, 128), (Float32, false), Tokens::All(0), Any),
    of("slots of no expert", (256, 8, 24), (Float32, true), Tokens::All(20), Sparse),
    of("tokens of no expert", (8, 16, 128), (Bfloat16, true), Tokens::All(9), Nobody),
];
