//! ibverbs rails move data between two processes.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Instant;

use crate::verbs_support::*;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::env::{IbMode, Settings};
use symrail_transport::rail::{NativeAmo, Piece, Rail, Registration, WriteOptions};
use symrail_transport::verbs::{Nic, Role, VerbsRail};

const HEAP: usize = 256 << 10;
const SIZES: [usize; 8] = [0, 1, 8, 220, 221, 4096, 4097, 100_000];

/// One rail of one of two processes.
struct Half {
    rail: VerbsRail,
    log: Log,
    memory: Memory,
    theirs: Registration,
}

fn half(link: &mut Link, nic: &Nic, settings: &Settings) -> Half {
    let mut rail = VerbsRail::open(nic, Role::Proxy, 1, settings).unwrap();
    let address = link.exchange(&rail.address());
    rail.connect(0, &address, 0).unwrap();
    let memory = Memory::new(&mut rail, HEAP, 1);
    let theirs = link.exchange_registration(&memory.registration);
    Half { rail, log: Log::default(), memory, theirs }
}

fn amo(half: &mut Half, op: AmoOp, operand: u64, compare: u64, keep: bool, id: u64) -> u64 {
    let result = keep.then(|| half.memory.local(HEAP - 8, 8));
    let request = NativeAmo { ty: AmoType::U64, op, operand, compare, result };
    // SAFETY: the memory lives as long as the rail.
    unsafe { half.rail.amo(0, remote(&half.theirs, HEAP - 16), request, id) }.unwrap();
    poll_until(&mut half.rail, &mut half.log, "an atomic", |log| log.done.last() == Some(&id));
    half.memory.load_u64(HEAP - 8)
}

/// The first process of `everything`, which posts everything.
fn lead(link: &mut Link, half: &mut Half) {
    // Writes of all sizes. The peer checks its memory between two exchanges.
    for (nth, size) in SIZES.into_iter().enumerate() {
        half.memory.store(0, &pattern(size, nth));
        // SAFETY: the memories live as long as the rails.
        unsafe {
            half.rail.write(
                0,
                Piece { local: half.memory.local(0, size), remote: remote(&half.theirs, 64) },
                options(Some(nth as u64)),
            )
        }
        .unwrap();
        poll_until(&mut half.rail, &mut half.log, "a write", |log| log.done.len() == nth + 1);
        link.barrier();
        link.barrier();
    }
    // Reads of the peer's bytes.
    for (nth, size) in SIZES.into_iter().enumerate() {
        let id = 100 + nth as u64;
        // SAFETY: as above.
        unsafe {
            half.rail.read(0, Piece { local: half.memory.local(0, size), remote: remote(&half.theirs, 64) }, id, false)
        }
        .unwrap();
        poll_until(&mut half.rail, &mut half.log, "a read", |log| log.done.last() == Some(&id));
        assert_eq!(half.memory.load(0, size), pattern(100_000, SIZES.len() - 1)[..size], "read of {size}");
    }
    link.barrier();
    // A chain of writes with and without ids, inline and not. The buffer of those without id is overwritten at once.
    let before = half.log.done.len();
    for nth in 0..40_usize {
        let id = (nth % 3 == 0).then_some(200 + nth as u64);
        let slot = if id.is_some() { 4096 + nth * 8 } else { 0 };
        half.memory.store(slot, &(nth as u64).to_le_bytes());
        let local = half.memory.local(slot, 8);
        let to = remote(&half.theirs, nth * 8);
        let options = WriteOptions { more: nth < 39, ..options(id) };
        // SAFETY: as above.
        posted(&mut half.rail, &mut half.log, |rail| unsafe { rail.write(0, Piece { local, remote: to }, options) });
        half.memory.store(slot, &if id.is_none() { [0xee; 8] } else { (nth as u64).to_le_bytes() });
    }
    poll_until(&mut half.rail, &mut half.log, "a chain", |log| log.done.len() == before + 14);
    let expected: Vec<u64> = (0..40).filter(|nth| nth % 3 == 0).map(|nth| 200 + nth).collect();
    assert_eq!(half.log.done[before..], expected, "each id once, in order");
    // A message behind them shows the peer that all are there, including those without id.
    // SAFETY: as above.
    unsafe { half.rail.send(0, half.memory.local(0, 8), None) }.unwrap();
    link.barrier();
    // Messages of all sizes up to the limit.
    let limit = half.rail.caps().max_send;
    for (nth, size) in [0, 1, 64, 221, limit].into_iter().enumerate() {
        half.memory.store(0, &pattern(size, nth));
        // SAFETY: as above.
        unsafe { half.rail.send(0, half.memory.local(0, size), Some(300 + nth as u64)) }.unwrap();
        poll_until(&mut half.rail, &mut half.log, "a message", |log| log.done.last() == Some(&(300 + nth as u64)));
    }
    // More messages than there are receive buffers, all under way before the peer handles the first.
    for nth in 0..1000_u64 {
        half.memory.store(0, &nth.to_le_bytes());
        let local = half.memory.local(0, 8);
        // SAFETY: as above; without id the bytes are copied.
        posted(&mut half.rail, &mut half.log, |rail| unsafe { rail.send(0, local, None) });
    }
    link.barrier();
    // Immediates, whose data is visible before them.
    for nth in 0..50_u32 {
        half.memory.store(0, &pattern(5000, nth as usize));
        let options =
            WriteOptions { immediate: Some(u64::from(0xf000_0000 | nth)), ..options(Some(u64::from(400 + nth))) };
        // SAFETY: as above.
        unsafe {
            half.rail.write(0, Piece { local: half.memory.local(0, 5000), remote: remote(&half.theirs, 0) }, options)
        }
        .unwrap();
        poll_until(&mut half.rail, &mut half.log, "an immediate", |log| log.done.last() == Some(&u64::from(400 + nth)));
        link.barrier();
    }
    if half.rail.supports_amo(AmoType::U64, AmoOp::Add, true) {
        assert_eq!(amo(half, AmoOp::Add, 5, 0, true, 500), 0);
        assert_eq!(amo(half, AmoOp::Add, u64::MAX, 0, true, 501), 5, "wraps");
        assert_eq!(amo(half, AmoOp::CompareSwap, 77, 9, true, 502), 4, "does not match");
        assert_eq!(amo(half, AmoOp::CompareSwap, 77, 4, true, 503), 4, "matches");
        amo(half, AmoOp::Add, 1, 0, false, 504);
        assert_eq!(amo(half, AmoOp::Fetch, 99, 0, true, 505), 78);
        // Many atomics in flight at once.
        let before = half.log.done.len();
        for id in 0..64 {
            let request = NativeAmo { ty: AmoType::I64, op: AmoOp::Add, operand: 1, compare: 0, result: None };
            let to = remote(&half.theirs, HEAP - 16);
            // SAFETY: as above.
            posted(&mut half.rail, &mut half.log, |rail| unsafe { rail.amo(0, to, request, 600 + id) });
        }
        poll_until(&mut half.rail, &mut half.log, "atomics", |log| log.done.len() == before + 64);
    }
    link.barrier();
    assert!(half.log.failed.is_empty() && half.log.broken.is_empty(), "{:?}", half.log);
}

