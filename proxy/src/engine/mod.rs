//! The engine: takes requests from channels, drives the proxy endpoint, and runs the target agent.
//!
//! One [`Engine::poll`] is one round: a bounded number of requests from each channel, then the rails, then answers to
//! peers, then reports of completions to waiting threads. A round never blocks and never allocates once warm.
//!
//! `round` implements the round. `memory` keeps the memory, and the means of access to it.

mod memory;
mod round;

use std::cell::UnsafeCell;

use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::command::{Finished, Issuer};
use symrail_transport::wire::MAX_ORIGINS;
use symrail_transport::{Error, Pe};

use crate::agent::Agent;
use crate::channel::Consumer;
use crate::stage::Stage;
use round::{MAX_PENDING, Pending};

/// The issuer of host threads' operations. Context `i` issues as `HOST + i`; the default context is 0.
pub const HOST: Issuer = 0;
/// The issuer of staging's operations, behind as many contexts as have endpoints of their own.
pub(crate) const STAGE: Issuer = MAX_ORIGINS as Issuer;
/// Channel `i` issues as `FIRST_CHANNEL + i`.
const FIRST_CHANNEL: Issuer = STAGE + 1;
/// Context `i` of a session issues as `FIRST_CONTEXT + i`: a session has no channels.
pub(crate) const FIRST_CONTEXT: Issuer = STAGE + 1;

/// Drives one PE's proxy endpoint. One thread at a time owns it: the proxy thread, or a host thread that waits.
pub struct Engine {
    endpoint: Endpoint,
    agent: Agent,
    /// Staging, for memory that rails cannot access.
    stage: Option<Box<Stage>>,
    channels: Vec<Consumer>,
    pending: slab::Slab<Pending>,
    /// One word per pending request, for values that travel in the reply. A rail writes to a word by the pointer that
    /// it got, so the engine forms no reference to the word meanwhile.
    scratch: Box<[UnsafeCell<u64>]>,
    host_finished: Vec<Finished>,
    device_error: Option<Error>,
    rounds: u64,
    idle_rounds: u32,
    /// Whether devices wait for answers to requests of this round.
    awaited: bool,
    /// PEs that the endpoint has forgotten, and that staging has not.
    forgotten: Vec<Pe>,
}

impl Engine {
    /// An engine over a proxy endpoint.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        let agent = Agent::new(endpoint.n_pes(), endpoint.caps().len());
        Engine {
            endpoint,
            agent,
            stage: None,
            channels: Vec::new(),
            pending: slab::Slab::with_capacity(MAX_PENDING),
            scratch: (0..MAX_PENDING).map(|_| UnsafeCell::new(0)).collect(),
            host_finished: Vec::with_capacity(64),
            device_error: None,
            rounds: 0,
            idle_rounds: 0,
            awaited: false,
            forgotten: Vec::new(),
        }
    }

    /// The endpoint, for queries. [`Engine::submit`] starts operations.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// The addresses of the endpoint's rails.
    #[must_use]
    pub fn addresses(&self) -> Vec<Vec<u8>> {
        self.endpoint.addresses()
    }

    /// The target agent's counters: requests applied and refused.
    #[must_use]
    pub fn agent_counts(&self) -> (u64, u64) {
        self.agent.counts()
    }

    /// Adds a channel.
    pub fn add_channel(&mut self, consumer: Consumer) {
        self.channels.push(consumer);
    }

    /// The consumers of the channels.
    #[must_use]
    pub fn channels(&self) -> &[Consumer] {
        &self.channels
    }

    /// Orders later operations behind earlier ones, per destination. Returns at once.
    pub fn fence(&mut self) {
        self.endpoint.fence();
        if let Some(stage) = &mut self.stage {
            stage.fence();
        }
    }

    /// As [`Endpoint::start_quiet`].
    pub fn start_quiet(&mut self, issuer: Issuer) {
        self.endpoint.start_quiet(issuer);
    }

    /// Whether all operations of `issuer` have been delivered or have failed.
    #[must_use]
    pub fn is_quiet(&self, issuer: Issuer) -> bool {
        self.endpoint.is_quiet(issuer) && self.stage.as_ref().is_none_or(|stage| stage.is_quiet(issuer))
    }

    /// The first error of operations without a tag since the last call.
    pub fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        let staged = self.stage.as_mut().and_then(|stage| stage.take_error(issuer));
        self.endpoint.take_error(issuer).or(staged)
    }

    /// Sets the time in whole seconds; fails operations that are too old. See [`Endpoint::tick`].
    pub fn tick(&mut self, now_s: u32) {
        // A source without an acknowledgement for two seconds would suspect the lane.
        self.agent.answer(&mut self.endpoint, true);
        self.endpoint.tick(now_s);
        if let Some(stage) = &mut self.stage {
            stage.tick(now_s);
        }
        while let Some(pe) = self.endpoint.next_forgotten() {
            self.agent.forget(pe);
            self.forgotten.push(pe);
        }
        let stage = &mut self.stage;
        self.forgotten.retain(|&pe| stage.as_mut().is_some_and(|stage| !stage.forget_pe(pe)));
    }

    /// As [`Endpoint::know_only_connected`], of PEs that have no endpoints but their engines'.
    pub fn know_only_connected(&mut self) {
        self.endpoint.know_only_connected();
        self.agent.know_only_proxies();
    }

    /// The first failure of a device's request since the last call.
    pub fn take_device_error(&mut self) -> Option<Error> {
        self.device_error.take()
    }

    /// The ended operations of host threads that had a tag.
    pub fn host_finished(&mut self) -> &mut Vec<Finished> {
        &mut self.host_finished
    }

    /// Drops the end of a host thread's operation: the thread will not take it.
    pub fn abandon(&mut self, issuer: Issuer, tag: u64) {
        if Finished::take(&mut self.host_finished, issuer, tag).is_none() {
            self.endpoint.abandon(issuer, tag);
        }
    }

    /// The number of rounds so far.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Prepares to sleep. Returns `false` when there is work. [`Engine::wake`] ends the preparation in either case.
    pub fn prepare_sleep(&mut self) -> bool {
        self.agent.answer(&mut self.endpoint, true);
        let mut quiet = !self.agent.has_pending_replies() && self.stage.as_ref().is_none_or(|stage| !stage.is_busy());
        for channel in &mut self.channels {
            quiet &= channel.prepare_sleep();
        }
        quiet && self.endpoint.arm()
    }

    /// Ends the preparation of [`Engine::prepare_sleep`].
    pub fn wake(&mut self) {
        self.channels.iter_mut().for_each(Consumer::wake);
    }
}
