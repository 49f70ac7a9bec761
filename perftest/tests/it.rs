//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`. What a put costs is a program of
//! its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod launched;

mod doctor;
mod hosts;
mod info;
mod loopback;
mod perf;
mod run;
mod watch;
