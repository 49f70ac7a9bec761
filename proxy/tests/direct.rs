//! Memory that rails can access and the CPU cannot: which bytes go there directly, which are still copied, and the
//! order in which they become visible.
#![allow(clippy::unwrap_used)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use symrail_heap::copy_engine::{Between, Copy, CopyCompletion, CopyEngine};
use symrail_heap::guarded::{GuardedCopyEngine, GuardedMemory};
use symrail_proxy::stage::STAGING_BUFFER_BYTES;
use symrail_proxy::{Engine, HOST};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Owner, Signal, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;
use symrail_transport::wire::Token;

const HEAP: usize = 1 << 20;
const BLOCK: u64 = 64 << 10;
const SIGNAL: u64 = HEAP as u64 - 8;
const ID: u32 = 3;

/// A call of a copy engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    Copied(usize),
    FlushedNicWrites,
}

struct Watched {
    copy_engine: GuardedCopyEngine,
    did: Arc<Mutex<Vec<Did>>>,
}

// SAFETY: all calls are those of the inner copy engine.
unsafe impl CopyEngine for Watched {
    fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        self.copy_engine.staging_buffer()
    }

    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String> {
        self.did.lock().unwrap().push(Did::Copied(copy.len));
        // SAFETY: the caller's promise.
        unsafe { self.copy_engine.start(copy, ticket) }
    }

    fn prepare_peer(&mut self, peer: usize) -> Result<(), String> {
        self.copy_engine.prepare_peer(peer)
    }

    unsafe fn start_between(&mut self, copy: Between, ticket: u64) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_engine.start_between(copy, ticket) }
    }

    fn flush_nic_writes(&mut self) {
        self.did.lock().unwrap().push(Did::FlushedNicWrites);
    }

    fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize {
        self.copy_engine.poll(ended)
    }

    fn pending(&self) -> usize {
        self.copy_engine.pending()
    }

    fn writing(&self) -> usize {
        self.copy_engine.writing()
    }
}

struct Pe {
    engine: Engine,
    memory: Arc<GuardedMemory>,
    did: Arc<Mutex<Vec<Did>>>,
}

impl Pe {
    /// The address at which the test can access bytes of its memory.
    fn at(&self, offset: u64, len: u64) -> *mut u8 {
        self.memory.reachable(self.memory.base().addr().get() + offset as usize, len as usize).unwrap()
    }

    fn bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        // SAFETY: `at` checked the range; rails and copy engines of the test run in this thread.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len as usize) }.to_vec()
    }

    fn fill(&self, offset: u64, len: u64, value: u8) {
        // SAFETY: as above.
        unsafe { self.at(offset, len).write_bytes(value, len as usize) };
    }

    fn own(&self, offset: u64) -> *mut u8 {
        self.memory.base().as_ptr().wrapping_add(offset as usize)
    }
}

/// Two PEs; the rails of the first `reached` ones can access their memory.
fn two_pes(reached: usize) -> [Pe; 2] {
    two_pes_within(reached, Settings::default().timeout_s)
}

/// As [`two_pes`], with a time-out in seconds.
fn two_pes_within(reached: usize, timeout_s: u64) -> [Pe; 2] {
    let mut settings = Settings::default();
    settings.timeout_s = timeout_s;
    let config = FabricConfig { again: 0, local_registration: true, ..FabricConfig::default() };
    let fabric = Fabric::new(1, config);
    let policy = Policy::new(&settings, false);
    let (mut windows, mut connection_infos) = (Vec::new(), Vec::new());
    let mut pes = [0, 1].map(|me| {
        let rails = (0..2).map(|lane| fabric.open(&format!("pe{me}rail{lane}")).unwrap()).collect();
        let mut engine = Engine::new(Endpoint::new(Role::Proxy, me, 2, rails, policy).unwrap());
        let memory = GuardedMemory::new(HEAP).unwrap();
        let copy_engine = GuardedCopyEngine::new(Arc::clone(&memory), STAGING_BUFFER_BYTES, 5 + u64::from(me)).unwrap();
        let did = Arc::default();
        windows.push(engine.stage(Box::new(Watched { copy_engine, did: Arc::clone(&did) })).unwrap());
        Pe { engine, memory, did }
    });
    let nobody = Token::default().with_address(fabric.open("nobody's").unwrap().address());
    let addresses = [0, 1].map(|me: usize| {
        let pe: &Pe = &pes[me];
        Addresses { host: vec![nobody.clone()], proxy: pe.engine.addresses() }
    });
    for (me, pe) in pes.iter_mut().enumerate() {
        // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
        let segment = unsafe { Segment::new(ID, 0, pe.memory.base().as_ptr(), HEAP as u64) };
        // SAFETY: the memory outlives the engine.
        unsafe { pe.engine.add_staged_segment(segment) };
        let exported = pe.memory.export();
        // SAFETY: the memory is dropped after the engine.
        let connection_info =
            (me < reached).then(|| unsafe { pe.engine.register_direct(segment, exported.as_export()) }.unwrap());
        connection_infos.push(connection_info.unwrap_or_default());
    }
    for pe in &mut pes {
        for (peer, addresses) in addresses.iter().enumerate() {
            pe.engine.endpoint().connect(peer as u32, addresses).unwrap();
        }
        pe.engine.learn_window(&windows).unwrap();
        assert_eq!(pe.engine.learn_direct(ID, &connection_infos).unwrap(), reached == 2);
    }
    pes
}

