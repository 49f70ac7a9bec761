//! Guarantees of failover that the torture test cannot check, on the mock fabric.

#![allow(clippy::unwrap_used, clippy::panic)]

use symrail_proxy::engine::Engine;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Owner, Signal, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::RailPolicy;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::pairing::InterfaceAddress;
use symrail_transport::region::Segment;
use symrail_transport::wire::{FROM_HOST, Keepalive, Token};

const LANES: usize = 2;
const HEAP: usize = 4096;
const TIMEOUT: u32 = 60;

/// The engines of three PEs, and the rails of PE 1's host endpoint; rails are numbered in this order.
fn three_pes(fabric: &Fabric, memory: &mut [Vec<u64>; 3], native_amo: bool) -> Vec<Engine> {
    three_pes_with(LANES, fabric, memory, native_amo)
}

fn three_pes_with(lanes: usize, fabric: &Fabric, memory: &mut [Vec<u64>; 3], native_amo: bool) -> Vec<Engine> {
    let policy =
        Policy { rails: RailPolicy::RoundRobin, stripe_threshold: 8192, native_amo, timeout_s: TIMEOUT.into() };
    let open = |role, pe| {
        let interface = |lane| InterfaceAddress { ip: [10, 0, lane as u8, pe as u8].into(), prefix: 24, network: 0 };
        let name = |lane| format!("{role:?}{pe}rail{lane}");
        let rails = (0..lanes).map(|lane| fabric.open_at(&name(lane), Some(interface(lane))).unwrap()).collect();
        Endpoint::new(role, pe, 3, rails, policy).unwrap()
    };
    let mut engines: Vec<Engine> = (0..3).map(|pe| Engine::new(open(Role::Proxy, pe))).collect();
    let host = open(Role::Host, 1);
    let addresses: Vec<Addresses> =
        engines.iter().map(|e| Addresses { host: host.addresses(), proxy: e.addresses() }).collect();
    let mut connection_infos = Vec::new();
    for (engine, memory) in engines.iter_mut().zip(memory) {
        // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
        let segment = unsafe { Segment::new(0, 0, memory.as_mut_ptr().cast(), HEAP as u64) };
        // SAFETY: the memory outlives the engines.
        connection_infos.push(unsafe { engine.register(segment) }.unwrap());
    }
    for engine in &mut engines {
        for (pe, addresses) in addresses.iter().enumerate() {
            engine.endpoint().connect(pe as u32, addresses).unwrap();
        }
        engine.endpoint().learn(0, &connection_infos).unwrap();
    }
    engines
}

