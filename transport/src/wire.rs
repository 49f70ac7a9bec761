//! Messages between an endpoint and the target agents of its peers.
//!
//! A message begins with the [`Token`] of the endpoint that it is for. A request is a [`Request`] of [`Request::SIZE`]
//! bytes, followed by its payload if it has one, padded to 8 bytes; behind the token come one or more requests.
//! Requests of one *stream* (source endpoint, lane) carry consecutive sequence numbers; the target applies them in
//! sequence, whichever lane brings them, and what it has applied before not again. It answers with a [`Reply`], which
//! says how far it has applied them and brings back fetched values and failures. Everything is little endian.
//!
//! So a request may be sent again, over any lane, until it is acknowledged. A reply says where it starts
//! ([`Reply::after`]), so that the loss of an earlier one is noticed: its source goes on waiting, sends the request
//! again, and gets from the target the value that was fetched the first time. What the source has
//! ([`Request::acknowledged`]) the target forgets.
//!
//! A stream keeps to one lane: what other lanes bring is dropped. Its source moves it by [`RequestKind::Move`], which
//! has no number of its own. The answer bears the same [`Reply::turn`]: up to [`Reply::applied`] everything has been
//! applied, and nothing behind it that was sent before will be. So the source knows what to send again.
//!
//! What arrives was written by somebody else: decoding checks every field that it turns into a Rust value, and offsets
//! and lengths are checked against segments by whoever uses them.

use crate::amo::{AmoOp, AmoType};
use crate::pe::Pe;
pub use crate::token::Token;

/// Version of everything in this module, and of what PEs tell each other of their memory; PEs with different versions
/// do not connect.
pub const PROTOCOL_VERSION: u32 = 11;

/// Which of its PE's endpoints asks: 0 is the proxy endpoint, 1 the host endpoint, others are those of contexts.
pub type Origin = u8;
/// The host endpoint.
pub const FROM_HOST: Origin = 1;
/// The first of the endpoints that contexts have. Peers learn of these by [`RequestKind::Introduce`].
pub const FROM_CONTEXT: Origin = 2;
/// Endpoints that a PE has at most.
pub const MAX_ORIGINS: Origin = 64;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr, strum::VariantArray)]
#[repr(u8)]
pub enum RequestKind {
    /// An AMO on one word.
    Amo = 1,
    /// Store the payload, then update a signal word.
    PutSignal = 2,
    /// Nothing: its acknowledgement tells that earlier writes on the lane are visible.
    Flush = 3,
    /// Store the payload.
    Put = 4,
    /// Read from the source's window, and store what was read. The payload is a [`Place`].
    Pull = 5,
    /// As [`RequestKind::Pull`]; then update a signal word.
    PullSignal = 6,
    /// Write bytes of the target's memory to the source's window. The payload is a [`Place`].
    Push = 7,
    /// From now on the lane that brings this carries the stream. Operand: how many moves of the stream there have been,
    /// with this; sequence: the last request whose answer the source has.
    Move = 8,
    /// The source's end of the connection over `lane` is broken. This and the next two are the endpoint's own, come
    /// over other lanes, and have no number. Operand: how many connections there have been over that lane.
    Broken = 9,
    /// The source has renewed its end; to be answered by [`RequestKind::Accept`]. Operand: as above, with this; second:
    /// what [`Rail::renew`](crate::rail::Rail::renew) said.
    Offer = 10,
    /// The source has taken an offer. Operand and second as there.
    Accept = 11,
    /// Answer to the address that is the payload: the first request of an endpoint that the target has not heard of.
    Introduce = 12,
    /// To be answered by [`RequestKind::Pong`] with the same lane, operand and second, over the lane that brings it.
    /// This and the next are the endpoint's own, and have no number. Operand: how many the source has sent one after
    /// the other's answer, with this.
    Ping = 13,
    /// Answer to [`RequestKind::Ping`].
    Pong = 14,
    /// Read. Operand: how many bytes, which come with the outcome.
    Get = 15,
}

/// Where in the source's window the bytes of a request are: the payload of [`RequestKind::Pull`] and its like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Symmetric offset in the window's segment.
    pub offset: u64,
    /// Bytes.
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

/// Most bytes that a request reads: an answer holds seven times as many, where a read of several pieces has four.
pub const MOST_READ: u64 = 512;

/// A request to a target agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub kind: RequestKind,
    /// The AMO (for signals: `Set` or `Add`).
    pub op: AmoOp,
    /// The word's type (signals are `U64`).
    pub ty: AmoType,
    /// Which of the source's endpoints asks.
    pub origin: Origin,
    /// An outcome is wanted back: the old value of an AMO, or that what takes the target longer has been done.
    pub fetch: bool,
    /// The source waits for the acknowledgement; others are acknowledged when it suits the target.
    pub urgent: bool,
    /// Whose stream it belongs to, together with `source` and `origin`; not always the lane that it travels on.
    pub lane: u8,
    /// Who asks.
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
    /// The source's own id of the operation, handed back as it is.
    pub id: u64,
}

impl Request {
    /// Encoded size in bytes.
    pub const SIZE: usize = 48;

