//! Collectives of all PEs of a job, or of a team's, on streams of their GPUs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Event, Gpu, Kernel, Module, Shape, Stream};
use symrail::{Team, TeamHeap};

use super::exchange::Exchange;
use super::memory::SymmetricMemory;
use super::plan::{Call, GpuPlan, Memory};
use super::program::{Which, compiled};
use super::report::AbortHandle;
use super::stage::{Stage, StagedCall};
use super::straight::{self, Straight, StraightCall, Way as StraightWay};
use crate::communicator::Reduction;
use crate::error::{Error, Result};
use crate::members::Members;
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::{Collective, Plan};
use crate::selection::{Algorithm, Choice, GPU, Selection, message_of};
use crate::transfer::{Transfer, all_to_all_v};
use crate::tuning::{Row, Table, Tuning, Way};

/// A plan's memory is for parts of at least so many bytes.
const LEAST_CAPACITY: u64 = 64 << 10;

/// The kernels for a type of elements.
struct Kernels {
    execute: Kernel,
    packets: Kernel,
    pushed: Kernel,
    divide: Kernel,
    multiply: Kernel,
}

/// A communicator of all PEs, or of a team's, each with a GPU; these are its ranks. Its calls are collective: all its
/// PEs make the same ones in the same order, with the same sizes, types and operations. They run in that order, each
/// after the earlier work of its stream.
///
/// The first call of a kind and size allocates memory and compiles kernels, so it cannot be captured in a graph; later
/// ones can. All PEs replay a graph in the same order among their other calls, and not concurrently with them.
pub struct GpuCommunicator<'d> {
    device: &'d GpuDevice<'d>,
    members: Members<'d>,
    nvrtc: Nvrtc,
    selection: Selection,
    kernels: HashMap<DataType, Kernels>,
    memory: SymmetricMemory<'d>,
    abort: AbortHandle,
    exchange: Exchange<'d>,
    /// The kernel of sends and receives, made for the first of them.
    exchanges: Option<Kernel>,
    /// Set if buffers may be any memory.
    stage: Option<Stage>,
    /// The memory of collectives without a plan, made for the first such call.
    straight: Option<Straight<'d>>,
    plans: BTreeMap<Choice, GpuPlan<'d>>,
    /// The choices that have been logged.
    told: BTreeSet<Choice>,
    /// Plans that larger ones have replaced, which graphs may still use.
    replaced: Vec<GpuPlan<'d>>,
    /// Recorded behind the last call.
    last: Event,
    /// The type in which narrow elements are reduced.
    pub accumulate: Accumulate,
}

impl std::fmt::Debug for GpuCommunicator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuCommunicator").field("selection", &self.selection).finish_non_exhaustive()
    }
}

impl<'d> GpuCommunicator<'d> {
    /// Makes a communicator of all PEs. Collective.
    ///
    /// # Errors
    /// The runtime's, or the driver's.
    pub fn new(device: &'d GpuDevice<'d>, nvrtc: Nvrtc) -> Result<Self> {
        GpuCommunicator::among(Members::all(device.runtime()), device, nvrtc)
    }

    /// Makes a communicator of a team's PEs; their numbers in the team are their ranks, which roots, sends and receives
    /// name. Its memory comes from `heap`, 24 MiB at a time, so other PEs take no part. Collective over the team.
    ///
    /// # Errors
    /// The runtime's, or the driver's; or [`Error::OtherRuntime`].
    pub fn of_team(
        device: &'d GpuDevice<'d>,
        nvrtc: Nvrtc,
        team: &'d Team<'d>,
        heap: &'d TeamHeap<'d>,
    ) -> Result<Self> {
        GpuCommunicator::among(Members::of_team(device.runtime(), team, heap)?, device, nvrtc)
    }

