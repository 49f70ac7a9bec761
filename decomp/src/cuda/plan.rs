//! Plans on GPUs.

use symrail::kernels::cuda::{DeviceBuffer, Gpu, LastUse, PinnedBuffer, Stream, in_turn};
use symrail_core::{layout, word_of};

use super::binding::{Binding, Buffers, Copies, Group, Round};
use super::engines::{self, Beside};
use super::images::Images;
use super::kernels::GpuKernels;
use super::layout::{Landing, Leg, PlanMemory, PlanReport};
use super::room::Room;
use crate::blocks::{Blocks, Extent, Wrong};
use crate::counters::Counters;
use crate::error::{Error, Refusal, Result};
use crate::staging::{Memory, Path};
use crate::workspace::Workspace;
use symrail::rounds::Report;
use symrail::team::heap::Block;
use symrail::{Runtime, Team, TeamHeap};

/// Words of the report, which begins with that of waits: [`Report::of`].
const REFUSAL: usize = word_of!(PlanReport, refusal.refusal);
const REFUSED_BY: usize = word_of!(PlanReport, refusal.pe);

/// Memory that the GPU reaches, at the address that kernels use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GpuMemory {
    /// The address.
    pub at: u64,
    /// The number of bytes.
    pub bytes: usize,
}

/// A plan on a GPU. All PEs that exchange blocks enqueue its rounds on streams, equally often and in the same order, in
/// which they run, whatever the streams. Several plans may be in flight on several streams, each with its own
/// workspace.
pub struct GpuPlan {
    pub(crate) blocks: Blocks,
    words: Block,
    /// The rooms for blocks that copy engines fetch, and the stream for them, or for parts that are unpacked in turn.
    rooms: Option<Block>,
    beside: Option<Beside>,
    /// [`PlanMemory`], followed by the landings.
    own: DeviceBuffer,
    report: PinnedBuffer,
    images: Images,
    /// Behind the last round, whose words and image the next one uses.
    last: LastUse,
    /// Whether the GPU reaches the words of all peers, in GPU memory.
    near: bool,
    /// The room for waiting blocks, for rounds of one launch.
    room: Option<Room>,
    kernels: GpuKernels,
    counters: Counters,
}

impl GpuPlan {
    /// Makes a plan of the blocks. Collective over the team.
    ///
    /// # Errors
    /// [`TeamHeapFull`](symrail::Error::TeamHeapFull); an error of the driver;
    /// [`PeerRefused`](symrail::rounds::Error::PeerRefused) if another PE's driver returned an error.
    pub(crate) fn new(kernels: &GpuKernels, heap: &TeamHeap, team: &Team, mut blocks: Blocks) -> Result<GpuPlan> {
        let (device, gpu) = (kernels.device(), kernels.device().gpu());
        let words = heap.take_words(team, 3 * size_of::<u64>() * blocks.slots())?;
        let engines = blocks.kind.mode.engines.is_some();
        let rooms = match engines.then(|| GpuPlan::agree_on_rooms(kernels, heap, team, &mut blocks)).transpose() {
            Err(full) if full.is_full() => {
                words.free(team)?;
                return Err(full);
            }
            rooms => rooms?,
        };
        // The following steps can fail on one GPU alone.
        let made = (|| {
            let own = gpu.alloc(size_of::<PlanMemory>() + size_of::<Landing>() * blocks.legs.len())?;
            own.fill(0)?;
            let report = PinnedBuffer::new(gpu, size_of::<PlanReport>())?;
            let (at, told) = (own.at().get(), report.device().get());
            let memory = PlanMemory::new(at, device.address(words.base), blocks.slots(), told);
            own.write(0, &layout::bytes(&[memory]))?;
            let beside = (engines || blocks.groups().len() > 1).then(|| Beside::new(gpu)).transpose()?;
            Ok::<_, Error>((own, report, (Images::new(gpu, &blocks)?, LastUse::new(gpu)?), beside))
        })();
        let (own, report, (images, last), beside) = match team.all_or_none(blocks.kind.what, made) {
            Ok(made) => made,
            Err(refused) => {
                Block::free_all(team, std::iter::once(words).chain(rooms))?;
                return Err(refused);
            }
        };
        let reach = device.state().reach();
        let at = (device.address(words.base), words.bytes as u64);
        let near = reach.in_gpus() && blocks.legs.iter().all(|leg| reach.find(at.0, at.1, leg.link.pe).is_some());
        let sharers = device.runtime().gpu_sharers();
        let room = if near { Room::for_rounds(&blocks, gpu.multiprocessors(), sharers) } else { None };
        let (kernels, counters) = (kernels.clone(), Counters::default());
        Ok(GpuPlan { kernels, blocks, words, rooms, beside, own, report, images, last, near, room, counters })
    }

