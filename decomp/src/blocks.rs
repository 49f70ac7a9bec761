//! The blocks that a plan exchanges, their places in the workspace, and the buffers that it accepts.

use std::ops::Range;

use symrail::Pe;

use crate::error::{Error, Refusal};
use crate::exchange::Link;
use crate::flow::{Flow, Flows};
use crate::mode::Mode;
use crate::staging::{self, Memory, Operation, Path, Reason, Route};
use crate::workspace::Workspace;
use symrail::team::heap::ALIGN;

/// The blocks between this PE and another one, and their places in the workspace.
pub(crate) struct Leg {
    pub link: Link,
    pub flow: Flow,
    pub path: Path,
    /// Offsets in the workspace, in bytes: of the block to be sent over rails, and of the block that arrives.
    pub send_room: usize,
    pub receive_room: usize,
    /// The buffers of a fetch, if copy engines fetch both ends' blocks.
    pub fetch: Option<Fetch>,
}

/// The buffers of the two blocks that copy engines fetch: this PE's, and the other end's, as addresses of this GPU.
#[derive(Clone, Copy)]
pub(crate) struct Fetch {
    pub here: u64,
    pub there: u64,
}

/// What a plan is, beside its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub what: &'static str,
    /// Bytes of an element.
    pub element: usize,
    pub mode: Mode,
    /// The owner whose workspaces the plan accepts.
    pub owner: u64,
    /// The most bytes of a block over rails that has buffers of its own.
    pub small: usize,
}

#[cfg(test)]
impl Kind {
    /// A kind whose plans have no owner, and no buffers for small blocks.
    pub fn test(element: usize, mode: Mode) -> Kind {
        Kind { what: "a test", element, mode, owner: 0, small: 0 }
    }
}

/// The blocks of a plan.
pub(crate) struct Blocks {
    pub kind: Kind,
    /// The legs, those over rails first.
    pub legs: Vec<Leg>,
    pub flows: Flows,
    /// The offset in the workspace, in bytes, of this PE's own blocks when they cannot go straight to the output.
    pub own_room: usize,
    pub workspace_bytes: usize,
}

/// Memory that the caller passes to a plan: its address and its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub at: u64,
    pub bytes: usize,
}

/// An error of an argument: the reason, the value that is needed, and the value that was given.
pub(crate) type Wrong = (Refusal, usize, usize);

impl Blocks {
    /// `pe` returns the PE of each rank, and `path` how this PE reaches it.
    pub fn new(kind: Kind, flows: Flows, pe: impl Fn(usize) -> Pe, path: impl Fn(Pe) -> Path) -> Blocks {
        let Kind { element, mode, small, .. } = kind;
        let mut end = 0usize;
        let mut room = |elements: usize| {
            let start = end;
            end = (end + elements * element).next_multiple_of(ALIGN);
            start
        };
        let mut legs: Vec<Leg> = Vec::new();
        for flow in &flows.others {
            let pe = pe(flow.rank);
            let path = path(pe);
            let small = mode.direct && path == Path::Rails && flow.most() * element <= small;
            legs.push(Leg {
                link: Link {
                    pe,
                    here: flow.here,
                    there: flow.there,
                    small,
                    counted_there: path == Path::Rails,
                    counted_here: false,
                },
                flow: *flow,
                path,
                send_room: if path == Path::Rails { room(flow.from.len()) } else { 0 },
                receive_room: room(flow.at.len()),
                fetch: None,
            });
        }
        legs.sort_by_key(|leg| leg.path == Path::Mapped);
        let own_room = room(flows.own.iter().map(|(from, _)| from.len()).sum());
        Blocks { kind, legs, flows, own_room, workspace_bytes: end }
    }

    /// Bytes of the input: the whole pencil, with halo and padding.
    pub fn input_bytes(&self) -> usize {
        self.flows.elements.0 * self.kind.element
    }

