//! A resolved plan in the kernels' format: one rank's part, in the layout of `cu/plan.cuh`, in one block of device
//! memory.

use symrail::kernels::layout::{Alarm, Semaphore};
use symrail_core::layout::{Member, bytes};

use super::layout::{self, FLUSHES, MOST_SPANS, OWN_OP, RELAXED};
use crate::error::{Error, Place, Result};
use crate::number::ReduceOp;
use crate::plan::{Action, BufferType, ChannelType, Link, Plan, Span, Step};

/// A rank in the view of this PE's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// Its PE.
    pub pe: u32,
    /// The distance of its memory from this PE's, wrapping; `None` if only the proxy reaches it.
    pub distance: Option<u64>,
    /// Whether this device's atomics reach it.
    pub atomics: bool,
}

/// The addresses of a plan's memory for this PE's device.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The encoded plan.
    pub plan: u64,
    /// Its words in the symmetric heap; [`words`] returns their number.
    pub words: u64,
    /// The communicator's word for giving up.
    pub stop: u64,
    /// Its scratch memory in the symmetric heap, and the part size that it is for.
    pub scratch: u64,
    /// See `scratch`.
    pub capacity: u64,
    /// Four words of pinned memory.
    pub report: u64,
    /// All ranks, in their order.
    pub ranks: Vec<Reached>,
}

/// A rank's part of a plan.
#[derive(Debug, Clone)]
pub struct Image {
    /// The device's memory for it.
    pub bytes: Vec<u8>,
    /// The steps for messages, in the order of the device's list.
    pub steps: Vec<Named>,
    /// The number of blocks.
    pub blocks: u32,
}

/// A step, for messages.
#[derive(Debug, Clone)]
pub struct Named {
    /// Its place in the plan.
    pub place: Place,
    /// The operation.
    pub name: String,
    /// The writers of the packets of each source that it waits for; the first may be this rank's data.
    pub writers: Vec<usize>,
}

/// The number of symmetric words of a plan: those in which signals arrive, and those of barriers.
pub fn words(plan: &Plan) -> usize {
    most_inbound(plan) + plan.ranks.len()
}

fn most_inbound(plan: &Plan) -> usize {
    plan.ranks.iter().map(|rank| rank.inbound.len()).max().unwrap_or(0)
}

/// Encodes a rank's part.
///
/// # Errors
/// The part needs something that this device cannot do: loads, reductions and packets from and to ranks that only the
/// proxy reaches, or one operation on too many chunks.
pub fn encode(plan: &Plan, me: usize, at: &Addresses) -> Result<Image> {
    let rank = &plan.ranks[me];
    let mut lists = Lists::new(plan, me, at);
    let mut first_steps = vec![0];
    for block in &rank.blocks {
        for step in block {
            lists.step(step)?;
        }
        first_steps.push(lists.named.len() as u64);
    }
    let n = plan.ranks.len();
    let inbound = rank.inbound.len();
    let mut body = Body { at: at.plan + size_of::<layout::Plan>() as u64, bytes: Vec::new() };
    let ranks: Vec<_> = at
        .ranks
        .iter()
        .map(|to| layout::Rank {
            pe: to.pe.into(),
            distance: to.distance.unwrap_or(0),
            mapped: to.distance.is_some().into(),
        })
        .collect();
    let ranks = body.list(&ranks);
    let first_steps = body.list(&first_steps);
    let steps = body.list(&lists.steps);
    let spans = body.list(&lists.spans);
    let ids = body.list(&lists.ids);
    let local_semaphores = body.list(&rank.semaphores);
    // Words that change.
    let mut words = |count: usize| body.list(&vec![0u64; count]);
    let (arrivals, epochs) = (words(rank.barriers), words(rank.blocks.len()));
    let (expected, counts) = (words(inbound + n), words(2));
    let semaphores = body.list(&lists.semaphores(expected));
    let geometry = plan.geometry(at.capacity);
    let plain = plan.scratch_bytes(at.capacity);
    let flags = [
        (plan.barriers.before, layout::BARRIER_BEFORE),
        (plan.barriers.after, layout::BARRIER_AFTER),
        (at.ranks.iter().any(|to| to.distance.is_none()), layout::WIRED),
        (lists.mixed(), layout::MIXED),
        (plan.barriers.leaves_puts, layout::LEAVES_PUTS),
    ];
    let flags = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
    let (chunks, inputs, outputs) = plan.parts();
    let inner = match inputs.cmp(&outputs) {
        std::cmp::Ordering::Less if plan.in_place => 1,
        std::cmp::Ordering::Greater if plan.in_place => 2,
        _ => 0,
    };
    let head = layout::Plan {
        alarm: Alarm { report: at.report, stop: at.stop },
        me: me as u64,
        n_ranks: n as u64,
        n_blocks: rank.blocks.len() as u64,
        flags,
        chunks,
        inner,
        alignment: geometry.alignment,
        scratch: at.scratch,
        scratch_halves: plan.scratch_halves,
        packets: at.scratch + plain * plan.scratch_halves,
        halves: plan.packet_halves,
        half_bytes: 2 * plain,
        ranks,
        first_steps,
        steps,
        spans,
        ids,
        semaphores,
        barriers: inbound as u64,
        epochs,
        local_semaphores,
        arrivals,
        begun: counts,
        ended: counts + 8,
    };
    let bytes = [bytes(&[head]), body.bytes].concat();
    Ok(Image { bytes, steps: lists.named, blocks: rank.blocks.len() as u32 })
}

