//! Messages between an endpoint and the target agents of its peers.
//!
//! A message begins with the [`Token`] of the endpoint to which it is sent. One or more requests follow. A request is a
//! [`Request`] of [`Request::SIZE`] bytes, followed by its payload if it has one, padded to 8 bytes. Requests of one
//! *stream* (source endpoint, lane) carry consecutive sequence numbers. The target applies them in sequence, whichever
//! lane delivers them, and applies none twice. It answers with a [`Reply`], which acknowledges requests and returns
//! fetched values and failures. All numbers are little endian.
//!
//! So a source may send a request again, over any lane, until it is acknowledged. A reply contains its start
//! ([`Reply::after`]), so that the source detects the loss of an earlier reply. Then it continues to wait, sends the
//! request again, and gets from the target the value that was fetched the first time. The target forgets outcomes that
//! the source has ([`Request::acknowledged`]).
//!
//! A stream uses one lane, and requests of it from other lanes are dropped. Its source moves it by
//! [`RequestKind::Move`], which has no number of its own and begins the stream's next generation. The answer has the
//! same [`Reply::generation`]: all requests up to [`Reply::applied`] have been applied, and no later request that was
//! sent before the move will be. So the source knows which requests to send again.
//!
//! A message is untrusted input. Decoding checks every field that it turns into a Rust value, and users of offsets and
//! lengths check them against segments.

use crate::amo::{AmoOp, AmoType};
use crate::pe::Pe;
pub use crate::token::Token;

/// Version of everything in this module, and of the data about memory that PEs exchange. PEs with different versions do
/// not connect.
pub const PROTOCOL_VERSION: u32 = 13;

/// The endpoint of a PE that sends a request: 0 is the proxy endpoint, 1 the host endpoint, others belong to contexts.
pub type Origin = u8;
/// The host endpoint.
pub const FROM_HOST: Origin = 1;
/// The first of the endpoints of contexts. Peers learn of these by [`RequestKind::Introduce`].
pub const FROM_CONTEXT: Origin = 2;
/// The maximum number of a PE's endpoints.
pub const MAX_ORIGINS: Origin = 64;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr, strum::VariantArray)]
#[repr(u8)]
pub enum RequestKind {
    /// An AMO on one word.
    Amo = 1,
    /// Stores the payload, then updates a signal word.
    PutSignal = 2,
    /// Does nothing. Its acknowledgement means that earlier writes on the lane are visible.
    Flush = 3,
    /// Stores the payload.
    Put = 4,
    /// Reads from the source's window, and stores the bytes. The payload is a [`Place`].
    Pull = 5,
    /// As [`RequestKind::Pull`], then updates a signal word.
    PullSignal = 6,
    /// Writes bytes of the target's memory to the source's window. The payload is a [`Place`].
    Push = 7,
    /// Moves the stream to the lane that delivers this request. Operand: the number of moves of the stream so far,
    /// including this one; sequence: the last request whose answer the source has.
    Move = 8,
    /// Reports that the source's end of the connection over `lane` is broken. This and the next two are handled by the
    /// endpoint, travel over other lanes, and have no number. Operand: the number of connections over that lane so far.
    Broken = 9,
    /// Reports that the source has renewed its end; the answer is [`RequestKind::Accept`]. Operand: as above, including
    /// this connection; second: the result of [`Rail::renew`](crate::rail::Rail::renew).
    Offer = 10,
    /// Accepts an offer. Operand and second are as there.
    Accept = 11,
    /// Sets the address for answers, which is the payload: the first request of an endpoint that the target does not
    /// know.
    Introduce = 12,
    /// Asks for a [`RequestKind::Pong`] with the same lane, operand and second, over the lane that delivers this. This
    /// and the next are handled by the endpoint, and have no number. Operand: the number of consecutive pings of the
    /// source, each sent on the answer to the one before, including this one.
    Ping = 13,
    /// Answers a [`RequestKind::Ping`].
    Pong = 14,
    /// Reads. Operand: the number of bytes, which the outcome carries.
    Get = 15,
}

/// The place of a request's bytes in the source's window: the payload of [`RequestKind::Pull`],
/// [`RequestKind::PullSignal`] and [`RequestKind::Push`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Symmetric offset in the window's segment.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Place {
    /// Encoded size in bytes.
    pub const SIZE: usize = 16;

    /// Encodes the place.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        b[0..8].copy_from_slice(&self.offset.to_le_bytes());
        b[8..16].copy_from_slice(&self.len.to_le_bytes());
        b
    }

    /// Decodes a payload that is a place and nothing else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Place> {
        (bytes.len() == Self::SIZE).then(|| Place { offset: u64_at(bytes, 0), len: u64_at(bytes, 8) })
    }
}

