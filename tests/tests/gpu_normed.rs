//! The device code of all-reduces with a residual and an RMS norm, compiled for the CPU: a CPU thread for each thread of
//! each block of each PE.
#![allow(clippy::unwrap_used, missing_docs)]

use symrail_collectives::DataType;
use symrail_collectives::gpu::Memory;
use symrail_collectives::gpu::encode::Reached;
use symrail_collectives::gpu::normed::{Cut, RmsNorm, Scaled};
use symrail_collectives::gpu::straight::{Addresses, MOST_BLOCKS, MOST_RANKS, Sizes, Way};

use crate::emulation::{Call, library};

type Normed = unsafe extern "C" fn(i32, *const Call);

const SLOT: u64 = 512;
/// The offset of a PE's packets behind its words; the slots are behind the packets.
const PACKETS: usize = 32 << 10;

struct Pe {
    heap: Vec<u64>,
    words: Vec<u64>,
    report: Vec<u64>,
}

struct Pes {
    pes: Vec<Pe>,
    sizes: Sizes,
    timeouts_ns: Vec<u64>,
}

/// What memory a call writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InPlace {
    No,
    /// The sum is the residual, and the output is the input.
    Residual,
    /// The sum is the input, and the output is the residual.
    Input,
}

/// What a call is given, and how it is divided.
#[derive(Debug, Clone, Copy)]
struct Case {
    way: Way,
    ty: DataType,
    rows: usize,
    hidden: usize,
    blocks: u64,
    threads: u64,
    /// 0: the output is of the type; 1: FP8 by one scale; 2: FP8 by groups.
    scaled: u64,
    /// Elements by which the memory is away from an aligned address.
    shift: usize,
    /// Whether only PE 0's memory is 8 bytes further away.
    alone: bool,
    /// The number of values of elements.
    values: usize,
    in_place: InPlace,
}

impl Case {
    /// Rows at aligned addresses, in two blocks.
    fn of(way: Way, ty: DataType, rows: usize, hidden: usize) -> Case {
        // Pushed rows belong to quarters of a block.
        let threads = if way == Way::Packets { 3 } else { 8 };
        let in_place = InPlace::No;
        Case { way, ty, rows, hidden, blocks: 2, threads, scaled: 0, shift: 0, alone: false, values: 15, in_place }
    }
}

/// A PE's element of the input, small enough for exact sums; the residual is that of PE 100.
fn element(values: usize, pe: usize, at: usize) -> f32 {
    ((pe * 7 + at * 13) % values) as f32 - (values / 2) as f32
}

fn weight(at: usize) -> f32 {
    [0.5, 1.0, 2.0][at % 3]
}

fn bytes_of(ty: DataType, values: impl Iterator<Item = f32>) -> Vec<u8> {
    match ty {
        DataType::Bfloat16 => values.flat_map(|value| ((value.to_bits() >> 16) as u16).to_ne_bytes()).collect(),
        _ => values.flat_map(f32::to_ne_bytes).collect(),
    }
}

fn values_of(ty: DataType, bytes: &[u8]) -> Vec<f32> {
    match ty {
        DataType::Bfloat16 => bytes
            .chunks_exact(2)
            .map(|two| f32::from_bits(u32::from(u16::from_ne_bytes([two[0], two[1]])) << 16))
            .collect(),
        _ => bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect(),
    }
}

/// The value of an e4m3 code.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = if exponent == 0 { mantissa * 2f32.powi(-9) } else { (8.0 + mantissa) * 2f32.powi(exponent - 10) };
    if code & 0x80 != 0 { -size } else { size }
}

impl Pes {
    fn new(n: usize) -> Pes {
        let sizes = Sizes::with(n as u64, 8 << 10, SLOT);
        let inboxes = PACKETS + (sizes.packets() + sizes.rings()) as usize;
        assert!(8 + sizes.filled() as usize <= PACKETS);
        let new = |_| {
            // What is missing in an inbox has all bits.
            let mut heap = vec![0; inboxes / 8 + 2];
            heap.resize(heap.len() + sizes.inboxes() as usize / 8 + 2, u64::MAX);
            Pe { heap, words: vec![0; sizes.words() as usize / 8], report: vec![0; 4] }
        };
        Pes { pes: (0..n).map(new).collect(), sizes, timeouts_ns: vec![60_000_000_000; n] }
    }

