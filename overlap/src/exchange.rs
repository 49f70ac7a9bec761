//! Rounds of a plan: words ([`SignalWords`]) and rows that its ranks exchange through symmetric memory.
//!
//! The words hold the numbers of the last rounds in which ranks set them. The last word is the abort word ([`Abort`]).

use symrail::rounds::{self, Abort, Poison, SignalWords};
use symrail::team::heap::{Block, aligned};
use symrail::{Group, Pe, Runtime, SignalOp, SignalUpdate, Team, TeamHeap};

use crate::error::{Error, Result};
use crate::product::Product;
use crate::program::{Round, Rows, Word};
use crate::shards::{Schedule, Shards};
use crate::step::{Observer, Step};
use crate::weight::Weight;

/// The rows that the ranks of a plan move: the same on all ranks.
#[derive(Clone, Copy)]
pub(crate) struct Geometry<'a> {
    pub shards: &'a Shards,
    /// Numbers of a row.
    pub width: usize,
    pub schedule: Schedule,
}

/// A plan's symmetric memory on each rank.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub words: usize,
    pub numbers: usize,
}

/// The state that the ranks of one plan share. See the [module](self).
pub(crate) struct Exchange {
    group: Group,
    product: Product,
    block: Block,
    words: SignalWords,
    /// The abort word, after the plan's own ones.
    abort: Word,
    round: u64,
    poison: Poison,
    observer: Option<Observer>,
}

impl Exchange {
    /// Allocates the memory on each rank if all ranks pass the same arguments. Collective over the team.
    pub fn new(
        heap: &TeamHeap,
        team: &Team,
        product: Product,
        geometry: Geometry<'_>,
        Sizes { words, numbers }: Sizes,
    ) -> Result<Exchange> {
        compare(heap, team, product, geometry, &[])?;
        heap.must_be_the_hosts()?;
        let block = heap.take_words(team, Exchange::bytes(words, numbers))?;
        let abort = words;
        // SAFETY: the block begins with these words, and is freed with the plan.
        let words = unsafe { SignalWords::new(heap.runtime(), block.base.cast(), words + 1) };
        Ok(Exchange {
            group: team.group(),
            product,
            block,
            words,
            abort,
            round: 0,
            poison: Poison::default(),
            observer: None,
        })
    }

    /// Bytes of a team's heap for `words` and `numbers`.
    pub fn bytes(words: usize, numbers: usize) -> usize {
        aligned(bytes_of_words(words.saturating_add(1)).saturating_add(numbers.saturating_mul(size_of::<f32>())))
    }

    pub fn free(self, team: &Team) -> Result<()> {
        Ok(self.block.free(team)?)
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
        self.runtime().check_joined()?;
        let pe = self.runtime().my_pe();
        self.poison.begin(pe, self.product.name())?;
        self.check_abort(self.words.read(self.abort)?)?;
        self.round += 1;
        Ok(())
    }

    /// Ends the round: all puts have completed.
    pub fn end(&mut self) -> Result<()> {
        self.quiet()?;
        self.poison.end();
        Ok(())
    }

    fn check_abort(&self, word: u64) -> Result<()> {
        Ok(Abort::check(word, self.runtime().my_pe(), self.product.name())?)
    }

    /// Tells all others that this rank gives up, unless it does because another rank did.
    pub fn give_up(&self, error: &Error) {
        if !matches!(error, Error::Round(rounds::Error::Aborted { .. })) {
            Abort::send(self.runtime(), self.group, self.words.address(self.abort), error.lost());
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
        Ok(self.words.signal(word, self.round, SignalOp::Set, self.pe(to))?)
    }

    /// Whether a rank has set this word in a round.
    pub fn is_set(&self, word: Word, round: Round) -> Result<bool> {
        Ok(self.words.has_reached(word, self.number_of(round))?)
    }

    /// Waits until a rank has set a word in a round, or until a rank has given up.
    pub fn wait(&mut self, from: usize, word: Word, round: Round) -> Result<()> {
        self.step(&Step::Wait { from });
        let round = self.number_of(round);
        self.check_abort(self.words.wait_or_abort(self.product.name(), word, round, self.abort)?)
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
        let signal = SignalUpdate::set(self.words.address(word), self.round);
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
        self.block.base.wrapping_add(bytes_of_words(self.abort + 1)).cast::<f32>().wrapping_add(at)
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
        self.words.runtime()
    }

    fn pe(&self, rank: usize) -> Pe {
        self.group.pe(rank as u32)
    }
}

/// Compares the arguments of the ranks of a team, and checks that there is a shard for each rank.
pub(crate) fn compare(
    heap: &TeamHeap,
    team: &Team,
    product: Product,
    Geometry { shards, width, schedule }: Geometry<'_>,
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
