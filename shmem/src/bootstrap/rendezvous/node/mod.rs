//! A node of the tree by which PEs join: the root, or a relay. A machine without sockets and without a clock.
//!
//! A node serves consecutive PEs: some itself, others through relays ([`Shape`]). What all of its PEs contribute to a
//! step goes up in one message, and the result comes down in one. Whoever drives the machine tells it what happens and
//! what time it is, and does what [`Node::outputs`] says, in that order. Nothing here grows with the job but what the
//! node's own PEs contribute, and results pass through as they are, shared by all who get them.
//!
//! | file | concept |
//! |---|---|
//! | `joining` | newcomers: let in, sent on, told to run a relay, or kept waiting |
//! | `steps` | contributions up, results down |
//! | `lateness` | the time is up: asking who is missing |
//! | `departures` | those who leave, die or abort, and what the others hear of it |

mod departures;
mod joining;
mod lateness;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::fault::{self, Fault};
use super::plan::{Role, Shape};
use super::round::Round;
use super::wire::{FINISHED, Kind, u32_at};
use lateness::Inquiry;

pub use joining::Newcomer;

/// A connection, by a number that the driver chooses.
pub type Link = u64;

/// The connection to the node that serves this one.
pub const PARENT: Link = 0;

/// Something that whoever runs a node may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A PE proved that it belongs to the job.
    Joined(Pe),
    /// A PE said that it is done.
    Left(Pe),
    /// A PE that has just left did so without waiting for the others, of whom there still are some.
    LeftEarly(Pe),
    /// A PE's connection closed although it had not said that it is done.
    Lost(Pe),
    /// A PE wants the job to end.
    Aborted {
        /// The PE.
        pe: Pe,
        /// The exit code it asks for.
        code: i32,
        /// Its reason.
        why: String,
    },
}

/// What the driver does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Sends a frame.
    Send(Link, Kind, Arc<[u8]>),
    /// Closes a connection once everything is sent. It is not heard of again.
    Close(Link),
    /// Tells whoever runs the node. The root tells of all PEs but for those that join, or leave with all others; a
    /// relay tells of the PEs that it serves itself.
    Tell(Event),
}

/// What a node does not learn from others.
#[derive(Debug, Clone)]
pub struct Config {
    /// The job's size when it is known; else the first PE's word counts, and the others must agree.
    pub n_pes: Option<u32>,
    /// Its place if it is a relay.
    pub relay: Option<Place>,
    /// Who serves whom below it.
    pub shape: Shape,
    /// The driver tells of each PE whose process has ended. Then those of whom it has not been told live, and are
    /// waited for.
    pub watched: bool,
}

/// A relay's place in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The PEs that it serves.
    pub pes: Range<Pe>,
    /// The PE whose process it is a part of, if any.
    pub run_by: Option<Pe>,
    /// The same of the node that serves it.
    pub parent_run_by: Option<Pe>,
}

/// The state of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Here(Link),
    /// It is done. Another's relay stays connected until all start over.
    Left(Option<Link>),
    Lost,
    /// Its process ended while it was in no job.
    Ended,
}

struct Child {
    pes: Range<Pe>,
    role: Role,
    state: State,
    /// Where a relay is found.
    address: Option<SocketAddr>,
}

/// A node of the tree.
pub struct Node {
    config: Config,
    n_pes: u32,
    pes: Range<Pe>,
    children: Vec<Child>,
    /// How many relays lie one behind the other below.
    height: u32,
    /// Which child a connection is.
    links: HashMap<Link, usize>,
    /// Newcomers for whom there is no place yet: their relay has not come, or they join again before all have left.
    /// By PE, and whether it is a relay.
    early: BTreeMap<(Pe, bool), (Link, Newcomer)>,
    /// PEs whose processes have ended: they never come again.
    ended: Vec<Pe>,
    /// Who fixed the job's size; `None` when it was given at the start.
    sized_by: Option<Pe>,
    round: Round,
    /// All here have contributed, and the result has not come.
    passed_on: bool,
    inquiry: Option<Inquiry>,
    /// The node above has been told of a fault that breaks the job.
    told_parent: bool,
    /// The node above is gone.
    orphaned: bool,
    /// Why nothing more can complete. Set once.
    failure: Option<Arc<[u8]>>,
    /// The first of whom it is known that a step cannot complete without it.
    departed: Option<Fault>,
    /// What others have yet to hear of those who take part no more, and when the next word of that goes out at the
    /// earliest.
    news: Vec<Fault>,
    news_at: Option<Instant>,
    out: VecDeque<Output>,
}

impl Node {
    /// A node that nobody has joined.
    #[must_use]
    pub fn new(config: Config) -> Node {
        let n_pes = config.n_pes;
        let mut node = Node {
            config,
            n_pes: 0,
            pes: 0..0,
            children: Vec::new(),
            height: 0,
            links: HashMap::new(),
            early: BTreeMap::new(),
            ended: Vec::new(),
            sized_by: None,
            round: Round::default(),
            passed_on: false,
            inquiry: None,
            told_parent: false,
            orphaned: false,
            failure: None,
            departed: None,
            news: Vec::new(),
            news_at: None,
            out: VecDeque::new(),
        };
        if let Some(n_pes) = n_pes {
            node.resize(n_pes);
        }
        node
    }

