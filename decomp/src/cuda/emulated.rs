//! Rounds of several PEs with the kernels of `cu/pencils.cu`, compiled for the CPU. The order of a GPU's memory and its
//! proxy are not tested here.
#![allow(clippy::unwrap_used)]

use std::sync::OnceLock;

use libloading::Library;
use symrail_core::{layout, word_of};

use super::binding::{Buffers, Copies, Group, Round};
use super::engines;
use super::layout::PlanMemory;
use crate::all_to_all::{Span, flows};
use crate::blocks::{Blocks, Extent, Kind};
use crate::error::Refusal;
use crate::flow::Flows;
use crate::staging::{Handle, Memory, Path};
use crate::view::View;
use crate::{Axis, Form, Grid, Halo, Mode, Transpose};

#[path = "../../../kernels/emulator/emulator.rs"]
mod emulator;

/// The layout matches `tests/host/pencils.cpp`.
#[repr(C)]
struct Call {
    plan: u64,
    legs: u64,
    n: u64,
    landings: u64,
    pack: [u64; 2],
    groups: [u64; 2],
    unit: u64,
    pe: u64,
    timeout_ns: u64,
    apart: u64,
    mapped: u64,
    hidden_from: u64,
    launches: u64,
    fetch_first: u64,
    in_turn: u64,
}

/// The layout matches `Group` there.
#[repr(C)]
struct Part {
    first: u64,
    legs: u64,
    send: [u64; 2],
    fetches: [u64; 2],
    unpack_fetched: [u64; 2],
    unpack: [u64; 2],
}

/// The library, compiled once; `None` where there is no C++ compiler.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let make = || {
        let built = emulator::library("decomp/tests/host/pencils.cpp", &["decomp/cu", "kernels/include"])?;
        // SAFETY: a library without initialisers of its own.
        let library = unsafe { Library::new(&built) }.unwrap();
        Some(library)
    };
    LIBRARY.get_or_init(make).as_ref()
}

/// The offsets in a PE's memory of its workspace, its input, its output and its rooms, and the size of all of it.
const WORK: usize = 4096;
const INPUT: usize = 256 << 10;
const OUTPUT: usize = 512 << 10;
const ROOMS: usize = 768 << 10;
const ALL: usize = 1 << 20;
/// The value of each byte of memory before a test.
const UNTOUCHED: u8 = 0xA5;

/// A PE with symmetric memory.
struct Pe {
    memory: Vec<u128>,
    /// The plan, the round, the stop word, the counts and the landings; the report.
    plan: Vec<u64>,
    report: Vec<u64>,
}

impl Pe {
    fn new() -> Pe {
        let mut memory = vec![u128::from_ne_bytes([UNTOUCHED; 16]); ALL / 16];
        memory[..WORK / 16].fill(0);
        Pe { memory, plan: vec![0; 128], report: vec![0; 8] }
    }

    fn base(&self) -> u64 {
        self.memory.as_ptr().addr() as u64
    }

    fn bytes(&mut self, from: usize, len: usize) -> &mut [u8] {
        // SAFETY: the bytes are the memory's, for as long as it is lent.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast::<u8>().add(from), len) }
    }
}

/// The paths between the PEs of a test, and the places of their arrays.
#[derive(Debug, Clone, Copy)]
struct How {
    element: usize,
    direct: bool,
    in_place: bool,
    symmetric: bool,
    /// The PEs that are reached over rails: those whose numbers differ by an odd number; all; or none.
    rails: usize,
    engines: Option<usize>,
    /// The least bytes of a part of a block; 0 for whole blocks.
    parts: usize,
    /// A PE that does not reach the outputs of the others.
    blind: Option<usize>,
    /// The number of launches of a round whose PEs are all mapped. A refusal has 3.
    launches: u64,
}

impl How {
    /// The blocks of a PE, in parts.
    fn parts(self, flows: &Flows) -> Flows {
        let flows = flows.clone();
        if self.parts == 0 { flows } else { flows.in_parts(self.element, self.parts) }
    }

    fn is_mapped(self, pe: usize, other: usize) -> bool {
        pe == other || self.rails == 0 || self.rails == 1 && (pe + other).is_multiple_of(2)
    }
}

fn places(view: &View) -> impl Iterator<Item = usize> + '_ {
    let [_, b, c, d] = view.extents;
    let at = move |n: usize| [n / (b * c * d), n / (c * d) % b, n / d % c, n % d];
    (0..view.len()).map(move |n| view.offset + at(n).iter().zip(view.strides).map(|(i, by)| i * by).sum::<usize>())
}

