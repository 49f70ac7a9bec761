//! The device code of sends and receives, compiled for the CPU.
#![allow(clippy::unwrap_used, missing_docs)]

use symrail_collectives::Transfer;
use symrail_collectives::gpu::Memory;
use symrail_collectives::gpu::encode::Reached;
use symrail_collectives::gpu::exchange::{Places, launches};

use crate::emulation::{Call, library};

type Exchange = unsafe extern "C" fn(*const Call);

const THREADS: u64 = 3;
const TIMEOUT_NS: u64 = 20_000_000_000;

/// A PE: its symmetric heap (words, slots, as many slots for the proxy), the kernels' parameters, and their report.
struct Pe {
    heap: Vec<u64>,
    image: Vec<u64>,
    report: Vec<u64>,
    places: Places,
}

/// PEs that access one another directly, or only through the proxy.
fn pes(n: u32, mapped: bool) -> Vec<Pe> {
    reaching(n, |_, _| mapped)
}

/// PEs of which one accesses another directly, or only through the proxy.
fn reaching(n: u32, reaches: impl Fn(u32, u32) -> bool) -> Vec<Pe> {
    let all = u64::from(n);
    let (words, slots) = ((8 + Places::word_bytes(all)).next_multiple_of(16), Places::slot_bytes(all));
    let zeros = |bytes: u64| vec![0u64; bytes as usize / 8];
    let new = |_| Pe {
        heap: zeros(words + 2 * slots),
        image: zeros(Places::image_bytes(all)),
        report: vec![0; 4],
        places: Places {
            me: 0,
            image: 0,
            words: 0,
            stop: 0,
            inbox: 0,
            outgoing: 0,
            report: 0,
            pes: Vec::new(),
            reached_by: Vec::new(),
        },
    };
    let mut pes: Vec<Pe> = (0..n).map(new).collect();
    let bases: Vec<u64> = pes.iter().map(|pe| pe.heap.as_ptr() as u64).collect();
    for (me, pe) in (0..n).zip(&mut pes) {
        let base = bases[me as usize];
        let direct = |from: u32, to: u32| from == to || reaches(from, to);
        let atomics = (0..n).all(|other| direct(me, other));
        let to = |other: u32| Reached {
            pe: other,
            distance: direct(me, other).then(|| bases[other as usize].wrapping_sub(base)),
            atomics,
        };
        let (image, report) = (pe.image.as_ptr() as u64, pe.report.as_ptr() as u64);
        let (inbox, outgoing) = (base + words, base + words + slots);
        let reached_by = (0..n).map(|other| direct(other, me)).collect();
        let pes = (0..n).map(to).collect();
        let places = Places { me, image, words: base + 8, stop: base, inbox, outgoing, report, pes, reached_by };
        let first = places.first_words();
        pe.heap[1..=first.len()].copy_from_slice(&first);
        pe.image.copy_from_slice(&places.image());
        pe.places = places;
    }
    pes
}

/// Runs each PE's transfers concurrently.
fn run(pes: &[Pe], transfers: &[Vec<Transfer<Memory>>], timeout_ns: u64) {
    // SAFETY: the function's type.
    let exchange = unsafe { library().unwrap().get::<Exchange>(b"exchange") }.unwrap();
    let bases: Vec<u64> = pes.iter().map(|pe| pe.heap.as_ptr() as u64).collect();
    std::thread::scope(|scope| {
        for (me, pe) in pes.iter().enumerate() {
            let (exchange, bases) = (&exchange, &bases);
            scope.spawn(move || {
                let apart: Vec<u64> = bases.iter().map(|base| base.wrapping_sub(bases[me])).collect();
                let all = launches(&pe.places, &transfers[me]).unwrap();
                for (from, to) in all.own {
                    // SAFETY: memory of this test, which nothing else uses now.
                    unsafe { std::ptr::copy(from.at as *const u8, to.at as *mut u8, to.len as usize) };
                }
                for launch in all.calls {
                    let call = Call {
                        plan: 0,
                        input: launch.argument.as_ptr() as u64,
                        output: launch.size as u64,
                        part: 0,
                        chunk: 0,
                        how: 0,
                        blocks: launch.shape.blocks.into(),
                        threads: THREADS,
                        pe: me as u64,
                        timeout_ns,
                        apart: apart.as_ptr(),
                    };
                    // SAFETY: everything that it names exists until all threads have ended.
                    unsafe { exchange(&call) };
                }
            });
        }
    });
}

