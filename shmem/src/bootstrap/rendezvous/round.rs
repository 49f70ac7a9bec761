//! One allgather or barrier as the service sees it: who contributed what, and whom it still waits for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::super::MAX_PES;
use super::super::error::Step;
use super::fault::Fault;
use super::wire::{MAX_PAYLOAD, u32_at};
use crate::columns::Columns;

const CONTRIBUTE_HEADER: usize = 18;
const RESULT_HEADER: usize = 17;
/// How the contributions in a result are written down: one after the other with its length before it, or as a table in
/// which what they have in common stands once.
const PLAIN: u8 = 0;
const TABLE: u8 = 1;
/// The longest contributions that are worth a table.
const IN_TABLE_MAX: usize = 64 << 10;

/// A PE's contribution to a round.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contribution<'a> {
    pub step: Step,
    /// How long the PE will wait; the shortest wait of all ends the round for all.
    pub timeout: Duration,
    /// It waits longer for PEs that are known to live.
    pub patient: bool,
    pub data: &'a [u8],
}

impl<'a> Contribution<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, number) = match self.step {
            Step::Barrier(number) => (2, number),
            Step::Allgather(number) => (1, number),
            Step::Join => (0, 0),
        };
        let mut bytes = Vec::with_capacity(CONTRIBUTE_HEADER + self.data.len());
        bytes.push(kind);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX).to_le_bytes());
        bytes.push(self.patient.into());
        bytes.extend_from_slice(self.data);
        bytes
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Option<Contribution<'a>> {
        let (header, data) = bytes.split_at_checked(CONTRIBUTE_HEADER)?;
        let number = u64_at(header, 1);
        let step = match header[0] {
            1 => Step::Allgather(number),
            2 => Step::Barrier(number),
            _ => return None,
        };
        let timeout = Duration::from_millis(u64_at(header, 9));
        Some(Contribution { step, timeout, patient: header[17] != 0, data })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The round in progress. A PE sends its next contribution only after this round's result, so there is only one.
#[derive(Debug, Default)]
pub(super) struct Round {
    number: u64,
    first: Option<(Pe, Step)>,
    data: Vec<Option<Vec<u8>>>,
    arrived: usize,
    /// When to give up, and the time-out that this is.
    deadline: Option<(Instant, Duration)>,
    /// Somebody does not wait longer than that.
    impatient: bool,
}

impl Round {
    /// The first round of a job of `n_pes`.
    pub(super) fn first(n_pes: u32) -> Round {
        Round { number: 1, data: vec![None; n_pes as usize], ..Round::default() }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline.map(|(at, _)| at)
    }

    /// Whether anybody waits in it.
    pub(super) fn waiting(&self) -> bool {
        self.arrived > 0
    }

    /// That the time is up, and for whom it was waited.
    pub(super) fn timed_out(&self) -> Fault {
        let missing: Vec<Pe> = (0..).zip(&self.data).filter(|(_, data)| data.is_none()).map(|(pe, _)| pe).collect();
        Fault::timed_out(self.deadline.map_or(0, |(_, timeout)| timeout.as_secs()), &missing)
    }

    /// Waits once more as long, if all who wait would.
    pub(super) fn extend(&mut self, now: Instant) -> bool {
        self.deadline = self.deadline.map(|(_, timeout)| (now + timeout, timeout));
        !self.impatient
    }

    /// The PEs that wait.
    pub(super) fn arrived(&self) -> impl Iterator<Item = Pe> {
        (0..).zip(&self.data).filter(|(_, data)| data.is_some()).map(|(pe, _)| pe)
    }

