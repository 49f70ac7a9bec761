//! The protocol of an operation: the form in which it travels, and how its work requests and messages are posted.
//!
//! [`Protocols::select`] decides both once, while [`Lanes::place`](super::lanes::Lanes::place) looks for the lane. All
//! later steps follow the result: the check of order behind a fence, `launch`, `message` and the work requests.
//! [`protocol_table`](super::protocol_table) lists what `place` returns (`symrail info --protocols`).

use super::command::{Command, Fetch, Priority, Source};
use super::profile::Role;
use super::software;
use crate::rail::{Order, RailCaps};
use crate::wire::{MOST_READ, Request};

/// Data of at most this many bytes travels in a message, if a message has room for it. Beyond, the copy costs more than
/// a post.
const IN_MESSAGE_MAX: u64 = 4096;
/// Beyond this many bytes acknowledgements of writes cost little. A flush behind all writes of a window costs more: 7 %
/// with 1 MiB over `tcp;ofi_rxm`.
const FLUSHED_MAX: u64 = 64 << 10;

/// Whether the caller needs the completion of an operation itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completion {
    /// No: a later quiet completes it.
    Unsignaled,
    /// Together with other operations that the caller issues now. It may travel with them.
    Batched,
    /// Yes, of this operation alone.
    Signaled,
}

/// The form of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A write that the rail copies. It has no completion and no record; the next quiet flushes it.
    Inject,
    /// A request that carries the data to the target agent, without a record; the next quiet asks for its
    /// acknowledgement.
    UnrecordedMessage,
    /// A request to the target agent, which carries the data of a put.
    Message,
    /// A request to the target agent, which answers with the bytes.
    AgentRead,
    /// Writes that complete when they are delivered.
    Write,
    /// Writes that complete when they have left (`FI_TRANSMIT_COMPLETE`); the next quiet flushes them.
    TransmittedWrite,
    /// Reads.
    Read,
    /// Writes that complete when they are delivered, and behind them on the lane a request with the signal.
    WriteMessage,
    /// Writes that complete when they have left, and behind them on the lane a request with the signal, whose
    /// acknowledgement covers them.
    TransmittedWriteMessage,
    /// Writes, and behind them on the lane the signal as an AMO of the provider.
    WriteAmo,
    /// Writes, and the signal when they are delivered.
    WriteThenSignal,
    /// An AMO of the provider.
    NativeAmo,
}

/// The first post of an operation, by which rails keep it behind earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstPost {
    Message,
    Write,
    /// A read, or an AMO of the provider.
    Other,
}

impl Form {
    #[inline(always)]
    pub fn first_post(self) -> FirstPost {
        match self {
            Form::UnrecordedMessage | Form::Message | Form::AgentRead => FirstPost::Message,
            Form::Read | Form::NativeAmo => FirstPost::Other,
            Form::Inject
            | Form::Write
            | Form::TransmittedWrite
            | Form::WriteMessage
            | Form::TransmittedWriteMessage
            | Form::WriteAmo
            | Form::WriteThenSignal => FirstPost::Write,
        }
    }
}

/// Whether a message waits for others in the connection's outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gather {
    No,
    /// If it follows closely behind another small operation.
    IfClose,
    Yes,
}

/// How the work requests and messages of an operation are posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PostFlags {
    /// Its message asks for the acknowledgement. If not, the next quiet does.
    pub acknowledge: bool,
    /// Whether its message waits for others.
    pub gather: Gather,
    /// Its writes or reads may wait to be coalesced with others.
    pub coalesce: bool,
    /// The doorbell may wait for the next poll.
    pub defer_doorbell: bool,
    /// Its data is split over all lanes.
    pub stripe: bool,
    /// The priority of its data's pieces, if it travels in such.
    pub segmented: Option<Priority>,
}

impl PostFlags {
    /// Everything is posted at once, and messages ask for their acknowledgement.
    pub const AT_ONCE: PostFlags = PostFlags {
        acknowledge: true,
        gather: Gather::No,
        coalesce: false,
        defer_doorbell: false,
        stripe: false,
        segmented: None,
    };
}

/// The form of an operation, and how it is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Protocol {
    pub form: Form,
    pub flags: PostFlags,
}

/// What may travel without a record on a lane now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unrecorded {
    Nothing,
    Messages,
    MessagesAndWrites,
}

