//! The device code of collectives without a plan, compiled for the CPU: a CPU thread for each thread of each block of
//! each PE. Properties that only a GPU has (its memory order, its instructions) are not tested here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use symrail_collectives::gpu::encode::Reached;
use symrail_collectives::gpu::straight::{Addresses, GATHER, SCATTER, Sizes, StraightCall, Way};
use symrail_collectives::plan::Collective;
use symrail_collectives::{Accumulate, DataType, ReduceOp, TYPES_ON_GPUS};
use symrail_tests::collectives::{Data, OPS, difference, parts, places};

use crate::emulation::{Call, library};

type Straight = unsafe extern "C" fn(i32, *const Call);

/// Offsets of a PE's words, packets, slots, source and destination.
const WORDS: u64 = 64;
const PACKETS: u64 = 64 << 10;
const RINGS: u64 = 1 << 20;
const SOURCE: u64 = 4 << 20;
const DEST: u64 = 5 << 20;
const HEAP: usize = 6 << 20;

/// PEs in one process, each with its heap.
struct Pes {
    heaps: Vec<Vec<u64>>,
    reports: Vec<Vec<u64>>,
    words: Vec<Vec<u64>>,
    sizes: Sizes,
    timeouts_ns: Vec<u64>,
}

/// The parameters of a call's execution.
#[derive(Debug, Clone, Copy)]
struct How {
    way: Way,
    blocks: u64,
    threads: u64,
    chunk: u64,
    average: bool,
    root: usize,
}

impl Pes {
    /// PEs with `data` bytes of packets, and slots of `slot` bytes.
    fn new(n: usize, data: u64, slot: u64) -> Pes {
        let sizes = Sizes::with(n as u64, data, slot);
        assert!(WORDS + 8 + sizes.filled() <= PACKETS && PACKETS + sizes.packets() <= RINGS);
        assert!(RINGS + sizes.rings() <= SOURCE);
        let zeros = |len: usize| (0..n).map(|_| vec![0u64; len]).collect::<Vec<_>>();
        let (heaps, words) = (zeros(HEAP / 8 + 2), zeros(sizes.words() as usize / 8));
        Pes { heaps, reports: zeros(4), words, sizes, timeouts_ns: vec![20_000_000_000; n] }
    }

    fn base(&self, pe: usize) -> u64 {
        (self.heaps[pe].as_ptr() as u64).next_multiple_of(16)
    }

