//! A slot of an exchange is not reused before its rail has acknowledged the block, although its reader has freed it: PE
//! 1 frees blocks that are still in flight, and is stopped meanwhile.
//!
//! Started without a launcher, which would stop with it: PE 0 starts PE 1.
use std::process::ExitCode;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use symrail::Runtime;
use symrail::bootstrap::uid;
use symrail_ep::Result;
use symrail_ep::exchange::{Exchange, SLOTS};
use symrail_tests::unlaunched::{self, Other};

const BLOCK: usize = 1 << 20;

pub fn main() -> ExitCode {
    if let Some((id, me)) = unlaunched::started() {
        return work(id, me, None);
    }
    let id = uid::create(None).unwrap();
    let other = Other::start(unlaunched::this_program(), id, 1, 2);
    let code = work(id, 0, Some(Pid::from_raw(other.0.id().cast_signed())));
    Other::end_well([other]);
    code
}

fn work(id: uid::UniqueId, me: u32, other: Option<Pid>) -> ExitCode {
    let rt = unlaunched::join(id, me, 2);
    exchange(&rt, other).unwrap();
    rt.finalize().unwrap();
    ExitCode::SUCCESS
}

fn exchange(rt: &Runtime, other: Option<Pid>) -> Result<()> {
    let mut exchange = Exchange::new(rt, BLOCK)?;
    let Some(other) = other else {
        (0..SLOTS).try_for_each(|_| exchange.give_back(0))?;
        rt.barrier_all()?;
        rt.barrier_all()?;
        return exchange.free();
    };
    rt.barrier_all()?;
    kill(other, Signal::SIGSTOP).unwrap();
    // Its threads run until it has stopped.
    waitpid(other, Some(WaitPidFlag::WUNTRACED)).unwrap();
    for _ in 0..SLOTS {
        assert!(exchange.has_room(1)?);
        exchange.write(1, 0, &vec![7; BLOCK])?;
        exchange.send(1, BLOCK)?;
    }
    for _ in 0..2000 {
        rt.progress();
        assert!(!exchange.has_room(1)?, "a block that nobody can have acknowledged");
    }
    kill(other, Signal::SIGCONT).unwrap();
    while !exchange.has_room(1)? {
        rt.progress();
    }
    rt.barrier_all()?;
    exchange.free()
}