/// The state of the way to the target of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub lane: usize,
    /// A fence keeps the operations to this target on the lane.
    pub fenced: bool,
    /// The target has no other lane.
    pub single: bool,
    /// The lane's messages travel behind its writes, unless the rail reorders them.
    pub straight: bool,
    /// The data is split over all lanes.
    pub striped: bool,
    /// The priority of the data's pieces, if it travels in such.
    pub segmented: Option<Priority>,
    pub unrecorded: Unrecorded,
}

/// What selection needs to know of a rail.
#[derive(Debug)]
struct Rail {
    /// The target's CPU moves the bytes.
    software: bool,
    order: Order,
    /// The largest put, in bytes, that is cheapest as a message; 0 if none is.
    cheap_message: u64,
    /// The largest write, in bytes, that the rail copies.
    inject: u64,
    /// The largest put or get, in bytes, that may be coalesced; 0 if none may.
    coalesced: u64,
    polls_post: bool,
}

/// The protocols of an endpoint.
#[derive(Debug)]
pub(super) struct Protocols {
    rails: Box<[Rail]>,
    role: Role,
    /// The provider performs AMOs and signals.
    native_amo: bool,
    /// The most bytes of data in a message.
    in_message: u64,
}

impl Protocols {
    /// The protocols of an endpoint over rails with these capabilities, whose messages have `max_message` bytes.
    pub fn new(role: Role, native_amo: bool, caps: &[RailCaps], max_message: usize) -> Protocols {
        let in_message = IN_MESSAGE_MAX.min(max_message.saturating_sub(Request::alone(0)) as u64);
        let rail = |caps: &RailCaps| Rail {
            software: caps.software,
            order: caps.order,
            cheap_message: software::cheap_message(caps, in_message),
            inject: if caps.order.write_after_write { caps.inject as u64 } else { 0 },
            coalesced: software::coalesced_max(caps),
            polls_post: caps.polls_post,
        };
        Protocols { rails: caps.iter().map(rail).collect(), role, native_amo, in_message }
    }

    /// Whether an operation is an AMO of the provider, which has a lane of its own.
    #[inline(always)]
    pub fn is_native(&self, command: &Command) -> bool {
        self.native_amo && matches!(command, Command::Amo { .. })
    }

    /// The largest write, in bytes, that a lane's rail copies.
    #[inline]
    pub fn inject_max(&self, lane: usize) -> u64 {
        self.rails[lane].inject
    }

    /// The largest put, in bytes, that is cheapest as a message on a lane; 0 if none is.
    #[inline(always)]
    pub fn cheap_message(&self, lane: usize) -> u64 {
        self.rails[lane].cheap_message
    }

    /// The protocol of an operation over a path.
    #[inline(always)]
    pub fn select(&self, command: &Command, completion: Completion, path: Path) -> Protocol {
        if path.segmented.is_some() {
            let form = match command {
                Command::Get { .. } => Form::Read,
                // The pieces take any lane.
                Command::PutSignal { .. } => Form::WriteThenSignal,
                _ => Form::Write,
            };
            return Protocol { form, flags: PostFlags { segmented: path.segmented, ..PostFlags::AT_ONCE } };
        }
        let rail = &self.rails[path.lane];
        // An operation that a fence keeps on a lane travels with those before it.
        let completion = match completion {
            Completion::Signaled if path.fenced => Completion::Batched,
            other => other,
        };
        let acknowledge = completion != Completion::Unsignaled;
        match *command {
            Command::Put { source, len, .. } => match self.put(rail, len, completion, path) {
                Form::UnrecordedMessage => {
                    // A quiet completes a put from stable memory, so the put may wait. One whose source is copied is
                    // sent at once, since a peer may wait for it, unless it follows closely behind another.
                    let gather = if matches!(source, Source::Stable(_)) { Gather::Yes } else { Gather::IfClose };
                    let flags = PostFlags { acknowledge: false, gather, ..PostFlags::AT_ONCE };
                    Protocol { form: Form::UnrecordedMessage, flags }
                }
                Form::Message => self.message(rail, Form::Message, acknowledge),
                form => self.data(rail, form, len, completion, path),
            },
            Command::Get { len, .. } => {
                let by_agent = completion != Completion::Signaled && len <= MOST_READ && self.is_message(rail, len);
                if by_agent {
                    return self.message(rail, Form::AgentRead, true);
                }
                self.data(rail, Form::Read, len, completion, path)
            }
            Command::PutSignal { len, .. } if !self.native_amo && len <= self.in_message => {
                self.message(rail, Form::Message, acknowledge)
            }
            Command::PutSignal { len, .. } => {
                let signal = self.message(rail, self.put_signal(rail, len, path), acknowledge);
                Protocol { flags: PostFlags { stripe: path.striped, ..signal.flags }, ..signal }
            }
            Command::Amo { .. } if self.native_amo => Protocol { form: Form::NativeAmo, flags: PostFlags::AT_ONCE },
            Command::Amo { fetch, .. } => self.message(rail, Form::Message, acknowledge || fetch != Fetch::No),
            Command::AgentRequest(_) => self.message(rail, Form::Message, true),
        }
    }