/// The second process of `everything`, which checks arrivals.
fn follow(link: &mut Link, half: &mut Half) {
    for (nth, size) in SIZES.into_iter().enumerate() {
        link.barrier();
        assert_eq!(half.memory.load(64, size), pattern(size, nth), "write of {size}");
        link.barrier();
    }
    link.barrier();
    poll_until(&mut half.rail, &mut half.log, "a message behind a chain", |log| log.messages.len() == 1);
    for nth in 0..40 {
        assert_eq!(half.memory.load_u64(nth * 8), nth as u64, "write {nth} of a chain");
    }
    link.barrier();
    let limit = half.rail.caps().max_send;
    let sizes = [0, 1, 64, 221, limit];
    half.log.messages.clear();
    link.barrier();
    poll_until(&mut half.rail, &mut half.log, "messages", |log| log.messages.len() == sizes.len() + 1000);
    for (nth, size) in sizes.into_iter().enumerate() {
        assert_eq!(half.log.messages[nth], pattern(size, nth), "message of {size}");
    }
    for nth in 0..1000_u64 {
        assert_eq!(half.log.messages[sizes.len() + nth as usize], nth.to_le_bytes(), "in order");
    }
    for nth in 0..50_u32 {
        poll_until(&mut half.rail, &mut half.log, "an immediate", |log| log.immediates.len() == nth as usize + 1);
        assert_eq!(half.log.immediates[nth as usize], u64::from(0xf000_0000 | nth));
        assert_eq!(half.memory.load(0, 5000), pattern(5000, nth as usize), "data of immediate {nth}");
        link.barrier();
    }
    link.barrier();
    if half.rail.supports_amo(AmoType::U64, AmoOp::Add, true) {
        assert_eq!(half.memory.load_u64(HEAP - 16), 78 + 64);
    }
}

