//! Doing without a lane that has failed, and with it again.
//!
//! A fault of the path ([`Fault::retryable`]) takes the lane to that peer down; other peers' are not
//! concerned. What was under way on it waits until the rail has reported all of it, so that nothing of it can arrive
//! later than what replaces it. Then each stream of requests that the lane carried is moved to another: the target is
//! told, and drops what the failed lane still brings of it; it answers how far it has applied the stream. A write
//! behind which an applied request was sent has arrived, where lanes keep messages behind writes, and is complete.
//! Other writes, and reads, are posted again, and then the requests that were not applied. An AMO that a NIC performs
//! has no number: it fails, and says whether it may have been performed.
//!
//! Fences go on to look for moved writes where they were posted first (`home`), and nothing new is posted on a lane
//! that is down; so what a fence orders waits for them. A lane that is down is asked for a keepalive once in a
//! while, and used again when it answers. When all lanes to a peer are down, what waits is tried on one after the
//! other, until it is too old. Where a message was lost and nobody told, acknowledgements fail to come although the
//! peer answers pings, which counts as a fault; a peer that answers none is late, and its lanes stay in use.
//!
//! Where to read: `health` is what is believed of a lane, without a rail; `ping` asks; `lane` takes lanes down, tries
//! them and brings them up; `stream` keeps requests, moves them and sends them again; `repost` is for writes and reads;
//! `dead_peer` gives peers up; `port` decides when a port that is down is a reason to do so; `reconnect` replaces
//! broken connections; `keepalive` keeps peers from believing in connections that are broken at this end. Here: what is
//! remembered of a lane, and what an endpoint has to do.

mod dead_peer;
mod health;
mod keepalive;
mod lane;
mod ping;
mod port;
mod reconnect;
mod repost;
mod stream;

use std::collections::{BTreeMap, VecDeque};

use crate::bounce::Slot;
use crate::error::Fault;
use crate::pe::Pe;
use crate::rail::{Dest, RailCaps};
use crate::sparse::Sparse;
use crate::wire::Request;
use health::Health;

/// Whether messages of a stream can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    Open,
    /// The lane that carried it has failed. What is new waits.
    Lost,
    /// The target has been told to expect it over the carrier, and asked what it has applied.
    Asked,
    /// It has said so. What it has not applied is to be sent again.
    Answered,
}

/// A message that may have to be sent again.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// Where it stands among everything that was posted, and the stream's turn then.
    serial: u64,
    turn: u32,
    /// Its last request.
    last: u32,
    slot: Slot,
    len: u32,
}

/// What is remembered of a lane to a peer that has others.
pub(super) struct Failover {
    lane: u8,
    health: Health,
    /// Work requests that the rail has and has not reported, and their bytes.
    posted: u32,
    under_way: u64,
    /// The turn and serial of the last message of this lane's stream that has been applied.
    applied: (u32, u64),
    /// The lane that messages of this lane's stream take, how often it has changed, and how far the next change is.
    carrier: u8,
    turn: u32,
    state: StreamState,
    /// The last request in the outbox.
    pub gathered: u32,
    /// When the oldest request became the oldest.
    pub progress: u32,
    /// Messages with requests that are not acknowledged.
    kept: VecDeque<Kept>,
    /// Something was posted, and the peer has been told.
    used: bool,
    announced: bool,
}

