//! One call: its choice, its memory and kernels, and its launches.

use std::sync::Arc;

use symrail::kernels::cuda::{DevicePtr, Kernel, Shape, Stream, Transfer, in_turn};

use super::{GpuCommunicator, Kernels};
use crate::buffers::Buffers;
use crate::communicator::Reduction;
use crate::error::{Error, Result};
use crate::gpu::plan::{Call, GpuPlan, Memory};
use crate::gpu::stage::{Stage, StagedCall};
use crate::gpu::straight::{Straight, StraightCall, Way as StraightWay};
use crate::number::DataType;
use crate::plan::Collective;
use crate::selection::{Algorithm, Choice, message_of};

/// A plan's memory is for parts of at least so many bytes.
const LEAST_CAPACITY: u64 = 64 << 10;

impl GpuCommunicator {
    /// Performs a collective whose parts have `part` bytes. `root` counts for those that have one.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    pub(super) unsafe fn run(
        &mut self,
        stream: &Stream,
        collective: &Collective,
        buffers: Buffers<Memory>,
        ty: DataType,
        reduction: Reduction,
        root: u32,
    ) -> Result<()> {
        let Buffers { input, output, part } = buffers;
        self.selection.check_root(collective, root)?;
        if part == 0 {
            return Ok(());
        }
        if !part.is_multiple_of(ty.size() as u64) {
            return Err(Error::Call(format!("parts of {part} bytes are not whole elements of {ty}")));
        }
        if !self.any_overlap {
            collective.check_overlap(self.members.me(), &input.span(), &output.span())?;
        }
        reduction.op().suits_gpus(ty)?;
        if self.stage.is_none() && matches!(reduction, Reduction::ScaledSum(_)) {
            return Err(Error::Call("a scaled sum is for buffers that may be any memory: accept_any_memory".into()));
        }
        self.in_order(stream, |all, captured| {
            let message = message_of(collective, input.len, output.len);
            let choice = all.choose(collective, message, input.overlaps(output), root)?;
            let scaled = matches!(reduction, Reduction::ScaledSum(_));
            let at_once = all.stage.is_none() || choice.way().is_some() && !scaled;
            let divides = reduction == Reduction::Average && !(at_once && choice.way().is_some());
            let how = How { collective, reduction, ty, root, captured, divides };
            // SAFETY: the caller's promise.
            unsafe {
                match all.stage {
                    Some(stage) if !at_once => all.in_pieces(stage, stream, buffers, &how),
                    _ => {
                        all.prepare(&choice, part, ty, captured)?;
                        all.launch(stream, &choice, buffers, &how)
                    }
                }?;
            }
            let has_result = *collective != Collective::Reduce || root == all.members.me();
            if divides && has_result {
                let by = all.members.n().into();
                // SAFETY: the kernel's arguments; the caller's promise.
                unsafe { all.for_elements(stream, |kernels| &kernels.divide, output, ty, &[by]) }?;
            }
            Ok(())
        })
    }

    /// Whether a collective only launches kernels: its algorithm needs no plan, and its memory and kernels exist. Other
    /// calls may wait for the other PEs. Calls that are refused are prepared.
    #[must_use]
    pub fn is_prepared(
        &self,
        collective: &Collective,
        input: Memory,
        output: Memory,
        ty: DataType,
        reduction: Reduction,
        root: u32,
    ) -> bool {
        let message = message_of(collective, input.len, output.len);
        let Ok(choice) = self.selection.choose(collective, message, input.overlaps(output), root) else { return true };
        let has_memory = choice.way().zip(self.straight.as_ref()).is_some_and(|(way, straight)| straight.has(way));
        has_memory && self.kernels.contains_key(&ty) && !matches!(reduction, Reduction::ScaledSum(_))
    }

    /// As [`GpuCommunicator::is_prepared`], for sends and receives.
    #[must_use]
    pub fn is_exchange_prepared(&self) -> bool {
        self.exchanges.is_some()
    }

    /// Performs a call on buffers that may be any memory, piece by piece.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    unsafe fn in_pieces(
        &mut self,
        stage: Stage,
        stream: &Stream,
        Buffers { input, output, part }: Buffers<Memory>,
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
        // All plans exist before the first piece starts.
        let mut pieces = Vec::new();
        for piece in stage.pieces(part, inputs.max(outputs)) {
            // A built-in plan for each root would need memory for each.
            let reduces = *how.collective == Collective::Reduce
                && !self.selection.has_plan(how.collective, inputs * piece.len, in_place, how.root);
            let collective = if reduces { &Collective::AllReduce } else { how.collective };
            let message = message_of(collective, inputs * piece.len, outputs * piece.len);
            let choice = self.choose(collective, message, in_place, how.root)?;
            self.prepare(&choice, piece.len, how.ty, how.captured)?;
            pieces.push((piece, choice, collective));
        }
        for (piece, choice, collective) in pieces {
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
            let copy = |&Transfer { dest, source, bytes }: &Transfer| {
                // SAFETY: the caller's promise; the stage is used in the order of calls.
                unsafe { stream.copy(DevicePtr::new(dest), DevicePtr::new(source), bytes) }
            };
            // SAFETY: the caller's promise; the stage is used in the order of calls.
            unsafe {
                staged.before.iter().try_for_each(copy)?;
                if let Reduction::ScaledSum(factor) = how.reduction {
                    self.for_elements(stream, |kernels| &kernels.multiply, staged.input, how.ty, &factor.arguments())?;
                }
                let how = How { collective, ..*how };
                let buffers = Buffers { input: staged.input, output: staged.output, part: piece.len };
                self.launch(stream, &choice, buffers, &how)?;
                staged.after.iter().try_for_each(copy)?;
            }
        }
        Ok(())
    }

    /// The choice for a call; the first use of a choice is logged.
    fn choose(&mut self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Result<Choice> {
        let choice = self.selection.choose(collective, message, in_place, root)?;
        if self.logged.insert(choice.clone()) {
            self.selection.log(collective, message, in_place, root);
        }
        Ok(choice)
    }

    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    unsafe fn launch(&self, stream: &Stream, choice: &Choice, buffers: Buffers<Memory>, how: &How<'_>) -> Result<()> {
        let Buffers { input, output, part } = buffers;
        let kernels = self.kernels.get(&how.ty).ok_or_else(|| choice.unknown())?;
        if let (Choice::Own(_, blocks), Some(way), Some(straight)) = (choice, choice.way(), &self.straight) {
            let collective = how.collective;
            straight.check_sizes(collective, &buffers)?;
            let call = StraightCall {
                collective: StraightCall::number(collective),
                root: how.root.into(),
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
            return unsafe { straight.launch(stream, &kernels.straight, way, &call) };
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

    /// Launches a call behind the last one. `call` learns whether it is captured. Later calls follow it even if it
    /// fails, since some of its launches may be on their way.
    pub(super) fn in_order(&mut self, stream: &Stream, call: impl FnOnce(&mut Self, bool) -> Result<()>) -> Result<()> {
        self.device.runtime().check_joined()?;
        in_turn(&*Arc::clone(&self.last), stream, |captured| call(self, captured))
    }

    /// Prepares the plan with memory for parts of `part` bytes, and the type's kernels.
    pub(super) fn prepare(&mut self, choice: &Choice, part: u64, ty: DataType, captured: bool) -> Result<()> {
        let small = match (choice.way(), &mut self.straight) {
            (None, _) => self.plans.get(choice).is_none_or(|plan| plan.capacity() < part),
            (Some(way), Some(straight)) => !straight.has(way),
            (Some(_), None) => true,
        };
        if captured && (small || !self.kernels.contains_key(&ty)) {
            let reason = format!("a first call of {part} bytes of {ty} cannot be captured: make it once before");
            return Err(Error::Call(reason));
        }
        if let Some(way) = choice.way().filter(|_| small) {
            let straight = match &mut self.straight {
                Some(straight) => straight,
                none => none.insert(Straight::new(&self.device, &mut self.memory, &self.abort)?),
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
                .insert(choice.clone(), GpuPlan::new(&self.device, &mut self.memory, &self.abort, plan, capacity)?);
        }
        if !self.kernels.contains_key(&ty) {
            self.kernels.insert(ty, Kernels::load(&self.device, &self.nvrtc, ty)?);
        }
        // Blocks of built-in plans wait for none that begins after them.
        match (choice, self.plans.get_mut(choice), self.kernels.get(&ty)) {
            (Choice::User(_) | Choice::Default(_), Some(plan), Some(kernels)) => {
                plan.check_blocks(ty, &kernels.execute)
            }
            _ => Ok(()),
        }
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
