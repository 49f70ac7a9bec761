//! The table of protocols: what an endpoint does with each operation, by size, completion and order, and why.
//!
//! [`Lanes::place`] makes it, over fresh lanes to a peer with as many rails, so that it cannot differ from what
//! operations do. Sizes between two limits form a row.

use serde::Serialize;

use super::Endpoint;
use super::command::{AgentRequest, Command, Fetch, Payload, Priority, Signal, Source};
use super::failover::Failover;
use super::lanes::Lanes;
use super::profile::{Profile, Role};
use super::protocol::{Completion, Form, Gather, PostFlags, Protocol};
use crate::amo::{AmoOp, AmoType};
use crate::pe::Pe;
use crate::wire::RequestKind;

/// The size up to which each size is tried. Beyond, borders are searched between powers of two.
const TRIED: u64 = 8 << 10;
/// The largest size that is tried.
const LARGEST: u64 = 1 << 40;

/// A row of the table of protocols: the form of some operations, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProtocolRow {
    /// `host` or `proxy`: the endpoint that starts the operation.
    pub endpoint: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// The smallest size in bytes.
    pub from: u64,
    /// The largest size in bytes; `None` where there is no limit.
    pub to: Option<u64>,
    /// Whether the caller needs the operation's own completion, as the endpoint predicts: `signaled`, `batched` (with
    /// others) or `unsignaled` (by a later quiet); `any`.
    pub completion: String,
    /// The work under way before it: `no fence`, or a fence behind an incomplete `write` or `message`; `any`.
    pub order: String,
    /// The provider of the endpoint's rails.
    pub provider: String,
    /// The form.
    pub form: &'static str,
    /// How it is posted, unless at once.
    pub posting: String,
    /// The reason.
    pub why: &'static str,
}

/// Sizes from one to another, and what is done with them; `None` if they wait.
type Range = (u64, u64, Option<Protocol>);

const COMPLETIONS: [(Completion, &str); 3] =
    [(Completion::Signaled, "signaled"), (Completion::Batched, "batched"), (Completion::Unsignaled, "unsignaled")];

/// The work under way before an operation.
#[derive(Debug, Clone, Copy)]
enum Before {
    Nothing,
    Write,
    Message,
}

const ORDERS: [(Before, &str); 3] =
    [(Before::Nothing, "no fence"), (Before::Write, "fence, write"), (Before::Message, "fence, message")];

type Make = fn(u64) -> Command;

/// The operations. Those without a size have one word, or a small payload.
const OPERATIONS: [(&str, Option<u64>, Make); 6] = [
    ("put", None, |len| Command::Put { dest: 0, source: Source::Stable(std::ptr::null()), len }),
    ("get", None, |len| Command::Get { source: 0, dest: std::ptr::null_mut(), len }),
    ("put_signal", None, |len| {
        let signal = Signal { offset: 0, value: 0, op: AmoOp::Set };
        Command::PutSignal { dest: 0, source: Source::Stable(std::ptr::null()), len, signal }
    }),
    ("amo", Some(8), |_| amo(Fetch::No)),
    ("fetching amo", Some(8), |_| amo(Fetch::Returned)),
    ("staged fragment", Some(16), |_| {
        let (kind, op, ty, payload) = (RequestKind::Pull, AmoOp::Fetch, AmoType::U64, Payload::Inline([0; 16], 16));
        Command::AgentRequest(AgentRequest { kind, op, ty, offset: 0, operand: 0, second: 0, payload })
    }),
];

fn amo(fetch: Fetch) -> Command {
    Command::Amo { offset: 0, ty: AmoType::U64, op: AmoOp::Add, operand: 0, compare: 0, fetch }
}

/// An endpoint, as far as its table depends on it.
struct Table<'a> {
    profile: &'a Profile,
    /// Only the first lane is used while it works.
    spare: bool,
    /// Lanes replace each other.
    failover: bool,
}

impl Endpoint {
    /// The table of protocols of this endpoint, for operations on peers with as many rails that all work.
    #[must_use]
    pub fn protocols(&self) -> Vec<ProtocolRow> {
        let profile = &self.core.profile;
        let failover = Failover::possible(profile.all_caps());
        let table = Table { profile, spare: self.core.lanes.in_use() == 1, failover };
        OPERATIONS.iter().flat_map(|operation| table.rows(operation)).collect()
    }
}

