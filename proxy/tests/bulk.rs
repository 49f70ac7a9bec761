//! Segmented operations on the mock fabric: what an urgent operation finds before it, and that nothing is lost or
//! reordered.

#![allow(clippy::unwrap_used)]

use symrail_core::simulation;
use symrail_proxy::engine::{Engine, HOST};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Owner, Priority, Signal, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, LaneCounters, Policy, Role};
use symrail_transport::env::RailPolicy;
use symrail_transport::error::Error;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;

/// Bytes of a piece, and of a bulk operation that is 16 and a half of them.
const PIECE: usize = 64 << 10;
const LEN: usize = 16 * PIECE + PIECE / 2;
const COUNT: usize = 4;
/// Behind the data: a word for signals, and room for urgent puts.
const WORD: usize = COUNT * LEN;
const DATA: usize = WORD + 8192;
const URGENT: Owner = Owner { issuer: HOST, tag: Some(1) };
const BULK: Owner = Owner { issuer: HOST + 1, tag: None };

/// The two kinds of operations that are segmented over several lanes.
const SEGMENTED: [(RailPolicy, Priority); 2] =
    [(RailPolicy::RoundRobin, Priority::Bulk), (RailPolicy::Adaptive, Priority::Urgent)];

struct World {
    engines: [Engine; 2],
    fabric: Fabric,
    source: Vec<u64>,
    memory: [Vec<u64>; 2],
    fetched: Vec<u64>,
    lanes: usize,
}

impl World {
    fn new(lanes: usize, config: FabricConfig) -> World {
        World::with(RailPolicy::RoundRobin, lanes, config)
    }

    fn with(rails: RailPolicy, lanes: usize, config: FabricConfig) -> World {
        simulation::set_nanos(Some(0));
        let fabric = Fabric::new(1, config);
        let policy = Policy { rails, stripe_threshold: 1 << 30, native_amo: false, timeout_s: 60 };
        let mut engines = [0, 1].map(|pe| {
            let rails = (0..lanes).map(|lane| fabric.open(&format!("{pe}rail{lane}")).unwrap()).collect();
            Engine::new(Endpoint::new(Role::Proxy, pe, 2, rails, policy).unwrap())
        });
        let mut memory = [(); 2].map(|()| vec![0u64; DATA / 8]);
        let mut keys = Vec::new();
        for (engine, memory) in engines.iter_mut().zip(&mut memory) {
            // SAFETY: the memory is dropped after the engines.
            let segment = unsafe { Segment::new(0, 0, memory.as_mut_ptr().cast(), DATA as u64) };
            // SAFETY: as above.
            keys.push(unsafe { engine.register(segment) }.unwrap());
        }
        let addresses: Vec<Addresses> =
            engines.iter().map(|e| Addresses { host: Vec::new(), proxy: e.addresses() }).collect();
        for engine in &mut engines {
            for (pe, addresses) in (0..).zip(&addresses) {
                engine.endpoint().connect(pe, addresses).unwrap();
            }
            engine.endpoint().learn(0, &keys).unwrap();
        }
        let source = (1..=(COUNT * LEN / 8) as u64).collect();
        World { engines, fabric, source, memory, fetched: vec![0; COUNT * LEN / 8], lanes }
    }

    fn submit(&mut self, command: Command, owner: Owner, priority: Priority) {
        // SAFETY: the memory outlives the engines, and stays unchanged until the operations are complete.
        unsafe { self.engines[0].submit_as(1, command, owner, priority) }.unwrap();
    }

    fn at(&self, byte: usize) -> *const u8 {
        self.source.as_ptr().cast::<u8>().wrapping_add(byte)
    }

    fn put(&self, number: usize) -> Command {
        Command::Put { dest: (number * LEN) as u64, source: Source::Stable(self.at(number * LEN)), len: LEN as u64 }
    }

    fn put_signal(&self, number: usize, len: usize) -> Command {
        let signal = Signal { offset: WORD as u64, value: 1, op: AmoOp::Add };
        let source = Source::Stable(self.at(number * LEN));
        Command::PutSignal { dest: (number * LEN) as u64, source, len: len as u64, signal }
    }

    /// Posts of data, and of all kinds, so far.
    fn posts(&mut self) -> (u64, u64) {
        let mut sum = |of: fn(&LaneCounters) -> u64| self.engines[0].endpoint().counters().iter().map(of).sum::<u64>();
        (sum(|c| c.writes) + sum(|c| c.reads), sum(|c| c.writes) + sum(|c| c.reads) + sum(|c| c.requests))
    }

    fn round(&mut self) {
        // Rails are slow, so pieces are of the least size.
        simulation::spend(4_000_000);
        self.engines.iter_mut().for_each(|engine| _ = engine.poll());
    }

    /// What a step of the way to a quiet of all issuers checks.
    fn quiet(&mut self, mut check: impl FnMut(&mut World)) {
        for _ in 0..100_000 {
            self.engines[0].start_quiet(HOST);
            self.engines[0].start_quiet(BULK.issuer);
            if self.engines[0].is_quiet(HOST) && self.engines[0].is_quiet(BULK.issuer) {
                return;
            }
            self.round();
            check(self);
        }
        unreachable!("an operation does not end");
    }

