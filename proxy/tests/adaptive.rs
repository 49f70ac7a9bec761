//! The adaptive policy: rails that differ in speed, on the mock fabric.

#![allow(clippy::unwrap_used)]

use symrail_core::simulation;
use symrail_proxy::engine::Engine;
use symrail_transport::endpoint::command::{Command, Owner, Priority, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::RailPolicy;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;

/// Bytes that a fast rail moves in a round: a piece.
const PIECE: usize = 64 << 10;
/// Bytes of a put: 16 pieces.
const LEN: usize = 16 * PIECE;
/// Puts before a quiet.
const WINDOW: usize = 8;
/// Windows of which the speed of the rails is learned, and then windows that count.
const WINDOWS: usize = 40;

/// Microseconds of a round in which a rail moves a piece at 16 MB/s, so operations travel in the shortest pieces, and in
/// which it does at 6 GB/s.
const LONG: u64 = 4000;
const SHORT: u64 = 10;

/// Two PEs and the rails between them.
struct World {
    fabric: Fabric,
    engines: Vec<Engine>,
    source: Vec<u8>,
    _memory: [Vec<u8>; 2],
    rails: usize,
    round_us: u64,
    rounds: usize,
}

impl World {
    /// Rails of the same latency, in microseconds, and memory of so many bytes.
    fn new(policy: RailPolicy, rails: usize, (round_us, latency_us): (u64, u64), bytes: usize) -> World {
        simulation::set_nanos(Some(0));
        let config = FabricConfig { again: 0, delay: 0, queue_depth: 256, software: false, ..FabricConfig::default() };
        let config = FabricConfig { max_rma: 1 << 30, ..config };
        let fabric = Fabric::new(1, config);
        let mut memory = [(); 2].map(|()| vec![0u8; bytes]);
        let policy = Policy { rails: policy, stripe_threshold: 1 << 30, native_amo: false, timeout_s: 1_000_000 };
        let open = |pe| {
            let rails = (0..rails).map(|lane| fabric.open(&format!("{pe}rail{lane}")).unwrap()).collect();
            Engine::new(Endpoint::new(Role::Proxy, pe, 2, rails, policy).unwrap())
        };
        let mut engines: Vec<Engine> = (0..2).map(open).collect();
        (0..rails).for_each(|rail| fabric.set_latency(rail, 1000 * latency_us));
        let addresses: Vec<Addresses> =
            engines.iter().map(|e| Addresses { host: Vec::new(), proxy: e.addresses() }).collect();
        let mut infos = Vec::new();
        for (engine, memory) in engines.iter_mut().zip(&mut memory) {
            // SAFETY: the memory is dropped after the engines, and no reference into it exists meanwhile.
            let segment = unsafe { Segment::new(0, 0, memory.as_mut_ptr(), bytes as u64) };
            // SAFETY: as above.
            infos.push(unsafe { engine.register(segment) }.unwrap());
        }
        for engine in &mut engines {
            for (pe, addresses) in (0..).zip(&addresses) {
                engine.endpoint().connect(pe, addresses).unwrap();
            }
            engine.endpoint().learn(0, &infos).unwrap();
        }
        World { fabric, engines, source: vec![7; bytes], _memory: memory, rails, round_us, rounds: 0 }
    }

    /// Puts all memory in parts of `len` bytes, and waits until all are complete. A rail moves a piece in so many rounds
    /// as `slowness` says. `each_round` is called after each.
    fn put(
        &mut self,
        len: usize,
        priority: Priority,
        slowness: impl Fn(usize) -> usize,
        mut each_round: impl FnMut(&Fabric),
    ) {
        for place in (0..self.source.len()).step_by(len) {
            let source = Source::Stable(self.source[place..].as_ptr());
            let command = Command::Put { dest: place as u64, source, len: len as u64 };
            // SAFETY: the source outlives the engines' use of it.
            unsafe { self.engines[0].submit_as(1, command, Owner { issuer: 0, tag: None }, priority) }.unwrap();
        }
        while !self.engines[0].endpoint().is_quiet(0) {
            self.rounds += 1;
            (0..self.rails).for_each(|rail| self.fabric.allow(rail, (PIECE / slowness(rail)) as u64));
            simulation::spend(1000 * self.round_us);
            self.engines[0].endpoint().start_quiet(0);
            self.engines.iter_mut().for_each(|engine| _ = engine.poll());
            each_round(&self.fabric);
            assert!(self.rounds < 1_000_000, "a put does not end");
        }
    }

    /// Bytes that each rail has moved, and their posts.
    fn carried(&mut self) -> Vec<(u64, u64)> {
        self.engines[0].endpoint().counters().iter().map(|lane| (lane.bytes, lane.writes)).collect()
    }
}

/// The part of the bytes that the slow one of two rails took, as [`measured`] with long rounds.
fn of_slow(policy: RailPolicy, puts: (usize, usize), slow: impl Fn(usize) -> (usize, usize)) -> f64 {
    measured(World::new(policy, 2, (LONG, 0), puts.0 * puts.1), puts, slow).0
}

/// Windows of `puts` puts of `len` bytes. In each, `slow` returns the slow rail and how many rounds it needs for a piece.
/// Returns the part of the bytes that slow rails took, the number of posts of a put, and the number of rounds of a window.
fn measured(mut world: World, (puts, len): (usize, usize), slow: impl Fn(usize) -> (usize, usize)) -> (f64, f64, f64) {
    let (mut learned, mut by_slow, mut posts) = (0, 0, 0);
    for window in 0..2 * WINDOWS {
        let (slow, slowness) = slow(window);
        let before = world.carried();
        world.put(len, Priority::Urgent, |rail| if rail == slow { slowness } else { 1 }, |_| {});
        if window < WINDOWS {
            learned = world.rounds;
            continue;
        }
        let after = world.carried();
        by_slow += after[slow].0 - before[slow].0;
        posts += after.iter().zip(&before).map(|(after, before)| after.1 - before.1).sum::<u64>();
    }
    let all = (WINDOWS * puts) as f64;
    let rounds = (world.rounds - learned) as f64 / WINDOWS as f64;
    (by_slow as f64 / (all * len as f64), posts as f64 / all, rounds)
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
    let puts = (WINDOW, LEN);
    let world = || World::new(RailPolicy::Adaptive, 2, (SHORT, 0), WINDOW * LEN);
    let (equal, posts, _) = measured(world(), puts, |_| (1, 1));
    assert!((0.35..0.65).contains(&equal), "equal rails: {equal}");
    assert!(posts <= 1.6, "{posts} work requests for a put of a mebibyte");
    let (slow, posts, _) = measured(world(), puts, |_| (1, 6));
    assert!((0.03..0.3).contains(&slow), "a rail with a sixth of the speed: {slow}");
    assert!(posts <= 3.0, "{posts} work requests for a put of a mebibyte over rails that differ");
}

/// A put that is awaited alone takes all rails, however fast they are.
#[test]
fn a_large_put_alone_takes_all_rails() {
    let world = World::new(RailPolicy::Adaptive, 2, (SHORT, 0), 8 * LEN);
    let (second, posts, _) = measured(world, (1, 8 * LEN), |_| (1, 1));
    assert!((0.35..0.65).contains(&second), "equal rails: {second}");
    assert!(posts <= 24.0, "{posts} work requests for a put of eight mebibytes");
}

/// Idle rails take the parts of a put at once: none waits for another one that would be faster with a shorter part.
#[test]
fn three_idle_rails_take_their_parts_at_once() {
    for latency_us in [0, 200] {
        let world = World::new(RailPolicy::Adaptive, 3, (SHORT, latency_us), 12 * LEN);
        let (last, _, rounds) = measured(world, (1, 12 * LEN), |_| (2, 1));
        let ideal = (4 * LEN / PIECE) as f64 + latency_us as f64 / SHORT as f64;
        assert!((0.25..0.4).contains(&last), "latency {latency_us} us: one of three equal rails took {last}");
        assert!(rounds <= 1.3 * ideal, "latency {latency_us} us: {rounds} rounds for a put that takes {ideal}");
    }
}

/// A rail that was so slow that it got nothing is tried again, and gets its part once it is as fast as the others.
#[test]
fn a_rail_that_got_nothing_gets_its_part_again() {
    let mut world = World::new(RailPolicy::Adaptive, 3, (LONG, 4 * LONG), WINDOW * LEN);
    let mut parts = Vec::new();
    for window in 0..2 * WINDOWS {
        let before = world.carried()[2].0;
        world.put(LEN, Priority::Urgent, |rail| if rail == 2 && window < WINDOWS { 128 } else { 1 }, |_| {});
        parts.push((world.carried()[2].0 - before) as f64 / (WINDOW * LEN) as f64);
    }
    let without = parts[..WINDOWS].iter().filter(|&&part| part == 0.0).count();
    assert!(without > WINDOWS / 2, "a rail with next to no speed: {parts:.2?}");
    let last = parts[3 * WINDOWS / 2..].iter().sum::<f64>() / (WINDOWS / 2) as f64;
    assert!((0.25..0.4).contains(&last), "the rail that has recovered: {parts:.2?}");
}

/// What was learned in pieces of 64 KiB counts in bytes when pieces are longer. So little is bound to the speed of a
/// rail, and it is enough.
#[test]
fn long_pieces_on_a_rail_have_few_times_the_bytes_that_its_path_holds() {
    const ROUND: u64 = 100;
    const LATENCY: u64 = 2000;
    let len = 64 * LEN;
    let mut world = World::new(RailPolicy::Adaptive, 2, (ROUND, LATENCY), len);
    world.put(len, Priority::Bulk, |_| 1, |_| {});
    world.put(len, Priority::Urgent, |_| 1, |_| {});
    let (before, posts, mut most) = (world.rounds, world.carried(), 0);
    world.put(
        len,
        Priority::Urgent,
        |_| 1,
        |fabric| {
            most = (0..2).map(|rail| fabric.under_way(rail)).fold(most, u64::max);
        },
    );
    let (rounds, path) = ((world.rounds - before) as f64, (LATENCY / ROUND) as usize * PIECE);
    let posts: u64 = world.carried().iter().zip(&posts).map(|(after, before)| after.1 - before.1).sum();
    // A long piece takes 2 ms at most, as the path does: two wait, and one may be in excess while the window grows.
    assert!(most as usize <= 5 * path + PIECE, "{most} bytes on a rail whose path holds {path}");
    let ideal = (len / 2 / PIECE) as f64 + (LATENCY / ROUND) as f64;
    assert!(rounds <= 1.1 * ideal, "{rounds} rounds for a put that takes {ideal}");
    assert!(posts <= 100, "{posts} work requests for a put of 64 MiB");
}
