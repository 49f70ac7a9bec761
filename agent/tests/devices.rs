//! Agents with memory that only copies reach, as GPUs': mapped by others on this host, and staged over rails.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::guarded::{DEVICE, Gate, Guarded, agent};
use crate::support::{LONG, settings, until};
use symrail_agent::{Agent, Descriptor, Direction, Error, MemoryId, Result};
use symrail_transport::env::{GpuDirect, Settings};

const PROVIDER: &str = "tcp;ofi_rxm";
const BYTES: usize = 2 << 20;
const PAGE: usize = 4096;

fn with_p2p(mapped: bool, timeout_s: u32) -> Settings {
    let mut settings = settings(PROVIDER, timeout_s);
    settings.disable_p2p = !mapped;
    settings
}

/// An agent with as much host memory as memory of its device.
struct Both {
    agent: Agent,
    device: Arc<Guarded>,
    host: Box<[std::cell::UnsafeCell<u8>]>,
    id: MemoryId,
}

impl Both {
    fn new(name: &str, settings: &Settings) -> Option<Both> {
        let device = Guarded::new(BYTES);
        let agent = agent(name, settings, &device)?;
        let id = device.register(&agent, 0, BYTES);
        let host: Box<[_]> = (0..BYTES).map(|_| std::cell::UnsafeCell::new(0)).collect();
        // SAFETY: the agent is dropped before it, and it is accessed by volatile accesses only.
        unsafe { agent.register(host.as_ptr().cast_mut().cast(), BYTES) }.unwrap();
        Some(Both { agent, device, host, id })
    }

    fn at(&self, on_device: bool, offset: usize, len: usize) -> Descriptor {
        let host = Descriptor { address: (self.host.as_ptr().addr() + offset) as u64, len: len as u64 };
        if on_device { self.device.at(offset, len) } else { host }
    }

    fn read(&self, on_device: bool, at: usize) -> u8 {
        // SAFETY: a byte of this agent's memory.
        if on_device { self.device.read(at) } else { unsafe { self.host[at].get().read_volatile() } }
    }

    fn fill(&self, on_device: bool, value: impl Fn(usize) -> u8) {
        if on_device {
            return self.device.fill(value);
        }
        for (at, byte) in self.host.iter().enumerate() {
            // SAFETY: as above.
            unsafe { byte.get().write_volatile(value(at)) };
        }
    }
}

fn transfer(
    from: &Agent,
    direction: Direction,
    lists: [&[Descriptor]; 2],
    to: &str,
    note: Option<&[u8]>,
) -> Result<()> {
    let mut transfer = from.transfer(direction, lists[0], lists[1], to)?;
    transfer.post(note)?;
    assert!(transfer.wait(LONG)?, "it does not end");
    Ok(())
}