    fn word(&self) -> u64 {
        // SAFETY: the mock fabric writes to it by pointers, in this thread.
        unsafe { self.memory[1].as_ptr().add(WORD / 8).read_volatile() }
    }

    /// Whether the data of so many operations has arrived.
    fn has_arrived(&self, number: usize) -> bool {
        self.memory[1][number * LEN / 8..(number + 1) * LEN / 8]
            == self.source[number * LEN / 8..(number + 1) * LEN / 8]
    }
}

fn plain() -> FabricConfig {
    FabricConfig { again: 0, delay: 0, queue_depth: 1024, ..FabricConfig::default() }
}

/// Operations that are not bulk: also those of a bulk caller that are small.
fn urgent(world: &World) -> Vec<(Command, Priority)> {
    let source = Source::Stable(world.at(0));
    let word = WORD as u64;
    let amo = |fetch| Command::Amo { offset: word, ty: AmoType::U64, op: AmoOp::Add, operand: 0, compare: 0, fetch };
    let put = |len| Command::Put { dest: word + 8, source, len };
    vec![
        (put(8), Priority::Urgent),
        (put(4096), Priority::Urgent),
        (put(4096), Priority::Bulk),
        (amo(Fetch::No), Priority::Urgent),
        (amo(Fetch::Returned), Priority::Bulk),
        (world.put_signal(0, 8), Priority::Urgent),
    ]
}

#[test]
fn an_urgent_operation_is_posted_behind_two_pieces_of_a_lane_at_most() {
    for lanes in [1, 2, 4] {
        for reads in [false, true] {
            // Where nothing waits to be gathered or coalesced, each is one post.
            let mut world = World::new(lanes, FabricConfig { software: false, pieces: 1, ..plain() });
            for number in 0..COUNT {
                let dest = world.fetched.as_mut_ptr().cast::<u8>().wrapping_add(number * LEN);
                let get = Command::Get { source: (number * LEN) as u64, dest, len: LEN as u64 };
                let command = if reads { get } else { world.put(number) };
                world.submit(command, BULK, Priority::Bulk);
            }
            let (pieces, all) = world.posts();
            assert_eq!(pieces, 2 * lanes as u64, "{lanes} lanes");
            let operations = urgent(&world);
            let count = operations.len() as u64;
            for (command, priority) in operations {
                world.submit(command, URGENT, priority);
            }
            assert_eq!(world.posts().1, all + count, "{lanes} lanes: they do not wait here");
            world.quiet(|_| {});
            assert!(reads || (1..COUNT).all(|number| world.has_arrived(number)));
        }
    }
}

/// A rail that takes one work request in each round: pieces that wait in it take longer, so it never gets many.
#[test]
fn a_rail_that_delivers_one_after_the_other_has_two_pieces_at_most() {
    let mut world = World::new(1, FabricConfig { queue_depth: 1, ..plain() });
    (0..COUNT).for_each(|number| world.submit(world.put(number), BULK, Priority::Bulk));
    let mut rounds = 0;
    while !world.engines[0].is_quiet(BULK.issuer) {
        // A put that waited behind more than two pieces would need more rounds.
        let of_urgent = (0..16).find(|&at| {
            if at == 0 {
                let source = Source::Stable(world.at(0));
                let put = Command::Put { dest: WORD as u64 + 8, source, len: 4096 };
                world.submit(put, URGENT, Priority::Urgent);
            }
            world.round();
            world.engines[0].host_finished().pop().is_some()
        });
        // Two pieces, the put, and its acknowledgement.
        assert!(of_urgent.is_some_and(|rounds| rounds <= 4), "{of_urgent:?} rounds, {rounds} operations before");
        rounds += 1;
    }
    assert!(rounds > 10, "{rounds}");
}

#[test]
fn a_fence_orders_segmented_operations_and_others() {
    for ((policy, priority), (lanes, delay)) in
        SEGMENTED.into_iter().flat_map(|kind| [(1, 200), (2, 200), (4, 128)].map(|fabric| (kind, fabric)))
    {
        let mut world = World::with(policy, lanes, FabricConfig { delay, ..plain() });
        world.submit(world.put_signal(1, LEN), BULK, priority);
        // An urgent one without a fence may come first; both signals add 1.
        world.engines[0].fence();
        world.submit(world.put_signal(0, 8), URGENT, Priority::Urgent);
        world.engines[0].fence();
        world.submit(world.put(2), BULK, priority);
        let mut seen = [false; 3];
        world.quiet(|world| {
            let word = world.word();
            let later = world.memory[1][2 * LEN / 8..3 * LEN / 8].iter().any(|&value| value != 0);
            assert!(word == 0 || world.has_arrived(1), "a signal came before its data");
            assert!(!later || word == 2, "a segmented put passed what was before the fence");
            seen[word as usize] = true;
        });
        assert!(world.has_arrived(2) && world.word() == 2);
        // An urgent put-signal travels whole while no lane's speed is known, and may arrive in the first round.
        let whole = priority == Priority::Urgent;
        assert!((seen[0] || whole) && seen[2], "{policy:?}, {lanes} lanes: nothing was seen under way: {seen:?}");
    }
}

