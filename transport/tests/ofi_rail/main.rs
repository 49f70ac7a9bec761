//! libfabric rails between two processes, over every provider that a plain machine has.
//!
//! A test whose provider is missing says SKIPPED. Traffic stays on loopback addresses and in shared memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::time::{Duration, Instant};

use peer::{HEAP, PATIENCE, Pair, Setup, order_message};
use serial_test::serial;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::backend::{self, HostPes};
use symrail_transport::env::{ProgressModel, TransportKind};
use symrail_transport::rail::{LocalBuf, NativeAmo, Notify, PostError, RemoteBuf, WriteOptions};

const TCP: Setup = Setup::new("tcp", "127.0.0.2,127.0.0.3");
const SHM: Setup = Setup::new("shm", "");
const NET: Setup = Setup::new("net", "127.0.0.2");
const UDP: Setup = Setup::new("udp", "127.0.0.2");
const SOCKETS: Setup = Setup::new("sockets", "127.0.0.2");

impl Pair {
    fn local(&self, rail: usize, offset: usize, len: usize) -> LocalBuf {
        assert!(offset + len <= HEAP);
        let key = self.side.registrations[rail].local;
        LocalBuf { ptr: self.side.heap.wrapping_add(offset), len, key }
    }

    fn remote(&self, rail: usize, offset: usize) -> RemoteBuf {
        let RemoteBuf { address, key } = self.remote[rail];
        RemoteBuf { address: address + offset as u64, key }
    }

    /// Posts until the rail takes it.
    fn post(&mut self, what: &str, mut post: impl FnMut(&mut Pair) -> Result<(), PostError>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match post(self) {
                Ok(()) => return,
                Err(PostError::Again) => self.side.poll(),
                Err(PostError::Failed(fault)) => panic!("{what}: {fault}"),
            }
            assert!(Instant::now() < deadline, "{what}: the rail stays busy");
        }
    }

    fn write(&mut self, rail: usize, from: usize, to: usize, len: usize, options: WriteOptions) {
        let (local, remote) = (self.local(rail, from, len), self.remote(rail, to));
        // SAFETY: the heap stays, and the tests leave posted parts of it alone.
        self.post("write", |pair| unsafe { pair.side.rails[rail].write(0, local, remote, options) });
    }

    fn send(&mut self, rail: usize, from: usize, len: usize, id: Option<u64>) {
        let local = self.local(rail, from, len);
        // SAFETY: as above.
        self.post("send", |pair| unsafe { pair.side.rails[rail].send(0, local, id) });
    }

    fn wait_done(&mut self, id: u64) {
        self.wait("completion", |side| {
            assert!(side.seen.failed.is_empty() && side.seen.broken.is_empty(), "{:?}", side.seen);
            side.seen.done.contains(&id)
        });
    }
}

fn delivered(id: u64) -> WriteOptions {
    WriteOptions { id: Some(id), notify: Notify::Delivered, immediate: None, more: false }
}

fn injected() -> WriteOptions {
    WriteOptions { id: None, notify: Notify::Transmitted, immediate: None, more: false }
}

