//! Words and rows between the ranks of a plan, in symmetric memory.
//!
//! A word holds the number of the last round in which it was told. Numbers only grow, so that nothing is ever cleared,
//! and a word of an earlier round is never taken for one of this.
//!
//! One word more is the alarm: who gives up in a round tells all others, so that nobody waits for it.

use symrail::team::heap::{Block, aligned};
use symrail::{Cmp, Group, Pe, Runtime, SignalOp, Team, TeamHeap};

use crate::error::{Error, Result};
use crate::program::{Round, Rows, Word};
use crate::shards::{Schedule, Shards};
use crate::step::{Observer, Step};
use crate::weight::Weight;

/// What a plan computes, or what it is without one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Product {
    AllGatherMatmul,
    MatmulReduceScatter,
    MatmulAllReduce,
    PointToPoint,
}

impl Product {
    pub fn name(self) -> &'static str {
        match self {
            Product::AllGatherMatmul => "all_gather_matmul",
            Product::MatmulReduceScatter => "matmul_reduce_scatter",
            Product::MatmulAllReduce => "matmul_all_reduce",
            Product::PointToPoint => "a copy between two ranks",
        }
    }
}

/// What the ranks of one plan share. See the [module](self).
pub(crate) struct Exchange<'rt> {
    heap: &'rt TeamHeap<'rt>,
    group: Group,
    product: Product,
    block: Block,
    /// The word behind the plan's own.
    alarm: Word,
    round: u64,
    /// A round has begun and not ended.
    broken: bool,
    observer: Option<Observer<'rt>>,
}

