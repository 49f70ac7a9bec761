//! Plans: one exchange of blocks between PEs, done as often as wanted.
//!
//! A plan is made by all PEs of a team together and then run by those that exchange something, as often as each other.
//! Several may be under way at once, with a workspace each.
//!
//! 1. Each PE tells the others where their blocks may go: into its output where the [staging rule](crate::staging)
//!    lets them, else into its workspace.
//! 2. As soon as a peer has said so, its block goes there: first to peers over rails, whose NICs then work while the
//!    CPU copies to those that are mapped. These copies pack, permute and move in one.
//! 3. Blocks that have come into the workspace are unpacked as they come.

use symrail::{Pe, Runtime};

use crate::buffer::Buffer;
use crate::error::{Error, Refusal, Result};
use crate::exchange::{Exchange, Landing, Link};
use crate::flight::Flight;
use crate::flow::{Flow, Flows};
use crate::staging::{self, Memory, Operation, Path, Reason, Route};
use crate::team_heap::{ALIGN, Block};
use crate::workspace::Workspace;

/// How a plan does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Mode {
    /// Blocks are unpacked as they come, and sent as they are packed; else all of each step is done before the next.
    pub pipelined: bool,
    /// Blocks go straight from input to output where the staging rule allows it; else through the workspace.
    pub direct: bool,
}

impl Default for Mode {
    fn default() -> Mode {
        Mode { pipelined: true, direct: true }
    }
}

/// Blocks between this PE and another one, and where they wait.
pub(crate) struct Leg {
    pub link: Link,
    pub flow: Flow,
    pub path: Path,
    /// Bytes from the workspace's start: what is to be sent over rails, and what has arrived.
    pub send_room: usize,
    pub receive_room: usize,
    /// What has become of this round.
    pub state: LegState,
}

/// What has become of a round between this PE and another one.
#[derive(Clone, Copy, Default)]
pub(crate) struct LegState {
    /// The other one's block comes into the workspace.
    pub staged: bool,
    pub sent: bool,
    /// The other one's block is where it was to come.
    pub arrived: bool,
    /// It is in the output.
    pub received: bool,
}

/// A plan: see the [module](self).
pub struct Plan<'rt> {
    pub(crate) runtime: &'rt Runtime,
    pub(crate) what: &'static str,
    pub(crate) element: usize,
    pub(crate) mode: Mode,
    pub(crate) exchange: Exchange<'rt>,
    /// Those over rails first.
    pub(crate) legs: Vec<Leg>,
    pub(crate) flows: Flows,
    /// Bytes from the workspace's start where this PE's own blocks wait when they cannot go straight to the output.
    pub(crate) own_room: usize,
    workspace_bytes: usize,
    /// Whose workspaces it can use.
    pub(crate) owner: u64,
    pub(crate) words: Block,
    /// Words of slots that are not waited for any more.
    pub(crate) done: Vec<i32>,
}

/// How blocks go between this PE and another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRoutes {
    /// The other PE.
    pub pe: Pe,
    /// How it is reached.
    pub path: Path,
    /// Whether blocks for it are sent straight from the input.
    pub send: Route,
    /// Whether its blocks arrive straight in the output.
    pub receive: Route,
}

