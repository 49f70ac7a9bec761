//! The variables that a job's launcher has set.

use super::error::{Error, Result};

/// Reads a number.
pub fn number(kind: &'static str, name: &'static str, remedy: &'static str) -> Result<u32> {
    let value = text(kind, name, remedy)?;
    value.trim().parse().map_err(|_| Error::Variable { name, value, accepted: "a whole number from 0" })
}

/// Reads a text; an empty one counts as unset, as everywhere.
pub fn text(kind: &'static str, name: &'static str, remedy: &'static str) -> Result<String> {
    let missing = || Error::Missing { kind, what: format!("{name} is not set"), remedy };
    let value = std::env::var_os(name).filter(|value| !value.is_empty()).ok_or_else(missing)?;
    value.into_string().map_err(|value| Error::Variable {
        name,
        value: value.to_string_lossy().into_owned(),
        accepted: "plain text",
    })
}
