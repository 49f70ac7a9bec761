//! A node of the tree through which PEs join: the root or a relay. A state machine without sockets and without a clock.
//!
//! A node serves consecutive PEs: some itself, others through relays ([`Shape`]). The contributions of all its PEs to a
//! step go up in one message, and the result comes down in one. The driver reports events and the time to the node, and
//! carries out [`Node::outputs`] in order. A node's memory grows only with its own PEs' contributions; results pass
//! through unchanged, as one buffer that all receivers share.
//!
//! | file | concept |
//! |---|---|
//! | `joining` | newcomers: admitted, redirected, made to run a relay, or kept waiting |
//! | `steps` | contributions up, results down |
//! | `lateness` | time-outs: which PEs are missing |
//! | `departures` | PEs that leave, die or abort, and how the others learn of it |

mod departures;
mod joining;
mod lateness;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::fault::{self, Fault};
use super::plan::{Role, Shape};
use super::round::Round;
use super::socket::Address;
use super::wire::{FINISHED, Kind, u32_at};
use lateness::Inquiry;

pub use joining::Newcomer;

/// A connection, by a number that the driver chooses.
pub type Link = u64;

/// The connection to the node that serves this one.
pub const PARENT: Link = 0;

/// An event for the owner of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A PE proved that it belongs to the job.
    Joined(Pe),
    /// A PE announced that it is done.
    Left(Pe),
    /// A PE has just left without waiting for the others, and some of those are still in the job.
    LeftEarly(Pe),
    /// A PE's connection closed before the PE announced that it is done.
    Lost(Pe),
    /// The job is broken: the PEs below this node are told next, and the owner of the reason.
    Broken,
    /// A PE requests the end of the job.
    Aborted {
        /// The PE.
        pe: Pe,
        /// The exit code that it requests.
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
    /// Closes a connection once everything is sent. The node gets no further event about it.
    Close(Link),
    /// Reports an event to the owner. The root reports the events of all PEs, except those that join or that leave
    /// together with all others; a relay reports events of the PEs that it serves itself, and
    /// [`Event::Broken`].
    Tell(Event),
}

/// Settings that a node cannot learn from other nodes.
#[derive(Debug, Clone)]
pub struct Config {
    /// The job's size, if it is known; otherwise the first PE's claim counts, and the others must agree.
    pub n_pes: Option<u32>,
    /// Its place, for a relay.
    pub relay: Option<Place>,
    /// The shape of the tree below it.
    pub shape: Shape,
    /// The driver reports each PE whose process has ended. All other PEs are then known to be alive, and the node waits
    /// for them.
    pub watched: bool,
}

/// A relay's place in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The PEs that it serves.
    pub pes: Range<Pe>,
    /// The PE whose process runs it, if any.
    pub run_by: Option<Pe>,
    /// The PE whose process runs the node above, if any.
    pub parent_run_by: Option<Pe>,
}

/// The state of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Here(Link),
    /// The child is done. A host's relay stays connected until all PEs start over.
    Left(Option<Link>),
    Lost,
    /// The PE's process ended while it was in no job.
    Ended,
}

struct Child {
    pes: Range<Pe>,
    role: Role,
    state: State,
    /// The address where a relay listens.
    address: Option<Address>,
}

/// A node of the tree.
pub struct Node {
    config: Config,
    n_pes: u32,
    pes: Range<Pe>,
    children: Vec<Child>,
    /// The number of levels of relays below.
    height: u32,
    /// The child at the other end of each connection.
    links: HashMap<Link, usize>,
    /// Newcomers without a place so far: their relay has not arrived, or they join again before all PEs have left. The
    /// key is the PE, and whether it is a relay.
    early: BTreeMap<(Pe, bool), (Link, Newcomer)>,
    /// PEs whose processes have ended: they never return.
    ended: Vec<Pe>,
    /// The PE that fixed the job's size; `None` if the configuration did.
    sized_by: Option<Pe>,
    round: Round,
    /// All PEs here have contributed, and the result has not arrived.
    passed_on: bool,
    inquiry: Option<Inquiry>,
    /// This node has sent the node above a fault that breaks the job.
    reported_up: bool,
    /// The node above is lost.
    orphaned: bool,
    /// Why no further step can complete. Set once.
    failure: Option<Arc<[u8]>>,
    /// The first PE without which no step can complete.
    departed: Option<Fault>,
    /// Lost PEs that the others have not been sent yet, and the earliest time for the next message about them.
    news: Vec<Fault>,
    news_at: Option<Instant>,
    out: VecDeque<Output>,
}

impl Node {
    /// A node that no PE has joined.
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
            reported_up: false,
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

    /// Handles a frame.
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
                Some(fault) => {
                    self.report(fault.clone());
                    // A round that cannot complete waits below, not here.
                    if !self.broken() {
                        self.break_by(&fault);
                    }
                }
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

    /// The driver's next actions, in this order.
    pub fn outputs(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.out.drain(..)
    }

    /// When the driver must next call [`Node::tick`].
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let news = self.news_at.filter(|_| !self.news.is_empty());
        let late = self.inquiry.as_ref().map_or_else(|| self.round.deadline(), |inquiry| Some(inquiry.until));
        news.into_iter().chain(late).min()
    }

    /// Advances the node's time.
    pub fn tick(&mut self, now: Instant) {
        self.check_time(now);
        self.spread_news(now);
    }

    /// How many children take part.
    #[must_use]
    pub fn present(&self) -> usize {
        self.children.iter().filter(|child| matches!(child.state, State::Here(_))).count()
    }

    /// How many unauthenticated connections the service may hold for this node, beyond a reserve for strangers.
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

/// Decodes the range of PEs and the fan-out of the relay that a PE must run.
pub(super) fn decode_serve(payload: &[u8]) -> Option<(Range<Pe>, u32)> {
    let (pes, fan_out) = (payload.len() == 12).then(|| (u32_at(payload, 0)..u32_at(payload, 4), u32_at(payload, 8)))?;
    (!pes.is_empty()).then_some((pes, fan_out))
}

/// The least time between two messages about lost PEs.
const NEWS_EVERY: Duration = Duration::from_millis(10);