/// Everything that every provider must do.
fn works(setup: &Setup) {
    let Some(mut pair) = Pair::start(setup) else { return };
    for rail in 0..pair.side.rails.len() {
        let caps = pair.side.rails[rail].caps().clone();
        println!("{caps:?}");
        assert!(caps.inject >= 8 && caps.max_send >= 4096 && caps.queue_depth >= 16, "{caps:?}");
        let base = rail << 20;
        let seed = 1 + rail as u64 * 1000;

        // A write is in the other process's memory when it is delivered: small, and larger than any eager protocol.
        for (index, len) in [8, 4096, 200_000].into_iter().enumerate() {
            let id = seed + index as u64;
            pair.side.write_heap(base + len - 8, id);
            pair.write(rail, base, base, len, delivered(id));
            pair.wait_done(id);
            let found = pair.ask_number(&format!("peek {}", base + len - 8));
            assert_eq!(found, id, "{len} bytes were not visible on delivery");
        }

        // A read brings what is there, at both sizes.
        for (index, len) in [8, 200_000].into_iter().enumerate() {
            let id = seed + 10 + index as u64;
            pair.ask(&format!("poke {} {id}", base + 300_000 + len - 8));
            let (local, remote) = (pair.local(rail, base + 600_000, len), pair.remote(rail, base + 300_000));
            // SAFETY: nobody else uses that part of the heap.
            pair.post("read", |pair| unsafe { pair.side.rails[rail].read(0, local, remote, id, false) });
            pair.wait_done(id);
            assert_eq!(pair.side.read_heap(base + 600_000 + len - 8), id);
        }

        // An injected write copies its bytes, so the source may change at once; a delivered one after it on an ordered
        // rail says that it arrived.
        pair.side.write_heap(base, seed + 20);
        pair.write(rail, base, base + 64, 8, injected());
        pair.side.write_heap(base, 0);
        let deadline = Instant::now() + PATIENCE;
        while pair.ask_number(&format!("peek {}", base + 64)) != seed + 20 {
            assert!(Instant::now() < deadline, "an injected write did not arrive");
        }

        // Messages, copied and not, up to the largest.
        let before = pair.ask_number("count messages");
        for (index, len) in [1, caps.inject.min(caps.max_send), caps.max_send].into_iter().enumerate() {
            let id = (index != 1).then_some(seed + 30 + index as u64);
            pair.side.write_heap(base + 512, 0x1122_3344_5566_7700 + len as u64 % 256);
            pair.send(rail, base + 512, len, id);
            if let Some(id) = id {
                pair.wait_done(id);
            }
            let deadline = Instant::now() + PATIENCE;
            while pair.ask_number("count messages") <= before + index as u64 {
                assert!(Instant::now() < deadline, "a message of {len} bytes did not arrive");
            }
            let text = pair.ask(&format!("message {}", before + index as u64));
            assert_eq!(text.len(), 2 * len);
            assert!(text.starts_with(&format!("{:02x}", len % 256)), "{text}");
        }

        // An immediate arrives after its data, whether or not the sender wants a completion.
        assert!(caps.immediate);
        let before = pair.ask_number("count immediates");
        for (index, id) in [Some(seed + 40), None].into_iter().enumerate() {
            let value = 0xfeed_0000 + rail as u32 * 16 + index as u32;
            pair.side.write_heap(base, u64::from(value));
            let options = WriteOptions { immediate: Some(value), id, ..delivered(0) };
            pair.write(rail, base, base + 128, 8, options);
            if let Some(id) = id {
                pair.wait_done(id);
            }
            let deadline = Instant::now() + PATIENCE;
            while pair.ask_number("count immediates") <= before + index as u64 {
                assert!(Instant::now() < deadline, "an immediate did not arrive");
            }
            let found = pair.ask_number(&format!("immediate {}", before + index as u64));
            assert_eq!(found, u64::from(value));
            assert_eq!(pair.ask_number(&format!("peek {}", base + 128)), u64::from(value));
        }
    }
    // Each id completed once, and nothing went wrong anywhere.
    let mut done = pair.side.seen.done.clone();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done.len(), pair.side.seen.done.len());
    assert!(pair.side.seen.failed.is_empty() && pair.side.seen.broken.is_empty(), "{:?}", pair.side.seen);
    assert_eq!(pair.ask_number("count broken"), 0);
}

#[test]
#[serial]
fn works_over_two_tcp_rails() {
    works(&TCP);
}

#[test]
#[serial]
fn works_over_shm() {
    works(&SHM);
}

#[test]
#[serial]
fn works_over_two_shm_rails() {
    works(&Setup::new("shm", "shm0,shm1"));
}

