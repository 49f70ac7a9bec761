//! What an endpoint is: whose, of which kind, over which rails, and in which form these let operations travel.
//!
//! Nothing of it changes once the endpoint is open, but for the tokens of those that are connected later.

use super::abilities::Abilities;
use super::command::{Command, Fetch, OpHandle};
use super::issuers::Hurry;
use crate::amo::{AmoOp, AmoType};
use crate::env::{RailPolicy, Settings};
use crate::error::Result;
use crate::pe::Pe;
use crate::rail::{Dest, RailCaps};
use crate::sparse::Sparse;
use crate::wire::{FROM_HOST, Keepalive, MOST_READ, Origin, Request, RequestKind, Token};

/// Data of at most this many bytes travels in a message, if there are messages so large. Beyond, copying it costs more
/// than a post.
const IN_MESSAGE_MAX: u64 = 4096;
/// The most writes or reads that travel in one work request.
pub(super) const MOST_TOGETHER: usize = 4;

/// Which of a PE's endpoints this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Driven by host threads, which only ever poll; starts operations, is never a target.
    Host,
    /// Driven by the engine, which may sleep on a wait object; starts operations and is the target of everybody's.
    Proxy,
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
    /// The policy that the settings ask for; `native_amo` is
    /// [`Choice::native_amo`](crate::backend::Choice::native_amo).
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

/// An endpoint's description.
pub(super) struct Profile {
    me: Pe,
    n_pes: u32,
    role: Role,
    origin: Origin,
    /// The address that peers have to hear of before the first request: see
    /// [`Endpoint::introduce_as`](super::Endpoint::introduce_as).
    introduction: Option<Box<[u8]>>,
    policy: Policy,
    /// What has to be on all that comes in, and what destinations want to see.
    token: Token,
    tokens: Sparse<Token>,
    caps: Vec<RailCaps>,
    /// What the provider does itself of AMOs.
    abilities: Abilities,
    /// The largest write or read that every rail takes, in bytes: another may have to do it.
    max_rma: u64,
    /// Bytes of the largest message.
    max_message: usize,
    /// The most bytes of data that travel in a message.
    in_message: u64,
    /// By lane, the most bytes of a put that costs least as a request; 0 where none does.
    cheap_requests: Box<[u64]>,
}

impl Profile {
    /// That of an endpoint of PE `me` over rails with these capabilities.
    ///
    /// # Errors
    /// What the source of random numbers says.
    pub fn new(
        role: Role,
        (me, n_pes): (Pe, u32),
        policy: Policy,
        caps: Vec<RailCaps>,
        abilities: Abilities,
        max_message: usize,
    ) -> Result<Profile> {
        let in_message = IN_MESSAGE_MAX.min(max_message.saturating_sub(Request::alone(0)) as u64);
        Ok(Profile {
            me,
            n_pes,
            role,
            origin: if role == Role::Host { FROM_HOST } else { 0 },
            introduction: None,
            policy,
            token: Token::random()?,
            tokens: Sparse::default(),
            max_rma: caps.iter().map(|c| c.max_rma as u64).min().unwrap_or(0),
            in_message,
            cheap_requests: caps.iter().map(|caps| cheap_request(caps, in_message)).collect(),
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

    /// How many rails there are.
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

/// The most bytes of a put of which at least as many find room in a message as in a work request of several pieces; 0
/// where NICs move them.
fn cheap_request(caps: &RailCaps, in_message: u64) -> u64 {
    let most = (caps.max_send / caps.pieces.clamp(1, MOST_TOGETHER)) as u64;
    if caps.software { most.min(in_message) } else { 0 }
}

/// How endpoints name each other.
impl Profile {
    /// What incoming messages begin with.
    #[inline]
    pub fn token(&self) -> Token {
        self.token
    }

    /// What comes in is to begin with this from now on.
    pub fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    /// What messages to a destination begin with.
    #[inline]
    pub fn token_of(&self, dest: Dest) -> Token {
        *self.tokens.get(dest)
    }

    pub fn learn_token(&mut self, dest: Dest, token: Token) {
        *self.tokens.enter(dest) = token;
    }

    /// The destination under which a rail answers one of a PE's endpoints.
    pub fn answer_to(&self, pe: Pe, origin: Origin) -> Dest {
        Dest::from(origin) * self.n_pes + pe
    }

    /// What peers have to be told before the first request.
    #[inline]
    pub fn introduction(&self) -> Option<&[u8]> {
        self.introduction.as_deref()
    }

    /// It is one more host endpoint of its PE, which introduces itself by this address.
    pub fn introduce_as(&mut self, origin: Origin, address: Option<Vec<u8>>) {
        (self.origin, self.introduction) = (origin, address.map(Vec::into_boxed_slice));
    }

    /// A keepalive of this endpoint.
    pub fn keepalive(&self) -> Keepalive {
        Keepalive { origin: self.origin, source: self.me }
    }

    /// A request of this endpoint; not urgent, without payload, not numbered yet.
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

/// In which form operations travel.
impl Profile {
    /// Whether data travels in a message.
    #[inline]
    pub fn fits_message(&self, len: u64) -> bool {
        len <= self.in_message
    }

    /// Whether the data of an operation is copied into a message when it is launched.
    pub fn is_in_message(&self, lane: usize, command: &Command, hurry: Hurry) -> bool {
        match *command {
            Command::Put { len, .. } => hurry != Hurry::Alone && self.is_request(lane, len),
            Command::PutSignal { len, .. } => !self.policy.native_amo && self.fits_message(len),
            _ => false,
        }
    }

    /// Whether an operation can be a part of another one: a request for which nothing but its acknowledgement comes
    /// back.
    #[inline]
    pub fn joins(&self, lane: usize, command: &Command) -> bool {
        match *command {
            Command::Put { len, .. } => len > 0 && self.is_request(lane, len),
            Command::PutSignal { len, .. } => !self.policy.native_amo && self.fits_message(len),
            Command::Amo { fetch: Fetch::No, .. } => !self.policy.native_amo,
            _ => false,
        }
    }

    /// Whether a put that the engine starts is a request to the target agent, which travels with others and is
    /// acknowledged with them.
    #[inline]
    pub fn is_request(&self, lane: usize, len: u64) -> bool {
        self.role == Role::Proxy && !self.policy.native_amo && self.is_cheap_request(lane, len)
    }

    /// Whether a put costs least as a request.
    #[inline]
    pub fn is_cheap_request(&self, lane: usize, len: u64) -> bool {
        len <= self.cheap_requests[lane]
    }

    /// Whether the target's agent reads for a get: its answers to many such requests travel together.
    pub fn is_fetched(&self, lane: usize, len: u64) -> bool {
        len <= MOST_READ && self.is_request(lane, len)
    }

    /// Whether the provider performs an operation that is an AMO.
    pub fn is_native(&self, command: &Command) -> bool {
        self.policy.native_amo && matches!(command, Command::Amo { .. })
    }

    /// A provider's AMOs have a lane of their own choice. AMOs and signals that a target agent is asked for stay in
    /// order, as they do where a PE has one lane for them.
    pub fn needs_one_lane(&self, command: &Command) -> bool {
        self.is_native(command) || matches!(command, Command::AgentRequest(ask) if ask.payload.is_empty())
    }

    /// Whether the policy asks for all lanes to move so many bytes.
    pub fn wants_stripes(&self, len: u64) -> bool {
        self.policy.rails == RailPolicy::Stripe && len >= self.policy.stripe_threshold && self.role == Role::Proxy
    }
}