impl<'rt> Plan<'rt> {
    /// `pe` has the PE of each rank. `words` are zero on all PEs of the team.
    pub(crate) fn new(
        runtime: &'rt Runtime,
        (what, element, mode): (&'static str, usize, Mode),
        flows: Flows,
        pe: impl Fn(usize) -> Pe,
        (words, owner): (Block, u64),
    ) -> Plan<'rt> {
        let mut end = 0usize;
        let mut room = |elements: usize| {
            let start = end;
            end = (end + elements * element).next_multiple_of(ALIGN);
            start
        };
        let mut legs: Vec<Leg> = Vec::new();
        for flow in &flows.others {
            let pe = pe(flow.rank);
            let path = if runtime.is_mapped(pe) { Path::Mapped } else { Path::Rails };
            legs.push(Leg {
                link: Link { pe, here: flow.here, there: flow.there },
                flow: *flow,
                path,
                send_room: if path == Path::Rails { room(flow.from.len()) } else { 0 },
                receive_room: room(flow.at.len()),
                state: LegState::default(),
            });
        }
        legs.sort_by_key(|leg| leg.path == Path::Mapped);
        let own_room = room(flows.own.iter().map(|(from, _)| from.len()).sum());
        let slots = flows.slots.max(1);
        // SAFETY: the words are the plan's own, zeroed, and large enough: `words_bytes`.
        let exchange = unsafe { Exchange::new(runtime, words.base.cast(), slots) };
        let (done, workspace_bytes) = (vec![1; 2 * slots], end);
        Plan { runtime, what, element, mode, exchange, legs, flows, own_room, workspace_bytes, owner, words, done }
    }

    /// Bytes of the words that a plan with these blocks needs.
    pub(crate) fn words_bytes(flows: &Flows) -> usize {
        Exchange::bytes(flows.slots.max(1))
    }

