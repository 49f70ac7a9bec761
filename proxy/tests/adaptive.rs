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
/// Bytes of a put: more than are coalesced.
const LEN: usize = 272 << 10;
/// Puts before a quiet.
const WINDOW: usize = 8;
/// Windows of which the speed of the rails is learned, and then windows that count.
const WINDOWS: usize = 40;

/// Windows of puts, of which rail 1 takes one put in each `slowness` rounds and rail 0 one in each round. Returns the
/// number that each rail took.
fn shares(rails: RailPolicy, slowness: u64) -> [u64; LANES] {
    simulation::set_nanos(Some(0));
    let config = FabricConfig { again: 0, delay: 0, queue_depth: 1, software: false, ..FabricConfig::default() };
    let fabric = Fabric::new(1, config);
    let mut memory = [(); 2].map(|()| vec![0u8; LEN * WINDOW]);
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
        let segment = unsafe { Segment::new(0, 0, memory.as_mut_ptr(), (LEN * WINDOW) as u64) };
        // SAFETY: the memory outlives the engines.
        infos.push(unsafe { engine.register(segment) }.unwrap());
    }
    for engine in &mut engines {
        for (pe, addresses) in (0..).zip(&addresses) {
            engine.endpoint().connect(pe, addresses).unwrap();
        }
        engine.endpoint().learn(0, &infos).unwrap();
    }
    let source = vec![7u8; LEN];
    let written = |engines: &mut [Engine]| -> Vec<u64> {
        engines[0].endpoint().counters().iter().map(|lane| lane.writes).collect()
    };
    let (mut round, mut before) = (0, Vec::new());
    for window in 0..2 * WINDOWS {
        if window == WINDOWS {
            before = written(&mut engines);
        }
        for place in 0..WINDOW {
            let source = Source::Stable(source.as_ptr());
            let command = Command::Put { dest: (place * LEN) as u64, source, len: LEN as u64 };
            // SAFETY: the source outlives the engines' use of it.
            unsafe { engines[0].endpoint().submit(1, command, Owner { issuer: 0, tag: None }) }.unwrap();
        }
        while !engines[0].endpoint().is_quiet(0) {
            round += 1;
            match round % slowness {
                0 => fabric.plug_in(1),
                _ => fabric.mute(1),
            }
            simulation::spend(100_000);
            engines[0].endpoint().start_quiet(0);
            engines.iter_mut().for_each(|engine| _ = engine.poll());
            assert!(round < 1_000_000, "a put does not end");
        }
    }
    let after = written(&mut engines);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn a_slow_rail_gets_its_share_and_equal_rails_get_equal_shares() {
    let part = |[fast, slow]: [u64; LANES]| slow as f64 / (fast + slow) as f64;
    let (turns, slow) = (shares(RailPolicy::RoundRobin, 6), shares(RailPolicy::Adaptive, 6));
    assert!((0.45..0.55).contains(&part(turns)), "in turn: {turns:?}");
    assert!((0.05..0.3).contains(&part(slow)), "a rail with a sixth of the speed: {slow:?}");
    let equal = shares(RailPolicy::Adaptive, 1);
    assert!((0.35..0.65).contains(&part(equal)), "equal rails: {equal:?}");
}
