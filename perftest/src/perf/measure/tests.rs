//! Tests that tests find what they should.
#![allow(clippy::unwrap_used)]
