//! A PE is killed between two calls of a collective, among many: the next call of the others fails in time with an
//! error that names a PE, and they exit.
//!
//! Started without a launcher, which would end the job: PE 0 starts the others. Each survivor prints its error.
use std::process::ExitCode;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::Runtime;
use symrail::bootstrap::uid;
use symrail::rounds::Error::{Aborted, TimedOut};
use symrail_collectives::{Buffer, Communicator, DataType, Error, ReduceOp};
use symrail_tests::unlaunched::{self, Other};

const PES: u32 = 3;
const LOST: u32 = PES - 1;
const DIES_IN: u32 = 20;

pub fn main() -> ExitCode {
    if let Some((id, me)) = unlaunched::started() {
        calls(&unlaunched::join(id, me, PES));
        return ExitCode::SUCCESS;
    }
    let id = uid::create(None).unwrap();
    let others: Vec<_> = (1..PES).map(|pe| Other::start(unlaunched::this_program(), id, pe, PES)).collect();
    calls(&unlaunched::join(id, 0, PES));
    Other::end_well(others.into_iter().take(LOST as usize - 1));
    ExitCode::SUCCESS
}

fn calls(rt: &Runtime) {
    let me = rt.my_pe();
    let data = rt.alloc_slice::<u32>(1000).unwrap();
    let mut all = Communicator::new(rt).unwrap();
    let buffer = Buffer::of(&data).unwrap();
    for round in 0..1000 {
        data.fill(round + me).unwrap();
        if me == LOST && round == DIES_IN {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        match all.all_reduce(buffer, buffer, DataType::Uint32, ReduceOp::Sum) {
            Ok(()) => {
                assert!(data.to_vec().unwrap().iter().all(|&sum| sum == PES * round + 3), "PE {me}, call {round}");
            }
            Err(error) => {
                assert!(round >= DIES_IN, "PE {me}, call {round}: {error}");
                let named = matches!(&error, Error::Round(TimedOut { late, .. }) if late == &[LOST])
                    || matches!(error, Error::Round(Aborted { .. }));
                assert!(named || error.to_string().contains(&format!("PE {LOST}")), "PE {me}: {error}");
                println!("PE {me} is told: {error}");
                let again = all.all_reduce(buffer, buffer, DataType::Uint32, ReduceOp::Sum).unwrap_err().to_string();
                assert!(again.contains("cannot be used any more"), "{again}");
                return;
            }
        }
    }
    panic!("PE {me} does not notice that PE {LOST} is gone");
}
