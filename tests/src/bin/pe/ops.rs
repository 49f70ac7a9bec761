//! Performs every operation and verifies it at the other end. The argument is the plan: `full`, `small`, `brief` or
//! `tiny`.

use symrail_tests::ops::{Plan, all};
use symrail_tests::pe;

pub fn main() -> std::process::ExitCode {
    let plan = Plan::named(&pe::arg(0, String::from("full")));
    pe::run(|rt| all(rt, &plan))
}