/// The lists behind a plan's head.
struct Body {
    /// The address of the first one.
    at: u64,
    bytes: Vec<u8>,
}

impl Body {
    /// Adds a list, and returns its address.
    fn list<T: Member>(&mut self, list: &[T]) -> u64 {
        let at = self.at + self.bytes.len() as u64;
        self.bytes.extend(bytes(list));
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        at
    }
}

/// The lists of a rank's part, under construction.
struct Lists<'a> {
    plan: &'a Plan,
    me: usize,
    at: &'a Addresses,
    steps: Vec<layout::Step>,
    spans: Vec<layout::Span>,
    ids: Vec<u32>,
    /// The targets of this rank's signals, each once.
    links: Vec<Link>,
    named: Vec<Named>,
    has_packets: bool,
    has_remote_chunks: bool,
}

/// The numbers that only some steps have.
#[derive(Default)]
struct Details<'a> {
    kind: u32,
    flags: u32,
    op: Option<ReduceOp>,
    sources: Vec<Span>,
    dests: Vec<Span>,
    ids: Vec<u32>,
    barrier: (u32, u32),
    pipeline: (u64, u64),
    writers: &'a [Span],
}

impl<'a> Lists<'a> {
    fn new(plan: &'a Plan, me: usize, at: &'a Addresses) -> Self {
        Lists {
            plan,
            me,
            at,
            steps: Vec::new(),
            spans: Vec::new(),
            ids: Vec::new(),
            links: Vec::new(),
            named: Vec::new(),
            has_packets: false,
            has_remote_chunks: false,
        }
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let numbers = |list: &[usize]| list.iter().map(|&id| id as u32).collect();
        let details = match &step.action {
            Action::Nop => Details { kind: layout::NOP, ..Details::default() },
            Action::Barrier { id, blocks } => {
                Details { kind: layout::BARRIER, barrier: (*id as u32, *blocks as u32), ..Details::default() }
            }
            Action::Acquire(ids) => Details { kind: layout::ACQUIRE, ids: numbers(ids), ..Details::default() },
            Action::Release(ids) => Details { kind: layout::RELEASE, ids: numbers(ids), ..Details::default() },
            Action::Signal { to, relaxed } => {
                let flags = if *relaxed { RELAXED } else { 0 };
                Details { kind: layout::SIGNAL, flags, ids: self.link_ids(to), ..Details::default() }
            }
            Action::Wait { on } => Details { kind: layout::WAIT, ids: numbers(on), ..Details::default() },
            Action::Flush => Details { kind: layout::FLUSH, ..Details::default() },
            Action::Copy { pairs, by, then, flush } => {
                let (sources, dests): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
                self.has_remote_chunks |=
                    *by == ChannelType::Memory && dests.iter().chain(&sources).any(|span| span.rank != self.me);
                let flags = if *flush { FLUSHES } else { 0 };
                Details { kind: layout::COPY, flags, sources, dests, ids: self.link_ids(then), ..Details::default() }
            }
            Action::Reduce { sources, dest, sends, op } => {
                let dests: Vec<Span> = std::iter::once(dest).chain(sends).copied().collect();
                self.has_remote_chunks |= dests.iter().chain(sources).any(|span| span.rank != self.me);
                self.reached(step, sources.iter().chain(&dests))?;
                Details { kind: layout::REDUCE, op: *op, sources: sources.clone(), dests, ..Details::default() }
            }
            Action::Pack { pairs } => {
                let (sources, dests): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
                self.has_packets = true;
                self.reached(step, &dests)?;
                Details { kind: layout::PACK, sources, dests, ..Details::default() }
            }
            Action::Forward { source, dests } => {
                self.has_packets = true;
                self.reached(step, dests)?;
                let writers = std::slice::from_ref(source);
                Details {
                    kind: layout::FORWARD,
                    sources: vec![*source],
                    dests: dests.clone(),
                    writers,
                    ..Details::default()
                }
            }
            Action::Unpack { source, dest } => {
                self.has_packets = true;
                let writers = std::slice::from_ref(source);
                Details {
                    kind: layout::UNPACK,
                    sources: vec![*source],
                    dests: vec![*dest],
                    writers,
                    ..Details::default()
                }
            }
            Action::ReducePackets { plain, packets, dest, sends, op } => {
                self.has_packets = true;
                self.reached(step, sends)?;
                let sources: Vec<Span> = std::iter::once(plain).chain(packets).copied().collect();
                let dests: Vec<Span> = std::iter::once(dest).chain(sends).copied().collect();
                self.push(
                    step,
                    &Details {
                        kind: layout::REDUCE_PACKETS,
                        op: *op,
                        writers: &sources.clone(),
                        sources,
                        dests,
                        ..Details::default()
                    },
                )?;
                return Ok(());
            }
            Action::Pipeline { unit, chunks, steps } => {
                let pipeline = (*unit, *chunks);
                self.push(
                    step,
                    &Details {
                        kind: layout::PIPELINE,
                        pipeline,
                        barrier: (0, steps.len() as u32),
                        ..Details::default()
                    },
                )?;
                return steps.iter().try_for_each(|inner| self.step(inner));
            }
        };
        self.push(step, &details)
    }

