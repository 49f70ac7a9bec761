//! A slot of an exchange is not used again before its rail has acknowledged the block, although its reader has given it
//! back: PE 1 gives back blocks that are still to come, and is stopped while they do.
//!
//! Started without a launcher, which would stop with it: PE 0 starts PE 1.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::bootstrap::uid;
use symrail::{Runtime, Settings};
use symrail_ep::Result;
use symrail_ep::exchange::{Exchange, SLOTS};
use symrail_tests::unlaunched;

const BLOCK: usize = 1 << 20;

fn main() -> ExitCode {
    if unlaunched::is_other() {
        let id = uid::UniqueId::from_hex(&std::env::var(uid::UID).unwrap()).unwrap();
        return work(id, 1, None);
    }
    let id = uid::create(None).unwrap();
    let mut other = unlaunched::start_other(id);
    let code = work(id, 0, Some(Pid::from_raw(other.id().cast_signed())));
    assert_eq!(other.wait().unwrap().code(), Some(0));
    code
}

fn work(id: uid::UniqueId, me: u32, other: Option<Pid>) -> ExitCode {
    let bootstrap = uid::open_within(id, me, 2, Duration::from_secs(30)).unwrap();
    let rt = Runtime::join(Settings::from_env().unwrap(), Box::new(bootstrap)).unwrap();
    symrail_tests::path::check(&rt);
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
