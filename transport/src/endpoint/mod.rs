//! One endpoint over several rails: the way from an operation to work requests and back.
//!
//! A PE has two of them: its *host endpoint* (driven by host threads; on one rail, while that works) and its *proxy endpoint*
//! (on all rails, driven by the engine). Both only ever address proxy endpoints, because those are always polled; that is why a
//! peer that computes without calling us still serves. Target agents answer to the endpoint that asked.
//!
//! Where to read: `open` makes an endpoint, and its peers and memory known to it; [`job`] says what can be asked; `submit` checks a job and
//! enters it; `launch` cuts it into work requests; `order` picks its lane, and holds it back when a [`fence`](Endpoint::fence) says so;
//! `company` lets puts and gets travel together; `message` is for requests to target agents, `quick` for small puts, `counted` for puts
//! whose arrival the target counts; `emulate` is AMOs by the provider, `swap_loop` those that it
//! lacks; `post` keeps work requests until the rail takes them, in a `backlog`; `drive` polls, and `completion` turns what rails report
//! back into finished operations; `connection` is what is remembered per peer and lane; `failover` does without a lane that has
//! failed, `gone` without a peer; `strangers` counts what is not of the job; `observe` counts and times.
//!
//! # Delivery
//! Every operation is finished only when it is visible at its target: writes ask for delivery, requests are acknowledged
//! by the target agent. One exception saves an acknowledgement each: on a single lane that keeps writes in order and
//! messages behind writes, small writes are posted without a completion, and [`Endpoint::start_quiet`] sends one flush
//! request behind them all. Where the target's CPU moves the bytes anyway, the smallest puts are requests to its agent
//! instead, many to a message. An operation that is followed by a quiet at once is better off with a completion or
//! acknowledgement of its own; `lone` predicts which is the case. So are puts that no quiet completes: flags, and puts that are
//! `counted` where they arrive.
//!
//! # Inlining
//! The steps from a job to its post, and from a completion to the operation's end, are small, and each is called from a few places. They are
//! inlined by force: a call between two of them takes as many instructions as its step, and asks again what its caller knows.

mod backlog;
mod company;
mod completion;
mod connection;
mod counted;
mod drive;
mod emulate;
mod failover;
mod gone;
pub mod job;
mod launch;
mod lone;
mod message;
mod observe;
mod open;
mod order;
mod post;
mod quick;
mod strangers;
mod submit;
mod swap_loop;

use std::collections::BTreeMap;
use std::time::Instant;

use backlog::Backlog;
pub use completion::NoAgent;
use connection::{Connection, Peer};
use emulate::{Abilities, Loops};
use failover::{PortNews, Renewal, Use, Word};
use job::{Finished, Op, OpHandle};
use lone::Lone;
pub use observe::{LaneCounters, Latency, Record};
use observe::{Recorder, Sampler};
use post::WorkRequest;

use crate::bounce::Bounce;
use crate::env::{RailPolicy, Settings};
use crate::error::Error;
use crate::pe::Pe;
use crate::rail::{Dest, Rail, RailCaps};
use crate::region::Regions;
use crate::slab::Slab;
use crate::wire::{Origin, Request, Token};

/// Operations in flight past which [`Endpoint::ready`] says no.
const MAX_OPERATIONS: usize = 2048;
/// Work requests in flight past which [`Endpoint::ready`] says no.
const MAX_WORK_REQUESTS: usize = 4096;
/// Stripes start on multiples of this many bytes.
const STRIPE_GRAIN: u64 = 4096;

/// Which of a PE's endpoints this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Driven by host threads, which only ever poll; starts operations, is never a target.
    Host,
    /// Driven by the engine, which may sleep on a wait object; starts operations and is the target of everybody's.
    Proxy,
}

/// What applies requests of peers to this PE's memory.
pub trait TargetAgent {
    /// A request arrived over `lane`, from a PE that exists. Offsets and lengths in it are unchecked.
    fn request(&mut self, lane: usize, request: &Request, payload: &[u8]);

    /// What a peer has put is here, and is to be counted in the word at this symmetric offset, which is unchecked.
    fn count(&mut self, word: u64);
}

/// What a PE tells all others so that they can connect: the addresses of its rails.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The host endpoint's rails, in lane order; empty for a PE that has no host endpoint.
    pub host: Vec<Vec<u8>>,
    /// The proxy endpoint's rails, in lane order.
    pub proxy: Vec<Vec<u8>>,
}

/// How an endpoint behaves; from [`Settings`].
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// How operations are spread over lanes.
    pub rails: RailPolicy,
    /// Operations of at least this many bytes are striped under [`RailPolicy::Stripe`].
    pub stripe_threshold: u64,
    /// The provider performs AMOs and signals; agreed by all PEs.
    pub native_amo: bool,
    /// Operations older than this fail, in seconds.
    pub timeout_s: u64,
}

