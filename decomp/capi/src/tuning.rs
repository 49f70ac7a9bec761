//! Measurements that choose a process grid and back ends, as options ask for them.

use std::io::Write;

use symrail::with_timeout;
use symrail_decomp::tune::{Measured, Outcome};
use symrail_decomp::{Error, Form, Mode, Round, Tuned, Tuning, tune_among};

use crate::backends::{Backend, HALOS, Kind, TRANSPOSES};
use crate::candidates;
use crate::config::Checked;
use crate::guard::{Failure, extents};
use crate::handle::{Handle, key_of};
use crate::layouts::{Options, axis, element};

/// The most times that the time-out passes during measurements.
const TIME_OUTS: u64 = 10;

/// The measurement of transposes, or of halos.
pub struct Step {
    halos: bool,
    kind: &'static Kind,
    candidates: Vec<&'static Backend>,
    tuning: Tuning,
}

/// The measurements that options ask for, in order: the first one chooses the process grid, if that is asked for.
pub fn steps(checked: &Checked, options: Option<&Options>, ranks: usize) -> Result<Vec<Step>, Failure> {
    let Some(options) = options else { return Ok(Vec::new()) };
    let halos_first = match options.grid_mode {
        0 => false,
        1 => true,
        other => return Err(Failure::usage(format!("grid_mode {other}: there are 0 and 1"))),
    };
    let choose_grid = checked.grid.processes == [0, 0];
    let within = if choose_grid { candidates::ranges(ranks)? } else { [[1, usize::MAX]; 2] };
    let mut steps = Vec::new();
    for halos in [halos_first, !halos_first] {
        let kind = if halos { &HALOS } else { &TRANSPOSES };
        let candidates = match checked.backends[usize::from(halos)] {
            None => candidates::backends(kind, options)?,
            // Where the back end is known, only the first step has something to choose.
            Some(backend) if choose_grid && halos == halos_first => vec![backend],
            Some(_) => continue,
        };
        steps.push(Step { halos, kind, candidates, tuning: Tuning { within, ..tuning(options, halos)? } });
    }
    Ok(steps)
}

fn tuning(options: &Options, halos: bool) -> Result<Tuning, Failure> {
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let round = if halos { round_of_halos(options)? } else { round_of_transposes(options)? };
    Ok(Tuning {
        round,
        // The back ends have no name for a size from which on copy engines move blocks.
        crossover: false,
        element: element(options.dtype)?,
        warmup: count(options.n_warmup_trials),
        rounds: count(options.n_trials),
        uneven: options.allow_uneven_decompositions != 0,
        empty: false,
        skip: options.skip_threshold,
        ..Tuning::default()
    })
}

fn round_of_halos(options: &Options) -> Result<Round, Failure> {
    let halo = extents("halo_extents", options.halo_extents)?;
    let form = Form { halo, padding: extents("halo_padding", options.halo_padding)? };
    Ok(Round::Halos { axis: axis(options.halo_axis)?, form, periodic: options.halo_periods.map(|flag| flag != 0) })
}

fn round_of_transposes(options: &Options) -> Result<Round, Failure> {
    let mut all = [Measured::default(); 4];
    for (i, it) in all.iter_mut().enumerate() {
        let form = |halo: [[i32; 3]; 4], padding: [[i32; 3]; 4], [of_halo, of_padding]: [&str; 2]| {
            Ok::<_, Failure>(Form { halo: extents(of_halo, halo[i])?, padding: extents(of_padding, padding[i])? })
        };
        let input = (options.transpose_input_halo_extents, options.transpose_input_padding);
        let output = (options.transpose_output_halo_extents, options.transpose_output_padding);
        let weight = options.transpose_op_weights[i];
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(Failure::usage(format!("transpose_op_weights {weight}: none is below 0")));
        }
        *it = Measured {
            input: form(input.0, input.1, ["transpose_input_halo_extents", "transpose_input_padding"])?,
            output: form(output.0, output.1, ["transpose_output_halo_extents", "transpose_output_padding"])?,
            in_place: options.transpose_use_inplace_buffers[i] != 0,
            weight,
        };
    }
    Ok(Round::Transposes(all))
}

