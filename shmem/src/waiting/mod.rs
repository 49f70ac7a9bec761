//! Waits, and what they detect: peers that are lost, gone, late, or in another call.
//!
//! A PE that waits for long checks on others now and then, and fails if a PE without which the wait may never end has
//! died or left. The wait for PEs that are alive is unlimited. To show users where a job hangs, each PE that waits for
//! long *posts* its current call in symmetric memory; a PE that has waited for `TIMEOUT_S` reads the posts of the
//! others and logs them, once.
//!
//! If calls are compared (`SYMRAIL_CHECK_COLLECTIVES`), PEs also detect from the posts that they wait for one another
//! for ever: each waits in a call for PEs that are in another call instead.
//!
//! | file | concept |
//! |---|---|
//! | here | waiting for a condition |
//! | `bounded` | what ends a wait early |
//! | `long` | a wait that has become long |
//! | `post` | the call that a PE waits in, as the others read it |
//! | `cycle` | PEs that wait for one another for ever |

mod bounded;
mod cycle;
mod long;
pub(crate) mod post;

use std::time::Duration;

pub use bounded::{BoundedWait, Ended};
use long::Long;
pub(crate) use long::{Among, check_alive};

use crate::error::{Error, Result};
use crate::interrupt;
use crate::operations::Operations;
use crate::wire::{Wire, WireContext};

/// The checks of a thread without a wire that yield; after them it sleeps this long between checks.
const YIELDS: u64 = 20_000;
const SLEEP: Duration = Duration::from_micros(50);

/// Checks of the word before the first poll when all peers are mapped: their stores arrive without polls.
const GLANCES: u32 = 200;

impl Operations<'_> {
    /// Makes progress once, for loops that test. Returns whether there was any.
    pub(crate) fn progress(&self) -> bool {
        self.on_wire_if_any().is_some_and(|context| context.wait_for_memory().drive())
    }

    /// Waits until `done` returns a value. `among` holds all PEs without which that may never happen: the PE that
    /// signals this PE may itself wait for another one, and stays alive when that one is dead. Operations started on
    /// the default context make progress meanwhile.
    pub(crate) fn wait_for<R>(
        &self,
        what: &'static str,
        among: Among,
        mut done: impl FnMut() -> Option<R>,
    ) -> Result<R> {
        let comm = self.comm;
        comm.job.here()?;
        let glances = if comm.space.all_mapped { GLANCES } else { 1 };
        for _ in 0..glances {
            if let Some(found) = done() {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        let wire = comm.wire.as_ref().ok();
        let mut wait = wire.map(|wire| WireContext::new(wire, &comm.context).wait_for_memory());
        let (mut polls, loads) = (0u64, wire.map_or(1, Wire::loads_per_poll));
        let (mut long, mut bounds) = (None::<Long<'_>>, BoundedWait::new(comm.job.interrupt.get(), None));
        loop {
            if let Some(found) = (0..loads).find_map(|_| done()) {
                return Ok(found);
            }
            match &mut wait {
                Some(wait) => {
                    wait.drive();
                }
                None if polls < YIELDS => std::thread::yield_now(),
                None => std::thread::sleep(SLEEP),
            }
            polls += 1;
            comm.space.take_noted()?;
            if !polls.is_multiple_of(64) {
                continue;
            }
            comm.job.here()?;
            let check = |waited| long.get_or_insert_with(|| Long::new(Operations::of(comm), what, among)).check(waited);
            if bounds.ended(check)?.is_some() {
                let waited = bounds.waited();
                let missing = || long.as_ref().map_or_else(Vec::new, |long| long.missing(waited));
                let missing = interrupt::with_grace_period(missing);
                return Err(Error::Interrupted { waiting: comm.job.me, what, waited, missing });
            }
        }
    }
}