/// Agrees on the rooms as a plan for copy engines does.
fn agree_on_rooms(blocks: &mut Blocks, me: usize, flows: &[Flows], how: How, bases: &[u64]) {
    let path = |me: usize, pe: u32| if how.is_mapped(me, pe as usize) { Path::Mapped } else { Path::Rails };
    let all: Vec<_> = (0..flows.len())
        .map(|pe| {
            let mode = Mode { engines: how.engines, ..Mode::default() };
            let path = |other| path(pe, other);
            let own = how.parts(&flows[pe]);
            engines::rooms(&Blocks::new(Kind::test(how.element, mode), own, |rank| rank as u32, path))
        })
        .collect();
    assert!(all.iter().all(|(_, bytes)| *bytes <= ALL - ROOMS));
    let numbers: Vec<u64> = all.iter().flat_map(|(rooms, _)| engines::numbers(rooms)).collect();
    let at = |pe: Option<u32>, at: u64| bases[pe.map_or(me, |pe| pe as usize)] + ROOMS as u64 + at;
    engines::agree(blocks, &all[me].0, &numbers, at);
}

/// Runs a round on all PEs. Those in `wrong` get an invalid argument.
fn round(library: &Library, pes: &mut [Pe], flows: &[Flows], how: How, wrong: &[usize]) {
    // SAFETY: the function's type.
    let run = unsafe { library.get::<unsafe extern "C" fn(*const Call)>(b"pencils_round") }.unwrap();
    let bases: Vec<u64> = pes.iter().map(Pe::base).collect();
    std::thread::scope(|scope| {
        for (me, pe) in pes.iter_mut().enumerate() {
            let (bases, run) = (&bases, &run);
            scope.spawn(move || {
                let path = |pe| if how.is_mapped(me, pe as usize) { Path::Mapped } else { Path::Rails };
                let mode = Mode { direct: how.direct, engines: how.engines, ..Mode::default() };
                let own = how.parts(&flows[me]);
                let mut blocks = Blocks::new(Kind::test(how.element, mode), own, |rank| rank as u32, path);
                let base = bases[me];
                if how.engines.is_some() {
                    agree_on_rooms(&mut blocks, me, flows, how, bases);
                }
                let output = if how.in_place { INPUT } else { OUTPUT };
                let [input, output] = [INPUT, output].map(|at| Extent { at: base + at as u64, bytes: OUTPUT - INPUT });
                assert!(blocks.workspace_bytes <= INPUT - WORK && 24 * blocks.slots() <= WORK);
                let memory =
                    [how.symmetric, true].map(|symmetric| Memory::Device { handle: Handle::Fabric, symmetric });
                let buffers = Buffers { input, output, memories: [memory; 2], work: base + WORK as u64, words: base };
                let made = match wrong.contains(&me) {
                    true => Round::refusal(&blocks, Refusal::Overlap),
                    false => Round::new(&blocks, &buffers),
                };
                let legs = blocks.legs.len() as u64;
                let (plan, report) = (pe.plan.as_ptr().addr() as u64, pe.report.as_ptr().addr() as u64);
                let memory = PlanMemory {
                    round: pe.plan[word_of!(PlanMemory, round)],
                    ..PlanMemory::new(plan, base, blocks.slots(), report)
                };
                pe.plan[..size_of::<PlanMemory>() / 8].copy_from_slice(&layout::words(&[memory]));
                let mut room = vec![0u64; 1 << 14];
                let at = room.as_ptr().addr() as u64;
                let (words, binding) = made.image(at);
                room[..words.len()].copy_from_slice(&words);
                let apart: Vec<u64> = bases.iter().map(|other| other.wrapping_sub(base)).collect();
                let reach = |other| if how.blind == Some(me) { 2 } else { u8::from(how.is_mapped(me, other)) };
                let mapped: Vec<u8> = (0..bases.len()).map(reach).collect();
                let listed = |copies: &Copies| [copies.at, copies.count];
                let part = |group: &Group| Part {
                    first: group.first as u64,
                    legs: group.legs as u64,
                    send: listed(&group.send),
                    fetches: [group.fetches.as_ptr().addr() as u64, group.fetches.len() as u64],
                    unpack_fetched: listed(&group.unpack_fetched),
                    unpack: listed(&group.unpack),
                };
                let groups: Vec<Part> = binding.groups.iter().map(part).collect();
                let call = Call {
                    plan,
                    legs: at,
                    n: legs,
                    landings: plan + size_of::<PlanMemory>() as u64,
                    pack: listed(&binding.pack),
                    groups: [groups.as_ptr().addr() as u64, groups.len() as u64],
                    unit: blocks.unit(16) as u64,
                    pe: me as u64,
                    timeout_ns: 20_000_000_000,
                    apart: apart.as_ptr().addr() as u64,
                    mapped: mapped.as_ptr().addr() as u64,
                    hidden_from: base + OUTPUT as u64,
                    fetch_first: binding.apart.into(),
                    in_turn: binding.in_turn.into(),
                    launches: match how.launches {
                        launches if !binding.in_one || launches == 3 => 3,
                        launches => launches.max(groups.len().min(2) as u64),
                    },
                };
                // SAFETY: the memory is that of all PEs, which stay valid.
                unsafe { run(&raw const call) };
            });
        }
    });
}

