//! Collectives of all PEs of a job on streams of their GPUs.

use std::collections::{BTreeMap, HashMap};

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Event, Kernel, Module, Shape, Stream};

use super::plan::{Call, GpuPlan, Memory};
use super::program;
use crate::communicator::Reduction;
use crate::error::{Error, Result};
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::{Collective, Plan};
use crate::selection::{Choice, GPU, Selection, hosts, message_of};

/// The memory for a plan's first call is for parts of so many bytes at least.
const LEAST_CAPACITY: u64 = 64 << 10;

/// The kernels for a type of elements.
struct Kernels {
    execute: Kernel,
    divide: Kernel,
}

/// A communicator of all PEs, each with a GPU. Its calls are collective: all PEs make the same ones in the same order,
/// with the same sizes, types and operations. They are carried out in that order, each after what its stream holds.
///
/// A first call of a kind and size takes memory and compiles kernels, so it cannot be captured in a graph; further ones
/// can. A graph is replayed by all PEs in the same order among their other calls, and not beside them.
pub struct GpuCommunicator<'d> {
    device: &'d GpuDevice<'d>,
    nvrtc: Nvrtc,
    selection: Selection,
    kernels: HashMap<DataType, Kernels>,
    plans: BTreeMap<Choice, GpuPlan<'d>>,
    /// Smaller ones than those that took their places, which graphs may still use.
    replaced: Vec<GpuPlan<'d>>,
    /// Behind the last call, and the stream of that.
    last: (Event, Option<usize>),
    /// In which type narrow elements are reduced.
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
        let hosts = hosts(device.runtime(), |pe| device.is_mapped(pe))?;
        Ok(GpuCommunicator {
            device,
            nvrtc,
            selection: Selection::new(hosts, GPU),
            kernels: HashMap::new(),
            plans: BTreeMap::new(),
            replaced: Vec::new(),
            last: (Event::new(device.gpu())?, None),
            accumulate: Accumulate::default(),
        })
    }

    /// Adds a plan, which is taken before those of this crate where it suits. All PEs add the same ones.
    pub fn add_plan(&mut self, plan: Plan) {
        self.selection.users.add(plan);
    }

    /// What would be done for a message of so many bytes, and of the plans that users have added, why not.
    #[must_use]
    pub fn explain(&self, collective: &Collective, message: u64, in_place: bool) -> Vec<String> {
        self.selection.explain(collective, message, in_place)
    }

    /// Reduces all PEs' inputs into everybody's output, which may be the input.
    ///
    /// # Safety
    /// Both are memory that this GPU reaches and that stays as it is until the stream has come so far.
    ///
    /// # Errors
    /// The call does not suit its plan, there is no memory, a kernel cannot be compiled, or what the driver says. What
    /// kernels find wrong is [`GpuCommunicator::check`]'s.
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

    /// Reduces all PEs' inputs, of which each gets its part. The output may be that part of the input.
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

    /// Gives everybody all PEs' inputs, in the order of PEs. The input may be its place in the output.
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

    /// Gives every PE its part of everybody's input. Input and output are different memory.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or the parts are not all alike, or input and output overlap.
    pub unsafe fn all_to_all(&mut self, stream: &Stream, input: Memory, output: Memory) -> Result<()> {
        let part = self.selection.part_of_all_to_all(input.len, input.overlaps(output))?;
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &Collective::AllToAll, (input, output), part, MOVES, 0) }
    }

    /// Gives everybody the input of PE `root`. The input may be the output.
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

    /// Reduces all PEs' inputs into the output of PE `root`, which may be its input. The others name an output of the
    /// same size, which is left alone.
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

    /// Whether no call has failed so far. It does not wait for any.
    ///
    /// # Errors
    /// Why one did: a PE is late ([`Error::Late`]) or has given up ([`Error::Aborted`]), or what the device says. All
    /// PEs give up then, and the communicator is not used again.
    pub fn check(&self) -> Result<()> {
        self.plans.values().chain(&self.replaced).try_for_each(GpuPlan::check)?;
        Ok(self.device.state().check()?)
    }

    /// Lets all calls of this PE end that wait for others, and so those of the others. The communicator is not used
    /// again.
    pub fn abort(&self) {
        self.plans.values().chain(&self.replaced).for_each(GpuPlan::abort);
    }

    /// Gives the plans' memory back, when everything that was launched on the GPU has ended. Collective.
    ///
    /// # Errors
    /// The runtime's, or the driver's.
    pub fn free(self) -> Result<()> {
        self.device.gpu().synchronize()?;
        self.device.runtime().barrier_all()?;
        // In the same order on all PEs.
        self.plans.into_values().chain(self.replaced).try_for_each(GpuPlan::free)
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
        let message = message_of(collective, input.len, output.len);
        let choice = self.selection.choose(collective, message, input.overlaps(output), root)?;
        let captured = stream.is_capturing()?;
        self.prepare(&choice, part, ty, captured)?;
        let (Some(plan), Some(kernels)) = (self.plans.get(&choice), self.kernels.get(&ty)) else {
            return Err(choice.unknown());
        };
        let this = stream.raw() as usize;
        if !captured && self.last.1.is_some_and(|last| last != this) {
            stream.wait_for(&self.last.0)?;
        }
        let call = Call { input, output, part, op: reduction.op(), accumulate: self.accumulate };
        // SAFETY: the caller's promise.
        unsafe { plan.launch(stream, &kernels.execute, &call) }?;
        let has_result = *collective != Collective::Reduce || root == self.device.runtime().my_pe();
        if reduction == Reduction::Average && has_result {
            let count = output.len / ty.size() as u64;
            let shape = Shape { blocks: count.div_ceil(4096).clamp(1, 128) as u32, threads: 1024 };
            let arguments = [output.at, count, self.device.runtime().n_pes().into()];
            // SAFETY: the kernel's arguments; the caller's promise.
            unsafe { stream.launch(&kernels.divide, shape, &arguments) }?;
        }
        if !captured {
            self.last.0.record(stream)?;
            self.last.1 = Some(this);
        }
        Ok(())
    }

    /// Has the plan with memory for parts of so many bytes, and the type's kernels.
    fn prepare(&mut self, choice: &Choice, part: u64, ty: DataType, captured: bool) -> Result<()> {
        let small = self.plans.get(choice).is_none_or(|plan| plan.capacity() < part);
        if captured && (small || !self.kernels.contains_key(&ty)) {
            let reason = format!("a first call of {part} bytes of {ty:?} cannot be captured: make it once before");
            return Err(Error::Call(reason));
        }
        if small {
            let plan = match self.plans.remove(choice) {
                Some(small) => {
                    let plan = small.plan().clone();
                    self.replaced.push(small);
                    plan
                }
                None => self.selection.plan(choice)?,
            };
            let capacity = part.next_power_of_two().max(LEAST_CAPACITY);
            self.plans.insert(choice.clone(), GpuPlan::new(self.device, plan, capacity)?);
        }
        if !self.kernels.contains_key(&ty) {
            let gpu = self.device.gpu();
            let (major, minor) = gpu.compute_capability();
            let source = program::source(ty);
            let compiled = self.nvrtc.compile(&program::program(&source), &format!("sm_{major}{minor}"))?;
            let module = Module::load(gpu, &compiled)?;
            self.device.attach(&module)?;
            let kernels =
                Kernels { execute: module.kernel("execute_plan")?, divide: module.kernel("divide_elements")? };
            self.kernels.insert(ty, kernels);
        }
        Ok(())
    }
}

/// What moves bytes only.
const MOVES: (DataType, Reduction) = (DataType::U8, Reduction::Of(ReduceOp::Sum));