    /// Allocates rooms for blocks that copy engines fetch, and agrees with the others on the blocks. Collective over
    /// the team.
    fn agree_on_rooms(kernels: &GpuKernels, heap: &TeamHeap, team: &Team, blocks: &mut Blocks) -> Result<Block> {
        let (device, reach) = (kernels.device(), kernels.device().state().reach());
        let (mut own, bytes) = engines::rooms(blocks);
        let rooms = heap.take(team, bytes)?;
        let base = device.address(rooms.base);
        let of = |pe| reach.find(base, rooms.bytes as u64, pe);
        // A GPU may reach a peer without reaching all of its heap.
        let unreached = blocks.legs.iter().filter(|leg| of(leg.link.pe).is_none());
        unreached.for_each(|leg| own[leg.link.here] = None);
        let all = team.gather(&engines::numbers(&own))?;
        engines::agree(blocks, &own, &all, |pe, at| pe.map_or(Some(base), of).unwrap_or_default() + at);
        Ok(rooms)
    }

    /// The path by which the GPU reaches a PE.
    pub(crate) fn path(kernels: &GpuKernels, pe: symrail::Pe) -> Path {
        if kernels.device().is_mapped(pe) { Path::Mapped } else { Path::Rails }
    }

    /// The blocks that the plan has moved, by the way that each block took.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
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

    /// A stream of the GPU by the driver's handle: 0 and 1 are the default stream, 2 is this thread's.
    ///
    /// # Safety
    /// The handle is that of a stream of the GPU, which stays valid as long as the result is used.
    #[must_use]
    pub unsafe fn stream(&self, handle: usize) -> Stream {
        // SAFETY: the caller's promise.
        unsafe { Stream::of_others(self.kernels.device().gpu(), std::ptr::with_exposed_provenance_mut(handle)) }
    }

    /// Enqueues a round on a stream: it exchanges the blocks of `input` into `output`, which is the same buffer or a
    /// separate one. Later work on the stream finds the blocks there, and may use all buffers again. A graph cannot
    /// capture the first round with certain buffers; it can capture later ones. A plan keeps eight sets of buffers. A
    /// round with a ninth set waits for the last round of the set that was not used for longest. If graphs have
    /// captured all eight, it allocates memory, which waits for all work of the GPU.
    ///
    /// The round follows the last one of this plan, and the last one with this workspace. That does not hold for rounds
    /// in graphs: whoever replays a graph orders it among the other rounds.
    ///
    /// # Safety
    /// The GPU reaches the buffers. They stay valid, and nothing else uses them, until the stream has completed the
    /// round. The workspace is not freed before that either.
    ///
    /// # Errors
    /// [`Error::Refused`] for arguments of this PE: the others get the reason, and the plan can be used again. An error
    /// of the driver. [`GpuPlan::check`] returns the errors of peers and kernels.
    pub unsafe fn post(
        &mut self,
        stream: &Stream,
        input: GpuMemory,
        output: GpuMemory,
        work: &mut Workspace,
    ) -> Result<()> {
        self.runtime().check_joined()?;
        let [input, output] = [input, output].map(|memory| Extent { at: memory.at, bytes: memory.bytes });
        // Memory that is none has no address.
        let work_at = if work.bytes() == 0 { 0 } else { self.kernels.device().address(work.base()) };
        let mut wrong = self.blocks.check(input, output, work, self.blocks.unit(16)).err();
        let key_of = |wrong: Option<Wrong>| wrong.map_or(Ok((input.at, output.at, work_at)), |wrong| Err(wrong.0));
        let (mut key, captured) = (key_of(wrong), stream.is_capturing()?);
        let mut known = self.images.find(&key);
        if known.is_none() && wrong.is_none() && self.is_host_memory([input, output]) {
            wrong = Some((Refusal::HostMemory, 0, 0));
            key = key_of(wrong);
            known = self.images.find(&key);
        }
        let place = match known {
            Some(place) => place,
            None if captured => return Err(Error::FirstCaptured { operation: self.blocks.kind.what }),
            None => {
                let memories = [input, output].map(|buffer| self.memories(buffer, work));
                let words = self.kernels.device().address(self.words.base);
                let round = match key {
                    Ok(_) => Round::new(&self.blocks, &Buffers { input, output, memories, work: work_at, words }),
                    Err(refusal) => Round::refusal(&self.blocks, refusal),
                };
                self.images.bind(stream, key, round)?
            }
        };
        // SAFETY: the caller's promise; the plan stays valid, and the binding does until its rounds have ended.
        let launch = |_| unsafe { self.launch(stream, self.images.at(place)) };
        let launched = if work_at == 0 || wrong.is_some() {
            in_turn(&self.last, stream, launch)
        } else {
            let in_both = |work| in_turn(&self.last, stream, |_| in_turn(work, stream, launch));
            if captured {
                work.keep();
            }
            work.last_use(self.kernels.device().gpu()).and_then(in_both)
        };
        // A round of which only a part was launched uses the image, too.
        self.images.used(place, stream, captured).and(launched)?;
        self.counters += self.images.at(place).counters;
        wrong.map_or(Ok(()), |wrong| Err(self.blocks.refused(self.runtime().my_pe(), wrong)))
    }