#[test]
#[serial]
fn works_over_net() {
    works(&NET);
}

#[test]
#[serial]
fn works_over_udp() {
    works(&UDP);
}

#[test]
#[serial]
fn works_over_sockets() {
    works(&SOCKETS);
}

/// Puts and then a message about each, on one rail: no message may be early where the rail claims the order.
fn keeps_order(setup: &Setup, rounds: u64) {
    const SLOTS: usize = 32;
    let Some(mut pair) = Pair::start(setup) else { return };
    let order = pair.side.rails[0].caps().order;
    assert!(order.write_after_write && order.send_after_write && order.send_after_send, "{order:?}");
    for round in 1..=rounds {
        // Every eighth put is longer than any eager protocol; its last word is what counts.
        let len = if round % 8 == 0 { 40_000 } else { 8 };
        let slot = round as usize % SLOTS;
        let (from, last) = (slot * 40_960, slot * 40_960 + len - 8);
        // The slot's earlier put and message must have left.
        pair.wait("earlier put", |side| side.seen.done.len() as u64 + 2 * SLOTS as u64 > 2 * round);
        pair.side.write_heap(last, round);
        let options = WriteOptions { notify: Notify::Transmitted, ..delivered(round) };
        pair.write(0, from, from, len, options);
        let at = (2 << 20) + slot * 64;
        for (index, bytes) in order_message(last as u64, round).chunks(8).enumerate() {
            pair.side.write_heap(at + 8 * index, u64::from_ne_bytes(bytes.try_into().unwrap()));
        }
        pair.send(0, at, 24, Some(rounds + round));
    }
    let deadline = Instant::now() + PATIENCE;
    while pair.ask_number("count ordered") < rounds {
        assert!(Instant::now() < deadline, "{} of {rounds} messages", pair.ask_number("count ordered"));
    }
    assert_eq!(pair.ask_number("count early"), 0, "messages overtook writes");
    assert!(pair.side.seen.failed.is_empty() && pair.side.seen.broken.is_empty(), "{:?}", pair.side.seen);
}

#[test]
#[serial]
fn keeps_order_over_tcp() {
    keeps_order(&Setup::new("tcp", "127.0.0.2"), 10_000);
}

#[test]
#[serial]
fn keeps_order_over_shm() {
    keeps_order(&SHM, 10_000);
}

#[test]
#[serial]
fn keeps_order_over_net() {
    keeps_order(&NET, 10_000);
}

#[test]
#[serial]
fn keeps_order_over_sockets() {
    keeps_order(&SOCKETS, 300);
}

/// A write is not delivered while the target's provider has not seen it, though it may well be transmitted.
fn delivery_waits_for_the_target(setup: &Setup) {
    let Some(mut pair) = Pair::start(setup) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    pair.ask("pause");
    // The buffer is free again without the target's help, so this is not what delivery waits for.
    pair.write(0, 64, 64, 8, WriteOptions { notify: Notify::Transmitted, ..delivered(10) });
    pair.wait_done(10);
    pair.write(0, 0, 0, 8, delivered(2));
    // Nothing can show that something never happens; a completion that does not wait takes microseconds.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        pair.side.poll();
        assert!(!pair.side.seen.done.contains(&2), "delivered to a target that does not poll");
    }
    pair.ask("resume");
    pair.wait_done(2);
}

#[test]
#[serial]
fn delivery_waits_for_the_target_over_tcp() {
    delivery_waits_for_the_target(&TCP);
}

#[test]
#[serial]
fn delivery_waits_for_the_target_over_net() {
    delivery_waits_for_the_target(&NET);
}

#[test]
#[serial]
fn delivery_waits_for_the_target_over_shm() {
    delivery_waits_for_the_target(&SHM);
}