fn memory(bytes: &[u8]) -> Memory {
    Memory { at: bytes.as_ptr() as u64, len: bytes.len() as u64 }
}

fn byte(from: usize, to: usize, number: usize, at: usize) -> u8 {
    (from * 89 + to * 37 + number * 11 + at * 7 + at / 251) as u8
}

/// Each PE sends each PE, itself included, some messages of all sizes, round after round.
fn everything_arrives(n: usize, mapped: bool, sizes: &[usize]) {
    all_arrive(&pes(n as u32, mapped), sizes, &format!("mapped {mapped}"));
}

fn all_arrive(pes: &[Pe], sizes: &[usize], which: &str) {
    let n = pes.len();
    for round in 0..2 {
        let content = |from: usize, to: usize| -> Vec<Vec<u8>> {
            let message = |(i, &len): (usize, &usize)| (0..len).map(|at| byte(from, to, i + round, at)).collect();
            sizes.iter().enumerate().map(message).collect()
        };
        let all = |pe: usize, way: fn(usize, usize) -> (usize, usize)| -> Vec<Vec<Vec<u8>>> {
            (0..n).map(|peer| way(pe, peer)).map(|(from, to)| content(from, to)).collect()
        };
        let sent: Vec<_> = (0..n).map(|pe| all(pe, |me, peer| (me, peer))).collect();
        let got: Vec<Vec<Vec<Vec<u8>>>> = sent
            .iter()
            .map(|to| to.iter().map(|all| all.iter().map(|one| vec![0; one.len()]).collect()).collect())
            .collect();
        let mut transfers = Vec::new();
        for pe in 0..n {
            let mut of_pe = Vec::new();
            for peer in 0..n {
                let to = peer as u32;
                of_pe.extend(sent[pe][peer].iter().map(|bytes| Transfer::Send { to, memory: memory(bytes) }));
                of_pe.extend(got[pe][peer].iter().map(|bytes| Transfer::Receive { from: to, memory: memory(bytes) }));
            }
            transfers.push(of_pe);
        }
        run(pes, &transfers, TIMEOUT_NS);
        for (pe, got) in got.iter().enumerate() {
            let expected = all(pe, |me, peer| (peer, me));
            assert!(*got == expected, "PE {pe} of {n}, {which}, round {round}");
            assert_eq!(pes[pe].report[0], 0, "PE {pe} gave up");
        }
    }
}

#[test]
fn all_sizes_arrive_among_two_and_three() {
    if library().is_some() {
        // More bytes than all slots of all lanes hold.
        everything_arrives(2, true, &[0, 1, 1000, 65_536, 65_537, 9_000_001]);
        everything_arrives(3, true, &[3, 200_000, 0, 7]);
        // Eight rows, and their own: the argument of medium size.
        everything_arrives(5, true, &[1000]);
    }
}

/// A lane's slots are filled by packets and without, in turns, at both sides of the largest transfer in packets, and of
/// the largest in those of one lane.
#[test]
fn packets_and_slots_alternate() {
    if library().is_some() {
        everything_arrives(2, true, &[4096, 131_073, 1, 70_000, 8, 131_072, 7, 4097, 9, 600_000, 16, 2]);
    }
}

#[test]
fn the_proxy_carries_what_is_not_mapped() {
    if library().is_some() {
        everything_arrives(2, false, &[5, 65_536, 400_003]);
    }
}

/// Both ends divide a transfer alike, though only one of them has mapped the other.
#[test]
fn one_end_has_mapped_the_other() {
    if library().is_some() {
        for mapped_by in [0, 1] {
            let pes = reaching(2, |from, _| from == mapped_by);
            all_arrive(&pes, &[5000, 1 << 20], &format!("mapped by PE {mapped_by}"));
        }
    }
}

