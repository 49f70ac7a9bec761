//! Peers' memory that a PE's device has mapped: the copies of its copy engine to and from it, their order, and the
//! effect of failed copies. The CPU touches none of it.
#![allow(clippy::unwrap_used)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use symrail_heap::copy_engine::{Between, Copy, CopyCompletion, CopyEngine};
use symrail_heap::guarded::{GuardedCopyEngine, GuardedMemory};
use symrail_proxy::channel::{Channel, Local, Producer, Request, SignalOp, Width};
use symrail_proxy::stage::STAGING_BUFFER_BYTES;
use symrail_proxy::{Engine, HOST};
use symrail_transport::endpoint::command::{Command, Owner, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;
use symrail_transport::wire::Token;

const HEAP: usize = 16 << 20;
const ID: u32 = 3;
/// Offsets of the target's data and words.
const DEST: u64 = 1 << 20;
const SIGNAL: u64 = HEAP as u64 - 8;
const FLAG: u64 = HEAP as u64 - 16;

/// A copy engine that counts copies, and fails on request.
struct Watched {
    copy_engine: GuardedCopyEngine,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The number of copies through the staging buffer, and between memories.
    staging_buffer: AtomicUsize,
    between: AtomicUsize,
    /// Whether copies between memories end in an error, and copy nothing.
    fails: AtomicBool,
    failed: std::sync::Mutex<Vec<u64>>,
}

// SAFETY: all calls are those of the inner copy engine.
unsafe impl CopyEngine for Watched {
    fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        self.copy_engine.staging_buffer()
    }

    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String> {
        self.seen.staging_buffer.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.copy_engine.start(copy, ticket) }
    }

    fn prepare_peer(&mut self, peer: usize) -> Result<(), String> {
        self.copy_engine.prepare_peer(peer)
    }

    unsafe fn start_between(&mut self, copy: Between, ticket: u64) -> Result<(), String> {
        self.seen.between.fetch_add(1, Ordering::Relaxed);
        if self.seen.fails.load(Ordering::Relaxed) {
            self.seen.failed.lock().unwrap().push(ticket);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.copy_engine.start_between(copy, ticket) }
    }

    fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize {
        let failed = std::mem::take(&mut *self.seen.failed.lock().unwrap());
        let count = failed.len();
        failed.into_iter().for_each(|ticket| ended(CopyCompletion { ticket, result: Err("the link is down".into()) }));
        count + self.copy_engine.poll(ended)
    }

    fn pending(&self) -> usize {
        self.copy_engine.pending() + self.seen.failed.lock().unwrap().len()
    }

    fn writing(&self) -> usize {
        self.copy_engine.writing()
    }
}

struct Pe {
    engine: Engine,
    device: Producer,
    memory: Arc<GuardedMemory>,
    seen: Arc<Seen>,
}

impl Pe {
    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let at = self.memory.reachable(self.memory.base().addr().get() + offset as usize, len).unwrap();
        // SAFETY: `reachable` checked the range; rails and copy engines of the test run in this thread.
        unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let at = self.memory.reachable(self.memory.base().addr().get() + offset as usize, bytes.len()).unwrap();
        // SAFETY: as above.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn word(&self, offset: u64) -> u64 {
        u64::from_ne_bytes(self.bytes(offset, 8).try_into().unwrap())
    }

    fn did(&self) -> [usize; 2] {
        [&self.seen.staging_buffer, &self.seen.between].map(|count| count.swap(0, Ordering::Relaxed))
    }
}

