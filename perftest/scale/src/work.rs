//! What simulated PEs do, by the calls that programs make.

use serde::Serialize;
use symrail::{Reduction, Runtime, Team};
use symrail_core::simulation::uncounted;
use symrail_transport::endpoint::LaneCounters;

use crate::{Error, Options, Result};

/// Bytes of each heap that works use.
pub(crate) const USERS_BYTES: usize = 4 << 20;
/// Where things are in them: a word for the ring, one for each partner, two for the sum, and what is broadcast.
const RING: usize = 0;
const PARTNERS: usize = 4096;
const SUM: usize = 64 << 10;
const RECEIVED: usize = 1 << 20;
const SENT: usize = 2 << 20;

/// Something that all PEs do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Each puts a word to the next one, and waits until it is there.
    Ring,
    /// Each puts a word to each of so many others, all over the job, and waits until all are there.
    AllToAll(u32),
    /// The team of all PEs is made.
    Team,
    /// A barrier of all PEs.
    Barrier,
    /// The sum of one number of each.
    Sum,
    /// So many bytes from PE 0 to all.
    Broadcast(usize),
}

/// What a PE has asked of its rails, as real PEs count it ([`Runtime::counters`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Posted {
    /// Writes.
    pub writes: u64,
    /// Reads.
    pub reads: u64,
    /// Requests in messages.
    pub requests: u64,
}

impl Posted {
    fn of(runtime: &Runtime) -> Posted {
        let add = |sum: Posted, lane: &LaneCounters| Posted {
            writes: sum.writes + lane.writes,
            reads: sum.reads + lane.reads,
            requests: sum.requests + lane.requests,
        };
        uncounted(|| runtime.counters().iter().fold(Posted::default(), add))
    }

    fn since(self, before: Posted) -> Posted {
        Posted {
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
            requests: self.requests - before.requests,
        }
    }
}

/// A PE at work.
pub(crate) struct OfPe<'rt> {
    runtime: &'rt Runtime,
    team: Option<Team<'rt>>,
    /// The bytes that works use.
    base: *mut u8,
    carried: usize,
    /// All others live, so that what they have put is there.
    all_live: bool,
}

impl<'rt> OfPe<'rt> {
    /// `base` is where the heap begins; what works use is behind `own` bytes of the runtime's.
    pub fn new(runtime: &'rt Runtime, base: *mut u8, own: usize, options: &Options) -> OfPe<'rt> {
        OfPe {
            runtime,
            team: None,
            base: base.wrapping_add(own),
            carried: options.carried,
            all_live: options.dies_in.is_none(),
        }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset)
    }

    fn word(&self, offset: usize) -> *mut u64 {
        self.at(offset).cast()
    }

    fn read(&self, offset: usize) -> u64 {
        // SAFETY: the word is in this PE's heap, aligned; whoever writes it runs on this thread.
        unsafe { self.word(offset).read_volatile() }
    }

    /// Does a work, and tells what the PE has asked of its rails for it.
    pub fn perform_counted(&mut self, work: &Work) -> (Result<()>, Posted) {
        let before = Posted::of(self.runtime);
        let result = self.perform(work);
        (result, Posted::of(self.runtime).since(before))
    }

    /// # Errors
    /// Those of the calls; data that is not what it should be.
    fn perform(&mut self, work: &Work) -> Result<()> {
        let (runtime, me, n) = (self.runtime, u64::from(self.runtime.my_pe()), u64::from(self.runtime.n_pes()));
        let put = |offset: usize, pe: u64| {
            // SAFETY: the source lives until the call returns; a blocking put needs it no longer.
            unsafe { runtime.put(self.at(offset), (&raw const me).cast(), 8, pe as u32) }
        };
        match *work {
            Work::Ring => put(RING, (me + 1) % n)?,
            Work::AllToAll(partners) => {
                self.expect("the ring", RING, (me + n - 1) % n)?;
                let partners = u64::from(partners).min(n - 1);
                for partner in 1..=partners {
                    put(PARTNERS + 8 * partner as usize, (me + partner * (n / (partners + 1)).max(1)) % n)?;
                }
            }
            Work::Team => self.team = Some(runtime.team_world()?),
            Work::Barrier => return Ok(runtime.barrier_all()?),
            Work::Sum => {
                let team = self.team()?;
                // SAFETY: both words are in this PE's heap, and nobody else's.
                unsafe {
                    self.word(SUM).write(me + 1);
                    team.reduce(self.at(SUM + 8), self.at(SUM), 1, Reduction::sum::<u64>())?;
                }
                return self.expect("the sum", SUM + 8, n * (n + 1) / 2);
            }
            Work::Broadcast(bytes) => {
                let team = self.team()?;
                let marks = bytes <= self.carried && bytes >= 8;
                // SAFETY: as above; both have room for the bytes.
                unsafe {
                    if marks && me == 0 {
                        self.word(SENT + bytes - 8).write(bytes as u64);
                    }
                    team.broadcast(self.at(RECEIVED), self.at(SENT), bytes, 0)?;
                }
                return if marks {
                    self.expect("what is broadcast", RECEIVED + bytes - 8, bytes as u64)
                } else {
                    Ok(())
                };
            }
        }
        Ok(runtime.quiet()?)
    }

    fn team(&self) -> Result<&Team<'rt>> {
        self.team.as_ref().ok_or(Error::NoTeam)
    }

    fn expect(&self, what: &'static str, offset: usize, expected: u64) -> Result<()> {
        let found = self.read(offset);
        if found == expected || !self.all_live { Ok(()) } else { Err(Error::Wrong { what, found, expected }) }
    }
}
