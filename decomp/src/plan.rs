//! Plans: one exchange of blocks between PEs, which runs any number of times.
//!
//! All PEs of a team make a plan together. The PEs that exchange blocks then run it, equally often. Several plans may
//! be in flight at once, with a workspace each.
//!
//! 1. Each PE signals to the others where their blocks may go: to its output where the [staging rule](crate::staging)
//!    allows it, otherwise to its workspace.
//! 2. As soon as a peer has signalled that, its block goes there. Blocks over rails go first, so that the NICs work
//!    while the CPU copies to mapped peers. These copies pack, permute and move in one.
//! 3. Each PE unpacks blocks from its workspace as they arrive.
//!
//! Small blocks over rails need no signal before them. They have buffers of their own, and are unpacked from there.

use symrail::rounds::Poison;
use symrail::{Delivery, Pe, Runtime, Team};

use crate::blocks::{Blocks, Leg, Wrong};
use crate::buffer::Buffer;
use crate::counters::Counters;
use crate::error::{Refusal, Result};
use crate::exchange::{Exchange, Landing};
use crate::flight::Flight;
use crate::small::Small;
use crate::staging::{Memory, Path, Route};
use crate::workspace::Workspace;
use symrail::TeamHeap;
use symrail::team::heap::{ALIGN, Block};

/// The state of a round between this PE and another one.
#[derive(Clone, Copy, Default)]
pub(crate) struct LegState {
    /// Whether the other PE's block goes to the workspace.
    pub staged: bool,
    pub sent: bool,
    /// Whether the other PE's block has arrived.
    pub arrived: bool,
    /// Whether it is in the output.
    pub received: bool,
}

/// A plan: see the [module](self).
pub struct Plan {
    pub(crate) blocks: Blocks,
    pub(crate) exchange: Exchange,
    pub(crate) small: Small,
    /// The puts of this round from the input or the workspace, by leg.
    pub(crate) leaving: Vec<Option<Delivery>>,
    /// The state of this round, by leg.
    pub(crate) states: Vec<LegState>,
    words: Block,
    /// Flags of the words that the round no longer waits for.
    pub(crate) done: Vec<i32>,
    pub(crate) poison: Poison,
    pub(crate) counters: Counters,
    pub(crate) runtime: Runtime,
}

/// The routes of blocks between this PE and another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRoutes {
    /// The other PE.
    pub pe: Pe,
    /// How this PE reaches it.
    pub path: Path,
    /// The route of blocks for it: straight from the input, or not.
    pub send: Route,
    /// The route of its blocks: straight to the output, or not.
    pub receive: Route,
}

impl Plan {
    /// Makes a plan of the blocks. Collective over the team.
    ///
    /// # Errors
    /// [`TeamHeapFull`](symrail::Error::TeamHeapFull).
    pub(crate) fn new(heap: &TeamHeap, team: &Team, mut blocks: Blocks) -> Result<Plan> {
        let (runtime, slots) = (heap.runtime(), blocks.slots());
        let mut room = [Small::room(&blocks) as u64];
        team.max_of_all(&mut room)?;
        let (room, rooms_at) = (room[0] as usize, Exchange::bytes(slots).next_multiple_of(ALIGN));
        let words = heap.take_words(team, rooms_at + Small::bytes(slots, room))?;
        // SAFETY: the words are the plan's own, zeroed, and large enough.
        let mut exchange = unsafe { Exchange::new(runtime, words.base.cast(), slots) };
        // SAFETY: as above, for the memory after the words.
        let small = unsafe { Small::new(words.base.wrapping_add(rooms_at), slots, room) };
        // A PE that has mapped all of its peers does not know how they reach it.
        exchange.agree(&mut blocks.legs.iter_mut().map(|leg| &mut leg.link).collect::<Vec<_>>())?;
        let states = vec![LegState::default(); blocks.legs.len()];
        let leaving = blocks.legs.iter().map(|_| None).collect();
        let done = vec![1; 2 * slots];
        let (runtime, poison, counters) = (runtime.clone(), Poison::default(), Counters::default());
        Ok(Plan { runtime, blocks, exchange, small, leaving, states, words, done, poison, counters })
    }

    /// Frees the plan. Collective over the team.
    pub(crate) fn free(self, team: &Team) -> Result<()> {
        Ok(self.words.free(team)?)
    }

    /// Its symmetric memory, to be freed with others.
    pub(crate) fn into_block(self) -> Block {
        self.words
    }

    /// How the host reaches a PE.
    pub(crate) fn path(runtime: &Runtime, pe: Pe) -> Path {
        if runtime.is_mapped(pe) { Path::Mapped } else { Path::Rails }
    }

