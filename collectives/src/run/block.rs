//! One block's steps.

use std::cell::Cell;
use std::ops::Range;

use symrail::kernels::cpu::{SignalUpdate, Symmetric, Thread};

use super::packet;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::number::{ReduceOp, reduce};
use crate::plan::{Action, ChannelType, Link, Span, Step};

/// Bytes of a block's staging buffer.
pub(super) const STAGE: usize = 32 << 10;
/// Bytes processed at a time; as packets they fill half of the staging buffer.
const AT_ONCE: u64 = 8 << 10;

pub(super) struct Block<'a, 't> {
    shared: &'a Shared<'a>,
    thread: &'a Thread<'t>,
    stage: Symmetric<u8>,
    /// For each rank, whether loads and stores reach it.
    mapped: Vec<bool>,
    /// Whether data sent over a wire may still be in flight.
    on_its_way: Cell<bool>,
}

impl<'a, 't> Block<'a, 't> {
    pub fn new(shared: &'a Shared<'a>, thread: &'a Thread<'t>, stage: Symmetric<u8>) -> Result<Self> {
        let first = shared.memory.words.at(0)?;
        let mapped = (0..shared.plan.ranks.len()).map(|rank| Ok(thread.peer_ptr(first, shared.pe(rank))?.is_some()));
        let mapped = mapped.collect::<Result<Vec<bool>>>()?;
        Ok(Block { shared, thread, stage, mapped, on_its_way: Cell::new(false) })
    }

    pub fn run(&self, steps: &[Step]) -> Result<()> {
        let all = || {
            steps.iter().try_for_each(|step| self.step(step, None))?;
            // The caller may change the input from now on.
            if self.shared.plan.barriers.leaves_puts { Ok(()) } else { self.arrive() }
        };
        all().map_err(|error| self.shared.note(error))
    }