#[test]
fn more_transfers_than_one_launch_takes_arrive() {
    if library().is_some() {
        everything_arrives(2, true, &[9; 150]);
    }
}

/// Bytes that the slots between two of `n` PEs do not hold.
fn more_than_slots(n: u64) -> usize {
    (Places::slot_bytes(n) / (n - 1)) as usize + 1
}

#[test]
fn a_send_that_nobody_receives_ends_with_the_name_of_the_receiver() {
    if library().is_none() {
        return;
    }
    let pes = pes(2, true);
    let bytes = vec![1; more_than_slots(2)];
    let send = vec![Transfer::Send { to: 1, memory: memory(&bytes) }];
    run(&pes, &[send, Vec::new()], 50_000_000);
    assert_eq!(pes[0].report[..3], [1, 1, bytes.len() as u64 * 2], "late, PE 1, a send of so many bytes");
}

#[test]
fn all_learn_that_a_send_was_given_up() {
    if library().is_none() {
        return;
    }
    for mapped in [true, false] {
        let pes = pes(3, mapped);
        let bytes = vec![1; more_than_slots(3)];
        run(&pes, &[vec![Transfer::Send { to: 1, memory: memory(&bytes) }], Vec::new(), Vec::new()], 50_000_000);
        let receive = |from| vec![Transfer::Receive { from, memory: memory(&bytes) }];
        // These waits would outlast any test.
        run(&pes, &[Vec::new(), receive(2), receive(1)], u64::MAX / 2);
        assert_eq!(pes[0].report[..2], [1, 1], "late, PE 1; mapped {mapped}");
        for pe in [1, 2] {
            assert_eq!(pes[pe].report[..2], [2, 0], "PE {pe} was told by PE 0; mapped {mapped}");
        }
    }
}

/// The receiver reports both sizes, and the sender gets the error, now or at its next call.
#[test]
fn sizes_that_differ_are_said_at_both_ends() {
    if library().is_none() {
        return;
    }
    for mapped in [true, false] {
        for (sent, received) in [(1000, 600), (600, 1000), (5 << 20, 64), (64, 5 << 20), (70_000, 65_536)] {
            let pes = pes(2, mapped);
            let bytes = vec![1u8; 5 << 20];
            let memory = |len: usize| Memory { at: bytes.as_ptr() as u64, len: len as u64 };
            let send = vec![Transfer::Send { to: 1, memory: memory(sent) }];
            run(&pes, &[send, vec![Transfer::Receive { from: 0, memory: memory(received) }]], TIMEOUT_NS);
            let what = format!("{sent} bytes as {received}, mapped {mapped}");
            let report = &pes[1].report;
            assert_eq!((report[0] & 0xff, report[0] >> 8, report[1]), (4, sent as u64, 0), "{what}");
            assert_eq!(report[2], (received as u64) << 1 | 1, "{what}");
            // The bytes that fit into the slots were sent before.
            run(&pes, &[vec![Transfer::Send { to: 1, memory: memory(1) }], Vec::new()], TIMEOUT_NS);
            assert_eq!(pes[0].report[..2], [2, 1], "{what}");
        }
    }
}

#[test]
fn slots_are_smaller_among_many() {
    if library().is_some() {
        // Each slot for one of the 79 other PEs has 128 KiB, and packets.
        assert_eq!(Places::slot_bytes(80), 79 * 4 * ((128 << 10) + 16 + (8 << 10) + 16));
        let n = 80;
        let pes = pes(n, true);
        let sent: Vec<u8> = (0..300_000).map(|at| byte(0, 79, 0, at)).collect();
        let got = vec![0; sent.len()];
        let mut transfers = vec![Vec::new(); n as usize];
        transfers[0] = vec![Transfer::Send { to: n - 1, memory: memory(&sent) }];
        transfers[n as usize - 1] = vec![Transfer::Receive { from: 0, memory: memory(&got) }];
        run(&pes, &transfers, TIMEOUT_NS);
        assert!(got == sent);
    }
}
