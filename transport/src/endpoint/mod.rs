//! One endpoint over several rails: the way from an operation to work requests and back.
//!
//! A PE has two of them: its *host endpoint* (driven by host threads; on one rail, while that works) and its *proxy endpoint*
//! (on all rails, driven by the engine). Both only ever address proxy endpoints, because those are always polled; that is why a
//! peer that computes without calling us still serves. Target agents answer to the endpoint that asked.
//!
//! Where to read: [`job`] says what can be asked; `launch` cuts a job into work requests; `order` picks its lane, and holds it
//! back when a [`fence`](Endpoint::fence) says so; `message` is for requests to target agents, `quick` for small puts;
//! `emulate` is AMOs by the provider,
//! and loops for those that it lacks; `post` keeps work requests until the rail takes them, in a `backlog`; `completion` turns what rails report back into finished
//! operations; `connection` is what is remembered per peer and lane; `failover` does without a lane that has failed;
//! `observe` counts and times.
//!
//! # Delivery
//! Every operation is finished only when it is visible at its target: writes ask for delivery, requests are acknowledged
//! by the target agent. One exception saves an acknowledgement each: on a single lane that keeps writes in order and
//! messages behind writes, small writes are posted without a completion, and [`Endpoint::start_quiet`] sends one flush
//! request behind them all. Where the target's CPU moves the bytes anyway, the smallest puts are requests to its agent
//! instead, many to a message. An operation that is followed by a quiet at once is better off with a completion or
//! acknowledgement of its own; `lone` predicts which is the case.

mod backlog;
mod completion;
mod connection;
mod emulate;
mod failover;
pub mod job;
mod launch;
mod lone;
mod message;
mod observe;
mod order;
mod post;
mod quick;

use std::collections::BTreeMap;
use std::time::Instant;

use backlog::Backlog;
pub use completion::NoAgent;
use connection::{Connection, Peer};
use emulate::{Abilities, Loops};
use failover::{Failover, Renewal, Use};
use job::{Finished, Issuer, Op, OpHandle};
use lone::Lone;
pub use observe::{LaneCounters, Latency, Record};
use observe::{Recorder, Sampler};
use post::WorkRequest;