/// Runs a command of PE 0 to its end, and returns the calls of its and its target's copy engines meanwhile.
fn run(pes: &mut [Pe; 2], command: Command) -> [Vec<Did>; 2] {
    // SAFETY: sources and destinations are the PEs' memory or the callers', and outlive the loop.
    unsafe { pes[0].engine.submit(1, command, Owner { issuer: HOST, tag: None }) }.unwrap();
    for _ in 0..100_000 {
        pes[0].engine.start_quiet(HOST);
        for pe in &mut *pes {
            pe.engine.poll();
        }
        if pes[0].engine.is_quiet(HOST) {
            break;
        }
    }
    assert!(pes[0].engine.is_quiet(HOST) && pes[0].engine.take_error(HOST).is_none());
    [0, 1].map(|pe: usize| std::mem::take(&mut *pes[pe].did.lock().unwrap()))
}

fn put_signal(pes: &[Pe; 2], len: u64) -> Command {
    let signal = Signal { offset: SIGNAL, value: 1, op: AmoOp::Add };
    Command::PutSignal { dest: BLOCK, source: Source::Stable(pes[0].own(0)), len, signal }
}

#[test]
fn what_is_large_goes_straight_and_is_seen_before_its_signal() {
    let mut pes = two_pes(2);
    pes[0].fill(0, BLOCK, 7);
    let command = put_signal(&pes, BLOCK - 3);
    let [source, target] = run(&mut pes, command);
    assert_eq!(source, [], "the source copies nothing");
    // The word is read, changed and written back.
    assert_eq!(target, [Did::FlushedNicWrites, Did::Copied(8), Did::Copied(8)]);
    assert_eq!(pes[1].bytes(BLOCK, BLOCK), [vec![7; BLOCK as usize - 3], vec![0; 3]].concat());
    assert_eq!(pes[1].bytes(SIGNAL, 8), 1u64.to_ne_bytes());

    // From and to host memory as well.
    let mut host = vec![9u8; BLOCK as usize];
    let put = Command::Put { dest: 2 * BLOCK, source: Source::Stable(host.as_ptr()), len: BLOCK };
    assert_eq!(run(&mut pes, put), [vec![], vec![]]);
    assert_eq!(pes[1].bytes(2 * BLOCK, BLOCK), host);
    assert_eq!(run(&mut pes, Command::Get { source: BLOCK, dest: host.as_mut_ptr(), len: 5000 }), [vec![], vec![]]);
    assert_eq!((&host[..5000], &host[5000..]), (&vec![7; 5000][..], &vec![9; BLOCK as usize - 5000][..]));
    let to = pes[0].own(4 * BLOCK);
    assert_eq!(run(&mut pes, Command::Get { source: 2 * BLOCK, dest: to, len: BLOCK }), [vec![], vec![]]);
    assert_eq!(pes[0].bytes(4 * BLOCK, BLOCK), vec![9; BLOCK as usize]);
}

#[test]
fn what_a_message_holds_is_copied_by_the_target() {
    let mut pes = two_pes(2);
    pes[0].fill(0, 4096, 3);
    let command = put_signal(&pes, 4000);
    let [source, target] = run(&mut pes, command);
    assert_eq!(source, [Did::Copied(4000)]);
    assert_eq!(target, [Did::FlushedNicWrites, Did::Copied(4000), Did::Copied(8), Did::Copied(8)]);
    assert_eq!(pes[1].bytes(BLOCK, 4000), vec![3; 4000]);
}

