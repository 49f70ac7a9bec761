//! Work requests that wait before they are posted: coalesced puts and gets, and writes beyond a rail's window.
#![allow(clippy::unwrap_used)]

use symrail_core::simulation;
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::{Command, Owner, Signal, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, NoAgent, Policy, Role, TargetAgent};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;
use symrail_transport::wire::{Request, RequestKind};

/// Words of each PE's memory, and of each transfer: more than is worth copying into messages.
const WORDS: usize = 128 << 10;
const LEN: usize = 160;
/// Seconds that an operation may take.
const TIMEOUT: u32 = 2;

/// Nanoseconds after which a put or get no longer follows closely behind the one before it.
const NOT_CLOSELY: u64 = 10_000;

/// PE 0's host endpoint, and PE 1's memory behind a rail. The thread's clock stands still, except where a test advances
/// it.
struct World {
    host: Endpoint,
    peer: Endpoint,
    memory: Vec<u64>,
    fetched: Vec<u64>,
    /// Blocks from the start of one transferred block to the start of the next.
    step: usize,
}

impl World {
    fn new(window: u64) -> World {
        simulation::set_nanos(Some(0));
        let fabric = Fabric::new(1, FabricConfig { delay: 0, again: 0, window, ..FabricConfig::default() });
        let mut settings = Settings::default();
        settings.timeout_s = TIMEOUT.into();
        let policy = Policy::new(&settings, false);
        let endpoint = |role, me| {
            let rail = fabric.open(&format!("{role:?}{me}")).unwrap();
            Endpoint::new(role, me, 2, vec![rail], policy).unwrap()
        };
        let (mut host, mut proxy, mut peer) =
            (endpoint(Role::Host, 0), endpoint(Role::Proxy, 0), endpoint(Role::Proxy, 1));
        let mut memory: Vec<u64> = (0..2 * WORDS as u64).collect();
        let base = memory.as_mut_ptr();
        // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
        let segment = |base: *mut u64| unsafe { Segment::new(0, 0, base.cast(), 8 * WORDS as u64) };
        // SAFETY: the memory is dropped after the endpoints.
        let connection_infos =
            unsafe { [proxy.register(segment(base)).unwrap(), peer.register(segment(base.add(WORDS))).unwrap()] };
        // SAFETY: as above.
        unsafe { host.register(segment(base)) }.unwrap();
        let addresses = [
            Addresses { host: host.addresses(), proxy: proxy.addresses() },
            Addresses { host: peer.addresses(), proxy: peer.addresses() },
        ];
        for endpoint in [&mut host, &mut peer] {
            for (pe, address) in (0..).zip(&addresses) {
                endpoint.connect(pe, address).unwrap();
            }
            endpoint.learn(0, &connection_infos).unwrap();
        }
        let mut world = World { host, peer, memory, fetched: vec![0; WORDS], step: 2 };
        // The issuer expects no quiet behind the first put, and the first put of a test comes late enough to be posted
        // at once.
        (0..2).for_each(|at| world.put(at));
        while world.host.is_active() {
            world.host.poll(&mut NoAgent);
        }
        world.memory[WORDS..].iter_mut().zip(5000..).for_each(|(word, value)| *word = value);
        simulation::spend(NOT_CLOSELY);
        world
    }

    fn submit(&mut self, command: Command, tag: Option<u64>) {
        // SAFETY: the memory stays unchanged, and no other code uses the destinations of gets.
        unsafe { self.host.submit(1, command, Owner { issuer: 0, tag }) }.unwrap();
    }

    fn command(&self, at: usize) -> Command {
        let at = at * self.step * LEN;
        Command::Put {
            dest: 8 * at as u64,
            source: Source::Stable(self.memory[at..].as_ptr().cast()),
            len: 8 * LEN as u64,
        }
    }

    /// The `at`th of the puts.
    fn put(&mut self, at: usize) {
        self.submit(self.command(at), None);
    }