/// A key that the target never gave fails the write that used it.
fn bad_key_fails(setup: &Setup) {
    let Some(mut pair) = Pair::start(setup) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    let (local, mut remote) = (pair.local(0, 0, 8), pair.remote(0, 0));
    remote.key = 0xbad;
    // SAFETY: the heap stays; the wrong key is what is tested.
    pair.post("write", |pair| unsafe { pair.side.rails[0].write(0, local, remote, delivered(2)) });
    pair.wait("failure", |side| !side.seen.failed.is_empty());
    assert_eq!(pair.side.seen.failed[0].0, 2);
    let fault = &pair.side.seen.failed[0].1;
    println!("{fault}");
    assert!(fault.code > 0 && !fault.text.is_empty(), "{fault}");
    assert!(!pair.side.seen.done.contains(&2));
    works_again(&mut pair, 3);
}

/// After a failure the rail carries on: tcp loses its connection to a bad key and makes a new one.
fn works_again(pair: &mut Pair, first_id: u64) {
    let deadline = Instant::now() + PATIENCE;
    for id in first_id.. {
        pair.side.seen.failed.clear();
        pair.side.write_heap(0, id);
        pair.write(0, 0, 0, 8, delivered(id));
        pair.wait("an end", |side| side.seen.done.contains(&id) || !side.seen.failed.is_empty());
        if pair.side.seen.done.contains(&id) {
            assert_eq!(pair.ask_number("peek 0"), id);
            return;
        }
        assert!(Instant::now() < deadline, "the rail never worked again: {:?}", pair.side.seen);
    }
}

#[test]
#[serial]
fn bad_key_fails_over_tcp() {
    bad_key_fails(&TCP);
}

#[test]
#[serial]
fn bad_key_fails_over_net() {
    bad_key_fails(&NET);
}

#[test]
#[serial]
fn bad_key_fails_over_sockets() {
    bad_key_fails(&SOCKETS);
}

/// A peer that is killed gives a fault within bounded time, and the rail then still lets go of everything.
fn killed_peer_is_a_fault(setup: &Setup) {
    let Some(mut pair) = Pair::start(setup) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    pair.kill();
    let start = Instant::now();
    let mut next = 2;
    let mut refused = None;
    while pair.side.seen.failed.is_empty() && pair.side.seen.broken.is_empty() && refused.is_none() {
        assert!(start.elapsed() < PATIENCE, "no fault; seen {:?}", pair.side.seen);
        let (local, remote) = (pair.local(0, 0, 8), pair.remote(0, 0));
        if next < 10 {
            // SAFETY: the heap stays.
            match unsafe { pair.side.rails[0].write(0, local, remote, delivered(next)) } {
                Ok(()) => next += 1,
                Err(PostError::Again) => {}
                Err(PostError::Failed(fault)) => refused = Some(fault),
            }
        }
        pair.side.poll();
    }
    println!("after {:?}: refused {refused:?}, {:?}", start.elapsed(), pair.side.seen);
    assert_eq!(pair.side.seen.done, [1], "nothing is delivered to a dead process");
}

#[test]
#[serial]
fn killed_peer_is_a_fault_over_tcp() {
    killed_peer_is_a_fault(&TCP);
}

#[test]
#[serial]
fn killed_peer_is_a_fault_over_net() {
    killed_peer_is_a_fault(&NET);
}

#[test]
#[serial]
fn killed_peer_is_a_fault_over_sockets() {
    killed_peer_is_a_fault(&SOCKETS);
}

