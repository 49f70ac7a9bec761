//! A long wait: checks for PEs that are gone or late, and for PEs that wait for one another for ever.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use symrail_core::clock;
use symrail_transport::Pe;

use super::bounded::CHECK_INTERVAL;
use super::cycle::{post_of, search};
use super::post::{Post, in_words};
use crate::error::{Error, Result};
use crate::observe::console::on_stderr;
use crate::operations::Operations;
use crate::team::group::Group;
use crate::wire::WireContext;

/// How long a wait for a word continues after a PE is known to be gone: another PE may still write the word.
const OTHERS_MAY_WRITE: Duration = Duration::from_secs(5);
/// How long a PE stays visible to the others after it has found that all wait for one another.
const SEEN_BY_ALL: Duration = Duration::from_millis(1500);
/// The most PEs that a message names.
const NAMED: usize = 8;

/// The PEs without which a wait may never end.
#[derive(Clone, Copy)]
pub(crate) enum Among {
    /// All of these PEs must arrive.
    All(Group),
    /// Any of these PEs may end the wait.
    Any(Group),
}

impl Among {
    fn group(self) -> Group {
        let (Among::All(group) | Among::Any(group)) = self;
        group
    }
}

/// Fails if a PE of a group has died or left, as the bootstrap knows.
pub(crate) fn check_alive(ops: &Operations<'_>, what: &'static str, group: Group) -> Result<()> {
    // Another thread may be in a step; that thread gets the report, too.
    let Ok(mut bootstrap) = ops.comm.job.bootstrap.try_lock() else { return Ok(()) };
    let is_other = |pe: Pe| pe != ops.comm.job.me && group.index_of(pe).is_some();
    let lost_pe = bootstrap.lost_pes().iter().find(|lost| is_other(lost.pe));
    lost_pe.map_or(Ok(()), |found| Err(lost(ops, what, found.pe, found.why.clone())))
}

fn lost(ops: &Operations<'_>, what: &'static str, pe: Pe, reason: String) -> Error {
    Error::PeerLost { waiting: ops.comm.job.me, what, pe, reason }
}

/// One wait, from the time at which it counts as long.
pub(crate) struct Long<'rt> {
    ops: Operations<'rt>,
    what: &'static str,
    among: Among,
    /// How long it had lasted when this PE last probed the others.
    asked: Duration,
    warned: bool,
    post: Option<Post>,
    /// The cycle of PEs that the last search found.
    cycle: Vec<(Pe, u64)>,
    verdict: Option<(Instant, Error)>,
}