#[test]
fn bytes_move_between_all_kinds_of_memory_and_devices_copy_where_both_ends_are_theirs() {
    for mapped in [true, false] {
        let settings = with_p2p(mapped, 20);
        let (Some(a), Some(b)) = (Both::new("left", &settings), Both::new("right", &settings)) else { return };
        a.agent.load(&b.agent.metadata()).unwrap();
        // Pages in another order, and in the end all that remains: beyond a message, and beyond a fragment.
        let places: Vec<_> = (0..64).map(|i| (i * PAGE, (63 - i) * PAGE, PAGE)).collect();
        let all = [places, vec![(64 * PAGE, 64 * PAGE, BYTES - 64 * PAGE)]].concat();
        for (round, (here, there)) in
            [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
        {
            let local: Vec<_> = all.iter().map(|&(at, _, len)| a.at(here, at, len)).collect();
            let remote: Vec<_> = all.iter().map(|&(_, at, len)| b.at(there, at, len)).collect();
            let lists = [&local[..], &remote[..]];
            let before = a.device.copied.load(Ordering::Acquire);
            a.fill(here, |at| (at / 7 + round) as u8);
            transfer(&a.agent, Direction::Write, lists, "right", Some(b"written")).unwrap();
            assert_eq!(b.agent.wait_notification(LONG).unwrap().message, b"written");
            let check = |what: &str| {
                for &(from, to, len) in &all {
                    let wrong = (0..len).find(|at| b.read(there, to + at) != a.read(here, from + at));
                    assert_eq!(wrong, None, "{what}: device here {here}, there {there}, mapped {mapped}, at {to}");
                }
            };
            check("written");
            b.fill(there, |at| (at / 5 + round) as u8);
            transfer(&a.agent, Direction::Read, lists, "right", Some(b"read")).unwrap();
            check("read");
            assert_eq!(b.agent.wait_notification(LONG).unwrap().message, b"read");
            let copied = a.device.copied.load(Ordering::Acquire) - before;
            assert_eq!(copied, if mapped && here && there { 2 * all.len() } else { 0 }, "{here} {there} {mapped}");
        }
        assert_eq!(a.device.mappings(), usize::from(mapped));
        // Within one agent, and a list with memory of all kinds.
        a.fill(true, |at| at as u8);
        let (own, other) = (a.at(true, 0, PAGE), a.at(true, PAGE * 9, PAGE));
        transfer(&a.agent, Direction::Write, [&[own, own], &[other, a.at(false, 0, PAGE)]], "left", None).unwrap();
        assert!((0..PAGE).all(|at| (a.read(true, 9 * PAGE + at), a.read(false, at)) == (at as u8, at as u8)));
    }
}

#[test]
fn memory_is_refused_that_is_not_the_device_s() {
    let settings = with_p2p(true, 20);
    let Some(a) = Both::new("left", &settings) else { return };
    let Descriptor { address, .. } = a.at(true, 0, 1);
    let register = |address, len, device| {
        // SAFETY: it is refused, or the device's.
        unsafe { a.agent.register_device(address, len, device) }
    };
    for (address, len, device) in [(address, 1 << 40, DEVICE), (address, 8, 1), (0, 8, DEVICE), (address, 0, DEVICE)] {
        let refused = register(address, len, device).unwrap_err();
        assert!(matches!(refused, Error::Argument { what: "memory of a GPU", .. }), "{refused}");
    }
    // Host memory is no GPU's, and a machine without a driver says so.
    let agent = Agent::open("plain", &settings).unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { agent.register_device(a.host.as_ptr().addr() as u64, 8, 0) }.unwrap_err().to_string();
    assert!(refused.contains("no CUDA driver") || refused.contains("GPU"), "{refused}");
}

#[test]
fn memory_that_rails_do_not_reach_is_refused_where_they_have_to() {
    let device = Guarded::new(BYTES);
    let with = |gpudirect| {
        let mut settings = with_p2p(true, 20);
        settings.gpudirect = gpudirect;
        settings
    };
    let Some(demands) = agent("demands", &with(GpuDirect::On), &device) else { return };
    let Descriptor { address, .. } = device.at(8, 1);
    // SAFETY: it is refused.
    let refused = unsafe { demands.register_device(address, 64, DEVICE) }.unwrap_err().to_string();
    for part in ["64 bytes", "SYMRAIL_GPUDIRECT=on", "middle of a page", "SYMRAIL_GPUDIRECT=auto"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(device.removed.load(Ordering::Acquire), 1, "what was prepared for it is forgotten");
    for other in [GpuDirect::Auto, GpuDirect::Off] {
        let stages = agent("stages", &with(other), &device).unwrap();
        device.register(&stages, 8, 64);
    }
}

/// While one thread maps a peer's memory, which may take the driver long.
#[test]
fn what_concerns_a_peer_goes_on_while_its_memory_is_mapped_once() {
    let settings = with_p2p(true, 40);
    let (Some(a), Some(b)) = (Both::new("left", &settings), Both::new("right", &settings)) else { return };
    a.agent.load(&b.agent.metadata()).unwrap();
    let gate = Arc::new(Gate::default());
    *a.device.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let on_device = |page: usize| {
        let lists = [[a.at(true, page * PAGE, PAGE)], [b.at(true, page * PAGE, PAGE)]];
        a.agent.transfer(Direction::Write, &lists[0], &lists[1], "right").unwrap()
    };
    a.device.fill(|at| at as u8);
    let mut copies = [on_device(0), on_device(1)];
    std::thread::scope(|scope| {
        let [first, second] = &mut copies;
        scope.spawn(|| {
            first.post(None).unwrap();
            assert!(first.wait(LONG).unwrap());
        });
        until("the mapping to begin", || a.device.maps.load(Ordering::Acquire) == 1);
        second.post(None).unwrap();
        a.agent.notify("right", b"meanwhile").unwrap();
        assert_eq!(b.agent.wait_notification(LONG).unwrap().message, b"meanwhile");
        let lists = [[a.at(false, 0, PAGE)], [b.at(false, 0, PAGE)]];
        transfer(&a.agent, Direction::Write, [&lists[0], &lists[1]], "right", None).unwrap();
        assert!(!second.test().unwrap(), "it waits for the mapping that the other one makes");
        assert!(!gate.late.load(Ordering::Acquire), "all of it has waited for the mapping");
        gate.open();
        assert!(second.wait(LONG).unwrap());
    });
    assert_eq!((a.device.maps.load(Ordering::Acquire), a.device.copied.load(Ordering::Acquire)), (1, 2));
    assert!((0..2 * PAGE).all(|at| b.device.read(at) == at as u8));
}

/// Notifications that a program does not take, at the owner or at the agent that has mapped its memory.
#[test]
fn memory_is_deregistered_whatever_notifications_wait() {
    for full in ["left", "right"] {
        let settings = with_p2p(true, 5);
        let (Some(a), Some(b)) = (Both::new("left", &settings), Both::new("right", &settings)) else { return };
        a.agent.load(&b.agent.metadata()).unwrap();
        b.agent.load(&a.agent.metadata()).unwrap();
        let lists = [[a.at(true, 0, PAGE)], [b.at(true, 0, PAGE)]];
        transfer(&a.agent, Direction::Write, [&lists[0], &lists[1]], "right", None).unwrap();
        assert_eq!(a.device.mappings(), 1);
        // No more have room, and those of the other agent wait in the ring and behind it.
        let (takes_none, other) = if full == "left" { (&a.agent, &b.agent) } else { (&b.agent, &a.agent) };
        (0..5).for_each(|_| takes_none.notify(full, &vec![0; 16 << 20]).unwrap());
        (0..100).for_each(|_| other.notify(full, b"waits").unwrap());
        b.agent.deregister(b.id).unwrap_or_else(|error| panic!("{full} takes none: {error}"));
        assert_eq!((a.device.mappings(), b.device.removed.load(Ordering::Acquire)), (0, 1));
        (0..5).for_each(|_| assert_eq!(takes_none.wait_notification(LONG).unwrap().message.len(), 16 << 20));
        (0..100).for_each(|_| assert_eq!(takes_none.wait_notification(LONG).unwrap().message, b"waits"));
    }
}

/// Ends only when the agents that have mapped the memory have ended their copies.
#[test]
fn memory_is_deregistered_behind_the_last_copy_of_another_agent() {
    let settings = with_p2p(true, 20);
    let (Some(a), Some(b)) = (Both::new("left", &settings), Both::new("right", &settings)) else { return };
    a.agent.load(&b.agent.metadata()).unwrap();
    let lists = |len| [[a.at(true, 0, len)], [b.at(true, 0, len)]];
    let [here, there] = lists(BYTES);
    let mut write = a.agent.transfer(Direction::Write, &here, &there, "right").unwrap();
    a.device.fill(|at| at as u8);
    a.device.holds.store(true, Ordering::Release);
    write.post(None).unwrap();
    until("the copy to start", || a.device.copied.load(Ordering::Acquire) == 1);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let deregisters = scope.spawn(|| {
            b.agent.deregister(b.id).unwrap();
            ended.store(true, Ordering::Release);
        });
        until("it to begin", || b.agent.partial_metadata(&[b.id], false).is_err());
        b.agent.load(&a.agent.metadata()).unwrap();
        // The answers come behind the withdrawal.
        for round in 0..20u8 {
            b.agent.notify("left", &[round]).unwrap();
            assert_eq!(a.agent.wait_notification(LONG).unwrap().message, [round]);
            a.agent.notify("right", &[round]).unwrap();
            assert_eq!(b.agent.wait_notification(LONG).unwrap().message, [round]);
            assert!(!ended.load(Ordering::Acquire), "it was deregistered while a copy to it was under way");
        }
        assert_eq!(b.device.removed.load(Ordering::Acquire), 0);
        a.device.holds.store(false, Ordering::Release);
        deregisters.join().unwrap();
    });
    assert!(write.wait(LONG).unwrap());
    assert!((0..BYTES).all(|at| b.device.read(at) == at as u8));
    assert_eq!((b.device.removed.load(Ordering::Acquire), a.device.mappings()), (1, 0));
    b.device.fill(|_| 0);
    write.post(Some(b"never")).unwrap();
    let error = write.wait(LONG).unwrap_err();
    assert!(matches!(error, Error::Failed { .. } | Error::Lost { .. }), "{error}");
    assert_eq!(a.device.copied.load(Ordering::Acquire), 1, "it was copied to memory that is not registered");
    assert!((0..BYTES).all(|at| b.device.read(at) == 0));
}

