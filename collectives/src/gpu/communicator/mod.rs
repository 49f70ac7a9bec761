//! Collectives of all PEs of a job, or of a team's, on streams of their GPUs.

mod calls;
mod launching;
mod norms;
mod parts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DevicePtr, Gpu, Kernel, LastUse};
use symrail::{Team, TeamHeap};

use super::abort::AbortHandle;
use super::exchange::{self, Exchange};
use super::memory::SymmetricMemory;
use super::plan::GpuPlan;
use super::program::{self, Which};
use super::stage::Stage;
use super::straight::{self, Straight, Way};
use crate::error::Result;
use crate::members::Members;
use crate::number::{Accumulate, DataType};
use crate::selection::{Choice, GPU, Selection};

/// The kernels for a type of elements.
struct Kernels {
    execute: Kernel,
    divide: Kernel,
    multiply: Kernel,
    straight: straight::Kernels,
}

impl Kernels {
    /// Compiles and loads them.
    fn load(device: &GpuDevice, nvrtc: &Nvrtc, ty: DataType) -> Result<Kernels> {
        let plans = Which::Executor(ty);
        program::compile(device, nvrtc, &[&[plans], &straight::Kernels::programs(ty)[..]].concat());
        let module = program::load(device, nvrtc, plans)?;
        Ok(Kernels {
            execute: module.kernel("execute_plan")?,
            divide: module.kernel("divide_elements")?,
            multiply: module.kernel("multiply_elements")?,
            straight: straight::Kernels::load(device, nvrtc, ty)?,
        })
    }
}

/// A communicator of all PEs, or of a team's, each with a GPU; these are its ranks. Its calls are collective: all its
/// PEs make the same ones in the same order, with the same sizes, types and operations. They run in that order, each
/// after the earlier work of its stream.
///
/// The first call of a kind and size allocates memory and compiles kernels, so it cannot be captured in a graph; later
/// ones can. All PEs replay a graph in the same order among their other calls, which it follows and precedes on whatever
/// streams.
pub struct GpuCommunicator {
    nvrtc: Nvrtc,
    selection: Selection,
    kernels: HashMap<DataType, Kernels>,
    norms: HashMap<DataType, norms::Norms>,
    memory: SymmetricMemory,
    abort: AbortHandle,
    exchange: Exchange,
    /// The kernel of sends and receives, made for the first of them.
    exchanges: Option<exchange::Kernels>,
    /// Set if buffers may be any memory.
    stage: Option<Stage>,
    /// Whether input and output may overlap in any way.
    any_overlap: bool,
    /// The memory of collectives without a plan, made for the first such call.
    straight: Option<Straight>,
    plans: BTreeMap<Choice, GpuPlan>,
    /// The choices that have been logged.
    logged: BTreeSet<Choice>,
    /// Plans that larger ones have replaced, which graphs may still use.
    replaced: Vec<GpuPlan>,
    /// Behind the last call.
    last: Arc<LastUse>,
    /// The type in which narrow elements are reduced.
    pub accumulate: Accumulate,
    members: Members,
    device: GpuDevice,
}

impl std::fmt::Debug for GpuCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuCommunicator").field("selection", &self.selection).finish_non_exhaustive()
    }
}

impl GpuCommunicator {
    /// Makes a communicator of all PEs. Collective.
    ///
    /// # Errors
    /// The runtime's, or the driver's.
    pub fn new(device: &GpuDevice, nvrtc: Nvrtc) -> Result<Self> {
        GpuCommunicator::among(Members::all(device.runtime())?, device, nvrtc)
    }

    /// Makes a communicator of a team's PEs; their numbers in the team are their ranks, which roots, sends and receives
    /// name. Its memory comes from `heap`, 24 MiB at a time, so other PEs take no part. Collective over the team.
    ///
    /// # Errors
    /// The runtime's, or the driver's; or [`crate::Error::OtherRuntime`].
    pub fn of_team(device: &GpuDevice, nvrtc: Nvrtc, team: &Team, heap: &TeamHeap) -> Result<Self> {
        GpuCommunicator::among(Members::of_team(device.runtime(), team, heap)?, device, nvrtc)
    }

