//! Small operations of the engine travel together, over any number of lanes.
#![allow(clippy::unwrap_used)]

use symrail_proxy::channel::{Channel, Producer, Request, Width};
use symrail_proxy::engine::{Engine, HOST};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Owner, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, LaneCounters, Policy, Role};
use symrail_transport::env::RailPolicy;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;

const WORDS: usize = 64 << 10;
/// The third PE is idle in all tests but one.
const PES: usize = 3;

/// PEs whose memory was filled with the numbers of its words.
struct World {
    fabric: Fabric,
    engines: Vec<Engine>,
    memory: [Vec<u64>; PES],
    tags: u64,
    /// The counters of each PE's lanes when all operations had last ended.
    before: [Vec<(u64, u64)>; 2],
}

impl World {
    fn new(lanes: usize) -> World {
        World::over(lanes, FabricConfig::default())
    }

    fn over(lanes: usize, config: FabricConfig) -> World {
        let fabric = Fabric::new(1, FabricConfig { delay: 0, again: 0, queue_depth: 1024, ..config });
        let policy =
            Policy { rails: RailPolicy::RoundRobin, stripe_threshold: 1 << 20, native_amo: false, timeout_s: 60 };
        let mut memory = [(); PES].map(|()| (0..WORDS as u64).collect::<Vec<_>>());
        let mut engines: Vec<Engine> = (0..PES as u32)
            .map(|pe| {
                let rails = (0..lanes).map(|lane| fabric.open(&format!("{pe}rail{lane}")).unwrap()).collect();
                Engine::new(Endpoint::new(Role::Proxy, pe, PES as u32, rails, policy).unwrap())
            })
            .collect();
        let addresses: Vec<Addresses> =
            engines.iter().map(|e| Addresses { host: Vec::new(), proxy: e.addresses() }).collect();
        let mut connection_infos = Vec::new();
        for (engine, memory) in engines.iter_mut().zip(&mut memory) {
            // SAFETY: the memory is dropped after the engines.
            let segment = unsafe { Segment::new(0, 0, memory.as_mut_ptr().cast(), 8 * WORDS as u64) };
            // SAFETY: as above.
            connection_infos.push(unsafe { engine.register(segment) }.unwrap());
        }
        for engine in &mut engines {
            for (pe, addresses) in (0..).zip(&addresses) {
                engine.endpoint().connect(pe, addresses).unwrap();
            }
            engine.endpoint().learn(0, &connection_infos).unwrap();
        }
        let before = [(); 2].map(|()| vec![(0, 0); lanes]);
        let mut world = World { fabric, engines, memory, tags: 0, before };
        // After this the issuer is not expected to wait for any operation alone.
        for _ in 0..3 {
            (0..2).for_each(|at| world.put(at, 1));
            world.end();
        }
        world
    }

    fn submit(&mut self, command: Command) {
        self.tags += 1;
        // SAFETY: the memory stays unchanged, and no other code uses the destinations of gets.
        unsafe { self.engines[0].submit(1, command, Owner { issuer: HOST, tag: Some(self.tags) }) }.unwrap();
    }

    /// Put number `at` of so many words; the puts are contiguous.
    fn put(&mut self, at: usize, words: usize) {
        let source = Source::Stable(self.memory[0][at * words..].as_ptr().cast());
        self.submit(Command::Put { dest: (at * words * 8) as u64, source, len: 8 * words as u64 });
    }

    /// Ends all started operations; returns the work requests and messages of PE 0's and PE 1's lanes for them.
    fn end(&mut self) -> [Vec<(u64, u64)>; 2] {
        for _ in 0..10_000 {
            self.engines.iter_mut().for_each(|engine| _ = engine.poll());
            let ended = self.engines[0].host_finished();
            ended.iter().for_each(|finished| assert!(finished.result.is_ok(), "{finished:?}"));
            ended.clear();
            if self.engines[0].is_quiet(HOST) {
                break;
            }
        }
        assert!(self.engines[0].is_quiet(HOST));
        let mut now = self.engines.iter_mut().map(|engine| {
            let lanes = engine.endpoint().counters().iter();
            lanes.map(|c: &LaneCounters| (c.writes + c.reads, c.messages)).collect::<Vec<_>>()
        });
        let now = [now.next().unwrap(), now.next().unwrap()];
        let before = std::mem::replace(&mut self.before, now.clone());
        let change = |at: usize| now[at].iter().zip(&before[at]).map(|(a, b)| (a.0 - b.0, a.1 - b.1)).collect();
        [change(0), change(1)]
    }
}

