//! What PE 0 tells: tables while it measures, and files at the end.
//!
//! | file | what |
//! |---|---|
//! | `table` | tables as users of NVSHMEM's and OSU's tests know them, and the progress bar |
//! | `json` | `--json`: one array of records |
//! | `plot` | `--plot`: a drawing of all tests over sizes |

mod json;
mod plot;
mod table;

use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};

use super::catalog::{Sizes, Test};
use super::error::{Error, Result};
use super::sample::Figures;
use json::Record;

/// What was in force when a test ran.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `mapped`, `wire`, or `copies` for plain ones.
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

/// Collects figures and tells them. Only PE 0's says anything.
pub struct Report {
    speaks: bool,
    records: Vec<Record>,
    /// Conditions that were told last.
    told: Option<Conditions>,
    bar: ProgressBar,
}

impl Report {
    /// `steps` sizes will be measured.
    #[must_use]
    pub fn new(speaks: bool, steps: u64) -> Report {
        // Draws on standard error, and only if that is a terminal.
        let bar = if speaks { ProgressBar::new(steps) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} {elapsed}") {
            bar.set_style(style);
        }
        Report { speaks, records: Vec::new(), told: None, bar }
    }

    fn say(&self, text: &str) {
        if self.speaks {
            self.bar.suspend(|| println!("{text}"));
        }
    }

    /// A test begins.
    pub fn begin(&mut self, test: &Test, conditions: &Conditions) {
        if self.told.as_ref() != Some(conditions) {
            self.say(&format!("# {conditions}"));
            self.told = Some(conditions.clone());
        }
        self.bar.set_message(test.name);
        self.say(&format!("\n# {}: {}", test.name, test.about));
        self.say(&table::head(test));
    }

    /// One size is measured.
    pub fn add(&mut self, test: &Test, conditions: &Conditions, size: usize, figures: &Figures) {
        self.say(&table::row(test, size, figures));
        self.records.push(Record::new(test, conditions, size, figures));
        self.bar.inc(1);
    }

    /// All its sizes are.
    pub fn end(&mut self, test: &Test) {
        if test.sizes != Sizes::None {
            self.say("# data at the target checked for every size");
        }
    }

    /// A test that cannot run here.
    pub fn skip(&mut self, test: &Test, why: &Error, steps: u64) {
        self.say(&format!("\n# {}: SKIPPED: {why}", test.name));
        self.bar.inc(steps);
    }

    /// Writes the files that were asked for.
    pub fn finish(&self, json: Option<&PathBuf>, plot: Option<&PathBuf>) -> Result<()> {
        self.bar.finish_and_clear();
        if !self.speaks {
            return Ok(());
        }
        let write = |path: &PathBuf, text: String| {
            std::fs::write(path, text).map_err(|reason| Error::System {
                what: format!("writing {}", path.display()),
                reason: reason.to_string(),
            })
        };
        if let Some(path) = json {
            write(path, json::array(&self.records))?;
        }
        match plot {
            Some(path) => write(path, plot::svg(&self.records)?),
            None => Ok(()),
        }
    }
}
