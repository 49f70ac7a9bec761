//! The adaptive policy: rails that differ in speed, on the mock fabric.

#![allow(clippy::unwrap_used)]

use symrail_core::simulation;
use symrail_proxy::engine::Engine;
use symrail_transport::endpoint::command::{Command, Owner, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::RailPolicy;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;

const LANES: usize = 2;
/// Bytes of a put: 16 pieces.
const LEN: usize = 1 << 20;
/// Puts before a quiet.
const WINDOW: usize = 8;
/// Windows of which the speed of the rails is learned, and then windows that count.
const WINDOWS: usize = 40;

/// Microseconds of a round in which a rail moves 64 KiB at 16 MB/s, so operations travel in the shortest pieces, and in
/// which it does at 6 GB/s.
const LONG: u64 = 4000;
const SHORT: u64 = 10;

/// The part of the bytes that slow rails took, as [`measured`] with long rounds.
fn of_slow(rails: RailPolicy, puts: (usize, usize), slow: impl Fn(usize) -> (usize, u64)) -> f64 {
    measured(rails, LONG, puts, slow).0
}

/// Windows of `puts` puts of `len` bytes. The fast rail of each window moves 64 KiB in a round of so many microseconds, and
/// the slow one, which `slow` returns, so many times less. Returns the part of the bytes that slow rails took, and the number of
/// posts of a put.
fn measured(
    rails: RailPolicy,
    round_us: u64,
    (puts, len): (usize, usize),
    slow: impl Fn(usize) -> (usize, u64),
) -> (f64, f64) {
    simulation::set_nanos(Some(0));
    let config = FabricConfig { again: 0, delay: 0, queue_depth: 16, software: false, ..FabricConfig::default() };
    let fabric = Fabric::new(1, config);
    let mut memory = [(); 2].map(|()| vec![0u8; len * puts]);
    let policy = Policy { rails, stripe_threshold: 1 << 30, native_amo: false, timeout_s: 1_000_000 };
    let open = |pe| {
        let rails = (0..LANES).map(|lane| fabric.open(&format!("{pe}rail{lane}")).unwrap()).collect();
        Engine::new(Endpoint::new(Role::Proxy, pe, 2, rails, policy).unwrap())
    };
    let mut engines: Vec<Engine> = (0..2).map(open).collect();
    let addresses: Vec<Addresses> =
        engines.iter().map(|e| Addresses { host: Vec::new(), proxy: e.addresses() }).collect();
    let mut infos = Vec::new();
    for (engine, memory) in engines.iter_mut().zip(&mut memory) {
        // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
        let segment = unsafe { Segment::new(0, 0, memory.as_mut_ptr(), (len * puts) as u64) };
        // SAFETY: the memory outlives the engines.
        infos.push(unsafe { engine.register(segment) }.unwrap());
    }
    for engine in &mut engines {
        for (pe, addresses) in (0..).zip(&addresses) {
            engine.endpoint().connect(pe, addresses).unwrap();
        }
        engine.endpoint().learn(0, &infos).unwrap();
    }
    let source = vec![7u8; len];
    let carried = |engines: &mut [Engine]| -> Vec<(u64, u64)> {
        engines[0].endpoint().counters().iter().map(|lane| (lane.bytes, lane.writes)).collect()
    };
    let (mut round, mut by_slow, mut posts) = (0, 0, 0);
    for window in 0..2 * WINDOWS {
        let (slow, slowness) = slow(window);
        let before = carried(&mut engines);
        for place in 0..puts {
            let source = Source::Stable(source.as_ptr());
            let command = Command::Put { dest: (place * len) as u64, source, len: len as u64 };
            // SAFETY: the source outlives the engines' use of it.
            unsafe { engines[0].endpoint().submit(1, command, Owner { issuer: 0, tag: None }) }.unwrap();
        }
        while !engines[0].endpoint().is_quiet(0) {
            round += 1;
            fabric.allow(1 - slow, 64 << 10);
            fabric.allow(slow, (64 << 10) / slowness);
            simulation::spend(1000 * round_us);
            engines[0].endpoint().start_quiet(0);
            engines.iter_mut().for_each(|engine| _ = engine.poll());
            assert!(round < 1_000_000, "a put does not end");
        }
        if window >= WINDOWS {
            let after = carried(&mut engines);
            by_slow += after[slow].0 - before[slow].0;
            posts += after.iter().zip(&before).map(|(after, before)| after.1 - before.1).sum::<u64>();
        }
    }
    let all = (WINDOWS * puts) as f64;
    (by_slow as f64 / (all * len as f64), posts as f64 / all)
}

#[test]
fn a_slow_rail_gets_its_share_and_equal_rails_get_equal_shares() {
    let turns = of_slow(RailPolicy::RoundRobin, (WINDOW, LEN), |_| (1, 6));
    assert!((0.45..0.55).contains(&turns), "in turn: {turns}");
    let slow = of_slow(RailPolicy::Adaptive, (WINDOW, LEN), |_| (1, 6));
    assert!((0.05..0.3).contains(&slow), "a rail with a sixth of the speed: {slow}");
    let equal = of_slow(RailPolicy::Adaptive, (WINDOW, LEN), |_| (1, 1));
    assert!((0.35..0.65).contains(&equal), "equal rails: {equal}");
}

/// In each window the other rail is the slow one, so what was measured before is wrong when the puts begin.
#[test]
fn puts_that_have_begun_follow_the_speed_of_the_rails() {
    let slow = of_slow(RailPolicy::Adaptive, (WINDOW, LEN), |window| (window % 2, 8));
    assert!((0.05..0.25).contains(&slow), "a rail that now has an eighth of the speed: {slow}");
}

#[test]
fn a_put_that_is_awaited_does_not_wait_for_a_slow_rail() {
    let slow = of_slow(RailPolicy::Adaptive, (1, 5 * LEN / 16), |_| (1, 24));
    assert!(slow < 0.05, "a rail that takes a piece while the other one takes all: {slow}");
}

/// Where a piece takes next to no time, the work requests and acknowledgements of many cost more than they bring.
#[test]
fn operations_over_fast_rails_travel_in_few_pieces() {
    let (equal, posts) = measured(RailPolicy::Adaptive, SHORT, (WINDOW, LEN), |_| (1, 1));
    assert!((0.35..0.65).contains(&equal), "equal rails: {equal}");
    assert!(posts <= 1.5, "{posts} work requests for a put of a mebibyte");
    let (slow, posts) = measured(RailPolicy::Adaptive, SHORT, (WINDOW, LEN), |_| (1, 6));
    assert!((0.03..0.3).contains(&slow), "a rail with a sixth of the speed: {slow}");
    assert!(posts <= 3.0, "{posts} work requests for a put of a mebibyte over rails that differ");
}

/// A put that is awaited alone takes all rails, however fast they are.
#[test]
fn a_large_put_alone_takes_all_rails() {
    let (second, posts) = measured(RailPolicy::Adaptive, SHORT, (1, 8 * LEN), |_| (1, 1));
    assert!((0.35..0.65).contains(&second), "equal rails: {second}");
    assert!(posts <= 24.0, "{posts} work requests for a put of eight mebibytes");
}