/// Most bytes that a request reads. An answer holds seven times as many, whereas a read of several pieces has four.
pub const MOST_READ: u64 = 512;

/// A request to a target agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The kind of the request.
    pub kind: RequestKind,
    /// The AMO (for signals: `Set` or `Add`).
    pub op: AmoOp,
    /// The word's type (signals are `U64`).
    pub ty: AmoType,
    /// The source's endpoint that sends the request.
    pub origin: Origin,
    /// Whether the source wants an outcome: the old value of an AMO, or the end of work that takes the target longer.
    pub fetch: bool,
    /// Whether the source waits for the acknowledgement. The target acknowledges other requests at leisure.
    pub urgent: bool,
    /// The lane that identifies the request's stream, together with `source` and `origin`, by the number of the target's
    /// rail; the request may travel on another. In a ping the number of the source's rail.
    pub lane: u8,
    /// The PE that sends the request.
    pub source: Pe,
    /// Number of the request in its stream, from 1, wrapping.
    pub sequence: u32,
    /// Bytes of payload behind the request.
    pub payload: u16,
    /// Low half of the sequence number up to which the source had replies when it made this request.
    pub acknowledged: u16,
    /// Symmetric offset of the word, or of the payload's destination.
    pub offset: u64,
    /// Operand or signal value.
    pub operand: u64,
    /// Comparand, or the symmetric offset of the signal word for requests that have both.
    pub second: u64,
    /// The source's own id of the operation, which is returned unchanged.
    pub id: u64,
}

impl Request {
    /// Encoded size in bytes.
    pub const SIZE: usize = 48;

    /// Encodes the request, as words: they cost a store each.
    #[inline(always)]
    #[must_use]
    pub fn encode(&self) -> [[u8; 8]; Self::SIZE / 8] {
        let what = self.op as u8 | (self.ty as u8) << 3 | u8::from(self.fetch) << 6 | u8::from(self.urgent) << 7;
        let kind = u32::from_le_bytes([self.kind as u8, what, self.origin, self.lane]);
        let head = u64::from(kind) | u64::from(self.source) << 32;
        let numbers = u64::from(self.sequence) | u64::from(self.payload) << 32 | u64::from(self.acknowledged) << 48;
        [
            head.to_le_bytes(),
            numbers.to_le_bytes(),
            self.offset.to_le_bytes(),
            self.operand.to_le_bytes(),
            self.second.to_le_bytes(),
            self.id.to_le_bytes(),
        ]
    }

    /// Makes an encoded request urgent.
    pub fn make_urgent(encoded: &mut [u8; Self::SIZE]) {
        encoded[1] |= 0x80;
    }

    /// The size in bytes of a message with one request and such a payload.
    #[must_use]
    pub const fn alone(payload: usize) -> usize {
        Token::SIZE + Self::SIZE + Self::padded(payload)
    }

    /// The size in bytes of a payload in a message.
    #[must_use]
    pub const fn padded(payload: usize) -> usize {
        payload.next_multiple_of(8)
    }

    /// Decodes the first request of a message, and returns it, its payload and the rest.
    ///
    /// # Errors
    /// A description of the fault for the log.
    pub fn decode(bytes: &[u8]) -> Result<(Request, &[u8], &[u8]), &'static str> {
        let (head, rest) = bytes.split_first_chunk::<{ Self::SIZE }>().ok_or("shorter than a request")?;
        let kind = RequestKind::from_repr(head[0]).ok_or("unknown kind of request")?;
        let op = AmoOp::from_repr(head[1] & 7).ok_or("unknown atomic operation")?;
        let ty = AmoType::from_repr(head[1] >> 3 & 7).ok_or("unknown atomic type")?;
        if head[2] >= MAX_ORIGINS {
            return Err("unknown endpoint");
        }
        let request = Request {
            kind,
            op,
            ty,
            origin: head[2],
            fetch: head[1] & 0x40 != 0,
            urgent: head[1] & 0x80 != 0,
            lane: head[3],
            source: u32_at(head, 4),
            sequence: u32_at(head, 8),
            payload: u16::from_le_bytes([head[12], head[13]]),
            acknowledged: u16::from_le_bytes([head[14], head[15]]),
            offset: u64_at(head, 16),
            operand: u64_at(head, 24),
            second: u64_at(head, 32),
            id: u64_at(head, 40),
        };
        let payload = rest.get(..usize::from(request.payload)).ok_or("payload shorter than announced")?;
        let next = rest.get(Self::padded(payload.len())..).ok_or("payload without its padding")?;
        Ok((request, payload, next))
    }
}

