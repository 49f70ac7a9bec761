//! The works of simulated PEs, by calls that programs make.

use serde::Serialize;
use symrail::{Reduction, Runtime, Team};
use symrail_core::simulation::uncounted;
use symrail_transport::endpoint::LaneCounters;

use crate::{Error, Options, Result};

/// Bytes of each heap that works use.
pub(crate) const USERS_BYTES: usize = 4 << 20;
/// Offsets in these bytes: a word for the ring, one for each partner, two for the sum, and the broadcast's data.
const RING: usize = 0;
const PARTNERS: usize = 4096;
const SUM: usize = 64 << 10;
const RECEIVED: usize = 1 << 20;
const SENT: usize = 2 << 20;

/// A work of all PEs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Each PE puts a word to the next one, and waits for its own word.
    Ring,
    /// Each PE puts a word to so many others, all over the job, and waits until all its words have arrived.
    AllToAll(u32),
    /// All PEs make the team of all PEs.
    Team,
    /// A barrier of all PEs.
    Barrier,
    /// The sum of one number of each PE.
    Sum,
    /// A broadcast of so many bytes from PE 0.
    Broadcast(usize),
}

/// A PE's requests to its rails, as real PEs count them ([`Runtime::counters`]).
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
    team: Option<Team>,
    /// The bytes that works use.
    base: *mut u8,
    carried: usize,
    /// All other PEs are alive, so their data must have arrived.
    all_live: bool,
}

impl<'rt> OfPe<'rt> {
    /// `base` is the start of the heap; the works use the bytes behind the runtime's `own` bytes.
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
        // SAFETY: the word is in this PE's heap and aligned; all writers run on this thread.
        unsafe { self.word(offset).read_volatile() }
    }

    /// Does a work, and returns the PE's requests to its rails for it.
    pub fn perform_counted(&mut self, work: &Work) -> (Result<()>, Posted) {
        let before = Posted::of(self.runtime);
        let result = self.perform(work);
        (result, Posted::of(self.runtime).since(before))
    }

    /// # Errors
    /// Those of the calls; data with a wrong value.
    fn perform(&mut self, work: &Work) -> Result<()> {
        let (runtime, me, n) = (self.runtime, u64::from(self.runtime.my_pe()), u64::from(self.runtime.n_pes()));
        let put = |offset: usize, pe: u64| {
            // SAFETY: the source lives until the call returns; a blocking put does not need it after that.
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
                // SAFETY: both words are in this PE's heap, and nothing else uses them.
                unsafe {
                    self.word(SUM).write(me + 1);
                    team.reduce(self.at(SUM + 8), self.at(SUM), 1, Reduction::sum::<u64>())?;
                }
                return self.expect("the sum", SUM + 8, n * (n + 1) / 2);
            }
            Work::Broadcast(bytes) => {
                let team = self.team()?;
                let marks = bytes <= self.carried && bytes >= 8;
                // SAFETY: as above; both are large enough.
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

    fn team(&self) -> Result<&Team> {
        self.team.as_ref().ok_or(Error::NoTeam)
    }

    fn expect(&self, what: &'static str, offset: usize, expected: u64) -> Result<()> {
        let found = self.read(offset);
        if found == expected || !self.all_live { Ok(()) } else { Err(Error::Wrong { what, found, expected }) }
    }
}