impl Failover {
    pub fn new(lane: usize) -> Self {
        Failover {
            lane: lane as u8,
            health: Health::new(),
            posted: 0,
            under_way: 0,
            applied: (0, 0),
            carrier: lane as u8,
            turn: 0,
            state: StreamState::Open,
            gathered: 0,
            progress: 0,
            kept: VecDeque::new(),
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

    /// Whether what the rail had when the lane failed has been reported.
    pub fn is_drained(&self) -> bool {
        !self.health.is_down() || self.posted == 0
    }

    /// Why the lane is down, if it is.
    pub fn fault(&self) -> Option<&Fault> {
        self.health.fault()
    }

    fn is_own_carrier(&self) -> bool {
        self.carrier == self.lane
    }

    /// The turn of the stream, if its messages stay behind what is written on its lane now.
    pub fn turn(&self) -> Option<u32> {
        self.is_straight().then_some(self.turn)
    }

    /// The rail has reported a work request of so many bytes.
    #[inline]
    pub fn came_back(&mut self, len: usize) {
        self.posted = self.posted.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(len as u64);
    }

    /// The rail has taken a work request of so many bytes. Whether it was the first.
    #[inline]
    pub fn post(&mut self, len: usize) -> bool {
        self.posted += 1;
        self.under_way += len as u64;
        !std::mem::replace(&mut self.used, true)
    }

    /// The stream's turn, if the peer is to be told that the lane is used.
    pub fn first_keepalive(&mut self) -> Option<u32> {
        let due = self.used && !self.announced && self.health.is_up() && self.is_straight();
        self.announced |= due;
        due.then_some(self.turn)
    }

    /// Whether lanes over these rails can do each other's work: they promise the same.
    pub fn possible(caps: &[RailCaps]) -> bool {
        caps.len() > 1 && caps.iter().all(|c| c.order == caps[0].order && c.max_send == caps[0].max_send)
    }
}

/// What is known of a lane to an endpoint of a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Use {
    #[default]
    Unknown,
    /// The peer has sent something over it.
    Known,
    /// The peer has moved away from it.
    Left,
}

/// What a peer has said about a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerRequest {
    request: Request,
    /// The lane that it came over, and when.
    via: usize,
    since: u32,
}

/// What is remembered of a connection that has been broken.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Renewal {
    /// How many connections there have been after the first.
    count: u32,
    /// The last of them was offered, and not accepted yet.
    offered: bool,
}

/// What has been learned of a port that is down.
#[derive(Debug, Clone, Copy)]
pub(super) enum PortNews {
    /// A port has gone down.
    Down,
    /// A keepalive has arrived over another lane than that whose port went down for the `outage`th time.
    OtherLane { dest: Dest, instead_of: u8, outage: u32 },
}

/// What an endpoint has to do because of lanes that have failed, and what it has heard about such.
pub(super) struct Recovery {
    /// A lane that fails fails what is on it.
    disabled: bool,
    /// Work requests whose lane is down, and PEs that may have some, or messages to be sent again.
    undrained: Vec<u64>,
    to_recover: Vec<Pe>,
    /// PEs that have left and are not yet given up: when that was heard, and what became of them.
    left: BTreeMap<Pe, (u32, String)>,
    /// By destination, for each lane: whether the peer uses it. `None` where nobody needs to know.
    uses: Option<Sparse<Box<[Use]>>>,
    /// Lanes that have just been used for the first time.
    keepalives: Vec<(Pe, usize)>,
    /// Connections that have been broken, and what peers say about such.
    renewals: BTreeMap<(Dest, usize), Renewal>,
    requests: Vec<PeerRequest>,
    /// What has been learned of ports that are down, and how often each rail's has gone down.
    port_news: Vec<PortNews>,
    outages: Vec<u32>,
}

impl Recovery {
    pub fn new(rails: usize) -> Recovery {
        Recovery {
            disabled: false,
            undrained: Vec::new(),
            to_recover: Vec::new(),
            left: BTreeMap::new(),
            uses: None,
            keepalives: Vec::new(),
            renewals: BTreeMap::new(),
            requests: Vec::new(),
            port_news: Vec::new(),
            outages: vec![0; rails],
        }
    }

    /// From now on a lane that fails fails what is on it.
    pub fn disable(&mut self) {
        self.disabled = true;
    }

    pub fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// A lane has just been used for the first time.
    #[cold]
    pub fn queue_keepalive(&mut self, pe: Pe, lane: usize) {
        self.keepalives.push((pe, lane));
    }

    #[inline]
    pub fn next_keepalive(&mut self) -> Option<(Pe, usize)> {
        self.keepalives.pop()
    }

    /// Whether something waits for another lane.
    #[inline]
    pub fn is_needed(&self) -> bool {
        !self.to_recover.is_empty()
    }

    /// Whether peers have said something about connections.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Whether something has been learned of ports that are down.
    #[inline]
    pub fn has_port_news(&self) -> bool {
        !self.port_news.is_empty()
    }
}

/// What takes a lane down that has been silent.
fn silent(text: String) -> Fault {
    Fault { code: libc::ETIMEDOUT, text, retryable: true }
}
