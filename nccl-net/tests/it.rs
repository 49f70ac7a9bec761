//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`.
#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code)]
mod driver;
#[path = "../../tests/support/libraries.rs"]
mod libraries;

mod one_sided;
mod plugin;
