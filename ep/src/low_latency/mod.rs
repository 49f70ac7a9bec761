//! Low latency: a limited number of tokens of each rank, in one block for each other rank, through buffers in rotation.
//!
//! Sending and receiving are separate calls, between which a program may compute. Up to [`SLOTS`] dispatches and as
//! many combines may be sent but not yet received. An error names the ranks that do not arrive in time.
//! [`LowLatency::mask_late`] also masks them: the others go on, and no longer send to them or wait for them. A masked
//! late rank can take part again only in a new job.
//!
//! A token crosses once for each rank that owns some of its experts, and that rank copies it for each of these experts.
//! Combine returns a row for each expert. It adds a token's rows, times their weights, first those of each rank.
//!
//! | file | concept |
//! |---|---|
//! | here | buffers, masks, common parts of both calls |
//! | [`dispatch`], [`combine`] | the calls |
//! | [`shape`] | limits of the buffers |
//! | `block` | the start of a block |

mod block;
pub mod combine;
pub mod dispatch;
pub mod shape;

use symrail::{Pe, Runtime};

use crate::admission::masks_after;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, SLOTS, Wait, WaitLimit, beside};
use crate::statistics::Statistics;
pub use combine::Combining;
pub use dispatch::{Dispatched, Dispatching};
pub use shape::Shape;

/// Buffers for dispatch and combine of few tokens. See the [module](self).
pub struct LowLatency {
    shape: Shape,
    dispatch: Turns,
    combine: Turns,
    masks: Masks,
    /// Whether combines encode rows.
    encodes: bool,
    limit: WaitLimit,
}

/// The ranks that are left out.
#[derive(Debug, Clone)]
struct Masks {
    masked: Vec<bool>,
    /// The ranks that did not arrive, or were masked while a call was in flight. Their blocks no longer have the numbers
    /// that this rank expects.
    lost: Vec<bool>,
    mask_late: bool,
}

/// The blocks of one kind of call, and the counts of its calls.
struct Turns {
    exchange: Exchange,
    what: &'static str,
    sent: u64,
    received: u64,
    /// Statistics of the last call that was received.
    statistics: Statistics,
}

impl LowLatency {
    /// Makes buffers of this shape. Collective.
    ///
    /// # Errors
    /// An invalid shape; [`symrail::Error::ParametersDiffer`], on every rank; an exhausted heap.
    pub fn new(rt: &Runtime, shape: Shape, limit: WaitLimit) -> Result<LowLatency> {
        let ranks = rt.n_pes() as usize;
        shape.check(ranks)?;
        rt.team_world()?.compare("buffers for low latency", &shape.numbers())?;
        let dispatch = Exchange::new(rt, shape.dispatch_block())?;
        let combine = Exchange::new(rt, shape.combine_block(ranks));
        let (dispatch, combine) = beside(dispatch, combine, Exchange::free)?;
        let turns = |what, exchange| Turns { exchange, what, sent: 0, received: 0, statistics: Statistics::default() };
        Ok(LowLatency {
            shape,
            dispatch: turns("low-latency dispatch", dispatch),
            combine: turns("low-latency combine", combine),
            masks: Masks { masked: vec![false; ranks], lost: vec![false; ranks], mask_late: false },
            encodes: false,
            limit,
        })
    }

    /// Frees the memory. Collective.
    ///
    /// # Errors
    /// A peer that does not respond.
    pub fn free(self) -> Result<()> {
        self.combine.exchange.free()?;
        self.dispatch.exchange.free()
    }

    /// Statistics of the last dispatch and of the last combine that were received.
    #[must_use]
    pub fn statistics(&self) -> [&Statistics; 2] {
        [&self.dispatch.statistics, &self.combine.statistics]
    }

    /// The shape of the buffers.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether ranks that do not arrive in time are masked, so that calls go on without them.
    pub fn mask_late(&mut self, mask: bool) {
        self.masks.mask_late = mask;
    }

    /// Whether later combines encode the rows that they send to other ranks in 10 bits for each element (LogFMT-10), where
    /// that is shorter. Magnitudes below 1 are then exact, of those within 2^32 of the largest of 128 neighbours, to 2.2 %
    /// and bfloat16's rounding. Ranks need not agree.
    pub fn encode_combines(&mut self, encode: bool) {
        self.encodes = encode;
    }

    /// Which ranks are masked.
    #[must_use]
    pub fn masked(&self) -> &[bool] {
        &self.masks.masked
    }

