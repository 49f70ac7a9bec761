//! The output of PE 0, as results come: tables and files.
//!
//! | file | concept |
//! |---|---|
//! | `table` | tables in the style of NVSHMEM's and OSU's tests, and the progress bar |
//! | `json` | `--json`: one array of records, complete after each |
//! | `plot` | `--plot`: a drawing of all tests, after each |
//! | `file` | files that are checked to be writable before anything is measured |

mod file;
mod json;
mod plot;
mod table;

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use super::catalog::{Sizes, Test};
use super::error::{Error, Result};
use super::plan::Plan;
use super::sample::Figures;
use crate::print;
use file::Output;
use json::{Array, Point, Record};
use plot::Format;

/// The files for figures besides standard output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files<'a> {
    /// `--json`.
    pub json: Option<&'a Path>,
    /// `--plot`.
    pub plot: Option<&'a Path>,
    /// `--beside`.
    pub beside: &'a [PathBuf],
}

impl Files<'_> {
    /// Refuses files that could not be written once figures exist.
    pub fn check(&self) -> Result<()> {
        self.plot.map(Format::of).transpose()?;
        self.earlier()?;
        file::check(&self.json.into_iter().chain(self.plot).collect::<Vec<_>>())
    }

    /// The points of earlier runs.
    fn earlier(&self) -> Result<Vec<Point>> {
        Ok(self.beside.iter().map(|path| json::points(path)).collect::<Result<Vec<_>>>()?.concat())
    }
}

/// The conditions of a test.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conditions {
    /// The user's options.
    pub plan: Plan,
    /// The name of PE 0's machine.
    pub machine: String,
    /// `mapped`, `wire`, or `copies` for plain copies.
    pub path: String,
    /// `libfabric`, `ibverbs`, or `none`.
    pub transport: String,
    pub provider: String,
    pub rails: Vec<String>,
    pub progress: String,
    pub device: String,
    pub hosts: usize,
    pub n_pes: u32,
}

impl std::fmt::Display for Conditions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = |n: usize| if n == 1 { "" } else { "s" };
        write!(
            f,
            "{} PEs on {} host{}, device {}, path {}",
            self.n_pes,
            self.hosts,
            s(self.hosts),
            self.device,
            self.path
        )?;
        write!(f, ", transport {}", self.transport)?;
        if self.rails.is_empty() {
            return Ok(());
        }
        let (count, names) = (self.rails.len(), self.rails.join(" "));
        write!(f, ", provider {}, {count} rail{} ({names}), progress {}", self.provider, s(count), self.progress)
    }
}

/// Collects figures and prints them. Only PE 0's report prints.
pub struct Report {
    speaks: bool,
    /// What the drawing shows, of this run and of earlier ones.
    points: Vec<Point>,
    earlier: Vec<Point>,
    json: Option<Array>,
    plot: Option<(Output, Format)>,
    /// The conditions that were printed last.
    shown: Option<Conditions>,
    bar: ProgressBar,
}

impl Report {
    /// A report of `steps` sizes.
    pub fn new(speaks: bool, steps: u64, files: Files<'_>) -> Result<Report> {
        // The bar is on standard error, and only if that is a terminal.
        let bar = if speaks { ProgressBar::new(steps) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} {elapsed}") {
            bar.set_style(style);
        }
        let files = if speaks { files } else { Files::default() };
        files.check()?;
        let plot = files.plot.map(|path| Ok::<_, Error>((Output::begin(path)?, Format::of(path)?))).transpose()?;
        let json = files.json.map(Array::begin).transpose()?;
        let earlier = files.earlier()?;
        Ok(Report { speaks, points: Vec::new(), earlier, json, plot, shown: None, bar })
    }

    fn say(&self, text: &str) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        self.bar.suspend(|| print::out(&format!("{text}\n"))).map_err(Error::Output)
    }

    /// Prints a note above all figures.
    pub fn note(&self, text: &str) -> Result<()> {
        self.say(&format!("# {text}"))
    }

    /// A test begins.
    pub fn begin(&mut self, test: &Test, conditions: &Conditions) -> Result<()> {
        if self.shown.as_ref() != Some(conditions) {
            self.say(&format!("# {conditions}"))?;
            self.shown = Some(conditions.clone());
        }
        self.bar.set_message(test.name);
        self.say(&format!("\n# {}: {}", test.name, test.about))?;
        self.say(&table::head(test))
    }

    /// One size has been measured.
    pub fn add(&mut self, test: &Test, conditions: &Conditions, size: usize, figures: &Figures) -> Result<()> {
        // Only PE 0 has figures.
        let record = Record::new(test, conditions, size, figures);
        self.json.as_mut().map_or(Ok(()), |json| json.add(&record))?;
        self.points.push(Point::from(&record));
        self.bar.inc(1);
        self.say(&table::row(test, size, figures))
    }

    /// All sizes of a test have been measured.
    pub fn end(&mut self, test: &Test) -> Result<()> {
        if self.plot.as_ref().is_some_and(|(file, _)| file.is_regular()) {
            self.draw()?;
        }
        if test.sizes == Sizes::None { Ok(()) } else { self.say("# data at the target checked for every size") }
    }

    /// A test that cannot run here.
    pub fn skip(&mut self, test: &Test, why: &Error, steps: u64) -> Result<()> {
        self.bar.inc(steps);
        self.say(&format!("\n# {}: SKIPPED: {why}", test.name))
    }

    fn draw(&mut self) -> Result<()> {
        let Some((file, format)) = &mut self.plot else { return Ok(()) };
        let about = self.shown.as_ref().map(|shown| format!("{}: {shown}", shown.machine)).unwrap_or_default();
        let points = [&self.points[..], &self.earlier].concat();
        file.replace(&plot::draw(&points, &about, *format)?)
    }

    /// No further results follow.
    pub fn finish(&mut self) -> Result<()> {
        self.bar.finish_and_clear();
        self.json.as_mut().map_or(Ok(()), Array::finish)?;
        self.draw()
    }
}
