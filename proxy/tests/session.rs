//! Two sessions over `tcp;ofi_rxm` with two rails. A part of their memory is host memory. Neither rails nor the CPU can
//! access the other part, so a direct access ends the test by a fault.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Barrier, Mutex};

use symrail_heap::guarded::{GuardedCopyEngine, GuardedMemory};
use symrail_proxy::session::memory::HANDLE_SIZE;
use symrail_proxy::session::{Place, Progress, Session};
use symrail_proxy::stage::STAGING_BUFFER_BYTES;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::backend::HostPes;
use symrail_transport::endpoint::command::Source;
use symrail_transport::env::Settings;
use symrail_transport::topology::allowed_cpus;

const HEAP: usize = 4 << 20;
const WORDS: u64 = (HEAP - 4096) as u64;

/// The exchange of connection infos and handles between both PEs.
struct Exchange {
    barrier: Barrier,
    said: Mutex<[Vec<u8>; 2]>,
}

impl Exchange {
    fn exchange(&self, me: usize, mine: Vec<u8>) -> [Vec<u8>; 2] {
        self.said.lock().unwrap()[me] = mine;
        self.barrier.wait();
        let all = self.said.lock().unwrap().clone();
        self.barrier.wait();
        all
    }
}

/// One PE's memory of both kinds, and both PEs' handles.
struct Pe {
    session: Session,
    guarded: Arc<GuardedMemory>,
    host: Vec<u64>,
    /// For each PE: guarded memory, host memory.
    handles: [[[u8; HANDLE_SIZE]; 2]; 2],
}

fn open(me: usize, exchange: &Exchange) -> Option<Pe> {
    let settings = Settings::from_iter([
        ("SYMRAIL_TRANSPORT", "libfabric"),
        ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
        ("SYMRAIL_NIC_LIST", "127.0.0.2,127.0.0.3"),
        ("SYMRAIL_TIMEOUT_S", "20"),
    ])
    .unwrap();
    let guarded = GuardedMemory::new(HEAP).unwrap();
    let copy_engine = GuardedCopyEngine::new(Arc::clone(&guarded), STAGING_BUFFER_BYTES, 7 + me as u64).unwrap();
    let alone = HostPes::alone(allowed_cpus());
    let session = match Session::open(me as u32, 2, &alone, &settings, Progress::Thread, Some(Box::new(copy_engine))) {
        Ok(session) => session,
        Err(error) => {
            println!("SKIPPED: {error}");
            return None;
        }
    };
    session.connect(&exchange.exchange(me, session.connection_info())).unwrap();
    let mut host = vec![0u64; HEAP / 8];
    let mine = [
        // SAFETY: as below. TCP does not access it.
        unsafe { session.register_staged(guarded.base().as_ptr(), HEAP, Ok(&guarded.export())) }.unwrap(),
        // SAFETY: it lives as long as the session, and only raw pointers access it.
        unsafe { session.register(host.as_mut_ptr().cast(), HEAP) }.unwrap(),
    ];
    let all = exchange.exchange(me, mine.iter().flat_map(|memory| memory.encode()).collect());
    let handles = all.map(|bytes| {
        let (handles, _) = bytes.as_chunks::<HANDLE_SIZE>();
        [handles[0], handles[1]]
    });
    Some(Pe { session, guarded, host, handles })
}

impl Pe {
    /// The address at which the test can access this PE's memory of a kind.
    fn see(&self, kind: usize) -> *mut u8 {
        match kind {
            0 => self.guarded.reachable(self.guarded.base().addr().get(), HEAP).unwrap(),
            _ => self.host.as_ptr().cast_mut().cast(),
        }
    }

    /// The address that operations use.
    fn local(&self, kind: usize) -> *mut u8 {
        if kind == 0 { self.guarded.base().as_ptr() } else { self.see(1) }
    }

    fn place(&self, pe: usize, kind: usize, at: u64) -> Place<'_> {
        Place::new(&self.handles[pe][kind], at).unwrap()
    }

    fn word(&self, kind: usize, at: u64) -> u64 {
        // SAFETY: inside of this PE's memory, and aligned.
        unsafe { self.see(kind).add(at as usize).cast::<u64>().read_volatile() }
    }
}

fn byte(i: usize, seed: usize) -> u8 {
    (i * 13 + i / 4093 + 101 * seed) as u8
}