    /// Bytes of workspace that this PE needs.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.blocks.workspace_bytes
    }

    /// Bytes of the input: the whole pencil, with halo and padding.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.blocks.input_bytes()
    }

    /// Bytes of the output.
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        self.blocks.output_bytes()
    }

    /// The blocks that the plan has moved, by the way that each block took.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The routes of blocks to and from each peer with these buffers.
    #[must_use]
    pub fn routes(&self, input: &Buffer<'_>, output: &Buffer<'_>) -> Vec<PeerRoutes> {
        let in_place = self.blocks.overwrites(input.extent().at, output.extent().at);
        let [from, to] = [input, output].map(|buffer| self.memory(buffer.ptr, buffer.bytes));
        let routes_of = |leg: &Leg| PeerRoutes {
            pe: leg.link.pe,
            path: leg.path,
            send: self.blocks.send_route(leg, from, in_place),
            receive: self.blocks.receive_route(leg, to, in_place),
        };
        self.blocks.legs.iter().map(routes_of).collect()
    }

    /// Exchanges the blocks of `input` into `output`, which are separate buffers. Collective over the PEs that exchange
    /// blocks.
    ///
    /// # Errors
    /// [`Refused`](crate::Error::Refused) for arguments of this PE, [`RefusedBy`](crate::Error::RefusedBy) for
    /// arguments of other PEs. Nothing is then exchanged with those PEs, and the plan can be used again. If a peer does
    /// not answer, an error names it; if one that lives does not come within `SYMRAIL_TIMEOUT_S`, the error is
    /// [`Interrupted`](symrail::Error::Interrupted). The plan then cannot be used again
    /// ([`Poisoned`](symrail::rounds::Error::Poisoned)).
    pub fn run<'a>(
        &mut self,
        input: impl Into<Buffer<'a>>,
        output: impl Into<Buffer<'a>>,
        work: &mut Workspace,
    ) -> Result<()> {
        self.start(input, output, work)?.wait()
    }

    /// As [`Plan::run`] with one buffer for input and output.
    ///
    /// # Errors
    /// As for [`Plan::run`].
    pub fn run_in_place<'a>(&mut self, buffer: impl Into<Buffer<'a>>, work: &mut Workspace) -> Result<()> {
        let Buffer { ptr, bytes, .. } = buffer.into();
        // SAFETY: the caller lends the buffer for this call, and one thread uses the two.
        let [input, output] = [(); 2].map(|()| unsafe { Buffer::raw(ptr, bytes) });
        self.run(input, output, work)
    }

    /// Starts what [`Plan::run`] does, and returns when the remaining steps need a wait.
    ///
    /// The CPU advances a round only in calls on its own [`Flight`]. If several rounds are in flight at once, all PEs
    /// end the same one first, or advance all of them in turn with [`Flight::advance`].
    ///
    /// # Errors
    /// As for [`Plan::run`], but [`Flight::wait`] may return the errors for other PEs' arguments.
    pub fn start<'p, 'a: 'p>(
        &'p mut self,
        input: impl Into<Buffer<'a>>,
        output: impl Into<Buffer<'a>>,
        work: &'p mut Workspace,
    ) -> Result<Flight<'p>> {
        let (input, output) = (input.into(), output.into());
        self.runtime.check_joined()?;
        self.poison.begin(self.runtime.my_pe(), self.blocks.kind.what)?;
        self.exchange.begin(self.blocks.legs.iter().map(|leg| &leg.link));
        if let Err(wrong) = self.check(&input, &output, work) {
            self.refuse(wrong.0)?;
            self.poison.end();
            return Err(self.blocks.refused(self.runtime.my_pe(), wrong));
        }
        let in_place = self.blocks.overwrites(input.extent().at, output.extent().at);
        let memories = [&input, &output].map(|buffer| self.memory(buffer.ptr, buffer.bytes));
        Flight::begin(self, input.ptr, output.ptr, work.base(), memories, in_place)
    }

    /// Checks the arguments of a round. Not collective.
    pub(crate) fn accepts(&self, input: &Buffer<'_>, output: &Buffer<'_>, work: &Workspace) -> Result<()> {
        self.check(input, output, work).map_err(|wrong| self.blocks.refused(self.runtime.my_pe(), wrong))
    }

    /// Checks the arguments of this PE.
    fn check(&self, input: &Buffer<'_>, output: &Buffer<'_>, work: &Workspace) -> Result<(), Wrong> {
        if [input, output].iter().any(|buffer| self.runtime.is_staged(buffer.ptr)) {
            return Err((Refusal::DeviceMemory, 0, 0));
        }
        self.blocks.check(input.extent(), output.extent(), work, self.blocks.unit(8))
    }

    /// Signals to all others that nothing can be exchanged, and waits until they have read it. The round has then ended
    /// for all.
    fn refuse(&mut self, refusal: Refusal) -> Result<()> {
        let Plan { runtime, blocks, exchange, small, .. } = self;
        let (with_room, without): (Vec<&Leg>, Vec<&Leg>) = blocks.legs.iter().partition(|leg| leg.link.small);
        without.iter().try_for_each(|leg| exchange.offer(&leg.link, Landing::Refused(refusal)))?;
        for leg in with_room {
            small.outgoing(&leg.link, exchange.round())?;
            small.send(exchange, &leg.link, Err(refusal))?;
        }
        for leg in without {
            let refused = matches!(exchange.await_landing(&leg.link)?, Landing::Refused(_));
            // A word that counts must count each round.
            if refused || leg.link.counted_there {
                exchange.signal_arrival(&leg.link)?;
            }
        }
        blocks.legs.iter().try_for_each(|leg| exchange.await_arrived(&leg.link))?;
        Ok(runtime.quiet()?)
    }

    /// The kinds of memory of a buffer and of the workspace.
    fn memory(&self, ptr: *const u8, bytes: usize) -> [Memory; 2] {
        let buffer = if self.exchange.distance(ptr, bytes).is_some() { Memory::Symmetric } else { Memory::Private };
        [buffer, Memory::Symmetric]
    }
}
