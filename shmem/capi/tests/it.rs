//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`.

#[macro_use]
#[path = "../src/types.rs"]
mod types;
#[path = "../header/generate.rs"]
mod generate;
#[path = "../header/routines.rs"]
mod routines;
mod support;

mod headers;
mod install;
mod misuse;
mod programs;