    /// Bytes of workspace that this PE needs.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Bytes of the input: the whole pencil, with halo and padding.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.flows.elements.0 * self.element
    }

    /// Bytes of the output.
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        self.flows.elements.1 * self.element
    }

    /// How blocks go to and from each peer, with these buffers.
    #[must_use]
    pub fn routes(&self, input: &Buffer<'_>, output: &Buffer<'_>) -> Vec<PeerRoutes> {
        let in_place = self.overwrites(input.ptr, output.ptr);
        let (from, to) = (self.memory(input.ptr, input.bytes), self.memory(output.ptr, output.bytes));
        let routes_of = |leg: &Leg| PeerRoutes {
            pe: leg.link.pe,
            path: leg.path,
            send: self.send_route(leg, from, in_place),
            receive: self.receive_route(leg, to, in_place),
        };
        self.legs.iter().map(routes_of).collect()
    }

    /// Exchanges the blocks of `input` into `output`, which are separate. Collective over the PEs that exchange
    /// something.
    ///
    /// # Errors
    /// [`Error::Refused`] for what this PE was given, [`Error::RefusedBy`] for what others were; then nothing was
    /// exchanged with those, and the plan can be used again. A peer that does not answer: then it cannot.
    pub fn run<'a>(
        &mut self,
        input: impl Into<Buffer<'a>>,
        output: impl Into<Buffer<'a>>,
        work: &mut Workspace,
    ) -> Result<()> {
        self.start(input, output, work)?.wait()
    }

    /// As [`Plan::run`] with one buffer for both.
    ///
    /// # Errors
    /// As there.
    pub fn run_in_place<'a>(&mut self, buffer: impl Into<Buffer<'a>>, work: &mut Workspace) -> Result<()> {
        let Buffer { ptr, bytes, .. } = buffer.into();
        // SAFETY: the buffer is lent for this call, and the two are used by one thread.
        let [input, output] = [(); 2].map(|()| unsafe { Buffer::raw(ptr, bytes) });
        self.run(input, output, work)
    }

    /// Starts what [`Plan::run`] does, and returns once that has nothing more to do but wait.
    ///
    /// The CPU moves a round on in calls on its own [`Flight`] only: of several that are under way at once, all PEs end
    /// the same one first, or move all on by turns with [`Flight::advance`].
    ///
    /// # Errors
    /// As for [`Plan::run`], but that what other PEs were given may be reported by [`Flight::wait`].
    pub fn start<'p, 'a: 'p>(
        &'p mut self,
        input: impl Into<Buffer<'a>>,
        output: impl Into<Buffer<'a>>,
        work: &'p mut Workspace,
    ) -> Result<Flight<'p, 'rt>> {
        let (input, output) = (input.into(), output.into());
        self.exchange.begin();
        if let Err((refusal, needed, given)) = self.check(&input, &output, work) {
            self.refuse(refusal)?;
            let (pe, operation) = (self.runtime.my_pe(), self.what);
            return Err(Error::Refused { pe, operation, refusal, needed, given });
        }
        let in_place = self.overwrites(input.ptr, output.ptr);
        let memories = [&input, &output].map(|buffer| self.memory(buffer.ptr, buffer.bytes));
        Flight::begin(self, (input.ptr, output.ptr, work.base()), memories, in_place)
    }

    /// What this PE was given and cannot use: what is wrong, what would do, what there is.
    fn check(&self, input: &Buffer<'_>, output: &Buffer<'_>, work: &Workspace) -> Result<(), (Refusal, usize, usize)> {
        let align = self.element.min(8) & self.element.min(8).wrapping_neg();
        for (buffer, needed, refusal) in [
            (input, self.input_bytes(), Refusal::InputTooSmall),
            (output, self.output_bytes(), Refusal::OutputTooSmall),
        ] {
            if buffer.bytes < needed || buffer.ptr.is_null() && needed > 0 {
                return Err((refusal, needed, if buffer.ptr.is_null() { 0 } else { buffer.bytes }));
            }
            if !buffer.ptr.addr().is_multiple_of(align) {
                return Err((Refusal::Misaligned, align, buffer.ptr.addr() % align));
            }
            if self.runtime.is_staged(buffer.ptr) {
                return Err((Refusal::DeviceMemory, 0, 0));
            }
        }
        let (from, to) = (input.ptr.addr(), output.ptr.addr());
        if from != to && from < to + self.output_bytes() && to < from + self.input_bytes() {
            return Err((Refusal::Overlap, self.input_bytes(), from.abs_diff(to)));
        }
        if work.owner() != self.owner {
            return Err((Refusal::OtherWorkspace, self.owner as usize, work.owner() as usize));
        }
        if work.bytes() < self.workspace_bytes {
            return Err((Refusal::WorkspaceTooSmall, self.workspace_bytes, work.bytes()));
        }
        Ok(())
    }

    /// Tells all others that nothing can be exchanged, and waits until they know: then this round is over for all.
    fn refuse(&self, refusal: Refusal) -> Result<()> {
        let links: Vec<Link> = self.legs.iter().map(|leg| leg.link).collect();
        links.iter().try_for_each(|link| self.exchange.offer(link, Landing::Refused(refusal)))?;
        for link in &links {
            if let Landing::Refused(_) = self.exchange.await_landing(link)? {
                self.exchange.tell_arrived(link)?;
            }
        }
        links.iter().try_for_each(|link| self.exchange.await_arrived(link))?;
        Ok(self.runtime.quiet()?)
    }

    /// Whether what arrives would overwrite what has not left.
    fn overwrites(&self, input: *const u8, output: *const u8) -> bool {
        input.addr() == output.addr() && !self.flows.disjoint
    }

    fn memory(&self, ptr: *const u8, bytes: usize) -> Memory {
        if self.exchange.distance(ptr, bytes).is_some() { Memory::Symmetric } else { Memory::Private }
    }

    pub(crate) fn send_route(&self, leg: &Leg, memory: Memory, in_place: bool) -> Route {
        let contiguous = leg.flow.from.lies_as(&leg.flow.into.packed());
        self.route(memory, leg.path, staging::Block { operation: Operation::Send, contiguous, in_place })
    }

    pub(crate) fn receive_route(&self, leg: &Leg, memory: Memory, in_place: bool) -> Route {
        let contiguous = leg.flow.at.is_contiguous();
        self.route(memory, leg.path, staging::Block { operation: Operation::Receive, contiguous, in_place })
    }

    fn route(&self, memory: Memory, path: Path, block: staging::Block) -> Route {
        match staging::route(memory, Memory::Symmetric, path, block) {
            Route::Direct if !self.mode.direct => Route::Staged(Reason::Asked),
            route => route,
        }
    }
}
