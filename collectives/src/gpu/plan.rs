//! A plan with its memory on all PEs, which can be launched many times.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use symrail::Pe;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::{DeviceBuffer, Kernel, PinnedBuffer, Shape, Stream};
use symrail::rounds::Report;

use super::abort::AbortHandle;
use super::encode::{Addresses, Named, Reached, encode, op_number, words};
use super::memory::SymmetricMemory;
use crate::error::{Error, Place, Result};
use crate::members::Members;
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::{BufferType, Plan};

/// Memory that this GPU can access, by the address that kernels use. Memory that peers must access is in the symmetric
/// heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Its address.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
}

impl Memory {
    pub(crate) fn span(self) -> Range<u64> {
        self.at..self.at + self.len
    }

    /// Whether the two overlap.
    #[must_use]
    pub fn overlaps(self, other: Memory) -> bool {
        self.at < other.at + other.len && other.at < self.at + self.len
    }

    /// Why its size is not that of `parts` parts of `part` bytes.
    pub(super) fn other_than(self, parts: u64, part: u64) -> Option<String> {
        let (has, wanted) = (self.len, parts.checked_mul(part));
        let wanted_bytes = wanted.unwrap_or(u64::MAX);
        (wanted != Some(has)).then(|| format!("has {has} bytes, but {parts} parts of {part} are {wanted_bytes}"))
    }
}

/// All members in the view of this PE's device, by its own address of some symmetric word.
pub(super) fn reached(device: &GpuDevice, members: &Members, word: u64) -> Vec<Reached> {
    let reach = device.state().reach();
    let distance = |pe: Pe| reach.find(word, 8, pe).map(|there| there.wrapping_sub(word));
    let pes = (0..members.n()).map(|rank| members.pe(rank as usize));
    pes.map(|pe| Reached { pe, distance: distance(pe), atomics: device.is_direct() }).collect()
}

/// The parameters of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub input: Memory,
    pub output: Memory,
    /// As in `crate::run::Call`.
    pub part: u64,
    pub op: ReduceOp,
    pub accumulate: Accumulate,
}

/// A plan with its memory.
pub(super) struct GpuPlan {
    plan: Plan,
    capacity: u64,
    blocks: u32,
    steps: Vec<Named>,
    report: Arc<PinnedBuffer>,
    image: DeviceBuffer,
    /// Whether peers access its input, and its output.
    shared: [bool; 2],
    /// The types of elements for whose kernels the GPU runs all blocks at once.
    fits: HashSet<DataType>,
    members: Members,
    device: GpuDevice,
}

impl GpuPlan {
    /// Allocates memory for a plan and parts of up to `capacity` bytes; `abort` ends its waits. All members do so in
    /// the same order.
    ///
    /// # Errors
    /// The plan is for another number of PEs, needs something that this GPU cannot do, or there is no memory.
    pub fn new(
        device: &GpuDevice,
        memory: &mut SymmetricMemory,
        abort: &AbortHandle,
        plan: Plan,
        capacity: u64,
    ) -> Result<Self> {
        let members = memory.members().clone();
        members.suit(&plan)?;
        let own = memory.take(8 * words(&plan))?;
        let scratch = memory.take(plan.scratch_memory(capacity) as usize)?;
        let report = abort.report(device.gpu())?;
        let mut at = Addresses {
            plan: 0,
            words: own,
            stop: memory.stop(),
            scratch,
            capacity,
            report: report.device().get(),
            ranks: reached(device, &members, own),
        };
        let me = members.me() as usize;
        // The image's size does not depend on its address.
        let image = device.gpu().alloc(encode(&plan, me, &at)?.bytes.len())?;
        at.plan = image.at().get();
        let encoded = encode(&plan, me, &at)?;
        image.write(0, &encoded.bytes)?;
        let (blocks, steps) = (encoded.blocks, encoded.steps);
        let shared = [plan.shares(BufferType::Input), plan.shares(BufferType::Output)];
        let (device, fits) = (device.clone(), HashSet::new());
        Ok(GpuPlan { device, members, plan, capacity, blocks, steps, report, image, shared, fits })
    }

    /// Checks that the GPU runs all blocks of the kernel for a type at once. Ranks with such GPUs refuse a plan alike.
    ///
    /// # Errors
    /// A rank has more blocks; or the driver's error.
    pub fn check_blocks(&mut self, ty: DataType, kernel: &Kernel) -> Result<()> {
        if !self.fits.contains(&ty) {
            self.plan.check_blocks(kernel.blocks_at_once(self.plan.threads)?)?;
            self.fits.insert(ty);
        }
        Ok(())
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn shared(&self) -> [bool; 2] {
        self.shared
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Launches the plan.
    ///
    /// # Errors
    /// The call does not suit the plan, or the driver reports an error.
    ///
    /// # Safety
    /// The memory stays valid and unchanged by others until the stream has passed the launch.
    pub unsafe fn launch(&self, stream: &Stream, kernel: &Kernel, call: &Call) -> Result<()> {
        self.check_call(call)?;
        let shape = Shape { blocks: self.blocks, threads: self.plan.threads };
        let own = u64::from(call.accumulate == Accumulate::Own);
        let (part, chunk) = (call.part, self.plan.geometry(call.part).chunk);
        let how = u64::from(op_number(call.op)) | own << 8;
        let arguments = [self.image.at().get(), call.input.at, call.output.at, part, chunk, how];
        // SAFETY: the kernel's arguments; the plan's memory is freed after the streams, the caller vouches for the
        // rest.
        Ok(unsafe { stream.launch(kernel, shape, &arguments) }?)
    }

    fn check_call(&self, call: &Call) -> Result<()> {
        let refuse = |reason: String| Err(Error::Call(format!("plan {}: {reason}", self.plan.name())));
        let (_, inputs, outputs) = self.plan.parts();
        let reach = self.device.state().reach();
        let me = self.device.runtime().my_pe();
        let [input_shared, output_shared] = self.shared;
        let both = [("input", input_shared, call.input, inputs), ("output", output_shared, call.output, outputs)];
        for (what, shared, memory, parts) in both {
            if let Some(why) = memory.other_than(parts, call.part) {
                return refuse(format!("the {what} {why}"));
            }
            if shared && reach.find(memory.at, memory.len, me).is_none() {
                let at = memory.at;
                return refuse(format!("peers reach for its {what}, and {at:#x} is not in the symmetric heap"));
            }
        }
        match self.plan.other_op(call.op) {
            Some((place, op)) => refuse(format!("it is for {op}{place}, and the call for {}", call.op)),
            None => Ok(()),
        }
    }

    /// Fails if a launch has failed so far.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self) -> Result<()> {
        let Some(report) = Report::of(&self.report) else { return Ok(()) };
        let runtime = self.device.runtime();
        let step = self.steps.get(report.place as u32 as usize);
        // Waits for packets report the number of the source.
        let late = step.and_then(|step| step.writers.get(report.who as usize)).map(|&rank| self.members.pe(rank));
        // The ranks meet before and after the steps.
        let (place, name) = step.map_or((Place::default(), "all ranks"), |step| (step.place, step.name.as_str()));
        let waiting = format!("plan {}{place}, {name}", self.plan.name());
        Err(report.error(runtime.my_pe(), "a collective", waiting, late, runtime.settings().timeout_s).into())
    }
}