/// Two PEs. If `mapped`, the first has mapped the other's memory.
fn two_pes(mapped: bool) -> [Pe; 2] {
    let fabric = Fabric::new(1, FabricConfig { again: 0, ..FabricConfig::default() });
    let policy = Policy::new(&Settings::default(), false);
    let memories = [(); 2].map(|()| GuardedMemory::new(HEAP).unwrap());
    let mut windows = Vec::new();
    let mut pes = [0u32, 1].map(|me| {
        let rails = vec![fabric.open(&format!("pe{me}")).unwrap()];
        let mut engine = Engine::new(Endpoint::new(Role::Proxy, me, 2, rails, policy).unwrap());
        let memory = Arc::clone(&memories[me as usize]);
        let copy_engine = GuardedCopyEngine::new(Arc::clone(&memory), STAGING_BUFFER_BYTES, 5 + u64::from(me)).unwrap();
        let copy_engine = copy_engine.with_peers(Arc::new(vec![Arc::clone(&memories[1 - me as usize])].into()));
        let seen = Arc::<Seen>::default();
        windows.push(engine.stage(Box::new(Watched { copy_engine, seen: Arc::clone(&seen) })).unwrap());
        // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
        let segment = unsafe { Segment::new(ID, 0, memory.base().as_ptr(), HEAP as u64) };
        // SAFETY: the memory outlives the engine.
        unsafe { engine.add_staged_segment(segment) };
        if mapped {
            let bases = memories.iter().map(|memory| memory.base().addr().get()).collect();
            // SAFETY: all PEs' memory, which outlives the engines.
            assert_eq!(unsafe { engine.map_peers(&segment, bases) }, []);
        }
        let (device, consumer) = Channel::new(64, 64).unwrap();
        engine.add_channel(consumer);
        Pe { engine, device, memory, seen }
    });
    let nobody = Token::default().with_address(fabric.open("nobody's").unwrap().address());
    let addresses = [0, 1].map(|me: usize| Addresses { host: vec![nobody.clone()], proxy: pes[me].engine.addresses() });
    for pe in &mut pes {
        for (peer, addresses) in addresses.iter().enumerate() {
            pe.engine.endpoint().connect(peer as u32, addresses).unwrap();
        }
        pe.engine.learn_window(&windows).unwrap();
    }
    pes
}

fn poll(pes: &mut [Pe; 2]) {
    for pe in pes {
        pe.engine.poll();
    }
}

/// Pushes the requests of a kernel of PE 0, up to its quiet. `check` may read the memories in each round.
fn ask(pes: &mut [Pe; 2], requests: &[Request], mut check: impl FnMut(&[Pe; 2])) {
    let last = requests.iter().map(|request| pes[0].device.try_push(request).unwrap()).fold(0, u64::max);
    for _ in 0..200_000 {
        poll(pes);
        check(pes);
        if pes[0].device.completed() > last {
            break;
        }
    }
    assert!(pes[0].device.completed() > last, "requests do not end");
}

fn put(from: u64, dest: u64, size: usize) -> Request {
    Request::Put { pe: 1, offset: dest, local: Local::Symmetric(from), size: size as u64, reply: None }
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + (i >> 8) * 13 + salt * 101 + 1) as u8).collect()
}

#[test]
fn puts_and_gets_of_every_size_are_copied_by_the_device() {
    let mut pes = two_pes(true);
    for (salt, size) in [3, 16, 4096, 4097, 70_001, 1 << 20, (9 << 20) + 5].into_iter().enumerate() {
        let (from, dest) = (7, DEST + salt as u64);
        pes[0].write(from, &pattern(size, salt));
        pes[1].write(DEST, &vec![0xee; size + 16]);
        ask(&mut pes, &[put(from, dest, size)], |_| {});
        assert_eq!(pes[1].bytes(DEST, salt), vec![0xee; salt]);
        assert!(pes[1].bytes(dest, size) == pattern(size, salt), "{size} bytes put");
        assert_eq!(pes[1].bytes(dest + size as u64, 3), [0xee; 3]);

        pes[1].write(dest, &pattern(size, salt + 50));
        let local = Local::Symmetric(from);
        ask(&mut pes, &[Request::Get { pe: 1, offset: dest, local, size: size as u64, reply: None }], |_| {});
        assert!(pes[0].bytes(from, size) == pattern(size, salt + 50), "{size} bytes got");
        assert_eq!(pes[0].device.errors(), 0);
        assert_eq!((pes[0].did(), pes[1].did()), ([0, 2], [0, 0]), "{size} bytes: one copy each, and nothing else");
    }
}

#[test]
fn what_is_not_mapped_goes_through_the_window() {
    let mut pes = two_pes(false);
    pes[0].write(0, &pattern(70_001, 1));
    ask(&mut pes, &[put(0, DEST, 70_001)], |_| {});
    assert!(pes[1].bytes(DEST, 70_001) == pattern(70_001, 1));
    let [mine, theirs] = [0, 1].map(|pe: usize| pes[pe].did());
    assert!(mine[0] > 0 && theirs[0] > 0 && (mine[1], theirs[1]) == (0, 0));
}

/// A PE's own memory is never copied this way: its device may have no room for the kernel that would do it.
#[test]
fn a_pes_own_memory_goes_through_the_window() {
    let mut pes = two_pes(true);
    pes[0].write(0, &pattern(9000, 1));
    let own = Request::Put { pe: 0, offset: DEST, local: Local::Symmetric(0), size: 9000, reply: None };
    ask(&mut pes, &[own], |_| {});
    assert!(pes[0].bytes(DEST, 9000) == pattern(9000, 1));
    let [staging_buffer, between] = pes[0].did();
    assert!(staging_buffer > 0 && between == 0);
}