impl<'rt> Long<'rt> {
    pub fn new(ops: Operations<'rt>, what: &'static str, among: Among) -> Long<'rt> {
        let (asked, warned, cycle, verdict) = (Duration::ZERO, false, Vec::new(), None);
        let post = ops.comm.board.post(what);
        Long { ops, what, among, asked, warned, post, cycle, verdict }
    }

    /// Checks on others, when the wait has lasted so long.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and [`Error::CallsDiffer`].
    pub fn check(&mut self, waited: Duration) -> Result<()> {
        if self.verdict.is_some() {
            // Other PEs that have found the same cycle may leave meanwhile.
            return self.look_for_cycle();
        }
        let time_limit = Duration::from_secs(self.ops.comm.job.settings.timeout_s);
        let others_may = matches!(self.among, Among::Any(_)) && waited < OTHERS_MAY_WRITE;
        if !others_may {
            check_alive(&self.ops, self.what, self.among.group())?;
        }
        if waited.saturating_sub(self.asked) > time_limit {
            self.ask_for_life()?;
            self.asked = waited;
            if !std::mem::replace(&mut self.warned, true) {
                self.warn(waited);
            }
        }
        if self.ops.comm.job.settings.check_collectives && waited > time_limit / 2 {
            self.look_for_cycle()?;
        }
        Ok(())
    }

    fn lost(&self, pe: Pe, reason: String) -> Error {
        lost(&self.ops, self.what, pe, reason)
    }

    /// Probes all PEs in turn: the system reports whether mapped PEs live, and the wire probes every PE.
    fn ask_for_life(&self) -> Result<()> {
        for (_, pe) in self.among.group().others() {
            if self.ops.comm.space.peers.has_ended(pe) {
                return Err(self.lost(pe, "its process has ended".into()));
            }
            if let Ok(wire) = &self.ops.comm.wire {
                match WireContext::new(wire, &self.ops.comm.context).probe(pe) {
                    // It says nothing about the PE, and the wait ends as well.
                    Err(Error::Interrupted { .. }) => return Ok(()),
                    probed => probed.map_err(|error| self.lost(pe, error.to_string()))?,
                }
            }
        }
        Ok(())
    }

    /// The PEs that must arrive and do not wait in this PE's call. Empty at first, until PEs that arrived as late as
    /// this one have posted that they wait.
    pub fn missing(&self, waited: Duration) -> Vec<Pe> {
        let Among::All(group) = self.among else { return Vec::new() };
        if waited < 2 * CHECK_INTERVAL {
            return Vec::new();
        }
        let here = in_words(self.what);
        let waits_here = |pe| post_of(&self.ops, pe).is_some_and(|post| post.text == here);
        group.others().map(|(_, pe)| pe).filter(|&pe| !waits_here(pe)).collect()
    }

    /// Warns about the PEs for which this PE waits, all of which are alive.
    fn warn(&self, waited: Duration) {
        let here = in_words(self.what);
        let (mut late, mut elsewhere, mut others) = (Vec::new(), String::new(), 0);
        for (_, pe) in self.among.group().others() {
            match post_of(&self.ops, pe) {
                Some(post) if post.text == here => {}
                Some(post) if others < NAMED => {
                    others += 1;
                    let _ = write!(elsewhere, "; PE {pe} waits in {}", post.text);
                }
                Some(_) => others += 1,
                None => late.push(pe),
            }
        }
        let mut where_they_are = String::new();
        if !late.is_empty() {
            let named: Vec<_> = late.iter().take(NAMED).map(Pe::to_string).collect();
            let more = if late.len() > NAMED { format!(" and {} more", late.len() - NAMED) } else { String::new() };
            let (plural, do_not) = if late.len() == 1 { ("", "does not wait") } else { ("s", "do not wait") };
            where_they_are = format!("; PE{plural} {}{more} {do_not} for anybody", named.join(", "));
        }
        where_they_are += &elsewhere;
        if others > NAMED {
            let _ = write!(where_they_are, "; {} more wait elsewhere", others - NAMED);
        }
        let (me, seconds) = (self.ops.comm.job.me, waited.as_secs());
        on_stderr(|| {
            tracing::warn!(
                "PE {me} has waited in {here} for {seconds} s, and goes on: all others live{where_they_are}"
            );
        });
    }

    /// Fails if this PE can only wait for ever: it waits for a PE that is in another call, which waits for a further
    /// PE, and so on, in a cycle.
    ///
    /// Posts change while they are read, so the search must find the same posts twice; and the PE that found the cycle
    /// first keeps its post for a while.
    fn look_for_cycle(&mut self) -> Result<()> {
        if let Some((at, error)) = &self.verdict {
            return if clock::since(*at) > SEEN_BY_ALL { Err(error.clone()) } else { Ok(()) };
        }
        let Some(mine) = self.post.clone().filter(|post| post.call.is_some()) else { return Ok(()) };
        let Some((path, found)) = search(self.ops, mine.clone()) else {
            self.cycle.clear();
            return Ok(());
        };
        let known = path.iter().map(|(pe, post)| (*pe, post.number)).collect();
        if self.cycle != known && !path.iter().any(|(_, post)| post.given_up) {
            self.cycle = known;
            return Ok(());
        }
        let (other, post) = found;
        let error =
            Error::CallsDiffer { pe: self.ops.comm.job.me, called: mine.text.clone(), other, other_called: post.text };
        self.ops.comm.board.repost(&Post { given_up: true, ..mine });
        self.verdict = Some((clock::now(), error));
        Ok(())
    }
}

impl Drop for Long<'_> {
    fn drop(&mut self) {
        if self.post.is_some() {
            self.ops.comm.board.take_down();
        }
    }
}