/// Compares two rounds with the same copies of one element after the other.
fn check(library: &Library, flows: &[Flows], how: How) {
    let mut pes: Vec<Pe> = flows.iter().map(|_| Pe::new()).collect();
    let size = how.element;
    for salt in 0..2u8 {
        let mut expected: Vec<Vec<u8>> = Vec::new();
        let mut inputs: Vec<Vec<u8>> = Vec::new();
        for (me, pe) in pes.iter_mut().enumerate() {
            let bytes = flows[me].elements.0 * size;
            let input: Vec<u8> = (0..bytes).map(|i| (i * 31 + i / 251 + me * 17) as u8 ^ salt).collect();
            pe.bytes(INPUT, bytes).copy_from_slice(&input);
            let output = if how.in_place { INPUT } else { OUTPUT };
            expected.push(pe.bytes(output, flows[me].elements.1 * size).to_vec());
            inputs.push(input);
        }
        let mut bring = |to: usize, from: usize, views: (&View, &View)| {
            for (from_place, to_place) in places(views.0).zip(places(views.1)) {
                let element = inputs[from][from_place * size..][..size].to_vec();
                expected[to][to_place * size..][..size].copy_from_slice(&element);
            }
        };
        for (me, own) in flows.iter().enumerate() {
            own.own.iter().for_each(|(from, to)| bring(me, me, (from, to)));
            for flow in &own.others {
                let other = flows[flow.rank].others.iter().find(|other| other.rank == me && other.here == flow.there);
                bring(flow.rank, me, (&flow.from, &other.unwrap().at));
            }
        }
        round(library, &mut pes, flows, how, &[]);
        for (me, pe) in pes.iter_mut().enumerate() {
            assert_eq!(pe.report, [0; 8], "PE {me} gave up: {how:?}");
            let output = if how.in_place { INPUT } else { OUTPUT };
            assert!(pe.bytes(output, expected[me].len()) == expected[me], "PE {me}, round {salt}: {how:?}");
        }
    }
}

fn form(i: usize) -> Form {
    [Form::default(), Form { halo: [1, 2, 1], padding: [1, 1, 2] }, Form { halo: [2, 0, 1], padding: [0, 3, 0] }][i % 3]
}

#[test]
fn every_byte_comes_to_its_place() {
    let Some(library) = library() else { return };
    let orders = [[[0, 1, 2]; 3], [[0, 1, 2], [1, 2, 0], [2, 0, 1]], [[2, 0, 1], [0, 2, 1], [1, 0, 2]]];
    let mut i = 0;
    for processes in [[1, 1], [1, 2], [3, 1], [2, 2]] {
        for memory in orders {
            let grid = Grid { memory, ..Grid::new([9, 10, 35], processes) };
            let ranks = processes[0] * processes[1];
            for axes in Transpose::ALL {
                i += 1;
                let how = How {
                    element: [2, 4, 8, 16, 12, 3][i % 6],
                    direct: !i.is_multiple_of(7),
                    in_place: i.is_multiple_of(3),
                    symmetric: !i.is_multiple_of(4),
                    rails: i / 2 % 3,
                    engines: [None, Some(0), Some(1500)][i / 4 % 3],
                    parts: [0, 100, 700][i / 2 % 3],
                    blind: None,
                    launches: 1 + i as u64 / 6 % 3,
                };
                let transpose = Transpose {
                    input: form(i),
                    output: form(i / 2),
                    fields: 1 + i % 2,
                    ..Transpose::new(axes, how.element)
                };
                let flows: Vec<_> = (0..ranks).map(|rank| transpose.flows(&grid, rank).unwrap()).collect();
                check(library, &flows, how);
            }
            let mode = Mode::default();
            for dim in 0..3 {
                i += 1;
                let (axis, form, periodic) = (Axis::ALL[i % 3], form(1), i.is_multiple_of(2));
                let halo = Halo { axis, dim, periodic, form, element: 8, fields: 1, mode };
                let Ok(flows) = (0..ranks).map(|rank| halo.flows(&grid, rank)).collect::<Result<Vec<_>, _>>() else {
                    continue;
                };
                let how = How {
                    element: 8,
                    direct: true,
                    in_place: true,
                    symmetric: true,
                    rails: i % 3,
                    engines: i.is_multiple_of(2).then_some(0),
                    parts: [0, 40][i / 2 % 2],
                    blind: None,
                    launches: 1 + i as u64 / 3 % 3,
                };
                check(library, &flows, how);
            }
        }
    }
}