    fn among(members: Members<'d>, device: &'d GpuDevice<'d>, nvrtc: Nvrtc) -> Result<Self> {
        // The name becomes a part of a file's name.
        let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
        let kind: String = device.gpu().name().chars().map(letter).collect();
        let selection = Selection::agree(members, GPU, kind, |pe| device.is_mapped(pe))?;
        let mut memory = SymmetricMemory::new(device, members);
        let abort = AbortHandle::default();
        let exchange = Exchange::new(device, &mut memory, &abort, !selection.one_host())?;
        Ok(GpuCommunicator {
            device,
            members,
            nvrtc,
            selection,
            kernels: HashMap::new(),
            memory,
            abort,
            exchange,
            exchanges: None,
            stage: None,
            straight: None,
            plans: BTreeMap::new(),
            told: BTreeSet::new(),
            replaced: Vec::new(),
            last: Event::new(device.gpu())?,
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

    /// Adds a plan, which has precedence over built-in plans if it suits. All PEs add the same plans.
    pub fn add_plan(&mut self, plan: Plan) {
        self.selection.users.add(plan);
    }

    /// The kind of device, as in tables of `symrail tune`.
    #[must_use]
    pub fn device_kind(&self) -> &str {
        &self.selection.device
    }

    /// All ways of performing a collective here, of which a table chooses.
    #[must_use]
    pub fn ways(&self, collective: &Collective) -> Vec<Way> {
        self.selection.ways(collective)
    }

    /// A table with these rows for communicators like this one.
    #[must_use]
    pub fn table(&self, rows: Vec<Row>) -> Table {
        self.selection.table(rows)
    }

    /// Uses a table from now on, in place of the one found when this communicator was made. All PEs pass the same
    /// table.
    ///
    /// # Errors
    /// The table is for other communicators, or names an unknown way.
    pub fn tune(&mut self, table: Table) -> Result<()> {
        self.selection.accepts(&table).map_err(|why| Error::Call(format!("a table is not taken: {why}")))?;
        self.selection.tuning = Tuning { table: Some(("given by the program".into(), table)), untaken: None };
        Ok(())
    }

    /// From now on calls use the algorithm of this name (`one_shot`, `two_phase`, `direct`, `one_round`,
    /// `hierarchical`, `by_puts`), or the added plan of this name, and fail if it does not suit; with `None` they use
    /// what suits best. All PEs pass the same name.
    pub fn ask_for(&mut self, algorithm: Option<&str>) {
        self.selection.asked = algorithm.map(Into::into);
    }

    /// The choice for a message of so many bytes, and why each plan of a user does not suit. The root is that of a
    /// broadcast or a reduction to one PE.
    #[must_use]
    pub fn explain(&self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Vec<String> {
        self.selection.explain(collective, message, in_place, root)
    }

    /// Reduces all PEs' inputs into the output of every PE, which may be the input.
    ///
    /// # Safety
    /// Both are memory that this GPU can access, and they stay valid and unchanged by others until the stream has
    /// passed the call.
    ///
    /// # Errors
    /// The call does not suit its plan, there is no memory, a kernel cannot be compiled, or the driver reports an
    /// error. [`GpuCommunicator::check`] returns the errors of kernels.
    pub unsafe fn all_reduce(
        &mut self,
        stream: &Stream,
        (input, output): (Memory, Memory),
        ty: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &Collective::AllReduce, (input, output), input.len, (ty, op.into()), 0) }
    }

    /// Reduces all PEs' inputs; each PE gets its part. The output may be that part of the input.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`].
    pub unsafe fn reduce_scatter(
        &mut self,
        stream: &Stream,
        (input, output): (Memory, Memory),
        ty: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &Collective::ReduceScatter, (input, output), output.len, (ty, op.into()), 0) }
    }