/// Why a target agent refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[repr(u32)]
pub enum Refusal {
    /// The request was applied.
    None = 0,
    /// The address range is not inside one segment.
    OutOfSegment = 1,
    /// The word is not aligned.
    Misaligned = 2,
    /// The operation is not defined on the type.
    Undefined = 3,
    /// The target could not reach its own memory, or the source's window.
    Failed = 4,
}

/// The outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The request's id.
    pub id: u64,
    /// The old value of a fetching AMO.
    pub value: u64,
    /// The reason of a refusal, if it was refused.
    pub refusal: Refusal,
    /// Length of the bytes behind it, which a get has read.
    pub len: u32,
}

impl Outcome {
    /// The outcome of a request that reads no bytes.
    #[must_use]
    pub const fn of(id: u64, value: u64, refusal: Refusal) -> Outcome {
        Outcome { id, value, refusal, len: 0 }
    }

    /// Its size in a message, with the bytes behind it.
    #[must_use]
    pub const fn size(&self) -> usize {
        Reply::OUTCOME + Request::padded(self.len as usize)
    }
}

/// The outcomes in a reply, each with the bytes behind it.
#[derive(Debug, Clone)]
pub struct Outcomes<'a> {
    left: u16,
    rest: &'a [u8],
}

impl<'a> Iterator for Outcomes<'a> {
    type Item = (Outcome, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (head, rest) = self.rest.split_first_chunk::<{ Reply::OUTCOME }>()?;
        let outcome = Outcome {
            id: u64_at(head, 0),
            value: u64_at(head, 8),
            refusal: Refusal::from_repr(u32_at(head, 16)).unwrap_or(Refusal::OutOfSegment),
            len: u32_at(head, 20),
        };
        let bytes = rest.get(..outcome.len as usize)?;
        self.rest = rest.get(Request::padded(bytes.len())..)?;
        Some((outcome, bytes))
    }
}

/// The answer of a target agent. It acknowledges the requests behind `after` up to `applied`, and contains the outcomes
/// that their source needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The PE that answers.
    pub source: Pe,
    /// The lane that identifies the stream of requests, as these name it.
    pub lane: u8,
    /// The reply has no outcomes of requests up to this one.
    pub after: u32,
    /// Sequence number of the last request that the reply acknowledges.
    pub applied: u32,
    /// The stream's generation after the last move that the target knows of; 0 when another reply with more follows.
    pub generation: u32,
    /// The number of outcomes that follow.
    pub outcomes: u16,
}

/// A message that shows that a connection is alive, and which endpoint uses it. A PE must know about each connection
/// that it is an end of, because it may have to send something over it
/// ([`RailCaps::half_open`](crate::rail::RailCaps::half_open)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// The source's endpoint that uses the connection.
    pub origin: Origin,
    /// The PE of that endpoint.
    pub source: Pe,
}

impl Keepalive {
    /// Its first byte, behind the token.
    pub const TAG: u8 = 0x81;
    /// Encoded size in bytes.
    pub const SIZE: usize = 8;

    /// Encodes the message without the token.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        (b[0], b[1]) = (Self::TAG, self.origin);
        b[4..8].copy_from_slice(&self.source.to_le_bytes());
        b
    }

    /// Decodes the message without the token.
    ///
    /// # Errors
    /// The reason why the bytes are no keepalive.
    pub fn decode(bytes: &[u8]) -> Result<Keepalive, &'static str> {
        match *bytes {
            [Self::TAG, origin, 0, 0, a, b, c, d] => Ok(Keepalive { origin, source: Pe::from_le_bytes([a, b, c, d]) }),
            _ => Err("a keepalive of another form"),
        }
    }
}

impl Reply {
    /// First byte of every reply, behind the token. Requests start with their kind, which is smaller.
    pub const TAG: u8 = 0x80;
    /// Encoded size of the head in bytes.
    pub const SIZE: usize = 24;
    /// Encoded size of one outcome in bytes, without the bytes behind it.
    pub const OUTCOME: usize = 24;