impl<'rt> Exchange<'rt> {
    /// Takes so many words and numbers of each rank's memory, if all ranks pass the same. Collective over the team.
    pub fn new(
        heap: &'rt TeamHeap<'rt>,
        team: &Team<'rt>,
        product: Product,
        (shards, width, schedule): (&Shards, usize, Schedule),
        (words, numbers): (usize, usize),
    ) -> Result<Exchange<'rt>> {
        compare(heap, team, product, (shards, width, schedule), &[])?;
        heap.must_be_the_hosts()?;
        let block = heap.take_words(team, Exchange::bytes(words, numbers))?;
        Ok(Exchange {
            heap,
            group: team.group(),
            product,
            block,
            alarm: words,
            round: 0,
            broken: false,
            observer: None,
        })
    }

    /// Bytes of a team's heap that so many words and numbers take.
    pub fn bytes(words: usize, numbers: usize) -> usize {
        aligned(bytes_of_words(words.saturating_add(1)).saturating_add(numbers.saturating_mul(size_of::<f32>())))
    }

    pub fn free(self, team: &Team<'rt>) -> Result<()> {
        Ok(self.heap.give_back(team, self.block)?)
    }

    pub fn observe(&mut self, observer: Option<Observer<'rt>>) {
        self.observer = observer;
    }

    pub fn me(&self) -> usize {
        self.group.me() as usize
    }

    /// Checks the length of an array.
    pub fn check(&self, what: &'static str, given: usize, wanted: usize) -> Result<()> {
        Error::unless_long(self.runtime().my_pe(), self.product, what, given, wanted)
    }

    /// Checks that a weight takes rows of so many numbers.
    pub fn check_weight(&self, weight: &Weight<'_>, inputs: usize) -> Result<()> {
        weight.check(self.runtime().my_pe(), self.product, inputs)
    }

    /// Begins the next round.
    pub fn begin(&mut self) -> Result<()> {
        if self.broken {
            return Err(Error::Broken { pe: self.runtime().my_pe(), product: self.product.name() });
        }
        self.broken = true;
        self.listen()?;
        self.round += 1;
        Ok(())
    }

    /// Ends the round: what was put has left.
    pub fn end(&mut self) -> Result<()> {
        self.quiet()?;
        self.broken = false;
        Ok(())
    }

    /// Whether nobody has given up.
    fn listen(&self) -> Result<()> {
        // SAFETY: a word of this plan, aligned.
        let alarm = unsafe { self.runtime().peek(self.word(self.alarm).cast_const()) }?;
        Error::told(self.runtime().my_pe(), self.product, alarm)
    }

    /// Tells all others that this rank gives up, unless one of them has told it.
    pub fn give_up(&mut self, error: &Error) {
        if matches!(error, Error::GivenUp { .. }) {
            return;
        }
        let (me, word) = (self.me(), self.word(self.alarm));
        let alarm = error.alarm(self.runtime().my_pe());
        for to in (0..self.group.size() as usize).filter(|&rank| rank != me) {
            let signal = (word, alarm, SignalOp::Set);
            // Who cannot be told is gone, and `error` is what the caller wants to know.
            // SAFETY: no bytes are put; the word is this plan's.
            let _ = unsafe { self.runtime().put_signal_nbi(word.cast(), word.cast(), 0, signal, self.pe(to)) };
        }
    }

    /// Says what is done next.
    pub fn step(&mut self, step: &Step) {
        if let Some(observer) = &mut self.observer {
            observer(step);
        }
    }

    /// Sets a rank's word to this round.
    pub fn tell(&mut self, to: usize, word: Word) -> Result<()> {
        self.step(&Step::Tell { to });
        let word = self.word(word);
        // SAFETY: no bytes are put; the word is this plan's.
        let told = unsafe {
            self.runtime().put_signal_nbi(word.cast(), word.cast(), 0, (word, self.round, SignalOp::Set), self.pe(to))
        };
        Ok(told?)
    }

    /// Whether a word was told in a round.
    pub fn is_told(&self, word: Word, round: Round) -> Result<bool> {
        // SAFETY: a word of this plan, aligned.
        Ok(unsafe { self.runtime().peek(self.word(word).cast_const()) }? >= self.number_of(round))
    }

    /// Waits until a rank has told a word in a round, or somebody has given up.
    pub fn wait(&mut self, from: usize, word: Word, round: Round) -> Result<()> {
        self.step(&Step::Wait { from });
        let told = (self.word(word).cast_const(), Cmp::Ge, self.number_of(round));
        let alarm = (self.word(self.alarm).cast_const(), Cmp::Ne, 0);
        // SAFETY: words of this plan, aligned.
        match unsafe { self.runtime().wait_in_any(self.product.name(), &[told, alarm]) }? {
            0 => Ok(()),
            _ => self.listen(),
        }
    }

    fn number_of(&self, round: Round) -> u64 {
        match round {
            Round::This => self.round,
            Round::Before => self.round - 1,
        }
    }

    /// Starts to put rows of this rank to where another one keeps them, and then to tell its word.
    pub fn put(&mut self, from: &Rows, to: usize, at: usize, word: Word) -> Result<()> {
        self.step(&Step::Put { to, rows: from.rows.clone() });
        let signal = (self.word(word), self.round, SignalOp::Set);
        let (dest, source, bytes) = (self.number(at), self.number(from.at), from.len() * size_of::<f32>());
        // SAFETY: the source is this plan's, and stays as it is until the round has ended with a quiet.
        Ok(unsafe { self.runtime().put_signal_nbi(dest.cast(), source.cast(), bytes, signal, self.pe(to)) }?)
    }

    /// Starts to get rows of another rank to the same place here. They are here after [`Exchange::quiet`].
    pub fn get(&mut self, rows: &Rows, from: usize) -> Result<()> {
        self.step(&Step::Get { from, rows: rows.rows.clone() });
        let (numbers, bytes) = (self.number(rows.at).cast::<u8>(), rows.len() * size_of::<f32>());
        // SAFETY: the numbers are this plan's, and used here after a quiet only.
        Ok(unsafe { self.runtime().get_nbi(numbers, numbers, bytes, self.pe(from)) }?)
    }

    /// Waits until all is done that was started.
    pub fn quiet(&mut self) -> Result<()> {
        self.step(&Step::Quiet);
        Ok(self.runtime().quiet()?)
    }

    /// Where this rank keeps its numbers, from one of them on. Others write there when a plan has let them.
    pub fn number(&self, at: usize) -> *mut f32 {
        self.block.base.wrapping_add(bytes_of_words(self.alarm + 1)).cast::<f32>().wrapping_add(at)
    }

    /// Keeps numbers.
    pub fn store(&self, at: usize, from: &[f32]) {
        let to = self.number(at);
        // SAFETY: plans store within the numbers that they have taken, which nobody else uses then.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Copies numbers that are kept.
    pub fn load(&self, at: usize, to: &mut [f32]) {
        let from = self.number(at);
        // SAFETY: plans load within the numbers that they have taken, which nobody changes then.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
    }

    /// Adds numbers that are kept.
    pub fn add(&self, at: usize, to: &mut [f32]) {
        let from = self.number(at);
        for (i, sum) in to.iter_mut().enumerate() {
            // SAFETY: as for `load`.
            *sum += unsafe { from.add(i).read() };
        }
    }

    fn runtime(&self) -> &'rt Runtime {
        self.heap.runtime()
    }

    fn pe(&self, rank: usize) -> Pe {
        self.group.pe(rank as u32)
    }

    fn word(&self, word: Word) -> *mut u64 {
        self.block.base.cast::<u64>().wrapping_add(word)
    }
}

/// Compares what the ranks of a team pass, and checks that there is a shard for each.
pub(crate) fn compare(
    heap: &TeamHeap<'_>,
    team: &Team<'_>,
    product: Product,
    (shards, width, schedule): (&Shards, usize, Schedule),
    further: &[(&'static str, u64)],
) -> Result<()> {
    let mut parameters = vec![("the kind of product", product as u64), ("numbers of a row", width as u64)];
    parameters.extend(schedule.parameters());
    parameters.extend((0..shards.ranks()).map(|rank| ("rows of a shard", shards.of(rank).len() as u64)));
    parameters.extend(further);
    team.compare(product.name(), &parameters)?;
    let (pe, ranks) = (heap.runtime().my_pe(), team.group().size() as usize);
    Error::unless_long(pe, product, "the list of shards", shards.ranks(), ranks)
}

/// Bytes before the numbers.
pub(crate) fn bytes_of_words(words: usize) -> usize {
    aligned(words.saturating_mul(size_of::<u64>()))
}