    fn resize(&mut self, n_pes: u32) {
        self.n_pes = n_pes;
        self.pes = self.config.relay.as_ref().map_or(0..n_pes, |place| place.pes.clone());
        let child = |branch: super::plan::Branch| Child {
            pes: branch.pes,
            role: branch.role,
            state: State::Absent,
            address: None,
        };
        self.children = self.config.shape.children(self.pes.clone()).into_iter().map(child).collect();
        self.height = self.config.shape.height(self.pes.clone());
        self.round = Round::first(self.pes.clone());
    }

    /// A frame has come.
    pub fn frame(&mut self, link: Link, kind: Kind, payload: &Arc<[u8]>, now: Instant) {
        if link == PARENT {
            self.take_from_parent(kind, payload, now);
        } else if let Some(&at) = self.links.get(&link) {
            self.take_from_child(link, at, kind, payload, now);
        }
        self.spread_news(now);
    }

    fn take_from_child(&mut self, link: Link, at: usize, kind: Kind, payload: &Arc<[u8]>, now: Instant) {
        let is_pe = self.children[at].role == Role::Pe;
        match kind {
            Kind::Contribute => self.contributed(link, at, payload, now),
            Kind::Bye => self.leave(at, **payload == *FINISHED),
            Kind::Abort if is_pe => {
                let (code, why) = payload.split_at(payload.len().min(4));
                let code = <[u8; 4]>::try_from(code).map_or(1, i32::from_le_bytes);
                self.report(Fault::aborted(self.children[at].pes.start, code, &String::from_utf8_lossy(why)));
            }
            Kind::Fault if !is_pe => match Fault::decode(payload) {
                Some(fault) => self.report(fault),
                None => self.lose(link),
            },
            Kind::LostPes if !is_pe => fault::decode_all(payload).into_iter().for_each(|fault| self.report(fault)),
            Kind::Missing if !is_pe => self.add_missing(at, payload, now),
            // No honest child sends these.
            _ => self.lose(link),
        }
    }

    fn take_from_parent(&mut self, kind: Kind, payload: &Arc<[u8]>, now: Instant) {
        match kind {
            Kind::Result => {
                self.passed_on = false;
                self.send_to_children(Kind::Result, payload);
            }
            Kind::Fault => self.fail(payload),
            Kind::LostPes => {
                self.send_to_children(Kind::LostPes, payload);
                self.departed = self.departed.take().or_else(|| fault::decode_all(payload).into_iter().next());
                self.check_departed();
            }
            Kind::Late => self.report_late(payload, now),
            Kind::Ask => self.asked(now),
            Kind::Welcome => self.start_over(),
            _ => self.lose_parent(),
        }
    }

    /// What the driver has to do, in this order.
    pub fn outputs(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.out.drain(..)
    }

    /// When the node wants to be told the time.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let news = self.news_at.filter(|_| !self.news.is_empty());
        let late = self.inquiry.as_ref().map_or_else(|| self.round.deadline(), |inquiry| Some(inquiry.until));
        news.into_iter().chain(late).min()
    }

    /// It is that late.
    pub fn tick(&mut self, now: Instant) {
        self.check_time(now);
        self.spread_news(now);
    }

    /// How many children take part.
    #[must_use]
    pub fn present(&self) -> usize {
        self.children.iter().filter(|child| matches!(child.state, State::Here(_))).count()
    }

    /// How many unauthenticated connections may be held for it, beyond some for strangers.
    #[must_use]
    pub fn expected(&self) -> usize {
        self.pes.len()
    }

    fn is_root(&self) -> bool {
        self.config.relay.is_none()
    }

    fn child_of(&self, pe: Pe) -> Option<usize> {
        let at = self.children.partition_point(|child| child.pes.end <= pe);
        self.children.get(at).filter(|child| child.pes.contains(&pe)).map(|_| at)
    }

    fn send(&mut self, link: Link, kind: Kind, payload: &Arc<[u8]>) {
        self.out.push_back(Output::Send(link, kind, Arc::clone(payload)));
    }

    fn send_to_children(&mut self, kind: Kind, payload: &Arc<[u8]>) {
        for child in &self.children {
            if let State::Here(link) = child.state {
                self.out.push_back(Output::Send(link, kind, Arc::clone(payload)));
            }
        }
    }

    /// Sends a fault and then closes the connection.
    fn send_last(&mut self, link: Link, fault: &Arc<[u8]>) {
        self.send(link, Kind::Fault, fault);
        self.out.push_back(Output::Close(link));
    }
}

/// The range of PEs and the fan-out that a PE is told to run a relay with.
pub(super) fn decode_serve(payload: &[u8]) -> Option<(Range<Pe>, u32)> {
    let (pes, fan_out) = (payload.len() == 12).then(|| (u32_at(payload, 0)..u32_at(payload, 4), u32_at(payload, 8)))?;
    (!pes.is_empty()).then_some((pes, fan_out))
}

/// The least time between two words about those who take part no more.
const NEWS_EVERY: Duration = Duration::from_millis(10);
