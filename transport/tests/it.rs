//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`. Those of ibverbs are a program
//! of their own, which also runs in a guest.

mod coalescing;
mod lanes;
mod ofi_rail;