    /// The most bytes of data that travel in a message with their signal.
    pub fn in_message(&self) -> u64 {
        self.in_message
    }

    /// Whether the target's agent answers a read of a word that is submitted as [`Completion::Batched`], on any lane.
    pub fn agent_reads_words(&self) -> bool {
        self.rails.iter().all(|rail| self.is_message(rail, 8))
    }

    /// Whether a put of the engine of `len` bytes is cheapest as a message, which travels with others and is
    /// acknowledged with them.
    #[inline(always)]
    fn is_message(&self, rail: &Rail, len: u64) -> bool {
        self.role == Role::Proxy && !self.native_amo && len <= rail.cheap_message
    }

    #[inline(always)]
    fn put(&self, rail: &Rail, len: u64, completion: Completion, path: Path) -> Form {
        let flushes = rail.order.send_after_write && rail.order.send_after_send;
        if flushes && path.unrecorded != Unrecorded::Nothing {
            if len <= rail.cheap_message {
                return Form::UnrecordedMessage;
            }
            if path.unrecorded == Unrecorded::MessagesAndWrites && len <= rail.inject {
                return Form::Inject;
            }
        }
        match completion {
            Completion::Unsignaled | Completion::Batched if self.is_message(rail, len) => Form::Message,
            Completion::Unsignaled if self.is_transmitted(rail, len, path) => Form::TransmittedWrite,
            _ => Form::Write,
        }
    }

    /// Whether the writes of `len` bytes complete when they have left, because a request behind them confirms their
    /// delivery. Where the target's CPU would have to acknowledge each write, that is cheaper.
    #[inline(always)]
    fn is_transmitted(&self, rail: &Rail, len: u64, path: Path) -> bool {
        len <= FLUSHED_MAX
            && self.role == Role::Host
            && path.single
            && rail.software
            && rail.order.send_after_write
            && rail.order.send_after_send
    }

    /// The form of a put-signal whose data does not travel with the signal.
    fn put_signal(&self, rail: &Rail, len: u64, path: Path) -> Form {
        if self.native_amo {
            let behind = path.lane == super::abilities::AMO_LANE && !path.striped && rail.order.amo_after_write;
            return if behind { Form::WriteAmo } else { Form::WriteThenSignal };
        }
        if path.striped || !path.straight || !rail.order.send_after_write {
            return Form::WriteThenSignal;
        }
        if self.is_transmitted(rail, len, path) { Form::TransmittedWriteMessage } else { Form::WriteMessage }
    }

    /// The protocol of an operation that is a message, or ends with one.
    #[inline(always)]
    fn message(&self, rail: &Rail, form: Form, acknowledge: bool) -> Protocol {
        let gather = match self.role {
            _ if !rail.software => Gather::No,
            // The engine polls soon, when it has read all requests of its channels.
            Role::Proxy => Gather::Yes,
            Role::Host if acknowledge => Gather::No,
            Role::Host => Gather::IfClose,
        };
        Protocol { form, flags: PostFlags { acknowledge, gather, ..PostFlags::AT_ONCE } }
    }

    /// The flags of a request that is no operation of a caller, and that asks for its acknowledgement.
    pub fn request_flags(&self, lane: usize) -> PostFlags {
        self.message(&self.rails[lane], Form::Message, true).flags
    }

    /// The protocol of an operation that is writes or reads only.
    #[inline(always)]
    fn data(&self, rail: &Rail, form: Form, len: u64, completion: Completion, path: Path) -> Protocol {
        // At a host endpoint an operation that waits for others may wait for long. The engine polls soon.
        let may_wait = match completion {
            Completion::Unsignaled => true,
            Completion::Batched => self.role == Role::Proxy,
            Completion::Signaled => false,
        };
        let flags = PostFlags {
            coalesce: may_wait && len <= rail.coalesced,
            defer_doorbell: may_wait && self.role == Role::Proxy && rail.polls_post,
            stripe: path.striped,
            ..PostFlags::AT_ONCE
        };
        Protocol { form, flags }
    }
}
