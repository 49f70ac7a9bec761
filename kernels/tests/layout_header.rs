//! The committed C header says what the channels' layout says.

#[test]
fn the_header_is_up_to_date() {
    let committed = include_str!("../include/symrail_layout.h");
    let remedy = "cargo run -p symrail-kernels --example emit_layout > kernels/include/symrail_layout.h";
    assert_eq!(committed, symrail_proxy::channel::layout::cuda_header(), "run {remedy}");
}
