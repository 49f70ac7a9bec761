//! Prints `symrail_layout.h`: `cargo run -p symrail-kernels --example emit_layout > kernels/include/symrail_layout.h`.

fn main() {
    print!("{}", symrail_proxy::channel::layout::cuda_header());
}