#[test]
fn signals_and_what_comes_behind_a_fence_follow_the_data() {
    let mut pes = two_pes(true);
    let size = 200_000;
    for round in 1..=50u64 {
        let (first, second) = (pattern(size, round as usize), pattern(size, round as usize + 100));
        pes[0].write(0, &first);
        pes[0].write(4 << 20, &second);
        let signalled = Request::PutSignal {
            pe: 1,
            offset: DEST,
            local: Local::Symmetric(0),
            size: size as u64,
            signal: SIGNAL,
            op: SignalOp::Add,
            value: 2,
            reply: None,
        };
        let flag = Request::P { pe: 1, offset: FLAG, width: Width::W8, value: round };
        let requests = [put(4 << 20, 8 << 20, size), signalled, Request::Fence, flag];
        let mut seen = [false; 2];
        ask(&mut pes, &requests, |pes| {
            if pes[1].word(SIGNAL) == 2 * round && !std::mem::replace(&mut seen[0], true) {
                assert!(pes[1].bytes(DEST, size) == first, "the signal of round {round} came before its data");
            }
            if pes[1].word(FLAG) == round && !std::mem::replace(&mut seen[1], true) {
                assert!(pes[1].bytes(8 << 20, size) == second, "what came behind the fence of round {round} was first");
                assert_eq!(pes[1].word(SIGNAL), 2 * round);
            }
        });
        assert_eq!((seen, pes[0].device.errors()), ([true; 2], 0));
        assert_eq!(pes[0].did()[1], 2, "both puts were copied");
    }
}

#[test]
fn a_copy_that_fails_is_told_and_its_signal_is_not_sent() {
    let mut pes = two_pes(true);
    pes[0].seen.fails.store(true, Ordering::Relaxed);
    let (signal, op) = (SIGNAL, SignalOp::Set);
    let local = Local::Symmetric(0);
    let request = Request::PutSignal { pe: 1, offset: DEST, local, size: 70_000, signal, op, value: 9, reply: None };
    ask(&mut pes, &[request], |_| {});
    for _ in 0..1000 {
        poll(&mut pes);
    }
    assert_eq!((pes[0].device.errors(), pes[1].word(SIGNAL)), (1, 0));
    let error = pes[0].engine.take_device_error().unwrap().to_string();
    assert!(["PE 1", "70000", "the link is down"].iter().all(|part| error.contains(part)), "{error}");
    // The next one succeeds.
    pes[0].seen.fails.store(false, Ordering::Relaxed);
    pes[0].write(0, &pattern(70_000, 4));
    ask(&mut pes, &[request], |_| {});
    assert!(pes[1].bytes(DEST, 70_000) == pattern(70_000, 4) && pes[1].word(SIGNAL) == 9);
}

#[test]
fn ranges_that_leave_the_memory_are_refused() {
    let mut pes = two_pes(true);
    ask(&mut pes, &[put(0, HEAP as u64 - 70_000, 70_001)], |_| {});
    assert_eq!((pes[0].device.errors(), pes[0].did()), (1, [0, 0]));
    let error = pes[0].engine.take_device_error().unwrap().to_string();
    assert!(error.contains("PE 1"), "{error}");
    let command =
        Command::Put { dest: DEST, source: Source::Stable(pes[0].memory.base().as_ptr()), len: HEAP as u64 + 1 };
    // SAFETY: nothing is started.
    unsafe { pes[0].engine.submit(1, command, Owner { issuer: HOST, tag: None }) }.unwrap_err();
}

#[test]
fn memory_that_the_device_does_not_copy_to_is_reached_through_the_window() {
    let mut pes = two_pes(false);
    let stranger = GuardedMemory::new(HEAP).unwrap();
    // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
    let segment = unsafe { Segment::new(ID, 0, pes[0].memory.base().as_ptr(), HEAP as u64) };
    // SAFETY: memory of as many bytes, which outlives the engine.
    let refused = unsafe { pes[0].engine.map_peers(&segment, vec![0, stranger.base().addr().get()]) };
    assert!(matches!(&refused[..], [(1, why)] if why.contains("not guarded memory")), "{refused:?}");
    pes[0].write(0, &pattern(70_001, 2));
    ask(&mut pes, &[put(0, DEST, 70_001)], |_| {});
    assert!(pes[1].bytes(DEST, 70_001) == pattern(70_001, 2) && pes[0].device.errors() == 0);
    let [staging_buffer, between] = pes[0].did();
    assert!(staging_buffer > 0 && between == 0);
}