/// Atomics that the provider claims give the right old values and results.
fn native_atomics(setup: &Setup) {
    let setup = Setup { native_amos: true, ..setup.clone() };
    let Some(mut pair) = Pair::start(&setup) else { return };
    let rail = &pair.side.rails[0];
    let types = [AmoType::I32, AmoType::U32, AmoType::I64, AmoType::U64];
    let ops = [AmoOp::Fetch, AmoOp::Set, AmoOp::Add, AmoOp::And, AmoOp::Or, AmoOp::Xor, AmoOp::CompareSwap];
    let all: Vec<_> = types.into_iter().flat_map(|ty| ops.map(|op| (ty, op))).collect();
    let (mut tried, order) = (0, rail.caps().order);
    let supported: Vec<_> = all.iter().filter(|(ty, op)| rail.supports_amo(*ty, *op, true)).copied().collect();
    println!("{} of {} fetching atomics, {order:?}", supported.len(), all.len());
    for (ty, op) in supported {
        let mask = if ty.size() == 4 { u64::from(u32::MAX) } else { u64::MAX };
        let (start, operand, compare) = (0x1234_5678_9abc_def0_u64, 0xffff_ffff_ffff_ff01, 0x1234_5678_9abc_def0);
        let mut expected = start;
        // SAFETY: a word of ours.
        unsafe { symrail_transport::amo::apply((&raw mut expected).cast(), ty, op, operand, compare) };
        for fetching in [true, false] {
            if !pair.side.rails[0].supports_amo(ty, op, fetching) {
                continue;
            }
            tried += 1;
            pair.ask(&format!("poke 64 {start}"));
            pair.side.write_heap(1024, 0);
            let result = fetching.then(|| pair.local(0, 1024, 8));
            let (remote, id) = (pair.remote(0, 64), 100 + tried);
            let amo = NativeAmo { ty, op, operand, compare, result };
            // SAFETY: the result's place stays.
            pair.post("amo", |pair| unsafe { pair.side.rails[0].amo(0, remote, amo, id) });
            pair.wait_done(id);
            assert_eq!(pair.ask_number("peek 64"), expected, "{ty:?} {op:?} fetching {fetching}");
            if fetching {
                assert_eq!(pair.side.read_heap(1024) & mask, start & mask, "{ty:?} {op:?}");
            }
        }
    }
    assert!(tried > 0 || setup.provider == "net", "{setup:?} claims atomics nowhere");
}

#[test]
#[serial]
fn native_atomics_over_tcp() {
    native_atomics(&TCP);
}

#[test]
#[serial]
fn native_atomics_over_shm() {
    native_atomics(&SHM);
}

#[test]
#[serial]
fn native_atomics_over_net_are_none() {
    native_atomics(&NET);
}

#[test]
#[serial]
fn native_atomics_over_sockets() {
    native_atomics(&SOCKETS);
}

/// A proxy that sleeps on its descriptor is woken by what arrives.
#[test]
#[serial]
fn sleeping_on_the_descriptor_is_ended_by_an_arrival() {
    let Some(mut pair) = Pair::start(&TCP) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    let fd = pair.side.rails[0].wait_fd().expect("tcp has a descriptor");
    // A read's answer is on its way or here: sleep only when the rail agrees, and never longer than the bound.
    for id in 2..50 {
        let (local, remote) = (pair.local(0, 64, 8), pair.remote(0, 0));
        // SAFETY: nobody else uses that part of the heap.
        pair.post("read", |pair| unsafe { pair.side.rails[0].read(0, local, remote, id, false) });
        let start = Instant::now();
        while !pair.side.seen.done.contains(&id) {
            assert!(start.elapsed() < PATIENCE, "never woken");
            if pair.side.rails[0].arm() {
                let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one live entry.
                let ready = unsafe { libc::poll(&raw mut poll, 1, 5_000) };
                assert_eq!(ready, 1, "slept through an arrival");
            }
            pair.side.rails[0].poll(&mut pair.side.seen);
        }
    }
}