    /// Adds a contribution. The last one ends the round: it gives the result's payloads and starts the next round.
    pub(super) fn add(&mut self, pe: Pe, contribution: &Contribution<'_>, now: Instant) -> Result<Done, Fault> {
        let step = contribution.step;
        let (other, other_step) = *self.first.get_or_insert((pe, step));
        let number = match step {
            Step::Allgather(number) | Step::Barrier(number) => number,
            Step::Join => 0,
        };
        let slot = self.data.get_mut(pe as usize).filter(|slot| slot.is_none());
        let Some(slot) = slot.filter(|_| step == other_step && number == self.number) else {
            return Err(Fault::Steps { peer: pe, step, other, other_step });
        };
        *slot = Some(contribution.data.to_vec());
        self.arrived += 1;
        let timeout = contribution.timeout.min(Duration::from_secs(1 << 24));
        if self.deadline.is_none_or(|(earliest, _)| now + timeout < earliest) {
            self.deadline = Some((now + timeout, timeout));
        }
        self.impatient |= !contribution.patient;
        if self.arrived < self.data.len() {
            return Ok(None);
        }
        let payloads = match step {
            Step::Allgather(_) => pack(self.number, &self.data),
            _ => pack(self.number, &[]),
        };
        let n_pes = self.data.len();
        *self = Round { number: self.number + 1, data: vec![None; n_pes], ..Round::default() };
        Ok(Some(payloads))
    }
}

/// The payloads of the frames that carry a result, once the round is complete. Shared by all connections.
pub(super) type Done = Option<Vec<Arc<[u8]>>>;

