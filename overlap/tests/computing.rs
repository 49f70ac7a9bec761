//! The tests of this crate, in one program. They compute, and have no time limits.

mod emulated;
mod nvrtc;