fn run(me: usize, exchange: &Exchange) {
    let Some(pe) = open(me, exchange) else { return };
    let (session, peer) = (&pe.session, 1 - me);
    let third = HEAP / 3;
    // From each kind of local memory to each kind of the peer's: a put, one with a signal, and a get.
    for (round, (near, far)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        for len in [1, 8, 5000, 1_000_003] {
            let seed = 17 * round + len;
            for i in 0..len {
                // SAFETY: inside of the second third of this PE's memory, which no other code uses now.
                unsafe { pe.see(near).add(third + i).write_volatile(byte(i, seed + me)) };
            }
            let value = (100 * round + len) as u64;
            let source = Source::Stable(pe.local(near).wrapping_add(third));
            // SAFETY: memory of this PE that stays unchanged until the quiet.
            unsafe {
                let signal = pe.place(peer, far, WORDS);
                let (to, data) = (pe.place(peer, far, 0), (source, len as u64));
                session.put_signal(3, to, data, signal, (AmoOp::Set, value)).unwrap();
            }
            while pe.word(far, WORDS) != value {
                std::thread::yield_now();
            }
            for i in (0..len).rev() {
                // SAFETY: inside of this PE's memory.
                let got = unsafe { pe.see(far).add(i).read_volatile() };
                assert_eq!(got, byte(i, seed + peer), "{near} to {far}, {len} bytes, at {i}");
            }
            session.quiet(3).unwrap();
            let back = pe.local(near).wrapping_add(2 * third);
            // SAFETY: memory of this PE that no other code uses until the quiet.
            unsafe { session.get(4, pe.place(peer, far, 0), back, len as u64) }.unwrap();
            session.quiet(4).unwrap();
            for i in 0..len {
                // SAFETY: inside of this PE's memory.
                assert_eq!(unsafe { pe.see(near).add(2 * third + i).read_volatile() }, byte(i, seed + me));
            }
            exchange.barrier.wait();
        }
    }
    // AMOs of both PEs on words of PE 0, copied values, and AMOs on a PE's own word.
    for kind in [0, 1] {
        for i in 0..200u64 {
            // SAFETY: no buffers but a copied word.
            unsafe {
                let sum = pe.place(0, kind, WORDS + 8);
                session.amo(0, sum, (AmoOp::Add, AmoType::U64), (i, 0), None).unwrap();
                let to = pe.place(peer, kind, WORDS + 64 + 8 * i);
                session.put(0, to, Source::Copied((&raw const i).cast()), 8).unwrap();
            }
        }
        let mut old = [7u64; 2];
        for (at, target) in [me, peer].into_iter().enumerate() {
            let word = pe.place(target, kind, WORDS + 16 + 8 * me as u64);
            let place = (&raw mut old).cast::<u64>().wrapping_add(at).cast();
            // SAFETY: it stays until the quiet.
            unsafe { session.amo(0, word, (AmoOp::CompareSwap, AmoType::U64), (5, 0), Some(place)) }.unwrap();
        }
        session.quiet(0).unwrap();
        assert_eq!(old, [0, 0]);
        exchange.barrier.wait();
        let sum = if me == 0 { 2 * (0..200).sum::<u64>() } else { 0 };
        assert_eq!(pe.word(kind, WORDS + 8), sum);
        assert_eq!((pe.word(kind, WORDS + 16), pe.word(kind, WORDS + 24)), (5, 5));
        assert!((0..200).all(|i| pe.word(kind, WORDS + 64 + 8 * i) == i));
    }
    // A range outside of the memory is refused, and so is memory that is no longer registered.
    let outside = pe.place(peer, 0, HEAP as u64 - 1);
    // SAFETY: nothing is started.
    assert!(unsafe { session.put(0, outside, Source::Stable(pe.local(1)), 2) }.is_err());
    exchange.barrier.wait();
    for handle in &pe.handles[me] {
        session.deregister(&symrail_proxy::session::memory::Memory::decode(handle).unwrap());
        // SAFETY: nothing is started.
        assert!(unsafe { session.put(0, Place::new(handle, 0).unwrap(), Source::Stable(pe.local(1)), 2) }.is_err());
    }
    exchange.barrier.wait();
}

#[test]
fn memory_of_both_kinds() {
    let exchange = Exchange { barrier: Barrier::new(2), said: Mutex::default() };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|me| {
                scope.spawn({
                    let m = &exchange;
                    move || run(me, m)
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