#[test]
fn one_pe_whose_rails_do_not_reach_its_memory_is_enough_for_all_to_stage() {
    let mut pes = two_pes(1);
    pes[0].fill(0, BLOCK, 7);
    let command = put_signal(&pes, BLOCK);
    let [source, target] = run(&mut pes, command);
    let copied = |did: &[Did], least: usize| did.iter().any(|d| matches!(d, Did::Copied(len) if *len >= least));
    assert!(copied(&source, 4096) && copied(&target, 4096), "{source:?} {target:?}");
    assert_eq!(pes[1].bytes(BLOCK, BLOCK), vec![7; BLOCK as usize]);
}

#[test]
fn ranges_that_leave_the_memory_are_refused_as_ever() {
    let mut pes = two_pes(2);
    let command = Command::Put { dest: HEAP as u64 - BLOCK, source: Source::Stable(pes[0].own(0)), len: BLOCK + 1 };
    // SAFETY: nothing is started.
    let error = unsafe { pes[0].engine.submit(1, command, Owner { issuer: HOST, tag: None }) }.unwrap_err();
    assert!(error.to_string().contains("PE 1"), "{error}");
}

/// The owner of an operation that has timed out has its buffers back: no byte is sent from them after that.
#[test]
fn nothing_is_sent_from_buffers_of_operations_that_came_too_late() {
    const LEN: u64 = 2000;
    // The target's progress at the time-out.
    for rounds in [3, 6, 12, 25, 50, 100] {
        let mut pes = two_pes_within(0, 1);
        let mut host = vec![1u8; LEN as usize];
        for _ in 0..3000 {
            let put = Command::Put { dest: BLOCK, source: Source::Stable(host.as_ptr()), len: LEN };
            // SAFETY: the buffer lives as long as the engines.
            if unsafe { pes[0].engine.submit(1, put, Owner { issuer: HOST, tag: None }) }.is_err() {
                break;
            }
        }
        pes[0].engine.tick(1);
        for _ in 0..rounds {
            for pe in &mut pes {
                pe.engine.poll();
            }
        }
        pes[0].engine.tick(2);
        if !pes[0].engine.is_quiet(HOST) {
            continue;
        }
        host.fill(0xee);
        for _ in 0..20_000 {
            for pe in &mut pes {
                pe.engine.poll();
            }
            assert!(!pes[1].bytes(BLOCK, LEN).contains(&0xee), "{rounds}: bytes of a buffer that is its owner's again");
        }
    }
}

/// Starts many commands of PE 0 in one round, and runs them to their ends.
fn run_all(pes: &mut [Pe; 2], commands: impl Iterator<Item = Command>) -> [Vec<Did>; 2] {
    for command in commands {
        // SAFETY: as for `run`.
        unsafe { pes[0].engine.submit(1, command, Owner { issuer: HOST, tag: None }) }.unwrap();
    }
    run(pes, Command::Put { dest: 8, source: Source::Copied([5u8; 8].as_ptr()), len: 8 })
}

#[test]
fn what_has_come_together_is_copied_together() {
    const MANY: u64 = 128;
    let mut pes = two_pes(0);
    let values: Vec<u64> = (100..100 + MANY).collect();
    let copies = |did: &[Did]| did.iter().filter(|did| matches!(did, Did::Copied(_))).count();
    for round in 0..4 {
        let p = |(i, value): (u64, &u64)| Command::Put {
            dest: 4096 + 8 * i,
            source: Source::Copied((&raw const *value).cast()),
            len: 8,
        };
        let [source, target] = run_all(&mut pes, (0..).zip(&values).map(p));
        let words: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        assert_eq!(pes[1].bytes(4096, 8 * MANY), words);
        assert!(source.is_empty() && (1..=8).contains(&copies(&target)), "puts, {round}: {target:?}");

        let add = |i| Command::Amo {
            offset: 16384 + 8 * i,
            ty: AmoType::U64,
            op: AmoOp::Add,
            operand: i,
            compare: 0,
            fetch: Fetch::No,
        };
        let [_, target] = run_all(&mut pes, (0..MANY).map(add));
        let sums: Vec<u8> = (0..MANY).flat_map(|i| (i * (round + 1)).to_ne_bytes()).collect();
        assert_eq!(pes[1].bytes(16384, 8 * MANY), sums);
        assert!((2..=16).contains(&copies(&target)), "additions, {round}: {target:?}");

        let mut got = [0u64; MANY as usize];
        let at = got.as_mut_ptr();
        let g = |i| Command::Get { source: 4096 + 8 * i, dest: at.wrapping_add(i as usize).cast(), len: 8 };
        let [_, target] = run_all(&mut pes, (0..MANY).map(g));
        assert_eq!(got[..], values);
        assert!((1..=8).contains(&copies(&target)), "gets, {round}: {target:?}");
    }
}