    /// # Safety
    /// As for [`GpuPlan::post`].
    unsafe fn launch(&self, stream: &Stream, binding: &Binding) -> Result<()> {
        let (plan, legs) = (self.own.at().get(), self.blocks.legs.len() as u64);
        let landings = plan + size_of::<PlanMemory>() as u64;
        let unit = self.blocks.unit(16);
        let at_first = |group: &Group| landings + (size_of::<Landing>() * group.first) as u64;
        let copy = |stream: &Stream, copies: &Copies, landings: u64| match copies.count {
            0 => Ok(()),
            // SAFETY: the arguments are the kernel's; the caller's promise.
            count => unsafe { self.kernels.copy(stream, unit, copies.units, [copies.at, count, landings]) },
        };
        let send = |group: &Group| copy(stream, &group.send, at_first(group));
        let unpack = |group: &Group| copy(stream, &group.unpack, at_first(group));
        copy(stream, &binding.pack, landings)?;
        let (arguments, groups) = ([plan, binding.legs, legs, landings], &binding.groups);
        let in_one = binding.in_one && self.near;
        let most = self.room.as_ref().filter(|_| in_one && groups.len() == 1).map(Room::blocks);
        if legs > 0 && most.is_none() {
            // SAFETY: the arguments are the kernel's.
            unsafe { self.kernels.meet(stream, &arguments) }?;
        }
        if in_one {
            let round = |group: &Group| {
                let (own, send) = (binding.legs + (size_of::<Leg>() * group.first) as u64, &group.send);
                let (legs, meets) = (group.legs as u64, u64::from(most.is_some()));
                let arguments = [plan, own, legs, at_first(group), send.at, send.count, meets];
                // SAFETY: the arguments are the kernel's; the caller's promise.
                unsafe { self.kernels.round(stream, unit, send.units, most, &arguments) }
            };
            let unpacks = |group: &Group| group.unpack.count > 0;
            let Some(beside) = self.beside.as_ref().filter(|_| binding.in_turn && groups.iter().any(unpacks)) else {
                groups.iter().try_for_each(round)?;
                return groups.iter().try_for_each(unpack);
            };
            let in_turn = groups.iter().try_for_each(|group| {
                round(group)?;
                if !unpacks(group) {
                    return Ok(());
                }
                beside.follow(stream, |beside| copy(beside, &group.unpack, at_first(group)))
            });
            return beside.join(stream).and(in_turn);
        }
        let fetching = self.beside.as_ref().filter(|_| groups.iter().any(|group| !group.fetches.is_empty()));
        if fetching.is_none() || !binding.apart {
            groups.iter().try_for_each(send)?;
        }
        if let Some(beside) = fetching {
            let meanwhile = || if binding.apart { groups.iter().try_for_each(send) } else { Ok(()) };
            let then = |group: &Group| copy(stream, &group.unpack_fetched, at_first(group));
            // SAFETY: the caller's promise; the fetched blocks are in a room of a peer, which stays valid as long as
            // its plan.
            unsafe { beside.fetch(stream, groups, meanwhile, then) }?;
        }
        if legs > 0 {
            // SAFETY: the arguments are the kernel's.
            unsafe { self.kernels.arrive(stream, &arguments) }?;
        }
        groups.iter().try_for_each(unpack)
    }

