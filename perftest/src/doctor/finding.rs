//! A judgement, and the list of them.

use std::fmt::Write;

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing is to be done.
    Ok,
    /// It may cost time, or matters to some programs only.
    Hint,
    /// It stops PEs, or keeps them from a faster path that the hardware has.
    Problem,
}

/// A judgement of one fact.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// What was judged, such as `memlock`.
    pub subject: &'static str,
    pub state: State,
    /// The fact, and what follows from it.
    pub found: String,
    /// The command or the change that mends it; `None` where nothing is to be done.
    pub remedy: Option<String>,
}

impl Finding {
    pub fn ok(subject: &'static str, found: impl Into<String>) -> Finding {
        Finding { subject, state: State::Ok, found: found.into(), remedy: None }
    }

    pub fn hint(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { subject, state: State::Hint, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub fn problem(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { state: State::Problem, ..Finding::hint(subject, found, remedy) }
    }
}

/// All judgements of a machine.
#[derive(Debug, Serialize)]
pub struct Examination {
    /// The version of this program.
    pub version: &'static str,
    pub problems: usize,
    pub findings: Vec<Finding>,
}

impl Examination {
    pub fn new(findings: Vec<Finding>) -> Examination {
        let problems = findings.iter().filter(|finding| finding.state == State::Problem).count();
        Examination { version: env!("CARGO_PKG_VERSION"), problems, findings }
    }

    /// The judgements for people.
    pub fn text(&self) -> String {
        let mut page = String::new();
        for Finding { subject, state, found, remedy } in &self.findings {
            let word = match state {
                State::Ok => "ok",
                State::Hint => "hint",
                State::Problem => "PROBLEM",
            };
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(page, "{word:<8} {subject:<12} {found}");
            if let Some(remedy) = remedy {
                let _ = writeln!(page, "{:<21} -> {remedy}", "");
            }
        }
        let _ = match self.problems {
            0 => writeln!(page, "\nno problem"),
            1 => writeln!(page, "\n1 problem"),
            problems => writeln!(page, "\n{problems} problems"),
        };
        page
    }
}