/// The number of active lanes, and the work requests and messages of all lanes.
fn total(lanes: &[(u64, u64)]) -> (usize, u64, u64) {
    let used = lanes.iter().filter(|lane| lane.0 + lane.1 > 0).count();
    (used, lanes.iter().map(|lane| lane.0).sum(), lanes.iter().map(|lane| lane.1).sum())
}

#[test]
fn small_puts_are_few_messages_on_one_lane_and_acknowledged_together() {
    for lanes in [1, 2, 4] {
        let mut world = World::new(lanes);
        world.memory[1].fill(u64::MAX);
        (0..64).for_each(|at| world.put(at, 1));
        let [asked, answered] = world.end();
        let (used, writes, messages) = total(&asked);
        assert_eq!((used, writes), (1, 0), "{lanes} lanes");
        assert!(messages <= 2, "{lanes} lanes: {messages} messages");
        assert!(total(&answered).2 <= 2, "{lanes} lanes: {answered:?} are the answers");
        assert_eq!(world.memory[1][..64], world.memory[0][..64]);
    }
}

#[test]
fn requests_that_join_an_operation_end_with_it() {
    for lanes in [1, 2] {
        let mut world = World::new(lanes);
        world.memory[1].fill(u64::MAX);
        let owner = Owner { issuer: HOST, tag: Some(1 << 32) };
        let put = |world: &World, at: usize| {
            let source = Source::Stable(world.memory[0][at..].as_ptr().cast());
            Command::Put { dest: 8 * at as u64, source, len: 8 }
        };
        let first = put(&world, 0);
        // SAFETY: the memory stays unchanged; likewise below.
        let op = unsafe { world.engines[0].submit(1, first, owner) }.unwrap();
        let join = |world: &mut World, pe, command| {
            // SAFETY: as above.
            unsafe { world.engines[0].endpoint().join(op, pe, &command, owner) }.map_err(|error| error.to_string())
        };
        for at in 1..64 {
            let command = put(&world, at);
            assert_eq!(join(&mut world, 1, command), Ok(true), "put {at}");
        }
        let (ty, amo, fetch) = (AmoType::U64, AmoOp::Add, Fetch::No);
        let add = Command::Amo { offset: 8 * 64, ty, op: amo, operand: 3, compare: 0, fetch };
        assert_eq!(join(&mut world, 1, add), Ok(true));
        let mut word = 0u64;
        let command = put(&world, 70);
        assert_eq!(join(&mut world, 0, command), Ok(false), "another PE");
        assert_eq!(join(&mut world, 1, Command::Get { source: 0, dest: (&raw mut word).cast(), len: 8 }), Ok(false));
        let (source, len) = (Source::Stable(std::ptr::null()), 1 << 16);
        assert_eq!(join(&mut world, 1, Command::Put { dest: 0, source, len }), Ok(false), "too large for a request");
        assert!(join(&mut world, 1, Command::Put { dest: 8 * WORDS as u64, source, len: 8 }).is_err(), "outside");
        let mut ended = Vec::new();
        for _ in 0..10_000 {
            world.engines.iter_mut().for_each(|engine| _ = engine.poll());
            ended.append(world.engines[0].host_finished());
            if !ended.is_empty() {
                break;
            }
            assert!(!world.engines[0].is_quiet(HOST));
        }
        assert_eq!(ended.iter().map(|end| (end.tag, end.result.is_ok())).collect::<Vec<_>>(), [(1 << 32, true)]);
        assert_eq!(world.memory[1][..64], world.memory[0][..64], "all of it has been delivered");
        assert_eq!(world.memory[1][64], 2, "3 more than all bits");
        let (used, writes, messages) = total(&world.end()[0]);
        assert_eq!((used, writes), (1, 0));
        assert!(messages <= 2, "{messages} messages");
        let command = put(&world, 70);
        assert_eq!(join(&mut world, 1, command), Ok(false), "it has ended");
    }
}

