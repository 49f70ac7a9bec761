//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`. The one that looks at its
//! process's memory is a program of its own.

mod mailbox;
mod two_processes;
