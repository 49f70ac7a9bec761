//! What host threads rely on, over a fabric that refuses and delays.
#![allow(clippy::unwrap_used)]

use symrail_proxy::{Engine, Options};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::backend::{Choice, Nics};
use symrail_transport::endpoint::job::{Fetch, Job, Source};
use symrail_transport::endpoint::{Addresses, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, Mischief};
use symrail_transport::region::Segment;

use super::*;

/// Words of each PE's memory.
const WORDS: usize = 1024;
const PATIENCE: Duration = Duration::from_secs(30);

/// PE 0's wire, and PE 1, which only answers.
pub(super) struct World {
    wire: Wire,
    flow: Flow,
    _peer: Proxy,
    memory: Vec<u64>,
}

pub(super) fn world(mischief: Mischief) -> World {
    let fabric = Fabric::new(7, mischief);
    let policy = Policy::new(&Settings::default(), false);
    let endpoint = |role, pe: u32, name| Endpoint::new(role, pe, 2, vec![fabric.open(name).unwrap()], policy).unwrap();
    let (mut host, proxy) = (endpoint(Role::Host, 0, "host"), endpoint(Role::Proxy, 0, "proxy"));
    let mut engine = Engine::new(proxy, 0, 2);
    let mut peer = Engine::new(endpoint(Role::Proxy, 1, "peer"), 1, 2);
    let addresses = [
        Addresses { host: host.addresses(), proxy: engine.addresses() },
        Addresses { host: peer.addresses(), proxy: peer.addresses() },
    ];
    let mut memory = vec![0u64; 2 * WORDS];
    // SAFETY: the memory outlives what is given the segment, and nothing refers into it meanwhile.
    let segment = |base: *mut u64| unsafe { Segment::new(0, 0, base.cast(), 8 * WORDS as u64) };
    let base = memory.as_mut_ptr();
    // SAFETY: the memory is dropped after the endpoints.
    let cards = unsafe { [engine.register(segment(base)).unwrap(), peer.register(segment(base.add(WORDS))).unwrap()] };
    // SAFETY: as above.
    unsafe { host.register(segment(base)) }.unwrap();
    for endpoint in [&mut host, engine.endpoint(), peer.endpoint()] {
        for (pe, address) in (0..).zip(&addresses) {
            endpoint.connect(pe, address).unwrap();
        }
        endpoint.learn(0, &cards).unwrap();
    }
    let [proxy, peer] = [engine, peer].map(|engine| Proxy::start(engine, Options::default()).unwrap());
    // Contexts get no endpoints of their own here.
    let choice = Choice {
        nics: Nics::Ibverbs(Vec::new()),
        ib_mode: None,
        proxy_core: None,
        spare_core: false,
        reasons: Vec::new(),
    };
    let settings = Settings::default();
    let opener = Opener { choice, settings, policy, me: 0, n_pes: 2, peers: Vec::new(), segments: Vec::new() };
    let wire = Wire::new(host, opener, proxy, None);
    World { flow: Flow::first(&wire), wire, _peer: peer, memory }
}

impl World {
    pub(super) fn via(&self) -> Via<'_> {
        Via::new(&self.wire, &self.flow)
    }

    /// A word of PE 1's memory.
    fn there(&self, word: usize) -> u64 {
        // SAFETY: inside of the memory, which the fabric writes meanwhile.
        unsafe { self.memory.as_ptr().add(WORDS + word).read_volatile() }
    }
}

/// Nearly every post is refused at first.
fn refusing() -> Mischief {
    Mischief { delay: 200, again: 250, software: false, ..Mischief::default() }
}

/// Puts flags that are refused at first, and does something else until each has come.
fn flags_go_out_during(something: impl Fn(&World)) {
    let world = world(refusing());
    for value in 1..=50u8 {
        world.via().put_flag(1, 0, value).unwrap();
        let begun = Instant::now();
        while world.there(0) != u64::from(value) {
            assert!(begun.elapsed() < PATIENCE, "flag {value} stays where it is");
            something(&world);
        }
    }
    assert!(world.wire.host_counters()[0].delayed > 0, "nothing was ever left behind");
}

