//! The committed C header equals the rendered channel layout.

use symrail_core::{Cmp, SignalOp, VariantArray};

#[test]
fn the_header_is_up_to_date() {
    let header = symrail_proxy::channel::layout::cuda_header();
    symrail_core::layout::check(env!("CARGO_MANIFEST_DIR"), "include/symrail_layout.h", &header);
}

/// Comparisons and updates of signals have the same numbers in kernels' headers.
#[test]
fn the_headers_have_the_numbers_of_the_codes() {
    let headers = [include_str!("../include/symrail/api.cuh"), include_str!("../include/symrail/rma.cuh")].concat();
    let has =
        |name: String, value: u64| assert!(headers.contains(&format!("#define {name} {value}\n")), "{name} {value}");
    for cmp in Cmp::VARIANTS {
        has(format!("SYMRAIL_CMP_{}", format!("{cmp:?}").to_uppercase()), cmp.device() as u64);
    }
    for op in SignalOp::VARIANTS {
        has(format!("SYMRAIL_SIGNAL_{}", format!("{op:?}").to_uppercase()), op.device());
    }
}

/// Functions that only kernels have: in Rust bytes are elements of `u8`, words are awaited one by one, and a team's
/// copies are puts and a barrier.
const OF_KERNELS: [&str; 11] = [
    "broadcast",
    "fcollect",
    "alltoall",
    "putmem",
    "putmem_nbi",
    "getmem",
    "getmem_nbi",
    "putmem_signal",
    "putmem_signal_nbi",
    "wait_until_all",
    "wait_until_any",
];

/// `docs/gpu.md` promises the same names of operations.
#[test]
fn cpu_threads_have_the_functions_of_kernels() {
    let sources = [
        include_str!("../src/cpu/atomics.rs"),
        include_str!("../src/cpu/rma.rs"),
        include_str!("../src/cpu/team.rs"),
        include_str!("../src/cpu/wait.rs"),
    ];
    let code = sources.into_iter().flat_map(str::lines).filter(|line| !line.trim_start().starts_with("//"));
    let words: Vec<&str> = code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')).collect();
    let functions: Vec<&str> = include_str!("../include/symrail/api.cuh")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("SYMRAIL_DEVICE ")?.split_once('(')?.0.rsplit([' ', '*']).next())
        // Names are split as in `P##_##N##_put_nbi##AFTER`. Composed names are those of AMOs.
        .filter_map(|name| name.split("##").find(|part| !matches!(*part, "BEFORE" | "P" | "_" | "x_" | "N")))
        .map(|name| name.trim_start_matches("x_").trim_start_matches('_'))
        .filter(|name| !name.ends_with('_'))
        .collect();
    assert!(functions.len() > 25, "{functions:?}");
    for name in functions {
        assert!(words.contains(&name) != OF_KERNELS.contains(&name), "{name}: one of CPU threads, or only of kernels");
    }
}