    /// Gives every PE all PEs' inputs, in the order of PEs. The input may be its own part of the output.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`].
    pub unsafe fn all_gather(&mut self, stream: &Stream, input: Memory, output: Memory) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &Collective::AllGather, (input, output), input.len, MOVES, 0) }
    }

    /// Gives every PE its part of every input. Input and output are different memory.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or the parts have different sizes, or input and output overlap.
    pub unsafe fn all_to_all(&mut self, stream: &Stream, input: Memory, output: Memory) -> Result<()> {
        let part = self.selection.part_of_all_to_all(input.len, input.overlaps(output))?;
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &Collective::AllToAll, (input, output), part, MOVES, 0) }
    }

    /// Gives every PE the input of PE `root`. The input may be the output.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or there is no such PE.
    pub unsafe fn broadcast(&mut self, stream: &Stream, input: Memory, output: Memory, root: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &Collective::Broadcast, (input, output), input.len, MOVES, root) }
    }

    /// Reduces all PEs' inputs into the output of PE `root`, which may be its input. The others pass an output of the
    /// same size, which stays unchanged.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or there is no such PE.
    pub unsafe fn reduce(
        &mut self,
        stream: &Stream,
        (input, output): (Memory, Memory),
        ty: DataType,
        op: impl Into<Reduction>,
        root: u32,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &Collective::Reduce, (input, output), input.len, (ty, op.into()), root) }
    }

    /// Sends and receives, all at once. Not collective: only the named PEs take part. The n-th send from a PE to
    /// another matches the n-th receive there, of the same size, in whichever calls both are. The memory may be any of
    /// the GPU's.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// There is no such PE, or the driver reports an error. [`GpuCommunicator::check`] reports a receive that matched a
    /// send of another size ([`Error::Sizes`]); on the sender it reports a PE that has given up.
    pub unsafe fn exchange(&mut self, stream: &Stream, transfers: &[Transfer<Memory>]) -> Result<()> {
        let launches = self.exchange.launches(transfers)?;
        let captured = self.begin(stream)?;
        if self.exchanges.is_none() {
            if captured {
                let reason = "a first send or receive cannot be captured: make one once before";
                return Err(Error::Call(reason.into()));
            }
            self.exchanges = Some(self.load(Which::Exchange)?.kernel("exchange")?);
        }
        if let Some(kernel) = &self.exchanges {
            // SAFETY: the caller's promise.
            unsafe { self.exchange.run(stream, kernel, &launches) }?;
        }
        self.end(stream, captured)
    }

    /// Gives every PE its part of every input, of any sizes: part `i` of `inputs` goes to PE `i`, and part `i` of
    /// `outputs` comes from PE `i`.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::exchange`]; or there is not a part for each PE.
    pub unsafe fn all_to_all_v(&mut self, stream: &Stream, inputs: &[Memory], outputs: &[Memory]) -> Result<()> {
        let transfers = all_to_all_v(self.members.n(), inputs, outputs)?;
        // SAFETY: the caller's promise.
        unsafe { self.exchange(stream, &transfers) }
    }

    /// Fails if a call has failed so far. Does not wait for calls.
    ///
    /// # Errors
    /// The reason: a PE is late ([`Error::Late`]) or has given up ([`Error::Aborted`]), or an error of the device. All
    /// PEs give up then, and the communicator must not be used again.
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
    /// could do it: their calls end with [`Error::Aborted`]. Returns at once.
    ///
    /// # Errors
    /// The runtime's: other PEs may then wait until their time-outs.
    pub fn give_up(&self) -> Result<()> {
        self.abort.abort();
        self.memory.tell_given_up()
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

    unsafe fn run(
        &mut self,
        stream: &Stream,
        collective: &Collective,
        (input, output): (Memory, Memory),
        part: u64,
        (ty, reduction): (DataType, Reduction),
        root: u32,
    ) -> Result<()> {
        self.selection.check_root(collective, root)?;
        if part == 0 {
            return Ok(());
        }
        if !part.is_multiple_of(ty.size() as u64) {
            return Err(Error::Call(format!("parts of {part} bytes are not whole elements of {ty:?}")));
        }
        if self.stage.is_none() && matches!(reduction, Reduction::ScaledSum(_)) {
            return Err(Error::Call("a scaled sum is for buffers that may be any memory: accept_any_memory".into()));
        }
        let captured = self.begin(stream)?;
        let message = message_of(collective, input.len, output.len);
        let choice = self.choose(collective, message, input.overlaps(output), root)?;
        let scaled = matches!(reduction, Reduction::ScaledSum(_));
        let at_once = self.stage.is_none() || choice.way().is_some() && !scaled;
        let divides = reduction == Reduction::Average && !(at_once && choice.way().is_some());
        let how = How { collective, reduction, ty, root, captured, divides };
        // SAFETY: the caller's promise.
        unsafe {
            match self.stage {
                Some(stage) if !at_once => self.in_pieces(stage, stream, (input, output), part, &how),
                _ => {
                    self.prepare(&choice, part, ty, captured)?;
                    self.launch(stream, &choice, (input, output), part, &how)
                }
            }?;
        }
        let has_result = *collective != Collective::Reduce || root == self.members.me();
        if divides && has_result {
            let by = self.members.n().into();
            // SAFETY: the kernel's arguments; the caller's promise.
            unsafe { self.for_elements(stream, |kernels| &kernels.divide, output, ty, &[by]) }?;
        }
        self.end(stream, captured)
    }

    /// Performs a call on buffers that may be any memory, piece by piece.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    unsafe fn in_pieces(
        &mut self,
        stage: Stage,
        stream: &Stream,
        (input, output): (Memory, Memory),
        part: u64,
        how: &How<'_>,
    ) -> Result<()> {
        let n = u64::from(self.members.n());
        let (inputs, outputs) = match how.collective {
            Collective::AllGather => (1, n),
            Collective::ReduceScatter => (n, 1),
            Collective::AllToAll => (n, n),
            _ => (1, 1),
        };
        for (what, memory, parts) in [("input", input, inputs), ("output", output, outputs)] {
            if let Some(why) = memory.other_than(parts, part) {
                return Err(Error::Call(format!("the {what} {why}")));
            }
        }
        // Only plans of this collective's users can be in place here, where all PEs' buffers are staged alike.
        let in_place = *how.collective == Collective::AllReduce && input.overlaps(output);
        let discards = *how.collective == Collective::Reduce && how.root != self.members.me();
        let scaled = matches!(how.reduction, Reduction::ScaledSum(_));
        // A plan for each root would need memory for each.
        let collective = if *how.collective == Collective::Reduce { &Collective::AllReduce } else { how.collective };
        // All plans exist before the first piece starts.
        let mut pieces = Vec::new();
        for piece in stage.pieces(part, inputs.max(outputs)) {
            let message = message_of(collective, inputs * piece.len, outputs * piece.len);
            let choice = self.choose(collective, message, in_place, how.root)?;
            self.prepare(&choice, piece.len, how.ty, how.captured)?;
            pieces.push((piece, choice));
        }
        for (piece, choice) in pieces {
            let ([reaches_input, reaches_output], in_place) = match (choice.way(), self.plans.get(&choice)) {
                (Some(_), _) => ([false, false], false),
                (None, plan) => {
                    let plan = plan.ok_or_else(|| choice.unknown())?;
                    (plan.shared(), plan.plan().in_place())
                }
            };
            let call = StagedCall {
                input,
                output,
                part,
                inputs,
                outputs,
                in_place,
                reaches_input,
                reaches_output,
                scaled,
                discards,
            };
            let staged = stage.staged(&call, piece);
            // SAFETY: the caller's promise; the stage is used in the order of calls.
            unsafe {
                staged.before.iter().try_for_each(|copy| copy.launch(stream))?;
                if let Reduction::ScaledSum(factor) = how.reduction {
                    self.for_elements(stream, |kernels| &kernels.multiply, staged.input, how.ty, &factor.arguments())?;
                }
                self.launch(stream, &choice, (staged.input, staged.output), piece.len, how)?;
                staged.after.iter().try_for_each(|copy| copy.launch(stream))?;
            }
        }
        Ok(())
    }

    /// The choice for a call; the first use of a choice is logged.
    fn choose(&mut self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Result<Choice> {
        let choice = self.selection.choose(collective, message, in_place, root)?;
        if !self.told.contains(&choice) {
            self.told.insert(choice.clone());
            self.selection.log(collective, message, in_place, root);
        }
        Ok(choice)
    }

    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    unsafe fn launch(
        &self,
        stream: &Stream,
        choice: &Choice,
        (input, output): (Memory, Memory),
        part: u64,
        how: &How<'_>,
    ) -> Result<()> {
        let kernels = self.kernels.get(&how.ty).ok_or_else(|| choice.unknown())?;
        if let (Choice::Own(_, blocks), Some(way), Some(straight)) = (choice, choice.way(), &self.straight) {
            let kernel = if way == StraightWay::Packets { &kernels.packets } else { &kernels.pushed };
            // A reduction to one rank is performed as one to all.
            let collective = if straight::parts(how.collective, 0).is_some() { how.collective } else { &REDUCED };
            let call = StraightCall {
                collective: StraightCall::number(collective),
                input: input.at,
                output: output.at,
                part,
                op: how.reduction.op(),
                average: how.reduction == Reduction::Average && !how.divides,
                accumulate: self.accumulate,
                most_blocks: *blocks as u64,
                chunk: self.selection.chunk(collective, message_of(collective, input.len, output.len)),
            };
            // SAFETY: the caller's promise.
            return unsafe { straight.launch(stream, kernel, way, (input, output), collective, &call) };
        }
        let plan = self.plans.get(choice).ok_or_else(|| choice.unknown())?;
        let call = Call { input, output, part, op: how.reduction.op(), accumulate: self.accumulate };
        // SAFETY: the caller's promise.
        unsafe { plan.launch(stream, &kernels.execute, &call) }
    }

    /// Launches a kernel that changes every element.
    ///
    /// # Safety
    /// The memory stays valid, and `arguments` are the kernel's further arguments.
    unsafe fn for_elements(
        &self,
        stream: &Stream,
        kernel: impl Fn(&Kernels) -> &Kernel,
        memory: Memory,
        ty: DataType,
        arguments: &[u64],
    ) -> Result<()> {
        let Some(kernels) = self.kernels.get(&ty) else { return Ok(()) };
        let count = memory.len / ty.size() as u64;
        let shape = Shape { blocks: count.div_ceil(4096).clamp(1, 128) as u32, threads: 1024 };
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.launch(kernel(kernels), shape, &[&[memory.at, count], arguments].concat()) }?)
    }

    /// Orders a call behind the last one; returns whether it is captured.
    fn begin(&self, stream: &Stream) -> Result<bool> {
        let captured = stream.is_capturing()?;
        // On the same stream, too: the handle may be that of another stream, which was destroyed since.
        if !captured {
            stream.wait_for(&self.last)?;
        }
        Ok(captured)
    }

    fn end(&self, stream: &Stream, captured: bool) -> Result<()> {
        if !captured {
            self.last.record(stream)?;
        }
        Ok(())
    }

    /// Prepares the plan with memory for parts of `part` bytes, and the type's kernels.
    fn prepare(&mut self, choice: &Choice, part: u64, ty: DataType, captured: bool) -> Result<()> {
        let small = match (choice.way(), &mut self.straight) {
            (None, _) => self.plans.get(choice).is_none_or(|plan| plan.capacity() < part),
            (Some(way), Some(straight)) => !straight.has(way),
            (Some(_), None) => true,
        };
        if captured && (small || !self.kernels.contains_key(&ty)) {
            let reason = format!("a first call of {part} bytes of {ty:?} cannot be captured: make it once before");
            return Err(Error::Call(reason));
        }
        if let Some(way) = choice.way().filter(|_| small) {
            let straight = match &mut self.straight {
                Some(straight) => straight,
                none => none.insert(Straight::new(self.device, &mut self.memory, &self.abort)?),
            };
            straight.prepare(way, &mut self.memory)?;
        } else if small {
            let plan = match self.plans.remove(choice) {
                Some(small) => {
                    let plan = small.plan().clone();
                    self.replaced.push(small);
                    plan
                }
                None => self.selection.plan(choice)?,
            };
            let capacity = part.next_power_of_two().max(LEAST_CAPACITY);
            self.plans
                .insert(choice.clone(), GpuPlan::new(self.device, &mut self.memory, &self.abort, plan, capacity)?);
        }
        if !self.kernels.contains_key(&ty) {
            let module = self.load(Which::Executor(ty))?;
            let kernels = Kernels {
                execute: module.kernel("execute_plan")?,
                packets: module.kernel("straight_packets")?,
                pushed: module.kernel("straight_pushed")?,
                divide: module.kernel("divide_elements")?,
                multiply: module.kernel("multiply_elements")?,
            };
            self.kernels.insert(ty, kernels);
        }
        Ok(())
    }

    fn load(&self, which: Which) -> Result<Arc<Module>> {
        let gpu = self.device.gpu();
        let (major, minor) = gpu.compute_capability();
        let module = Module::load(gpu, &compiled(&self.nvrtc, which, &format!("sm_{major}{minor}"))?)?;
        self.device.attach(&module)?;
        Ok(module)
    }
}

impl Choice {
    /// The algorithm without a plan, if this is one.
    fn way(&self) -> Option<StraightWay> {
        match self {
            Choice::Own(Algorithm::Packets, _) => Some(StraightWay::Packets),
            Choice::Own(Algorithm::Pushed, _) => Some(StraightWay::Pushed),
            _ => None,
        }
    }
}

/// A call's parameters besides its buffers.
struct How<'a> {
    collective: &'a Collective,
    reduction: Reduction,
    ty: DataType,
    root: u32,
    captured: bool,
    /// A separate kernel performs the division of an average.
    divides: bool,
}

/// See [`GpuCommunicator::launch`].
const REDUCED: Collective = Collective::AllReduce;

/// The type and reduction for calls that only move bytes.
const MOVES: (DataType, Reduction) = (DataType::U8, Reduction::Of(ReduceOp::Sum));