/// The second attempt must not take the first one's mapping, which still ends, for ended.
#[test]
fn memory_that_could_not_be_deregistered_in_time_is_deregistered_later() {
    let settings = with_p2p(true, 1);
    let (Some(a), Some(b)) = (Both::new("left", &settings), Both::new("right", &settings)) else { return };
    a.agent.load(&b.agent.metadata()).unwrap();
    b.agent.load(&a.agent.metadata()).unwrap();
    let mut write =
        a.agent.transfer(Direction::Write, &[a.at(true, 0, PAGE)], &[b.at(true, 0, PAGE)], "right").unwrap();
    a.device.holds.store(true, Ordering::Release);
    write.post(None).unwrap();
    until("the copy to start", || a.device.copied.load(Ordering::Acquire) == 1);
    let [long, short] = [Duration::from_secs(4), Duration::ZERO].map(|limit| {
        let begun = Instant::now();
        let busy = if limit.is_zero() { b.agent.deregister_within(b.id, limit) } else { b.agent.deregister(b.id) };
        let busy = busy.unwrap_err();
        assert!(matches!(busy, Error::Busy { what: "the memory" }) && begun.elapsed() >= limit, "{busy}");
        begun.elapsed()
    });
    assert!(short < long);
    assert_eq!(b.device.removed.load(Ordering::Acquire), 0);
    a.device.holds.store(false, Ordering::Release);
    assert!(write.wait(LONG).unwrap());
    // It was offered again.
    until("it to be mapped again", || {
        write.post(None).unwrap();
        write.wait(LONG).unwrap() && a.device.copied.load(Ordering::Acquire) > 1
    });
    until("it to be unmapped", || b.agent.deregister_within(b.id, Duration::ZERO).is_ok());
    assert_eq!((b.device.removed.load(Ordering::Acquire), a.device.mappings()), (1, 0));
}