#[test]
fn a_flag_goes_out_although_its_thread_does_something_else() {
    flags_go_out_during(|_| std::thread::yield_now());
}

#[test]
fn a_flag_goes_out_although_its_thread_goes_on_posting() {
    flags_go_out_during(|world| {
        let value = 1u64;
        // SAFETY: the word is copied during the call.
        unsafe { world.via().put(0, 0, (&raw const value).cast(), 8) }.unwrap();
    });
}

#[test]
fn a_flag_goes_out_although_others_wait_for_something_else() {
    // As who waits on another context.
    flags_go_out_during(|world| {
        let turn = world.wire.driver.wait_turn();
        for _ in 0..100 {
            turn.poll();
            std::thread::yield_now();
        }
    });
}

#[test]
fn who_settles_leaves_nothing_behind() {
    for _ in 0..50 {
        let world = world(refusing());
        for word in 0..20 {
            world.via().put_flag(1, 8 * word, 1).unwrap();
        }
        world.wire.settle(&world.flow, PATIENCE);
        assert!(world.wire.outlets.all().all(|host| !host.lock().endpoint.is_active()));
        // What has left arrives, whatever becomes of this PE.
        let begun = Instant::now();
        while (0..20).any(|word| world.there(word) != 1) {
            assert!(begun.elapsed() < PATIENCE, "some have not left");
            std::thread::yield_now();
        }
    }
}

/// What travels takes its time, in order.
fn slow() -> Mischief {
    Mischief { delay: 245, again: 0, ..Mischief::default() }
}

#[test]
fn puts_of_any_size_that_a_quiet_has_completed_are_there() {
    // Seven blocks of so many words: in messages, or too large for that.
    for (again, len) in [(0, 16), (0, 136), (128, 16), (128, 136)] {
        let world = world(Mischief { again, ..slow() });
        for round in 1..=100u64 {
            let source = vec![round; len];
            let bytes = 8 * len as u64;
            for block in 0..7 {
                let job = Job::Put { dest: bytes * block, source: Source::Stable(source.as_ptr().cast()), len: bytes };
                // SAFETY: the source lives until the quiet.
                unsafe { world.via().nbi(1, job) }.unwrap();
            }
            world.via().quiet().unwrap();
            assert!((0..7 * len).all(|word| world.there(word) == round), "round {round}");
        }
        let lane = &world.wire.host_counters()[0];
        assert_eq!(lane.writes > 6 * 100, len > 16, "{lane:?}: what is too large for messages is to go as writes");
        assert!((100..200).contains(&lane.messages), "{lane:?}: one flush a quiet");
    }
}

#[test]
fn what_is_counted_is_there_and_takes_its_writes_alone() {
    const WORD: u64 = 8 * (WORDS as u64 - 1);
    // Blocks in one piece and in several, which arrive one after the other.
    let refusing = Mischief { software: true, ..refusing() };
    let at_once = Mischief { inject: 128, ..slow() };
    for (mischief, pieces, copied) in [
        (slow(), 1, false),
        (slow(), 1, true),
        (refusing, 1, false),
        (refusing, 1, true),
        (at_once, 1, true),
        (slow(), 4, false),
    ] {
        let world = world(Mischief { max_rma: 128 / pieces as usize, ..mischief });
        assert!(world.via().counts_in(WORD) && !world.via().counts_in(WORD + 4) && !world.via().counts_in(8 << 32));
        let mut source = [0u64; 8 * 16];
        for round in 1..=50u64 {
            source.fill(round);
            for block in 0..8u64 {
                let from = source[16 * block as usize..].as_ptr().cast();
                let from = if copied { Source::Copied(from) } else { Source::Stable(from) };
                // SAFETY: the source stays as it is until all have left.
                unsafe { world.via().put_counted(1, 128 * block, from, 128, WORD) }.unwrap();
            }
            if !copied {
                world.via().counted_have_left().unwrap();
            }
            source.fill(u64::MAX);
            let begun = Instant::now();
            let mut come = 0;
            while come < 8 {
                // They come in the order in which they were put.
                come = world.there(WORDS - 1) - 8 * (round - 1);
                let there = (0..16 * come as usize).all(|word| world.there(word) == round);
                assert!(there, "round {round}: not all of {come} are there");
                assert!(begun.elapsed() < PATIENCE, "round {round}: some do not come");
                world.via().wait_for_memory().drive();
            }
        }
        world.via().quiet().unwrap();
        let lane = &world.wire.host_counters()[0];
        assert_eq!((lane.writes, lane.messages), (50 * 8 * pieces, 0), "{lane:?}");
    }
}

