//! What a plan exchanges: blocks with other PEs, where they wait, and what buffers suit.

use symrail::Pe;

use crate::error::{Error, Refusal};
use crate::exchange::Link;
use crate::flow::{Flow, Flows};
use crate::mode::Mode;
use crate::staging::{self, Memory, Operation, Path, Reason, Route};
use crate::workspace::Workspace;
use symrail::team::heap::ALIGN;

/// Blocks between this PE and another one, and where they wait.
pub(crate) struct Leg {
    pub link: Link,
    pub flow: Flow,
    pub path: Path,
    /// Bytes from the workspace's start: what is to be sent over rails, and what has arrived.
    pub send_room: usize,
    pub receive_room: usize,
    /// A copy engine fetches the other end's block, and the other end's this PE's.
    pub fetch: Option<Fetch>,
}

/// Where this PE's block waits for the other end, and the other end's for this PE: addresses of this GPU.
#[derive(Clone, Copy)]
pub(crate) struct Fetch {
    pub here: u64,
    pub there: u64,
}

/// The blocks of a plan.
pub(crate) struct Blocks {
    pub what: &'static str,
    /// Bytes of an element.
    pub element: usize,
    pub mode: Mode,
    /// Those over rails first.
    pub legs: Vec<Leg>,
    pub flows: Flows,
    /// Bytes from the workspace's start where this PE's own blocks wait when they cannot go straight to the output.
    pub own_room: usize,
    pub workspace_bytes: usize,
    /// Whose workspaces it can use.
    pub owner: u64,
}

/// Memory that a plan is given: its address and its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub at: u64,
    pub bytes: usize,
}

/// What is wrong with what a PE was given, what would do, and what there is.
pub(crate) type Wrong = (Refusal, usize, usize);

impl Blocks {
    /// `pe` has the PE of each rank, and `path` how it is reached. Blocks over rails of up to `small` bytes have rooms
    /// of their own.
    pub fn new(
        (what, element, mode): (&'static str, usize, Mode),
        flows: Flows,
        pe: impl Fn(usize) -> Pe,
        path: impl Fn(Pe) -> Path,
        (owner, small): (u64, usize),
    ) -> Blocks {
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
                link: Link { pe, here: flow.here, there: flow.there, small },
                flow: *flow,
                path,
                send_room: if path == Path::Rails { room(flow.from.len()) } else { 0 },
                receive_room: room(flow.at.len()),
                fetch: None,
            });
        }
        legs.sort_by_key(|leg| leg.path == Path::Mapped);
        let own_room = room(flows.own.iter().map(|(from, _)| from.len()).sum());
        Blocks { what, element, mode, legs, flows, own_room, workspace_bytes: end, owner }
    }

    /// Bytes of the input: the whole pencil, with halo and padding.
    pub fn input_bytes(&self) -> usize {
        self.flows.elements.0 * self.element
    }

    /// Bytes of the output.
    pub fn output_bytes(&self) -> usize {
        self.flows.elements.1 * self.element
    }

    /// Slots of words.
    pub fn slots(&self) -> usize {
        self.flows.slots.max(1)
    }

    /// Whether what arrives would overwrite what has not left.
    pub fn overwrites(&self, input: u64, output: u64) -> bool {
        input == output && !self.flows.disjoint
    }

    /// Whether input, output and workspace will do, with addresses that are multiples of `align`.
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
        if work.owner() != self.owner {
            return Err((Refusal::OtherWorkspace, self.owner as usize, work.owner() as usize));
        }
        if work.bytes() < self.workspace_bytes {
            return Err((Refusal::WorkspaceTooSmall, self.workspace_bytes, work.bytes()));
        }
        Ok(())
    }

    /// The error for what PE `pe` was given.
    pub fn refused(&self, pe: Pe, (refusal, needed, given): Wrong) -> Error {
        Error::Refused { pe, operation: self.what, refusal, needed, given }
    }

    /// The largest power of two that divides an element's size, and is not more than `most`.
    pub fn unit(&self, most: usize) -> usize {
        most.min(self.element & self.element.wrapping_neg())
    }

    /// How a block for another PE leaves a buffer.
    pub fn send_route(&self, leg: &Leg, memory: [Memory; 2], in_place: bool) -> Route {
        let contiguous = leg.flow.from.lies_as(&leg.flow.into.packed());
        self.route(memory, leg, staging::Block { operation: Operation::Send, contiguous, in_place })
    }

    /// How another PE's block comes into a buffer.
    pub fn receive_route(&self, leg: &Leg, memory: [Memory; 2], in_place: bool) -> Route {
        let contiguous = leg.flow.at.is_contiguous();
        self.route(memory, leg, staging::Block { operation: Operation::Receive, contiguous, in_place })
    }

    /// `memory` is that of the buffer and of the workspace.
    fn route(&self, [buffer, workspace]: [Memory; 2], leg: &Leg, block: staging::Block) -> Route {
        match staging::route(buffer, workspace, leg.path, block) {
            Route::Direct if leg.link.small => Route::Staged(Reason::Small),
            Route::Direct if !self.mode.direct => Route::Staged(Reason::Asked),
            route => route,
        }
    }
}