    fn bytes(&mut self, pe: usize, at: u64, len: usize) -> &mut [u8] {
        let start = (self.base(pe) + at) as *mut u8;
        // SAFETY: inside the PE's heap, and nothing else uses it now.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// A call of these PEs, on buffers at these offsets in their heaps.
    fn call(
        &self,
        pes: &[usize],
        how: How,
        collective: &Collective,
        what: (DataType, ReduceOp, u64),
        at: impl Fn(usize) -> (u64, u64) + Sync,
    ) {
        self.call_number(pes, how, StraightCall::number(collective), what, at);
    }

    /// As [`Pes::call`], by the number of the collective in kernels.
    fn call_number(
        &self,
        pes: &[usize],
        how: How,
        collective: u64,
        (ty, op, part): (DataType, ReduceOp, u64),
        at: impl Fn(usize) -> (u64, u64) + Sync,
    ) {
        let library = library().unwrap();
        // SAFETY: the function's type.
        let straight = unsafe { library.get::<Straight>(b"straight") }.unwrap();
        let n = self.heaps.len();
        let number = DataType::ALL.iter().position(|&other| other == ty).unwrap() as i32;
        std::thread::scope(|scope| {
            for &pe in pes {
                let (straight, at) = (&straight, &at);
                scope.spawn(move || {
                    let apart: Vec<u64> = (0..n).map(|other| self.base(other).wrapping_sub(self.base(pe))).collect();
                    let to = |(pe, &distance)| Reached { pe: pe as u32, distance: Some(distance), atomics: true };
                    let base = self.base(pe);
                    let addresses = Addresses {
                        report: self.reports[pe].as_ptr() as u64,
                        stop: base + WORDS,
                        filled: base + WORDS + 8,
                        inbox: 0,
                        packets: base + PACKETS,
                        rings: base + RINGS,
                        words: self.words[pe].as_ptr() as u64,
                        ranks: apart.iter().enumerate().map(to).collect(),
                    };
                    let (input, output) = at(pe);
                    let call = StraightCall {
                        collective,
                        root: (how.root % n) as u64,
                        input: base + input,
                        output: base + output,
                        part,
                        op,
                        average: how.average,
                        accumulate: Accumulate::F32,
                        most_blocks: how.blocks,
                        chunk: None,
                    };
                    let argument = call.argument(&addresses, &self.sizes, pe as u64, how.blocks, how.chunk);
                    let call = Call {
                        plan: 0,
                        input: argument.as_ptr() as u64,
                        output: call.kernel(how.way, pe as u64) as u64,
                        part: 0,
                        chunk: 0,
                        how: 0,
                        blocks: how.blocks,
                        // Blocks that push have the threads of four roles.
                        threads: if how.way == Way::Packets { how.threads } else { 4 * how.threads },
                        pe: pe as u64,
                        timeout_ns: self.timeouts_ns[pe],
                        apart: apart.as_ptr(),
                    };
                    // SAFETY: the argument and all memory exist until all threads have ended.
                    unsafe { straight(number, &call) };
                });
            }
        });
    }

    /// Makes calls on data that identifies its source, and checks the result.
    fn verify(
        &mut self,
        how: How,
        collective: &Collective,
        (ty, op, count): (DataType, ReduceOp, usize),
        (shift, in_place): (u64, bool),
        round: usize,
    ) {
        let (n, part) = (self.heaps.len(), count * ty.size());
        let (inputs, outputs) = parts(collective, n);
        let data = Data { ty, op, n, round };
        let places = |me: usize| places(collective, (me, n), part, in_place);
        let source = if in_place { DEST } else { SOURCE };
        let from = |me: usize| source + shift + places(me).input.0 as u64;
        let to = |me: usize| DEST + shift + places(me).output.0 as u64;
        for me in 0..n {
            self.bytes(me, DEST, n * part + 128).fill(0xee);
            self.bytes(me, from(me), inputs * part).copy_from_slice(&data.input(me, inputs * count));
        }
        let all: Vec<usize> = (0..n).collect();
        self.call(&all, how, collective, (ty, op, part as u64), |me| (from(me), to(me)));
        for me in 0..n {
            let what = format!(
                "{collective:?}, PE {me} of {n}: {count} {ty:?}, {op:?}, in place {in_place}, byte {shift}, {how:?}"
            );
            assert_eq!(self.reports[me], [0; 4], "{what}");
            let root = how.root % n;
            let expected = match collective {
                Collective::Broadcast => data.input(root, count),
                Collective::Reduce if me != root && in_place => data.input(me, count),
                Collective::Reduce if me != root => vec![0xee; part],
                _ => data.output(collective, me, count),
            };
            if let Some(difference) = difference(self.bytes(me, to(me), outputs * part), &expected) {
                panic!("{what}: {difference}");
            }
            if !in_place {
                let around = [to(me) - 1, to(me) + (outputs * part) as u64].map(|at| self.bytes(me, at, 1)[0]);
                assert!((shift == 0 || around[0] == 0xee) && around[1] == 0xee, "{what}: bytes around it were written");
                let inputs = self.bytes(me, from(me), inputs * part).to_vec();
                assert!(inputs == data.input(me, inputs.len() / ty.size()), "{what}: its input was changed");
            }
        }
    }
}

const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
];