/// As many consecutive PEs' contributions to a frame as fit; at least one frame.
fn pack(number: u64, data: &[Option<Vec<u8>>]) -> Vec<Arc<[u8]>> {
    let mut frames = Vec::new();
    let mut frame = Vec::new();
    let mut count: u32 = 0;
    let mut start = |frame: &mut Vec<u8>, first: usize, count: &mut u32| {
        if !frame.is_empty() {
            frame[12..16].copy_from_slice(&count.to_le_bytes());
            let begun = u32_at(frame, 8) as usize;
            shorten(frame, data.get(begun..begun + *count as usize).unwrap_or_default());
            frames.push(Arc::from(std::mem::take(frame)));
        }
        *count = 0;
        frame.extend_from_slice(&number.to_le_bytes());
        frame.extend_from_slice(&u32::try_from(first).unwrap_or(u32::MAX).to_le_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.push(PLAIN);
    };
    start(&mut frame, 0, &mut count);
    for (pe, data) in data.iter().enumerate() {
        let data = data.as_deref().unwrap_or_default();
        if frame.len() + 4 + data.len() > MAX_PAYLOAD {
            start(&mut frame, pe, &mut count);
        }
        frame.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
        frame.extend_from_slice(data);
        count += 1;
    }
    start(&mut frame, 0, &mut count);
    frames
}

/// Writes a frame's contributions as a table if that is shorter.
fn shorten(frame: &mut Vec<u8>, data: &[Option<Vec<u8>>]) {
    let rows: Vec<&[u8]> = data.iter().map(|data| data.as_deref().unwrap_or_default()).collect();
    if rows.len() < 2 || rows.iter().any(|row| row.len() > IN_TABLE_MAX) {
        return;
    }
    let table = Columns::new(&rows).encode();
    if RESULT_HEADER + table.len() < frame.len() {
        frame.truncate(RESULT_HEADER);
        frame[RESULT_HEADER - 1] = TABLE;
        frame.extend_from_slice(&table);
    }
}

/// Adds one frame of a result to `parts`, the contributions of PEs 0, 1, …
pub(super) fn unpack(payload: &[u8], number: u64, parts: &mut Vec<Vec<u8>>) -> Result<(), &'static str> {
    const SHORT: &str = "a result that ends early";
    let (header, mut rest) = payload.split_at_checked(RESULT_HEADER).ok_or(SHORT)?;
    if u64_at(header, 0) != number || u32_at(header, 8) as usize != parts.len() {
        return Err("a result of another step");
    }
    let count = u32_at(header, 12);
    if header[RESULT_HEADER - 1] == TABLE {
        let table = Columns::decode(rest, count as usize).filter(|_| count <= MAX_PES).ok_or("a malformed table")?;
        parts.extend((0..count as usize).map_while(|row| table.row(row)));
        return Ok(());
    }
    for _ in 0..count {
        let (length, after) = rest.split_at_checked(4).ok_or(SHORT)?;
        let (data, after) = after.split_at_checked(u32_at(length, 0) as usize).ok_or(SHORT)?;
        parts.push(data.to_vec());
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err("a result with more than it announces") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::wire::MAX_CONTRIBUTION;
    use super::*;

    fn contribution(step: Step, data: &[u8]) -> Contribution<'_> {
        Contribution { step, timeout: Duration::from_secs(9), patient: true, data }
    }

    #[test]
    fn contributions_survive_the_wire() {
        let sent = contribution(Step::Allgather(u64::MAX - 1), b"abc");
        assert_eq!(Contribution::decode(&sent.encode()), Some(sent));
        assert_eq!(Contribution::decode(&[1; CONTRIBUTE_HEADER - 1]), None);
        assert_eq!(Contribution::decode(&[3; CONTRIBUTE_HEADER]), None);
    }

    #[test]
    fn a_round_completes_when_all_contributed_in_any_order() {
        let now = Instant::now();
        let mut round = Round::first(3);
        for (pe, data) in [(2, &b"two"[..]), (0, b"")] {
            assert_eq!(round.add(pe, &contribution(Step::Allgather(1), data), now), Ok(None));
        }
        let Fault::TimedOut { seconds: 9, missing, count: 1 } = round.timed_out() else { unreachable!() };
        assert_eq!(missing, [1]);
        let done = round.add(1, &contribution(Step::Allgather(1), b"one"), now).unwrap().unwrap();
        let mut parts = Vec::new();
        done.iter().for_each(|frame| unpack(frame, 1, &mut parts).unwrap());
        assert_eq!(parts, [b"".to_vec(), b"one".to_vec(), b"two".to_vec()]);
        assert!(!round.waiting() && round.deadline().is_none());
        assert_eq!(round.add(1, &contribution(Step::Barrier(2), b""), now), Ok(None));
    }

    #[test]
    fn pes_in_different_steps_are_both_named() {
        let now = Instant::now();
        let mut round = Round::first(2);
        round.add(0, &contribution(Step::Allgather(1), b""), now).unwrap();
        let fault = round.add(1, &contribution(Step::Barrier(1), b""), now).unwrap_err();
        let text = fault.into_error(0, Step::Allgather(1), "").to_string();
        assert!(text.contains("PE 1 has barrier 1, PE 0 has allgather 1"), "{text}");
        assert!(round.add(0, &contribution(Step::Allgather(1), b""), now).is_err(), "twice");
        assert!(round.add(7, &contribution(Step::Allgather(1), b""), now).is_err(), "no such PE");
    }

    #[test]
    fn large_results_are_cut_into_frames_that_fit() {
        let data: Vec<Option<Vec<u8>>> = (0..5).map(|pe| Some(vec![pe; MAX_CONTRIBUTION / 2])).collect();
        let frames = pack(7, &data);
        assert_eq!(frames.len(), 3, "two halves to a frame");
        assert!(frames.iter().all(|frame| frame.len() <= MAX_PAYLOAD));
        let mut parts = Vec::new();
        frames.iter().for_each(|frame| unpack(frame, 7, &mut parts).unwrap());
        assert!(data.into_iter().flatten().eq(parts));
        assert_eq!(pack(7, &[Some(vec![1; MAX_CONTRIBUTION])])[0].len(), MAX_CONTRIBUTION + RESULT_HEADER + 4);
    }

    #[test]
    fn what_contributions_have_in_common_is_sent_once() {
        let of = |pe: u32| [&[7; 300][..], &pe.to_le_bytes()].concat();
        let data: Vec<Option<Vec<u8>>> = (0..1000).map(|pe| Some(of(pe))).collect();
        let frames = pack(7, &data);
        assert!(frames.len() == 1 && frames[0].len() < 4000, "{} bytes", frames[0].len());
        let mut parts = Vec::new();
        unpack(&frames[0], 7, &mut parts).unwrap();
        assert!(data.into_iter().flatten().eq(parts));
        for at in 0..frames[0].len() {
            let mut frame = frames[0].to_vec();
            frame[at] ^= 0x55;
            // Whatever comes of it, it is no panic.
            let _ = unpack(&frame, 7, &mut Vec::new());
        }
    }

    #[test]
    fn malformed_results_are_errors() {
        let frame = pack(3, &[Some(b"abc".to_vec()), Some(b"d".to_vec())]).remove(0);
        assert!(unpack(&frame, 4, &mut Vec::new()).is_err());
        assert!(unpack(&frame, 3, &mut vec![vec![]]).is_err());
        (0..frame.len()).for_each(|length| assert!(unpack(&frame[..length], 3, &mut Vec::new()).is_err(), "{length}"));
    }
}