impl Policy {
    /// The policy that the settings ask for; `native_amo` is [`Choice::native_amo`](crate::backend::Choice::native_amo).
    #[must_use]
    pub fn new(settings: &Settings, native_amo: bool) -> Self {
        Policy {
            rails: settings.rail_policy,
            stripe_threshold: settings.stripe_threshold as u64,
            native_amo,
            timeout_s: settings.timeout_s,
        }
    }
}

impl Core {
    /// The destination under which a rail answers one of a PE's endpoints.
    fn answer_to(&self, pe: Pe, origin: Origin) -> Dest {
        Dest::from(origin) * self.n_pes + pe
    }
}

#[derive(Default)]
struct IssuerState {
    outstanding: u64,
    error: Option<Error>,
    /// Of its operations with a tag.
    lone: Lone,
}

/// An endpoint. Not for concurrent use: whoever drives it owns it.
pub struct Endpoint {
    // Dropped first: rails may still look at memory that `core` owns.
    rails: Vec<Box<dyn Rail>>,
    core: Core,
}

/// Everything but the rails, so that a rail that is being polled can report into it.
struct Core {
    me: Pe,
    n_pes: u32,
    role: Role,
    origin: Origin,
    /// The address that peers have to hear of before the first request: see [`Endpoint::introduce_as`].
    introduction: Option<Box<[u8]>>,
    policy: Policy,
    /// What has to be on all that comes in, and what destinations want to see.
    token: Token,
    tokens: Vec<Token>,
    caps: Vec<RailCaps>,
    /// Largest write or read that every rail takes, in bytes: another may have to do it.
    max_rma: u64,
    peers: Vec<Peer>,
    connections: Vec<Connection>,
    regions: Regions,
    bounce: Bounce,
    ops: Slab<Op>,
    work: Slab<WorkRequest>,
    /// Per rail: work requests that wait for room in its queue.
    backlog: Vec<Backlog>,
    counters: Vec<LaneCounters>,
    samplers: Vec<Sampler>,
    recorder: Option<Box<Recorder>>,
    /// Number of the last work request or message.
    serial: u64,
    /// Work requests whose lane is down, and PEs that may have some, or messages to be sent again.
    stranded: Vec<u64>,
    troubled: Vec<Pe>,
    /// Per destination and lane: whether the peer uses it; empty where nobody needs to know.
    uses: Vec<Use>,
    /// Lanes that have just been used for the first time.
    to_greet: Vec<(Pe, usize)>,
    /// Connections that have been broken, and what peers say about such.
    renewals: BTreeMap<(Dest, usize), Renewal>,
    about_connections: Vec<Word>,
    /// What has been learned of ports that are down, and how often each rail's has gone down.
    port_news: Vec<PortNews>,
    outages: Vec<u32>,
    issuers: Vec<IssuerState>,
    finished: Vec<Finished>,
    /// Operations whose data is delivered and whose signal is to be sent.
    followups: Vec<OpHandle>,
    /// What the provider does itself of AMOs.
    abilities: Abilities,
    /// AMOs that the provider does by loops.
    loops: Loops,
    forgoes_failover: bool,
    /// How many lanes to peers are not used because they failed.
    down: u32,
    polls: u32,
    /// Peers that have deferred operations.
    blocked: Vec<Pe>,
    /// Connections to flush for a quiet.
    unflushed: Vec<(Pe, usize)>,
    /// Connections with requests in their outbox.
    outboxes: Vec<(Pe, usize)>,
    lone: Lone,
    next_lane: usize,
    epoch: u32,
    opened: Instant,
    /// Seconds in which somebody polled.
    now: u32,
    last_tick: u32,
    complained: bool,
}

// SAFETY: the raw pointers inside are buffers of operations in flight, whose owners promised (`submit`) to keep them valid
// whichever thread completes the operation; nothing else in here is tied to a thread.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// The PE whose endpoint this is.
    #[must_use]
    pub fn me(&self) -> Pe {
        self.core.me
    }

    /// How many PEs the job has.
    #[must_use]
    pub fn n_pes(&self) -> u32 {
        self.core.n_pes
    }

    /// How it behaves.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.core.policy
    }

    /// How many lanes to peers are out of use because they have failed.
    #[must_use]
    pub fn lanes_down(&self) -> u32 {
        self.core.down
    }

    /// This PE's own segments, as the target agent and local operations see them.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.core.regions
    }

    /// What the rails are and can do, in lane order.
    #[must_use]
    pub fn caps(&self) -> &[RailCaps] {
        &self.core.caps
    }

    /// Counters per lane.
    #[must_use]
    pub fn counters(&self) -> &[LaneCounters] {
        &self.core.counters
    }

    /// Records every work request from now on.
    pub fn record(&mut self) {
        self.core.recorder.get_or_insert_default();
    }

    /// Takes what has been recorded so far of completed work requests. What was posted without a completion is not among it.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.core.recorder.as_mut().map(|recorder| recorder.take()).unwrap_or_default()
    }
}
