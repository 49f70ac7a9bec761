//! One allgather or barrier in a node: which PEs have contributed what, and which are missing.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::super::error::Step;
use super::chunk;
use super::fault::Fault;
use super::wire::u32_at;

const HEADER: usize = 26;

/// The contribution of one PE, or of several consecutive PEs, to a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contribution {
    /// The step that the PEs are in.
    pub step: Step,
    /// The shortest time-out of these PEs; the shortest wait ends the round for all.
    pub timeout: Duration,
    /// The rest of that time-out.
    pub left: Duration,
    /// These PEs wait longer for PEs that are known to be alive.
    pub extendable: bool,
    /// The first of these PEs.
    pub first: Pe,
    /// The contribution of each.
    pub rows: Vec<Vec<u8>>,
}

impl Contribution {
    /// The payloads of the frames that carry this contribution.
    #[must_use]
    pub fn encode(&self) -> Vec<Arc<[u8]>> {
        let (kind, number) = match self.step {
            Step::Barrier(number) => (2, number),
            Step::Allgather(number) => (1, number),
            Step::Join | Step::Stage(..) => (0, 0),
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).to_le_bytes();
        let extendable = u8::from(self.extendable);
        let header =
            [&[kind][..], &number.to_le_bytes(), &millis(self.timeout), &millis(self.left), &[extendable]].concat();
        chunk::pack(&header, self.first, &self.rows)
    }

    /// Decodes a contribution of some of these PEs.
    pub(super) fn decode(bytes: &[u8], pes: &Range<Pe>) -> Option<Contribution> {
        let (header, rows) = bytes.split_at_checked(HEADER)?;
        let number = u64_at(header, 1);
        let step = match header[0] {
            1 => Step::Allgather(number),
            2 => Step::Barrier(number),
            _ => return None,
        };
        let millis = |at| Duration::from_millis(u64_at(header, at));
        let (first, rows) = chunk::unpack(rows, pes).ok()?;
        Some(Contribution { step, timeout: millis(9), left: millis(17), extendable: header[25] != 0, first, rows })
    }
}

/// The payloads of the frames that carry a round's result: all contributions, or nothing for a barrier.
fn result(number: u64, step: Step, rows: &[Vec<u8>]) -> Vec<Arc<[u8]>> {
    let rows = if matches!(step, Step::Allgather(_)) { rows } else { &[] };
    chunk::pack(&number.to_le_bytes(), 0, rows)
}

/// Adds one frame of a result to `all`, the contributions of PEs 0, 1, … of `n_pes`.
pub(super) fn add_result(payload: &[u8], number: u64, n_pes: u32, all: &mut Vec<Vec<u8>>) -> Result<(), &'static str> {
    const OTHER: &str = "a result of another step";
    let (of, chunk) = payload.split_at_checked(8).ok_or(OTHER)?;
    let (first, rows) = chunk::unpack(chunk, &(0..n_pes))?;
    if u64_at(of, 0) != number || first as usize != all.len() {
        return Err(OTHER);
    }
    all.extend(rows);
    Ok(())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The round in progress among some PEs. A PE sends its next contribution only after this round's result, so there is
/// only one round at a time.
#[derive(Debug, Default)]
pub(super) struct Round {
    number: u64,
    pes: Range<Pe>,
    first: Option<(Pe, Step)>,
    rows: Vec<Option<Vec<u8>>>,
    arrived: usize,
    /// The deadline, and the time-out that it comes from.
    deadline: Option<(Instant, Duration)>,
    /// Some PE does not wait longer than that.
    fixed: bool,
}

impl Round {
    /// The first round of these PEs.
    pub(super) fn first(pes: Range<Pe>) -> Round {
        Round::numbered(1, pes)
    }

    fn numbered(number: u64, pes: Range<Pe>) -> Round {
        Round { number, rows: vec![None; pes.len()], pes, ..Round::default() }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline.map(|(at, _)| at)
    }

