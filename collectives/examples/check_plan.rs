//! Checks plans, and prints what is wrong with each: `check_plan FILE…`.

use symrail_collectives::plan::{Check, Plan};

fn main() -> std::process::ExitCode {
    let mut refused = 0;
    for path in std::env::args().skip(1) {
        match (Plan::load(&path, Check::Result), Plan::load(&path, Check::Ends)) {
            (Ok(plan), _) => println!("{path}: {:?} of {} PEs", plan.collective(), plan.ranks()),
            (Err(error), Ok(_)) => println!("{path}: it ends; but {error}"),
            (_, Err(error)) => {
                refused += 1;
                println!("{path}: {error}");
            }
        }
    }
    if refused == 0 { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