#[test]
fn all_types_and_operations_both_ways() {
    if library().is_none() {
        return;
    }
    let mut round = 0;
    for n in [2, 3] {
        let mut pes = Pes::new(n, 2048, 64);
        for collective in &COLLECTIVES {
            for &ty in TYPES_ON_GPUS {
                for op in OPS {
                    let moves =
                        matches!(collective, Collective::AllGather | Collective::AllToAll | Collective::Broadcast);
                    if op != ReduceOp::Sum && moves {
                        continue;
                    }
                    round += 1;
                    let (size, blocks, threads) = (ty.size() as u64, 1 + round as u64 % 3, 1 + round as u64 % 4);
                    let packets = How { way: Way::Packets, blocks, threads, chunk: 64, average: false, root: round };
                    let pushed = How { way: Way::Pushed, chunk: 16 << (round % 4), ..packets };
                    for how in [packets, pushed] {
                        let count = if how.way == Way::Packets { 101 } else { 201 };
                        pes.verify(how, collective, (ty, op, count), (round as u64 % 3 * size, false), round);
                        pes.verify(how, collective, (ty, op, 128), (0, true), round);
                    }
                }
            }
        }
    }
}

/// Gathers and scatters, at whose other ranks the memory that the call does not use stays unchanged.
#[test]
fn gathers_and_scatters_both_ways() {
    if library().is_none() {
        return;
    }
    for n in [2, 3] {
        let mut pes = Pes::new(n, 2048, 64);
        for round in 0..48 {
            let (way, in_place) = (if round % 2 == 0 { Way::Packets } else { Way::Pushed }, round / 2 % 2 == 0);
            let (number, root) = (if round / 4 % 2 == 0 { GATHER } else { SCATTER }, round / 8 % n);
            let how = How { way, blocks: 1 + round as u64 % 3, threads: 2, chunk: 16, average: false, root };
            let part = [8, 203, 1, 800][round % 4] + round;
            let byte = |owner: usize, at: usize| (owner * 31 + at * 7 + round) as u8;
            let whole = |me: usize, at: usize| if me == root { byte(at / part, at % part) } else { 0xee };
            let (all, alone) = (DEST + 3, if in_place { DEST + 3 + (root * part) as u64 } else { SOURCE + 1 });
            // A PE's own part, apart from the whole except at the root in place.
            let own = |me: usize| if me == root { alone } else { SOURCE + 1 };
            for me in 0..n {
                pes.bytes(me, all - 3, n * part + 6).fill(0xee);
                pes.bytes(me, own(me), part).fill(0xee);
                let given: Vec<u8> = match number {
                    GATHER => (0..part).map(|at| byte(me, at)).collect(),
                    _ => (0..n * part).map(|at| whole(me, at)).collect(),
                };
                pes.bytes(me, if number == GATHER { own(me) } else { all }, given.len()).copy_from_slice(&given);
            }
            let every: Vec<usize> = (0..n).collect();
            // As the host passes them: other memory in place of what is not used.
            pes.call_number(&every, how, number, (DataType::Uint8, ReduceOp::Sum, part as u64), |me| match number {
                GATHER if me == root => (own(me), all),
                SCATTER if me == root => (all, own(me)),
                _ => (own(me), own(me)),
            });
            for me in 0..n {
                let what = format!("{number}, PE {me} of {n}, root {root}, {part} bytes, in place {in_place}, {how:?}");
                assert_eq!(pes.reports[me], [0; 4], "{what}");
                let gathered: Vec<u8> = (0..n * part).map(|at| whole(me, at)).collect();
                assert_eq!(difference(pes.bytes(me, all, n * part), &gathered), None, "{what}");
                let mine: Vec<u8> = (0..part).map(|at| byte(me, at)).collect();
                assert_eq!(difference(pes.bytes(me, own(me), part), &mine), None, "{what}");
                assert!(pes.bytes(me, all - 3, 3).iter().all(|&one| one == 0xee), "{what}: bytes before it");
                assert!(pes.bytes(me, all + (n * part) as u64, 3).iter().all(|&one| one == 0xee), "{what}: after it");
            }
        }
    }
}