    fn base(&self, pe: usize) -> u64 {
        (self.pes[pe].heap.as_ptr() as u64).next_multiple_of(16)
    }

    /// Runs a call on all PEs, and checks its results.
    fn verify(&self, case: Case) {
        self.run(case, case.rows, true);
    }

    /// Runs a call whose last PE has so many rows; and checks its results, if it `ends`.
    fn run(&self, case: Case, of_last: usize, ends: bool) {
        // SAFETY: the function's type.
        let normed = unsafe { library().unwrap().get::<Normed>(b"normed") }.unwrap();
        let Case { way, ty, rows, hidden, .. } = case;
        let (n, size, count) = (self.pes.len(), ty.size(), rows * hidden);
        let shift = |me: usize| case.shift * size + if case.alone && me == 0 { 8 } else { 0 };
        let element = |pe, at| element(case.values, pe, at);
        let put = |me: usize, values: Vec<u8>| [vec![0xee; shift(me)], values, vec![0xee]].concat();
        let rows_of = |me: usize, pe: usize| put(me, bytes_of(ty, (0..count).map(|at| element(pe, at))));
        let inputs: Vec<_> = (0..n).map(|me| rows_of(me, me)).collect();
        let residuals: Vec<_> = (0..n).map(|me| rows_of(me, 100)).collect();
        let weights: Vec<_> = (0..n).map(|me| put(me, bytes_of(ty, (0..hidden).map(weight)))).collect();
        let scale = [if case.scaled == 1 { 0.25f32 } else { 0.0 }];
        let width = if case.scaled == 0 { size } else { 1 };
        let new = |me: usize, bytes: usize| vec![0xeeu8; shift(me) + bytes + 1];
        let new_sums: Vec<_> = (0..n).map(|me| new(me, count * size)).collect();
        let new_outputs: Vec<_> = (0..n).map(|me| new(me, count * width)).collect();
        let (sums, outputs) = match case.in_place {
            InPlace::No => (&new_sums, &new_outputs),
            InPlace::Residual => (&residuals, &inputs),
            InPlace::Input => (&inputs, &residuals),
        };
        let scales: Vec<_> = (0..n).map(|_| vec![0f32; count / 128]).collect();
        let memory = |me: usize, all: &[Vec<u8>], len: usize| {
            let at = all[me].as_ptr() as u64 + shift(me) as u64;
            Memory { at, len: len as u64 }
        };
        let floats = |all: &[f32]| Memory { at: all.as_ptr() as u64, len: 4 * all.len() as u64 };
        std::thread::scope(|scope| {
            for (me, scales) in scales.iter().enumerate() {
                let rows = if me + 1 == n { of_last } else { rows };
                if rows == 0 {
                    continue;
                }
                let count = rows * hidden;
                let call = RmsNorm {
                    input: memory(me, &inputs, count * size),
                    residual: Some(memory(me, &residuals, count * size)),
                    sum: memory(me, sums, count * size),
                    weight: memory(me, &weights, hidden * size),
                    output: memory(me, outputs, count * width),
                    scaled: match case.scaled {
                        0 => Scaled::Not,
                        1 => Scaled::ByTensor(floats(&scale)),
                        _ => Scaled::ByGroups(floats(scales)),
                    },
                    rows: rows as u64,
                    hidden: hidden as u64,
                    ty,
                    epsilon: 0.5,
                };
                call.check(way, n as u64).unwrap();
                let base = self.base(me);
                let apart: Vec<u64> = (0..n).map(|other| self.base(other).wrapping_sub(base)).collect();
                let to = |(pe, &distance)| Reached { pe: pe as u32, distance: Some(distance), atomics: true };
                let addresses = Addresses {
                    report: self.pes[me].report.as_ptr() as u64,
                    stop: base,
                    filled: base + 8,
                    packets: base + PACKETS as u64,
                    rings: base + PACKETS as u64 + self.sizes.packets(),
                    inbox: base + PACKETS as u64 + self.sizes.packets() + self.sizes.rings() + 16,
                    words: self.pes[me].words.as_ptr() as u64,
                    ranks: apart.iter().enumerate().map(to).collect(),
                };
                let cut = Cut { threads: case.threads, ..call.cut(way, &self.sizes, case.blocks) };
                let kernel = call.kernel(way);
                let (argument, normed) = (call.argument(&addresses, &self.sizes, me as u64, &cut), &normed);
                scope.spawn(move || {
                    let call = Call {
                        plan: 0,
                        input: argument.as_ptr() as u64,
                        output: kernel as u64,
                        part: 0,
                        chunk: 0,
                        how: 0,
                        blocks: cut.blocks,
                        threads: case.threads,
                        pe: me as u64,
                        timeout_ns: self.timeouts_ns[me],
                        apart: apart.as_ptr(),
                    };
                    let number = DataType::ALL.iter().position(|&other| other == ty).unwrap() as i32;
                    // SAFETY: the argument and all memory exist until all threads have ended.
                    unsafe { normed(number, &call) };
                });
            }
        });
        if !ends {
            return;
        }
        for me in 0..n {
            assert_eq!(self.pes[me].report, [0; 4], "PE {me} gave up: {case:?}");
            let of = |all: &[Vec<u8>], pe: usize| all[pe][shift(pe)..].to_vec();
            let same = of(outputs, me) == of(outputs, 0) && of(sums, me) == of(sums, 0);
            assert!(same, "PE {me} has other bits: {case:?}");
        }
        let (sum, output, shift) = (&sums[0], &outputs[0], shift(0));
        assert!(sum[..shift].iter().chain(&output[..shift]).all(|&byte| byte == 0xee), "before it: {case:?}");
        assert!(sum.last() == Some(&0xee) && output.last() == Some(&0xee), "behind it: {case:?}");
        let sums = values_of(ty, &sum[shift..][..count * size]);
        let output = &output[shift..][..count * width];
        let values = match case.scaled {
            0 => values_of(ty, output),
            _ => output.iter().map(|&code| e4m3(code)).collect(),
        };
        for row in 0..rows {
            let of_row = row * hidden..(row + 1) * hidden;
            let exact: Vec<f32> =
                of_row.clone().map(|at| (0..n).map(|pe| element(pe, at)).sum::<f32>() + element(100, at)).collect();
            assert!(sums[of_row.clone()] == exact, "row {row} of the sum: {case:?}");
            let mean = exact.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / hidden as f64;
            let by = 1.0 / (mean + 0.5).sqrt();
            for (at, &sum) in exact.iter().enumerate() {
                let wanted = (f64::from(sum) * by) as f32 * weight(at);
                let factor = [1.0, scale[0], *scales[0].get((row * hidden + at) / 128).unwrap_or(&0.0)];
                let got = values[row * hidden + at] * factor[case.scaled as usize];
                let precision = if case.scaled > 0 {
                    0.07
                } else if ty == DataType::Bfloat16 {
                    0.005
                } else {
                    1e-5
                };
                let off = (got - wanted).abs();
                assert!(off <= precision * wanted.abs() + 1e-4, "row {row}, {at}: {got} for {wanted}: {case:?}");
            }
        }
    }
}

