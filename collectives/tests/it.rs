//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`. What takes long to compile is a
//! program of its own.

mod mutations;
mod registry;
