//! Failover: an endpoint moves the work of a failed lane to other lanes, and uses the lane again when it works.
//!
//! A fault of the path ([`Fault::retryable`]) takes down the lane to that peer. Lanes to other peers are not affected.
//!
//! 1. Work requests under way on the lane wait until the rail has reported all of them, so that none can arrive later
//!    than its replacement.
//! 2. The endpoint moves each stream of requests that the lane carried to another lane. It tells the target, which
//!    drops requests that the failed lane still delivers, and answers how far it has applied the stream.
//! 3. A write is complete if a request that was sent behind it has been applied, where lanes keep messages behind
//!    writes. The endpoint posts the other writes and the reads again, and then the requests that were not applied.
//! 4. An AMO that a NIC performs has no number. It fails, and the error says whether it may have been performed.
//!
//! Fences still look for a moved write on the lane on which it was first posted (`home`), and nothing new is posted on
//! a lane that is down. So operations behind a fence wait for moved writes.
//!
//! The endpoint asks for a keepalive over a lane that is down from time to time, and uses the lane again when the peer
//! answers. When all lanes to a peer are down, it tries the waiting work on one lane after the other until the work is
//! too old.
//!
//! A message may be lost without an error. Then acknowledgements are missing although the peer answers pings, which
//! counts as a fault. A peer that answers no ping is late, and its lanes stay in use.
//!
//! | file | content |
//! |---|---|
//! | `health` | the state of a lane, without a rail |
//! | `ping` | pings to a peer |
//! | `lane` | takes lanes down, tries them and brings them up |
//! | `stream` | keeps requests, moves them and sends them again |
//! | `repost` | writes and reads of failed lanes |
//! | `dead_peer` | gives peers up |
//! | `port` | decides when a port that is down is a reason to give up connections |
//! | `reconnect` | replaces broken connections |
//! | `stalled` | connections on which nothing passes, which both ends close |
//! | `cut` | the record of such a connection |
//! | `keepalive` | keeps peers from believing in connections that are broken at this end |
//!
//! This file holds the record of a lane and the endpoint's list of recovery work.

mod cut;
mod dead_peer;
mod health;
mod keepalive;
mod lane;
mod ping;
mod port;
mod reconnect;
mod repost;
mod stalled;
mod stream;

pub(super) use dead_peer::lack;

use std::collections::{BTreeMap, VecDeque};

use crate::bounce::Slot;
use crate::error::Fault;
use crate::pe::Pe;
use crate::rail::{Dest, Ports, RailCaps};
use crate::sparse::Sparse;
use crate::wire::Request;
use cut::Cut;
use health::Health;

/// Whether messages of a stream can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    Open,
    /// The lane that carried it has failed. New requests wait.
    Lost,
    /// A request announced the carrier to the target, and asked what it has applied.
    Asked,
    /// The target has answered. Requests that it has not applied are to be sent again.
    Answered,
}

/// A message that may have to be sent again.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// Its position among everything that was posted, and the stream's generation then.
    serial: u64,
    generation: u32,
    /// The sequence number of its last request.
    last: u32,
    slot: Slot,
    len: u32,
}

/// The record of a lane to a peer that has other lanes.
pub(super) struct Failover {
    lane: u8,
    health: Health,
    /// Work requests that were posted to the rail and have not completed, since when there are any, and their bytes.
    posted: u32,
    busy_since: u32,
    under_way: u64,
    /// The time since when the rail has returned nothing, if it was found silent in that time.
    silent: Option<u32>,
    /// The ports from which the peer has opened the lane's connection, from an answer to a ping.
    opened_there: Ports,
    /// The lane's connection was cut, and the peer has not confirmed that: the ports from which this end had opened it.
    cut: Option<Ports>,
    /// The lane whose cut the peer confirms by the answer to the last move of this lane's stream.
    confirms: Option<u8>,
    /// The generation and serial of the last message of this lane's stream that has been applied.
    applied: (u32, u64),
    /// The lane that carries this lane's stream, how often it has changed, and the state of the change in progress.
    carrier: u8,
    generation: u32,
    state: StreamState,
    /// The sequence number of the last request in the outbox.
    pub gathered: u32,
    /// When the oldest unacknowledged request became the oldest.
    pub progress: u32,
    /// Messages with requests that are not acknowledged.
    kept: VecDeque<Kept>,
    /// Something has arrived over the lane.
    worked: bool,
    /// Something was posted on the lane, and the peer got a keepalive.
    used: bool,
    announced: bool,
}

