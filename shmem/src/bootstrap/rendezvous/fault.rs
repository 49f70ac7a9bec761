//! Faults: why a job is broken, as the service sends it to every PE, and as a PE words it.

use serde::{Deserialize, Serialize};
use symrail_core::encoding;
use symrail_transport::Pe;

use super::super::LostPe;
use super::super::error::{Error, Step};

/// The number of missing PEs that a time-out names; further ones are only counted.
pub(super) const NAMED: usize = 32;
/// The longest reason on the wire, in bytes.
const MAX_WHY: usize = 1024;
/// The longest fault on the wire, in bytes.
const LONGEST: usize = 2 * MAX_WHY;

/// The reason for a PE whose frames do not match their tags.
const CHANGED: &str = "takes part no more: what it sent to the rendezvous service was changed on the way";

/// Why no further step can complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Fault {
    /// The PE's connection closed before it said that it was done.
    Lost { peer: Pe },
    /// The PE is done, so it will not take part in this step.
    Left { peer: Pe },
    /// The PE's process ended before it had joined.
    Ended { peer: Pe },
    /// The PE requested the end of the job.
    Aborted { peer: Pe, code: i32, why: String },
    /// PEs had not contributed when the time-out passed.
    TimedOut { seconds: u64, missing: Vec<Pe>, count: u32 },
    /// A PE disagrees on the number of PEs. `other` is `None` for the launcher.
    Size { peer: Pe, n_pes: u32, other: Option<Pe>, other_n_pes: u32 },
    /// Two PEs are in different steps.
    Steps { peer: Pe, step: Step, other: Pe, other_step: Step },
    /// The PE's number is taken.
    Duplicate { peer: Pe },
    /// The PE's number is outside of the job.
    NoSuchPe { peer: Pe, n_pes: u32 },
    /// The PE's frames were changed on the way.
    Untrusted { peer: Pe, why: String },
    /// The rendezvous service is lost.
    NoService,
}

impl Fault {
    pub(super) fn timed_out(seconds: u64, missing: &[Pe]) -> Fault {
        let count = u32::try_from(missing.len()).unwrap_or(u32::MAX);
        Fault::TimedOut { seconds, missing: missing[..missing.len().min(NAMED)].to_vec(), count }
    }

    /// The fault of a PE that requested the end of the job; a long reason is shortened.
    pub(super) fn aborted(peer: Pe, code: i32, why: &str) -> Fault {
        let end = (0..=why.len().min(MAX_WHY)).rev().find(|&end| why.is_char_boundary(end));
        Fault::Aborted { peer, code, why: why[..end.unwrap_or(0)].to_owned() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        encoding::encode(self)
    }

    /// Reads a fault; `None` when it is malformed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Fault> {
        postcard::from_bytes(bytes).ok().filter(|_| bytes.len() <= LONGEST)
    }

    /// Whether the fault means that a PE takes part in no further step.
    pub(super) fn names_lost_pe(&self) -> bool {
        self.clone().into_lost_pe().is_some()
    }

    /// The PE that takes part in no further step, and the reason.
    pub(super) fn into_lost_pe(self) -> Option<LostPe> {
        let (pe, why) = match self {
            Fault::Lost { peer } => (peer, "it died or ended without finalizing".to_owned()),
            Fault::Left { peer } => (peer, "it has left the job without finalizing".to_owned()),
            Fault::Ended { peer } => (peer, "it ended before it had joined".to_owned()),
            Fault::Untrusted { peer, .. } => (peer, format!("it {CHANGED}")),
            Fault::Aborted { peer, code, why } => (peer, format!("it aborted the job with code {code}: {why}")),
            _ => return None,
        };
        Some(LostPe { pe, why })
    }

