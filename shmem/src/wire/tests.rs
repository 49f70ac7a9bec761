//! Guarantees for host threads, over a fabric that refuses and delays posts.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use symrail_proxy::{Engine, Options};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::backend::{Choice, Nics};
use symrail_transport::endpoint::command::{Command, Fetch, Priority, Source};
use symrail_transport::endpoint::{Addresses, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::proxy_threads::{Share, Threads};
use symrail_transport::region::Segment;

use super::*;

/// Words of each PE's memory.
const WORDS: usize = 1024;
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// PE 0's wire, and PE 1, which only answers.
pub(super) struct World {
    wire: Wire,
    context: ContextState,
    _peers: Vec<Proxy>,
    memory: Vec<u64>,
}

pub(super) fn world(config: FabricConfig) -> World {
    world_of(config, 1, 1, WORDS)
}

/// A world with `threads` proxy threads, `rails` rails, and `words` words of each PE's memory.
fn world_of(config: FabricConfig, threads: usize, rails: usize, words: usize) -> World {
    world_with(&Settings::default(), config, (threads, rails, words))
}

/// A world whose PE 1 answers nobody, and which gives up operations after a second.
pub(super) fn deaf_world() -> World {
    let mut settings = Settings::default();
    settings.timeout_s = 1;
    let mut world = world_with(&settings, FabricConfig::default(), (1, 1, WORDS));
    world._peers.clear();
    world
}

fn world_with(settings: &Settings, config: FabricConfig, (threads, rails, words): (usize, usize, usize)) -> World {
    let fabric = Fabric::new(7, config);
    let policy = Policy::new(settings, false);
    let endpoint = |role, pe: u32, thread| {
        let share = Share::of(thread, threads, rails);
        let open = |rail: &usize| fabric.open(&format!("PE {pe} {role:?} {thread} rail {rail}")).unwrap();
        let mut endpoint = Endpoint::new(role, pe, 2, share.rails.iter().map(open).collect(), policy).unwrap();
        if share.spare {
            endpoint.keep_others_spare();
        }
        endpoint
    };
    let mut memory = vec![0u64; 2 * words];
    // SAFETY: the memory outlives the users of the segment, and no references into it exist meanwhile.
    let segment = |base: *mut u64| unsafe { Segment::new(0, 0, base.cast(), 8 * words as u64) };
    let base = memory.as_mut_ptr();
    let bases = [base, base.wrapping_add(words)];
    let mut host = endpoint(Role::Host, 0, 0);
    // SAFETY: the memory is dropped after the endpoints.
    unsafe { host.register(segment(bases[0])) }.unwrap();
    let (mut proxies, mut peers) = (Vec::new(), Vec::new());
    for thread in 0..threads {
        let mut engines = [0, 1].map(|pe| Engine::new(endpoint(Role::Proxy, pe, thread)));
        // SAFETY: as above.
        let connection_info = |(engine, base): (&mut Engine, _)| unsafe { engine.register(segment(base)) }.unwrap();
        let connection_infos: Vec<_> = engines.iter_mut().zip(bases).map(connection_info).collect();
        let host_addresses = if thread == 0 { host.addresses() } else { Vec::new() };
        let addresses = engines.each_ref().map(|engine| engine.addresses());
        let mut endpoints: Vec<_> = engines.iter_mut().map(Engine::endpoint).collect();
        if thread == 0 {
            endpoints.push(&mut host);
        }
        for endpoint in endpoints {
            for (pe, proxy) in (0..).zip(&addresses) {
                let host = if pe == 0 { host_addresses.clone() } else { Vec::new() };
                endpoint.connect(pe, &Addresses { host, proxy: proxy.clone() }).unwrap();
            }
            endpoint.learn(0, &connection_infos).unwrap();
        }
        let [proxy, peer] = engines.map(|engine| Proxy::start(engine, Options::default()).unwrap());
        proxies.push(proxy);
        peers.push(peer);
    }
    // Contexts get no endpoints of their own here.
    let choice = Choice {
        nics: Nics::Ibverbs(Vec::new()),
        ib_mode: None,
        threads: Threads::choose(&Settings::default(), rails, 1, false),
        proxy_cores: Vec::new(),
        cores_each: 1,
        reasons: Vec::new(),
        left_out: None,
        unknown: None,
    };
    let settings = Settings::default();
    let directory = Arc::new(Directory::new(&[], threads, segment(bases[0])));
    let opener = EndpointOpener { choice, settings, policy, me: 0, n_pes: 2, directory, segments: Vec::new() };
    let wire = Wire::new(host, opener, proxies, None);
    World { context: ContextState::first(&wire), wire, _peers: peers, memory }
}

impl World {
    pub(super) fn on_wire(&self) -> WireContext<'_> {
        WireContext::new(&self.wire, &self.context)
    }

    /// A word of PE 1's memory.
    fn there(&self, word: usize) -> u64 {
        // SAFETY: inside the memory, which the fabric writes meanwhile.
        unsafe { self.memory.as_ptr().add(self.memory.len() / 2 + word).read_volatile() }
    }
}