    /// Encodes the head.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        b[0] = Self::TAG;
        b[1] = self.lane;
        b[2..4].copy_from_slice(&self.outcomes.to_le_bytes());
        b[4..8].copy_from_slice(&self.source.to_le_bytes());
        b[8..12].copy_from_slice(&self.applied.to_le_bytes());
        b[12..16].copy_from_slice(&self.after.to_le_bytes());
        b[16..20].copy_from_slice(&self.generation.to_le_bytes());
        b
    }

    /// Encodes one outcome. Its bytes follow, padded like payloads.
    #[must_use]
    pub fn encode_outcome(outcome: &Outcome) -> [u8; Self::OUTCOME] {
        let mut b = [0; Self::OUTCOME];
        b[0..8].copy_from_slice(&outcome.id.to_le_bytes());
        b[8..16].copy_from_slice(&outcome.value.to_le_bytes());
        b[16..20].copy_from_slice(&(outcome.refusal as u32).to_le_bytes());
        b[20..24].copy_from_slice(&outcome.len.to_le_bytes());
        b
    }

    /// Decodes a reply and its outcomes.
    ///
    /// # Errors
    /// A description of the fault for the log.
    pub fn decode(bytes: &[u8]) -> Result<(Reply, Outcomes<'_>), &'static str> {
        let (head, rest) = bytes.split_first_chunk::<{ Self::SIZE }>().ok_or("shorter than a reply")?;
        if head[0] != Self::TAG {
            return Err("not a reply");
        }
        let reply = Reply {
            source: u32_at(head, 4),
            lane: head[1],
            applied: u32_at(head, 8),
            after: u32_at(head, 12),
            generation: u32_at(head, 16),
            outcomes: u16::from_le_bytes([head[2], head[3]]),
        };
        let outcomes = Outcomes { left: reply.outcomes, rest };
        let mut all = outcomes.clone();
        if all.by_ref().count() != usize::from(reply.outcomes) || !all.rest.is_empty() {
            return Err("outcomes do not match their count");
        }
        Ok((reply, outcomes))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use symrail_core::VariantArray;

    /// A PE of an older version refuses an unknown request only when one arrives, so a new request needs a new version.
    #[test]
    fn another_request_has_another_version_of_the_protocol() {
        assert_eq!((PROTOCOL_VERSION, RequestKind::VARIANTS.len()), (13, 15));
    }

    proptest! {
        #[test]
        fn requests_come_back_as_they_were(
            op in 0u8..7, ty in 0u8..6, kind in proptest::sample::select(RequestKind::VARIANTS), flags in 0u8..4, origin in 0..MAX_ORIGINS, lane: u8, source: u32,
            sequence: u32, acknowledged: u16,
            offset: u64, operand: u64, second: u64, id: u64, payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let request = Request {
                kind, op: AmoOp::from_repr(op).unwrap(), ty: AmoType::from_repr(ty).unwrap(),
                origin, fetch: flags & 1 != 0, urgent: flags & 2 != 0, lane, source, sequence,
                payload: payload.len() as u16, acknowledged, offset, operand, second, id,
            };
            let mut bytes = request.encode().as_flattened().to_vec();
            bytes.extend_from_slice(&payload);
            bytes.resize(Request::SIZE + Request::padded(payload.len()), 0);
            prop_assert_eq!(Request::decode(&bytes), Ok((request, &payload[..], &[][..])));
            let mut two = bytes.clone();
            two.extend_from_slice(&bytes);
            prop_assert_eq!(Request::decode(&two).map(|(_, _, next)| next), Ok(&bytes[..]));
            bytes.pop();
            prop_assert!(Request::decode(&bytes).is_err());
        }

        #[test]
        fn replies_come_back_as_they_were(source: u32, lane: u8, after: u32, applied: u32, generation: u32, values in proptest::collection::vec((any::<u64>(), any::<u64>(), 0u32..20), 0..5)) {
            let reply = Reply { source, lane, after, applied, generation, outcomes: values.len() as u16 };
            let outcomes: Vec<_> = values.iter().map(|&(id, value, len)| Outcome { id, value, refusal: Refusal::Misaligned, len }).collect();
            let mut bytes = reply.encode().to_vec();
            for o in &outcomes {
                bytes.extend_from_slice(&Reply::encode_outcome(o));
                bytes.extend((0..o.len).map(|at| at as u8));
                bytes.resize(bytes.len().next_multiple_of(8), 0);
            }
            let (got, got_outcomes) = Reply::decode(&bytes).unwrap();
            prop_assert_eq!(got, reply);
            let got: Vec<_> = got_outcomes.collect();
            prop_assert!(got.iter().all(|(o, read)| read.len() == o.len as usize && read.iter().zip(0u8..).all(|(byte, at)| *byte == at)));
            prop_assert_eq!(got.into_iter().map(|(o, _)| o).collect::<Vec<_>>(), outcomes);
            bytes.push(0);
            prop_assert!(Reply::decode(&bytes).is_err());
        }

        #[test]
        fn garbage_is_refused_or_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::decode(&bytes).map(|(r, p, _)| assert_eq!(usize::from(r.payload), p.len()));
            let _ = Reply::decode(&bytes).map(|(r, o)| assert_eq!(usize::from(r.outcomes), o.count()));
        }
    }
}
