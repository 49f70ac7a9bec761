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
//!
//! Small blocks over rails need no word before them: they have room of their own, and are unpacked from there.

use symrail::{Pe, Runtime, Team};

use crate::blocks::{Blocks, Leg, Wrong};
use crate::buffer::Buffer;
use crate::error::{Error, Refusal, Result};
use crate::exchange::{Exchange, Landing};
use crate::flight::Flight;
use crate::small::{self, Small};
use crate::staging::{Memory, Path, Route};
use crate::workspace::Workspace;
use symrail::TeamHeap;
use symrail::team::heap::{ALIGN, Block};

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
    pub(crate) blocks: Blocks,
    pub(crate) exchange: Exchange<'rt>,
    pub(crate) small: Small<'rt>,
    /// What has become of this round, by leg.
    pub(crate) states: Vec<LegState>,
    words: Block,
    /// Words of slots that are not waited for any more.
    pub(crate) done: Vec<i32>,
    /// A round has begun and has not ended.
    pub(crate) under_way: bool,
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
    /// Makes a plan of the blocks. Collective over the team.
    ///
    /// # Errors
    /// [`TeamHeapFull`](symrail::Error::TeamHeapFull).
    pub(crate) fn new(heap: &TeamHeap<'rt>, team: &Team<'_>, mut blocks: Blocks) -> Result<Plan<'rt>> {
        let (runtime, slots) = (heap.runtime(), blocks.slots());
        let mut room = [Small::room(&blocks) as u64];
        team.max_of_all(&mut room)?;
        let (room, rooms_at) = (room[0] as usize, Exchange::bytes(slots).next_multiple_of(ALIGN));
        let words = heap.take_words(team, rooms_at + Small::bytes(slots, room))?;
        // SAFETY: the words are the plan's own, zeroed, and large enough.
        let mut exchange = unsafe { Exchange::new(runtime, words.base.cast(), slots) };
        // SAFETY: as above: what is behind the words.
        let small = unsafe { Small::new(runtime, words.base.wrapping_add(rooms_at), slots, room) };
        // A PE that has all of its peers mapped does not know how they reach it.
        let can_be_small = |leg: &&mut Leg| blocks.mode.direct && leg.flow.most() * blocks.element <= small::MOST;
        let links = blocks.legs.iter_mut().filter(can_be_small).map(|leg| &mut leg.link);
        exchange.agree(&mut links.collect::<Vec<_>>())?;
        let states = vec![LegState::default(); blocks.legs.len()];
        Ok(Plan { runtime, blocks, exchange, small, states, words, done: vec![1; 2 * slots], under_way: false })
    }

    /// Gives the plan up. Collective over the team.
    pub(crate) fn give_up(self, heap: &TeamHeap<'_>, team: &Team<'_>) -> Result<()> {
        Ok(heap.give_back(team, self.words)?)
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

    /// How blocks go to and from each peer, with these buffers.
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

    /// Exchanges the blocks of `input` into `output`, which are separate. Collective over the PEs that exchange
    /// something.
    ///
    /// # Errors
    /// [`Refused`](crate::Error::Refused) for what this PE was given, [`RefusedBy`](crate::Error::RefusedBy) for what
    /// others were; then nothing was exchanged with those, and the plan can be used again. A peer that does not answer:
    /// then it cannot, and says so ([`Broken`](crate::Error::Broken)).
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
        if self.under_way {
            return Err(Error::Broken { pe: self.runtime.my_pe(), operation: self.blocks.what });
        }
        self.under_way = true;
        self.exchange.begin();
        if let Err(wrong) = self.check(&input, &output, work) {
            self.refuse(wrong.0)?;
            self.under_way = false;
            return Err(self.blocks.refused(self.runtime.my_pe(), wrong));
        }
        let in_place = self.blocks.overwrites(input.extent().at, output.extent().at);
        let memories = [&input, &output].map(|buffer| self.memory(buffer.ptr, buffer.bytes));
        Flight::begin(self, (input.ptr, output.ptr, work.base()), memories, in_place)
    }

    /// Whether this PE can use what it was given.
    fn check(&self, input: &Buffer<'_>, output: &Buffer<'_>, work: &Workspace) -> Result<(), Wrong> {
        if [input, output].iter().any(|buffer| self.runtime.is_staged(buffer.ptr)) {
            return Err((Refusal::DeviceMemory, 0, 0));
        }
        self.blocks.check(input.extent(), output.extent(), work, self.blocks.unit(8))
    }

    /// Tells all others that nothing can be exchanged, and waits until they know: then this round is over for all.
    fn refuse(&mut self, refusal: Refusal) -> Result<()> {
        let Plan { runtime, blocks, exchange, small, .. } = self;
        let (with_room, without): (Vec<&Leg>, Vec<&Leg>) = blocks.legs.iter().partition(|leg| leg.link.small);
        without.iter().try_for_each(|leg| exchange.offer(&leg.link, Landing::Refused(refusal)))?;
        for leg in with_room {
            small.outgoing(&leg.link, exchange.round())?;
            small.send(exchange, &leg.link, Err(refusal))?;
        }
        for leg in without {
            if let Landing::Refused(_) = exchange.await_landing(&leg.link)? {
                exchange.tell_arrived(&leg.link)?;
            }
        }
        blocks.legs.iter().try_for_each(|leg| exchange.await_arrived(&leg.link))?;
        Ok(runtime.quiet()?)
    }

    /// What a buffer is, and the workspace.
    fn memory(&self, ptr: *const u8, bytes: usize) -> [Memory; 2] {
        let buffer = if self.exchange.distance(ptr, bytes).is_some() { Memory::Symmetric } else { Memory::Private };
        [buffer, Memory::Symmetric]
    }
}