/// What must be the same on all ranks.
pub fn parameters(steps: &[Step]) -> impl Iterator<Item = (&'static str, u64)> {
    let number = |step: &Step| {
        let numbers: Vec<i32> = step.candidates.iter().map(|backend| backend.number).collect();
        key_of(&format!("{} {numbers:?} {:?}", step.halos, step.tuning))
    };
    [
        ("the number of measurements", steps.len() as u64),
        ("the options of measurements", key_of(&steps.iter().map(number).collect::<Vec<_>>())),
    ]
    .into_iter()
}

/// Measures, and returns the configuration with what was chosen. Collective.
pub fn choose(handle: &Handle, mut checked: Checked, steps: Vec<Step>) -> Result<Checked, Failure> {
    for Step { halos, kind, candidates, tuning } in steps {
        let on_gpu = handle.job.kernels().is_some();
        let mut modes: Vec<Mode> = Vec::new();
        for mode in candidates.iter().map(|backend| backend.mode(on_gpu)) {
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
        let of = |mode| candidates.iter().find(|backend| backend.mode(on_gpu) == mode).copied();
        let processes = Some(checked.grid.processes).filter(|processes| *processes != [0, 0]);
        let tuning = Tuning { processes, ..tuning };
        let (kernels, heap, team) = (handle.job.kernels(), handle.job.heap(), handle.job.team()?);
        let measure = || tune_among(kernels, heap, team, checked.grid, &tuning, &modes);
        let tuned = match with_timeout(handle.job.limit(TIME_OUTS), measure) {
            Err(Error::Grid { reason }) => return Err(Failure::unsupported(reason)),
            tuned => tuned?.1,
        };
        if handle.job.runtime().my_pe() == 0 {
            // A program may have closed its output.
            let _ = print(&mut std::io::stdout().lock(), kind, &tuned, &of);
        }
        checked.grid = tuned.grid;
        checked.backends[usize::from(halos)] = of(tuned.mode);
    }
    Ok(checked)
}

/// Prints the candidates' times, in milliseconds.
fn print(
    to: &mut impl Write,
    kind: &Kind,
    tuned: &Tuned,
    of: &impl Fn(Mode) -> Option<&'static Backend>,
) -> std::io::Result<()> {
    let (what, parts) = match kind.field {
        "halo_comm_backend" => ("halo", ["X", "Y", "Z", ""]),
        _ => ("transpose", ["XY", "YZ", "ZY", "YX"]),
    };
    let name = |mode| of(mode).map_or("", |backend| backend.name.to_str().unwrap_or_default());
    writeln!(to, "CUDECOMP: Running {what} autotuning...")?;
    let mut best = 0.0;
    for it in &tuned.candidates {
        let [rows, columns] = it.processes;
        writeln!(to, "CUDECOMP:\tgrid: {rows} x {columns}, {what} backend: {}", name(it.mode))?;
        if it.outcome != Outcome::Measured {
            let why = if it.outcome == Outcome::NoRoom { "no space in the heap" } else { "skipped" };
            writeln!(to, "CUDECOMP:\t({why})")?;
            continue;
        }
        writeln!(to, "CUDECOMP:\tAvg. time (weighted) [ms]: {:.6}", it.seconds * 1e3)?;
        for (part, seconds) in parts.iter().zip(it.each).filter(|(part, seconds)| !part.is_empty() && *seconds > 0.0) {
            writeln!(to, "CUDECOMP:\t{what} {part} avg. time [ms]: {:.6}", seconds * 1e3)?;
        }
        if it.processes == tuned.grid.processes && it.mode == tuned.mode {
            best = it.seconds;
        }
    }
    let [rows, columns] = tuned.grid.processes;
    let backend = name(tuned.mode);
    writeln!(
        to,
        "CUDECOMP: SELECTED: grid: {rows} x {columns}, {what} backend: {backend}, Avg. time (weighted) [ms]: {:.6}",
        best * 1e3
    )
}
