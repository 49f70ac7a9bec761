//! The measurement of a candidate: it runs the four transposes, or the updates of a halo, on arrays of its own. Its
//! time is that of the slowest PE.

use std::time::{Duration, Instant};

use symrail::Team;
use symrail::kernels::cuda::{DeviceBuffer, Stream};

use crate::any_plan::AnyPlan;
use crate::cuda::{GpuKernels, GpuMemory};
use crate::decomposition::Decomposition;
use crate::error::{Error, Result};
use crate::mode::Mode;
use crate::tune::{Measured, Outcome, Tuning};
use crate::workspace::Workspace;

/// What the PEs do, in errors of one of them.
pub(crate) const MEASURING: &str = "measuring";

/// Arrays for the measurement, of `bytes` bytes each.
enum Arrays {
    Host([Vec<u64>; 2]),
    Gpu([DeviceBuffer; 2], Stream),
}

impl Arrays {
    fn new(kernels: Option<&GpuKernels>, bytes: usize) -> Result<Arrays> {
        let Some(kernels) = kernels else { return Ok(Arrays::Host([zeros(bytes)?, zeros(bytes)?])) };
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

/// So many bytes of zeros.
fn zeros(bytes: usize) -> Result<Vec<u64>> {
    let mut words = Vec::new();
    let reserved = words.try_reserve_exact(bytes.div_ceil(8));
    let none = |_| Error::Plan { what: "array", reason: format!("there is no memory for its {bytes} bytes") };
    reserved.map_err(none)?;
    words.resize(bytes.div_ceil(8), 0);
    Ok(words)
}

/// A part of a round: a plan, whether its input and output are one buffer, and the factor of its time.
type Part = (AnyPlan, bool, f64);

/// Seconds of a round on the slowest PE: the sum of its parts by their weights, and each part's.
pub(crate) type Times = (f64, [f64; 4]);

/// The times of a candidate, and its outcome. A candidate that the heap has no space for allocates nothing.
pub(crate) fn measure(
    array: &Decomposition,
    kernels: Option<&GpuKernels>,
    mode: Mode,
    tuning: &Tuning,
    best: f64,
) -> Result<(Times, Outcome)> {
    let mut parts: Vec<Part> = Vec::new();
    let made = make(array, kernels, mode, tuning, &mut parts);
    let taken = made.and_then(|()| {
        let largest = parts.iter().map(|(plan, ..)| plan.workspace_bytes()).max().unwrap_or(0);
        let mut work = array.workspace(largest)?;
        let taken = time_parts(array, kernels, tuning, &mut parts, &mut work, best);
        array.give_back(work)?;
        taken
    });
    let idle = kernels.map_or(Ok(()), |kernels| kernels.device().gpu().synchronize());
    // All PEs get the errors after which plans are left.
    array.give_up_all(parts.into_iter().map(|(plan, ..)| plan).collect())?;
    idle?;
    taken
}

/// Makes the plans of a round.
fn make(
    array: &Decomposition,
    kernels: Option<&GpuKernels>,
    mode: Mode,
    tuning: &Tuning,
    parts: &mut Vec<Part>,
) -> Result<()> {
    for (transpose, Measured { in_place, weight, .. }) in tuning.round.transposes(tuning, mode) {
        parts.push((AnyPlan::new(array, kernels, &transpose.into())?, in_place, weight));
    }
    for halo in tuning.round.updates(tuning, mode) {
        parts.push((AnyPlan::new(array, kernels, &halo.into())?, true, 1.0));
    }
    Ok(())
}

fn time_parts(
    array: &Decomposition,
    kernels: Option<&GpuKernels>,
    tuning: &Tuning,
    parts: &mut [Part],
    work: &mut Workspace,
    best: f64,
) -> Result<(Times, Outcome)> {
    let bytes = parts.iter().map(|(plan, ..)| plan.input_bytes().max(plan.output_bytes())).max().unwrap_or(0);
    let mut arrays = array.team().all_or_none(MEASURING, Arrays::new(kernels, bytes))?;
    let (buffers, stream) = (arrays.addresses().map(|at| GpuMemory { at, bytes }), arrays.stream());
    let limit = Duration::from_secs(2 * array.runtime().settings().timeout_s);
    let mut time = |rounds: u32| {
        let (mut all, mut each) = (0.0, [0.0; 4]);
        for ((plan, in_place, weight), seconds) in
            parts.iter_mut().zip(&mut each).filter(|((.., weight), _)| *weight > 0.0)
        {
            let used = if *in_place { [buffers[0]; 2] } else { buffers };
            // SAFETY: the arrays are large enough, and stay valid until the rounds have ended.
            let round = |plan: &mut AnyPlan| unsafe { plan.run(used, work, stream) };
            let ends = |plan: &AnyPlan| (arrays.wait(limit), plan.check());
            *seconds = seconds_of_a_round(array.team(), rounds, plan, round, ends)?;
            all += *seconds * *weight;
        }
        Ok::<_, crate::Error>((all, each))
    };
    time(tuning.warmup)?;
    let first = time(1)?;
    if tuning.skip * first.0 > best {
        return Ok((first, Outcome::GivenUp));
    }
    Ok((time(tuning.rounds.max(1))?, Outcome::Measured))
}

/// Seconds of a round on the slowest PE, of `rounds` rounds of a plan. `ends` waits for them, and then checks what was
/// reported of them. Collective over the team, all of whose PEs get an error if one does.
pub(crate) fn seconds_of_a_round<P>(
    team: &Team,
    rounds: u32,
    plan: &mut P,
    round: impl FnMut(&mut P) -> Result<()>,
    ends: impl FnOnce(&P) -> (Result<()>, Result<()>),
) -> Result<f64> {
    team.sync()?;
    let start = Instant::now();
    let ran = all_rounds(rounds, plan, round, ends);
    let mut nanoseconds = [(start.elapsed().as_nanos() / u128::from(rounds.max(1))) as u64];
    team.all_or_none(MEASURING, ran)?;
    team.max_of_all(&mut nanoseconds)?;
    Ok(nanoseconds[0] as f64 / 1e9)
}

/// Makes all rounds, whatever one of them returns: the other PEs go on, too. Returns the first error, also of the last
/// round, which is reported when it has ended.
fn all_rounds<P>(
    rounds: u32,
    plan: &mut P,
    mut round: impl FnMut(&mut P) -> Result<()>,
    ends: impl FnOnce(&P) -> (Result<()>, Result<()>),
) -> Result<()> {
    let ran = (0..rounds).map(|_| round(plan)).fold(Ok(()), Result::and);
    let (waited, reported) = ends(plan);
    ran.and(waited).and(reported)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rounds of a plan on a GPU, of which one is refused by a peer: the next call reports it.
    struct Rounds {
        made: u32,
        wrong: u32,
        told: bool,
    }

    #[test]
    fn each_round_is_made_and_the_last_one_is_checked() {
        for wrong in 1..=4 {
            let mut rounds = Rounds { made: 0, wrong, told: false };
            let report = |rounds: &Rounds| {
                let there = rounds.made >= rounds.wrong && !rounds.told;
                if there { Err(Error::Plan { what: "test", reason: rounds.wrong.to_string() }) } else { Ok(()) }
            };
            let round = |rounds: &mut Rounds| {
                let told = report(rounds);
                rounds.told |= told.is_err();
                rounds.made += 1;
                told
            };
            let ran = all_rounds(4, &mut rounds, round, |rounds| (Ok(()), report(rounds)));
            assert!(matches!(ran, Err(Error::Plan { .. })), "round {wrong}");
            assert_eq!(rounds.made, 4, "the peers wait for all rounds");
        }
    }
}