    fn push(&mut self, step: &Step, details: &Details<'_>) -> Result<()> {
        let (sources, dests) = (&details.sources, &details.dests);
        if sources.len() + dests.len() > MOST_SPANS {
            let reason =
                format!("{}: {} chunks at once, at most {MOST_SPANS} on GPUs", step.name, sources.len() + dests.len());
            return Err(self.refuse(step, reason));
        }
        let op = match details.op {
            None => 0,
            Some(op) if ReduceOp::ON_GPUS.contains(&op) => op_number(op),
            Some(op) => return Err(self.refuse(step, format!("{op} is an operation of the host alone"))),
        };
        let flags = details.flags | if details.op.is_some() { OWN_OP } else { 0 };
        let first_span = self.spans.len() as u32;
        for span in sources.iter().chain(dests) {
            let buffer = match span.buffer {
                BufferType::Input => layout::INPUT,
                BufferType::Output => layout::OUTPUT,
                BufferType::Scratch => layout::SCRATCH,
            };
            let (rank, index, size) = (span.rank as u32, span.index as u32, span.size as u32);
            self.spans.push(layout::Span { rank, buffer, index, size });
        }
        let first_id = self.ids.len() as u32;
        self.ids.extend(&details.ids);
        self.steps.push(layout::Step {
            unit: details.pipeline.0,
            chunks: details.pipeline.1,
            kind: details.kind,
            flags,
            share: step.share.0 as u32,
            shares: step.share.1 as u32,
            op,
            spans: first_span,
            sources: sources.len() as u32,
            dests: dests.len() as u32,
            ids: first_id,
            count: details.ids.len() as u32,
            barrier: details.barrier.0,
            blocks: details.barrier.1,
        });
        let writers = details.writers.iter().map(|span| self.plan.writer_of(span)).collect();
        self.named.push(Named { place: step.place, name: step.name.clone(), writers });
        Ok(())
    }