impl Table<'_> {
    /// The rows of an operation. Completions and orders of which all sizes do the same share rows.
    fn rows(&self, &(operation, size, make): &(&'static str, Option<u64>, Make)) -> Vec<ProtocolRow> {
        let by_order = |completion| {
            let all = ORDERS.map(|(before, name)| (name.to_owned(), self.ranges(size, make, completion, before)));
            merge(Vec::from(all))
        };
        let by_completion = COMPLETIONS.map(|(completion, name)| (name.to_owned(), by_order(completion)));
        let mut rows = Vec::new();
        for (completion, by_order) in merge(Vec::from(by_completion)) {
            for (order, ranges) in by_order {
                rows.extend(ranges.into_iter().map(|(from, to, protocol)| ProtocolRow {
                    endpoint: if self.profile.role() == Role::Host { "host" } else { "proxy" },
                    operation,
                    from,
                    to: (to < LARGEST).then_some(to),
                    completion: completion.clone(),
                    order: order.clone(),
                    provider: self.profile.caps(0).provider.clone(),
                    form: protocol.map_or("deferred", |protocol| name(protocol.form)),
                    posting: protocol.map_or_else(String::new, |protocol| posting(protocol.flags)),
                    why: why(protocol.map(|protocol| protocol.form), operation),
                }));
            }
        }
        rows
    }

    /// What is done with an operation of each size, in order of sizes.
    fn ranges(&self, size: Option<u64>, make: Make, completion: Completion, before: Before) -> Vec<Range> {
        // Placement changes nothing but the lane of the next large operation.
        let mut small = self.lanes(before);
        let mut of = |len: u64| {
            let mut large = (len > TRIED).then(|| self.lanes(before));
            let lanes = large.as_mut().unwrap_or(&mut small);
            lanes
                .place(self.peer(), &make(len), completion, Priority::Urgent, self.profile)
                .map(|(_, protocol)| protocol)
        };
        if let Some(size) = size {
            return vec![(size, size, of(size))];
        }
        let mut ranges: Vec<Range> = vec![(1, 1, of(1))];
        let mut next = 2;
        while let Some((_, to, same)) = ranges.last_mut()
            && next <= LARGEST
        {
            if of(next) == *same {
                *to = next;
            } else {
                // The border is between the last size of which the same is done and this one.
                let (mut low, mut high) = (*to, next);
                while high - low > 1 {
                    let middle = low.midpoint(high);
                    *(if of(middle) == *same { &mut low } else { &mut high }) = middle;
                }
                *to = low;
                let other = of(high);
                ranges.push((high, high, other));
                next = high;
            }
            next = if next < TRIED { next + 1 } else { (next + 1).next_power_of_two() };
        }
        ranges
    }

    fn peer(&self) -> Pe {
        (self.profile.me() + 1) % self.profile.n_pes()
    }

    /// Lanes to a peer that has as many rails, with work under way.
    fn lanes(&self, before: Before) -> Lanes {
        let (peer, rails) = (self.peer(), self.profile.rails());
        let mut lanes = Lanes::new(self.profile);
        if self.spare {
            lanes.keep_others_spare();
        }
        let pairs: Vec<(usize, usize)> = (0..rails).map(|rail| (rail, rail)).collect();
        lanes.connect(peer, &pairs, rails);
        for lane in 0..rails {
            if let Some(c) = lanes.get_mut(peer, lane).filter(|_| self.failover) {
                c.failover = Some(Box::new(Failover::new(lane)));
            }
        }
        if let Some(c) = lanes.get_mut(peer, 0) {
            match before {
                Before::Nothing => return lanes,
                Before::Write => c.writes = 1,
                Before::Message => _ = c.number(0, 0),
            }
        }
        lanes.fence();
        lanes
    }
}

/// Joins the names of equal entries; `any` names all.
fn merge<T: PartialEq>(entries: Vec<(String, T)>) -> Vec<(String, T)> {
    let mut merged: Vec<(String, T)> = Vec::new();
    for (name, entry) in entries {
        match merged.iter_mut().find(|(_, other)| *other == entry) {
            Some((names, _)) => *names += &format!(" | {name}"),
            None => merged.push((name, entry)),
        }
    }
    if let [(names, _)] = &mut merged[..] {
        *names = "any".into();
    }
    merged
}

fn name(form: Form) -> &'static str {
    match form {
        Form::Inject => "inject",
        Form::UnrecordedMessage => "message, unrecorded",
        Form::Message => "message",
        Form::AgentRead => "agent read",
        Form::Write => "write",
        Form::TransmittedWrite => "write, transmit-complete",
        Form::Read => "read",
        Form::WriteMessage => "write + message",
        Form::TransmittedWriteMessage => "write, transmit-complete + message",
        Form::WriteAmo => "write + native amo",
        Form::WriteThenSignal => "write, then signal",
        Form::NativeAmo => "native amo",
    }
}

fn posting(flags: PostFlags) -> String {
    let all = [
        (flags.gather == Gather::Yes, "gathered"),
        (flags.gather == Gather::IfClose, "gathered if close"),
        (flags.coalesce, "coalesced"),
        (flags.defer_doorbell, "doorbell deferred"),
        (flags.stripe, "striped"),
    ];
    all.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

fn why(form: Option<Form>, operation: &str) -> &'static str {
    match form {
        None => "the rail does not keep it behind the work before the fence, so it waits for that",
        Some(Form::Inject) => "the rail copies the bytes and reports no completion; the next quiet flushes",
        Some(Form::UnrecordedMessage) => "the target's CPU moves the bytes anyway; many share a message and an answer",
        Some(Form::Message) if operation == "put" => "many share a message and an acknowledgement",
        Some(Form::Message) if operation == "put_signal" => "data and signal fit into one message",
        Some(Form::Message) if operation == "staged fragment" => "no rail reaches the memory",
        Some(Form::Message) => "target agents perform AMOs (SYMRAIL_AMO_PATH)",
        Some(Form::AgentRead) => "many share a message and an answer",
        Some(Form::Write) => "no copy; the completion confirms the delivery",
        Some(Form::TransmittedWrite) => "one flush confirms all writes of the lane",
        Some(Form::Read) => "no copy; the completion brings the bytes",
        Some(Form::WriteMessage) => "the rail keeps the signal's message behind the data",
        Some(Form::TransmittedWriteMessage) => "the signal's acknowledgement, behind the data, confirms both",
        Some(Form::WriteAmo) => "the rail keeps the signal's AMO behind the data",
        Some(Form::WriteThenSignal) => "the rail does not keep the signal behind the data: lanes or reordering",
        Some(Form::NativeAmo) => "the provider performs AMOs (SYMRAIL_AMO_PATH)",
    }
}
