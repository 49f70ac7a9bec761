//! Settings: every `SYMRAIL_` environment variable, in one typed table.
//!
//! [`Settings::from_env`] reads the environment once, at init; nothing reads it later. A value that is not accepted is
//! an [`Error::Setting`] that names the variable, the value and what is accepted. A `SYMRAIL_` name that does not exist
//! is kept in [`Settings::unknown`] with the nearest name, and logged as a warning. A variable that is set but empty
//! counts as unset.
//!
//! | to … | go to |
//! |---|---|
//! | add a variable | its line in [`mod@table`]; then the documentation test says how to write `docs/environment.md` anew |
//! | add a choice to a variable | [`choices`] |
//! | change how sizes, ranges or switches are written | [`kinds`] |
//! | change how the table is printed | [`render`] |

pub mod choices;
mod ignored;
pub mod kinds;
pub mod log;
pub mod render;
pub mod table;
mod unknown;

use std::ffi::OsString;

pub use choices::{
    AddrFamily, AmoPath, BootstrapKind, DeviceCopy, GpuDirect, HeapKind, IbMode, ProgressModel, ProxyPoll, RailPolicy,
    TransportKind,
};
pub use ipnet::IpNet;
pub use kinds::NicList;
pub use table::{Settings, VARIABLES, Variable};
pub use unknown::Unknown;

use crate::error::{Error, Result};

/// What every variable's name starts with.
pub const PREFIX: &str = "SYMRAIL_";

impl Settings {
    /// Enlarges the heap by bytes that are not the user's.
    pub fn add_to_heap(&mut self, bytes: usize) {
        self.heap_size = self.heap_size.saturating_add(bytes);
        self.heap_added = self.heap_added.saturating_add(bytes);
    }

    /// Reads the process's environment, and warns about unknown names (see [`Settings::warn_unknown`]).
    ///
    /// # Errors
    /// [`Error::Setting`] for the first value that is not accepted, in the table's order.
    pub fn from_env() -> Result<Self> {
        let settings = Self::from_iter(std::env::vars_os())?;
        settings.warn_unknown();
        Ok(settings)
    }

    /// Whether the process's environment sets a variable; an empty one counts as unset. It serves code that sets
    /// another variable only if the user has not.
    #[must_use]
    pub fn is_set(name: &str) -> bool {
        std::env::var_os(name).is_some_and(|value| !value.is_empty())
    }

    /// Reads names and values from any source. Names that do not start with [`PREFIX`] are ignored. If a name occurs
    /// twice, the last value counts.
    ///
    /// # Errors
    /// As for [`Settings::from_env`].
    #[allow(clippy::should_implement_trait, reason = "`FromIterator` cannot fail, and this can")]
    pub fn from_iter<N: Into<OsString>, V: Into<OsString>>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<Self> {
        let mut given = std::collections::BTreeMap::new();
        for (name, value) in pairs {
            // A name that is not UTF-8 cannot be one of ours.
            if let Ok(name) = name.into().into_string()
                && name.starts_with(PREFIX)
            {
                given.insert(name, value.into());
            }
        }
        let mut settings = Settings::default();
        for variable in VARIABLES {
            let Some(value) = given.remove(variable.name) else { continue };
            if value.is_empty() {
                continue;
            }
            let accepted = value.to_str().is_some_and(|text| (variable.set)(&mut settings, text.trim()));
            if !accepted {
                return Err(Error::Setting {
                    name: variable.name.into(),
                    value: value.to_string_lossy().into_owned(),
                    accepted: (variable.accepted)(),
                });
            }
        }
        settings.unknown = given.into_keys().filter_map(Unknown::check).collect();
        Ok(settings)
    }

    /// The variable with the unknown names that the launcher of this process has reported, separated by commas.
    pub const REPORTED: &str = "SYMRAIL_LAUNCHER_TOLD";

    /// Logs a warning for each unknown name, and returns their names for [`Settings::REPORTED`].
    #[must_use]
    pub fn report_unknown(&self) -> String {
        self.warn_unknown();
        self.unknown.iter().map(|unknown| unknown.name.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Logs a warning for each unknown name that was not reported yet. Events are lost until a subscriber is installed,
    /// and the subscriber's level is itself a setting. So a program that installs one after [`Settings::from_env`]
    /// calls this again.
    pub fn warn_unknown(&self) {
        let reported = std::env::var(Self::REPORTED).unwrap_or_default();
        for unknown in self.unknown.iter().filter(|unknown| !reported.split(',').any(|name| name == unknown.name)) {
            tracing::warn!("{unknown}");
        }
    }

    /// The variables whose value differs from the default.
    pub fn changed(&self) -> impl Iterator<Item = &'static Variable> {
        let default = Settings::default();
        VARIABLES.iter().filter(move |variable| (variable.show)(self) != (variable.show)(&default))
    }
}

#[cfg(test)]
mod tests;
