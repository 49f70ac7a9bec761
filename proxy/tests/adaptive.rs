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

/// Windows of `puts` puts of `len` bytes. The slow rail of each window takes one post in so many rounds, and the other
/// one in each round. Returns the part of the bytes that slow rails took.
fn of_slow(rails: RailPolicy, (puts, len): (usize, usize), slow: impl Fn(usize) -> (usize, u64)) -> f64 {
    simulation::set_nanos(Some(0));
    let config = FabricConfig { again: 0, delay: 0, queue_depth: 1, software: false, ..FabricConfig::default() };
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
    let carried = |engines: &mut [Engine]| -> Vec<u64> {
        engines[0].endpoint().counters().iter().map(|lane| lane.bytes).collect()
    };
    let (mut round, mut by_slow) = (0, 0);
    for window in 0..2 * WINDOWS {
        let (slow, slowness) = slow(window);
        let before = carried(&mut engines)[slow];
        fabric.plug_in(1 - slow);
        for place in 0..puts {
            let source = Source::Stable(source.as_ptr());
            let command = Command::Put { dest: (place * len) as u64, source, len: len as u64 };
            // SAFETY: the source outlives the engines' use of it.
            unsafe { engines[0].endpoint().submit(1, command, Owner { issuer: 0, tag: None }) }.unwrap();
        }
        while !engines[0].endpoint().is_quiet(0) {
            round += 1;
            match round % slowness {
                0 => fabric.plug_in(slow),
                _ => fabric.mute(slow),
            }
            simulation::spend(100_000);
            engines[0].endpoint().start_quiet(0);
            engines.iter_mut().for_each(|engine| _ = engine.poll());
            assert!(round < 1_000_000, "a put does not end");
        }
        if window >= WINDOWS {
            by_slow += carried(&mut engines)[slow] - before;
        }
    }
    by_slow as f64 / (WINDOWS * puts * len) as f64
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
