//! Execution plans: the steps of every block of every rank in a collective.
//!
//! A plan is MSCCL++'s JSON ([`schema`]). Loading resolves its names ([`Plan`], by `resolve`), and proves it by a
//! symbolic run, on numbers that identify their sources (`simulate`): every wait ends, every signal is awaited, no
//! accesses race, and every PE gets the collective's result. So a plan that loads can be run.
//!
//! | file | concept |
//! |---|---|
//! | [`schema`] | the file |
//! | here | the resolved plan |
//! | `resolve` | resolves the file, and checks all bounds |
//! | `simulate` | the proof |
//! | [`geometry`] | the offsets of chunks in buffers of a given size |
//! | [`registry`] | the choice among several plans |

pub mod geometry;
pub mod registry;
mod resolve;
pub mod schema;
mod simulate;

use std::path::Path;

pub use schema::{BufferType, ChannelType, Document, Protocol};

use crate::error::{Error, Place, Result};
use crate::number::ReduceOp;

/// The collective of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every PE gets the reduction of all inputs.
    AllReduce,
    /// Every PE gets all inputs, in the order of PEs.
    AllGather,
    /// Every PE gets its part of the reduction of all inputs.
    ReduceScatter,
    /// Every PE gets its part of each PE's input.
    AllToAll,
    /// Every PE gets the input of one PE.
    Broadcast,
    /// One PE gets the reduction of all inputs.
    Reduce,
    /// Another one: chunks are the input's, and the correct result is unknown.
    Other(String),
}

/// Collectives by their names in calls; plans and tables omit the underscores.
const CALLS: [(&str, Collective); 6] = [
    ("all_reduce", Collective::AllReduce),
    ("all_gather", Collective::AllGather),
    ("reduce_scatter", Collective::ReduceScatter),
    ("all_to_all", Collective::AllToAll),
    ("broadcast", Collective::Broadcast),
    ("reduce", Collective::Reduce),
];

impl Collective {
    /// The collective of a plan or of a table's row.
    pub(crate) fn of(name: &str) -> Collective {
        let known = CALLS.into_iter().find(|(call, _)| call.replace('_', "") == name);
        known.map_or_else(|| Collective::Other(name.into()), |(_, collective)| collective)
    }

    /// The collective of a communicator's function, such as `all_reduce`.
    #[must_use]
    pub fn of_call(name: &str) -> Option<Collective> {
        CALLS.into_iter().find(|(call, _)| *call == name).map(|(_, collective)| collective)
    }
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self, CALLS.iter().find(|(_, call)| call == self)) {
            (_, Some((name, _))) => f.write_str(name),
            (Collective::Other(name), None) => write!(f, "{name:?}"),
            (_, None) => Ok(()),
        }
    }
}

/// The checks when a plan is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// It runs to its end, no two accesses race, and every PE gets the collective's result.
    Result,
    /// It runs to its end.
    Ends,
}

/// A plan that was checked.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) name: String,
    pub(crate) collective: Collective,
    pub(crate) in_place: bool,
    /// The number of packet buffers: none, one, or two halves that calls alternate between.
    pub(crate) packet_halves: u64,
    /// The number of buffers of plain scratch chunks: one, or two halves that calls alternate between.
    pub(crate) scratch_halves: u64,
    pub(crate) alignment: u64,
    pub(crate) sizes: std::ops::RangeInclusive<u64>,
    /// Threads of a block, if blocks have several.
    pub(crate) threads: u32,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) barriers: simulate::Barriers,
    /// The root of a broadcast or of a reduction to one rank, which the proof of its result finds.
    pub(crate) root: Option<u32>,
    /// For each rank, the lowest rank that memory channels connect it with, directly or through others.
    pub(crate) groups: Vec<usize>,
}

/// The steps of a rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rank {
    pub input_chunks: u64,
    pub output_chunks: u64,
    pub scratch_chunks: u64,
    pub blocks: Vec<Vec<Step>>,
    /// The initial values of the semaphores between its blocks.
    pub semaphores: Vec<u64>,
    pub barriers: usize,
    /// The sender of each word in which signals arrive.
    pub inbound: Vec<usize>,
}

/// An operation and its place.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub place: Place,
    pub name: String,
    /// This block's share of the data: number and size of the group.
    pub share: (u64, u64),
    pub action: Action,
}

/// Chunks of a buffer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub rank: usize,
    pub buffer: BufferType,
    pub index: u64,
    pub size: u64,
}

/// The target of a signal: a word of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub rank: usize,
    pub word: usize,
}

/// The action of an operation.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// The threads of the block synchronise. A block of the CPU device is one thread.
    Nop,
    Barrier {
        id: usize,
        blocks: usize,
    },
    Acquire(Vec<usize>),
    Release(Vec<usize>),
    /// Ordered behind the block's earlier work, or `relaxed`.
    Signal {
        to: Vec<Link>,
        relaxed: bool,
    },
    Wait {
        on: Vec<usize>,
    },
    Flush,
    /// Copies, each from its source to its destination; then signals; then a flush.
    Copy {
        pairs: Vec<(Span, Span)>,
        by: ChannelType,
        then: Vec<Link>,
        flush: bool,
    },
    /// Reduces the sources into `dest`, and copies the result to `sends`.
    Reduce {
        sources: Vec<Span>,
        dest: Span,
        sends: Vec<Span>,
        op: Option<ReduceOp>,
    },
    /// Converts data to packets.
    Pack {
        pairs: Vec<(Span, Span)>,
    },
    /// Waits for packets and copies them unchanged.
    Forward {
        source: Span,
        dests: Vec<Span>,
    },
    /// Waits for packets and stores their data.
    Unpack {
        source: Span,
        dest: Span,
    },
    /// Reduces data and packets into `dest`, and sends the result as packets.
    ReducePackets {
        plain: Span,
        packets: Vec<Span>,
        dest: Span,
        sends: Vec<Span>,
        op: Option<ReduceOp>,
    },
    /// Repeats steps, each time on the next bytes of their data.
    Pipeline {
        unit: u64,
        chunks: u64,
        steps: Vec<Step>,
    },
}