/// All-to-alls with blocks of any size, empty ones among them, with gaps between them.
#[test]
fn blocks_of_any_size_and_none() {
    let Some(library) = library() else { return };
    for (i, ranks) in [1, 2, 3, 5].into_iter().enumerate() {
        let count = |from: usize, to: usize| if (from + to).is_multiple_of(3) { 0 } else { from * 4 + to * 300 + 1 };
        let spans = |counts: &mut dyn Iterator<Item = usize>| -> Vec<Span> {
            let place = |end: &mut usize, count| {
                let span = Span { offset: *end, count };
                *end += count + 2;
                Some(span)
            };
            counts.scan(0, place).collect()
        };
        let of = |me: usize| {
            let sends = spans(&mut (0..ranks).map(|to| count(me, to)));
            flows(me, &sends, &spans(&mut (0..ranks).map(|from| count(from, me))))
        };
        let flows: Vec<_> = (0..ranks).map(of).collect();
        for (rails, symmetric) in [(0, true), (1, false), (2, true)] {
            let (element, direct) = ([8, 3, 16, 4][(i + rails) % 4], rails != 1);
            check(
                library,
                &flows,
                How {
                    element,
                    direct,
                    in_place: false,
                    symmetric,
                    rails,
                    engines: (i % 2 == 1).then_some(1000),
                    parts: 0,
                    blind: None,
                    launches: 1 + i as u64 % 3,
                },
            );
        }
    }
}

/// Arrays that are large enough for tiles and wide pieces.
#[test]
fn tiles_and_wide_pieces_too() {
    let Some(library) = library() else { return };
    for (i, element) in [2, 4, 8, 16].into_iter().enumerate() {
        for memory in [[[0, 1, 2]; 3], [[0, 1, 2], [1, 2, 0], [2, 0, 1]]] {
            let grid = Grid { memory, ..Grid::new([80, 72, 2], [2, 1]) };
            let transpose = Transpose::new((Axis::X, Axis::Y), element);
            let flows: Vec<_> = (0..2).map(|rank| transpose.flows(&grid, rank).unwrap()).collect();
            let rails = i % 2 * 2;
            check(
                library,
                &flows,
                How {
                    element,
                    direct: true,
                    in_place: false,
                    symmetric: true,
                    rails,
                    engines: (i % 2 == 1).then_some(1000),
                    parts: 0,
                    blind: None,
                    launches: 1 + i as u64 / 2 % 3,
                },
            );
        }
    }
}

/// In place, with blocks of both kinds: copy engines write where kernels read the blocks that they send.
#[test]
fn copy_engines_wait_for_kernels_that_read_where_they_write() {
    let Some(library) = library() else { return };
    let grid = Grid { memory: [[0, 1, 2], [0, 2, 1], [2, 0, 1]], ..Grid::new([9, 10, 35], [3, 1]) };
    let how = How {
        element: 8,
        direct: true,
        in_place: true,
        symmetric: true,
        rails: 0,
        engines: Some(9 * 35 * 8 + 1),
        parts: 0,
        blind: None,
        launches: 3,
    };
    let transpose = Transpose::new((Axis::X, Axis::Y), how.element);
    let flows: Vec<_> = (0..3).map(|rank| transpose.flows(&grid, rank).unwrap()).collect();
    let mut sizes: Vec<_> = flows.iter().flat_map(|own| own.others.iter().map(|flow| flow.most())).collect();
    sizes.sort_unstable();
    sizes.dedup();
    assert_eq!(sizes, [9 * 35, 12 * 35], "some of the blocks are for copy engines");
    assert!(flows.iter().flat_map(|own| &own.others).all(|flow| flow.at.is_contiguous()), "they go straight");
    check(library, &flows, how);
}

