//! Promises of failover that the torture test cannot see, on the mock fabric.

#![allow(clippy::unwrap_used, clippy::panic)]

use symrail_proxy::engine::Engine;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::job::{Fetch, Issue, Job, Signal, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::RailPolicy;
use symrail_transport::mock::{Fabric, Mischief};
use symrail_transport::region::Segment;
use symrail_transport::wire::FROM_HOST;

const LANES: usize = 2;
const HEAP: usize = 4096;

/// The engines of three PEs, and the rails of PE 1's host endpoint; rails are numbered in this order.
fn three_pes(fabric: &Fabric, memory: &mut [Vec<u64>; 3], native_amo: bool) -> Vec<Engine> {
    let policy = Policy { rails: RailPolicy::RoundRobin, stripe_threshold: 8192, native_amo, timeout_s: 60 };
    let open = |role, pe| {
        let rails = (0..LANES).map(|lane| fabric.open(&format!("{role:?}{pe}rail{lane}")).unwrap()).collect();
        Endpoint::new(role, pe, 3, rails, policy).unwrap()
    };
    let mut engines: Vec<Engine> = (0..3).map(|pe| Engine::new(open(Role::Proxy, pe), pe, 3)).collect();
    let host = open(Role::Host, 1);
    let addresses: Vec<Addresses> =
        engines.iter().map(|e| Addresses { host: host.addresses(), proxy: e.addresses() }).collect();
    let mut cards = Vec::new();
    for (engine, memory) in engines.iter_mut().zip(memory) {
        let segment = Segment { id: 0, offset: 0, len: HEAP as u64, base: memory.as_mut_ptr().cast() };
        // SAFETY: the memory outlives the engines.
        cards.push(unsafe { engine.register(segment) }.unwrap());
    }
    for engine in &mut engines {
        for (pe, addresses) in addresses.iter().enumerate() {
            engine.endpoint().connect(pe as u32, addresses).unwrap();
        }
        engine.endpoint().learn(0, &cards).unwrap();
    }
    engines
}

#[test]
fn an_answer_that_cannot_be_sent_keeps_nobody_else_waiting() {
    let fabric = Fabric::new(1, Mischief { again: 0, half_open: true, ..Mischief::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    // The host endpoint believes in a connection of which PE 0 knows that it is broken.
    fabric.leave_half_open(3 * LANES, 0);
    assert!(engines[0].endpoint().reply(1, FROM_HOST, 0, &[0x80; 200]));
    let source = [7u64; 16];
    for to in 0..2 * LANES as u64 {
        let job = Job::Put { dest: 256 * to, source: Source::Stable(source.as_ptr().cast()), len: 128 };
        // SAFETY: the source outlives the engines' use of it.
        unsafe { engines[0].endpoint().submit(2, job, Issue { issuer: 0, tag: None }) }.unwrap();
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
    let fabric = Fabric::new(2, Mischief { again: 0, atomics: true, ..Mischief::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, true);
    fabric.take_down(0);
    let (ty, op, fetch) = (AmoType::U64, AmoOp::Add, Fetch::No);
    let job = Job::Amo { offset: 64, ty, op, operand: 5, compare: 0, fetch };
    // SAFETY: it fetches nothing.
    unsafe { engines[0].endpoint().submit(2, job, Issue { issuer: 0, tag: None }) }.unwrap();
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

/// Where NICs perform AMOs, they perform those on a PE's own memory too: a CPU's would not be atomic with them.
#[test]
fn an_amo_on_own_memory_is_the_nics_where_all_are() {
    for native in [false, true] {
        let fabric = Fabric::new(4, Mischief { again: 0, atomics: true, ..Mischief::default() });
        let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
        let mut engines = three_pes(&fabric, &mut memory, native);
        let job = Job::Amo { offset: 64, ty: AmoType::U64, op: AmoOp::Add, operand: 5, compare: 0, fetch: Fetch::No };
        // SAFETY: it fetches nothing.
        let op = unsafe { engines[0].endpoint().submit(0, job, Issue { issuer: 0, tag: None }) }.unwrap();
        assert_eq!(op == 0, !native, "by the CPU it is done at once");
        for _ in 0..1000 {
            engines[0].poll();
        }
        assert!(engines[0].endpoint().is_quiet(0));
        let posted: u64 = engines[0].endpoint().counters().iter().map(|lane| lane.messages).sum();
        assert_eq!((memory[0][8], posted), (5, u64::from(native)));
    }
}

/// A queue pair that refuses a write discards the signal behind it. The signal must not come over another rail then.
#[test]
fn a_signal_does_not_come_without_its_data() {
    let fabric = Fabric::new(3, Mischief { again: 0, ..Mischief::default() });
    let mut memory = [(); 3].map(|()| vec![0; HEAP / 8]);
    let mut engines = three_pes(&fabric, &mut memory, false);
    let (source, last) = ([7u64; HEAP / 8 - 1], HEAP as u64 - 8);
    let signal = Signal { offset: last, value: 1, op: AmoOp::Add };
    let job = Job::PutSignal { dest: 0, source: Source::Stable(source.as_ptr().cast()), len: last, signal };
    let mut refused = 0;
    for round in 0..6 {
        fabric.refuse_next_write(round as usize / 2 % LANES); // now and then the one that is used
        // SAFETY: the source outlives the engines' use of it.
        unsafe { engines[0].endpoint().submit(2, job, Issue { issuer: 0, tag: None }) }.unwrap();
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