    fn get(&mut self, at: usize) {
        let at = at * self.step * LEN;
        let dest = self.fetched[at..].as_mut_ptr().cast();
        self.submit(Command::Get { source: 8 * at as u64, dest, len: 8 * LEN as u64 }, None);
    }

    /// The number of blocks that have arrived once the rails have moved all posted work. It does not poll the posting
    /// endpoint.
    fn arrived(&mut self) -> usize {
        self.peer.poll(&mut NoAgent);
        let put: Vec<u64> = (0..WORDS as u64).collect();
        put.chunks(LEN).zip(self.memory[WORDS..].chunks(LEN)).filter(|(put, there)| put == there).count()
    }

    /// The number of blocks that have been fetched, likewise.
    fn fetched(&mut self) -> usize {
        self.peer.poll(&mut NoAgent);
        let there = &self.memory[WORDS..];
        self.fetched.chunks(LEN).zip(there.chunks(LEN)).filter(|(here, there)| here == there).count()
    }
}

#[test]
fn the_first_goes_at_once_and_the_next_ones_together() {
    for (posted, gone) in [(1, 1), (4, 1), (5, 5), (8, 5), (9, 9)] {
        let mut world = World::new(u64::MAX);
        (0..posted).for_each(|at| world.put(at));
        assert_eq!(world.arrived(), gone, "of {posted} puts");
        world.host.poll(&mut NoAgent);
        assert_eq!(world.arrived(), posted);

        let mut world = World::new(u64::MAX);
        (0..posted).for_each(|at| world.get(at));
        assert_eq!(world.fetched(), gone, "of {posted} gets");
        world.host.poll(&mut NoAgent);
        assert_eq!(world.fetched(), posted);
    }
}

/// Where each went alone, 128 KiB had three times the system calls of 64 KiB, and a quarter less bandwidth.
#[test]
fn puts_of_128_and_256_kib_travel_together_too() {
    for (words, count) in [(16 << 10, 4), (32 << 10, 2)] {
        let mut world = World::new(u64::MAX);
        for at in 0..count {
            let (at, len) = (2 * at * words, 8 * words as u64);
            let source = Source::Stable(world.memory[at..].as_ptr().cast());
            world.submit(Command::Put { dest: 8 * at as u64, source, len }, None);
        }
        let arrived = |world: &mut World| {
            world.peer.poll(&mut NoAgent);
            (0..count).filter(|at| world.memory[WORDS + 2 * at * words] == 2 * (at * words) as u64).count()
        };
        assert_eq!(arrived(&mut world), 1, "the first goes at once");
        world.host.poll(&mut NoAgent);
        assert_eq!(arrived(&mut world), count);
    }
}

#[test]
fn what_does_not_come_closely_behind_another_one_goes_at_once() {
    for (apart, gone) in [(NOT_CLOSELY - 1, 1), (NOT_CLOSELY, 2)] {
        let mut world = World::new(u64::MAX);
        world.put(0);
        simulation::spend(apart);
        world.put(1);
        assert_eq!(world.arrived(), gone, "{apart} ns apart");
    }
}

#[test]
fn neighbours_are_one_piece() {
    let neighbours = |act: fn(&mut World, usize)| {
        let mut world = World::new(u64::MAX);
        world.step = 1;
        (0..12).for_each(|at| act(&mut world, at));
        world
    };
    let mut world = neighbours(World::put);
    assert_eq!(world.arrived(), 1, "the others are one piece, to which more may come");
    world.host.poll(&mut NoAgent);
    assert_eq!(world.arrived(), 12);
    let mut world = neighbours(World::get);
    assert_eq!(world.fetched(), 1);
    world.host.poll(&mut NoAgent);
    assert_eq!(world.fetched(), 12);
    // Three pieces, and a put that continues the last of them, leave room for a fourth piece.
    let mut world = World::new(u64::MAX);
    (0..4).for_each(|at| world.put(at));
    world.step = 1;
    world.put(7);
    assert_eq!(world.arrived(), 1);
    world.step = 2;
    world.put(5);
    assert_eq!(world.arrived(), 6);
}