    /// Encodes the request.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        b[0] = self.kind as u8;
        b[1] = self.op as u8 | (self.ty as u8) << 3 | u8::from(self.fetch) << 6 | u8::from(self.urgent) << 7;
        b[2] = self.origin;
        b[3] = self.lane;
        b[4..8].copy_from_slice(&self.source.to_le_bytes());
        b[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        b[12..14].copy_from_slice(&self.payload.to_le_bytes());
        b[14..16].copy_from_slice(&self.acknowledged.to_le_bytes());
        b[16..24].copy_from_slice(&self.offset.to_le_bytes());
        b[24..32].copy_from_slice(&self.operand.to_le_bytes());
        b[32..40].copy_from_slice(&self.second.to_le_bytes());
        b[40..48].copy_from_slice(&self.id.to_le_bytes());
        b
    }

    /// Makes an encoded request urgent.
    pub fn make_urgent(encoded: &mut [u8; Self::SIZE]) {
        encoded[1] |= 0x80;
    }

    /// Bytes of a message that is one request with such a payload.
    #[must_use]
    pub const fn alone(payload: usize) -> usize {
        Token::SIZE + Self::SIZE + Self::padded(payload)
    }

    /// Bytes that a payload takes in a message.
    #[must_use]
    pub const fn padded(payload: usize) -> usize {
        payload.next_multiple_of(8)
    }

    /// Decodes the first request of a message and finds its payload and the rest, or says what is wrong.
    ///
    /// # Errors
    /// A sentence for the log.
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
    /// It was applied.
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

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The request's id.
    pub id: u64,
    /// The old value of a fetching AMO.
    pub value: u64,
    /// Whether and why it was refused.
    pub refusal: Refusal,
    /// Bytes that come behind it, which a get has read.
    pub len: u32,
}

impl Outcome {
    /// What has become of a request without bytes.
    #[must_use]
    pub const fn of(id: u64, value: u64, refusal: Refusal) -> Outcome {
        Outcome { id, value, refusal, len: 0 }
    }

    /// Bytes that it takes in a message, with those behind it.
    #[must_use]
    pub const fn size(&self) -> usize {
        Reply::OUTCOME + Request::padded(self.len as usize)
    }
}

/// The outcomes in an answer, each with the bytes behind it.
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

/// The answer of a target agent: an acknowledgement of the requests behind `after` up to `applied`, and those of their
/// outcomes that are worth telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Who answers.
    pub source: Pe,
    /// Whose stream of requests it answers: the lane in them.
    pub lane: u8,
    /// Outcomes of requests up to this one are not in it.
    pub after: u32,
    /// Sequence number of the last request that it acknowledges.
    pub applied: u32,
    /// The last move of the stream that the target knows of; 0 when another reply with more follows.
    pub turn: u32,
    /// Number of outcomes that follow.
    pub outcomes: u16,
}

/// A message that says nothing but that a connection is alive, and who uses it: whoever takes part in a connection must
/// know, since he may have to send something there ([`RailCaps::half_open`](crate::rail::RailCaps::half_open)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Which of the source's endpoints uses it.
    pub origin: Origin,
    /// Whose endpoint.
    pub source: Pe,
}

impl Keepalive {
    /// Its first byte, behind the token.
    pub const TAG: u8 = 0x81;
    /// Encoded size in bytes.
    pub const SIZE: usize = 8;

    /// Encodes what is behind the token.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        (b[0], b[1]) = (Self::TAG, self.origin);
        b[4..8].copy_from_slice(&self.source.to_le_bytes());
        b
    }

    /// Decodes such a message.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(bytes: &[u8]) -> Result<Keepalive, &'static str> {
        match *bytes {
            [Self::TAG, origin, 0, 0, a, b, c, d] => Ok(Keepalive { origin, source: Pe::from_le_bytes([a, b, c, d]) }),
            _ => Err("a keepalive of another form"),
        }
    }
}

impl Reply {
    /// First byte of every reply, behind the token; requests start with their kind, which is smaller.
    pub const TAG: u8 = 0x80;
    /// Encoded size of the head in bytes.
    pub const SIZE: usize = 24;
    /// Encoded size of one outcome in bytes, without those behind it.
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
        b[16..20].copy_from_slice(&self.turn.to_le_bytes());
        b
    }

    /// Encodes one outcome. Its bytes follow, padded as payloads are.
    #[must_use]
    pub fn encode_outcome(outcome: &Outcome) -> [u8; Self::OUTCOME] {
        let mut b = [0; Self::OUTCOME];
        b[0..8].copy_from_slice(&outcome.id.to_le_bytes());
        b[8..16].copy_from_slice(&outcome.value.to_le_bytes());
        b[16..20].copy_from_slice(&(outcome.refusal as u32).to_le_bytes());
        b[20..24].copy_from_slice(&outcome.len.to_le_bytes());
        b
    }

    /// Decodes a reply and its outcomes, or says what is wrong.
    ///
    /// # Errors
    /// A sentence for the log.
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
            turn: u32_at(head, 16),
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

    /// A PE of an older version would refuse a request that it does not know only when one comes.
    #[test]
    fn another_request_has_another_version_of_the_protocol() {
        assert_eq!((PROTOCOL_VERSION, RequestKind::VARIANTS.len()), (11, 15));
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
            let mut bytes = request.encode().to_vec();
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
        fn replies_come_back_as_they_were(source: u32, lane: u8, after: u32, applied: u32, turn: u32, values in proptest::collection::vec((any::<u64>(), any::<u64>(), 0u32..20), 0..5)) {
            let reply = Reply { source, lane, after, applied, turn, outcomes: values.len() as u16 };
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
