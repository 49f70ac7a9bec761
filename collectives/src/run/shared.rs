//! The state that the blocks of a PE share in a call.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use symrail::Pe;
use symrail::kernels::cpu::{Cmp, DeviceError, Symmetric, Thread};
use symrail::rounds::{self, Abort};
use symrail_core::lock;

use super::Call;
use super::wait::Wait;
use crate::error::{Error, Result};
use crate::members::Members;
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::geometry::Geometry;
use crate::plan::{BufferType, Plan, Span, Step};

pub(super) const CALL: &str = "a collective";

/// The locations of a call's buffers.
pub(super) struct Memory {
    pub input: Symmetric<u8>,
    pub output: Symmetric<u8>,
    /// Plain scratch chunks.
    pub plain: Symmetric<u8>,
    /// Scratch chunks as packets.
    pub packets: Symmetric<u64>,
    /// The packets as bytes.
    pub packet_bytes: Symmetric<u8>,
    pub words: Symmetric<u64>,
}

pub(super) struct Shared<'a> {
    pub plan: &'a Plan,
    pub me: usize,
    pub memory: Memory,
    pub geometry: Geometry,
    pub flag: u32,
    pub data_type: DataType,
    pub accumulate: Accumulate,
    op: ReduceOp,
    semaphores: Vec<AtomicU64>,
    /// For each barrier, the number of blocks that have arrived.
    arrivals: Vec<AtomicU64>,
    expected: &'a [AtomicU64],
    timeout: Duration,
    /// Whether the program has ended the call's waits.
    pub ended: AtomicBool,
    first_error: Mutex<Option<Error>>,
    members: &'a Members,
}

impl<'a> Shared<'a> {
    pub fn new(
        plan: &'a Plan,
        members: &'a Members,
        call: &Call,
        memory: Memory,
        expected: &'a [AtomicU64],
        flag: u32,
        seconds: u64,
    ) -> Self {
        let me = members.me() as usize;
        let rank = &plan.ranks[me];
        Shared {
            plan,
            me,
            members,
            memory,
            geometry: plan.geometry(call.part),
            flag,
            data_type: call.data_type,
            accumulate: call.accumulate,
            op: call.op,
            semaphores: rank.semaphores.iter().map(|&value| AtomicU64::new(value)).collect(),
            arrivals: (0..rank.barriers).map(|_| AtomicU64::new(0)).collect(),
            expected,
            timeout: Duration::from_secs(seconds),
            ended: AtomicBool::new(false),
            first_error: Mutex::new(None),
        }
    }

    /// The PE of a rank of the plan.
    pub fn pe(&self, rank: usize) -> Pe {
        self.members.pe(rank)
    }

    /// The operation of a reduction: the plan's, or else the call's.
    pub fn reduce_op(&self, of_plan: Option<ReduceOp>) -> ReduceOp {
        of_plan.unwrap_or(self.op)
    }

    /// The location of a span's bytes on its PE.
    pub fn bytes(&self, span: &Span, at: u64, len: u64) -> Result<Symmetric<u8>> {
        let part_in_place = super::part_of(self.plan, span.buffer) * self.geometry.part;
        let base = match span.buffer {
            BufferType::Scratch => self.memory.plain,
            // In place, the smaller buffer is each PE's own part of the larger one.
            BufferType::Input if part_in_place > 0 => {
                return Ok(self.memory.output.part(span.rank as u64 * part_in_place + at, len)?);
            }
            BufferType::Output if part_in_place > 0 => {
                return Ok(self.memory.input.part(span.rank as u64 * part_in_place + at, len)?);
            }
            BufferType::Input => self.memory.input,
            BufferType::Output => self.memory.output,
        };
        Ok(base.part(at, len)?)
    }

    /// The word in which the signals of a link arrive.
    pub fn word(&self, word: usize) -> Result<Symmetric<u64>, DeviceError> {
        self.memory.words.at(1 + word as u64)
    }

    /// Waits for the next signal in a word.
    pub fn await_signal(&self, thread: &Thread<'_>, step: &Step, word: usize) -> Result<()> {
        let expected = self.expected[word].fetch_add(1, Ordering::Relaxed) + 1;
        let arrived = self.word(word)?;
        let from = self.plan.ranks[self.me].inbound[word];
        self.wait(thread, step, || Ok(thread.signal_fetch(arrived)? >= expected), || from)
    }

    pub fn acquire(&self, thread: &Thread<'_>, step: &Step, id: usize) -> Result<()> {
        let take = |value: u64| value.checked_sub(1);
        let taken = || Ok(self.semaphores[id].fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok());
        self.wait(thread, step, taken, || self.me)
    }

    pub fn release(&self, id: usize) {
        self.semaphores[id].fetch_add(1, Ordering::AcqRel);
    }

    pub fn barrier(&self, thread: &Thread<'_>, step: &Step, id: usize, blocks: usize) -> Result<()> {
        let arrivals = &self.arrivals[id];
        let complete = (arrivals.fetch_add(1, Ordering::AcqRel) + 1).next_multiple_of(blocks as u64);
        self.wait(thread, step, || Ok(arrivals.load(Ordering::Acquire) >= complete), || self.me)
    }

    /// Waits for a condition, and drives the engine meanwhile; at most for the time-out, and not when a PE has given
    /// up. `by` is the rank that fulfils the condition.
    pub fn wait(
        &self,
        thread: &Thread<'_>,
        step: &Step,
        mut holds: impl FnMut() -> Result<bool>,
        by: impl Fn() -> usize,
    ) -> Result<()> {
        if holds()? {
            return Ok(());
        }
        let given_up = self.memory.words.at(0)?;
        let mut wait = Wait::new(CALL, self.members.team(), &self.ended, self.timeout);
        while !holds()? {
            // Also drives the engine.
            if thread.test(given_up, Cmp::Ne, 0)? {
                Abort::check(thread.signal_fetch(given_up)?, thread.my_pe(), CALL)?;
            }
            if !wait.goes_on()? {
                let waiting = format!("plan {}{}, {}", self.plan.name, step.place, step.name);
                let (pe, late, seconds) = (thread.my_pe(), vec![self.pe(by())], self.timeout.as_secs_f64());
                return Err(rounds::Error::TimedOut { pe, what: CALL, waiting, late, seconds }.into());
            }
        }
        Ok(())
    }

    /// Keeps a block's error if it is the first one.
    pub fn note(&self, error: Error) -> Error {
        let mut first = lock(&self.first_error);
        if first.is_none() {
            let reported = Error::Call(error.to_string());
            *first = Some(error);
            return reported;
        }
        error
    }

    pub fn first_error(&self) -> Option<Error> {
        lock(&self.first_error).take()
    }

    /// Tells all PEs that this one has given up, unless another PE made it give up.
    pub fn give_up(&self, thread: &Thread<'_>) {
        let Ok(word) = self.memory.words.at(0) else { return };
        if thread.signal_fetch(word).is_ok_and(|pe| pe != 0) {
            return;
        }
        let own = Abort { by: self.pe(self.me), lost: None }.to_word();
        for rank in 0..self.plan.ranks.len() {
            // A PE that cannot be told waits for its time-out.
            let _ = thread.p(word, own, self.pe(rank));
        }
        // After this, data on a wire has been sent, or never will be.
        let _ = thread.quiet();
    }
}
