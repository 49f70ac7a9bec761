//! What the high-throughput kernels report to the host, at any time: see `record` in `cu/calls.cuh`.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use symrail::Pe;
use symrail::kernels::cuda::{Gpu, PinnedBuffer};
use symrail_core::word_of;

use super::failed;
use super::layout::high_throughput::{self as layout, DIFFERENT, LATE, NO_EXPERT, NO_ROOM, TICKET_REFUSED};
use crate::element::TYPES;
use crate::error::{Error, Result};
use crate::exchange::{WaitLimit, late};

const COMPARED: [&str; layout::COMPARED] = [
    "kinds of calls",
    "bytes of a row",
    "scales of a row",
    "top-k slots of a token",
    "routes of an earlier dispatch",
    TYPES,
];
/// Words of the record. Behind [`layout::Record`] there is a word for each rank with the last call that it has announced,
/// and one for each rank that is set if it was late. Then follow counts of 32 bits: a matrix of the ranks, and a number
/// for each expert here.
const WRONG: usize = word_of!(layout::Record, wrong);
const OTHER: usize = word_of!(layout::Record, other);
const HERE: usize = word_of!(layout::Record, here);
const THERE: usize = word_of!(layout::Record, there);
const CALLS: usize = word_of!(layout::Record, calls);
const TOLD: usize = word_of!(layout::Record, told);
const OF_RANKS: usize = size_of::<layout::Record>() / 8;

/// The record, in host memory.
pub(super) struct Record {
    memory: PinnedBuffer,
    me: Pe,
    ranks: Pe,
    share: usize,
    limit: WaitLimit,
}

/// The counts of a dispatch for the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// For each rank the number of its tokens for each rank.
    pub matrix: Vec<u32>,
    /// The number of tokens from each rank.
    pub from_ranks: Vec<u32>,
    /// For each of this rank's experts, the number of slots that name it.
    pub per_expert: Vec<u32>,
}

impl Counts {
    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.from_ranks.iter().map(|&rows| rows as usize).sum()
    }
}

/// What a dispatch tells the host that waits for its counts.
pub(super) enum Told {
    Counts(Counts),
    Refused,
}

/// What errors contain besides the record's values.
pub(super) struct Meaning {
    pub k: usize,
    pub experts: usize,
}

impl Record {
    /// `share`: the experts of a rank.
    pub fn new(gpu: &Arc<Gpu>, me: Pe, ranks: Pe, share: usize, limit: WaitLimit) -> Result<Record> {
        let words = OF_RANKS + 2 * ranks as usize + (ranks as usize * ranks as usize + share).div_ceil(2);
        let memory = PinnedBuffer::new(gpu, 8 * words).map_err(failed)?;
        Ok(Record { memory, me, ranks, share, limit })
    }

    /// The record's GPU address.
    pub fn at(&self) -> u64 {
        self.memory.device().get()
    }

    /// Clears and returns the first error since the last call.
    ///
    /// # Errors
    /// That error.
    pub fn take(&self, meaning: &Meaning) -> Result<()> {
        let wrong = self.memory.word(WRONG);
        let [other, here, there] = [OTHER, HERE, THERE].map(|at| self.memory.word(at));
        if wrong != 0 {
            self.memory.set_word(WRONG, 0);
        }
        match wrong {
            0 => Ok(()),
            NO_EXPERT => {
                let (token, slot) = (here as usize / meaning.k, here as usize % meaning.k);
                Err(Error::NoSuchExpert { token, slot, expert: there as i64, last: meaning.experts - 1 })
            }
            NO_ROOM => Err(Error::NoRoom { rank: other as Pe, rows: there, room: here }),
            LATE => Err(self.late(self.of_ranks(self.ranks, |late| late != 0))),
            _ => {
                let what = COMPARED.get((wrong - DIFFERENT) as usize).copied().unwrap_or("headers");
                Err(Error::differ(what, self.me, here, other as Pe, there))
            }
        }
    }

    /// What the dispatch with this ticket has told, if it has: its counts, or that it was refused.
    pub fn told(&self, ticket: u64) -> Option<Told> {
        match self.memory.word(TOLD) {
            told if told == ticket => {}
            told if told == ticket | TICKET_REFUSED => return Some(Told::Refused),
            _ => return None,
        }
        // The GPU has written the counts before the ticket.
        fence(Ordering::Acquire);
        let (ranks, me) = (self.ranks as usize, self.me as usize);
        let number = |i: usize| (self.memory.word(OF_RANKS + 2 * ranks + i / 2) >> (32 * (i % 2))) as u32;
        let matrix: Vec<u32> = (0..ranks * ranks).map(number).collect();
        let from_ranks = matrix.iter().skip(me).step_by(ranks).copied().collect();
        let per_expert = (ranks * ranks..).take(self.share).map(number).collect();
        Some(Told::Counts(Counts { matrix, from_ranks, per_expert }))
    }

    /// The error for ranks that have not announced the present call, if there are any.
    pub fn not_announced(&self) -> Option<Error> {
        let call = self.memory.word(CALLS) + 1;
        let ranks = self.of_ranks(0, |announced| announced < call);
        if ranks.is_empty() { None } else { Some(self.late(ranks)) }
    }

    /// The ranks whose word satisfies `is`, in the table that begins `from` words behind the record's fixed words.
    fn of_ranks(&self, from: Pe, is: impl Fn(u64) -> bool) -> Vec<Pe> {
        (0..self.ranks).filter(|&rank| is(self.memory.word(OF_RANKS + (from + rank) as usize))).collect()
    }

    fn late(&self, ranks: Vec<Pe>) -> Error {
        late(self.me, "high throughput on GPUs", ranks, self.limit.time.as_secs_f64())
    }
}
