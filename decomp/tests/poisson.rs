//! The example that solves Poisson's equation: its error is rounding, and its plot has a point for each element.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../tests/support/libraries.rs"]
mod libraries;

use std::path::Path;
use std::process::Command;

use libraries::{build, job_slot, remove_settings, succeed};

#[test]
fn solves_and_draws() {
    let built = build();
    let plot = Path::new(env!("CARGO_TARGET_TMPDIR")).join("poisson.svg");
    let _slot = job_slot(&built);
    let mut command = Command::new(built.join("symrail"));
    remove_settings(&mut command, &["SYMRAIL_"]);
    // Cargo builds a package's examples with its tests.
    command.args(["run", "-n", "4", "--timeout", "100", "--"]).arg(built.join("examples/poisson"));
    let said = succeed(command.arg("16").arg(&plot));
    assert!(said.contains("16^3 on") && said.contains("largest error"), "{said}");
    assert_eq!(std::fs::read_to_string(&plot).unwrap().matches("<circle").count(), 16);
}
