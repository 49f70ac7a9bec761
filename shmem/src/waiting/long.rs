//! A wait that has become long: checking for PEs that are gone or late, and for such that wait for one another for
//! ever.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use symrail_core::clock;
use symrail_transport::Pe;

use super::cycle::{post_of, search};
use super::post::{Post, in_words};
use crate::error::{Error, Result};
use crate::observe::console::heard;
use crate::operations::Operations;
use crate::team::group::Group;
use crate::wire::WireContext;

/// How often a PE that waits checks on others.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long who waits for a word goes on after it has heard that a PE is gone: another one may be to write the word.
const OTHERS_MAY_WRITE: Duration = Duration::from_secs(5);
/// How long a PE stays to be seen by the others after it has found that all wait for one another.
const SEEN_BY_ALL: Duration = Duration::from_millis(1500);
/// PEs that a message names.
const NAMED: usize = 8;

/// Without whom a wait may never end.
#[derive(Clone, Copy)]
pub(crate) enum Among {
    /// All of these have to come.
    All(Group),
    /// Anybody may do what is waited for.
    Any(Group),
}

impl Among {
    fn group(self) -> Group {
        let (Among::All(group) | Among::Any(group)) = self;
        group
    }
}

/// One wait, from when it has become long.
pub(crate) struct Long<'rt> {
    ops: Operations<'rt>,
    what: &'static str,
    among: Among,
    begun: Instant,
    checked: Instant,
    asked: Instant,
    warned: bool,
    post: Option<Post>,
    /// Those who wait for one another for ever, as they were last seen.
    cycle: Vec<(Pe, u64)>,
    verdict: Option<(Instant, Error)>,
}

impl<'rt> Long<'rt> {
    /// Whether a wait of this length has become long.
    pub fn is(waited: Duration) -> bool {
        waited > POLL_INTERVAL
    }

    pub fn new(ops: Operations<'rt>, what: &'static str, among: Among, begun: Instant) -> Long<'rt> {
        let (checked, warned, cycle, verdict) = (begun, false, Vec::new(), None);
        let post = ops.comm.board.post(what);
        Long { ops, what, among, begun, checked, asked: begun, warned, post, cycle, verdict }
    }

    /// Checks on others, if it is time to.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and [`Error::CallsDiffer`].
    pub fn check(&mut self) -> Result<()> {
        if clock::since(self.checked) < POLL_INTERVAL {
            return Ok(());
        }
        self.checked = clock::now();
        if self.verdict.is_some() {
            // Those who have found the same may leave meanwhile.
            return self.look_for_cycle();
        }
        let (waited, time_limit) =
            (clock::since(self.begun), Duration::from_secs(self.ops.comm.job.settings.timeout_s));
        let others_may = matches!(self.among, Among::Any(_)) && waited < OTHERS_MAY_WRITE;
        if !others_may {
            self.look_for_gone()?;
        }
        if clock::since(self.asked) > time_limit {
            self.ask_for_life()?;
            self.asked = clock::now();
            if !std::mem::replace(&mut self.warned, true) {
                self.tell(waited);
            }
        }
        if self.ops.comm.job.settings.check_collectives && waited > time_limit / 2 {
            self.look_for_cycle()?;
        }
        Ok(())
    }

    fn lost(&self, pe: Pe, reason: String) -> Error {
        Error::PeerLost { waiting: self.ops.comm.job.me, what: self.what, pe, reason }
    }

    /// Fails if somebody has died or left, as the bootstrap knows.
    fn look_for_gone(&self) -> Result<()> {
        // Another thread may be in a step; it hears of it, too.
        let Ok(mut bootstrap) = self.ops.comm.job.bootstrap.try_lock() else { return Ok(()) };
        let group = self.among.group();
        let lost_pe = bootstrap
            .lost_pes()
            .iter()
            .find(|lost| lost.pe != self.ops.comm.job.me && group.index_of(lost.pe).is_some());
        lost_pe.map_or(Ok(()), |lost| Err(self.lost(lost.pe, lost.why.clone())))
    }

    /// Asks all for a keepalive, in turn: the system knows of those that are mapped, and the wire is asked of all.
    fn ask_for_life(&self) -> Result<()> {
        for (_, pe) in self.among.group().others() {
            if self.ops.comm.space.peers.has_ended(pe) {
                return Err(self.lost(pe, "its process has ended".into()));
            }
            if let Ok(wire) = &self.ops.comm.wire {
                let probed = WireContext::new(wire, &self.ops.comm.context).probe(pe);
                probed.map_err(|error| self.lost(pe, error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Who has to come, and does not wait where this PE waits. Nobody is named before those who came as late as this PE
    /// have posted that they wait.
    pub fn missing(&self, waited: Duration) -> Vec<Pe> {
        let Among::All(group) = self.among else { return Vec::new() };
        if waited < 2 * POLL_INTERVAL {
            return Vec::new();
        }
        let here = in_words(self.what);
        let waits_here = |pe| post_of(&self.ops, pe).is_some_and(|post| post.text == here);
        group.others().map(|(_, pe)| pe).filter(|&pe| !waits_here(pe)).collect()
    }

    /// Says for whom this PE waits, all of whom live.
    fn tell(&self, waited: Duration) {
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
        heard(|| {
            tracing::warn!(
                "PE {me} has waited in {here} for {seconds} s, and goes on: all others live{where_they_are}"
            );
        });
    }

    /// Fails if this PE can only wait for ever: it waits for one that is in another call, and so on, until it comes to
    /// one again.
    ///
    /// Posts change while they are read, so the same ones have to be seen twice; and who has found it first stays for a
    /// while.
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