#[test]
fn a_bulk_operation_behind_a_fence_asks_for_the_delivery_of_small_writes() {
    // Rails that inject: nobody waits for such a put, and none has a completion.
    let mut world = World::new(1, FabricConfig { software: false, pieces: 1, ..plain() });
    let source = Source::Stable(world.at(0));
    for _ in 0..4 {
        let put = Command::Put { dest: WORD as u64 + 8, source, len: 8 };
        world.submit(put, Owner { issuer: HOST, tag: None }, Priority::Urgent);
    }
    world.engines[0].fence();
    world.submit(world.put_signal(1, LEN), BULK, Priority::Bulk);
    // No quiet, as of a program that waits for what the peer does at the signal.
    assert!((0..10_000).any(|_| {
        world.round();
        world.word() == 1
    }));
    assert!(world.has_arrived(1));
}

/// A round takes four seconds here, so all pieces take longer than the time-out.
#[test]
fn what_waits_behind_pieces_that_move_is_not_late() {
    for (lanes, (policy, priority)) in [1, 2].into_iter().zip(SEGMENTED) {
        let mut world = World::with(policy, lanes, FabricConfig { queue_depth: 1, ..plain() });
        (0..COUNT).for_each(|number| world.submit(world.put(number), BULK, priority));
        world.engines[0].fence();
        world.submit(world.put_signal(0, 8), URGENT, Priority::Urgent);
        let rounds = (1..1000).find(|&round| {
            let seconds = 4 * round..4 * round + 4;
            world.engines.iter_mut().for_each(|engine| seconds.clone().for_each(|second| engine.tick(second)));
            world.round();
            world.word() == 1
        });
        assert!(rounds.is_some_and(|rounds| 4 * rounds > 61), "{rounds:?}");
        assert!(world.engines[0].take_error(BULK.issuer).is_none());
        assert!((1..COUNT).all(|number| world.has_arrived(number)));
    }
}

#[test]
fn pieces_of_a_lane_that_fails_arrive_over_others() {
    for (policy, priority) in SEGMENTED {
        let mut world = World::with(policy, 2, FabricConfig { delay: 200, ..plain() });
        (0..COUNT).for_each(|number| world.submit(world.put(number), BULK, priority));
        assert!(world.posts().0 < (COUNT * LEN / PIECE) as u64, "{priority:?}: pieces wait");
        (0..3).for_each(|_| world.round());
        world.fabric.take_down(0);
        world.quiet(|_| {});
        assert!((0..COUNT).all(|number| world.has_arrived(number)));
        assert_eq!(world.lanes, 2);
    }
}

#[test]
fn pieces_of_bulk_operations_wait_for_those_of_others() {
    let mut world = World::with(RailPolicy::Adaptive, 2, FabricConfig { queue_depth: 1, ..plain() });
    (0..COUNT - 1).for_each(|number| world.submit(world.put(number), BULK, Priority::Bulk));
    let (before, _) = world.posts();
    world.submit(world.put(COUNT - 1), URGENT, Priority::Urgent);
    let mut posts = None;
    world.quiet(|world| {
        if posts.is_none() && world.has_arrived(COUNT - 1) {
            posts = Some(world.posts().0);
        }
    });
    let most = before + (LEN / PIECE) as u64 + 1 + 4;
    assert!(posts.is_some_and(|posts| posts <= most), "{posts:?} pieces, {most} at most");
    assert!((0..COUNT).all(|number| world.has_arrived(number)));
}

#[test]
fn there_is_room_for_urgent_operations_however_many_are_bulk() {
    let mut world = World::new(1, plain());
    let full = (0..4096).position(|_| {
        let put = world.put(0);
        // SAFETY: as in `World::submit`.
        unsafe { world.engines[0].submit_as(1, put, BULK, Priority::Bulk) }.is_err()
    });
    assert!(full.is_some_and(|count| count >= 1000), "{full:?}");
    assert!(world.engines[0].ready());
    let source = Source::Stable(world.at(0));
    world.submit(Command::Put { dest: WORD as u64 + 8, source, len: 8 }, URGENT, Priority::Urgent);
    world.quiet(|_| {});
}

#[test]
fn urgent_operations_that_are_segmented_are_refused_where_there_is_no_room() {
    let mut world = World::with(RailPolicy::Adaptive, 2, plain());
    let put = Command::Put { dest: 0, source: Source::Stable(world.at(0)), len: 3 * PIECE as u64 };
    let refusal = (0..8192).find_map(|_| {
        // SAFETY: as in `World::submit`.
        unsafe { world.engines[0].submit_as(1, put, BULK, Priority::Urgent) }.err()
    });
    assert!(matches!(refusal, Some(Error::Full { .. })), "{refusal:?}");
    world.quiet(|_| {});
    assert!(world.engines[0].take_error(BULK.issuer).is_none());
}
