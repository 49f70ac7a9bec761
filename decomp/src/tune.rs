//! The choice of a process grid and a mode by measurements.
//!
//! All PEs know the time of every candidate, so that all make the same choice.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use symrail::{Team, TeamHeap};

use crate::crossover::Crossover;
use crate::cuda::GpuKernels;
use crate::decomposition::Decomposition;
use crate::error::{Error, Result};
use crate::grid::{Axis, Grid};
use crate::halo::Halo;
use crate::measure::measure;
use crate::mode::Mode;
use crate::pencil::Form;
use crate::transpose::Transpose;

/// The largest block, in bytes, in the comparison of copy engines with multiprocessors.
const LARGEST_BLOCK: usize = 16 << 20;

/// How a transpose is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Halo and padding of the input.
    pub input: Form,
    /// Halo and padding of the output.
    pub output: Form,
    /// Whether input and output are one buffer.
    pub in_place: bool,
    /// The factor of its time in the candidate's; it does not run with 0.
    pub weight: f64,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured { input: Form::default(), output: Form::default(), in_place: false, weight: 1.0 }
    }
}

/// The work of a round.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a tuning has one")]
pub enum Round {
    /// The four transposes, in the order of [`Transpose::ALL`].
    Transposes([Measured; 4]),
    /// An update of the halo along X, Y and Z each.
    Halos {
        /// The axis of the pencils.
        axis: Axis,
        /// Halo and padding.
        form: Form,
        /// Whether the array is periodic along X, Y and Z.
        periodic: [bool; 3],
    },
}

impl Default for Round {
    /// The four transposes, of arrays without halos and padding.
    fn default() -> Round {
        Round::Transposes([Measured::default(); 4])
    }
}

impl Round {
    /// The transposes, each with how it is measured; none for halos.
    pub(crate) fn transposes(self, tuning: &Tuning, mode: Mode) -> Vec<(Transpose, Measured)> {
        let Round::Transposes(all) = self else { return Vec::new() };
        let Tuning { element, fields, .. } = *tuning;
        let transpose = |(axes, it): (_, Measured)| {
            (Transpose { input: it.input, output: it.output, mode, fields, ..Transpose::new(axes, element) }, it)
        };
        Transpose::ALL.into_iter().zip(all).map(transpose).collect()
    }

    /// The updates of the halos; none for transposes.
    pub(crate) fn updates(self, tuning: &Tuning, mode: Mode) -> Vec<Halo> {
        let Round::Halos { axis, form, periodic } = self else { return Vec::new() };
        let Tuning { element, fields, .. } = *tuning;
        let update = |dim| Halo { axis, dim, periodic: periodic[dim], form, element, fields, mode };
        (0..3).map(update).collect()
    }

    /// The parameters that must be the same on all PEs.
    fn parameters(self) -> Vec<(&'static str, u64)> {
        let (axis, form, periodic) = match self {
            Round::Halos { axis, form, periodic } => (axis, form, periodic),
            Round::Transposes(each) => {
                let mut all = vec![("what is measured", 0)];
                for it in each {
                    all.push(("whether a transpose is in place", it.in_place.into()));
                    all.push(("the weight of a transpose", it.weight.to_bits()));
                    all.extend(it.input.parameters("the input's halo or padding"));
                    all.extend(it.output.parameters("the output's halo or padding"));
                }
                return all;
            }
        };
        let mut all = vec![("what is measured", 1), ("the axis", axis.index() as u64)];
        all.extend(periodic.map(|is| ("the periods", u64::from(is))));
        all.extend(form.parameters("halo or padding"));
        all
    }
}

/// The parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// The work of a round.
    pub round: Round,
    /// The only process grid that is measured; without it, all of the team's are.
    pub processes: Option<[usize; 2]>,
    /// The only mode that is measured; without it, [all modes](Mode::all).
    pub mode: Option<Mode>,
    /// Whether to measure also the size of blocks above which copy engines are faster ([`Crossover`]), if all modes are
    /// measured. That size is then a mode, too.
    pub crossover: bool,
    /// Bytes of an element.
    pub element: usize,
    /// The number of arrays that are transposed, or whose halos are updated, at once.
    pub fields: usize,
    /// The number of warm-up rounds.
    pub warmup: u32,
    /// The number of timed rounds.
    pub rounds: u32,
    /// Whether to include process grids that give some PEs more elements than others.
    pub uneven: bool,
    /// Whether to include process grids that leave a PE without elements.
    pub empty: bool,
    /// The least and the most rows, and columns, of process grids.
    pub within: [[usize; 2]; 2],
    /// The measurement of a candidate stops after the first round behind the warm-up if this share of that round's time
    /// is more than the best candidate's; 0 measures all.
    pub skip: f64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        let round = Round::default();
        Tuning {
            round,
            processes: None,
            mode: None,
            crossover: true,
            element: 8,
            fields: 1,
            warmup: 3,
            rounds: 5,
            uneven: true,
            empty: true,
            within: [[1, usize::MAX]; 2],
            skip: 0.0,
        }
    }
}

