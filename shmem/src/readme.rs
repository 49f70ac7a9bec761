//! The README's example, compiled and run with the other documentation tests.
#![doc = include_str!("../../README.md")]
