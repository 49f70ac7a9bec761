//! What becomes of those who are waited for: lost, gone, late, or in another call.
//!
//! Who waits for long looks around now and then, and fails if a PE without which the wait may never end has died or left. PEs that live are
//! waited for, however long they take. So that users learn what a job hangs in, each PE that waits for long *posts* in symmetric memory what it
//! waits in, and who has waited for `TIMEOUT_S` reads what the others have posted and says so, once.
//!
//! Where calls are compared (`SYMRAIL_CHECK_COLLECTIVES`), PEs that can only wait for one another for ever find that out from their
//! posts: each waits in a call for PEs that are in none of its calls but in another one.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use crate::error::{Error, Result};
use crate::observe::console::heard;
use crate::rma::at;
use crate::runtime::Runtime;
use crate::team::Group;
use crate::wire::Via;

/// How often a PE that waits looks around.
const LOOK: Duration = Duration::from_millis(500);
/// How long who waits for a word goes on after it has heard that a PE is gone: another one may be to write the word.
const OTHERS_MAY_WRITE: Duration = Duration::from_secs(5);
/// How long a PE stays to be seen by the others after it has found that all wait for one another.
const SEEN_BY_ALL: Duration = Duration::from_millis(1500);
/// PEs that a message names.
const NAMED: usize = 8;

/// Words of a post: its number or 0, the call, the PEs that are waited for, what it is in words.
const TEXT: usize = 6;
const POST: usize = TEXT + 14;
/// Bytes of a post.
pub(crate) const POST_BYTES: u64 = POST as u64 * 8;
/// Bits above the number of a post's call: it has given up; other threads of the PE wait as well.
const GIVEN_UP: u64 = 1 << 63;
const ONE_OF_MANY: u64 = 1 << 62;

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

/// A compared call: the PEs that make it, by which of their teams it goes, and the how-manieth it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallId {
    pub group: Group,
    pub team: u32,
    pub number: u64,
}

thread_local! {
    /// The compared call that this thread is in, and that in words.
    pub(crate) static IN_CALL: RefCell<Option<(CallId, String)>> = const { RefCell::new(None) };
}

/// What a PE waits in, as it tells the others.
#[derive(Debug, Clone, PartialEq)]
struct Post {
    number: u64,
    call: Option<CallId>,
    given_up: bool,
    one_of_many: bool,
    text: String,
}

impl Post {
    fn encode(&self) -> [u64; POST] {
        let mut words = [0; POST];
        words[0] = self.number;
        if let Some(CallId { group, team, number }) = self.call {
            let [start, stride, size] = group.parts();
            words[1..TEXT].copy_from_slice(&[start | u64::from(team) << 32, stride, size, number, 0]);
        }
        words[TEXT - 1] = if self.given_up { GIVEN_UP } else { 0 } | if self.one_of_many { ONE_OF_MANY } else { 0 };
        let bytes = self.text.bytes().chain(std::iter::repeat(0));
        let mut text = [0; (POST - TEXT) * 8];
        text.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        for (word, bytes) in words[TEXT..].iter_mut().zip(text.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        words
    }

    /// What PE `pe` of so many has posted; `None` if it does not wait, or what stands there is no post.
    fn decode(words: &[u64; POST], pe: Pe, n_pes: u32) -> Option<Post> {
        let [number, start, stride, size, call, flags] = words[..TEXT].try_into().ok()?;
        if number == 0 {
            return None;
        }
        let group = Group::from_parts([start & 0xffff_ffff, stride, size], pe, n_pes);
        let call = group.map(|group| CallId { group, team: (start >> 32) as u32, number: call });
        let text: Vec<u8> = words[TEXT..].iter().flat_map(|word| word.to_ne_bytes()).take_while(|&b| b != 0).collect();
        let text = String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).collect();
        Some(Post { number, call, given_up: flags & GIVEN_UP != 0, one_of_many: flags & ONE_OF_MANY != 0, text })
    }
}

/// Where this PE posts.
#[derive(Default)]
pub(crate) struct Board {
    /// The symmetric offset of its post.
    pub offset: u64,
    posted: AtomicU64,
    in_use: AtomicBool,
    shared: AtomicBool,
}

impl Board {
    pub fn new(offset: u64) -> Board {
        Board { offset, ..Board::default() }
    }
}

/// One wait, from when it has become long.
pub(crate) struct Long<'rt> {
    runtime: &'rt Runtime,
    what: &'static str,
    among: Among,
    begun: Instant,
    looked: Instant,
    asked: Instant,
    told: bool,
    post: Option<Post>,
    /// Those who wait for one another for ever, as they were last seen.
    circle: Vec<(Pe, u64)>,
    verdict: Option<(Instant, Error)>,
}

impl<'rt> Long<'rt> {
    /// Whether a wait that has begun then has become long.
    pub fn is(begun: Instant) -> bool {
        begun.elapsed() > LOOK
    }