    /// Masks a rank, or takes part with it again. All ranks make this call between the same other calls.
    ///
    /// # Errors
    /// A rank that does not exist; a rank that was masked because it did not arrive, or while a call was in flight: see
    /// [`LowLatency::connect`].
    pub fn mask(&mut self, rank: Pe, mask: bool) -> Result<()> {
        let (at, last) = (rank as usize, self.masks.masked.len() - 1);
        if at > last {
            return Err(Error::argument("rank to mask", rank, format!("0 to {last}")));
        }
        if !mask && self.masks.lost[at] {
            return Err(Error::Order {
                what: "a rank that did not arrive in time, or that was masked between a send and its receive, comes back \
                       by connect_ranks, which all ranks call",
            });
        }
        // The block of a call in flight would count as one of a later call.
        let is_open = [&self.dispatch, &self.combine].iter().any(|turns| turns.sent != turns.received);
        self.masks.lost[at] |= mask && is_open && !self.masks.masked[at] && at != self.me();
        self.masks.masked[at] = mask;
        Ok(())
    }

    /// Includes masked ranks again, whether they were late or took part in no call. Collective over all ranks, masked
    /// ones too, and `ranks` is the same on all. Calls that were sent and not received are abandoned. Afterwards the
    /// masked ranks are those of the first rank that is not in `ranks`, which has to take part.
    ///
    /// # Errors
    /// A rank that does not exist; ranks that differ, on all of them; a rank that does not arrive.
    pub fn connect(&mut self, ranks: &[Pe]) -> Result<()> {
        let rt = self.dispatch.exchange.runtime().clone();
        rt.quiet()?;
        let masked = masks_after(&rt, ranks, &self.masks.masked)?;
        // All have completed their operations, and none sends anything before all have cleared their words.
        for turns in [&mut self.dispatch, &mut self.combine] {
            turns.received = turns.sent;
            turns.exchange.restart()?;
        }
        self.masks = Masks { lost: vec![false; masked.len()], masked, mask_late: self.masks.mask_late };
        Ok(rt.barrier_all()?)
    }

    fn ranks(&self) -> usize {
        self.masks.masked.len()
    }

    fn me(&self) -> usize {
        self.dispatch.exchange.runtime().my_pe() as usize
    }
}

impl Masks {
    /// The other ranks that take part, starting with the next rank after this one.
    fn others(&self, me: usize) -> impl Iterator<Item = Pe> {
        let ranks = self.masked.len();
        (1..ranks)
            .map(move |distance| (me + distance) % ranks)
            .filter(|&rank| !self.masked[rank])
            .map(|rank| rank as Pe)
    }

    /// Waits until `done` holds for all other ranks that take part. Ranks for which it does not hold in time are masked
    /// or reported in the error.
    fn wait(
        &mut self,
        rt: &Runtime,
        limit: WaitLimit,
        what: &'static str,
        mut done: impl FnMut(Pe) -> Result<bool>,
    ) -> Result<()> {
        let me = rt.my_pe() as usize;
        let mut wait = Wait::new(rt, limit);
        loop {
            let mut missing = Vec::new();
            for rank in self.others(me).collect::<Vec<_>>() {
                match done(rank) {
                    Ok(true) => {}
                    Ok(false) => missing.push(rank),
                    // A block to this rank has failed, so that a wait for it is pointless.
                    Err(_) if self.mask_late => self.lose(rank),
                    Err(error) => return Err(error),
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            let Some(ended) = wait.pause() else { continue };
            let error = wait.error(ended, what, missing.clone());
            if !self.mask_late || !matches!(error, Error::Round(_)) {
                return Err(error);
            }
            missing.into_iter().for_each(|rank| self.lose(rank));
        }
    }

    /// Masks a rank that has not arrived.
    fn lose(&mut self, rank: Pe) {
        self.masked[rank as usize] = true;
        self.lost[rank as usize] = true;
    }
}

impl Turns {
    /// Waits until there is a free slot for a block to each rank, and counts the call.
    fn begin(&mut self, masks: &mut Masks, limit: WaitLimit) -> Result<u64> {
        if self.sent - self.received >= SLOTS as u64 {
            return Err(Error::Order { what: "two calls were sent and not received; receive the first one before" });
        }
        let (exchange, what) = (&mut self.exchange, self.what);
        masks.wait(&exchange.runtime().clone(), limit, what, |rank| exchange.has_room(rank))?;
        self.sent += 1;
        Ok(self.sent)
    }

    /// Waits until the blocks of this call from all ranks have arrived.
    fn await_blocks(&self, call: u64, masks: &mut Masks, limit: WaitLimit) -> Result<()> {
        if call != self.received + 1 {
            return Err(Error::Order { what: "calls are received in the order in which they were sent, once each" });
        }
        let exchange = &self.exchange;
        masks.wait(&exchange.runtime().clone(), limit, self.what, |rank| exchange.has_arrived(rank))
    }

    /// Frees the slots of this call's blocks. Its statistics become those of the last call.
    fn end(&mut self, masks: &Masks, statistics: Statistics) -> Result<()> {
        self.received += 1;
        self.statistics = statistics;
        let me = self.exchange.runtime().my_pe() as usize;
        masks.others(me).try_for_each(|rank| self.exchange.give_back(rank))
    }
}
