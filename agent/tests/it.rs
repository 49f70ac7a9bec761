//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`. Those that count what their
//! process holds are a program of their own.

mod support;

mod agents;
mod devices;