impl Failover {
    pub fn new(lane: usize) -> Self {
        Failover {
            lane: lane as u8,
            health: Health::new(),
            posted: 0,
            busy_since: 0,
            under_way: 0,
            silent: None,
            opened_there: Ports::default(),
            cut: None,
            confirms: None,
            applied: (0, 0),
            carrier: lane as u8,
            generation: 0,
            state: StreamState::Open,
            gathered: 0,
            progress: 0,
            kept: VecDeque::new(),
            worked: false,
            used: false,
            announced: false,
        }
    }

    pub fn is_straight(&self) -> bool {
        self.is_own_carrier() && self.state == StreamState::Open
    }

    /// Whether new operations may use the lane.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.health.is_up()
    }

    /// Whether nothing may be posted on the lane.
    #[inline]
    pub fn is_down(&self) -> bool {
        self.health.is_down()
    }

    /// Whether every work request that the rail had when the lane failed has completed.
    pub fn is_drained(&self) -> bool {
        !self.health.is_down() || self.posted == 0
    }

    /// Notes that the lane has failed. As for [`Health::fail`].
    fn fail(&mut self, now: u32, fault: &Fault) -> Option<bool> {
        self.health.fail(now, fault, self.worked)
    }

    /// Why the lane is down, if it is.
    pub fn fault(&self) -> Option<&Fault> {
        self.health.fault()
    }

    fn is_own_carrier(&self) -> bool {
        self.carrier == self.lane
    }

    /// The generation of the stream, if its messages stay behind writes that are now posted on its lane.
    pub fn generation(&self) -> Option<u32> {
        self.is_straight().then_some(self.generation)
    }

    /// Notes that a work request of so many bytes has completed, successfully or not.
    #[inline]
    pub fn came_back(&mut self, len: usize, arrived: bool) {
        self.worked |= arrived;
        self.posted = self.posted.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(len as u64);
    }

    /// Notes that a work request of so many bytes was posted. Returns whether it was the lane's first.
    #[inline]
    pub fn post(&mut self, len: usize, now: u32) -> bool {
        if self.posted == 0 {
            self.busy_since = now;
        }
        self.posted += 1;
        self.under_way += len as u64;
        !std::mem::replace(&mut self.used, true)
    }

    /// The stream's generation, if the peer must get a first keepalive over the lane.
    pub fn first_keepalive(&mut self) -> Option<u32> {
        let due = self.used && !self.announced && self.health.is_up() && self.is_straight();
        self.announced |= due;
        due.then_some(self.generation)
    }

    /// Whether lanes over these rails can replace each other: they give the same guarantees.
    pub fn possible(caps: &[RailCaps]) -> bool {
        caps.len() > 1 && caps.iter().all(|c| c.order == caps[0].order && c.max_send == caps[0].max_send)
    }
}

/// What this endpoint knows about a peer's use of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Use {
    #[default]
    Unknown,
    /// The peer has sent something over it.
    Known,
    /// The peer has moved away from it.
    Left,
}

/// A request of a peer about a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerRequest {
    request: Request,
    /// The lane that it came over, and when.
    via: usize,
    since: u32,
}

/// The record of a connection that has broken.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Renewal {
    /// The number of connections after the first.
    count: u32,
    /// This end has offered the last of them, and the peer has not accepted it yet.
    offered: bool,
}

/// An event about a port that is down.
#[derive(Debug, Clone, Copy)]
pub(super) enum PortNews {
    /// A port has gone down.
    Down,
    /// A keepalive has arrived over another lane than the one whose port went down for the `outage`th time.
    OtherLane { dest: Dest, instead_of: u8, outage: u32 },
}