    /// Bytes of the output.
    pub fn output_bytes(&self) -> usize {
        self.flows.elements.1 * self.kind.element
    }

    /// The legs of each part, at least one group. Where rails are involved, all are exchanged together.
    pub fn groups(&self) -> Vec<Range<usize>> {
        let mapped = self.legs.iter().all(|leg| leg.path == Path::Mapped);
        let groups = self.legs.chunk_by(|a, b| !mapped || a.flow.part == b.flow.part);
        let range = |end: &mut usize, group: &[Leg]| {
            *end += group.len();
            Some(*end - group.len()..*end)
        };
        let mut all: Vec<_> = groups.scan(0, range).collect();
        if all.is_empty() {
            all.push(0..0);
        }
        all
    }

    /// The number of slots of words.
    pub fn slots(&self) -> usize {
        self.flows.slots.max(1)
    }

    /// Whether arriving blocks would overwrite blocks that have not been sent.
    pub fn overwrites(&self, input: u64, output: u64) -> bool {
        input == output && !self.flows.disjoint
    }

    /// Checks input, output and workspace. Their addresses must be multiples of `align`.
    pub fn check(&self, input: Extent, output: Extent, work: &Workspace, align: usize) -> Result<(), Wrong> {
        for (buffer, needed, refusal) in [
            (input, self.input_bytes(), Refusal::InputTooSmall),
            (output, self.output_bytes(), Refusal::OutputTooSmall),
        ] {
            if buffer.bytes < needed || buffer.at == 0 && needed > 0 {
                return Err((refusal, needed, if buffer.at == 0 { 0 } else { buffer.bytes }));
            }
            if !buffer.at.is_multiple_of(align as u64) {
                return Err((Refusal::Misaligned, align, (buffer.at % align as u64) as usize));
            }
        }
        let (from, to) = (input.at, output.at);
        if from != to && from < to + self.output_bytes() as u64 && to < from + self.input_bytes() as u64 {
            return Err((Refusal::Overlap, self.input_bytes(), from.abs_diff(to) as usize));
        }
        if work.owner() != self.kind.owner {
            return Err((Refusal::OtherWorkspace, self.kind.owner as usize, work.owner() as usize));
        }
        if work.bytes() < self.workspace_bytes {
            return Err((Refusal::WorkspaceTooSmall, self.workspace_bytes, work.bytes()));
        }
        Ok(())
    }

    /// The error for an argument of PE `pe`.
    pub fn refused(&self, pe: Pe, (refusal, needed, given): Wrong) -> Error {
        Error::Refused { pe, operation: self.kind.what, refusal, needed, given }
    }

    /// The largest power of two that divides an element's size, and is not more than `most`.
    pub fn unit(&self, most: usize) -> usize {
        most.min(self.kind.element & self.kind.element.wrapping_neg())
    }

    /// The route of a block for another PE out of a buffer.
    pub fn send_route(&self, leg: &Leg, memory: [Memory; 2], in_place: bool) -> Route {
        let contiguous = leg.flow.from.lies_as(&leg.flow.into.packed());
        self.route(memory, leg, staging::Block { operation: Operation::Send, contiguous, in_place })
    }

    /// The route of another PE's block into a buffer.
    pub fn receive_route(&self, leg: &Leg, memory: [Memory; 2], in_place: bool) -> Route {
        let contiguous = leg.flow.at.is_contiguous();
        self.route(memory, leg, staging::Block { operation: Operation::Receive, contiguous, in_place })
    }

    /// `memory` describes the buffer and the workspace.
    fn route(&self, [buffer, workspace]: [Memory; 2], leg: &Leg, block: staging::Block) -> Route {
        match staging::route(buffer, workspace, leg.path, block) {
            Route::Direct if leg.link.small => Route::Staged(Reason::Small),
            Route::Direct if !self.kind.mode.direct => Route::Staged(Reason::Asked),
            route => route,
        }
    }
}
