//! The committed headers equal those that the table of types makes, and they declare what the library exports.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use symrail_core::{Cmp, SignalOp, VariantArray};

use crate::generate;

#[test]
fn committed_headers_are_current() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let all =
        [("shmem.h", generate::shmem_h()), ("shmemx.h", generate::shmemx_h()), ("pshmem.h", generate::pshmem_h())];
    for (name, made) in all {
        let committed = std::fs::read_to_string(include.join(name)).unwrap();
        assert!(
            committed == made,
            "{name} is not what the table says; run `cargo run -p symrail-c --example emit_header -- shmem/include`"
        );
    }
}

#[test]
fn the_library_exports_what_the_headers_declare() {
    if crate::support::missing("nm") {
        return;
    }
    let library = crate::support::built().join("libsymrail.so");
    let symbols = crate::support::succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    let declared = generate::exported();
    let twice: BTreeSet<String> = declared.iter().flat_map(|name| [name.clone(), format!("p{name}")]).collect();
    let lacking: Vec<&String> = twice.iter().filter(|name| !exported.contains(name.as_str())).collect();
    assert!(lacking.is_empty(), "declared and not exported: {lacking:?}");
    let ours = exported.iter().filter(|name| name.starts_with("shmem") || name.starts_with("pshmem"));
    let undeclared: Vec<_> = ours.filter(|name| !twice.contains(**name)).collect();
    assert!(undeclared.is_empty(), "exported and not declared: {undeclared:?}");
    assert!(declared.len() > 1200, "{} routines", declared.len());
}

/// Comparisons and signal operations have the numbers that the header defines.
#[test]
fn the_header_has_the_numbers_of_the_codes() {
    let header = include_str!("../../include/shmem.h");
    let has =
        |name: String, value: i32| assert!(header.contains(&format!("#define {name} {value}\n")), "{name} {value}");
    for cmp in Cmp::VARIANTS {
        has(format!("SHMEM_CMP_{}", format!("{cmp:?}").to_uppercase()), cmp.openshmem());
    }
    for op in SignalOp::VARIANTS {
        has(format!("SHMEM_SIGNAL_{}", format!("{op:?}").to_uppercase()), op.openshmem());
    }
}