#[test]
fn an_answer_that_cannot_be_sent_keeps_nobody_else_waiting() {
    let fabric = Fabric::new(1, FabricConfig { again: 0, half_open: true, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    // The host endpoint believes in a connection that PE 0 knows to be broken.
    fabric.leave_half_open(3 * LANES, 0);
    assert!(engines[0].endpoint().reply(1, FROM_HOST, 0, &mut [0x80; 200]));
    let source = [7u64; 16];
    for to in 0..2 * LANES as u64 {
        let command = Command::Put { dest: 256 * to, source: Source::Stable(source.as_ptr().cast()), len: 128 };
        // SAFETY: the source outlives the engines' use of it.
        unsafe { engines[0].endpoint().submit(2, command, Owner { issuer: 0, tag: None }) }.unwrap();
    }
    for _ in 0..1000 {
        engines[0].endpoint().start_quiet(0);
        for engine in &mut engines {
            engine.poll();
        }
    }
    assert!(engines[0].endpoint().is_quiet(0), "puts to PE 2 wait behind an answer to PE 1");
    assert_eq!(memory[2][..16], source);
}

#[test]
fn an_amo_that_its_rail_did_not_take_waits_until_the_rail_works() {
    let fabric = Fabric::new(2, FabricConfig { again: 0, atomics: true, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, true);
    fabric.take_down(0);
    let (ty, op, fetch) = (AmoType::U64, AmoOp::Add, Fetch::No);
    let command = Command::Amo { offset: 64, ty, op, operand: 5, compare: 0, fetch };
    // SAFETY: it fetches nothing.
    unsafe { engines[0].endpoint().submit(2, command, Owner { issuer: 0, tag: None }) }.unwrap();
    for second in 0..20 {
        if second == 10 {
            assert!(!engines[0].endpoint().is_quiet(0));
            fabric.bring_up(0);
        }
        for _ in 0..100 {
            for engine in &mut engines {
                engine.poll();
            }
        }
        engines.iter_mut().for_each(|e| e.endpoint().tick(second));
    }
    assert!(engines[0].endpoint().take_error(0).is_none_or(|error| panic!("{error}")));
    assert!(engines[0].endpoint().is_quiet(0));
    assert_eq!(memory[2][8], 5);
}

/// Where NICs perform AMOs, they perform those on a PE's own memory too, because a CPU's would not be atomic with them.
#[test]
fn an_amo_on_own_memory_is_the_nics_where_all_are() {
    for native in [false, true] {
        let fabric = Fabric::new(4, FabricConfig { again: 0, atomics: true, ..FabricConfig::default() });
        let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
        let mut engines = three_pes(&fabric, &mut memory, native);
        let command =
            Command::Amo { offset: 64, ty: AmoType::U64, op: AmoOp::Add, operand: 5, compare: 0, fetch: Fetch::No };
        // SAFETY: it fetches nothing.
        let op = unsafe { engines[0].endpoint().submit(0, command, Owner { issuer: 0, tag: None }) }.unwrap();
        assert_eq!(op == 0, !native, "by the CPU it is done at once");
        for _ in 0..1000 {
            engines[0].poll();
        }
        assert!(engines[0].endpoint().is_quiet(0));
        let posted: u64 = engines[0].endpoint().counters().iter().map(|lane| lane.messages).sum();
        assert_eq!((memory[0][8], posted), (5, u64::from(native)));
    }
}

/// A queue pair that refuses a write discards the signal behind it. Then the signal must not arrive over another rail.
#[test]
fn a_signal_does_not_come_without_its_data() {
    let fabric = Fabric::new(3, FabricConfig { again: 0, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    let (source, last) = ([7u64; HEAP / 8 - 1], HEAP as u64 - 8);
    let signal = Signal { offset: last, value: 1, op: AmoOp::Add };
    let command = Command::PutSignal { dest: 0, source: Source::Stable(source.as_ptr().cast()), len: last, signal };
    let mut refused = 0;
    for round in 0..6 {
        fabric.refuse_next_write(round as usize / 2 % LANES); // sometimes it is the rail in use
        // SAFETY: the source outlives the engines' use of it.
        unsafe { engines[0].endpoint().submit(2, command, Owner { issuer: 0, tag: None }) }.unwrap();
        for second in 0..8 {
            for _ in 0..100 {
                engines[0].endpoint().start_quiet(0);
                engines.iter_mut().for_each(|engine| _ = engine.poll());
            }
            engines.iter_mut().for_each(|e| e.endpoint().tick(8 * round + second));
        }
        assert!(engines[0].endpoint().is_quiet(0), "round {round}");
        refused += u64::from(engines[0].endpoint().take_error(0).is_some_and(|e| e.to_string().contains("refuses")));
        assert_eq!(memory[2][HEAP / 8 - 1], u64::from(round) + 1 - refused, "signals and puts that arrived");
    }
    assert!(refused > 0 && refused < 6, "{refused} of 6 were refused");
}

/// Polls for so many seconds of the engines' clock.
fn live(engines: &mut [Engine], clock: &mut u32, seconds: u32) {
    for _ in 0..seconds {
        for _ in 0..100 {
            engines[0].endpoint().start_quiet(0);
            engines.iter_mut().for_each(|engine| _ = engine.poll());
        }
        *clock += 1;
        engines.iter_mut().for_each(|engine| engine.endpoint().tick(*clock));
    }
}

/// Starts an AMO, a put with a copied source, and a flag. They leave a message, a buffer and a write that belong to no
/// operation.
fn ask_for_all(endpoint: &mut Endpoint, pe: u32, bytes: &[u8]) -> Result<(), symrail_transport::Error> {
    let (ty, op, fetch) = (AmoType::U64, AmoOp::Add, Fetch::No);
    let amo = Command::Amo { offset: 8, ty, op, operand: 1, compare: 0, fetch };
    let put = Command::Put { dest: 64, source: Source::Copied(bytes.as_ptr()), len: bytes.len() as u64 };
    for command in [amo, put] {
        // SAFETY: the source is copied during the call.
        unsafe { endpoint.submit(pe, command, Owner { issuer: 0, tag: None }) }?;
    }
    endpoint.put_flag(pe, 0, 1)
}

/// Starts as many operations as have room, while all others are idle. Returns their number.
fn fill(engine: &mut Engine, pe: u32, bytes: &[u8]) -> u64 {
    let mut count = 0;
    while engine.endpoint().ready() {
        engine.poll();
        count += u64::from(ask_for_all(engine.endpoint(), pe, bytes).is_ok());
        assert!(count < 100_000, "there is no end to it");
    }
    count
}

#[test]
fn an_unreachable_peer_is_given_up_and_keeps_nothing() {
    for lanes in [1, LANES] {
        let fabric = Fabric::new(4, FabricConfig { again: 0, half_open: true, ..FabricConfig::default() });
        let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
        let mut engines = three_pes_with(lanes, &fabric, &mut memory, false);
        let (mut clock, bytes) = (0, [7u8; 300]);
        let _hangs = engines.remove(1);
        if lanes == 1 {
            fabric.leave_half_open(1, 0); // it also refuses new connections of PE 0
        }
        // As many operations as have room. Afterwards no other operation has any.
        let room = fill(&mut engines[0], 1, &bytes);
        live(&mut engines, &mut clock, TIMEOUT + 5);
        let endpoint = engines[0].endpoint();
        assert!(endpoint.is_quiet(0), "{lanes} lanes");
        let error = endpoint.take_error(0).unwrap().to_string();
        assert!(error.contains("PE 1"), "{error}");
        assert!(endpoint.ready(), "{lanes} lanes: no room");
        assert!(!endpoint.is_active(), "{lanes} lanes: something is still kept for it");
        let refused = ask_for_all(endpoint, 1, &bytes).unwrap_err().to_string();
        assert!(refused.contains("PE 1") && refused.contains("60 s"), "{refused}");
        assert!((0..1000).any(|_| engines[0].prepare_sleep()), "{lanes} lanes: who polls cannot sleep");
        // As many operations for PE 2, which does not answer yet, have room again.
        let again = fill(&mut engines[0], 2, &bytes);
        assert!(again >= room, "{lanes} lanes: room for {room}, then for {again}");
        live(&mut engines, &mut clock, 20);
        assert!(engines[0].endpoint().is_quiet(0), "{lanes} lanes");
        assert!(memory[2][1].abs_diff(again) <= 1, "the last one may have found half of its room");
        assert_eq!(memory[2][8].to_ne_bytes(), bytes[..8]);
    }
}

/// A PE that has a connection only because of a keepalive, and has lost it without notice, refuses a new one until it
/// has sent something.
#[test]
fn a_keepalive_is_answered_by_one() {
    let fabric = Fabric::new(7, FabricConfig { again: 0, half_open: true, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    for lane in 0..LANES {
        let mut sign = [0; Token::SIZE + Keepalive::SIZE];
        sign[Token::SIZE..].copy_from_slice(&Keepalive { origin: 0, source: 0 }.encode());
        assert!(engines[0].endpoint().reply(1, 0, lane, &mut sign));
    }
    let mut clock = 0;
    live(&mut engines, &mut clock, 1);
    (0..LANES).for_each(|lane| fabric.leave_half_open(LANES + lane, lane));
    let source = [7u8; 8];
    let put = Command::Put { dest: 64, source: Source::Stable(source.as_ptr()), len: 8 };
    // SAFETY: the source outlives the engines' use of it.
    unsafe { engines[0].endpoint().submit(1, put, Owner { issuer: 0, tag: None }) }.unwrap();
    engines[0].endpoint().start_quiet(0);
    live(&mut engines, &mut clock, 10);
    assert!(engines[0].endpoint().is_quiet(0), "nothing gets through");
    assert_eq!(memory[1][8].to_ne_bytes(), source);
}

#[test]
fn what_was_not_sent_to_a_peer_that_is_given_up_has_failed() {
    for lanes in [1, LANES] {
        let fabric = Fabric::new(6, FabricConfig { again: 0, half_open: true, ..FabricConfig::default() });
        let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
        let mut engines = three_pes_with(lanes, &fabric, &mut memory, false);
        let (mut clock, bytes) = (0, [7u8; 300]);
        let _hangs = engines.remove(1);
        (0..lanes).for_each(|lane| fabric.leave_half_open(lanes + lane, lane));
        // The second is young when the first is too old.
        for tag in [1, 2] {
            let put = Command::Put { dest: 64, source: Source::Stable(bytes.as_ptr()), len: bytes.len() as u64 };
            // SAFETY: the source outlives the engines' use of it.
            unsafe { engines[0].submit(1, put, Owner { issuer: 0, tag: Some(tag) }) }.unwrap();
            live(&mut engines, &mut clock, TIMEOUT / 2 + 2);
        }
        assert!(engines[0].host_finished().iter().all(|f| f.result.is_err()), "{lanes} lanes: it was not written");
        live(&mut engines, &mut clock, 2 * TIMEOUT);
        let mut failed: Vec<_> =
            engines[0].host_finished().iter().filter(|f| f.result.is_err()).map(|f| f.tag).collect();
        failed.sort();
        assert_eq!(failed, [1, 2], "{lanes} lanes");
    }
}

#[test]
fn a_peer_that_was_given_up_is_used_again_when_a_rail_reaches_it() {
    let fabric = Fabric::new(5, FabricConfig { again: 0, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    let (mut clock, bytes) = (0, [7u8; 300]);
    // Often enough to detect a leak.
    for _ in 0..5 {
        (0..LANES).for_each(|lane| fabric.take_down(LANES + lane));
        fill(&mut engines[0], 1, &bytes);
        live(&mut engines, &mut clock, TIMEOUT + 5);
        assert!(engines[0].endpoint().ready(), "there is no room any more");
        assert!(engines[0].endpoint().take_error(0).is_some());
        assert!(ask_for_all(engines[0].endpoint(), 1, &bytes).is_err());
        (0..LANES).for_each(|lane| fabric.bring_up(LANES + lane));
        live(&mut engines, &mut clock, 40);
        let before = memory[1][1];
        for round in 1..=10 {
            ask_for_all(engines[0].endpoint(), 1, &bytes).unwrap();
            live(&mut engines, &mut clock, 2);
            assert!(engines[0].endpoint().take_error(0).is_none_or(|error| panic!("{error}")));
            assert!(engines[0].endpoint().is_quiet(0), "round {round}");
            assert_eq!(memory[1][1], before + round, "additions after it came back");
        }
    }
}

/// After a peer is given up, no work waits for another lane, not even work that a rail returns only then.
#[test]
fn nothing_waits_for_a_lane_to_a_peer_that_is_given_up() {
    for given_back_late in [false, true] {
        let fabric = Fabric::new(8, FabricConfig { again: 0, half_open: true, ..FabricConfig::default() });
        let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
        let mut engines = three_pes(&fabric, &mut memory, false);
        let (mut clock, bytes) = (0, [7u8; 300]);
        // Work on the first lane stays under way at first, or fails at once.
        fabric.take_down(LANES + 1);
        if given_back_late {
            fabric.pull_out(LANES);
        } else {
            fabric.take_down(LANES);
        }
        // The put is so large that it uses the second lane, too.
        let put = Command::Put { dest: 64, source: Source::Stable(bytes.as_ptr()), len: bytes.len() as u64 };
        for _ in 0..300 {
            // SAFETY: the source outlives the engines' use of it.
            unsafe { engines[0].endpoint().submit(1, put, Owner { issuer: 0, tag: None }) }.unwrap();
        }
        for _ in 0..20 {
            ask_for_all(engines[0].endpoint(), 1, &bytes).unwrap();
        }
        live(&mut engines, &mut clock, TIMEOUT + 10);
        assert!(
            ask_for_all(engines[0].endpoint(), 1, &bytes).is_err(),
            "given back late: {given_back_late}: it is not given up"
        );
        assert_eq!(engines[0].endpoint().is_active(), given_back_late, "before the rails give anything back");
        fabric.take_down(LANES);
        live(&mut engines, &mut clock, 5);
        assert!(
            !engines[0].endpoint().is_active(),
            "given back late: {given_back_late}: something waits for another lane"
        );
        // Dropped work is not done when the peer is used again.
        let seen = memory[1].clone();
        assert!(given_back_late || seen == [0; HEAP / 8], "something arrived over a lane that was down");
        [LANES, LANES + 1].into_iter().for_each(|rail| fabric.bring_up(rail));
        fabric.plug_in(LANES);
        // A lane that has never worked is tried again after pauses of up to 120 s.
        live(&mut engines, &mut clock, 130);
        assert_eq!(engines[0].endpoint().lanes_down(), 0, "the peer is not used again");
        assert!(memory[1] == seen, "given back late: {given_back_late}: done after it was dropped");
    }
}

/// Makes PE 0 start operations to PE 1 on all lanes.
fn ask_on_all_lanes(engines: &mut [Engine], bytes: &[u8]) {
    for _ in 0..4 * LANES {
        ask_for_all(engines[0].endpoint(), 1, bytes).unwrap();
        engines[0].poll();
    }
}

fn given_up(engine: &mut Engine) -> u64 {
    engine.endpoint().counters().iter().map(|lane| lane.given_up).sum()
}

#[test]
fn a_peer_that_does_not_poll_is_late_and_its_lanes_stay_in_use() {
    let fabric = Fabric::new(9, FabricConfig { again: 0, delay: 0, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    let (mut clock, bytes) = (0, [7u8; 300]);
    for round in 1..=3 {
        ask_on_all_lanes(&mut engines, &bytes);
        // PE 1 gets no core for long, then for one poll, then not again.
        for rarely in 1..=5 {
            let starved = engines.remove(1);
            live(&mut engines, &mut clock, TIMEOUT / 7);
            engines.insert(1, starved);
            assert_eq!(given_up(&mut engines[0]), 0, "round {round}, {rarely}: starved, and taken for failed");
            engines[1].poll();
        }
        live(&mut engines, &mut clock, 2);
        assert!(engines[0].endpoint().take_error(0).is_none_or(|error| panic!("{error}")));
        assert!(engines[0].endpoint().is_quiet(0), "round {round}");
        assert_eq!(memory[1][1], round * 4 * LANES as u64, "additions");
    }
    assert_eq!(given_up(&mut engines[0]), 0);
}

#[test]
fn a_lane_on_which_nothing_passes_is_found_within_four_seconds() {
    let fabric = Fabric::new(10, FabricConfig { again: 0, delay: 0, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    let (mut clock, bytes) = (0, [7u8; 300]);
    ask_on_all_lanes(&mut engines, &bytes);
    live(&mut engines, &mut clock, 2);
    assert!(engines[0].endpoint().is_quiet(0));
    // The lane that small operations take.
    fabric.mute(LANES);
    ask_on_all_lanes(&mut engines, &bytes);
    live(&mut engines, &mut clock, 4);
    assert_eq!(
        (given_up(&mut engines[0]), engines[0].endpoint().lanes_down()),
        (1, 1),
        "the lane that is dead, and no other"
    );
    // The lane's work moves to other lanes, and the lane is used again when it works.
    fabric.take_down(LANES);
    live(&mut engines, &mut clock, 2);
    assert!(engines[0].endpoint().is_quiet(0), "others do its work");
    assert_eq!(memory[1][1], 8 * LANES as u64, "additions");
    fabric.bring_up(LANES);
    fabric.plug_in(LANES);
    live(&mut engines, &mut clock, 10);
    assert_eq!(engines[0].endpoint().lanes_down(), 0);
}

/// Puts of 128 bytes from PE 0 to PE 1 while the first lane is silent: its rail keeps them.
struct Silent {
    engines: Vec<Engine>,
    clock: u32,
    source: [u64; 16],
    fabric: Fabric,
}

impl Silent {
    /// Puts are writes, which have no number.
    fn new(seed: u64, tells_silence: bool, memory: &mut [Vec<u64>; 3]) -> Silent {
        let config = FabricConfig { again: 0, delay: 0, software: false, tells_silence, ..FabricConfig::default() };
        let fabric = Fabric::new(seed, config);
        let engines = three_pes(&fabric, memory, false);
        let mut silent = Silent { engines, clock: 0, source: [7; 16], fabric };
        ask_on_all_lanes(&mut silent.engines, &[7; 300]);
        silent.live(2);
        // Small puts take the first lane while little is under way.
        silent.fabric.mute(LANES);
        silent
    }

    fn put(&mut self, dest: u64) {
        let command = Command::Put { dest, source: Source::Stable(self.source.as_ptr().cast()), len: 128 };
        // SAFETY: the source outlives the engines' use of it.
        unsafe { self.engines[0].endpoint().submit(1, command, Owner { issuer: 0, tag: None }) }.unwrap();
    }

    fn live(&mut self, seconds: u32) {
        live(&mut self.engines, &mut self.clock, seconds);
    }
}

#[test]
fn a_put_that_its_rail_keeps_fails_with_the_rail_and_its_addresses() {
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut silent = Silent::new(12, false, &mut memory);
    silent.put(512);
    silent.live(TIMEOUT + 2);
    let error = silent.engines[0].endpoint().take_error(0).unwrap().to_string();
    assert!(error.contains("rail Proxy0rail0 (10.0.0.0 to 10.0.0.1)") && !error.contains("rail1"), "{error}");
    assert!(error.contains("PE 1 did not complete within 60 s"), "{error}");
}

/// As TCP does where packets are dropped on the way: the rail keeps the puts, and tells that the other host is silent.
#[test]
fn puts_of_a_silent_lane_move_within_seconds_and_arrive_once() {
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut silent = Silent::new(13, true, &mut memory);
    for round in 0..3 {
        [512, 640, 768, 896].into_iter().for_each(|dest| silent.put(dest));
        ask_on_all_lanes(&mut silent.engines, &[7; 300]);
        silent.live(6);
        let endpoint = silent.engines[0].endpoint();
        assert!(endpoint.take_error(0).is_none_or(|error| panic!("{error}")));
        assert!(endpoint.is_quiet(0), "round {round}: they wait for the lane");
        assert_eq!(memory[1][64..128], [7; 64]);
        memory[1][64..128].fill(0);
    }
    assert_eq!((given_up(&mut silent.engines[0]), silent.engines[0].endpoint().lanes_down()), (1, 1));
    assert_eq!(memory[1][1], 16 * LANES as u64, "additions");
    silent.fabric.plug_in(LANES);
    silent.live(10);
    assert_eq!(silent.engines[0].endpoint().lanes_down(), 0);
    assert_eq!(memory[1][64..128], [0; 64], "a put has arrived late");
}

/// Takes ports down, runs `meanwhile` with two puts from PE 0 to PE 1 under way, one on each lane, takes the ports up,
/// and checks that all puts complete.
fn puts_while_out(cables: &[usize], meanwhile: impl FnOnce(&Fabric, &mut [Engine], &mut u32)) {
    let fabric = Fabric::new(7, FabricConfig { again: 0, delay: 0, renews: true, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    let (mut clock, source) = (0, [7u64; 16]);
    cables.iter().for_each(|&rail| fabric.pull_out(rail));
    for dest in [0, 128] {
        let command = Command::Put { dest, source: Source::Stable(source.as_ptr().cast()), len: 128 };
        // SAFETY: the source outlives the engines' use of it.
        unsafe { engines[0].endpoint().submit(1, command, Owner { issuer: 0, tag: None }) }.unwrap();
    }
    meanwhile(&fabric, &mut engines, &mut clock);
    cables.iter().for_each(|&rail| fabric.plug_in(rail));
    live(&mut engines, &mut clock, 20);
    assert!(engines[0].endpoint().take_error(0).is_none_or(|error| panic!("{error}")));
    assert!(engines[0].endpoint().is_quiet(0), "something is still under way");
    assert_eq!(memory[1][..32], [7; 32]);
    engines.iter_mut().for_each(|engine| assert_eq!(engine.endpoint().lanes_down(), 0, "lanes are not used again"));
}

#[test]
fn work_leaves_a_port_that_is_down_when_another_way_is_seen_to_work() {
    puts_while_out(&[0], |_, engines, clock| {
        assert!(!engines[0].endpoint().is_quiet(0));
        live(engines, clock, 4);
        assert!(engines[0].endpoint().is_quiet(0), "it waits for the port");
    });
}

#[test]
fn ports_that_are_all_down_are_waited_for() {
    // All ports of PE 0; all ports of both PEs; one lane at one end and the other lane at the other.
    for cables in [&[0, 1][..], &[0, 1, 2, 3], &[0, LANES + 1]] {
        puts_while_out(cables, |_, engines, clock| {
            live(engines, clock, 10);
            assert!(!engines[0].endpoint().is_quiet(0), "{cables:?}: nothing can have arrived");
        });
    }
}

/// Each end observes the other's port up for a moment, and its own down again.
#[test]
fn a_sign_that_another_way_worked_before_the_port_went_down_again_is_none() {
    let cables = [0, LANES + 1];
    puts_while_out(&cables, |fabric, engines, clock| {
        live(engines, clock, 2);
        cables.iter().for_each(|&rail| fabric.plug_in(rail));
        engines[2].poll(); // moves the flights, while the other PEs do not poll
        cables.iter().for_each(|&rail| fabric.pull_out(rail));
        live(engines, clock, 10);
    });
}

/// The other end has just accepted the last lane. A report that it is broken would leave no lane for the exchange.
#[test]
fn an_offer_is_not_followed_by_a_complaint() {
    let fabric = Fabric::new(11, FabricConfig { again: 0, delay: 0, renews: true, ..FabricConfig::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    let polls = |engine: &mut Engine| (0..10).for_each(|_| _ = engine.poll());
    fabric.take_down(LANES);
    fabric.bring_up(LANES);
    // PE 1 offers and PE 0 accepts. Before PE 1 learns of it, another second passes, in which PE 1 must not offer
    // again.
    engines[1].endpoint().tick(1);
    polls(&mut engines[0]);
    fabric.pull_out(LANES);
    engines[1].endpoint().tick(2);
    polls(&mut engines[0]);
    fabric.plug_in(LANES);
    fabric.take_down(LANES + 1);
    let (mut clock, source) = (2, [7u64; 16]);
    live(&mut engines, &mut clock, 5);
    let command = Command::Put { dest: 0, source: Source::Stable(source.as_ptr().cast()), len: 128 };
    // SAFETY: the source outlives the engines' use of it.
    unsafe { engines[0].endpoint().submit(1, command, Owner { issuer: 0, tag: None }) }.unwrap();
    live(&mut engines, &mut clock, 5);
    assert!(engines[0].endpoint().is_quiet(0), "the lane that was accepted is not used");
    assert_eq!(memory[1][..16], source);
}