/// A device's requests of one round are one operation, but each is checked separately.
#[test]
fn one_bad_request_among_many_of_a_device_is_one_error() {
    let mut world = World::new(2);
    world.memory[1].fill(u64::MAX);
    let (device, consumer) = Channel::new(128, 4).unwrap();
    world.engines[0].add_channel(consumer);
    let p = |offset: u64, value: u64| Request::P { pe: 1, offset, width: Width::W8, value };
    for round in 0..3u64 {
        let requests = (0..64).map(|at| match at {
            20 => p(8 * WORDS as u64, 0),
            30 => Request::Fence,
            40 => Request::Nop,
            _ => p(8 * at, 1000 * round + at),
        });
        let last = requests.map(|request| device.try_push(&request).unwrap()).fold(0, u64::max);
        assert_eq!(last, 64 * round + 63);
        for _ in 0..10_000 {
            world.engines.iter_mut().for_each(|engine| _ = engine.poll());
            if device.completed() > last {
                break;
            }
        }
        assert_eq!((device.completed(), device.errors()), (last + 1, round + 1));
        let values = (0..64).map(|at| if [20, 30, 40].contains(&at) { u64::MAX } else { 1000 * round + at });
        assert_eq!(world.memory[1][..64], values.collect::<Vec<_>>());
    }
}

/// Pushes requests, polls all PEs until all have ended, and returns the number of polls.
fn push_all(world: &mut World, device: &Producer, requests: impl Iterator<Item = Request>) -> usize {
    let end = requests.map(|request| device.try_push(&request).unwrap()).fold(0, u64::max) + 1;
    let polls = (0..10_000).take_while(|_| {
        world.engines.iter_mut().for_each(|engine| _ = engine.poll());
        device.completed() < end
    });
    let polls = polls.count();
    assert_eq!((device.completed(), device.errors()), (end, 0));
    polls
}

#[test]
fn what_a_device_streams_fills_messages_and_asks_for_few_acknowledgements() {
    for lanes in [1, 2] {
        let mut world = World::new(lanes);
        let (device, consumer) = Channel::new(2048, 4).unwrap();
        world.engines[0].add_channel(consumer);
        let add = Request::Amo { pe: 1, offset: 0, ty: AmoType::U64, op: AmoOp::Add, operand: 1, compare: 0 };
        push_all(&mut world, &device, std::iter::repeat_n(add, 1536));
        let [asked, answered] = world.end();
        assert_eq!(world.memory[1][0], 1536);
        // A message has room for 85. A round takes 128, so each round would end with a message that has room.
        assert!(total(&asked).2 <= 22, "{lanes} lanes: {asked:?}");
        assert!(total(&answered).2 <= 5, "{lanes} lanes: {answered:?}");
    }
}

#[test]
fn a_device_that_has_nothing_more_soon_learns_of_what_was_sent_without_asking() {
    let mut world = World::new(1);
    let (device, consumer) = Channel::new(128, 4).unwrap();
    world.engines[0].add_channel(consumer);
    let ps = (0..64).map(|at| Request::P { pe: 1, offset: 8 * at, width: Width::W8, value: 1000 + at });
    let polls = push_all(&mut world, &device, ps.chain([Request::Nop]));
    assert!(world.memory[1][..64].iter().zip(1000..).all(|(&word, value)| word == value));
    // The target would acknowledge them after 64 idle rounds.
    assert!(polls < 16, "{polls} polls");
}