    pub fn new(runtime: &'rt Runtime, what: &'static str, among: Among, begun: Instant) -> Long<'rt> {
        let (looked, told, circle, verdict) = (begun, false, Vec::new(), None);
        Long { runtime, what, among, begun, looked, asked: begun, told, post: runtime.post(what), circle, verdict }
    }

    /// Looks around, if it is time to.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and [`Error::CallsDiffer`].
    pub fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        if self.verdict.is_some() {
            // Those who have found the same may leave meanwhile.
            return self.look_for_circle();
        }
        let (waited, patience) = (self.begun.elapsed(), Duration::from_secs(self.runtime.settings.timeout_s));
        let others_may = matches!(self.among, Among::Any(_)) && waited < OTHERS_MAY_WRITE;
        if !others_may {
            self.look_for_gone()?;
        }
        if self.asked.elapsed() > patience {
            self.ask_for_life()?;
            self.asked = Instant::now();
            if !std::mem::replace(&mut self.told, true) {
                self.tell(waited);
            }
        }
        if self.runtime.settings.check_collectives && waited > patience / 2 {
            self.look_for_circle()?;
        }
        Ok(())
    }

    fn lost(&self, pe: Pe, reason: String) -> Error {
        Error::PeerLost { waiting: self.runtime.me, what: self.what, pe, reason }
    }

    /// Fails if somebody has died or left, as the bootstrap knows.
    fn look_for_gone(&self) -> Result<()> {
        // Another thread may be in a step; it hears of it, too.
        let Ok(mut bootstrap) = self.runtime.bootstrap.try_lock() else { return Ok(()) };
        let group = self.among.group();
        let gone = bootstrap.gone().iter().find(|gone| gone.pe != self.runtime.me && group.index_of(gone.pe).is_some());
        gone.map_or(Ok(()), |gone| Err(self.lost(gone.pe, gone.why.clone())))
    }

    /// Asks all for a sign of life, in turn: the system knows of those that are mapped, and the wire is asked of all.
    fn ask_for_life(&self) -> Result<()> {
        for (_, pe) in self.among.group().others() {
            if self.runtime.peers.has_ended(pe) {
                return Err(self.lost(pe, "its process has ended".into()));
            }
            if let Ok(wire) = &self.runtime.wire {
                let probed = Via::new(wire, &self.runtime.flow).probe(pe);
                probed.map_err(|error| self.lost(pe, error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Says for whom this PE waits, all of whom live.
    fn tell(&self, waited: Duration) {
        let here = self.runtime.in_words(self.what);
        let (mut late, mut elsewhere, mut others) = (Vec::new(), String::new(), 0);
        for (_, pe) in self.among.group().others() {
            match self.runtime.post_of(pe) {
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
        let (me, seconds) = (self.runtime.me, waited.as_secs());
        heard(|| {
            tracing::warn!(
                "PE {me} has waited in {here} for {seconds} s, and goes on: all others live{where_they_are}"
            );
        });
    }

    /// Fails if this PE can only wait for ever: it waits for one that is in another call, and so on, until it comes to one again.
    ///
    /// Posts change while they are read, so the same ones have to be seen twice; and who has found it first stays for a while.
    fn look_for_circle(&mut self) -> Result<()> {
        if let Some((at, error)) = &self.verdict {
            return if at.elapsed() > SEEN_BY_ALL { Err(error.clone()) } else { Ok(()) };
        }
        let Some(mine) = self.post.clone().filter(|post| post.call.is_some()) else { return Ok(()) };
        let Some((path, found)) = Search::from(self.runtime, mine.clone()) else {
            self.circle.clear();
            return Ok(());
        };
        let known = path.iter().map(|(pe, post)| (*pe, post.number)).collect();
        if self.circle != known && !path.iter().any(|(_, post)| post.given_up) {
            self.circle = known;
            return Ok(());
        }
        let (other, post) = found;
        let error =
            Error::CallsDiffer { pe: self.runtime.me, called: mine.text.clone(), other, other_called: post.text };
        self.runtime.repost(&Post { given_up: true, ..mine });
        self.verdict = Some((Instant::now(), error));
        Ok(())
    }
}

impl Drop for Long<'_> {
    fn drop(&mut self) {
        if self.post.is_some() {
            self.runtime.take_down_post();
        }
    }
}

/// The PEs of a circle with what they have posted, and the first of those on the way there.
type Circle = (Vec<(Pe, Post)>, (Pe, Post));

/// Follows who waits for whom.
struct Search<'rt> {
    runtime: &'rt Runtime,
    /// The PEs from which it has gone on, with their posts, up to where it is.
    way: Vec<(Pe, Post)>,
    seen: std::collections::BTreeMap<Pe, Option<Post>>,
    /// PEs from which no circle is reached.
    done: std::collections::BTreeSet<Pe>,
}

impl<'rt> Search<'rt> {
    /// A circle that is reached from this PE's own post.
    fn from(runtime: &'rt Runtime, mine: Post) -> Option<Circle> {
        let way = vec![(runtime.me, mine.clone())];
        let seen = [(runtime.me, Some(mine))].into();
        let mut search = Search { runtime, way, seen, done: Default::default() };
        let start = search.go_on()?;
        // A circle behind this PE begins with the first step; one that this PE is in begins with itself.
        let first = search.way.get(1)?.clone();
        Some((search.way.split_off(start), first))
    }

    /// Goes on from the last one on the way. Returns where on the way the circle begins.
    fn go_on(&mut self) -> Option<usize> {
        while let Some((pe, post)) = self.way.last().cloned() {
            let next = post.call.and_then(|call| call.group.others().find_map(|(_, pe)| self.step(&call, pe)));
            match next {
                Some(Err(start)) => return Some(start),
                Some(Ok(step)) => self.way.push(step),
                None => {
                    self.done.insert(pe);
                    self.way.pop();
                }
            }
        }
        None
    }

    /// Who waits in this call waits for `pe`, if that one is in another call: one more on the way, or where on the way it is.
    fn step(&mut self, call: &CallId, pe: Pe) -> Option<Result<(Pe, Post), usize>> {
        if self.done.contains(&pe) {
            return None;
        }
        let post = self.seen.entry(pe).or_insert_with(|| self.runtime.post_of(pe)).clone()?;
        // Another thread of a PE may come yet.
        post.call.filter(|other| !other.is_same(call) && !post.one_of_many)?;
        Some(self.way.iter().position(|(on_way, _)| *on_way == pe).map_or(Ok((pe, post)), Err))
    }
}

impl CallId {
    fn is_same(&self, other: &CallId) -> bool {
        self.team == other.team && self.number == other.number && self.group.is_same(&other.group)
    }
}

impl Runtime {
    /// What this thread waits in: the compared call that it is in, or else `what`.
    fn in_words(&self, what: &str) -> String {
        IN_CALL.with_borrow(|call| call.as_ref().map_or_else(|| what.to_owned(), |(_, words)| words.clone()))
    }

    /// Tells the others what this thread waits in, unless another one of this PE already does.
    fn post(&self, what: &str) -> Option<Post> {
        let board = &self.sync.board;
        if board.in_use.swap(true, Ordering::AcqRel) {
            board.shared.store(true, Ordering::Relaxed);
            return None;
        }
        let number = board.posted.fetch_add(1, Ordering::Relaxed) + 1;
        let call = IN_CALL.with_borrow(|call| call.as_ref().map(|(id, _)| *id));
        let one_of_many = board.shared.load(Ordering::Relaxed);
        let post = Post { number, call, given_up: false, one_of_many, text: self.in_words(what) };
        self.repost(&post);
        Some(post)
    }

    fn post_word(&self, index: usize) -> *mut u64 {
        at(self.base, self.sync.board.offset).cast::<u64>().wrapping_add(index)
    }

    fn repost(&self, post: &Post) {
        for (index, word) in post.encode().into_iter().enumerate().rev() {
            // SAFETY: the words are in this PE's committed heap and aligned; others only read them.
            unsafe { AtomicU64::from_ptr(self.post_word(index)) }.store(word, Ordering::Release);
        }
    }

    fn take_down_post(&self) {
        // SAFETY: as in `repost`.
        unsafe { AtomicU64::from_ptr(self.post_word(0)) }.store(0, Ordering::Release);
        self.sync.board.in_use.store(false, Ordering::Release);
    }

    /// What a peer waits in; nothing if it does not wait, or cannot be asked.
    fn post_of(&self, pe: Pe) -> Option<Post> {
        let mut words = [0u64; POST];
        let to = words.as_mut_ptr().cast();
        // SAFETY: the words are this call's own, and as many as are read.
        unsafe { self.get(to, self.post_word(0).cast(), POST * 8, pe) }.ok()?;
        Post::decode(&words, pe, self.n_pes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn posts_are_read_as_they_were_written() {
        let group = Group::new(1, 2, 3, 3, 8).unwrap();
        let call = Some(CallId { group, team: 3, number: 9 });
        for text in ["sync", &"a".repeat((POST - TEXT) * 8)] {
            let post = Post { number: 7, call, given_up: true, one_of_many: false, text: text.to_owned() };
            assert_eq!(Post::decode(&post.encode(), 3, 8), Some(post));
        }
        let plain = Post { number: 1, call: None, given_up: false, one_of_many: true, text: "x".into() };
        assert_eq!(Post::decode(&plain.encode(), 0, 8), Some(plain.clone()));
        assert_eq!(Post::decode(&[0; POST], 0, 8), None);
        let hostile = Post { text: "\u{1b}[31m\n".into(), ..plain };
        assert_eq!(Post::decode(&hostile.encode(), 0, 8).unwrap().text, "[31m");
        for seed in 1..200u64 {
            let words = std::array::from_fn(|i| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32 * 7));
            let _ = Post::decode(&words, 0, 8);
        }
    }
}
