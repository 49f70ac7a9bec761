//! Plans for callers that learn at run time where arrays are: the C and Python interfaces, and the measurements.

use symrail::team::heap::Block;

use crate::blocks::Blocks;
use crate::buffer::Buffer;
use crate::counters::Counters;
use crate::cuda::{GpuKernels, GpuMemory, GpuPlan};
use crate::decomposition::Decomposition;
use crate::error::Result;
use crate::operation::Operation;
use crate::plan::Plan;
use crate::workspace::Workspace;

/// A plan on host memory or on a GPU.
pub enum AnyPlan {
    /// The CPU copies.
    Host(Plan),
    /// A GPU copies, in stream order.
    Gpu(GpuPlan),
}

impl AnyPlan {
    /// A plan of an operation, with the GPU's kernels if they are given. Collective over the team.
    ///
    /// # Errors
    /// Those of [`Decomposition::transpose`] and [`Decomposition::gpu_transpose`].
    pub fn new(array: &Decomposition, kernels: Option<&GpuKernels>, operation: &Operation) -> Result<AnyPlan> {
        Ok(match kernels {
            None => AnyPlan::Host(array.plan(operation)?),
            Some(kernels) => AnyPlan::Gpu(array.gpu_plan(kernels, operation)?),
        })
    }

    fn blocks(&self) -> &Blocks {
        match self {
            AnyPlan::Host(plan) => &plan.blocks,
            AnyPlan::Gpu(plan) => &plan.blocks,
        }
    }

    /// The blocks that the plan has moved, by the way that each block took.
    #[must_use]
    pub fn counters(&self) -> Counters {
        match self {
            AnyPlan::Host(plan) => plan.counters(),
            AnyPlan::Gpu(plan) => plan.counters(),
        }
    }

    /// Bytes of workspace that this PE needs.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.blocks().workspace_bytes
    }

    /// Bytes of the input.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.blocks().input_bytes()
    }

    /// Bytes of the output.
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        self.blocks().output_bytes()
    }

    /// Runs a round. On a GPU the call only enqueues it on the stream with this handle of the driver, and returns the
    /// errors of rounds so far: it takes part in this one all the same, as its peers do, unless the plan cannot be used
    /// again. The host has no streams.
    ///
    /// # Safety
    /// The memory is valid, and nothing else uses it, until the round has ended: host memory during the call, GPU
    /// memory until the stream has completed the round. The stream is one of the GPU's.
    ///
    /// # Errors
    /// Those of [`Plan::run`], or of [`GpuPlan::post`] and [`GpuPlan::check`].
    pub unsafe fn run(&mut self, [input, output]: [GpuMemory; 2], work: &mut Workspace, stream: usize) -> Result<()> {
        match self {
            AnyPlan::Gpu(plan) => {
                // SAFETY: the caller's promise, twice.
                let post = |plan: &mut GpuPlan| unsafe {
                    let stream = plan.stream(stream);
                    plan.post(&stream, input, output, work)
                };
                take_part(plan, GpuPlan::must_be_usable, post, GpuPlan::told)
            }
            // SAFETY: the caller's promise.
            AnyPlan::Host(plan) => unsafe { plan.run(buffer(input), buffer(output), work) },
        }
    }

    /// Checks the arguments of a round as [`AnyPlan::run`] does, without a round: no other PE takes part.
    ///
    /// # Safety
    /// As for [`AnyPlan::run`], during the call.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused).
    pub unsafe fn accepts(&self, [input, output]: [GpuMemory; 2], work: &Workspace) -> Result<()> {
        match self {
            AnyPlan::Gpu(plan) => plan.accepts(input, output, work),
            // SAFETY: the caller's promise.
            AnyPlan::Host(plan) => unsafe { plan.accepts(&buffer(input), &buffer(output), work) },
        }
    }

    /// Returns an error if a round has failed so far. On the host each call has already returned its own.
    ///
    /// # Errors
    /// Those of [`GpuPlan::check`].
    pub fn check(&self) -> Result<()> {
        match self {
            AnyPlan::Host(_) => Ok(()),
            AnyPlan::Gpu(plan) => plan.check(),
        }
    }

    /// Frees the plan. Collective over the team.
    ///
    /// # Errors
    /// Those of [`Decomposition::give_up`] and [`Decomposition::give_up_gpu`].
    pub fn give_up(self, array: &Decomposition) -> Result<()> {
        match self {
            AnyPlan::Host(plan) => array.give_up(plan),
            AnyPlan::Gpu(plan) => array.give_up_gpu(plan),
        }
    }

    /// Its symmetric memory. No peer may write to it any more when it is freed, and the GPU has completed its work.
    pub(crate) fn into_blocks(self) -> Vec<Block> {
        match self {
            AnyPlan::Host(plan) => vec![plan.into_block()],
            AnyPlan::Gpu(plan) => plan.into_blocks(),
        }
    }
}

/// Takes part in a round whatever was `told` of earlier ones: the peers wait for this PE. What was told is returned by
/// the next round if this one returns an error of its own.
fn take_part<P>(
    plan: &mut P,
    must_be_usable: impl FnOnce(&P) -> Result<()>,
    post: impl FnOnce(&mut P) -> Result<()>,
    told: impl FnOnce(&P) -> Result<()>,
) -> Result<()> {
    must_be_usable(plan)?;
    post(plan)?;
    told(plan)
}

/// # Safety
/// The memory is valid, and nothing else uses it, as long as the buffer is used.
unsafe fn buffer<'a>(memory: GpuMemory) -> Buffer<'a> {
    let at = std::ptr::with_exposed_provenance_mut(memory.at as usize);
    // SAFETY: the caller's promise.
    unsafe { Buffer::raw(at, memory.bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Refusal};

    /// A plan's rounds, what was told of them, and whether it can be used again.
    #[derive(Default)]
    struct Rounds {
        posted: u32,
        told: std::cell::Cell<bool>,
        is_lost: bool,
    }

    fn run(rounds: &mut Rounds, wrong: bool) -> Result<()> {
        let refused = || Error::RefusedBy { pe: 1, operation: "a test", by: 0, refusal: Refusal::Misaligned };
        let lost = || Error::Plan { what: "test", reason: "lost".into() };
        let post = |rounds: &mut Rounds| {
            rounds.posted += 1;
            if wrong { Err(Error::FirstCaptured { operation: "a test" }) } else { Ok(()) }
        };
        let told = |rounds: &Rounds| if rounds.told.take() { Err(refused()) } else { Ok(()) };
        take_part(rounds, |rounds| if rounds.is_lost { Err(lost()) } else { Ok(()) }, post, told)
    }

    #[test]
    fn what_peers_report_leaves_out_no_round() {
        let mut rounds = Rounds::default();
        assert!(run(&mut rounds, false).is_ok() && rounds.posted == 1);
        // Peers take part in this round, and wait for this PE.
        rounds.told.set(true);
        assert!(matches!(run(&mut rounds, false), Err(Error::RefusedBy { by: 0, .. })));
        assert_eq!(rounds.posted, 2);
        assert!(run(&mut rounds, false).is_ok() && rounds.posted == 3);
        // An error of this round's own does not displace the report.
        rounds.told.set(true);
        assert!(matches!(run(&mut rounds, true), Err(Error::FirstCaptured { .. })));
        assert!(matches!(run(&mut rounds, false), Err(Error::RefusedBy { .. })));
        rounds.is_lost = true;
        assert!(matches!(run(&mut rounds, false), Err(Error::Plan { .. })) && rounds.posted == 5);
    }
}