#[test]
fn a_device_that_goes_on_learns_of_what_went_elsewhere() {
    let mut world = World::new(1);
    let [(one, first), (other, second)] = [(); 2].map(|()| Channel::new(2048, 4).unwrap());
    [first, second].into_iter().for_each(|consumer| world.engines[0].add_channel(consumer));
    let p = |pe, value| Request::P { pe, offset: 0, width: Width::W8, value };
    // The issuer is expected to wait for the first one alone.
    [2, 2, 1].into_iter().for_each(|pe| _ = one.try_push(&p(pe, 7)).unwrap());
    let polls = (0..200).take_while(|&value| {
        while other.try_push(&p(1, value)).is_ok() {}
        world.engines.iter_mut().for_each(|engine| _ = engine.poll());
        one.completed() < 3
    });
    let polls = polls.count();
    assert_eq!(world.memory[2][0], 7);
    // PE 2 would acknowledge it after 64 idle rounds.
    assert!(polls < 16, "{polls} polls");
}

#[test]
fn an_answer_does_not_wait_for_what_others_stream() {
    let mut world = World::new(1);
    let (device, consumer) = Channel::new(2048, 4).unwrap();
    world.engines[0].add_channel(consumer);
    let mut answer = device.reply_slot().unwrap();
    let p = Request::P { pe: 1, offset: 8, width: Width::W8, value: 7 };
    let (ty, op, reply) = (AmoType::U64, AmoOp::Add, answer.begin().unwrap());
    device.try_push(&Request::FetchAmo { pe: 1, offset: 0, ty, op, operand: 1, compare: 0, reply }).unwrap();
    (0..1024).for_each(|_| _ = device.try_push(&p).unwrap());
    world.engines.iter_mut().for_each(|engine| _ = engine.poll());
    world.engines.iter_mut().for_each(|engine| _ = engine.poll());
    assert!(answer.poll().is_some(), "after one round there and back");
}

#[test]
fn acknowledgements_that_can_wait_are_sent_every_second() {
    for lanes in [1, 2] {
        let mut world = World::new(lanes);
        // The PE for which a quiet still waits after an addition without a request for its acknowledgement.
        let add = |world: &mut World| {
            let (ty, op, fetch) = (AmoType::U64, AmoOp::Add, Fetch::No);
            let command = Command::Amo { offset: 0, ty, op, operand: 1, compare: 0, fetch };
            // SAFETY: it fetches nothing.
            unsafe { world.engines[0].submit(1, command, Owner { issuer: HOST, tag: None }) }.unwrap();
            (0..20).for_each(|_| world.engines.iter_mut().for_each(|engine| _ = engine.poll()));
            world.engines[0].endpoint().waits_for(HOST)
        };
        assert_eq!(add(&mut world), None, "{lanes} lanes: the first is expected to be waited for");
        assert_eq!(add(&mut world), Some(1), "{lanes} lanes: a target that has much to do lets others wait");
        world.engines[1].tick(1);
        world.engines.iter_mut().for_each(|engine| _ = engine.poll());
        assert_eq!(world.engines[0].endpoint().waits_for(HOST), None, "{lanes} lanes");
    }
}

#[test]
fn a_record_tells_how_many_requests_a_message_has() {
    let mut world = World::new(1);
    world.engines[0].endpoint().record();
    (0..64).for_each(|at| world.put(at, 1));
    let [asked, _] = world.end();
    let records = world.engines[0].endpoint().take_records();
    assert_eq!(records.len() as u64, total(&asked).2, "{records:?}");
    assert_eq!(records.iter().map(|record| record.requests).sum::<u32>(), 64, "{records:?}");
}

#[test]
fn a_lane_that_has_much_to_do_leaves_the_next_puts_to_others() {
    for (words, posts) in [(128, 128 / 3), (512, 128 / 4)] {
        let mut world = World::new(2);
        world.memory[1].fill(u64::MAX);
        (0..128).for_each(|at| world.put(at, words));
        let [asked, _] = world.end();
        let (used, writes, messages) = total(&asked);
        assert_eq!(used, 2, "blocks of {words} words");
        // A work request of several puts counts as several writes. A message has three blocks.
        if words == 128 {
            assert!(writes == 0 && messages <= posts + 4, "{messages} messages");
        } else {
            assert_eq!((writes, messages), (128, 0));
        }
        assert_eq!(world.memory[1][..128 * words], world.memory[0][..128 * words]);
    }
}

