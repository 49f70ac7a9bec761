//! A type to which endpoints entrust memory is implemented by `unsafe impl` only.
struct Liar;

impl symrail_transport::rail::Rail for Liar {}

fn main() {}