/// The recovery work of an endpoint, and the messages and events that cause it.
pub(super) struct Recovery {
    /// Work requests whose lane is down, and PEs that may have some or have messages to be sent again.
    undrained: Vec<u64>,
    to_recover: Vec<Pe>,
    /// PEs that have left and are not given up yet: when the endpoint learned of it, and the reason.
    left: BTreeMap<Pe, (u32, String)>,
    /// PEs that are to be forgotten, and those that were.
    pub(super) removed: Vec<Pe>,
    pub(super) forgotten: Vec<Pe>,
    /// For each destination and lane, whether the peer uses it. `None` where no caller needs to know.
    uses: Option<Sparse<Box<[Use]>>>,
    /// Lanes that have just been used for the first time, whose peers are to get a keepalive.
    keepalives: Vec<(Pe, usize)>,
    /// Connections that have broken, and requests of peers about connections.
    renewals: BTreeMap<(Dest, usize), Renewal>,
    requests: Vec<PeerRequest>,
    /// PEs that were given up, whose connections are to be ended.
    given_up: Vec<Pe>,
    /// Connections that peers have cut at their end.
    cuts: Vec<(Dest, Cut)>,
    /// Events about ports that are down, and how often each rail's port has gone down.
    port_news: Vec<PortNews>,
    outages: Vec<u32>,
}

impl Recovery {
    pub fn new(rails: usize) -> Recovery {
        Recovery {
            undrained: Vec::new(),
            to_recover: Vec::new(),
            left: BTreeMap::new(),
            removed: Vec::new(),
            forgotten: Vec::new(),
            uses: None,
            keepalives: Vec::new(),
            renewals: BTreeMap::new(),
            requests: Vec::new(),
            given_up: Vec::new(),
            cuts: Vec::new(),
            port_news: Vec::new(),
            outages: vec![0; rails],
        }
    }

    /// Whether a PE is to be given up.
    pub fn is_leaving(&self, pe: Pe) -> bool {
        self.left.contains_key(&pe)
    }

    /// Forgets what concerns a PE of `n_pes`.
    pub fn forget(&mut self, pe: Pe, n_pes: u32) {
        let other = |dest: Dest| dest % n_pes != pe;
        self.left.remove(&pe);
        if let Some(uses) = &mut self.uses {
            uses.forget(pe);
            uses.forget(n_pes + pe);
        }
        self.to_recover.retain(|&at| other(at));
        self.given_up.retain(|&at| other(at));
        self.keepalives.retain(|&(at, _)| other(at));
        self.renewals.retain(|&(at, _), _| other(at));
        self.requests.retain(|it| other(it.request.source));
        self.cuts.retain(|&(at, _)| other(at));
        self.port_news.retain(|news| !matches!(*news, PortNews::OtherLane { dest, .. } if !other(dest)));
    }

    /// Queues a keepalive for a lane that has just been used for the first time.
    #[cold]
    pub fn queue_keepalive(&mut self, pe: Pe, lane: usize) {
        self.keepalives.push((pe, lane));
    }

    #[inline]
    pub fn next_keepalive(&mut self) -> Option<(Pe, usize)> {
        self.keepalives.pop()
    }

    /// Whether any work waits for another lane.
    #[inline]
    pub fn is_needed(&self) -> bool {
        !self.to_recover.is_empty()
    }

    /// Whether requests of peers about connections wait.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// A connection that a peer has cut at its end: the lane, and the ports from which the peer had opened it.
    #[inline]
    pub fn next_cut(&mut self) -> Option<(Dest, usize, Ports)> {
        self.cuts.pop().map(|(dest, cut)| (dest, cut.lane.into(), cut.opened))
    }

    /// Whether events about ports wait.
    #[inline]
    pub fn has_port_news(&self) -> bool {
        !self.port_news.is_empty()
    }
}

/// The fault of a lane that has been silent.
fn silent(text: String) -> Fault {
    Fault { code: libc::ETIMEDOUT, text, retryable: true }
}
