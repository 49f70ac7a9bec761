//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`.

mod nvrtc;
mod poisson;