#[test]
fn puts_and_gets_in_turns_keep_their_order() {
    let mut world = World::new(u64::MAX);
    world.put(0);
    (1..4).for_each(|at| world.get(at));
    world.put(4);
    assert_eq!((world.arrived(), world.fetched()), (2, 3));
}

#[test]
fn what_somebody_waits_for_takes_along_what_waits_for_company() {
    let mut world = World::new(u64::MAX);
    (0..3).for_each(|at| world.put(at));
    // The flag comes behind them.
    world.host.put_flag(1, 8 * (WORDS as u64 - 1), 77).unwrap();
    assert_eq!((world.arrived(), world.memory[2 * WORDS - 1] & 0xff), (3, 77));
}

#[test]
fn one_behind_a_fence_does_not_wait() {
    let mut world = World::new(u64::MAX);
    (0..3).for_each(|at| world.put(at));
    world.host.fence();
    world.put(3);
    assert_eq!(world.arrived(), 4);
}

#[test]
fn writes_beyond_the_window_wait_but_never_the_only_one() {
    let bytes = 8 * LEN as u64;
    for (window, at_once) in [(1, 1), (2 * bytes, 2), (2 * bytes + 1, 2), (u64::MAX, 6)] {
        let mut world = World::new(window);
        for at in 0..6 {
            world.submit(world.command(at), Some(at as u64));
        }
        assert_eq!(world.arrived(), at_once, "with a window of {window} bytes");
        // Delivered writes make room for as many others at a time.
        for polls in 2.. {
            world.host.poll(&mut NoAgent);
            world.host.poll(&mut NoAgent);
            let arrived = world.arrived();
            assert!(arrived >= at_once && polls < 1000, "{arrived}");
            if arrived == 6 {
                break;
            }
        }
    }
}

/// The requests that have arrived.
#[derive(Default)]
struct Seen(Vec<RequestKind>);

impl TargetAgent for Seen {
    fn request(&mut self, _lane: usize, request: &Request, _payload: &[u8]) {
        self.0.push(request.kind);
    }

    fn count(&mut self, _word: u64) {}
}

#[test]
fn what_is_late_behind_others_that_move_fails_alone_and_without_its_signal() {
    const LARGE: u64 = 72 << 10;
    let mut world = World::new(1);
    let mut seen = Seen::default();
    let block = |world: &World, signal: Option<u64>| {
        let (dest, source) = (0, Source::Stable(world.memory.as_ptr().cast()));
        match signal {
            None => Command::Put { dest, source, len: LARGE },
            Some(value) => {
                let signal = Signal { offset: LARGE, value, op: AmoOp::Set };
                Command::PutSignal { dest, source, len: LARGE, signal }
            }
        }
    };
    // One of them completes in each second, so the last ones are too late.
    for tag in 0..=u64::from(TIMEOUT) {
        world.submit(block(&world, None), Some(tag));
    }
    world.submit(block(&world, Some(1)), Some(10));
    for second in 1..=TIMEOUT + 2 {
        world.host.poll(&mut NoAgent);
        world.host.tick(second);
    }
    let late = world.host.take_finished(0, 10).unwrap();
    assert!(late.result.unwrap_err().to_string().contains("did not complete"));
    for _ in 0..20 {
        world.host.poll(&mut NoAgent);
        world.peer.poll(&mut seen);
    }
    assert!(!seen.0.contains(&RequestKind::Amo), "a signal came without its data: {:?}", seen.0);
    // The peer is alive.
    world.submit(block(&world, Some(2)), Some(11));
    for _ in 0..20 {
        world.host.poll(&mut NoAgent);
        world.peer.poll(&mut seen);
    }
    assert!(seen.0.contains(&RequestKind::Amo), "{:?}", seen.0);
}
