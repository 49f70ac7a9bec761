//! The committed C header says what the channels' layout says.

use symrail_core::{Cmp, SignalOp, VariantArray};

#[test]
fn the_header_is_up_to_date() {
    let committed = include_str!("../include/symrail_layout.h");
    let remedy = "cargo run -p symrail-kernels --example emit_layout > kernels/include/symrail_layout.h";
    assert_eq!(committed, symrail_proxy::channel::layout::cuda_header(), "run {remedy}");
}

/// Comparisons and updates of signals have the numbers that kernels' headers give them.
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