/// Automatic progress is taken where a sleeping target progresses, and refused where it only says so.
#[test]
#[serial]
fn automatic_progress_is_probed() {
    // What tcp;ofi_rxm's thread serves depends on the version: with atomics data too, without them (1.17) connections only.
    let tcp = Setup { nics: "127.0.0.2", ..TCP };
    let with_atomics = Setup { native_amos: true, ..tcp.clone() };
    for (setup, expected) in [(with_atomics, Some(true)), (tcp, None), (NET, Some(false))] {
        let setup = Setup { progress: ProgressModel::Automatic, ..setup };
        let Some(mut pair) = Pair::start(&setup) else { continue };
        let progress = pair.side.rails[0].caps().progress.clone();
        println!("{}: {progress}", setup.provider);
        let automatic = progress.starts_with("automatic");
        assert!(expected.is_none_or(|expected| expected == automatic), "{setup:?}: {progress}");
        pair.write(0, 0, 0, 8, delivered(1));
        pair.wait_done(1);
        if automatic {
            pair.ask("pause");
            pair.write(0, 0, 0, 8, delivered(2));
            pair.wait_done(2);
        }
    }
}

/// What a destination, a size or an address must not be is a fault or an error, not a crash.
#[test]
#[serial]
fn mistakes_are_values() {
    let Some(mut pair) = Pair::start(&TCP) else { return };
    let (local, remote) = (pair.local(0, 0, 4096), pair.remote(0, 0));
    let rail = &mut pair.side.rails[0];
    let failed = |result: Result<(), PostError>, text: &str| match result {
        Err(PostError::Failed(fault)) => assert!(fault.text.contains(text), "{fault}"),
        other => panic!("{other:?}"),
    };
    // SAFETY: nothing is posted.
    unsafe {
        failed(rail.write(9, local, remote, delivered(1)), "destination 9 is not connected");
        failed(rail.read(u32::MAX, local, remote, 1, false), "is not connected");
        failed(rail.write(0, local, remote, injected()), "4096 bytes");
        failed(rail.send(0, LocalBuf { len: HEAP, ..local }, Some(1)), "takes at most");
    }
    let own = rail.address();
    for (address, text) in [
        (&b""[..], "not one of a libfabric rail"),
        (&own[..1], "not one of a libfabric rail"),
        (&own[..5], "ends after 5 bytes"),
        (b"\x51\x03shm-name", "provider shm"),
    ] {
        let error = rail.connect(1, address, 0).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let error = rail.connect(u32::MAX, &own, 0).unwrap_err().to_string();
    assert!(error.contains("destination 4294967295"), "{error}");
    // SAFETY: the heap stays.
    let error = unsafe { rail.register(pair.side.heap, HEAP, 7) }.unwrap_err().to_string();
    assert!(error.contains("registered already"), "{error}");
    rail.deregister(7);
    rail.deregister(7);
}

fn shared_memory_of(pid: u32) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("symrail-") && name.split('-').nth(2) == Some(&pid.to_string())).collect()
}

/// Closing leaves no file behind in shared memory, on either side.
#[test]
#[serial]
fn shm_leaves_nothing_behind() {
    let Some(mut pair) = Pair::start(&SHM) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    let (us, them) = (std::process::id(), pair.peer_id());
    assert!(!shared_memory_of(us).is_empty() && !shared_memory_of(them).is_empty(), "these are not the names");
    pair.part();
    drop(pair);
    assert_eq!((shared_memory_of(us), shared_memory_of(them)), (vec![], vec![]));
}

/// What a killed process left in shared memory goes when the next rail is opened.
#[test]
#[serial]
fn shm_of_the_dead_is_removed() {
    let Some(mut pair) = Pair::start(&SHM) else { return };
    let them = pair.peer_id();
    pair.kill();
    assert!(!shared_memory_of(them).is_empty(), "these are not the names");
    let rails = SHM.open(symrail_transport::ofi::Role::Host).unwrap();
    assert_eq!(shared_memory_of(them), Vec::<String>::new());
    drop(rails);
}