use crate::bounce::Bounce;
use crate::env::{RailPolicy, Settings};
use crate::error::{Error, Result};
use crate::pe::Pe;
use crate::rail::{Dest, Rail, RailCaps};
use crate::region::{Regions, Segment};
use crate::slab::Slab;
use crate::wire::{FROM_HOST, Origin, Request};

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
    /// Connections that have been broken, and what peers say about such, with the time.
    renewals: BTreeMap<(Dest, usize), Renewal>,
    about_connections: Vec<(u32, Request)>,
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
    /// An endpoint of PE `me` over opened rails, which become its lanes in this order.
    ///
    /// # Errors
    /// What registering the endpoint's own buffers says, or that there is no rail.
    pub fn new(role: Role, me: Pe, n_pes: u32, mut rails: Vec<Box<dyn Rail>>, policy: Policy) -> Result<Self> {
        let caps: Vec<RailCaps> = rails.iter().map(|r| r.caps().clone()).collect();
        let Some(largest) = caps.iter().map(|c| c.max_send).min() else {
            return Err(Error::NoRail { wanted: "an endpoint".into(), found: "nothing".into() });
        };
        let bounce = Bounce::new(&mut rails, largest)?;
        let abilities = Abilities::of(rails[emulate::AMO_LANE].as_ref());
        let lanes = rails.len();
        let core = Core {
            me,
            n_pes,
            role,
            origin: if role == Role::Host { FROM_HOST } else { 0 },
            introduction: None,
            policy,
            max_rma: caps.iter().map(|c| c.max_rma as u64).min().unwrap_or(0),
            caps,
            peers: (0..n_pes).map(|_| Peer::default()).collect(),
            connections: (0..n_pes as usize * lanes).map(|_| Connection::default()).collect(),
            regions: Regions::new(lanes),
            bounce,
            ops: Slab::with_capacity(MAX_OPERATIONS),
            work: Slab::with_capacity(MAX_WORK_REQUESTS),
            backlog: (0..lanes).map(|_| Backlog::default()).collect(),
            counters: vec![LaneCounters::default(); lanes],
            samplers: vec![Sampler::default(); lanes],
            recorder: None,
            serial: 0,
            down: 0,
            polls: 0,
            stranded: Vec::new(),
            troubled: Vec::new(),
            uses: Vec::new(),
            to_greet: Vec::new(),
            renewals: BTreeMap::new(),
            about_connections: Vec::new(),
            forgoes_failover: false,
            issuers: vec![],
            finished: Vec::with_capacity(64),
            followups: Vec::with_capacity(64),
            abilities,
            loops: Loops::default(),
            blocked: Vec::new(),
            unflushed: Vec::new(),
            outboxes: Vec::new(),
            lone: Lone::default(),
            next_lane: me as usize,
            epoch: 0,
            opened: Instant::now(),
            now: 0,
            last_tick: 0,
            complained: false,
        };
        Ok(Endpoint { rails, core })
    }

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

    /// The addresses of its rails, for [`Addresses`].
    #[must_use]
    pub fn addresses(&self) -> Vec<Vec<u8>> {
        self.rails.iter().map(|r| r.address()).collect()
    }

    /// Makes `pe` reachable. Lanes pair by index, so there are as many as the end with fewer rails has.
    ///
    /// # Errors
    /// What the backend says about the addresses.
    pub fn connect(&mut self, pe: Pe, addresses: &Addresses) -> Result<()> {
        let lanes = self.rails.len().min(addresses.proxy.len());
        let n = self.core.n_pes;
        let return_dest: Dest = if self.core.role == Role::Host { n + self.core.me } else { self.core.me };
        for (rail, address) in self.rails.iter_mut().zip(&addresses.proxy) {
            rail.connect(pe, address, return_dest)?;
        }
        if self.core.role == Role::Proxy {
            for (rail, address) in self.rails.iter_mut().zip(&addresses.host) {
                rail.connect(n + pe, address, self.core.me)?;
            }
        }
        if let Some(peer) = self.core.peers.get_mut(pe as usize) {
            peer.lanes = lanes.min(u8::MAX.into()) as u8;
        }
        if lanes > 1 && !self.core.forgoes_failover && Failover::possible(&self.core.caps) {
            self.watch_uses();
            for lane in 0..lanes {
                if let Some(c) = self.core.connection(pe, lane) {
                    c.failover = Some(Box::new(Failover::new(lane)));
                }
            }
        }
        Ok(())
    }

    /// How many lanes to peers are out of use because they have failed.
    #[must_use]
    pub fn lanes_down(&self) -> u32 {
        self.core.down
    }

    /// From now on a lane that fails fails what is on it. To be called before anything is asked for; [`job::Job::Ask`] needs it.
    pub fn forgo_failover(&mut self) {
        self.core.forgoes_failover = true;
        self.core.connections.iter_mut().for_each(|c| c.failover = None);
    }

    /// Makes this one more host endpoint of its PE. Peers have not heard of it when they connected, so it introduces itself to
    /// each of them by its first request there.
    pub fn introduce_as(&mut self, origin: Origin) {
        self.core.origin = origin;
        self.core.introduction = self.rails.first().map(|rail| rail.address().into());
    }

    /// Makes an endpoint reachable for answers that has introduced itself.
    ///
    /// # Errors
    /// What the backend says about the address.
    pub fn connect_introduced(&mut self, pe: Pe, origin: Origin, address: &[u8]) -> Result<()> {
        let dest = self.core.answer_to(pe, origin);
        self.rails.first_mut().map_or(Ok(()), |rail| rail.connect(dest, address, self.core.me))
    }

    /// Destinations that each rail of an endpoint of `role` connects to, in a job of `n_pes`.
    #[must_use]
    pub fn destinations(role: Role, n_pes: u32) -> u32 {
        if role == Role::Host { n_pes } else { 2 * n_pes }
    }

    /// Registers a segment of this PE's symmetric memory with every rail; its card goes to [`Endpoint::learn`] on all PEs.
    ///
    /// # Safety
    /// The segment stays mapped as long as the endpoint lives.
    ///
    /// # Errors
    /// What the provider says.
    pub unsafe fn register(&mut self, segment: Segment) -> Result<Vec<u8>> {
        // SAFETY: the caller's promise.
        let local = unsafe { self.register_all(segment.base, segment.len as usize, segment.id) }?;
        self.core.regions.add(segment, local);
        Ok(self.core.regions.card(segment.id))
    }

    /// Takes in what all PEs said about a segment (of their proxy endpoints).
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn learn(&mut self, id: u32, cards: &[Vec<u8>]) -> Result<()> {
        self.core.regions.learn(id, cards)
    }

    /// Takes in what `pe` said about a segment that it has laid out apart: see [`Regions::learn_apart`].
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::NoSuchPe`].
    pub fn learn_apart(&mut self, pe: Pe, offset: u64, len: u64, card: &[u8]) -> Result<()> {
        self.core.regions.learn_apart((pe, self.core.n_pes), offset, len, card)
    }

    /// Forgets a segment that `pe` has laid out apart.
    pub fn forget_apart(&mut self, pe: Pe, offset: u64) {
        self.core.regions.forget_apart(pe, offset);
    }

    /// Undoes [`Endpoint::register`]; unknown ids are ignored. Operations on the segment must have ended.
    pub fn deregister(&mut self, id: u32) {
        self.rails.iter_mut().for_each(|r| r.deregister(id));
        self.core.regions.remove(id);
    }

    /// Registers a local buffer outside of the heap. `id` must not be a segment's.
    ///
    /// # Safety
    /// The buffer stays mapped until [`Endpoint::deregister_buffer`].
    ///
    /// # Errors
    /// What the provider says.
    pub unsafe fn register_buffer(&mut self, base: *mut u8, len: usize, id: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        let local = unsafe { self.register_all(base, len, id) }?;
        self.core.regions.add_buffer(base, len, id, local);
        Ok(())
    }

    /// Undoes [`Endpoint::register_buffer`] for the buffer that starts at `base`; unknown buffers are ignored.
    pub fn deregister_buffer(&mut self, base: *const u8) {
        if let Some(id) = self.core.regions.buffer_at(base) {
            self.rails.iter_mut().for_each(|r| r.deregister(id));
            self.core.regions.remove_buffer(id);
        }
    }

    unsafe fn register_all(&mut self, base: *mut u8, len: usize, id: u32) -> Result<Vec<crate::rail::Registration>> {
        // SAFETY: the callers' promise, passed on.
        self.rails.iter_mut().map(|r| unsafe { r.register(base, len, id) }).collect()
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

    /// Descriptors that become readable when polling is worthwhile; `None` when a rail has none.
    #[must_use]
    pub fn wait_fds(&self) -> Option<Vec<std::os::fd::RawFd>> {
        self.rails.iter().map(|r| r.wait_fd()).collect()
    }

    /// Prepares to sleep on [`Endpoint::wait_fds`]; `false` means that polling has something to do.
    pub fn arm(&mut self) -> bool {
        self.send_outboxes();
        self.core.backlog.iter().all(Backlog::is_empty)
            && self.core.blocked.is_empty()
            && self.core.followups.is_empty()
            && !self.core.loops.pending()
            && self.core.about_connections.is_empty()
            && self.rails.iter_mut().all(|r| r.wait_fd().is_none() || r.arm())
    }

    /// The most bytes that a [`job::Source::Copied`] may have.
    #[must_use]
    pub fn copy_limit(&self) -> usize {
        self.core.bounce.largest() - Request::SIZE
    }

    /// Makes progress: posts what waited, takes in what arrived, gives requests of peers to `agent`.
    /// Returns how much happened.
    pub fn poll(&mut self, agent: &mut dyn TargetAgent) -> usize {
        let mut events = 0;
        self.send_outboxes();
        self.core.polls = self.core.polls.wrapping_add(1);
        for lane in 0..self.core.lanes_to_poll() {
            if !self.core.backlog[lane].is_empty() {
                events += self.post_backlog(lane);
            }
            let mut sink = completion::Sink { core: &mut self.core, lane, agent };
            events += self.rails[lane].poll(&mut sink);
        }
        while let Some((pe, lane)) = self.core.to_greet.pop() {
            self.greet(pe, lane);
        }
        if !self.core.about_connections.is_empty() {
            self.heed_connections();
        }
        if !self.core.troubled.is_empty() {
            self.rescue_all();
        }
        while self.core.bounce.plentiful()
            && let Some(op) = self.core.followups.pop()
        {
            self.launch_followup(op);
        }
        if self.core.loops.pending() {
            self.continue_loops();
        }
        if !self.core.blocked.is_empty() {
            self.launch_deferred();
        }
        events
    }

    /// Whether there is room for another operation; if not, poll.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> bool {
        self.core.ops.len() < MAX_OPERATIONS && self.core.work.len() < MAX_WORK_REQUESTS && self.core.bounce.plentiful()
    }

    /// Whether anything is under way that polling would bring forward.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.core.ops.len() > 0 || self.core.work.len() > 0 || self.has_gathered()
    }

    /// Whether requests wait for company that a poll would send.
    #[inline]
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        !self.core.outboxes.is_empty()
    }

    /// Whether an operation is complete (or failed).
    #[inline]
    #[must_use]
    pub fn is_done(&self, op: OpHandle) -> bool {
        self.core.ops.get(op).is_none()
    }

    /// Orders what comes after it behind what came before it, per destination. Returns at once.
    pub fn fence(&mut self) {
        self.core.epoch = self.core.epoch.wrapping_add(1);
    }

    /// Starts to make everything issued so far delivered; then [`Endpoint::is_quiet`] becomes true by polling.
    /// Call it again while waiting: it goes on where buffers ran out.
    /// Costs nothing when there is nothing to do.
    pub fn start_quiet(&mut self, issuer: Issuer) {
        self.core.lone.quiet();
        while self.core.bounce.plentiful()
            && let Some((pe, lane)) = self.core.unflushed.pop()
        {
            let Some(c) = self.core.connection(pe, lane) else { continue };
            c.listed = false;
            if c.dirty || (c.lazy && !c.unacked.is_empty()) {
                self.launch_flush(pe, lane, job::Issue { issuer, tag: None });
            }
        }
        self.send_outboxes();
    }

    /// Whether everything that `issuer` issued has been delivered (or failed).
    #[inline]
    #[must_use]
    pub fn is_quiet(&self, issuer: Issuer) -> bool {
        self.core.unflushed.is_empty() && self.core.issuers.get(usize::from(issuer)).is_none_or(|i| i.outstanding == 0)
    }

    /// The first error since it was last asked for, of operations without a tag.
    pub fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        self.core.issuers.get_mut(usize::from(issuer)).and_then(|i| i.error.take())
    }

    /// A PE that `issuer` still waits for, to name in an error.
    #[must_use]
    pub fn waits_for(&self, issuer: Issuer) -> Option<Pe> {
        self.core.ops.ids().filter_map(|id| self.core.ops.get(id)).find(|o| o.issue.issuer == issuer).map(|o| o.pe)
    }

    /// The next finished operation that had a tag.
    #[inline]
    pub fn next_finished(&mut self) -> Option<Finished> {
        self.core.finished.pop()
    }

    /// Tells the time in whole seconds of any clock that only goes forward; fails operations that are too old, and tries
    /// rails that have failed.
    ///
    /// Only seconds in which it is called count: what could not complete because nobody polled is not late.
    pub fn tick(&mut self, now_s: u32) {
        if now_s == self.core.last_tick {
            return;
        }
        self.core.last_tick = now_s;
        self.core.now = self.core.now.wrapping_add(1);
        let now = self.core.now;
        let limit = self.core.policy.timeout_s;
        let ops = &self.core.ops;
        let old: Vec<_> =
            ops.ids().filter(|&id| ops.get(id).is_some_and(|o| u64::from(now.wrapping_sub(o.since)) > limit)).collect();
        for id in old {
            self.core.expire(id);
        }
        if self.core.fails_over() {
            self.renew_connections();
            self.look_after_lanes();
        }
        self.give_signs_of_life();
    }
}
