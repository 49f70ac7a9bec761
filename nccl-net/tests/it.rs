//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`.
#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code)]
mod driver;
mod foreign;
#[path = "../../tests/support/libraries.rs"]
mod libraries;
#[allow(dead_code)]
#[path = "../src/ring.rs"]
mod ring;

mod one_sided;
mod plugin;