/// Rails are found by address, in the order of the list, and what is not there is named.
#[test]
fn nics_are_named_and_ordered() {
    let discover = |setup: Setup, change: &dyn Fn(&mut symrail_transport::env::Settings)| {
        let mut settings = setup.settings();
        change(&mut settings);
        let library = symrail_transport::ofi::load(&settings).ok()?;
        let found = symrail_transport::ofi::discover(&library, &settings);
        Some(found.map(|nics| nics.into_iter().map(|nic| nic.name).collect::<Vec<_>>()).map_err(|e| e.to_string()))
    };
    let Some(found) = discover(Setup::new("tcp", "127.0.0.3,127.0.0.2,127.0.0.4"), &|_| {}) else {
        println!("SKIPPED: libfabric is not installed");
        return;
    };
    assert_eq!(found.unwrap(), ["127.0.0.3", "127.0.0.2", "127.0.0.4"]);
    let mut settings = Setup::new("tcp", "127.0.0.3,127.0.0.2,127.0.0.4").settings();
    settings.transport = TransportKind::Libfabric;
    settings.libfabric_max_nic_per_pe = 2;
    let two = backend::choose(&settings, &HostPes::alone([0].into())).unwrap();
    assert_eq!(two.names(), ["127.0.0.3", "127.0.0.2"]);
    assert_eq!(discover(Setup::new("tcp", "lo"), &|_| {}).unwrap().unwrap(), ["lo"]);
    assert_eq!(discover(Setup::new("shm", "shm1,shm0"), &|_| {}).unwrap().unwrap(), ["shm1", "shm0"]);
    assert_eq!(discover(Setup::new("shm", ""), &|_| {}).unwrap().unwrap(), ["shm"]);
    let error = discover(Setup::new("tcp", "eth77"), &|_| {}).unwrap().unwrap_err();
    assert!(error.contains("eth77") && error.contains("lo (tcp;ofi_rxm)"), "{error}");
    let error = discover(Setup::new("nonesuch", ""), &|_| {}).unwrap().unwrap_err();
    assert!(error.contains("nonesuch") && error.contains("tcp;ofi_rxm"), "{error}");
    let excluded = discover(Setup::new("tcp", "lo"), &|s| s.nic_list.as_mut().unwrap().exclude = true);
    assert!(!excluded.unwrap().is_ok_and(|names| names.contains(&"lo".to_owned())));
}

#[test]
fn a_missing_library_says_what_to_do() {
    let mut settings = TCP.settings();
    settings.libfabric_so = Some("/nowhere/libfabric.so.1".into());
    let error = symrail_transport::ofi::load(&settings).unwrap_err().to_string();
    assert!(error.contains("/nowhere/libfabric.so.1") && error.contains("SYMRAIL_LIBFABRIC_SO"), "{error}");
}

/// Not a test but a measurement: 8-byte writes, each awaited. Both processes spin, on cores 0 and 1.
#[test]
#[serial]
#[ignore = "a measurement: run it alone, in release mode"]
fn measures_put_latency() {
    let provider = std::env::var("PROVIDER").unwrap_or_else(|_| "tcp".into()).leak();
    let nics = std::env::var("NICS").unwrap_or_default().leak();
    let setup = Setup { spin: true, ..Setup::new(provider, nics) };
    let Some(mut pair) = Pair::start(&setup) else { return };
    let (local, remote) = (pair.local(0, 0, 8), pair.remote(0, 0));
    let mut times = Vec::new();
    let (rails, seen) = (&mut pair.side.rails, &mut pair.side.seen);
    let rail = &mut rails[0];
    for id in 0..6000 {
        let start = Instant::now();
        // SAFETY: the heap stays.
        while unsafe { rail.write(0, local, remote, delivered(id)) }.is_err() {
            rail.poll(seen);
        }
        while seen.done.is_empty() {
            rail.poll(seen);
        }
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
        seen.done.clear();
    }
    times.drain(..1000);
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    println!(
        "put 8 B delivered: min {:.2}  p50 {:.2}  mean {mean:.2}  p99 {:.2} us",
        times[0], times[2500], times[4950]
    );
}