    /// The time-out of the deadline, in seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.deadline.map_or(0, |(_, timeout)| timeout.as_secs())
    }

    /// Whether any PE waits in the round.
    pub(super) fn waiting(&self) -> bool {
        self.arrived > 0
    }

    /// Whether all PEs that wait would wait longer for PEs that are alive.
    pub(super) fn is_extendable(&self) -> bool {
        !self.fixed
    }

    /// Extends the deadline by the time-out.
    pub(super) fn extend(&mut self, now: Instant) {
        self.deadline = self.deadline.map(|(_, timeout)| (now + timeout, timeout));
    }

    /// Whether all of these PEs have contributed.
    pub(super) fn has(&self, pes: &Range<Pe>) -> bool {
        let at = |pe: Pe| (pe - self.pes.start) as usize;
        self.rows[at(pes.start)..at(pes.end)].iter().all(Option::is_some)
    }

    /// Adds a contribution, and returns whether it was the last.
    pub(super) fn add(&mut self, contribution: Contribution, now: Instant) -> Result<bool, Fault> {
        let Contribution { step, timeout, left, extendable, first, rows } = contribution;
        let (other, other_step) = *self.first.get_or_insert((first, step));
        let number = match step {
            Step::Allgather(number) | Step::Barrier(number) => number,
            Step::Join | Step::Stage(..) => 0,
        };
        let at = first.checked_sub(self.pes.start).map_or(usize::MAX, |at| at as usize);
        let slots = self.rows.get_mut(at..).and_then(|slots| slots.get_mut(..rows.len()));
        let slots = slots.filter(|slots| slots.iter().all(Option::is_none));
        let Some(slots) = slots.filter(|_| step == other_step && number == self.number) else {
            return Err(Fault::Steps { peer: first, step, other, other_step });
        };
        self.arrived += rows.len();
        slots.iter_mut().zip(rows).for_each(|(slot, row)| *slot = Some(row));
        let [timeout, left] = [timeout, left].map(|time| time.min(Duration::from_secs(1 << 24)));
        if self.deadline.is_none_or(|(earliest, _)| now + left < earliest) {
            self.deadline = Some((now + left, timeout));
        }
        self.fixed |= !extendable;
        Ok(self.arrived == self.rows.len())
    }

    /// All contributions of the node's PEs, for the node above; then the next round begins.
    pub(super) fn pass_on(&mut self, now: Instant) -> Vec<Arc<[u8]>> {
        let (deadline, timeout) = self.deadline.unwrap_or((now, Duration::ZERO));
        let (left, extendable) = (deadline.saturating_duration_since(now), self.is_extendable());
        let (_, step, rows) = self.end();
        Contribution { step, timeout, left, extendable, first: self.pes.start, rows }.encode()
    }

    /// The result's payloads, once all PEs of the job have contributed; then the next round begins.
    pub(super) fn conclude(&mut self) -> Vec<Arc<[u8]>> {
        let (number, step, rows) = self.end();
        result(number, step, &rows)
    }

    fn end(&mut self) -> (u64, Step, Vec<Vec<u8>>) {
        let next = Round::numbered(self.number + 1, self.pes.clone());
        let Round { number, first, rows, .. } = std::mem::replace(self, next);
        let step = first.map_or(Step::Barrier(number), |(_, step)| step);
        (number, step, rows.into_iter().map(Option::unwrap_or_default).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn contribution(pe: Pe, step: Step, row: &[u8]) -> Contribution {
        let (timeout, left) = (Duration::from_secs(9), Duration::from_secs(8));
        Contribution { step, timeout, left, extendable: true, first: pe, rows: vec![row.to_vec()] }
    }

    #[test]
    fn contributions_survive_the_wire() {
        let sent = contribution(4, Step::Allgather(u64::MAX - 1), b"abc");
        assert_eq!(Contribution::decode(&sent.encode()[0], &(4..5)), Some(sent.clone()));
        assert_eq!(Contribution::decode(&sent.encode()[0], &(5..9)), None, "of another PE");
        assert_eq!(Contribution::decode(&[1; HEADER - 1], &(0..9)), None);
        assert_eq!(Contribution::decode(&[3; HEADER + 9], &(0..9)), None);
    }

    #[test]
    fn a_round_completes_when_all_contributed_in_any_order() {
        let now = Instant::now();
        let mut round = Round::first(4..7);
        for (pe, data) in [(6, &b"two"[..]), (4, b"")] {
            assert_eq!(round.add(contribution(pe, Step::Allgather(1), data), now), Ok(false));
        }
        assert!(round.has(&(6..7)) && !round.has(&(5..7)) && round.seconds() == 9);
        assert_eq!(round.deadline(), Some(now + Duration::from_secs(8)));
        assert_eq!(round.add(contribution(5, Step::Allgather(1), b"one"), now), Ok(true));
        let passed = round.pass_on(now + Duration::from_secs(2));
        let passed = Contribution::decode(&passed[0], &(0..9)).unwrap();
        assert_eq!((passed.left, passed.timeout), (Duration::from_secs(6), Duration::from_secs(9)));
        assert_eq!((passed.first, passed.rows), (4, vec![vec![], b"one".to_vec(), b"two".to_vec()]));
        assert!(!round.waiting() && round.deadline().is_none());
        assert_eq!(round.add(contribution(5, Step::Barrier(2), b""), now), Ok(false));
    }

    #[test]
    fn results_hold_all_contributions_and_those_of_barriers_nothing() {
        let now = Instant::now();
        let mut round = Round::first(0..2);
        for pe in 0..2 {
            round.add(contribution(pe, Step::Allgather(1), &[pe as u8]), now).unwrap();
        }
        let (frame, mut all) = (round.conclude().remove(0), Vec::new());
        assert!(add_result(&frame, 2, 2, &mut all).is_err(), "another step");
        assert!(add_result(&frame, 1, 1, &mut all).is_err(), "too many PEs");
        add_result(&frame, 1, 2, &mut all).unwrap();
        assert_eq!(all, [[0], [1]]);
        assert!(add_result(&frame, 1, 2, &mut all).is_err(), "twice");
        for pe in 0..2 {
            round.add(contribution(pe, Step::Barrier(2), b""), now).unwrap();
        }
        let mut all = Vec::new();
        round.conclude().iter().for_each(|frame| add_result(frame, 2, 2, &mut all).unwrap());
        assert!(all.is_empty());
    }

    #[test]
    fn pes_in_different_steps_are_both_named() {
        let now = Instant::now();
        let mut round = Round::first(0..2);
        round.add(contribution(0, Step::Allgather(1), b""), now).unwrap();
        let fault = round.add(contribution(1, Step::Barrier(1), b""), now).unwrap_err();
        let text = fault.into_error(0, Step::Allgather(1), "").to_string();
        assert!(text.contains("PE 1 has barrier 1, PE 0 has allgather 1"), "{text}");
        assert!(round.add(contribution(0, Step::Allgather(1), b""), now).is_err(), "twice");
        assert!(round.add(contribution(7, Step::Allgather(1), b""), now).is_err(), "no such PE");
    }
}