#[test]
fn a_put_goes_at_once_and_those_right_behind_it_together() {
    const PUTS: u64 = 500;
    let world = world(slow());
    let put = |word: u64, value: u64| {
        // SAFETY: the bytes are copied during the call.
        unsafe { world.via().put(1, 8 * word, (&raw const value).cast(), 8) }.unwrap();
    };
    let gathered = || world.wire.outlets.first().host.lock().endpoint.has_gathered();
    for round in 1..=20 {
        // What was sent long ago does not matter.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1) {}
        put(0, round);
        assert!(!gathered(), "its reader waits");
        (1..PUTS).for_each(|word| put(word, round));
        world.via().fence();
        put(PUTS, round);
        assert!(!gathered(), "behind a fence it may be what a reader waits for");
        (PUTS + 1..2 * PUTS).for_each(|word| put(word, round));
        // Nobody polls for this thread but its proxy thread.
        let begun = Instant::now();
        while (0..2 * PUTS).any(|word| world.there(word as usize) != round) {
            assert!(begun.elapsed() < PATIENCE, "round {round}: some stay where they are");
            std::thread::yield_now();
        }
    }
    let lane = &world.wire.host_counters()[0];
    assert!(lane.messages < 20 * PUTS, "{lane:?}: many to a message");
}

#[test]
fn an_addition_goes_at_once_and_those_right_behind_it_together() {
    const ADDITIONS: u64 = 500;
    let world = world(slow());
    let job = Job::Amo { offset: 0, ty: AmoType::U64, op: AmoOp::Add, operand: 1, compare: 0, fetch: Fetch::No };
    // SAFETY: the job has no buffers.
    let add = || unsafe { world.via().nbi(1, job) }.unwrap();
    for round in 1..=20 {
        // What was sent long ago does not matter.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1) {}
        add();
        assert!(!world.wire.outlets.first().host.lock().endpoint.has_gathered(), "who waits for it waits");
        (1..ADDITIONS).for_each(|_| add());
        // Nobody polls for this thread but its proxy thread.
        let begun = Instant::now();
        while world.there(0) != round * ADDITIONS {
            assert!(begun.elapsed() < PATIENCE, "round {round}: some stay where they are");
            std::thread::yield_now();
        }
    }
    let lane = &world.wire.host_counters()[0];
    assert!(lane.requests >= 20 * ADDITIONS && lane.messages < 20 * ADDITIONS / 4, "{lane:?}: many to a message");
}

#[test]
fn a_quiet_of_one_thread_does_not_end_that_of_another() {
    let world = world(Mischief { delay: 245, again: 0, software: false, ..Mischief::default() });
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let world = &world;
            scope.spawn(move || {
                for round in 1..=400u64 {
                    let word = 16 * thread;
                    // SAFETY: the source lives until the quiet.
                    unsafe { world.via().put(1, 8 * word as u64, (&raw const round).cast(), 8) }.unwrap();
                    // Others have their quiet meanwhile.
                    std::thread::yield_now();
                    world.via().quiet().unwrap();
                    assert_eq!(world.there(word), round, "thread {thread}");
                }
            });
        }
    });
}
