//! Many agents that join and leave one that stays, many registrations, and agents that are killed in the middle.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serial_test::serial;
use support::{Member, settings};
use symrail_agent::{Agent, Descriptor, Direction, Error, Transfer};

const PROVIDER: &str = "tcp;ofi_rxm";

/// A figure of this process in kB or as a count.
fn status(what: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
#[serial]
fn joins_and_leaves_leave_nothing_behind() {
    let Some(stays) = Member::new("stays", PROVIDER, 1 << 16) else { return };
    let metadata = stays.agent.metadata();
    let visit = |number: usize| {
        let visitor = Member::new(&format!("visitor {number}"), PROVIDER, 1 << 12).unwrap();
        visitor.agent.load(&metadata).unwrap();
        visitor.fill(|at| (at + number) as u8);
        visitor.whole(Direction::Write, &stays, Some(&number.to_le_bytes())).unwrap();
        assert_eq!(stays.notification().message, number.to_le_bytes());
        assert!((0..1 << 12).all(|at| stays.read(at) == (at + number) as u8));
        if number.is_multiple_of(2) {
            stays.loads(&visitor);
            stays.whole(Direction::Read, &visitor, None).unwrap();
            stays.agent.forget(visitor.agent.name()).unwrap();
        }
    };
    let joins: usize = std::env::var("SYMRAIL_TEST_JOINS").map_or(30, |joins| joins.parse().unwrap());
    let settled = || {
        support::until("peers to be forgotten", || status("Threads:") < 16);
        (status("VmRSS:"), descriptors(), status("Threads:"))
    };
    (0..joins).for_each(visit);
    let mut before = settled();
    let mut grown = Vec::new();
    // The allocator's arenas grow now and then; what joins leave behind, with each of them. A session of an agent that
    // has left would be 5 MB.
    let least = joins + 512;
    while grown.iter().all(|&grown| grown >= least) {
        assert!(grown.len() < 5, "each {joins} joins leave at least {least} kB: {grown:?}");
        (0..joins).for_each(visit);
        let mut after = settled();
        support::until("descriptors to be closed", || {
            after = settled();
            after.1 <= before.1 + 8
        });
        println!("kB, descriptors and threads: {before:?}; after {joins} more joins: {after:?}");
        assert!(after.2 <= before.2 + 2, "{before:?} to {after:?}");
        grown.push(after.0.saturating_sub(before.0));
        before.0 = after.0;
    }
}

#[test]
#[serial]
fn registrations_leave_nothing_behind() {
    let Some(a) = Member::new("registers", PROVIDER, 1 << 16) else { return };
    let b = Member::new("peer", PROVIDER, 1 << 16).unwrap();
    b.loads(&a);
    let page = |at: usize| a.bytes[at % 16 * 4096].get().cast::<u8>();
    let cycle = |number: usize| {
        // SAFETY: memory of this member.
        let id = unsafe { a.agent.register(page(number), 4096) }.unwrap();
        let metadata = a.agent.partial_metadata(&[id], false).unwrap();
        b.agent.load(&metadata).unwrap();
        b.agent.unload(&metadata).unwrap();
        a.agent.deregister(id).unwrap();
    };
    (0..2000).for_each(cycle);
    let before = status("VmRSS:");
    (0..8000).for_each(cycle);
    let after = status("VmRSS:");
    assert!(after < before + 4096, "{before} kB, then {after} kB");
}

/// The records that a peer gets: a whole page with one number.
const RECORD: usize = 4096;
const RECORDS: usize = 2000;
const ROLE: &str = "SYMRAIL_TEST_AGENT_FILE";

/// The file's bytes, shared among processes.
fn map(path: &Path) -> NonNull<u8> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let size = NonZeroUsize::new(RECORD * RECORDS).unwrap();
    // SAFETY: a new mapping, which stays until the process ends.
    let mapped =
        unsafe { mmap(None, size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, file, 0) };
    mapped.unwrap().cast()
}

/// Not a test by itself: the process that is killed. It registers the file's bytes, prints its metadata, and waits.
#[test]
fn target_that_is_killed() {
    let Some(path) = std::env::var_os(ROLE) else { return };
    let agent = Agent::open("target", &settings(PROVIDER, 5)).unwrap();
    // SAFETY: it stays mapped until the process ends.
    unsafe { agent.register(map(Path::new(&path)).as_ptr(), RECORD * RECORDS) }.unwrap();
    let hex: String = agent.metadata().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\nmetadata {hex}");
    std::io::stdout().flush().unwrap();
    // Until standard input ends, which is when the parent ends.
    let _ = std::io::stdin().read(&mut [0]);
}

fn start(path: &Path) -> (Child, Vec<u8>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "target_that_is_killed", "--nocapture"]).env(ROLE, path);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("metadata ").map(str::to_owned)).unwrap();
    let byte = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    (child, (0..line.len()).step_by(2).map(byte).collect())
}

