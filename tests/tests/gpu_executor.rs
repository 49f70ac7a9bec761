//! The device code that runs execution plans, compiled for the CPU: a CPU thread for each thread of each block of each
//! PE. Properties that only a GPU has (its memory order, its instructions) are not tested here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use half::{bf16, f16};
use symrail::kernels::cuda::Transfer;
use symrail_collectives::DataType::{self, *};
use symrail_collectives::build::{Shape, all_reduce, moves};
use symrail_collectives::gpu::Memory;
use symrail_collectives::gpu::encode::{Addresses, Image, Reached, encode, op_number, words};
use symrail_collectives::gpu::stage::{Piece, Stage, StagedCall};
use symrail_collectives::plan::{BufferType, Check, Collective, Document, Plan};
use symrail_collectives::{ReduceOp, TYPES_ON_GPUS};
use symrail_core::fp8;
use symrail_tests::collectives::{Data, OPS, difference, parts, places};

use crate::emulation::{Call, library};

type Execute = unsafe extern "C" fn(i32, *const Call);
type Decode = unsafe extern "C" fn(i32, u32) -> f32;
type Encode = unsafe extern "C" fn(i32, f32) -> u32;
type Divide = unsafe extern "C" fn(i32, u64, u64, u32);

fn number(ty: DataType) -> i32 {
    DataType::ALL.iter().position(|&other| other == ty).unwrap() as i32
}

/// Offsets of a PE's words, scratch memory, source, destination, and the stage for calls on any memory.
const STOP: u64 = 56;
const WORDS: u64 = 64;
const SCRATCH: u64 = 64 << 10;
const SOURCE: u64 = 2 << 20;
const DEST: u64 = 3 << 20;
const STAGE: u64 = 4 << 20;
const HEAP: usize = (STAGE + Stage::BYTES) as usize;

/// PEs in one process, each with its heap and its encoded plan.
struct Pes {
    heaps: Vec<Vec<u64>>,
    reports: Vec<Vec<u64>>,
    images: Vec<Vec<u64>>,
    blocks: Vec<u64>,
    plan: Plan,
    threads: u64,
    timeouts_ns: Vec<u64>,
}

