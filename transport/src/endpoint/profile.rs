//! The profile of an endpoint: its PE, its role, its rails, and the protocols of operations over these.
//!
//! The profile is constant once the endpoint is open, except for the tokens of endpoints that are connected later.

use super::abilities::Abilities;
use super::command::{Command, OpHandle};
use super::protocol::Protocols;
use crate::amo::{AmoOp, AmoType};
use crate::env::{RailPolicy, Settings};
use crate::error::Result;
use crate::pe::Pe;
use crate::rail::{Dest, RailCaps};
use crate::sparse::Sparse;
use crate::wire::{FROM_HOST, Keepalive, Origin, Request, RequestKind, Token};

/// The role of one of a PE's endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Driven by host threads, which only ever poll. It starts operations and is never a target.
    Host,
    /// Driven by the engine, which may sleep on a wait object. It starts operations and is the target of all PEs'
    /// operations.
    Proxy,
}

/// The behaviour of an endpoint, from [`Settings`].
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// How operations are spread over lanes.
    pub rails: RailPolicy,
    /// Operations of at least this many bytes are striped under [`RailPolicy::Stripe`].
    pub stripe_threshold: u64,
    /// Whether the provider performs AMOs and signals; the same on all PEs.
    pub native_amo: bool,
    /// Age in seconds at which operations fail.
    pub timeout_s: u64,
}

impl Policy {
    /// The policy of the settings; `native_amo` is [`Choice::native_amo`](crate::backend::Choice::native_amo).
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

/// The profile of an endpoint.
pub(super) struct Profile {
    me: Pe,
    n_pes: u32,
    role: Role,
    origin: Origin,
    /// The address that peers must learn before the first request. See
    /// [`Endpoint::introduce_as`](super::Endpoint::introduce_as).
    introduction: Option<Box<[u8]>>,
    policy: Policy,
    /// The token that incoming messages must have, and the tokens of destinations.
    token: Token,
    tokens: Sparse<Token>,
    /// The PE numbers that destinations have for this PE, each XOR this PE's number. `None` while they are all its own,
    /// as they always are in a job.
    sources: Option<Box<Sparse<Pe>>>,
    caps: Vec<RailCaps>,
    /// The AMOs that the provider performs.
    abilities: Abilities,
    /// The largest write or read that all rails accept, in bytes. Another rail may have to repeat it.
    max_rma: u64,
    /// Bytes of the largest message.
    max_message: usize,
    /// The forms of operations.
    protocols: Protocols,
}

impl Profile {
    /// The profile of an endpoint of PE `me` over rails with these capabilities.
    ///
    /// # Errors
    /// The error of the source of random numbers.
    pub fn new(
        role: Role,
        (me, n_pes): (Pe, u32),
        policy: Policy,
        caps: Vec<RailCaps>,
        abilities: Abilities,
        max_message: usize,
    ) -> Result<Profile> {
        Ok(Profile {
            me,
            n_pes,
            role,
            origin: if role == Role::Host { FROM_HOST } else { 0 },
            introduction: None,
            policy,
            token: Token::random()?,
            tokens: Sparse::default(),
            sources: None,
            max_rma: caps.iter().map(|c| c.max_rma as u64).min().unwrap_or(0),
            protocols: Protocols::new(role, policy.native_amo, &caps, max_message),
            caps,
            abilities,
            max_message,
        })
    }

    #[inline]
    pub fn me(&self) -> Pe {
        self.me
    }

    #[inline]
    pub fn n_pes(&self) -> u32 {
        self.n_pes
    }

