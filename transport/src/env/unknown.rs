//! Names that start like ours and mean nothing: most often a typing mistake.

use std::fmt;

use symrail_core::Escaped;

use super::{PREFIX, VARIABLES};

/// What programs of this workspace tell one another, and how PEs are told of a unique id: no settings.
const INTERNAL: [&str; 3] = ["SYMRAIL_LAUNCHER_", "SYMRAIL_BOOTSTRAP_", "SYMRAIL_TEST_"];

/// Bytes of a name that is compared.
const LONGEST: usize = 64;

/// A `SYMRAIL_` name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The name in the environment.
    pub name: String,
    /// The variable whose name is nearest to it, unless all are far away.
    pub nearest: Option<&'static str>,
}

impl Unknown {
    /// `None` for names that are known to someone.
    pub(super) fn check(name: String) -> Option<Self> {
        if INTERNAL.iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let tail = name.strip_prefix(PREFIX).unwrap_or(&name).to_ascii_uppercase();
        let distance = |variable: &&super::Variable| strsim::damerau_levenshtein(&tail, &variable.name[PREFIX.len()..]);
        // What is much longer than all of them is near to none, and slow to compare.
        let nearest = VARIABLES.iter().filter(|_| tail.len() <= LONGEST).min_by_key(distance);
        // With more than half of the letters wrong it is no help.
        let nearest = nearest.filter(|variable| distance(variable) * 2 <= variable.name.len() - PREFIX.len());
        Some(Unknown { nearest: nearest.map(|variable| variable.name), name })
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a known variable and has no effect", Escaped(&self.name))?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean {nearest}?"),
            None => write!(f, "; `symrail info --env` lists those that exist"),
        }
    }
}