impl Plan {
    /// Loads and checks a plan's file.
    ///
    /// # Errors
    /// The file cannot be read, or the plan is refused: the error names plan, rank, block and operation.
    pub fn load(path: impl AsRef<Path>, check: Check) -> Result<Plan> {
        Plan::new(&Document::load(path)?, check)
    }

    /// Checks a plan in JSON.
    ///
    /// # Errors
    /// As for [`Plan::load`].
    pub fn from_json(text: &str, check: Check) -> Result<Plan> {
        Plan::new(&Document::from_json(text, "a text")?, check)
    }

    /// Checks a plan.
    ///
    /// # Errors
    /// The plan is refused: the error names plan, rank, block and operation.
    pub fn new(document: &Document, check: Check) -> Result<Plan> {
        let mut plan = resolve::resolve(document)?;
        (plan.barriers, plan.root) = simulate::simulate(&plan, check)?;
        Ok(plan)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its collective.
    #[must_use]
    pub fn collective(&self) -> &Collective {
        &self.collective
    }

    /// The number of its PEs.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Whether input and output are the same memory.
    #[must_use]
    pub fn in_place(&self) -> bool {
        self.in_place
    }

    /// All operations, including those of pipelines.
    fn steps(&self) -> impl Iterator<Item = &Step> {
        let blocks = self.ranks.iter().flat_map(|rank| &rank.blocks).flatten();
        blocks.flat_map(|step| match &step.action {
            Action::Pipeline { steps, .. } => steps.iter(),
            _ => std::slice::from_ref(step).iter(),
        })
    }

    /// Refuses a device that runs at most so many blocks at once: blocks wait for one another, also for some that could
    /// not begin.
    ///
    /// # Errors
    /// A rank has more blocks.
    pub fn check_blocks(&self, at_once: usize) -> Result<()> {
        let Some((rank, blocks)) =
            self.ranks.iter().map(|rank| rank.blocks.len()).enumerate().find(|(_, blocks)| *blocks > at_once)
        else {
            return Ok(());
        };
        let threads = self.threads;
        let reason = format!("{blocks} blocks of {threads} threads, of which this device runs {at_once} at once");
        Err(self.refuse(Place { rank: Some(rank), ..Place::default() }, reason + ": use fewer blocks or threads"))
    }

    /// An operation whose reduction the plan fixes differently from this one.
    pub(crate) fn other_op(&self, op: ReduceOp) -> Option<(Place, ReduceOp)> {
        let fixed = self.steps().filter_map(|step| match step.action {
            Action::Reduce { op: Some(op), .. } | Action::ReducePackets { op: Some(op), .. } => Some((step.place, op)),
            _ => None,
        });
        fixed.into_iter().find(|(_, fixed)| *fixed != op)
    }

    /// Whether ranks access this buffer of other ranks.
    #[must_use]
    pub fn shares(&self, buffer: BufferType) -> bool {
        let remote = |step: &Step, span: &Span| step.place.rank != Some(span.rank) && span.buffer == buffer;
        self.steps().any(|step| match &step.action {
            Action::Copy { pairs, .. } | Action::Pack { pairs } => {
                pairs.iter().any(|(source, dest)| remote(step, source) || remote(step, dest))
            }
            Action::Reduce { sources, dest, sends, .. } => {
                sources.iter().chain(sends).chain([dest]).any(|span| remote(step, span))
            }
            // Packets are in scratch buffers.
            _ => false,
        })
    }

    /// Whether ranks access other ranks' memory by puts from scratch chunks to scratch chunks only.
    fn puts_scratch_only(&self) -> bool {
        self.steps().all(|step| {
            let own = |span: &Span| step.place.rank == Some(span.rank);
            let scratch = |span: &Span| span.buffer == BufferType::Scratch;
            match &step.action {
                Action::Copy { pairs, .. } => {
                    pairs.iter().all(|(from, to)| own(from) && (own(to) || scratch(from) && scratch(to)))
                }
                Action::Reduce { sources, dest, sends, .. } => sources.iter().chain(sends).chain([dest]).all(own),
                Action::Pack { .. } | Action::Forward { .. } | Action::ReducePackets { .. } => false,
                _ => true,
            }
        })
    }

    /// The rank that writes packets of these chunks.
    pub(crate) fn writer_of(&self, span: &Span) -> usize {
        let overlaps_it = |dest: &Span| {
            let end = |span: &Span| span.index + span.size;
            (dest.rank, dest.buffer) == (span.rank, span.buffer) && dest.index < end(span) && span.index < end(dest)
        };
        let writes = |step: &&Step| match &step.action {
            Action::Pack { pairs } => pairs.iter().any(|(_, dest)| overlaps_it(dest)),
            Action::Forward { dests, .. } => dests.iter().any(overlaps_it),
            Action::ReducePackets { sends, .. } => sends.iter().any(overlaps_it),
            _ => false,
        };
        self.steps().find(writes).and_then(|step| step.place.rank).unwrap_or(span.rank)
    }

    fn refuse(&self, place: Place, reason: impl Into<String>) -> Error {
        Error::Plan { plan: self.name.clone(), place, reason: reason.into() }
    }
}
