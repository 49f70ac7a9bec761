//! Signal words and rows that the ranks of a plan exchange through symmetric memory.
//!
//! A word holds the number of the last round in which a rank set it. The numbers only grow. So no rank ever clears a
//! word, and a word of an earlier round never passes for one of this round.
//!
//! One further word is the alarm. A rank that gives up in a round sets it at all others, so that none of them waits for
//! that rank.

use symrail::team::heap::{Block, aligned};
use symrail::{Cmp, Group, Pe, Runtime, SignalOp, Team, TeamHeap};

use crate::error::{Error, Result};
use crate::product::Product;
use crate::program::{Round, Rows, Word};
use crate::shards::{Schedule, Shards};
use crate::step::{Observer, Step};
use crate::weight::Weight;

/// The state that the ranks of one plan share. See the [module](self).
pub(crate) struct Exchange {
    group: Group,
    product: Product,
    block: Block,
    /// The alarm: the word after the plan's own ones.
    alarm: Word,
    round: u64,
    /// Whether a round has begun and not ended.
    broken: bool,
    observer: Option<Observer>,
    heap: TeamHeap,
}

impl Exchange {
    /// Allocates `words` and `numbers` on each rank if all ranks pass the same arguments. Collective over the team.
    pub fn new(
        heap: &TeamHeap,
        team: &Team,
        product: Product,
        (shards, width, schedule): (&Shards, usize, Schedule),
        (words, numbers): (usize, usize),
    ) -> Result<Exchange> {
        compare(heap, team, product, (shards, width, schedule), &[])?;
        heap.must_be_the_hosts()?;
        let block = heap.take_words(team, Exchange::bytes(words, numbers))?;
        Ok(Exchange {
            heap: heap.clone(),
            group: team.group(),
            product,
            block,
            alarm: words,
            round: 0,
            broken: false,
            observer: None,
        })
    }

    /// Bytes of a team's heap for `words` and `numbers`.
    pub fn bytes(words: usize, numbers: usize) -> usize {
        aligned(bytes_of_words(words.saturating_add(1)).saturating_add(numbers.saturating_mul(size_of::<f32>())))
    }

    pub fn free(self, team: &Team) -> Result<()> {
        Ok(self.heap.give_back(team, self.block)?)
    }

    pub fn observe(&mut self, observer: Option<Observer>) {
        self.observer = observer;
    }

    pub fn me(&self) -> usize {
        self.group.me() as usize
    }

    /// Checks the length of an array.
    pub fn check(&self, what: &'static str, given: usize, wanted: usize) -> Result<()> {
        Error::unless_long(self.runtime().my_pe(), self.product, what, given, wanted)
    }

    /// Checks that a weight multiplies rows of `inputs` numbers.
    pub fn check_weight(&self, weight: &Weight<'_>, inputs: usize) -> Result<()> {
        weight.check(self.runtime().my_pe(), self.product, inputs)
    }

    /// Begins the next round.
    pub fn begin(&mut self) -> Result<()> {
        if self.broken {
            return Err(Error::Broken { pe: self.runtime().my_pe(), product: self.product.name() });
        }
        self.runtime().check_joined()?;
        self.broken = true;
        self.listen()?;
        self.round += 1;
        Ok(())
    }

    /// Ends the round: all puts have completed.
    pub fn end(&mut self) -> Result<()> {
        self.quiet()?;
        self.broken = false;
        Ok(())
    }

    /// Returns an error if a rank has given up.
    fn listen(&self) -> Result<()> {
        // SAFETY: a word of this plan, aligned.
        let alarm = unsafe { self.runtime().peek(self.word(self.alarm).cast_const()) }?;
        Error::if_given_up(self.runtime().my_pe(), self.product, alarm)
    }

    /// Sets the alarm at all others, unless this rank gives up because of another rank's alarm.
    pub fn give_up(&mut self, error: &Error) {
        if matches!(error, Error::GivenUp { .. }) {
            return;
        }
        let (me, word) = (self.me(), self.word(self.alarm));
        let alarm = error.alarm(self.runtime().my_pe());
        for to in (0..self.group.size() as usize).filter(|&rank| rank != me) {
            let signal = (word, alarm, SignalOp::Set);
            // An error is ignored: a rank that the signal cannot reach is dead, and `error` is what the caller wants to
            // know.
            // SAFETY: no bytes are put; the word is this plan's.
            let _ = unsafe { self.runtime().put_signal_nbi(word.cast(), word.cast(), 0, signal, self.pe(to)) };
        }
    }

