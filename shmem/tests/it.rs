//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`. Static variables as symmetric
//! memory are a program of their own.

mod bootstrap;
mod handles;
mod rendezvous;
mod symmetric;