    /// Waits for all work of the GPU, since kernels of this plan use words that are freed here and at peers. Then frees
    /// the plan. Collective over the team.
    pub(crate) fn free(self, team: &Team) -> Result<()> {
        let waited = self.kernels.device().gpu().synchronize().map_err(Error::from);
        let rounds = waited.and_then(|()| self.check());
        Block::free_all(team, self.into_blocks())?;
        rounds
    }

    /// Its symmetric memory, to be freed with others.
    pub(crate) fn into_blocks(self) -> Vec<Block> {
        std::iter::once(self.words).chain(self.rooms).collect()
    }

    /// Checks the arguments of a round. Not collective.
    pub(crate) fn accepts(&self, input: GpuMemory, output: GpuMemory, work: &Workspace) -> Result<()> {
        let buffers = [input, output].map(|memory| Extent { at: memory.at, bytes: memory.bytes });
        let checked = self
            .blocks
            .check(buffers[0], buffers[1], work, self.blocks.unit(16))
            .and_then(|()| if self.is_host_memory(buffers) { Err((Refusal::HostMemory, 0, 0)) } else { Ok(()) });
        checked.map_err(|wrong| self.blocks.refused(self.runtime().my_pe(), wrong))
    }

    /// Returns an error if a round has failed so far. It waits for no round.
    ///
    /// # Errors
    /// [`Error::RefusedBy`] once for arguments of other PEs, with which nothing was exchanged; [`Error::Round`], after
    /// which the plan cannot be used again; an error of the device.
    pub fn check(&self) -> Result<()> {
        self.must_be_usable()?;
        self.told()
    }

    /// Returns an error, each time, if a round has failed after which the plan cannot be used again.
    pub(crate) fn must_be_usable(&self) -> Result<()> {
        let Some(report) = Report::of(&self.report) else { return Ok(()) };
        let (runtime, waiting) = (self.runtime(), ["where its block may go", "its block"][report.place as usize % 2]);
        let seconds = runtime.settings().timeout_s;
        Err(report.error(runtime.my_pe(), self.blocks.kind.what, waiting.into(), None, seconds).into())
    }

    /// Returns what was reported, once each, after which the plan can be used again.
    pub(crate) fn told(&self) -> Result<()> {
        let (pe, operation) = (self.runtime().my_pe(), self.blocks.kind.what);
        let refusal = self.report.word(REFUSAL);
        if refusal != 0 {
            self.report.set_word(REFUSAL, 0);
            let (by, refusal) = (self.report.word(REFUSED_BY) as u32, Refusal::of_code(refusal - 1));
            return Err(Error::RefusedBy { pe, operation, by, refusal });
        }
        Ok(self.kernels.device().state().check()?)
    }

    fn runtime(&self) -> &Runtime {
        self.kernels.device().runtime()
    }

    /// Whether one of the buffers, if it is used, is memory that the GPU does not reach. The driver reports that.
    fn is_host_memory(&self, [input, output]: [Extent; 2]) -> bool {
        let used = [(input, self.input_bytes()), (output, self.output_bytes())];
        used.iter().any(|(buffer, needed)| *needed > 0 && !Gpu::reaches(buffer.at as usize))
    }

    /// The kinds of memory of a buffer and of the workspace, as the driver reports them.
    fn memories(&self, buffer: Extent, work: &Workspace) -> [Memory; 2] {
        let (device, me) = (self.kernels.device(), self.runtime().my_pe());
        let reach = device.state().reach();
        let work = Extent { at: device.address(work.base()), bytes: work.bytes() };
        [buffer, work].map(|memory| {
            let symmetric = reach.find(memory.at, memory.bytes as u64, me).is_some();
            Memory::of_gpu(&Gpu::sharing(memory.at), symmetric, reach.in_gpus())
        })
    }
}