impl Tuning {
    /// The process grids to measure. Those with a PE that has fewer elements than a halo is wide are left out.
    fn grids(&self, grid: Grid, size: usize) -> Result<Vec<Grid>> {
        let all: Vec<[usize; 2]> = self.processes.map_or_else(|| Grid::factors(size).collect(), |only| vec![only]);
        let all: Vec<Grid> = all.into_iter().map(|processes| Grid { processes, ..grid }).collect();
        all.iter().try_for_each(|grid| grid.check(size))?;
        let split = [(0, 0), (1, 0), (1, 1), (2, 1)];
        let even =
            |grid: &Grid| split.iter().all(|&(dim, along)| grid.distributed[dim].is_multiple_of(grid.processes[along]));
        let within = |grid: &Grid| {
            let ranges = grid.processes.into_iter().zip(self.within);
            ranges.into_iter().all(|(number, [least, most])| (least..=most).contains(&number))
        };
        let empty = |grid: &Grid| Axis::ALL.iter().any(|&axis| grid.has_empty_pencils(axis));
        let wanted = |grid: &Grid| within(grid) && (self.uneven || even(grid)) && (self.empty || !empty(grid));
        let updates = self.round.updates(self, Mode::default());
        let possible = |grid: &Grid| updates.iter().all(|halo| halo.flows(grid, 0).is_ok());
        let grids: Vec<Grid> = all.into_iter().filter(|grid| wanted(grid) && possible(grid)).collect();
        if grids.is_empty() {
            let mut reason = format!(
                "no process grid of {size} PEs shares {:?} out {}",
                grid.extents,
                if self.uneven { "so that each PE has as many elements as the halo is wide" } else { "evenly" }
            );
            if self.within != Tuning::default().within {
                reason += &format!(", with rows and columns within {:?}", self.within);
            }
            return Err(Error::Grid { reason });
        }
        Ok(grids)
    }
}

/// A process grid and a mode, and their time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The process grid.
    pub processes: [usize; 2],
    /// The mode.
    pub mode: Mode,
    /// Seconds of a round on the slowest PE: the sum of its parts, by their weights. It is that of the one round if the
    /// measurement stopped there, and 0 if the heap had no space.
    pub seconds: f64,
    /// Seconds of each transpose, or of the updates along X, Y and Z, if they were measured.
    #[serde(default)]
    pub each: [f64; 4],
    /// The outcome of the measurement.
    pub outcome: Outcome,
}

/// The outcome of a candidate's measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was measured.
    Measured,
    /// The measurement stopped after one round behind the warm-up: [`Tuning::skip`].
    GivenUp,
    /// The team's heap has no space for its plans and its workspace.
    NoRoom,
}

/// The result of the measurements for a grid. It prints as a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// The grid with the best process grid.
    pub grid: Grid,
    /// The best mode.
    pub mode: Mode,
    /// All candidates, in the order of their measurement.
    pub candidates: Vec<Candidate>,
    /// The size of blocks above which copy engines are faster.
    #[serde(default)]
    pub crossover: Crossover,
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.crossover.sizes.is_empty() {
            writeln!(f, "{}", self.crossover)?;
        }
        let title = "engines from";
        writeln!(f, "{:>9}  {:<9}  {:<8}  {title:<12}  {:>12}", "processes", "pipelined", "direct", "time (us)")?;
        for it in &self.candidates {
            let [rows, columns] = it.processes;
            let word = |is| if is { "yes" } else { "no" };
            let best = it.processes == self.grid.processes && it.mode == self.mode;
            let note = match it.outcome {
                Outcome::Measured if best => "  best",
                Outcome::Measured => "",
                Outcome::GivenUp => "  given up",
                Outcome::NoRoom => "  no room",
            };
            let grid = format!("{rows}x{columns}");
            let [pipelined, direct] = [it.mode.pipelined, it.mode.direct].map(word);
            let engines = it.mode.engines.map_or("no".into(), |bytes| format!("{bytes} bytes"));
            let us = it.seconds * 1e6;
            writeln!(f, "{grid:>9}  {pipelined:<9}  {direct:<8}  {engines:<12}  {us:>12.1}{note}")?;
        }
        Ok(())
    }
}

impl Tuned {
    /// Writes the result as JSON, for the next run.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn store(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|reason| file(path, &reason))?;
        std::fs::write(path, text + "\n").map_err(|reason| file(path, &reason))
    }

    /// Reads a stored result. Collective over the team.
    ///
    /// # Errors
    /// [`Error::File`]; [`symrail::Error::ParametersDiffer`] if PEs read different results; [`Error::Grid`] if the
    /// result is for another number of PEs. All PEs get an error if one does.
    pub fn load(path: &Path, team: &Team) -> Result<Tuned> {
        let read = std::fs::read_to_string(path).map_err(|reason| file(path, &reason));
        let parsed = read.and_then(|text| serde_json::from_str::<Tuned>(&text).map_err(|reason| file(path, &reason)));
        let size = team.group().size() as usize;
        let checked = parsed.and_then(|tuned| tuned.grid.check(size).map(|()| tuned));
        let mut parameters = vec![("whether the file can be read", u64::from(checked.is_ok()))];
        if let Ok(tuned) = &checked {
            parameters.extend(tuned.grid.parameters());
            parameters.extend(tuned.mode.parameters());
            let from = tuned.crossover.engines_from().map_or(u64::MAX, |bytes| bytes as u64);
            parameters.push(("the size from which copy engines are faster", from));
        }
        match team.compare("reading what was tuned", &parameters) {
            Err(differ) if checked.is_ok() => Err(differ.into()),
            _ => checked,
        }
    }
}

