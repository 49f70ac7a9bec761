//! Unknown names with our prefix: most often a typing error.

use std::fmt;

use symrail_core::Escaped;

use super::{PREFIX, VARIABLES};

/// Prefixes of variables that programs of this workspace pass to one another, and of unique ids: no settings.
const INTERNAL: [&str; 3] = ["SYMRAIL_LAUNCHER_", "SYMRAIL_BOOTSTRAP_", "SYMRAIL_TEST_"];

/// Maximum length in bytes of a name that is compared.
const LONGEST: usize = 64;

/// A `SYMRAIL_` name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The name in the environment.
    pub name: String,
    /// The variable with the nearest name, unless all are too far away.
    pub nearest: Option<&'static str>,
}

impl Unknown {
    /// Returns `None` for names that are known.
    pub(super) fn check(name: String) -> Option<Self> {
        if INTERNAL.iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let tail = name.strip_prefix(PREFIX).unwrap_or(&name).to_ascii_uppercase();
        let distance = |variable: &&super::Variable| strsim::damerau_levenshtein(&tail, &variable.name[PREFIX.len()..]);
        // A much longer name is near to none of them, and slow to compare.
        let nearest = VARIABLES.iter().filter(|_| tail.len() <= LONGEST).min_by_key(distance);
        // A suggestion with more than half of the letters wrong is no help.
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