#[test]
fn words_are_fetched_and_answered_many_at_a_time() {
    for lanes in [1, 3] {
        let mut world = World::new(lanes);
        let mut fetched = vec![0u64; 64];
        for (at, to) in fetched.iter_mut().enumerate() {
            world.submit(Command::Get { source: 8 * (100 + at as u64), dest: (&raw mut *to).cast(), len: 8 });
        }
        let [asked, answered] = world.end();
        assert!(total(&asked).2 <= 2 && total(&asked).1 == 0, "{lanes} lanes: {asked:?}");
        assert!(total(&answered).2 <= 3, "{lanes} lanes: {answered:?}");
        assert!(fetched.iter().zip(100..).all(|(&word, value)| word == value), "{fetched:?}");
        let (ty, op, fetch) = (AmoType::U64, AmoOp::Add, Fetch::Returned);
        (0..64).for_each(|_| world.submit(Command::Amo { offset: 0, ty, op, operand: 1, compare: 0, fetch }));
        let [asked, answered] = world.end();
        assert!(total(&asked).2 <= 2 && total(&answered).2 <= 3, "{lanes} lanes: {asked:?}, {answered:?}");
        assert_eq!(world.memory[1][0], 64);
    }
}

#[test]
fn blocks_are_fetched_and_answered_many_at_a_time() {
    // For blocks of so many bytes: the maximum number in an answer, and whether a read fetches them.
    for (bytes, to_answer, read) in [(3, 64, false), (40, 64, false), (200, 17, false), (512, 7, false), (520, 4, true)]
    {
        for lanes in [1, 2] {
            let mut world = World::new(lanes);
            let mut fetched = vec![0u8; 64 * bytes];
            for (at, to) in fetched.chunks_mut(bytes).enumerate() {
                world.submit(Command::Get {
                    source: 801 + (at * bytes) as u64,
                    dest: to.as_mut_ptr(),
                    len: bytes as u64,
                });
            }
            let [asked, answered] = world.end();
            let (_, reads, messages) = total(&asked);
            assert_eq!(reads, if read { 64 } else { 0 }, "{bytes} bytes");
            assert!(messages <= if read { 0 } else { 2 }, "{bytes} bytes: {messages} messages");
            let answers = total(&answered).2;
            assert!(read || answers <= 64_u64.div_ceil(to_answer) + 2, "{bytes} bytes: {answers} answers");
            let there: Vec<u8> = world.memory[1].iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert!(fetched == there[801..801 + fetched.len()], "{bytes} bytes");
        }
    }
}

/// Where NICs move the bytes, work requests are not merged, but posted with one doorbell.
#[test]
fn one_doorbell_does_for_what_is_posted_before_a_poll() {
    let mut world =
        World::over(1, FabricConfig { software: false, pieces: 1, polls_post: true, ..FabricConfig::default() });
    world.memory[1].fill(u64::MAX);
    let mut fetched = [0u64; 64];
    let before = world.fabric.doorbells();
    for (at, to) in fetched.iter_mut().enumerate() {
        world.put(at, 1);
        world.submit(Command::Get { source: 8 * (100 + at as u64), dest: (&raw mut *to).cast(), len: 8 });
    }
    let [asked, _] = world.end();
    assert_eq!((total(&asked), world.fabric.doorbells() - before), ((1, 128, 0), 1));
    assert_eq!(world.memory[1][..64], world.memory[0][..64]);
    assert!(fetched.iter().all(|&word| word == u64::MAX));
}

/// An operation that a caller waits for before it starts another need not be coalesced.
#[test]
fn what_is_waited_for_alone_is_a_write_of_its_own() {
    let mut world = World::new(2);
    for _ in 0..4 {
        world.put(0, 1);
        world.end();
    }
    world.put(0, 1);
    let [asked, answered] = world.end();
    assert_eq!((total(&asked).1, total(&asked).2, total(&answered).2), (1, 0, 0));
}
