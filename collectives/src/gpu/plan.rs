//! A plan with its memory on all PEs, ready to be launched again and again.

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::{DeviceBuffer, Kernel, PinnedBuffer, Shape, Stream};
use symrail::{Pe, SymSlice};

use super::encode::{Addresses, Named, Reached, encode, op_number, words};
use super::report::{REPORT_BYTES, Report};
use crate::error::{Error, Result};
use crate::number::{Accumulate, ReduceOp};
use crate::plan::{BufferType, Plan};

/// Memory that this GPU reaches, by the address that kernels use. What peers have to reach is of the symmetric heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Its address.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
}

impl Memory {
    /// Whether some bytes are of both.
    #[must_use]
    pub fn overlaps(self, other: Memory) -> bool {
        self.at < other.at + other.len && other.at < self.at + self.len
    }
}

/// What a launch works on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub input: Memory,
    pub output: Memory,
    /// As `crate::run::Call` has it.
    pub part: u64,
    pub op: ReduceOp,
    pub accumulate: Accumulate,
}

/// See above.
pub(super) struct GpuPlan<'d> {
    device: &'d GpuDevice<'d>,
    plan: Plan,
    capacity: u64,
    blocks: u32,
    steps: Vec<Named>,
    report: PinnedBuffer,
    image: DeviceBuffer,
    words: SymSlice<'d, u64>,
    scratch: SymSlice<'d, u8>,
}

impl<'d> GpuPlan<'d> {
    /// Takes memory for a plan and parts of up to so many bytes. Collective over all PEs.
    ///
    /// # Errors
    /// The plan is for another number of PEs, does what this GPU cannot, or there is no memory.
    pub fn new(device: &'d GpuDevice<'d>, plan: Plan, capacity: u64) -> Result<Self> {
        let runtime = device.runtime();
        let (ranks, pes) = (plan.ranks(), runtime.n_pes());
        if ranks != pes as usize {
            return Err(Error::Call(format!("plan {} is for {ranks} PEs, and the job has {pes}", plan.name())));
        }
        let words = runtime.alloc_slice::<u64>(words(&plan))?;
        let bytes = plan.scratch_bytes(capacity) * (1 + 2 * plan.packet_halves);
        let scratch = runtime.alloc_slice::<u8>((bytes as usize).max(16))?;
        let report = PinnedBuffer::new(device.gpu(), REPORT_BYTES)?;
        let own = device.address(words.as_ptr().cast());
        let reach = device.state().reach();
        let reached = |pe: Pe| {
            let distance = reach.find(own, 8, pe).map(|there| there.wrapping_sub(own));
            Reached { pe, distance, atomics: device.is_direct() }
        };
        let mut at = Addresses {
            plan: 0,
            words: own,
            scratch: device.address(scratch.as_ptr()),
            capacity,
            report: report.device().get(),
            ranks: (0..pes).map(reached).collect(),
        };
        let me = runtime.my_pe() as usize;
        // Its size does not depend on where it is.
        let image = device.gpu().alloc(encode(&plan, me, &at)?.bytes.len())?;
        at.plan = image.at().get();
        let encoded = encode(&plan, me, &at)?;
        image.write(0, &encoded.bytes)?;
        let (blocks, steps) = (encoded.blocks, encoded.steps);
        // Nobody's kernels write to memory that is not there yet.
        runtime.barrier_all()?;
        Ok(GpuPlan { device, plan, capacity, blocks, steps, report, image, words, scratch })
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Launches the plan.
    ///
    /// # Errors
    /// The call does not suit the plan, or what the driver says.
    ///
    /// # Safety
    /// The memory stays, and nobody else changes it, until the stream has come so far.
    pub unsafe fn launch(&self, stream: &Stream, kernel: &Kernel, call: &Call) -> Result<()> {
        self.check_call(call)?;
        if self.blocks == 0 {
            return Ok(());
        }
        let shape = Shape { blocks: self.blocks, threads: self.plan.threads };
        let own = u64::from(call.accumulate == Accumulate::Own);
        let (part, chunk) = (call.part, self.plan.geometry(call.part).chunk);
        let how = u64::from(op_number(call.op)) | own << 8;
        let arguments = [self.image.at().get(), call.input.at, call.output.at, part, chunk, how];
        // SAFETY: the kernel's arguments; the plan's memory is freed after the streams, the caller vouches for the rest.
        Ok(unsafe { stream.launch(kernel, shape, &arguments) }?)
    }

    fn check_call(&self, call: &Call) -> Result<()> {
        let refuse = |reason: String| Err(Error::Call(format!("plan {}: {reason}", self.plan.name())));
        let (_, inputs, outputs) = self.plan.parts();
        let reach = self.device.state().reach();
        let me = self.device.runtime().my_pe();
        let both =
            [("input", BufferType::Input, call.input, inputs), ("output", BufferType::Output, call.output, outputs)];
        for (what, buffer, memory, parts) in both {
            if memory.len != parts * call.part {
                let wanted = parts * call.part;
                let has = memory.len;
                return refuse(format!("the {what} has {has} bytes, but {parts} parts of {} are {wanted}", call.part));
            }
            if self.plan.shares(buffer) && reach.find(memory.at, memory.len, me).is_none() {
                let at = memory.at;
                return refuse(format!("peers reach for its {what}, and {at:#x} is not in the symmetric heap"));
            }
        }
        match self.plan.other_op(call.op) {
            Some((place, op)) => refuse(format!("it is for {op:?}{place}, and the call for {:?}", call.op)),
            None => Ok(()),
        }
    }

    /// Lets all kernels of this plan end that wait.
    pub fn abort(&self) {
        Report::end_waits(&self.report);
    }

    /// Whether it has not failed so far.
    ///
    /// # Errors
    /// Why it did.
    pub fn check(&self) -> Result<()> {
        let Some(report) = Report::of(&self.report) else { return Ok(()) };
        let runtime = self.device.runtime();
        let step = self.steps.get(report.step);
        // Those who wait for packets go by the number of the source.
        let late = step.and_then(|step| step.writers.get(report.who as usize)).map(|&rank| rank as Pe);
        let (place, name) = step.map_or_else(Default::default, |step| (step.place, step.name.as_str()));
        let waiting = format!("plan {}{place}, {name}", self.plan.name());
        Err(report.error(&waiting, late, runtime.my_pe(), runtime.settings().timeout_s))
    }

    /// Gives the memory back. Nothing that was launched is under way, on any PE. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn free(self) -> Result<()> {
        self.scratch.free()?;
        Ok(self.words.free()?)
    }
}
