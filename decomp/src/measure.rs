//! The measurement of a candidate: it runs the four transposes, or the updates of a halo, on arrays of its own. Its
//! time is that of the slowest PE.

use std::time::{Duration, Instant};

use symrail::Team;
use symrail::kernels::cuda::{DeviceBuffer, Stream};

use crate::any_plan::AnyPlan;
use crate::cuda::{GpuKernels, GpuMemory};
use crate::decomposition::Decomposition;
use crate::error::Result;
use crate::mode::Mode;
use crate::transpose::Transpose;
use crate::tune::{Outcome, Tuning};

/// Arrays for the measurement, of `bytes` bytes each.
enum Arrays {
    Host([Vec<u64>; 2]),
    Gpu([DeviceBuffer; 2], Stream),
}

impl Arrays {
    fn new(kernels: Option<&GpuKernels>, bytes: usize) -> Result<Arrays> {
        let Some(kernels) = kernels else { return Ok(Arrays::Host([0, 1].map(|_| vec![0u64; bytes.div_ceil(8)]))) };
        let gpu = kernels.device().gpu();
        let buffers = [gpu.alloc(bytes.max(1))?, gpu.alloc(bytes.max(1))?];
        Ok(Arrays::Gpu(buffers, Stream::new(gpu)?))
    }

    fn addresses(&mut self) -> [u64; 2] {
        match self {
            Arrays::Host(arrays) => arrays.each_mut().map(|array| array.as_mut_ptr().expose_provenance() as u64),
            Arrays::Gpu(buffers, _) => buffers.each_ref().map(|buffer| buffer.at().get()),
        }
    }

    fn stream(&self) -> usize {
        match self {
            Arrays::Host(_) => 0,
            Arrays::Gpu(_, stream) => stream.raw().expose_provenance(),
        }
    }

    /// Waits for the rounds that were enqueued.
    fn wait(&self, limit: Duration) -> Result<()> {
        match self {
            Arrays::Host(_) => Ok(()),
            Arrays::Gpu(_, stream) => Ok(stream.wait(limit)?),
        }
    }
}

/// Seconds of a round on the slowest PE, and the candidate's outcome. A candidate that the heap has no space for
/// allocates nothing.
pub(crate) fn measure(
    array: &Decomposition,
    kernels: Option<&GpuKernels>,
    mode: Mode,
    tuning: &Tuning,
    best: f64,
) -> Result<(f64, Outcome)> {
    let Tuning { element, fields, .. } = *tuning;
    let transpose =
        |&axes| AnyPlan::transpose(array, kernels, &Transpose { mode, fields, ..Transpose::new(axes, element) });
    let updates = tuning.round.updates(tuning, mode);
    let in_place = !updates.is_empty();
    let mut plans = Vec::new();
    let mut keep = |plan: Result<_>| plan.map(|plan| plans.push(plan));
    let made = match &updates[..] {
        [] => Transpose::ALL.iter().try_for_each(|axes| keep(transpose(axes))),
        updates => updates.iter().try_for_each(|halo| keep(AnyPlan::halo(array, kernels, halo))),
    };
    let largest = plans.iter().map(AnyPlan::workspace_bytes).max().unwrap_or(0);
    let mut work = match made.and_then(|()| array.workspace(largest)) {
        Err(full) if full.is_full() => {
            plans.into_iter().try_for_each(|plan| plan.give_up(array))?;
            return Err(full);
        }
        work => work?,
    };
    let bytes = plans.iter().map(|plan| plan.input_bytes().max(plan.output_bytes())).max().unwrap_or(0);
    let mut arrays = Arrays::new(kernels, bytes)?;
    let (mut buffers, stream) = (arrays.addresses().map(|at| GpuMemory { at, bytes }), arrays.stream());
    let limit = Duration::from_secs(2 * array.runtime().settings().timeout_s);
    let mut round = || {
        for plan in &mut plans {
            let used = if in_place { [buffers[0]; 2] } else { buffers };
            // SAFETY: the arrays are large enough, and stay valid until the rounds have ended.
            unsafe { plan.run(used, &mut work, stream) }?;
            if !in_place {
                buffers.swap(0, 1);
            }
        }
        Ok(())
    };
    let mut time = |rounds: u32| seconds_of_a_round(array.team(), rounds, &mut round, || arrays.wait(limit));
    let first = time(1)?;
    let given_up = tuning.skip * first > best;
    let (mut seconds, mut outcome) = (first, Outcome::GivenUp);
    if !given_up {
        time(tuning.warmup)?;
        (seconds, outcome) = (time(tuning.rounds.max(1))?, Outcome::Measured);
    }
    plans.into_iter().try_for_each(|plan| plan.give_up(array))?;
    array.give_back(work)?;
    Ok((seconds, outcome))
}

/// Seconds of a round on the slowest PE, of `rounds` rounds, which have ended after `wait`. Collective over the team.
pub(crate) fn seconds_of_a_round(
    team: &Team,
    rounds: u32,
    mut round: impl FnMut() -> Result<()>,
    wait: impl FnOnce() -> Result<()>,
) -> Result<f64> {
    team.sync()?;
    let start = Instant::now();
    (0..rounds).try_for_each(|_| round())?;
    wait()?;
    let mut nanoseconds = [(start.elapsed().as_nanos() / u128::from(rounds.max(1))) as u64];
    team.max_of_all(&mut nanoseconds)?;
    Ok(nanoseconds[0] as f64 / 1e9)
}