/// The sum is beyond the largest number of its type, and the average is not.
#[test]
fn averages_of_narrow_floats_do_not_overflow() {
    if library().is_none() {
        return;
    }
    for way in [Way::Packets, Way::Pushed] {
        let how = How { way, blocks: 2, threads: 2, chunk: 16, average: true, root: 0 };
        let mut pes = Pes::new(2, 2048, 64);
        let (sixty_thousand, part) = (half::f16::from_f32(60_000.0).to_ne_bytes(), 82);
        for me in 0..2 {
            pes.bytes(me, SOURCE, part).copy_from_slice(&sixty_thousand.repeat(part / 2));
        }
        let what = (DataType::Float16, ReduceOp::Sum, part as u64);
        pes.call(&[0, 1], how, &Collective::AllReduce, what, |_| (SOURCE, DEST));
        for me in 0..2 {
            assert!(pes.bytes(me, DEST, part).chunks(2).all(|code| *code == sixty_thousand), "{way:?}");
        }
    }
}

/// Sums of integers wrap, and are then divided.
#[test]
fn averages_are_the_hosts() {
    if library().is_none() {
        return;
    }
    for way in [Way::Packets, Way::Pushed] {
        let how = How { way, blocks: 2, threads: 2, chunk: 16, average: true, root: 0 };
        for (collective, part) in [(Collective::AllReduce, 88u64), (Collective::ReduceScatter, 40)] {
            let mut pes = Pes::new(2, 2048, 64);
            let inputs = part as usize / 8 * parts(&collective, 2).0;
            for me in 0..2 {
                let input: Vec<u8> = (0..inputs as i64).flat_map(|i| (i * 10 - 7 * me).to_ne_bytes()).collect();
                pes.bytes(me as usize, SOURCE, 8 * inputs).copy_from_slice(&input);
            }
            let what = (DataType::Int64, ReduceOp::Sum, part);
            pes.call(&[0, 1], how, &collective, what, |_| (SOURCE, DEST));
            for me in 0..2 {
                let first = if inputs as u64 * 8 > part { me as i64 * part as i64 / 8 } else { 0 };
                let output = (first..first + part as i64 / 8).flat_map(|i| ((i * 20 - 7) / 2).to_ne_bytes());
                let expected: Vec<u8> = output.collect();
                assert_eq!(difference(pes.bytes(me, DEST, part as usize), &expected), None, "{collective:?} {way:?}");
            }
        }
    }
}

/// Calls of all kinds one after the other, which reuse the slots and packets of the calls before.
#[test]
fn any_call_follows_any_other() {
    if library().is_none() {
        return;
    }
    for n in [2, 4] {
        let mut pes = Pes::new(n, 1024, 48);
        let mut state = 1u64;
        for round in 0..150 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = |shift: u32, of: u64| (state >> shift) % of;
            let how = How {
                way: if pick(20, 2) == 0 { Way::Packets } else { Way::Pushed },
                blocks: 1 + pick(23, 4),
                threads: 1 + pick(27, 3),
                chunk: 16 * (1 + pick(30, 6)),
                average: false,
                root: pick(58, 4) as usize,
            };
            let count = 1 + pick(33, if how.way == Way::Packets { 256 } else { 700 }) as usize;
            let collective = &COLLECTIVES[pick(45, 6) as usize];
            let in_place = pick(55, 2) == 0;
            let what = (DataType::Float32, ReduceOp::Sum, count);
            pes.verify(how, collective, what, (4 * pick(50, 4), in_place), round);
        }
    }
}