#[test]
#[serial]
fn what_was_reported_done_has_reached_a_peer_that_was_killed_and_others_go_on() {
    let Some(writer) = Member::with_timeout("writer", PROVIDER, RECORD * RECORDS, 5) else { return };
    let bystander = Member::new("bystander", PROVIDER, RECORD * RECORDS).unwrap();
    writer.loads(&bystander);
    let mut done = 0;
    for round in 0..6u64 {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((RECORD * RECORDS) as u64).unwrap();
        let (mut child, metadata) = start(file.path());
        let name = writer.agent.load(&metadata).unwrap();
        writer.fill(|at| (at / RECORD) as u8 ^ round as u8 ^ 0x5a);
        let base = base_of(&writer, &name);
        let mut posted: Vec<Option<Transfer>> = Vec::new();
        let kill_after = 1 + round as usize * 177 % 700;
        let mut ended = Vec::new();
        for record in 0..RECORDS {
            let at = Descriptor { address: base + (record * RECORD) as u64, len: RECORD as u64 };
            let one = writer.agent.transfer(Direction::Write, &[writer.at(record * RECORD, RECORD)], &[at], &name);
            match one.and_then(|mut one| one.post(Some(&record.to_le_bytes())).map(|()| one)) {
                Ok(one) => posted.push(Some(one)),
                Err(error) => {
                    assert!(matches!(error, Error::Lost { .. }), "{error}");
                    break;
                }
            }
            if record == kill_after {
                child.kill().unwrap();
            }
            if record.is_multiple_of(100) {
                ended.extend(outcomes(&mut posted));
                writer.whole(Direction::Write, &bystander, None).unwrap();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        support::until("all to end", || {
            ended.extend(outcomes(&mut posted));
            posted.iter().all(Option::is_none)
        });
        let seen = map(file.path());
        for (record, outcome) in &ended {
            match outcome {
                Ok(()) => done += 1,
                Err(Error::Lost { .. }) => continue,
                Err(error) => panic!("record {record}: {error}"),
            }
            for at in 0..RECORD {
                // SAFETY: inside of the mapping.
                let byte = unsafe { seen.add(record * RECORD + at).read_volatile() };
                assert_eq!(byte, *record as u8 ^ round as u8 ^ 0x5a, "record {record} was reported done and is lost");
            }
        }
        assert!(ended.iter().any(|(_, outcome)| outcome.is_err()), "nothing was under way when it was killed");
        assert!(matches!(writer.agent.connect(&name), Err(Error::Lost { .. })));
        writer.whole(Direction::Write, &bystander, Some(b"still there")).unwrap();
        assert_eq!(bystander.notification().message, b"still there");
        // SAFETY: nothing uses the mapping any more.
        unsafe { nix::sys::mman::munmap(seen.cast(), RECORD * RECORDS) }.unwrap();
    }
    assert!(done > 0, "no transfer had ended before its peer was killed");
}

/// Its host answers, and keeps the connections, but the process does not.
#[test]
#[serial]
fn a_peer_that_is_stopped_is_named_lost_and_others_go_on() {
    let Some(writer) = Member::with_timeout("writer", PROVIDER, RECORD * RECORDS, 5) else { return };
    let bystander = Member::new("bystander", PROVIDER, RECORD * RECORDS).unwrap();
    writer.loads(&bystander);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len((RECORD * RECORDS) as u64).unwrap();
    let (mut child, metadata) = start(file.path());
    let name = writer.agent.load(&metadata).unwrap();
    let base = base_of(&writer, &name);
    let transfer = |direction, record: usize| {
        let at = Descriptor { address: base + (record * RECORD) as u64, len: RECORD as u64 };
        writer.agent.transfer(direction, &[writer.at(record * RECORD, RECORD)], &[at], &name).unwrap()
    };
    let mut before = transfer(Direction::Write, 0);
    before.post(None).unwrap();
    assert!(before.wait(support::LONG).unwrap());
    let pid = Pid::from_raw(child.id().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    assert!(matches!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(..))));
    let mut posted = [Direction::Write, Direction::Read].map(|direction| {
        let mut one = transfer(direction, 1);
        one.post(Some(b"behind it")).unwrap();
        Some(one)
    });
    let mut ended = Vec::new();
    support::until("all to end", || {
        writer.whole(Direction::Write, &bystander, None).unwrap();
        ended.extend(outcomes(&mut posted));
        posted.iter().all(Option::is_none)
    });
    let calls = [writer.agent.connect(&name).map(drop), writer.agent.notify(&name, b"never")];
    for outcome in ended.into_iter().map(|(_, outcome)| outcome).chain(calls) {
        let Err(error @ Error::Lost { .. }) = outcome else { panic!("{outcome:?}") };
        let text = error.to_string();
        assert!(text.contains(&name) && text.contains("5 s (SYMRAIL_TIMEOUT_S)"), "{text}");
    }
    writer.whole(Direction::Read, &bystander, Some(b"still there")).unwrap();
    assert_eq!(bystander.notification().message, b"still there");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The transfers that have ended, which are dropped.
fn outcomes(posted: &mut [Option<Transfer>]) -> Vec<(usize, Result<(), Error>)> {
    let mut ended = Vec::new();
    for (record, slot) in posted.iter_mut().enumerate() {
        let outcome = match slot.as_ref().map(Transfer::test) {
            None | Some(Ok(false)) => continue,
            Some(Ok(true)) => Ok(()),
            Some(Err(error)) => Err(error),
        };
        ended.push((record, outcome));
        *slot = None;
    }
    ended
}

/// The first address of the memory of an agent that has one registration.
fn base_of(member: &Member, name: &str) -> u64 {
    let registered = member.agent.memory_of(name).unwrap();
    assert_eq!(registered.len(), 1);
    assert_eq!(registered[0].len, (RECORD * RECORDS) as u64);
    registered[0].address
}