/// A fabric that at first refuses nearly every post.
fn refusing() -> FabricConfig {
    FabricConfig { delay: 200, again: 250, software: false, ..FabricConfig::default() }
}

/// Puts flags that the fabric refuses at first, and does other work until each has arrived.
fn flags_go_out_during(something: impl Fn(&World)) {
    let world = world(refusing());
    for value in 1..=50u8 {
        world.on_wire().put_flag(1, 0, value).unwrap();
        let begun = Instant::now();
        while world.there(0) != u64::from(value) {
            assert!(begun.elapsed() < TIME_LIMIT, "flag {value} stays where it is");
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
        unsafe { world.on_wire().put(0, 0, (&raw const value).cast(), 8) }.unwrap();
    });
}

#[test]
fn a_flag_goes_out_although_others_wait_for_something_else() {
    // A wait on another context.
    flags_go_out_during(|world| {
        let turn = world.wire.driver().wait_turn();
        for _ in 0..100 {
            turn.poll();
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_drained_wire_has_no_work_left() {
    for _ in 0..50 {
        let world = world(refusing());
        for word in 0..20 {
            world.on_wire().put_flag(1, 8 * word, 1).unwrap();
        }
        world.wire.drain(&world.context, TIME_LIMIT);
        assert!(world.wire.host_endpoints.all().all(|host| !host.lock().endpoint.is_active()));
        // Messages that were sent arrive, whatever becomes of this PE.
        let begun = Instant::now();
        while (0..20).any(|word| world.there(word) != 1) {
            assert!(begun.elapsed() < TIME_LIMIT, "some have not left");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_drained_wire_has_delivered_large_operations_of_contexts() {
    const MEBIBYTE: usize = 1 << 20;
    let world = world_of(slow(), 1, 1, MEBIBYTE / 8);
    let source = vec![7u64; MEBIBYTE / 8];
    world.context.set_priority(Priority::Bulk);
    let put = Command::Put { dest: 0, source: Source::Stable(source.as_ptr().cast()), len: MEBIBYTE as u64 };
    // SAFETY: the source lives until the wire is drained.
    unsafe { world.on_wire().nbi(1, put) }.unwrap();
    world.wire.drain(&world.context, TIME_LIMIT);
    assert_eq!(world.there(MEBIBYTE / 8 - 1), 7);
}

#[test]
fn large_operations_of_a_bulk_context_travel_in_pieces_of_the_engine() {
    const MEBIBYTE: u64 = 1 << 20;
    let world = world_of(FabricConfig::default(), 1, 1, MEBIBYTE as usize / 8);
    let source = vec![7u64; MEBIBYTE as usize / 8];
    let put = |len| Command::Put { dest: 0, source: Source::Stable(source.as_ptr().cast()), len };
    for (priority, pieces, whole) in [(Priority::Urgent, 0, 1), (Priority::Bulk, 16, 0)] {
        world.context.set_priority(priority);
        let before = [world.wire.counters()[0].writes, world.wire.host_counters()[0].writes];
        // SAFETY: the source lives until the quiet.
        unsafe { world.on_wire().nbi(1, put(MEBIBYTE)) }.unwrap();
        world.on_wire().quiet().unwrap();
        let after = [world.wire.counters()[0].writes, world.wire.host_counters()[0].writes];
        assert_eq!([after[0] - before[0], after[1] - before[1]], [pieces, whole], "{priority:?}");
        assert_eq!(world.there(MEBIBYTE as usize / 8 - 1), 7);
    }
    assert!(matches!(world.on_wire().path_of(&put(4096)), context::Path::Host), "small ones are urgent");
}

/// A fabric on which messages take time, and arrive in order.
fn slow() -> FabricConfig {
    FabricConfig { delay: 245, again: 0, ..FabricConfig::default() }
}

#[test]
fn puts_of_any_size_that_a_quiet_has_completed_are_there() {
    // Seven blocks of `len` words: inline in messages, or too large for that.
    for (again, len) in [(0, 16), (0, 136), (128, 16), (128, 136)] {
        let world = world(FabricConfig { again, ..slow() });
        for round in 1..=100u64 {
            let source = vec![round; len];
            let bytes = 8 * len as u64;
            for block in 0..7 {
                let command =
                    Command::Put { dest: bytes * block, source: Source::Stable(source.as_ptr().cast()), len: bytes };
                // SAFETY: the source lives until the quiet.
                unsafe { world.on_wire().nbi(1, command) }.unwrap();
            }
            world.on_wire().quiet().unwrap();
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
    // Blocks in one message and in several, which arrive one after the other.
    let refusing = FabricConfig { software: true, ..refusing() };
    let at_once = FabricConfig { inject: 128, ..slow() };
    for (config, pieces, copied) in [
        (slow(), 1, false),
        (slow(), 1, true),
        (refusing, 1, false),
        (refusing, 1, true),
        (at_once, 1, true),
        (slow(), 4, false),
    ] {
        let world = world(FabricConfig { max_rma: 128 / pieces as usize, ..config });
        assert!(
            world.on_wire().counts_in(WORD)
                && !world.on_wire().counts_in(WORD + 4)
                && !world.on_wire().counts_in(8 << 32)
        );
        let mut source = [0u64; 8 * 16];
        for round in 1..=50u64 {
            source.fill(round);
            for block in 0..8u64 {
                let from = source[16 * block as usize..].as_ptr().cast();
                let from = if copied { Source::Copied(from) } else { Source::Stable(from) };
                // SAFETY: the source stays unchanged until all have been sent.
                unsafe { world.on_wire().put_counted(1, 128 * block, from, 128, WORD) }.unwrap();
            }
            if !copied {
                world.on_wire().counted_have_left().unwrap();
            }
            source.fill(u64::MAX);
            let begun = Instant::now();
            let mut come = 0;
            while come < 8 {
                // The blocks arrive in the order in which they were put.
                come = world.there(WORDS - 1) - 8 * (round - 1);
                let there = (0..16 * come as usize).all(|word| world.there(word) == round);
                assert!(there, "round {round}: not all of {come} are there");
                assert!(begun.elapsed() < TIME_LIMIT, "round {round}: some do not arrive");
                world.on_wire().wait_for_memory().drive();
            }
        }
        world.on_wire().quiet().unwrap();
        let lane = &world.wire.host_counters()[0];
        assert_eq!((lane.writes, lane.messages), (50 * 8 * pieces, 0), "{lane:?}");
    }
}

#[test]
fn arrivals_are_counted_over_rails_that_cannot_count_too() {
    const WORD: u64 = 8 * (WORDS as u64 - 1);
    let by_nics = FabricConfig { software: false, ..slow() };
    for (config, rails, counted) in [(slow(), 1, true), (slow(), 2, false), (by_nics, 1, false)] {
        let world = world_of(config, 1, rails, WORDS);
        let mut source = [0u64; 16];
        for round in 1..=20u64 {
            source.fill(round);
            // SAFETY: the source stays as it is until it has arrived.
            let sent = unsafe { world.on_wire().put_and_count(1, 0, source.as_ptr().cast(), 128, WORD) }.unwrap();
            let begun = Instant::now();
            while world.there(WORDS - 1) < round {
                assert!(begun.elapsed() < TIME_LIMIT, "round {round}: it does not arrive");
                world.on_wire().wait_for_memory().drive();
            }
            assert!((0..16).all(|word| world.there(word) == round), "round {round}: not all is there");
            assert_eq!(world.there(WORDS - 1), round);
            match &sent {
                Sent::Counted => world.on_wire().counted_have_left().unwrap(),
                Sent::Tracked(tracked) => world.on_wire().abandon(tracked),
            }
            assert_eq!(matches!(sent, Sent::Counted), counted);
        }
        world.on_wire().quiet().unwrap();
        let messages: u64 = world.wire.host_counters().iter().map(|lane| lane.messages).sum();
        assert_eq!(messages == 0, counted, "{rails} rails: {messages} messages");
    }
}

#[test]
fn a_put_goes_at_once_and_those_right_behind_it_together() {
    const PUTS: u64 = 500;
    let world = world(slow());
    let put = |word: u64, value: u64| {
        // SAFETY: the bytes are copied during the call.
        unsafe { world.on_wire().put(1, 8 * word, (&raw const value).cast(), 8) }.unwrap();
    };
    let gathered = || world.wire.host_endpoints.first().host.lock().endpoint.has_gathered();
    for round in 1..=20 {
        // The time of the last send does not matter.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1) {}
        put(0, round);
        assert!(!gathered(), "its reader waits");
        (1..PUTS).for_each(|word| put(word, round));
        world.on_wire().fence();
        put(PUTS, round);
        assert!(!gathered(), "behind a fence it may be what a reader waits for");
        (PUTS + 1..2 * PUTS).for_each(|word| put(word, round));
        // Only the proxy thread polls for this thread.
        let begun = Instant::now();
        while (0..2 * PUTS).any(|word| world.there(word as usize) != round) {
            assert!(begun.elapsed() < TIME_LIMIT, "round {round}: some stay where they are");
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
    let command =
        Command::Amo { offset: 0, ty: AmoType::U64, op: AmoOp::Add, operand: 1, compare: 0, fetch: Fetch::No };
    // SAFETY: the command has no buffers.
    let add = || unsafe { world.on_wire().nbi(1, command) }.unwrap();
    for round in 1..=20 {
        // The time of the last send does not matter.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1) {}
        add();
        assert!(!world.wire.host_endpoints.first().host.lock().endpoint.has_gathered(), "who waits for it waits");
        (1..ADDITIONS).for_each(|_| add());
        // Only the proxy thread polls for this thread.
        let begun = Instant::now();
        while world.there(0) != round * ADDITIONS {
            assert!(begun.elapsed() < TIME_LIMIT, "round {round}: some stay where they are");
            std::thread::yield_now();
        }
    }
    let lane = &world.wire.host_counters()[0];
    assert!(lane.requests >= 20 * ADDITIONS && lane.messages < 20 * ADDITIONS / 4, "{lane:?}: many to a message");
}

#[test]
fn a_quiet_of_one_thread_does_not_end_that_of_another() {
    let world = world(FabricConfig { delay: 245, again: 0, software: false, ..FabricConfig::default() });
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let world = &world;
            scope.spawn(move || {
                for round in 1..=400u64 {
                    let word = 16 * thread;
                    // SAFETY: the source lives until the quiet.
                    unsafe { world.on_wire().put(1, 8 * word as u64, (&raw const round).cast(), 8) }.unwrap();
                    // Other threads run their quiets meanwhile.
                    std::thread::yield_now();
                    world.on_wire().quiet().unwrap();
                    assert_eq!(world.there(word), round, "thread {thread}");
                }
            });
        }
    });
}

/// Words of a block large enough for a proxy thread.
const BLOCK: usize = MANY_RAILS_FROM as usize / 8;

/// Starts to put a block; its source must stay valid until a quiet.
fn put_block(world: &World, block: usize, source: &[u64]) {
    let dest = (8 * BLOCK * block) as u64;
    let command = Command::Put { dest, source: Source::Stable(source.as_ptr().cast()), len: 8 * BLOCK as u64 };
    // SAFETY: the caller keeps the source until a quiet.
    unsafe { world.on_wire().nbi(1, command) }.unwrap();
}

#[test]
fn large_puts_take_proxy_threads_in_turn_and_a_quiet_completes_all() {
    for (threads, rails) in [(2, 2), (2, 4), (3, 4)] {
        let world = world_of(slow(), threads, rails, 4 * BLOCK);
        for round in 1..=10u64 {
            let source = vec![round; BLOCK];
            (0..4).for_each(|block| put_block(&world, block, &source));
            world.on_wire().quiet().unwrap();
            assert!((0..4 * BLOCK).all(|word| world.there(word) == round), "round {round}");
        }
        assert_eq!(world.wire.rails().len(), rails);
        for (thread, driver) in world.wire.drivers().iter().enumerate() {
            let mut engine = driver.engine();
            let endpoint = engine.endpoint();
            let (own, spare) = endpoint.counters().split_at(endpoint.lanes_in_use());
            let writes = |lanes: &[LaneCounters]| lanes.iter().map(|lane| lane.writes).sum::<u64>();
            assert!(writes(own) >= 10, "{threads} threads, {rails} rails: thread {thread} made {own:?}");
            assert_eq!(writes(spare), 0, "{threads} threads, {rails} rails: thread {thread} used its spare");
        }
    }
}

#[test]
fn the_proxy_thread_leaves_the_engine_to_a_thread_that_starts_operations() {
    const BURST: usize = 512;
    let world = world_of(FabricConfig { again: 0, ..FabricConfig::default() }, 1, 2, BLOCK);
    let source = vec![1; BLOCK];
    let rounds = || world.wire.drivers()[0].engine().rounds();
    let (mut polls, mut naps) = (0, 0);
    for _ in 0..50 {
        let (begun, before) = (Instant::now(), rounds());
        (0..BURST).for_each(|_| put_block(&world, 0, &source));
        // Between two of its polls the thread sleeps for at least 100 us.
        polls += rounds() - before;
        naps += begun.elapsed().as_micros() as u64 / 100 + 2;
        world.on_wire().quiet().unwrap();
    }
    assert!(polls <= naps, "{polls} polls of the proxy thread where there is time for {naps}");
}

#[test]
fn nothing_passes_a_fence_whichever_proxy_thread_has_it() {
    const FLAG: usize = 3 * BLOCK;
    let world = world_of(slow(), 2, 2, FLAG + 1);
    for round in 1..=30u64 {
        let source = vec![round; BLOCK];
        (0..2).for_each(|block| put_block(&world, block, &source));
        world.on_wire().fence();
        // The next operation is a proxy thread's in even rounds, and the host endpoint's in odd ones.
        let by_host = round % 2 == 1;
        if by_host {
            // SAFETY: the word is copied during the call.
            unsafe { world.on_wire().put(1, 8 * FLAG as u64, (&raw const round).cast(), 8) }.unwrap();
        } else {
            put_block(&world, 2, &source);
        }
        let begun = Instant::now();
        while world.there(if by_host { FLAG } else { FLAG - 1 }) != round {
            assert!(begun.elapsed() < TIME_LIMIT, "round {round}");
            std::thread::yield_now();
        }
        assert!((0..2 * BLOCK).all(|word| world.there(word) == round), "round {round}: a fence was passed");
        world.on_wire().quiet().unwrap();
    }
}

#[test]
fn waits_end_when_they_are_told_to_and_what_they_waited_for_goes_on() {
    let world = world(FabricConfig::default());
    let on_wire = world.on_wire();
    let (over, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (is_over, count) = (Arc::clone(&over), Arc::clone(&asked));
    let _ = world.wire.interrupt.set(Arc::new(move || {
        // The third call of each wait ends it, if any does.
        let third = count.fetch_add(1, Ordering::Relaxed) % 3 == 2;
        (!(third && is_over.load(Ordering::Relaxed))).then_some(Duration::ZERO)
    }));
    let add = |fetch| Command::Amo { offset: 0, ty: AmoType::U64, op: AmoOp::Add, operand: 1, compare: 0, fetch };
    {
        // PE 1 answers nothing meanwhile.
        let _peer = world._peers[0].driver().engine();
        // SAFETY (all): the commands have no buffers.
        let waits: [&dyn Fn() -> crate::error::Result<()>; 3] = [
            // SAFETY: see above.
            &|| unsafe { on_wire.blocking(1, add(Fetch::Returned)) }.map(drop),
            &|| {
                // SAFETY: see above.
                unsafe { on_wire.nbi(1, add(Fetch::No)) }.unwrap();
                on_wire.quiet()
            },
            &|| on_wire.probe(1),
        ];
        for (wait, number) in waits.into_iter().zip(1..) {
            let error = wait().unwrap_err();
            assert!(matches!(error, crate::error::Error::Interrupted { waiting: 0, .. }), "{error}");
            assert_eq!(asked.load(Ordering::Relaxed), 3 * number);
        }
    }
    over.store(false, Ordering::Relaxed);
    on_wire.quiet().unwrap();
    // SAFETY: see above.
    assert_eq!(unsafe { on_wire.blocking(1, add(Fetch::Returned)) }.unwrap(), 2);
    on_wire.probe(1).unwrap();
    // No thread will test the completion of the abandoned operations.
    assert!(!world.wire.host_endpoints.first().host.lock().endpoint.has_finished());
}