/// Both processes of a scenario derive the same settings from its name.
fn settings_of(play: &str) -> Settings {
    let mut settings = Settings::default();
    settings.ib_mode = IbMode::RdmaAtomics;
    match play {
        // soft-RoCE's atomics are not atomic with the CPU's, so auto means a mode without them.
        "auto" => settings.ib_mode = IbMode::Auto,
        "gid0" => settings.ib_gid_index = Some(0),
        "gid1" => settings.ib_gid_index = Some(1),
        "immediate-mode" => settings.ib_mode = IbMode::WriteWithImm,
        "killed" => (settings.ib_timeout, settings.ib_retry_cnt) = (14, 3),
        "relaxed" => settings.ib_relaxed_ordering = true,
        // Lost packets cost a time-out each, which is 4 ms here instead of seconds.
        "wire" => settings.ib_timeout = 10,
        _ => {}
    }
    settings
}

/// The NICs of a scenario for each of its processes: rails of their own, or the two ends of a wire.
fn nics_of(play: &str, second: bool) -> Vec<Nic> {
    match play {
        "wire" => nic(if second { "wire1" } else { "wire0" }).into_iter().collect(),
        _ => nics(&settings_of(play)).into_iter().filter(|nic| !nic.name.starts_with("wire")).take(2).collect(),
    }
}

#[test]
fn peer() {
    let Some((mut link, play)) = Link::of_peer() else { return };
    for nic in nics_of(&play, true) {
        let mut half = half(&mut link, &nic, &settings_of(&play));
        if play == "killed" {
            link.barrier();
            // Waits to be killed. It ends when the other process does.
            let mut byte = [0];
            let _ = std::io::Read::read(&mut std::io::stdin(), &mut byte);
            link.barrier();
        }
        follow(&mut link, &mut half);
    }
}

fn everything(play: &str) {
    let nics = nics_of(play, false);
    if nics.is_empty() {
        return;
    }
    let (peer, mut link) = Peer::start(play);
    for nic in nics {
        let start = Instant::now();
        let mut half = half(&mut link, &nic, &settings_of(play));
        println!("{play}: {:?}", half.rail.caps());
        assert_eq!(half.rail.caps().order.write_after_write, play != "relaxed");
        assert_eq!(half.rail.supports_amo(AmoType::U64, AmoOp::Add, true), play != "immediate-mode" && play != "auto");
        lead(&mut link, &mut half);
        println!("{play}: rail {} took {:?}", nic.name, start.elapsed());
    }
    peer.ends_well();
}

#[test]
fn two_rails_with_automatic_gids() {
    everything("auto");
}

#[test]
fn gid_index_0_is_link_local() {
    everything("gid0");
}

#[test]
fn gid_index_1() {
    everything("gid1");
}

#[test]
fn write_with_immediate_mode_has_no_atomics() {
    everything("immediate-mode");
}

#[test]
fn relaxed_ordering_promises_less_and_works() {
    everything("relaxed");
}

/// Two different devices, one cable, 5 % of the packets lost in each direction.
#[test]
fn packets_that_are_lost_are_sent_again() {
    if nic("wire0").is_none() {
        return;
    }
    run("tc qdisc add dev end0 root netem loss 5%; tc qdisc add dev end1 root netem loss 5%");
    everything("wire");
    let lost = output("tc -s qdisc show dev end0; tc -s qdisc show dev end1");
    run("tc qdisc del dev end0 root; tc qdisc del dev end1 root");
    assert_eq!(lost.matches("dropped ").count(), 2, "{lost}");
    assert!(!lost.contains("dropped 0,"), "nothing was lost, so this shows nothing: {lost}");
}

#[test]
fn a_killed_peer_fails_what_was_for_it_within_bounded_time() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let (mut peer, mut link) = Peer::start("killed");
    let mut half = half(&mut link, &nic, &settings_of("killed"));
    link.barrier();
    peer.kill();
    for id in 0..10 {
        // SAFETY: the memory lives as long as the rail.
        unsafe {
            half.rail.write(
                0,
                Piece { local: half.memory.local(0, 4096), remote: remote(&half.theirs, 0) },
                options(Some(id)),
            )
        }
        .unwrap();
    }
    poll_until(&mut half.rail, &mut half.log, "failures", |log| log.failed.len() == 10);
    assert!(half.log.done.is_empty(), "{:?}", half.log);
    let mut ids: Vec<u64> = half.log.failed.iter().map(|(id, _)| *id).collect();
    ids.dedup();
    assert_eq!(ids, (0..10).collect::<Vec<_>>(), "each id once");
}