#[test]
fn mappings_end_with_what_is_known_of_the_memory_and_an_agent_that_leaves_holds_none() {
    let settings = with_p2p(true, 20);
    let (Some(a), Some(b)) = (Both::new("left", &settings), Both::new("right", &settings)) else { return };
    let write = |to: &Both| {
        a.agent.load(&to.agent.metadata()).unwrap();
        let (here, there) = ([a.at(true, 0, PAGE)], [to.at(true, 0, PAGE)]);
        transfer(&a.agent, Direction::Write, [&here, &there], to.agent.name(), None)
    };
    for _ in 0..3 {
        write(&b).unwrap();
        assert_eq!(a.device.mappings(), 1);
        a.agent.forget("right").unwrap();
        until("the mapping to end", || a.device.mappings() == 0);
    }
    assert_eq!(a.device.copied.load(Ordering::Acquire), 3);
    // Memory in use by an agent that leaves, and by one that has left.
    write(&b).unwrap();
    drop(a);
    b.agent.deregister(b.id).unwrap();
    assert_eq!(b.device.removed.load(Ordering::Acquire), 1);
}

#[test]
fn a_copy_that_fails_fails_its_transfer_alone() {
    let settings = with_p2p(true, 20);
    let (Some(a), Some(b)) = (Both::new("left", &settings), Both::new("right", &settings)) else { return };
    a.agent.load(&b.agent.metadata()).unwrap();
    let lists = [&[a.at(true, 0, PAGE)][..], &[b.at(true, 0, PAGE)][..]];
    a.device.fails.store(true, Ordering::Release);
    let error = transfer(&a.agent, Direction::Read, lists, "right", Some(b"never")).unwrap_err();
    assert!(matches!(error, Error::Failed { .. }) && error.to_string().contains("on purpose"), "{error}");
    a.device.fails.store(false, Ordering::Release);
    transfer(&a.agent, Direction::Read, lists, "right", Some(b"then")).unwrap();
    assert_eq!(b.agent.wait_notification(LONG).unwrap().message, b"then");
}

const ROLE: &str = "SYMRAIL_TEST_AGENT_DEVICE";