    fn among(members: Members, device: &GpuDevice, nvrtc: Nvrtc) -> Result<Self> {
        // The name becomes a part of a file's name.
        let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
        let kind: String = device.gpu().name().chars().map(letter).collect();
        let selection = Selection::agree(&members, GPU, kind, |pe| device.is_mapped(pe))?;
        let mut memory = SymmetricMemory::new(device, &members)?;
        let abort = AbortHandle::default();
        let exchange = Exchange::new(device, &mut memory, &abort)?;
        Ok(GpuCommunicator {
            device: device.clone(),
            members,
            nvrtc,
            selection,
            kernels: HashMap::new(),
            norms: HashMap::new(),
            memory,
            abort,
            exchange,
            exchanges: None,
            stage: None,
            any_overlap: false,
            straight: None,
            plans: BTreeMap::new(),
            logged: BTreeSet::new(),
            replaced: Vec::new(),
            last: Arc::new(LastUse::new(device.gpu())?),
            accumulate: Accumulate::default(),
        })
    }

    /// This PE's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.members.me()
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.members.n()
    }

    /// The choice of algorithms and plans.
    #[must_use]
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// As [`Self::selection`], to change it: on all PEs alike.
    #[must_use]
    pub fn selection_mut(&mut self) -> &mut Selection {
        &mut self.selection
    }

    /// From now on buffers may be any memory of this GPU, on all PEs: data that PEs must access elsewhere is copied to
    /// symmetric memory and back, some 16 MiB at a time. Collective.
    ///
    /// # Errors
    /// The runtime's: the heap is exhausted.
    pub fn accept_any_memory(&mut self) -> Result<()> {
        if self.stage.is_none() {
            self.stage = Some(Stage::new(&mut self.memory)?);
            self.selection.any_memory = true;
        }
        Ok(())
    }

    /// From now on no call is refused because its input and output overlap. The result is undefined unless the
    /// collective works in place there.
    pub fn accept_any_overlap(&mut self) {
        self.any_overlap = true;
    }

    /// Allocates the memory of all algorithms without a plan now, if they can be used among these PEs: first calls then
    /// wait for no other PE, and can be captured when their kernels exist. Collective.
    ///
    /// # Errors
    /// The runtime's: the heap is exhausted.
    pub fn prepare_memory(&mut self) -> Result<()> {
        if !self.selection.is_straight() {
            return Ok(());
        }
        let straight = match &mut self.straight {
            Some(straight) => straight,
            none => none.insert(Straight::new(&self.device, &mut self.memory, &self.abort)?),
        };
        [Way::Packets, Way::Pushed].into_iter().try_for_each(|way| straight.prepare(way, &mut self.memory))
    }

    /// Fails if a call has failed so far. Does not wait for calls.
    ///
    /// # Errors
    /// The reason: a PE is late or has given up ([`crate::Error::Round`]), or an error of
    /// the device. All PEs give up then, and the communicator must not be used again.
    pub fn check(&self) -> Result<()> {
        self.plans.values().chain(&self.replaced).try_for_each(GpuPlan::check)?;
        self.straight.iter().try_for_each(Straight::check)?;
        self.exchange.check()?;
        Ok(self.device.state().check()?)
    }

    /// Waits until the last call that was not captured has ended, and so all calls before it.
    ///
    /// # Errors
    /// The driver's, for any failure on this GPU.
    pub fn wait(&self) -> Result<()> {
        Ok(self.last.wait()?)
    }

    /// Whether all PEs access one another's memory without proxies.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.device.is_direct()
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.device.gpu()
    }

    /// Ends the waits of all calls of this PE. Their kernels make the other PEs give up as well. The communicator must
    /// not be used again.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// As [`GpuCommunicator::abort`], and also tells the other PEs at once if no kernel of this PE is waiting that
    /// could do it: their calls end with [`Aborted`](symrail::rounds::Error::Aborted). Returns at once.
    ///
    /// # Errors
    /// The runtime's: other PEs may then wait until their time-outs.
    pub fn give_up(&self) -> Result<()> {
        self.abort.abort();
        self.memory.signal_given_up()
    }

    /// The address of the symmetric word that is not 0 once a PE has given up: then no call does anything any more. It is
    /// the number of that PE, plus 1; kernels of this PE may set it, too.
    #[must_use]
    pub fn stop(&self) -> DevicePtr {
        DevicePtr::new(self.memory.stop())
    }

    /// A handle with which other threads can abort, while a call is in progress in this one.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Frees the plans' memory, when all launches on the GPU have ended. Collective.
    ///
    /// # Errors
    /// The runtime's, or the driver's.
    pub fn free(self) -> Result<()> {
        self.device.gpu().synchronize()?;
        self.members.barrier()?;
        self.memory.free()
    }
}
