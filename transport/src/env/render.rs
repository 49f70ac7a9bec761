//! The table as documentation, and as `symrail info --env` prints it.

use std::fmt::Write;

use super::{Settings, VARIABLES};
use crate::ofi::variables::DEFAULTS;

/// The whole of `docs/environment.md`.
#[must_use]
pub fn markdown() -> String {
    let default = Settings::default();
    let mut out = String::from(
        "# Environment variables\n\n\
         <!-- Generated from the table in transport/src/env/table.rs; a test compares. -->\n\n\
         They are read once, at init. A value that is not accepted is an error; a `SYMRAIL_` name that is not in this\n\
         list is a [warning](run.md#watch-it) with the nearest name, and so is a setting that has no effect beside others;\n\
         `symrail info` tells them, too. A variable that is set but empty counts as unset. Words are accepted in any\n\
         case. `symrail info --env` prints this list with the values in force.\n\n\
         Each line: name, type and accepted values, default, meaning. A path is in UTF-8; a name has no spaces; a switch is\n\
         0, false, no or off, or 1, true, yes or on; a size is a number of bytes with an optional suffix K, M, G or T\n\
         (powers of 1024). Where auto is a number, -1 is the same.\n\n",
    );
    for variable in VARIABLES {
        let default = (variable.show)(&default);
        let default = if default.is_empty() { "unset".into() } else { format!("`{default}`") };
        let (name, values, about) = (variable.name, values(variable.kind, &(variable.accepted)()), variable.about);
        wrap(&mut out, &format!("- `{name}` ({values}; {default}): {about}"));
    }
    out.push_str(
        "\n## Joining by a unique id\n\n\
         Whoever starts PEs himself, with `SYMRAIL_BOOTSTRAP=uid` or `auto`, tells each by three more variables which job\n\
         it is of (`shmem/examples/rendezvous.rs`): `SYMRAIL_BOOTSTRAP_UID`, the id in hexadecimal, a secret;\n\
         `SYMRAIL_BOOTSTRAP_PE`, its number; `SYMRAIL_BOOTSTRAP_N_PES`, how many there are. Names that begin with\n\
         `SYMRAIL_LAUNCHER_` and `SYMRAIL_TEST_` are what our own programs tell one another.\n",
    );
    out.push_str(
        "\n## libfabric's own variables\n\n\
         libfabric and its libraries read some settings from the environment only. Where defaults cost unused\n\
         memory, or bring signal handlers, `symrail run` sets other values for its PEs, unless you have\n\
         (`transport/src/ofi/variables.rs` says why each). Other PEs and agents set them when they join, if they\n\
         have one thread only at that moment: an environment must not be changed while other threads may read it.\n\
         Else, as after `import numpy`, they take 65 MB more for each rail over TCP, and say so in the log at level\n\
         `info`; set them yourself then, for all alike.\n\n\
         | name | value |\n|---|---|\n",
    );
    for (name, value) in DEFAULTS {
        let _ = writeln!(out, "| `{name}` | `{value}` |");
    }
    out
}

/// A type with its accepted values, without what the head of the page says of all variables of the type.
fn values(kind: &str, accepted: &str) -> String {
    let brief = accepted
        .replace("auto, -1 (the same) or ", "auto or ")
        .replace("a whole number from ", "")
        .replace("a number of bytes from ", "from ")
        .replace(", with an optional suffix K, M, G or T (powers of 1024)", "");
    match kind {
        "path" | "switch" | "name" => kind.to_owned(),
        "choice" => brief,
        _ => format!("{kind}: {brief}"),
    }
}

/// Appends an item of a list, in lines of at most 120 characters.
fn wrap(out: &mut String, item: &str) {
    let mut column = 0;
    for word in item.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > 120 {
            out.push_str("\n ");
            column = 1;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

/// The table for a terminal: name, value in force (marked `*` where it differs from the default), meaning, accepted.
#[must_use]
pub fn text(settings: &Settings) -> String {
    let default = Settings::default();
    let mut out = String::new();
    for variable in VARIABLES {
        let shown = |settings: &Settings| {
            let text = (variable.show)(settings);
            if text.is_empty() { "(unset)".to_owned() } else { text }
        };
        let (value, default) = (shown(settings), shown(&default));
        let _ = if value == default {
            writeln!(out, "  {}={value}", variable.name)
        } else {
            writeln!(out, "* {}={value}   (default {default})", variable.name)
        };
        let _ = writeln!(out, "      {}\n      {}: {}", variable.about, variable.kind, (variable.accepted)());
    }
    out
}
