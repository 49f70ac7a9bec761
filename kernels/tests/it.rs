//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`.

mod fake;

mod collectives_emulated;
mod cpu_device;
mod layout_header;
mod nvrtc;