/// All forms of output, rows of any length at any address, and fewer rows than PEs; calls follow one another in the same
/// slots.
#[test]
fn rows_are_added_up_and_normalised_both_ways() {
    if library().is_none() {
        return;
    }
    for n in [2, 3] {
        let pes = Pes::new(n);
        for (round, (rows, hidden)) in [(1, 64), (5, 24), (3, 77), (7, 16), (2, 331), (1, 1)].into_iter().enumerate() {
            for (ty, way, shift) in [
                (DataType::Bfloat16, Way::Packets, 0),
                (DataType::Bfloat16, Way::Pushed, 0),
                (DataType::Float32, Way::Packets, 1),
                (DataType::Float32, Way::Pushed, round % 2),
                (DataType::Bfloat16, Way::Pushed, 1),
            ] {
                pes.verify(Case { scaled: u64::from(round % 3 == 1), shift, ..Case::of(way, ty, rows, hidden) });
            }
        }
    }
}

/// Each slot is used several times: chunks of four rows and of one, of one slot, of two and of four, and rows of several
/// chunks. Calls of one kind follow those of all others, in slots of any number.
#[test]
fn rows_are_divided_among_ranks_and_chunks() {
    if library().is_none() {
        return;
    }
    for n in [2, 3, 5] {
        let pes = Pes::new(n);
        for (round, in_place) in [InPlace::Residual, InPlace::No, InPlace::Input].into_iter().enumerate() {
            for (rows, hidden) in [(19 * n, 32), (7 * n + 1, 100), (4 * n - 1, 200), (5 * n, 410), (3 * n + 2, 1001)] {
                let scaled = if in_place == InPlace::No { 1 } else { 0 };
                let case = Case::of(Way::Pushed, DataType::Float32, rows, hidden);
                pes.verify(Case { scaled, in_place, shift: round, ..case });
            }
        }
    }
}