fn file(path: &Path, reason: &dyn fmt::Display) -> Error {
    Error::File { path: path.display().to_string(), reason: reason.to_string() }
}

fn measured(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> {
    candidates.iter().filter(|it| it.outcome == Outcome::Measured)
}

/// Measures the process grids of a team for a grid, in all modes. The grid's own process grid is ignored. Returns the
/// team. Collective over the team.
///
/// # Errors
/// As for [`Decomposition`] and its plans; [`Error::Grid`] if there is nothing to measure;
/// [`symrail::Error::TeamHeapFull`] if the heap has no space for any candidate.
pub fn tune(heap: &TeamHeap, team: Team, grid: Grid, tuning: &Tuning) -> Result<(Team, Tuned)> {
    tune_on(None, heap, team, grid, tuning)
}

/// As [`tune`], with the GPU's kernels if they are given, and arrays in the GPU's memory.
///
/// # Errors
/// As for [`tune`]; an error of the driver.
pub fn tune_on(
    kernels: Option<&GpuKernels>,
    heap: &TeamHeap,
    team: Team,
    grid: Grid,
    tuning: &Tuning,
) -> Result<(Team, Tuned)> {
    let modes = tuning.mode.map_or_else(|| Mode::all(kernels.is_some()), |only| vec![only]);
    tune_among(kernels, heap, team, grid, tuning, &modes)
}

/// As [`tune_on`], in these modes, whichever [`Tuning::mode`] says.
///
/// # Errors
/// As for [`tune_on`].
pub fn tune_among(
    kernels: Option<&GpuKernels>,
    heap: &TeamHeap,
    mut team: Team,
    grid: Grid,
    tuning: &Tuning,
    modes: &[Mode],
) -> Result<(Team, Tuned)> {
    let size = team.group().size() as usize;
    let [rows, columns] = tuning.processes.unwrap_or_default().map(|number| number as u64);
    let mut parameters = vec![
        ("the process grid", rows),
        ("the process grid", columns),
        ("bytes of an element", tuning.element as u64),
        ("the number of fields", tuning.fields as u64),
        ("rounds before those that are timed", tuning.warmup.into()),
        ("rounds", tuning.rounds.into()),
        ("whether uneven grids count", tuning.uneven.into()),
        ("whether grids with PEs without elements count", tuning.empty.into()),
        ("when candidates are given up", tuning.skip.to_bits()),
    ];
    let mut modes = modes.to_vec();
    let within = tuning.within.as_flattened().iter();
    parameters.extend(within.map(|&number| ("the range of rows and columns", number as u64)));
    modes.iter().for_each(|mode| parameters.extend(mode.parameters()));
    parameters.push(("the number of modes", modes.len() as u64));
    parameters.push(("whether the size for copy engines is measured", tuning.crossover.into()));
    parameters.extend(tuning.round.parameters());
    parameters.extend(Grid { processes: [0, 0], ..grid }.parameters());
    team.compare("tuning", &parameters)?;
    if modes.is_empty() {
        return Err(Error::Grid { reason: "there is no mode to measure".into() });
    }
    let crossover = match kernels.filter(|_| tuning.crossover && tuning.mode.is_none()) {
        Some(kernels) => Crossover::measure(kernels, heap, &team, LARGEST_BLOCK)?,
        None => Crossover::default(),
    };
    modes.extend(crossover.engines_from().map(|from| Mode { engines: Some(from), ..Mode::default() }));
    let (mut candidates, mut full): (Vec<Candidate>, _) = (Vec::new(), None);
    for grid in tuning.grids(grid, size)? {
        let array = Decomposition::new(heap, team, grid)?;
        for &mode in &modes {
            let best = measured(&candidates).map(|it| it.seconds).fold(f64::INFINITY, f64::min);
            let ((seconds, each), outcome) = match measure(&array, kernels, mode, tuning, best) {
                // All PEs get this error.
                Err(error) if error.is_full() => {
                    full = Some(error);
                    ((0.0, [0.0; 4]), Outcome::NoRoom)
                }
                taken => taken?,
            };
            candidates.push(Candidate { processes: grid.processes, mode, seconds, each, outcome });
        }
        team = array.into_team();
    }
    let best = measured(&candidates).min_by(|one, other| one.seconds.total_cmp(&other.seconds)).copied();
    let none = || full.unwrap_or(Error::Grid { reason: "all candidates were given up: skip less".into() });
    let best = best.ok_or_else(none)?;
    Ok((team, Tuned { grid: Grid { processes: best.processes, ..grid }, mode: best.mode, candidates, crossover }))
}