    /// Reports the next step to the observer.
    pub fn step(&mut self, step: &Step) {
        if let Some(observer) = &mut self.observer {
            observer(step);
        }
    }

    /// Sets a rank's word to this round.
    pub fn signal(&mut self, to: usize, word: Word) -> Result<()> {
        self.step(&Step::Signal { to });
        let word = self.word(word);
        // SAFETY: no bytes are put; the word is this plan's.
        let done = unsafe {
            self.runtime().put_signal_nbi(word.cast(), word.cast(), 0, (word, self.round, SignalOp::Set), self.pe(to))
        };
        Ok(done?)
    }

    /// Whether a rank has set this word in a round.
    pub fn is_set(&self, word: Word, round: Round) -> Result<bool> {
        // SAFETY: a word of this plan, aligned.
        Ok(unsafe { self.runtime().peek(self.word(word).cast_const()) }? >= self.number_of(round))
    }

    /// Waits until a rank has set a word in a round, or until a rank has given up.
    pub fn wait(&mut self, from: usize, word: Word, round: Round) -> Result<()> {
        self.step(&Step::Wait { from });
        let done = (self.word(word).cast_const(), Cmp::Ge, self.number_of(round));
        let alarm = (self.word(self.alarm).cast_const(), Cmp::Ne, 0);
        // SAFETY: words of this plan, aligned.
        match unsafe { self.runtime().wait_in_any(self.product.name(), &[done, alarm]) }? {
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

    /// Starts to put rows of this rank to another rank's memory and then to set a word there.
    pub fn put(&mut self, from: &Rows, to: usize, at: usize, word: Word) -> Result<()> {
        self.step(&Step::Put { to, rows: from.rows.clone() });
        let signal = (self.word(word), self.round, SignalOp::Set);
        let (dest, source, bytes) = (self.number(at), self.number(from.at), from.len() * size_of::<f32>());
        // SAFETY: the source is this plan's memory, and stays unchanged until the round has ended with a quiet.
        Ok(unsafe { self.runtime().put_signal_nbi(dest.cast(), source.cast(), bytes, signal, self.pe(to)) }?)
    }

    /// Starts to get rows of another rank to the same place in this rank's memory. They have arrived after
    /// [`Exchange::quiet`].
    pub fn get(&mut self, rows: &Rows, from: usize) -> Result<()> {
        self.step(&Step::Get { from, rows: rows.rows.clone() });
        let (numbers, bytes) = (self.number(rows.at).cast::<u8>(), rows.len() * size_of::<f32>());
        // SAFETY: the numbers are this plan's memory; this rank uses them only after a quiet.
        Ok(unsafe { self.runtime().get_nbi(numbers, numbers, bytes, self.pe(from)) }?)
    }

    /// Waits until all operations that were started have completed.
    pub fn quiet(&mut self) -> Result<()> {
        self.step(&Step::Quiet);
        Ok(self.runtime().quiet()?)
    }

    /// The address of this rank's number `at`. Other ranks write there once the plan has let them.
    pub fn number(&self, at: usize) -> *mut f32 {
        self.block.base.wrapping_add(bytes_of_words(self.alarm + 1)).cast::<f32>().wrapping_add(at)
    }

    /// Copies numbers to this rank's memory.
    pub fn store(&self, at: usize, from: &[f32]) {
        let to = self.number(at);
        // SAFETY: plans store within the numbers that they have allocated. No other rank uses these at that time.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Copies numbers from this rank's memory.
    pub fn load(&self, at: usize, to: &mut [f32]) {
        let from = self.number(at);
        // SAFETY: plans load within the numbers that they have allocated. No rank changes these at that time.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
    }

    /// Adds numbers of this rank's memory to `to`.
    pub fn add(&self, at: usize, to: &mut [f32]) {
        let from = self.number(at);
        for (i, sum) in to.iter_mut().enumerate() {
            // SAFETY: as for `load`.
            *sum += unsafe { from.add(i).read() };
        }
    }

    fn runtime(&self) -> &Runtime {
        self.heap.runtime()
    }

    fn pe(&self, rank: usize) -> Pe {
        self.group.pe(rank as u32)
    }

    fn word(&self, word: Word) -> *mut u64 {
        self.block.base.cast::<u64>().wrapping_add(word)
    }
}

/// Compares the arguments of the ranks of a team, and checks that there is a shard for each rank.
pub(crate) fn compare(
    heap: &TeamHeap,
    team: &Team,
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

/// Bytes of the words, which stand before the numbers.
pub(crate) fn bytes_of_words(words: usize) -> usize {
    aligned(words.saturating_mul(size_of::<u64>()))
}