/// A PE that refuses an argument exchanges nothing. The others get the reason, and the next round is right.
#[test]
fn a_refusal_ends_the_round_for_all() {
    let Some(library) = library() else { return };
    let grid = Grid::new([9, 10, 11], [3, 1]);
    let transpose = Transpose::new((Axis::X, Axis::Y), 8);
    let flows: Vec<_> = (0..3).map(|rank| transpose.flows(&grid, rank).unwrap()).collect();
    for (rails, engines, launches, parts) in
        [(1, None, 3, 0), (0, Some(0), 3, 0), (0, None, 2, 0), (0, None, 1, 0), (0, None, 2, 300), (0, Some(0), 3, 300)]
    {
        let how = How {
            element: 8,
            direct: true,
            in_place: false,
            symmetric: true,
            rails,
            engines,
            parts,
            blind: None,
            launches,
        };
        let mut pes: Vec<Pe> = flows.iter().map(|_| Pe::new()).collect();
        for _ in 0..2 {
            round(library, &mut pes, &flows, how, &[1]);
            for (me, pe) in pes.iter_mut().enumerate() {
                let told = if me == 1 { [0, 0] } else { [Refusal::Overlap.code() + 1, 1] };
                assert_eq!(pe.report[..4], [0; 4], "PE {me} gave up");
                assert_eq!(pe.report[4..6], told, "PE {me}");
                pe.report.fill(0);
            }
            assert!(pes[1].bytes(OUTPUT, flows[1].elements.1 * 8).iter().all(|&byte| byte == UNTOUCHED));
            round(library, &mut pes, &flows, how, &[]);
            for pe in &mut pes {
                assert_eq!(pe.report, [0; 8]);
                pe.bytes(OUTPUT, ROOMS - OUTPUT).fill(UNTOUCHED);
            }
        }
    }
}

/// A PE does not write to memory that it does not reach. It and the receiver get the reason; all other blocks are
/// exchanged.
#[test]
fn a_landing_that_is_not_reached_is_told_on_both_sides() {
    let Some(library) = library() else { return };
    let grid = Grid::new([9, 10, 11], [3, 1]);
    let transpose = Transpose::new((Axis::X, Axis::Y), 8);
    let flows: Vec<_> = (0..3).map(|rank| transpose.flows(&grid, rank).unwrap()).collect();
    for launches in 1..=3 {
        let how = How {
            element: 8,
            direct: true,
            in_place: false,
            symmetric: true,
            rails: 0,
            engines: None,
            parts: 0,
            blind: Some(1),
            launches,
        };
        let mut pes: Vec<Pe> = flows.iter().map(|_| Pe::new()).collect();
        for (me, pe) in pes.iter_mut().enumerate() {
            pe.bytes(INPUT, flows[me].elements.0 * 8).fill(me as u8);
        }
        round(library, &mut pes, &flows, how, &[]);
        let unreached = Refusal::Unreached.code() + 1;
        for (me, pe) in pes.iter_mut().enumerate() {
            assert_eq!(pe.report[..4], [0; 4], "PE {me} gave up");
            assert_eq!(pe.report[4], unreached, "PE {me}");
            assert_eq!(pe.report[5] == 1, me != 1, "PE {me}");
            let mut count = [0; 3];
            pe.bytes(OUTPUT, flows[me].elements.1 * 8)
                .iter()
                .filter(|&&byte| byte < 3)
                .for_each(|&by| count[by as usize] += 1);
            for (from, bytes) in count.into_iter().enumerate() {
                let block = flows[me].others.iter().find(|flow| flow.rank == from).map(|flow| flow.at.len() * 8);
                let expected = if from == 1 { 0 } else { block.unwrap_or(bytes) };
                assert!(bytes == expected || from == me, "PE {me} has {bytes} bytes of PE {from}");
            }
        }
        pes.iter_mut().for_each(|pe| pe.report.fill(0));
        round(library, &mut pes, &flows, How { blind: None, ..how }, &[]);
        assert!(pes.iter().all(|pe| pe.report == [0; 8]), "the next round is as if nothing had been");
    }
}