    /// The error that PE `pe` reports when the fault arrives in `step`.
    pub(super) fn into_error(self, pe: Pe, step: Step, address: &str) -> Error {
        match self {
            Fault::Lost { peer } => {
                Error::Peer { pe, step, peer, what: "died or ended without finalizing; see what it said" }
            }
            Fault::Left { peer } => {
                Error::Peer { pe, step, peer, what: "has left; all PEs must take part in the same steps" }
            }
            Fault::Ended { peer } => {
                Error::Peer { pe, step, peer, what: "ended before it had joined; see what it said" }
            }
            Fault::Aborted { peer, code, why } => Error::Aborted { pe, peer, code, why },
            Fault::Untrusted { peer, why } if peer == pe => Error::Refused {
                pe,
                address: address.to_owned(),
                why: format!("what it sent was changed on the way ({why}); is something else between the two?"),
            },
            Fault::Untrusted { peer, .. } => Error::Peer { pe, step, peer, what: CHANGED },
            Fault::NoService => {
                let reason = "relays say that it closed".into();
                Error::Connection { pe, step, address: address.to_owned(), reason }
            }
            Fault::TimedOut { seconds, missing, count } => {
                Error::Timeout { pe, step, seconds, missing: missing_words(&missing, count) }
            }
            Fault::Size { peer, n_pes, other, other_n_pes } => Error::Mismatch {
                what: "the number of PEs",
                pe: peer,
                value: n_pes.to_string(),
                other: other.map_or_else(|| "the launcher".to_owned(), |other| format!("PE {other}")),
                other_value: other_n_pes.to_string(),
            },
            Fault::Steps { peer, step, other, other_step } => Error::Mismatch {
                what: "the collective step",
                pe: peer,
                value: step.to_string(),
                other: format!("PE {other}"),
                other_value: other_step.to_string(),
            },
            Fault::Duplicate { peer } => Error::Refused {
                pe,
                address: address.to_owned(),
                why: format!("PE {peer} has joined already; give every process its own PE number"),
            },
            Fault::NoSuchPe { peer, n_pes } => Error::Refused {
                pe,
                address: address.to_owned(),
                why: format!("PE {peer} does not exist: the job has {n_pes} PEs, numbered from 0"),
            },
        }
    }
}

/// Encodes several faults in one payload.
pub(super) fn encode_all(faults: &[Fault]) -> Vec<u8> {
    encoding::encode(&faults)
}

/// Decodes several faults; none if they are malformed.
pub(super) fn decode_all(bytes: &[u8]) -> Vec<Fault> {
    postcard::from_bytes(bytes).unwrap_or_default()
}

fn missing_words(missing: &[Pe], count: u32) -> String {
    format!("{} did not arrive", named(missing, count))
}

/// Words for `count` PEs, of which `some` are named.
pub(super) fn named(some: &[Pe], count: u32) -> String {
    let named = some.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let more = (count as usize).saturating_sub(some.len());
    let plural = if count == 1 { "PE" } else { "PEs" };
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{plural} {named}{more}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn faults_survive_the_wire() {
        let all = [
            Fault::Lost { peer: 3 },
            Fault::Left { peer: 4 },
            Fault::Aborted { peer: 1, code: -7, why: "no memory – ü".into() },
            Fault::timed_out(60, &[2, 5]),
            Fault::Size { peer: 1, n_pes: 3, other: Some(0), other_n_pes: 2 },
            Fault::Size { peer: 1, n_pes: 3, other: None, other_n_pes: 2 },
            Fault::Steps { peer: 1, step: Step::Barrier(4), other: 0, other_step: Step::Allgather(4) },
            Fault::Duplicate { peer: 0 },
            Fault::NoSuchPe { peer: 9, n_pes: 2 },
            Fault::Ended { peer: 3 },
            Fault::Untrusted { peer: 2, why: "a wrong tag".into() },
            Fault::NoService,
        ];
        assert_eq!(decode_all(&encode_all(&all)), all);
        for fault in all {
            let bytes = fault.encode();
            assert_eq!(Fault::decode(&bytes), Some(fault));
            (0..bytes.len()).for_each(|length| drop(Fault::decode(&bytes[..length])));
        }
        assert_eq!(Fault::decode(&[99, 0, 0, 0, 0]), None);
        let Fault::Aborted { why, .. } = Fault::aborted(1, 2, &"ü".repeat(MAX_WHY)) else { unreachable!() };
        assert_eq!(why.len(), MAX_WHY);
        let endless = Fault::Aborted { peer: 1, code: 2, why: "x".repeat(LONGEST) };
        assert_eq!(Fault::decode(&endless.encode()), None);
    }

    #[test]
    fn many_missing_pes_are_counted_not_listed() {
        let missing: Vec<Pe> = (0..100).collect();
        let fault = Fault::decode(&Fault::timed_out(5, &missing).encode()).unwrap();
        let text = fault.into_error(7, Step::Barrier(2), "here").to_string();
        assert!(text.contains("PE 7: barrier 2 did not complete within 5 s"), "{text}");
        assert!(text.contains("31 and 68 more did not arrive"), "{text}");
    }
}