impl Pes {
    /// `reached(a, b)`: PE `a` can access the memory of PE `b`.
    fn new(document: &Document, capacity: u64, threads: u64, reached: impl Fn(usize, usize) -> bool) -> Pes {
        let plan = Plan::new(document, Check::Result).unwrap();
        let n = plan.ranks();
        assert!(WORDS + 8 * words(&plan) as u64 <= SCRATCH);
        let heaps: Vec<Vec<u64>> = (0..n).map(|_| vec![0; HEAP / 8 + 2]).collect();
        let reports: Vec<Vec<u64>> = (0..n).map(|_| vec![0; 4]).collect();
        let base = |pe: usize| (heaps[pe].as_ptr() as u64).next_multiple_of(16);
        let (mut images, mut blocks) = (Vec::new(), Vec::new());
        for (me, report) in reports.iter().enumerate() {
            let to = |pe: usize| Reached {
                pe: pe as u32,
                distance: reached(me, pe).then(|| base(pe).wrapping_sub(base(me))),
                atomics: true,
            };
            let image = |plan_at: u64| -> Image {
                let at = Addresses {
                    plan: plan_at,
                    words: base(me) + WORDS,
                    stop: base(me) + STOP,
                    scratch: base(me) + SCRATCH,
                    capacity,
                    report: report.as_ptr() as u64,
                    ranks: (0..n).map(to).collect(),
                };
                encode(&plan, me, &at).unwrap()
            };
            let memory = vec![0u64; image(0).bytes.len() / 8];
            let image = image(memory.as_ptr() as u64);
            let bytes = image.bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            let mut memory = memory;
            memory.iter_mut().zip(bytes).for_each(|(to, word)| *to = word);
            images.push(memory);
            blocks.push(u64::from(image.blocks));
        }
        Pes { heaps, reports, images, blocks, plan, threads, timeouts_ns: vec![20_000_000_000; n] }
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
    fn call(&self, pes: &[usize], ty: DataType, op: ReduceOp, part: u64, at: impl Fn(usize) -> (u64, u64) + Sync) {
        let library = library().unwrap();
        // SAFETY: the function's type.
        let execute = unsafe { library.get::<Execute>(b"execute") }.unwrap();
        let n = self.heaps.len();
        let chunk = part.div_ceil(self.chunks()).next_multiple_of(16);
        std::thread::scope(|scope| {
            for &pe in pes {
                let (execute, at) = (&execute, &at);
                scope.spawn(move || {
                    let apart: Vec<u64> = (0..n).map(|other| self.base(other).wrapping_sub(self.base(pe))).collect();
                    let (input, output) = at(pe);
                    let call = Call {
                        plan: self.images[pe].as_ptr() as u64,
                        input: self.base(pe).wrapping_add(input),
                        output: self.base(pe).wrapping_add(output),
                        part,
                        chunk,
                        how: op_number(op).into(),
                        blocks: self.blocks[pe],
                        threads: self.threads,
                        pe: pe as u64,
                        timeout_ns: self.timeouts_ns[pe],
                        apart: apart.as_ptr(),
                    };
                    // SAFETY: the plan, its memory and the call's exist until all threads have ended.
                    unsafe { execute(number(ty), &call) };
                });
            }
        });
    }

    /// Chunks of a part, in the plan's terms.
    fn chunks(&self) -> u64 {
        self.images[0][6]
    }
}

/// Runs a plan's collective on data that identifies its source, and checks the result.
fn verify(pes: &mut Pes, ty: DataType, op: ReduceOp, count: usize, shift: u64, in_place: bool, round: usize) {
    let (n, part) = (pes.heaps.len(), count * ty.size());
    let collective = pes.plan.collective().clone();
    let (inputs, outputs) = parts(&collective, n);
    let data = Data { ty, op, n, round };
    let source = if in_place { DEST } else { SOURCE };
    let places = |me: usize| places(&collective, (me, n), part, in_place);
    let from = |me: usize| source + shift + places(me).input.0 as u64;
    let to = |me: usize| DEST + shift + places(me).output.0 as u64;
    for me in 0..n {
        pes.bytes(me, DEST, n * part + 128).fill(0xee);
        pes.bytes(me, from(me), inputs * part).copy_from_slice(&data.input(me, inputs * count));
    }
    let all: Vec<usize> = (0..n).collect();
    pes.call(&all, ty, op, part as u64, |me| (from(me), to(me)));
    for me in 0..n {
        let what = format!("{}, PE {me}: {count} {ty:?}, {op:?}, in place {in_place}, byte {shift}", pes.plan.name());
        assert_eq!(pes.reports[me], [0; 4], "{what}");
        let expected = data.output(&collective, me, count);
        let has_result = collective != Collective::Reduce || me == 0;
        if let Some(difference) = difference(pes.bytes(me, to(me), outputs * part), &expected).filter(|_| has_result) {
            panic!("{what}: {difference}");
        }
        if !in_place {
            let around = [to(me) - 1, to(me) + (outputs * part) as u64].map(|at| pes.bytes(me, at, 1)[0]);
            assert!((shift == 0 || around[0] == 0xee) && around[1] == 0xee, "{what}: bytes around it were written");
        }
    }
}

fn one_host(shape: &Shape) -> Vec<Document> {
    vec![
        all_reduce::one_shot(shape),
        all_reduce::two_phase(shape),
        all_reduce::direct(shape),
        all_reduce::one_round(shape),
        all_reduce::by_puts(shape),
        moves::all_gather(shape),
        moves::reduce_scatter(shape),
        moves::all_to_all(shape),
        moves::broadcast(shape, 0),
        moves::reduce(shape, 0),
    ]
}

#[test]
fn all_algorithms_types_and_operations() {
    if library().is_none() {
        return;
    }
    let shape = Shape::one_host(3, 2);
    let mut round = 0;
    for document in one_host(&shape) {
        let reduces = document.collective.contains("reduce");
        let in_place = document.collective != "alltoall";
        let mut pes = Pes::new(&document, 4096, 3, |_, _| true);
        for &ty in TYPES_ON_GPUS {
            for op in OPS {
                if op != ReduceOp::Sum && !reduces {
                    continue;
                }
                round += 1;
                let size = ty.size() as u64;
                verify(&mut pes, ty, op, 101, round as u64 % 3 * size, false, round);
                verify(&mut pes, ty, op, 128, 0, in_place, round);
            }
        }
        for count in [1, 2, 33, 1000, 4096] {
            verify(&mut pes, Uint8, ReduceOp::Sum, count, 1, in_place, count);
        }
    }
}

#[test]
fn hosts_are_reached_by_the_proxy() {
    if library().is_none() {
        return;
    }
    let shape = Shape { hosts: vec![0, 0, 1, 1], blocks: 2 };
    for document in [
        all_reduce::one_round(&shape),
        all_reduce::hierarchical(&shape).unwrap(),
        all_reduce::by_puts(&shape),
        moves::all_gather(&shape),
        moves::reduce_scatter(&shape),
        moves::all_to_all(&shape),
        moves::broadcast(&shape, 0),
        moves::reduce(&shape, 0),
    ] {
        let mut pes = Pes::new(&document, 4096, 2, |a, b| a / 2 == b / 2);
        for count in [1, 500, 777] {
            verify(&mut pes, Float32, ReduceOp::Sum, count, 4, false, count);
        }
    }
}

/// Memory channels to other hosts first put and then signal: the data has arrived before its signal.
#[test]
fn signals_follow_what_the_proxy_has_been_asked_to_put() {
    if library().is_none() {
        return;
    }
    let shape = Shape::one_host(3, 2);
    for document in [all_reduce::one_round(&shape), moves::all_gather(&shape), moves::all_to_all(&shape)] {
        let mut pes = Pes::new(&document, 4096, 2, |a, b| a == b);
        for count in [1, 500, 777] {
            verify(&mut pes, Float32, ReduceOp::Sum, count, 4, false, count);
        }
    }
}

/// PEs that do not wait for one another between calls: the faster one's puts of the next call do not overwrite what the
/// slower one still reads.
#[test]
fn a_call_may_begin_while_others_end_the_one_before() {
    const CALLS: usize = 40;
    const PART: usize = 16 << 10;
    if library().is_none() {
        return;
    }
    // So many blocks that they take turns.
    let document = all_reduce::one_round(&Shape { hosts: vec![0, 1], blocks: 6 });
    for mapped in [false, true] {
        let mut pes = Pes::new(&document, PART as u64, 2, |a, b| mapped || a == b);
        let data = |round: usize| Data { ty: Float32, op: ReduceOp::Sum, n: 2, round };
        for (call, me) in (0..CALLS).flat_map(|call| [(call, 0), (call, 1)]) {
            let input = data(call).input(me, PART / 4);
            pes.bytes(me, SOURCE + (call * PART) as u64, PART).copy_from_slice(&input);
        }
        std::thread::scope(|scope| {
            for me in 0..2 {
                let pes = &pes;
                scope.spawn(move || {
                    for call in 0..CALLS {
                        let at = (call * PART) as u64;
                        // One PE is slower, and then the other one.
                        if call % 4 / 2 == me {
                            std::thread::sleep(std::time::Duration::from_millis(2));
                        }
                        pes.call(&[me], Float32, ReduceOp::Sum, PART as u64, |_| (SOURCE + at, DEST + at));
                    }
                });
            }
        });
        for (call, me) in (0..CALLS).flat_map(|call| [(call, 0), (call, 1)]) {
            let expected = data(call).output(&Collective::AllReduce, me, PART / 4);
            let found = pes.bytes(me, DEST + (call * PART) as u64, PART);
            assert_eq!(difference(found, &expected), None, "mapped {mapped}, PE {me}, call {call}");
        }
    }
}

fn of_users(name: &str) -> Document {
    let file = format!("{}/plans/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Users' plans: semaphores, barriers, pipelines and all kinds of packets.
#[test]
fn plans_of_users() {
    if library().is_none() {
        return;
    }
    for name in ["copies", "packets"] {
        let document = of_users(name);
        let in_place = document.inplace;
        let mut pes = Pes::new(&document, 8192, 4, |_, _| true);
        for round in 0..3 {
            for count in [8, 40, 2000] {
                verify(&mut pes, Float32, ReduceOp::Sum, count, 0, in_place, round);
            }
        }
    }
}

/// Flags repeat after 2^32 - 1 calls: by then all packets are wiped.
/// An all-reduce that rank 0 performs alone, in the memory of the others, which have no blocks.
fn by_one_rank(ranks: usize) -> Document {
    let mut document = all_reduce::direct(&Shape::one_host(ranks, 1));
    document.gpus[1..].iter_mut().for_each(|gpu| gpu.threadblocks.clear());
    let ops = &mut document.gpus[0].threadblocks[0].ops;
    ops.retain(|op| op.name == "rres");
    ops.iter_mut().flat_map(|op| op.src_buff.iter_mut().chain(&mut op.dst_buff)).for_each(|chunks| {
        (chunks.index, chunks.size) = (0, ranks as u64);
    });
    Document { name: "by one rank".into(), ..document }
}

#[test]
fn a_rank_without_blocks_meets_the_others() {
    if library().is_none() {
        return;
    }
    let mut pes = Pes::new(&by_one_rank(2), 4096, 3, |_, _| true);
    for round in 0..3 {
        verify(&mut pes, Int32, ReduceOp::Sum, 101, 0, false, round);
    }
}

#[test]
fn flags_come_round() {
    if library().is_none() {
        return;
    }
    let mut pes = Pes::new(&all_reduce::two_phase(&Shape::one_host(3, 2)), 4096, 2, |_, _| true);
    // The address of the blocks' epochs.
    const EPOCHS: usize = 21;
    let epochs = pes.images[0][EPOCHS];
    for (round, epoch) in [(1, 0), (2, 2 * u64::from(u32::MAX)), (3, 4 * u64::from(u32::MAX))] {
        for image in &mut pes.images {
            let at = ((image[EPOCHS] - image.as_ptr() as u64) / 8) as usize;
            image[at..at + 2].fill(epoch);
        }
        verify(&mut pes, Uint32, ReduceOp::Sum, 500 - 100 * round, 0, false, round);
        verify(&mut pes, Uint32, ReduceOp::Sum, 300, 0, false, 7 * round);
    }
    assert_eq!(epochs, pes.images[0][EPOCHS]);
}

/// PE 1 does not arrive: PE 0 gives up in time and names it; PE 2, which would wait much longer, is told. Later calls
/// do nothing, including PE 1's, and the report stays.
#[test]
fn a_pe_that_does_not_arrive_is_named() {
    if library().is_none() {
        return;
    }
    for document in
        [all_reduce::one_shot(&Shape::one_host(3, 2)), all_reduce::direct(&Shape::one_host(3, 2)), by_one_rank(3)]
    {
        let mut pes = Pes::new(&document, 4096, 2, |_, _| true);
        verify(&mut pes, Float32, ReduceOp::Sum, 100, 0, false, 1);
        pes.timeouts_ns[0] = 1_000_000_000;
        pes.call(&[0, 2], Float32, ReduceOp::Sum, 400, |_| (SOURCE, DEST));
        // Waits for packets report the number of their source, which the host translates: 1 here, too.
        assert_eq!([&pes.reports[0][..2], &pes.reports[2][..2]], [[1, 1], [2, 0]], "{}", document.name);
        // Where it waits is the step of a plan, or none where the ranks meet before their steps.
        let meets = document.gpus.iter().any(|gpu| gpu.threadblocks.iter().all(|block| block.ops.is_empty()));
        assert_eq!(pes.reports[0][2] as u32 == u32::MAX, meets, "{}", document.name);
        for pe in 0..3 {
            pes.bytes(pe, DEST, 400).fill(0xee);
        }
        pes.call(&[0, 1, 2], Float32, ReduceOp::Sum, 400, |_| (SOURCE, DEST));
        let reports: Vec<&[u64]> = pes.reports.iter().map(|report| &report[..2]).collect();
        assert_eq!(reports, [[1, 1], [2, 0], [2, 0]], "{}", document.name);
        assert!((0..3).all(|pe| pes.bytes(pe, DEST, 400).iter().all(|&byte| byte == 0xee)), "{}", document.name);
    }
}

#[test]
fn narrow_types_have_the_hosts_codes() {
    let Some(library) = library() else { return };
    // SAFETY: the functions' types.
    let (decode, encode) =
        unsafe { (library.get::<Decode>(b"decode").unwrap(), library.get::<Encode>(b"encode").unwrap()) };
    type Codec = (DataType, u32, fn(u32) -> f32, fn(f32) -> u32);
    let codecs: [Codec; 5] = [
        (Float8E4m3, 256, |code| fp8::e4m3_to_f32(code as u8), |value| fp8::f32_to_e4m3(value).into()),
        (Float8E5m2, 256, |code| fp8::e5m2_to_f32(code as u8), |value| fp8::f32_to_e5m2(value).into()),
        (Float8E4m3b15, 256, |code| fp8::e4m3b15_to_f32(code as u8), |value| fp8::f32_to_e4m3b15(value).into()),
        (Float16, 65536, |code| f16::from_bits(code as u16).to_f32(), |v| f16::from_f32(v).to_bits().into()),
        (Bfloat16, 65536, |code| bf16::from_bits(code as u16).to_f32(), |v| bf16::from_f32(v).to_bits().into()),
    ];
    for (ty, codes, host_decode, host_encode) in codecs {
        // SAFETY: functions of numbers.
        let (decode, encode) = (|c| unsafe { decode(number(ty), c) }, |v| unsafe { encode(number(ty), v) });
        let check = |value: f32| {
            let (found, expected) = (encode(value), host_encode(value));
            let nan = |code: u32| host_decode(code).is_nan();
            assert!(
                found == expected || nan(found) && nan(expected),
                "{ty:?}: {value:e} is {found:#x}, not {expected:#x}"
            );
        };
        let mut last = 0.0;
        for code in 0..codes {
            let (found, expected) = (decode(code), host_decode(code));
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{ty:?} {code:#x} is {found}, not {expected}");
            assert_eq!(found.is_sign_negative(), expected.is_sign_negative(), "{ty:?} {code:#x}");
            let middle = ((f64::from(last) + f64::from(expected)) / 2.0) as f32;
            for value in [expected, middle, middle.next_up(), middle.next_down()] {
                check(value);
            }
            last = expected;
        }
        for bits in (0..=u32::MAX).step_by(65_537) {
            check(f32::from_bits(bits));
        }
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-45, 65519.9, 65520.0]
        {
            check(value);
        }
    }
}

#[test]
fn averages_are_the_hosts() {
    let Some(library) = library() else { return };
    // SAFETY: the function's type.
    let divide = unsafe { library.get::<Divide>(b"divide") }.unwrap();
    let mut values = [-7i64, 9, i64::MIN];
    // SAFETY: three values.
    unsafe { divide(number(Int64), values.as_mut_ptr() as u64, 3, 2) };
    assert_eq!(values, [-3, 4, i64::MIN / 2]);
    let mut values = [-7i8, 100];
    // SAFETY: two values.
    unsafe { divide(number(Int8), values.as_mut_ptr() as u64, 2, 200) };
    assert_eq!(values, [0, 0]);
    let mut values = [f16::from_f32(3.0)];
    // SAFETY: one value.
    unsafe { divide(number(Float16), values.as_mut_ptr() as u64, 1, 2) };
    assert_eq!(values, [f16::from_f32(1.5)]);
}

/// Factors of scaled sums, of all kinds of numbers, at any address.
#[test]
fn elements_are_multiplied_in_their_type() {
    let Some(library) = library() else { return };
    // SAFETY: the function's type.
    let multiply = unsafe { library.get::<unsafe extern "C" fn(i32, u64, u64, u64)>(b"multiply") }.unwrap();
    let check = |ty: DataType, elements: &[Vec<u8>], factor: &[u8], expected: &[Vec<u8>]| {
        for shift in [0, 1] {
            let mut memory = vec![0u8; shift];
            memory.extend(elements.concat());
            let at = memory.as_mut_ptr() as u64 + shift as u64;
            // SAFETY: so many elements exist, and a factor.
            unsafe { multiply(number(ty), at, elements.len() as u64, factor.as_ptr() as u64) };
            assert_eq!(memory[shift..], expected.concat(), "{ty:?} at byte {shift}");
        }
    };
    let numbers = [-3.0f32, 0.0, 1.0, 2.5];
    let all = |of: &dyn Fn(f32) -> Vec<u8>, by: f32| -> Vec<Vec<u8>> { numbers.iter().map(|&x| of(x * by)).collect() };
    let f32s = |x: f32| x.to_ne_bytes().to_vec();
    check(Float32, &all(&f32s, 1.0), &f32s(0.5), &all(&f32s, 0.5));
    let bf16s = |x: f32| bf16::from_f32(x).to_ne_bytes().to_vec();
    check(Bfloat16, &all(&bf16s, 1.0), &bf16s(-2.0), &all(&bf16s, -2.0));
    let f16s = |x: f32| f16::from_f32(x).to_ne_bytes().to_vec();
    check(Float16, &all(&f16s, 1.0), &f16s(4.0), &all(&f16s, 4.0));
    let i64s = |x: f32| ((x * 2.0) as i64).to_ne_bytes().to_vec();
    check(Int64, &all(&i64s, 1.0), &3i64.to_ne_bytes(), &all(&i64s, 3.0));
}

fn copy(all: &[Transfer]) {
    for &Transfer { dest, source, bytes } in all {
        // SAFETY: memory of this test, which nothing else uses now.
        unsafe { std::ptr::copy(source as *const u8, dest as *mut u8, bytes as usize) };
    }
}

/// A collective on buffers outside the heaps, piece by piece, as a communicator for any memory splits it.
fn any_memory(document: &Document, in_place: bool, scaled: bool, discards: bool) {
    let pes = Pes::new(document, 4096, 3, |_, _| true);
    let (n, ty, count) = (pes.heaps.len(), Float32, 300);
    let (collective, part) = (pes.plan.collective().clone(), count * ty.size());
    let what = format!("{}, in place {in_place}, scaled {scaled}, discards {discards}", pes.plan.name());
    let data = Data { ty, op: ReduceOp::Sum, n, round: 3 };
    let (inputs, outputs) = parts(&collective, n);
    let sent: Vec<Vec<u8>> = (0..n).map(|me| data.input(me, inputs * count)).collect();
    let got = vec![vec![0xeeu8; outputs * part]; n];
    let memory = |bytes: &Vec<u8>| Memory { at: bytes.as_ptr() as u64, len: bytes.len() as u64 };
    let [reaches_input, reaches_output] = [BufferType::Input, BufferType::Output].map(|buffer| pes.plan.shares(buffer));
    for at in (0..part).step_by(512) {
        let piece = Piece { at: at as u64, len: 512.min(part - at) as u64 };
        let staged: Vec<_> = (0..n)
            .map(|me| {
                let call = StagedCall {
                    input: memory(&sent[me]),
                    output: memory(if in_place { &sent[me] } else { &got[me] }),
                    part: part as u64,
                    inputs: inputs as u64,
                    outputs: outputs as u64,
                    in_place,
                    reaches_input,
                    reaches_output,
                    scaled,
                    discards: discards && me > 0,
                };
                Stage::at(pes.base(me) + STAGE).staged(&call, piece)
            })
            .collect();
        for (me, one) in staged.iter().enumerate() {
            copy(&one.before);
            let heap = pes.base(me)..pes.base(me) + HEAP as u64;
            assert!(heap.contains(&one.input.at) || !reaches_input && !scaled, "{what}: peers do not reach its input");
            assert!(!in_place || one.input == one.output, "{what}: its plan may rely on one buffer");
            assert!(heap.contains(&one.output.at) || !reaches_output, "{what}: peers do not reach its output");
        }
        let all: Vec<usize> = (0..n).collect();
        let apart = |pe: usize, memory: Memory| memory.at.wrapping_sub(pes.base(pe));
        pes.call(&all, ty, data.op, piece.len, |me| (apart(me, staged[me].input), apart(me, staged[me].output)));
        staged.iter().for_each(|one| copy(&one.after));
    }
    for me in 0..n {
        assert_eq!(pes.reports[me], [0; 4], "{what}");
        if !in_place {
            assert!(sent[me] == data.input(me, inputs * count), "{what}: PE {me}'s input was changed");
        }
        let expected = if discards && me > 0 { vec![0xee; part] } else { data.output(&collective, me, count) };
        let found = if in_place { &sent[me] } else { &got[me] };
        let has_result = collective != Collective::Reduce || me == 0;
        if let Some(difference) = difference(found, &expected).filter(|_| has_result) {
            panic!("{what}, PE {me}: {difference}");
        }
    }
}

#[test]
fn buffers_may_be_any_memory() {
    if library().is_none() {
        return;
    }
    for document in one_host(&Shape::one_host(3, 2)) {
        any_memory(&document, false, false, false);
        any_memory(&document, false, true, false);
        if document.collective == "allreduce" {
            // As a reduction to PE 0 does it.
            any_memory(&document, false, false, true);
        }
    }
    for name in ["copies", "packets"] {
        any_memory(&of_users(name), false, false, false);
    }
    // In the second plan peers access only the output, which is the input.
    for document in [all_reduce::direct(&Shape::one_host(3, 2)), all_reduce::by_puts(&Shape::one_host(3, 2))] {
        any_memory(&Document { inplace: true, ..document }, true, false, false);
    }
}