#[test]
fn each_group_has_the_scale_of_its_largest_element() {
    if library().is_none() {
        return;
    }
    let pes = Pes::new(2);
    for (way, rows, hidden) in [(Way::Packets, 2, 256), (Way::Pushed, 5, 128), (Way::Pushed, 3, 640)] {
        // Lanes with a scale in common: 32 with 8 bytes each, or 16 with 16.
        let threads = if way == Way::Packets { 32 } else { 64 };
        pes.verify(Case { blocks: 1, threads, scaled: 2, ..Case::of(way, DataType::Bfloat16, rows, hidden) });
    }
}

/// Sums of squares depend on the order of additions, so threads have the same elements on all ranks.
#[test]
fn a_rank_whose_memory_is_not_aligned_gets_the_same_bits() {
    if library().is_none() {
        return;
    }
    let pes = Pes::new(2);
    for (way, rows, hidden) in [(Way::Packets, 1, 1024), (Way::Pushed, 5, 500), (Way::Pushed, 4, 4096)] {
        pes.verify(Case { alone: true, values: 8191, ..Case::of(way, DataType::Float32, rows, hidden) });
    }
}

/// PE 1 has not said that it has read the last of four slots, which another collective filled.
#[test]
fn a_slot_that_another_pe_still_reads_is_not_filled() {
    if library().is_none() {
        return;
    }
    let mut pes = Pes::new(2);
    let rings = (PACKETS as u64 + pes.sizes.packets()) as usize / 8;
    for (me, ring_1) in [3, 4].into_iter().enumerate() {
        let first = (pes.base(me) - pes.pes[me].heap.as_ptr() as u64) as usize / 8;
        let filled = |ring: usize| first + 1 + ring * MOST_BLOCKS as usize * MOST_RANKS + (1 - me);
        let pe = &mut pes.pes[me];
        (pe.words[2], pe.heap[filled(0)], pe.heap[filled(1)]) = (4, 4, ring_1);
    }
    pes.timeouts_ns[0] = 500_000_000;
    pes.run(Case::of(Way::Pushed, DataType::Bfloat16, 2, 64), 2, false);
    let reports: Vec<&[u64]> = pes.pes.iter().map(|pe| &pe.report[..2]).collect();
    assert_eq!(reports, [[1, 1], [2, 0]], "PE 0 names PE 1, which it has told");
    let slots = (pes.base(1) - pes.pes[1].heap.as_ptr() as u64) as usize / 8 + rings;
    // PE 1 waits for PE 0's rows.
    let ends = slots + pes.sizes.rings() as usize / 8;
    assert!(pes.pes[1].heap[slots..ends].iter().all(|&word| word == 0), "a slot of PE 1 was filled");
}

/// PE 2 makes no call, or one with fewer rows, so that it ends while the others wait in a later phase. They name it, and
/// each of their threads ends.
#[test]
fn a_pe_that_does_not_do_its_part_is_named() {
    if library().is_none() {
        return;
    }
    for (way, of_last) in [(Way::Packets, 0), (Way::Packets, 20), (Way::Pushed, 0), (Way::Pushed, 20)] {
        let mut pes = Pes::new(3);
        pes.verify(Case::of(way, DataType::Bfloat16, 9, 64));
        pes.timeouts_ns[0] = 500_000_000;
        pes.run(Case::of(way, DataType::Bfloat16, 40, 64), of_last, false);
        let reports: Vec<&[u64]> = pes.pes.iter().map(|pe| &pe.report[..2]).collect();
        assert_eq!(reports, [[1, 2], [2, 0], [0, 0]], "{way:?}, {of_last} rows");
    }
}