/// Flags repeat after 2^32 calls: by then no packet has the old one, and none was 0 between.
#[test]
fn flags_come_round() {
    if library().is_none() {
        return;
    }
    let how = How { way: Way::Packets, blocks: 1, threads: 2, chunk: 16, average: false, root: 0 };
    let mut pes = Pes::new(2, 1024, 48);
    let what = |count| (DataType::Uint32, ReduceOp::Sum, count);
    for words in &mut pes.words {
        words[0] = 2;
    }
    // The first call fills all packets of a half; later ones use one.
    pes.verify(how, &Collective::AllReduce, what(256), (0, false), 0);
    for words in &mut pes.words {
        words[0] = (1 << 32) - 20;
    }
    let again = (1 << 32) + 2;
    for round in 1..21 {
        assert!(pes.words.iter().all(|words| words[0] < again && words[0] as u32 != u32::MAX));
        pes.verify(how, &Collective::AllReduce, what(2), (0, false), round);
    }
    assert!(pes.words.iter().all(|words| words[0] == again));
    // Packets that the next call would take for its own.
    let packets = pes.sizes.packets() as usize;
    for pe in 0..2 {
        let words = pes.bytes(pe, PACKETS, packets).chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        assert_eq!(words.filter(|word| word >> 32 == 3).count(), 0, "packets of long ago");
    }
}

/// PE 1 does not arrive: PE 0 gives up in time and names it; PE 2, which would wait much longer, is told. Later calls
/// do nothing, including PE 1's, and the report stays.
#[test]
fn a_pe_that_does_not_arrive_is_named() {
    if library().is_none() {
        return;
    }
    for way in [Way::Packets, Way::Pushed] {
        let how = How { way, blocks: 2, threads: 2, chunk: 32, average: false, root: 0 };
        let mut pes = Pes::new(3, 2048, 64);
        // More chunks than slots: the push waits for the take.
        let what = (DataType::Float32, ReduceOp::Sum, 1600);
        pes.verify(how, &Collective::AllReduce, (what.0, what.1, 100), (0, false), 1);
        pes.timeouts_ns[0] = 1_000_000_000;
        pes.call(&[0, 2], how, &Collective::AllReduce, what, |_| (SOURCE, DEST));
        assert_eq!([&pes.reports[0][..2], &pes.reports[2][..2]], [[1, 1], [2, 0]], "{way:?}");
        for pe in 0..3 {
            pes.bytes(pe, DEST, 1600).fill(0xee);
        }
        pes.call(&[0, 1, 2], how, &Collective::AllReduce, what, |_| (SOURCE, DEST));
        let reports: Vec<&[u64]> = pes.reports.iter().map(|report| &report[..2]).collect();
        assert_eq!(reports, [[1, 1], [2, 0], [2, 0]], "{way:?}");
        assert!((0..3).all(|pe| pes.bytes(pe, DEST, 1600).iter().all(|&byte| byte == 0xee)), "{way:?}");
    }
}

#[test]
fn every_byte_has_a_block_and_a_slot() {
    for n in [2, 3, 8, 16] {
        let sizes = Sizes::of(n);
        for collective in 0..8 {
            for part in [1, 8, 4095, 4096, 1 << 20, (1 << 30) + 2] {
                let call = StraightCall {
                    collective,
                    root: 0,
                    input: 0,
                    output: 0,
                    part,
                    op: ReduceOp::Sum,
                    average: false,
                    accumulate: Accumulate::F32,
                    most_blocks: 64,
                    chunk: (part == 4096).then_some(100),
                };
                for way in [Way::Packets, Way::Pushed] {
                    let (blocks, threads, chunk) = call.shape(way, &sizes);
                    assert!(
                        (1..=64).contains(&blocks) && (32..=512).contains(&threads),
                        "{call:?}: {blocks} x {threads}"
                    );
                    let most = if way == Way::Pushed { 2 * sizes.slot } else { sizes.slot };
                    assert!(chunk >= 16 && chunk % 16 == 0 && chunk <= most, "{call:?}: {chunk}");
                }
            }
        }
    }
}