    /// Performs a step, in a pipeline on a window of its bytes.
    fn step(&self, step: &Step, window: Option<&Range<u64>>) -> Result<()> {
        let (shared, thread) = (self.shared, self.thread);
        match &step.action {
            Action::Nop => {}
            Action::Barrier { id, blocks } => {
                // Another block may signal for this block's puts.
                self.arrive()?;
                shared.barrier(thread, step, *id, *blocks)?;
            }
            Action::Acquire(ids) => ids.iter().try_for_each(|&id| shared.acquire(thread, step, id))?,
            Action::Release(ids) => {
                self.arrive()?;
                ids.iter().for_each(|&id| shared.release(id));
            }
            Action::Signal { to, relaxed } => {
                if !relaxed {
                    thread.fence()?;
                }
                to.iter().try_for_each(|link| self.signal(link))?;
            }
            Action::Wait { on } => on.iter().try_for_each(|&word| shared.await_signal(thread, step, word))?,
            Action::Flush => self.arrive()?,
            Action::Copy { pairs, by, then, flush } => {
                for (i, (source, dest)) in pairs.iter().enumerate() {
                    self.copy(source, dest, self.range(source, step, window), *by, then.get(i))?;
                }
                if *flush {
                    self.arrive()?;
                }
            }
            Action::Reduce { sources, dest, sends, op } => {
                for piece in self.small_pieces(self.range(dest, step, window)) {
                    let data = sources.iter().map(|span| self.read(span, &piece)).collect::<Result<Vec<_>>>()?;
                    let result = self.reduced(*op, &data);
                    sends.iter().chain([dest]).try_for_each(|dest| self.write(dest, &piece, &result))?;
                }
            }
            Action::Pack { pairs } => {
                for (source, dest) in pairs {
                    for piece in self.small_pieces(self.range(source, step, None)) {
                        self.write_packets(dest, &piece, &self.read_padded(source, &piece)?)?;
                    }
                }
            }
            Action::Forward { source, dests } => {
                for piece in self.small_pieces(self.range(source, step, None)) {
                    let data = self.read_packets(step, source, &piece)?;
                    dests.iter().try_for_each(|dest| self.write_packets(dest, &piece, &data))?;
                }
            }
            Action::Unpack { source, dest } => {
                for piece in self.small_pieces(self.range(source, step, None)) {
                    self.write(dest, &piece, &self.read_packets(step, source, &piece)?)?;
                }
            }
            Action::ReducePackets { plain, packets, dest, sends, op } => {
                for piece in self.small_pieces(self.range(dest, step, None)) {
                    let mut data = vec![self.read_padded(plain, &piece)?];
                    for span in packets {
                        data.push(self.read_packets(step, span, &piece)?);
                    }
                    let result = self.reduced(*op, &data);
                    self.write(dest, &piece, &result)?;
                    sends.iter().try_for_each(|dest| self.write_packets(dest, &piece, &result))?;
                }
            }
            Action::Pipeline { unit, chunks, steps } => {
                let all = chunks * shared.geometry.chunk;
                for start in (0..all).step_by((*unit).max(1) as usize) {
                    for step in steps {
                        self.step(step, Some(&(start..start + unit)))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// This block's bytes of a span, limited to the window.
    fn range(&self, span: &Span, step: &Step, window: Option<&Range<u64>>) -> Range<u64> {
        let share = self.shared.geometry.share(span.size, step.share);
        match window {
            None => share,
            Some(window) => {
                let at = |offset: u64| share.start.saturating_add(offset).min(share.end);
                at(window.start)..at(window.end)
            }
        }
    }

    fn small_pieces(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        self.shared.geometry.pieces(range).flat_map(|piece| {
            let starts = (piece.start..piece.end).step_by(AT_ONCE as usize);
            starts.map(move |start| start..piece.end.min(start + AT_ONCE))
        })
    }

    /// Waits until all puts of this PE have arrived.
    fn arrive(&self) -> Result<()> {
        if self.on_its_way.replace(false) {
            self.thread.quiet()?;
        }
        Ok(())
    }

    fn signal(&self, link: &Link) -> Result<()> {
        self.sends_to(link.rank);
        Ok(self.thread.atomic_add(self.shared.word(link.word)?, 1, self.shared.pe(link.rank))?)
    }

    fn sends_to(&self, rank: usize) {
        if !self.mapped[rank] {
            self.on_its_way.set(true);
        }
    }

    /// Copies between this rank's memory and any rank's; a signal follows the data.
    fn copy(&self, source: &Span, dest: &Span, range: Range<u64>, by: ChannelType, then: Option<&Link>) -> Result<()> {
        let shared = self.shared;
        let mut pieces = shared.geometry.pieces(range).peekable();
        while let Some(piece) = pieces.next() {
            let ((from, read), (to, written)) =
                (shared.geometry.locate(source, &piece), shared.geometry.locate(dest, &piece));
            let len = read.min(written);
            let (from, to) = (shared.bytes(source, from, len)?, shared.bytes(dest, to, len)?);
            if source.rank != shared.me {
                self.thread.get(to, from, shared.pe(source.rank))?;
                continue;
            }
            self.sends_to(dest.rank);
            let pe = shared.pe(dest.rank);
            match then {
                Some(link) if pieces.peek().is_none() && len > 0 => {
                    self.thread.fence()?;
                    let word = shared.word(link.word)?;
                    return Ok(self.thread.put_signal_nbi(to, from, SignalUpdate::add(word, 1), pe)?);
                }
                _ if by == ChannelType::Port => self.thread.put_nbi(to, from, pe)?,
                _ => self.thread.put(to, from, pe)?,
            }
        }
        // There was nothing to put, or the last piece was empty.
        if let Some(link) = then {
            self.thread.fence()?;
            self.signal(link)?;
        }
        Ok(())
    }

    /// The existing bytes of a piece.
    fn read(&self, span: &Span, piece: &Range<u64>) -> Result<Vec<u8>> {
        let (at, len) = self.shared.geometry.locate(span, piece);
        let from = self.shared.bytes(span, at, len)?;
        let mut data = vec![0; len as usize];
        if span.rank == self.shared.me {
            self.thread.load_local(&mut data, from)?;
        } else {
            let stage = self.stage.part(0, len)?;
            self.thread.get(stage, from, self.shared.pe(span.rank))?;
            self.thread.load_local(&mut data, stage)?;
        }
        Ok(data)
    }

    /// The bytes of a piece, with zeros for missing ones: packets are always whole.
    fn read_padded(&self, span: &Span, piece: &Range<u64>) -> Result<Vec<u8>> {
        let mut data = self.read(span, piece)?;
        data.resize((piece.end - piece.start) as usize, 0);
        Ok(data)
    }

    /// Writes the existing bytes of a piece.
    fn write(&self, span: &Span, piece: &Range<u64>, data: &[u8]) -> Result<()> {
        let (at, len) = self.shared.geometry.locate(span, piece);
        let len = len.min(data.len() as u64);
        let (to, data) = (self.shared.bytes(span, at, len)?, &data[..len as usize]);
        if span.rank == self.shared.me {
            return Ok(self.thread.store_local(to, data)?);
        }
        self.sends_to(span.rank);
        let stage = self.stage.part(0, len)?;
        self.thread.store_local(stage, data)?;
        Ok(self.thread.put(to, stage, self.shared.pe(span.rank))?)
    }

    fn reduced(&self, op: Option<ReduceOp>, sources: &[Vec<u8>]) -> Vec<u8> {
        let mut result = vec![0; sources.iter().map(Vec::len).max().unwrap_or(0)];
        let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        reduce(self.shared.data_type, self.shared.reduce_op(op), self.shared.accumulate, &mut result, &sources);
        result
    }

    /// The packets of a piece of scratch chunks.
    fn packets(&self, span: &Span, piece: &Range<u64>) -> Result<Symmetric<u64>> {
        let (at, len) = self.shared.geometry.locate(span, piece);
        Ok(self.shared.memory.packets.part(at / 4, len / 4)?)
    }

    fn write_packets(&self, span: &Span, piece: &Range<u64>, data: &[u8]) -> Result<()> {
        let pe = self.shared.pe(span.rank);
        if self.mapped[span.rank] {
            let to = self.packets(span, piece)?;
            let words = packet::words(data, self.shared.flag);
            return words.iter().zip(0..).try_for_each(|(&word, i)| Ok(self.thread.p(to.at(i)?, word, pe)?));
        }
        self.on_its_way.set(true);
        let (at, len) = self.shared.geometry.locate(span, piece);
        let as_bytes = self.shared.memory.packet_bytes.part(2 * at, 2 * len)?;
        let stage = self.stage.part(0, as_bytes.len())?;
        for flag in [0, self.shared.flag] {
            let bytes: Vec<u8> = packet::words(data, flag).iter().flat_map(|word| word.to_ne_bytes()).collect();
            self.thread.store_local(stage, &bytes)?;
            self.thread.put(as_bytes, stage, pe)?;
            self.thread.fence()?;
        }
        Ok(())
    }

    /// Waits for the packets of a piece, and returns their data.
    fn read_packets(&self, step: &Step, span: &Span, piece: &Range<u64>) -> Result<Vec<u8>> {
        let (from, flag) = (self.packets(span, piece)?, self.shared.flag);
        let mut data = Vec::with_capacity((piece.end - piece.start) as usize);
        for i in 0..from.len() {
            let word = from.at(i)?;
            let mut arrived = None;
            let holds = || {
                arrived = packet::data(self.thread.signal_fetch(word)?, flag);
                Ok(arrived.is_some())
            };
            self.shared.wait(self.thread, step, holds, || self.shared.plan.writer_of(span))?;
            data.extend(arrived.ok_or(Error::Call("a packet has gone again".into()))?);
        }
        Ok(data)
    }
}