    /// The indexes of the semaphores for signals to these links.
    fn link_ids(&mut self, to: &[Link]) -> Vec<u32> {
        let first = self.plan.ranks[self.me].inbound.len() + self.plan.ranks.len();
        let mut ids = Vec::with_capacity(to.len());
        for link in to {
            let known = self.links.iter().position(|known| known == link);
            let id = known.unwrap_or_else(|| {
                self.links.push(*link);
                self.links.len() - 1
            });
            ids.push((first + id) as u32);
        }
        ids
    }

    /// The semaphores: those on which signals arrive, one with each rank for barriers, and those that this rank
    /// signals.
    fn semaphores(&self, expected: u64) -> Vec<Semaphore> {
        let (words, most) = (self.at.words, most_inbound(self.plan));
        let inbound = &self.plan.ranks[self.me].inbound;
        let signals = inbound.iter().enumerate().map(|(i, &from)| {
            let (arrived, expected) = (words + 8 * i as u64, expected + 8 * i as u64);
            Semaphore { arrived, expected, there: 0, mapped: 0, pe: self.at.ranks[from].pe.into() }
        });
        let barrier = |rank: usize| words + 8 * (most + rank) as u64;
        let barriers = (0..self.at.ranks.len()).map(|rank| {
            let expected = expected + 8 * (inbound.len() + rank) as u64;
            Semaphore { arrived: barrier(rank), expected, ..self.remote(rank, barrier(self.me)) }
        });
        let links = self.links.iter().map(|link| self.remote(link.rank, words + 8 * link.word as u64));
        signals.chain(barriers).chain(links).collect()
    }

    /// The semaphore of a word of a rank, without a word here.
    fn remote(&self, rank: usize, word: u64) -> Semaphore {
        let to = &self.at.ranks[rank];
        let mapped = to.distance.filter(|_| to.atomics).map_or(0, |distance| word.wrapping_add(distance));
        Semaphore { arrived: 0, expected: 0, there: word, mapped, pe: to.pe.into() }
    }

    /// Whether there are packets as well as plain chunks of other ranks, so that one may order the other.
    fn mixed(&self) -> bool {
        self.has_packets && self.has_remote_chunks
    }

    fn reached<'s>(&self, step: &Step, spans: impl IntoIterator<Item = &'s Span>) -> Result<()> {
        match spans.into_iter().find(|span| self.at.ranks[span.rank].distance.is_none()) {
            Some(span) => {
                let pe = self.at.ranks[span.rank].pe;
                let reason =
                    format!("{}: this GPU does not reach the memory of PE {pe}, only port channels do", step.name);
                Err(self.refuse(step, reason))
            }
            None => Ok(()),
        }
    }

    fn refuse(&self, step: &Step, reason: String) -> Error {
        Error::Plan { plan: self.plan.name.clone(), place: step.place, reason }
    }
}

/// The number in `symrail/number.cuh` of a reduction of [`ReduceOp::ON_GPUS`].
pub fn op_number(op: ReduceOp) -> u32 {
    ReduceOp::ON_GPUS.iter().position(|&known| known == op).unwrap_or_default() as u32
}