    #[inline]
    pub fn role(&self) -> Role {
        self.role
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    #[inline]
    pub fn native_amo(&self) -> bool {
        self.policy.native_amo
    }

    #[inline]
    pub fn timeout_s(&self) -> u64 {
        self.policy.timeout_s
    }

    /// The number of rails.
    #[inline]
    pub fn rails(&self) -> usize {
        self.caps.len()
    }

    #[inline]
    pub fn caps(&self, lane: usize) -> &RailCaps {
        &self.caps[lane]
    }

    pub fn all_caps(&self) -> &[RailCaps] {
        &self.caps
    }

    #[inline]
    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    #[inline]
    pub fn max_rma(&self) -> u64 {
        self.max_rma
    }

    /// The most bytes that travel as the payload of one request.
    #[inline]
    pub fn max_payload(&self) -> usize {
        self.max_message - Request::alone(0)
    }
}

/// The addressing of endpoints.
impl Profile {
    /// The token of incoming messages.
    #[inline]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Sets the token of incoming messages.
    pub fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    /// The token of messages to a destination.
    #[inline]
    pub fn token_of(&self, dest: Dest) -> Token {
        *self.tokens.get(dest)
    }

    pub fn learn_token(&mut self, dest: Dest, token: Token) {
        *self.tokens.enter(dest) = token;
    }

    /// The PE number that a destination has for this PE: messages to the destination name this as their source.
    #[inline(always)]
    pub fn source_at(&self, dest: Dest) -> Pe {
        self.sources.as_ref().map_or(self.me, |sources| self.me ^ *sources.get(dest))
    }

    /// Notes the PE number that a destination has for this PE.
    pub fn learn_source(&mut self, dest: Dest, source: Pe) {
        if source != self.source_at(dest) {
            *self.sources.get_or_insert_default().enter(dest) = source ^ self.me;
        }
    }

    /// Forgets what is known of a destination.
    pub fn forget(&mut self, dest: Dest) {
        self.tokens.forget(dest);
        if let Some(sources) = &mut self.sources {
            sources.forget(dest);
        }
    }

    /// The destination by which a rail answers an endpoint of a PE.
    pub fn answer_to(&self, pe: Pe, origin: Origin) -> Dest {
        Dest::from(origin) * self.n_pes + pe
    }

    /// The address that peers must learn before the first request.
    #[inline]
    pub fn introduction(&self) -> Option<&[u8]> {
        self.introduction.as_deref()
    }

    /// Makes this an additional host endpoint of its PE, which introduces itself with this address.
    pub fn introduce_as(&mut self, origin: Origin, address: Option<Vec<u8>>) {
        (self.origin, self.introduction) = (origin, address.map(Vec::into_boxed_slice));
    }

    /// A keepalive of this endpoint to a destination.
    pub fn keepalive(&self, dest: Dest) -> Keepalive {
        Keepalive { origin: self.origin, source: self.source_at(dest) }
    }

    /// A request of this endpoint that asks for no acknowledgement, without payload, not numbered yet. Its source is this
    /// PE's own number until it is sent ([`Profile::source_at`]).
    #[inline(always)]
    pub fn request(&self, kind: RequestKind, op: AmoOp, ty: AmoType, words: (u64, u64, u64), id: OpHandle) -> Request {
        let (offset, operand, second) = words;
        let origin = self.origin;
        let (source, fetch, urgent, lane) = (self.me, false, false, 0);
        let (sequence, payload, acknowledged) = (0, 0, 0);
        #[rustfmt::skip]
        let request = Request {
            kind, op, ty, origin, fetch, urgent, lane, source, sequence, payload, acknowledged, offset, operand, second, id,
        };
        request
    }
}

/// What the form of operations depends on.
impl Profile {
    /// The forms of operations.
    #[inline(always)]
    pub fn protocols(&self) -> &Protocols {
        &self.protocols
    }

    /// Whether an operation needs the one lane of its kind. A provider's AMOs have a lane of their own. AMOs and
    /// signals that a target agent performs stay in order, as they do where a PE has one lane for them.
    #[inline(always)]
    pub fn needs_one_lane(&self, command: &Command) -> bool {
        self.protocols.is_native(command) || matches!(command, Command::AgentRequest(ask) if ask.payload.is_empty())
    }

    /// Whether the policy splits a transfer of `len` bytes over all lanes.
    #[inline(always)]
    pub fn wants_stripes(&self, len: u64) -> bool {
        self.policy.rails == RailPolicy::Stripe && len >= self.policy.stripe_threshold && self.role == Role::Proxy
    }
}