/// Not a test by itself: the owner of memory in another process. It answers each notification with the sum of its bytes.
#[test]
fn owner_in_another_process() {
    let Some(mapped) = std::env::var_os(ROLE) else { return };
    let device = Guarded::new(BYTES);
    let agent = agent("owner", &with_p2p(mapped == "mapped", 5), &device).unwrap();
    device.register(&agent, 0, BYTES);
    let hex: String = agent.metadata().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\nmetadata {hex}");
    std::io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        // It ends with the parent.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        let Some(got) = agent.wait_notification(LONG) else { continue };
        agent.load(&got.message).unwrap();
        let right = (0..BYTES).all(|at| device.read(at) == pattern(at));
        device.fill(|at| pattern(at + 1));
        agent.notify(&got.agent, if right { b"right" } else { b"wrong" }).unwrap();
    }
}

fn pattern(at: usize) -> u8 {
    (at / PAGE * 31 + at) as u8
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn bytes_move_to_and_from_another_process_until_it_is_killed() {
    for mapped in [true, false] {
        let device = Guarded::new(BYTES);
        let Some(agent) = agent("user", &with_p2p(mapped, 5), &device) else { return };
        device.register(&agent, 0, BYTES);
        let mut owner = Command::new(std::env::current_exe().unwrap());
        owner.args(["--exact", "devices::owner_in_another_process", "--nocapture"]);
        owner.env(ROLE, if mapped { "mapped" } else { "staged" }).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut owner = Killed(owner.spawn().unwrap());
        let mut lines = BufReader::new(owner.0.stdout.take().unwrap()).lines().map(std::result::Result::unwrap);
        let hex = lines.find_map(|line| line.strip_prefix("metadata ").map(str::to_owned)).expect("no metadata");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let metadata: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        agent.load(&metadata).unwrap();
        let base = agent.memory_of("owner").unwrap()[0].address;
        let there = |at: usize| Descriptor { address: base + at as u64, len: PAGE as u64 };
        // Every other page first, so that none continues another.
        let pages = BYTES / PAGE;
        let order: Vec<usize> = (0..pages).step_by(2).chain((1..pages).step_by(2)).collect();
        let local: Vec<_> = order.iter().map(|page| device.at(page * PAGE, PAGE)).collect();
        let remote: Vec<_> = order.iter().map(|page| there(page * PAGE)).collect();
        device.fill(pattern);
        transfer(&agent, Direction::Write, [&local, &remote], "owner", Some(&agent.metadata())).unwrap();
        assert_eq!(agent.wait_notification(LONG).unwrap().message, b"right", "mapped {mapped}");
        transfer(&agent, Direction::Read, [&local, &remote], "owner", None).unwrap();
        assert!((0..BYTES).all(|at| device.read(at) == pattern(at + 1)), "mapped {mapped}");
        assert_eq!(device.mappings(), usize::from(mapped));
        let mut again = agent.transfer(Direction::Read, &local, &remote, "owner").unwrap();
        again.post(None).unwrap();
        drop(owner);
        until("the loss to be noticed", || {
            let ended = again.wait(LONG).and_then(|_| again.post(None)).and_then(|()| again.wait(LONG));
            ended.is_err_and(|error| matches!(error, Error::Lost { .. }))
        });
        until("the mapping to end", || device.mappings() == 0);
    }
}

/// Copies over two allocations are refused by CUDA's driver.
#[test]
fn an_operation_is_in_one_registration_of_its_agent() {
    const HALF: usize = BYTES / 2;
    for mapped in [true, false] {
        let settings = with_p2p(mapped, 20);
        let device = Guarded::new(BYTES);
        let (Some(a), Some(b)) = (agent("left", &settings, &device), Both::new("right", &settings)) else { return };
        device.register(&a, 0, HALF);
        device.register(&a, HALF, HALF);
        a.load(&b.agent.metadata()).unwrap();
        let halves =
            |device: &Guarded| [0, HALF / 2, HALF].map(|at| device.at(at, HALF / (1 + usize::from(at < HALF))));
        let mut transfer = a.transfer(Direction::Write, &halves(&device), &halves(&b.device), "right").unwrap();
        assert_eq!(transfer.operations(), 2, "mapped {mapped}");
        device.fill(|at| (at / 3) as u8);
        transfer.post(None).unwrap();
        assert!(transfer.wait(LONG).unwrap());
        assert!((0..BYTES).all(|at| b.device.read(at) == device.read(at)));
    }
}
