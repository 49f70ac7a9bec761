//! Transposes, halos and all-to-alls of the teams of the first 1, 2, 3, 4, 6 and 8 PEs, every byte checked. The first
//! argument selects the case: `small` (9 x 10 x 11, all process grids), `large` (128 x 124 x 132), `plans`, `rounds` (for
//! the seconds of the second argument), `misuse`, `late`, `memory`, `device`.
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use symrail::{Group, Result, Runtime, SymSlice, Team, TeamHeap};
use symrail_decomp::staging::{Path, Reason, Route};
use symrail_decomp::{
    AllToAll, AnyPlan, Axis, BlockTime, Decomposition, Error, Form, Grid, Halo, Mode, RankOrder, Refusal, Round, Span,
    Transpose, Tuned, Tuning, tune,
};
use symrail_tests::pe;
use symrail_tests::pencils::{self, Place};

/// Bytes of the heap that teams share.
const HEAP: usize = 40 << 20;
/// Words of arrays in symmetric memory.
const WORDS: usize = 1 << 20;

pub fn main() -> std::process::ExitCode {
    let what: String = pe::arg(0, "small".into());
    pe::run(|rt| {
        if what == "device" {
            let heap = TeamHeap::new(rt, HEAP).unwrap();
            let array = Decomposition::new(&heap, rt.team_world()?, Grid::new([4, 4, 4], [1, 2])).unwrap();
            let error = array.transpose(&Transpose::new((Axis::X, Axis::Y), 8)).err().unwrap();
            assert!(matches!(error, Error::Runtime(symrail::Error::DeviceHeap { .. })), "{error}");
            return rt.barrier_all();
        }
        let heap = TeamHeap::new(rt, HEAP).unwrap();
        let arrays = [rt.alloc_slice::<u64>(WORDS)?, rt.alloc_slice::<u64>(WORDS)?];
        let world = rt.team_world()?;
        match &*what {
            "small" => small(rt, &heap, &world, &arrays)?,
            "large" => large(rt, &heap, &arrays),
            "plans" => plans(rt, &heap, &world)?,
            "late" => late(rt, &heap, &arrays)?,
            "memory" => memory(rt, &heap)?,
            "rounds" => rounds(rt, &heap, &arrays, Duration::from_secs(pe::arg(1, 1)))?,
            _ => misuse(rt, &heap, &arrays),
        }
        rt.barrier_all()
    })
}

/// The team of the first PEs, made on these PEs.
fn first(rt: &Runtime, world: &Team, size: u32) -> Result<Option<Team>> {
    world.split(Group::new(0, 1, size.into(), rt.my_pe(), rt.n_pes()))
}

/// Forms of pencils: halos and padding, on one side, on both, or none.
fn form(i: usize) -> (Form, Form) {
    let none = Form::default();
    let one = Form { halo: [1, 2, 1], padding: [1, 1, 2] };
    let other = Form { halo: [2, 0, 1], padding: [0, 3, 0] };
    [(none, none), (one, other), (none, one), (other, none)][i % 4]
}

/// The variant of a configuration, so that all pairs occur within a few hundred of them.
fn variant(i: usize, arrays: &[SymSlice<u64>; 2]) -> (usize, usize, Mode, Place) {
    let element = [8, 16, 4, 2][i % 4];
    let fields = 1 + usize::from(i.is_multiple_of(3));
    let mode = Mode { pipelined: !i.is_multiple_of(5), direct: !i.is_multiple_of(4), engines: None };
    let symmetric = (i / 2).is_multiple_of(2).then(|| [arrays[0].as_ptr(), arrays[1].as_ptr()]);
    (element, fields, mode, Place { symmetric, in_place: i % 3 == 1 })
}

fn small(rt: &Runtime, heap: &TeamHeap, world: &Team, arrays: &[SymSlice<u64>; 2]) -> Result<()> {
    let orders = [[[0, 1, 2]; 3], [[0, 1, 2], [1, 2, 0], [2, 0, 1]], [[2, 0, 1], [0, 2, 1], [1, 0, 2]]];
    let mut count = 0;
    for size in [1, 2, 3, 4, 6, 8].into_iter().filter(|&size| size <= rt.n_pes()) {
        let Some(mut team) = first(rt, world, size)? else { continue };
        let mut i = size as usize * 100;
        for processes in Grid::factors(size as usize) {
            for (k, memory) in orders.into_iter().enumerate() {
                let ranks = [RankOrder::RowMajor, RankOrder::ColumnMajor][k % 2];
                let distributed = if k == 2 { [8, 8, 8] } else { [9, 10, 11] };
                let grid = Grid { memory, ranks, distributed, ..Grid::new([9, 10, 11], processes) };
                let array = Decomposition::new(heap, team, grid).unwrap();
                for axes in Transpose::ALL {
                    i += 1;
                    let (element, fields, mode, place) = variant(i, arrays);
                    let (input, output) = form(i / 4);
                    let wanted = Transpose { fields, mode, input, output, ..Transpose::new(axes, element) };
                    pe::doing(format!("{wanted:?} {place:?} {grid:?}"));
                    pencils::transpose(&array, &wanted, place, 2).unwrap();
                }
                i += 1;
                let (element, fields, mode, place) = variant(i, arrays);
                // Shares along Z of 8 PEs have one element.
                let form = Form { halo: [1, 1, 1], padding: [0, 2, 1] };
                let axis = Axis::ALL[i % 3];
                pe::doing(format!("halos of {axis:?} {mode:?} {place:?} {grid:?}"));
                let symmetric = place.symmetric.map(|words| words[0]);
                let updated =
                    pencils::halo(&array, (axis, form, i.is_multiple_of(2)), (element, fields, mode), symmetric);
                updated.unwrap();
                team = array.into_team();
                count += Transpose::ALL.len() + 1;
            }
        }
        team.destroy()?;
    }
    println!("{count} configurations");
    Ok(())
}

fn large(rt: &Runtime, heap: &TeamHeap, arrays: &[SymSlice<u64>; 2]) {
    for (i, processes) in Grid::factors(rt.n_pes() as usize).enumerate() {
        let grid = Grid::new([128, 124, 132], processes);
        let grid = if i.is_multiple_of(2) { grid } else { grid.axis_contiguous() };
        let array = Decomposition::new(heap, rt.team_world().unwrap(), grid).unwrap();
        let symmetric = i.is_multiple_of(2).then(|| [arrays[0].as_ptr(), arrays[1].as_ptr()]);
        for axes in [(Axis::X, Axis::Y), (Axis::Z, Axis::Y)] {
            let place = Place { symmetric, in_place: false };
            pencils::transpose(&array, &Transpose::new(axes, 8), place, 1).unwrap();
        }
        let form = Form { halo: [1, 1, 1], padding: [0; 3] };
        let memory = symmetric.map(|words| words[0]);
        pencils::halo(&array, (Axis::Y, form, true), (8, 1, Mode::default()), memory).unwrap();
    }
}

/// All-to-alls of odd sizes, two at once, driven in another order on each PE; and grids of two teams at once.
fn plans(rt: &Runtime, heap: &TeamHeap, world: &Team) -> Result<()> {
    let (me, n) = (rt.my_pe() as usize, rt.n_pes() as usize);
    let count = |from: usize, to: usize| if (from + to).is_multiple_of(3) { 0 } else { from * 40 + to * 3000 + 1 };
    let spans = |count: &dyn Fn(usize) -> usize| {
        let ends = (0..n).scan(0, |end, pe| {
            let span = Span { offset: *end, count: count(pe) };
            *end += span.count + 2;
            Some(span)
        });
        ends.collect::<Vec<_>>()
    };
    let (sends, receives) = (spans(&|to| count(me, to)), spans(&|from| count(from, me)));
    let make = |mode| AllToAll::new(heap, world, 8, mode, &sends, &receives).unwrap();
    let mut both = [make(Mode::default()), make(Mode { pipelined: false, ..Mode::default() })];
    let word = |from: usize, to: usize, i: usize, round: u64| round << 48 | (from << 40 | to << 32 | i) as u64;
    for round in 1..6 {
        let [one, other] = &mut both;
        let fill = |salt: u64| {
            let mut words = vec![0; one.plan.input_bytes() / 8];
            for (to, span) in sends.iter().enumerate() {
                (0..span.count).for_each(|i| words[span.offset + i] = word(me, to, i, round + salt));
            }
            words
        };
        let (mut inputs, mut outputs) = ([fill(0), fill(100)], [0, 1].map(|_| vec![0u64; one.plan.output_bytes() / 8]));
        {
            let ([a, b], [c, d]) = (&mut inputs, &mut outputs);
            let mut first = one.plan.start(a, c, &mut one.work).unwrap();
            let mut second = other.plan.start(b, d, &mut other.work).unwrap();
            if me.is_multiple_of(2) {
                // Both alternate.
                while !(second.advance().unwrap() & first.advance().unwrap()) {
                    rt.progress();
                }
            } else {
                (0..n).rev().filter(|&from| from != me).for_each(|from| first.wait_for(from).unwrap());
            }
            first.wait().unwrap();
            // Drop waits for the other one.
        }
        for (salt, output) in [(0, &outputs[0]), (100, &outputs[1])] {
            for (from, span) in receives.iter().enumerate() {
                let found = &output[span.offset..][..span.count];
                assert!(found.iter().enumerate().all(|(i, &w)| w == word(from, me, i, round + salt)), "from {from}");
            }
        }
    }
    both.into_iter().for_each(|plan| plan.give_up(world).unwrap());

    // Teams of even and odd PEs with grids of different sizes, in one heap, of which one team uses more.
    let (half, parity) = (rt.n_pes() / 2, rt.my_pe() % 2);
    let team = world.split(Group::new(parity.into(), 2, half.into(), rt.my_pe(), rt.n_pes()))?.unwrap();
    let extents = [[12, 9, 7], [40, 30, 20]][parity as usize];
    let array = Decomposition::new(heap, team, Grid::new(extents, [1, half as usize])).unwrap();
    let kept = array.workspace(1000 << (4 * parity)).unwrap();
    for axes in Transpose::ALL {
        pencils::transpose(&array, &Transpose::new(axes, 16), Place { symmetric: None, in_place: false }, 3).unwrap();
    }
    // Then a block that is free on both teams lies behind the blocks that either of them keeps.
    let all = Decomposition::new(heap, rt.team_world()?, Grid::new([9, 9, 9], [n, 1])).unwrap();
    let common = all.workspace(1 << 20).unwrap();
    assert!(common.base() >= kept.base().wrapping_add(kept.bytes()));
    let same = AllToAll::new(heap, world, 8, Mode::default(), &vec![Span { offset: 0, count: 1 }; n], &{
        (0..n).map(|i| Span { offset: i, count: 1 }).collect::<Vec<_>>()
    });
    let mut same = same.unwrap();
    let (mut mine, mut theirs) = (vec![common.base().addr() as u64 - rt_base(rt, &common) as u64], vec![0u64; n]);
    same.plan.run(&mut mine, &mut theirs, &mut same.work).unwrap();
    assert!(theirs.iter().all(|&at| at == mine[0]), "the block is at the same place everywhere: {theirs:?}");
    workspaces_of_graphs(&all);
    new_plans(heap, rt);
    tuning(heap, world, rt);
    array.give_back(kept).unwrap();
    all.give_back(common).unwrap();
    array.into_team().destroy()
}

/// Memory that a graph of one PE writes to is not given to others when a larger workspace replaces it.
fn workspaces_of_graphs(array: &Decomposition) {
    let take = || array.workspace(4 << 20).unwrap();
    let first = take();
    let at = first.base();
    assert!(array.replace(first).unwrap().is_none(), "no graph uses it");
    let mut second = take();
    assert_eq!(second.base(), at, "the memory was free");
    if array.rank() == 0 {
        second.keep();
    }
    let kept = array.replace(second).unwrap().expect("a graph of PE 0 uses it: all PEs keep it");
    let third = take();
    assert_ne!(third.base(), at, "a replay writes there");
    array.give_back(third).unwrap();
    array.give_back(kept).unwrap();
}

/// Plans that run as soon as they are made: their first blocks follow the words by which the PEs agree on the plan.
fn new_plans(heap: &TeamHeap, rt: &Runtime) {
    let grid = Grid::new([12, 10, 8], [2, rt.n_pes() as usize / 2]);
    let array = Decomposition::new(heap, rt.team_world().unwrap(), grid).unwrap();
    let form = Form { halo: [1; 3], padding: [0; 3] };
    let halo = Halo { axis: Axis::X, dim: 0, periodic: true, form, element: 8, fields: 1, mode: Mode::default() };
    let of_any =
        |dim| array.halo(&Halo { dim, ..halo }).and_then(|plan| Ok((plan.workspace_bytes(), array.give_up(plan)?)));
    let bytes = (0..3).map(|dim| of_any(dim).unwrap().0).max();
    let mut work = array.workspace(bytes.unwrap()).unwrap();
    for i in 0..20 {
        // Blocks with buffers of their own, and blocks that wait until the receiver has signalled where they may go.
        let mode = Mode { direct: i % 2 == 0, ..halo.mode };
        pencils::updated(&array, (halo.axis, form, true), (8, 1), None, |dim, memory| {
            let mut plan = array.halo(&Halo { dim, mode, ..halo })?;
            plan.run_in_place(memory.buffer(), &mut work)?;
            array.give_up(plan)
        })
        .unwrap();
    }
    array.give_back(work).unwrap();
}

/// Rounds for a time, while rails may fail, whose blocks go to another place each. A third argument is a file to
/// create, once, when all PEs have joined.
fn rounds(rt: &Runtime, heap: &TeamHeap, arrays: &[SymSlice<u64>; 2], time: Duration) -> Result<()> {
    let team = rt.team_world()?;
    let [a, b] = [arrays[0].as_ptr(), arrays[1].as_ptr()];
    let places = [Some([a, b]), None, Some([b, a])].map(|symmetric| Place { symmetric, in_place: false });
    // Small blocks, and others.
    let grids = [12, 64].map(|edge| {
        let grid = Grid::new([edge; 3], [1, rt.n_pes() as usize]);
        Decomposition::new(heap, rt.team_world().unwrap(), grid).unwrap()
    });
    let wanted = [(Axis::Y, Axis::Z), (Axis::Z, Axis::Y)].map(|axes| Transpose::new(axes, 8));
    let mut plans = Vec::new();
    for array in &grids {
        for wanted in wanted {
            let plan = array.transpose(&wanted).unwrap();
            let work = array.workspace(plan.workspace_bytes()).unwrap();
            plans.push((array, wanted, plan, work));
        }
    }
    rt.barrier_all()?;
    if let Some(file) = pe::args().nth(3).filter(|_| rt.my_pe() == 0) {
        std::fs::write(&file, []).expect(&file);
    }
    let (begun, mut count, mut longest) = (Instant::now(), 0u64, Duration::ZERO);
    loop {
        let mut over = [u64::from(begun.elapsed() > time)];
        team.max_of_all(&mut over)?;
        if over == [1] {
            break;
        }
        for (array, wanted, plan, work) in &mut plans {
            for place in places {
                let bytes = (plan.input_bytes(), plan.output_bytes());
                let round = Instant::now();
                pencils::transposed(array, wanted, place, bytes, |input, output| {
                    plan.run(input.buffer(), output.buffer(), work)
                })
                .unwrap();
                longest = longest.max(round.elapsed());
                count += 1;
            }
        }
    }
    println!("{count} rounds, the longest took {longest:?}");
    Ok(())
}

/// All candidates are measured, and all PEs choose the same; the choice is stored and read again.
fn tuning(heap: &TeamHeap, world: &Team, rt: &Runtime) {
    let grid = Grid::new([16, 15, 14], [1, 1]);
    let tuning = Tuning { warmup: 1, rounds: 2, ..Tuning::default() };
    let (team, tuned) = tune(heap, rt.team_world().unwrap(), grid, &tuning).unwrap();
    assert_eq!(tuned.candidates.len(), 4 * Grid::factors(rt.n_pes() as usize).count());
    assert!(tuned.candidates.iter().all(|it| it.seconds > 0.0));
    let path = std::env::temp_dir().join(format!("symrail-tuned-{}-{}.json", std::process::id(), rt.my_pe()));
    tuned.store(&path).unwrap();
    assert_eq!(Tuned::load(&path, &team).unwrap(), tuned, "PEs that chose otherwise would differ here");
    // A file with a crossover that the others' do not have: all would not choose the same by it.
    let mut other = tuned.clone();
    if rt.my_pe() + 1 == rt.n_pes() {
        other.crossover.sizes.push(BlockTime { bytes: 4096, multiprocessors: 2.0, engines: 1.0 });
    }
    other.store(&path).unwrap();
    let error = Tuned::load(&path, &team).err().unwrap();
    assert!(differs(&error, "the size from which copy engines are faster"), "{error}");
    std::fs::remove_file(&path).unwrap();
    // Halos are measured on grids that leave each PE as many elements as they are wide.
    let (axis, form) = (Axis::X, Form { halo: [0, 3, 3], padding: [0; 3] });
    let halos = Tuning { round: Round::Halos { axis, form, periodic: [true; 3] }, ..tuning };
    let possible = |[rows, columns]: &[usize; 2]| 15 / rows >= 3 && 14 / columns >= 3;
    let (team, by_halos) = tune(heap, team, grid, &halos).unwrap();
    let found: Vec<_> = by_halos.candidates.chunks(4).map(|modes| modes[0].processes).collect();
    assert_eq!(found, Grid::factors(rt.n_pes() as usize).filter(possible).collect::<Vec<_>>());
    let only = Some(tuned.grid.processes);
    let (team, of_one) = tune(heap, team, grid, &Tuning { processes: only, ..tuning }).unwrap();
    assert!(of_one.candidates.len() == 4 && of_one.grid == tuned.grid);
    let staged = Mode { direct: false, ..Mode::default() };
    let (team, of_mode) = tune(heap, team, grid, &Tuning { mode: Some(staged), processes: only, ..tuning }).unwrap();
    assert!(of_mode.candidates.len() == 1 && of_mode.mode == staged);
    // Candidates that do not fit leave the heap unchanged.
    let first_free = || {
        let block = heap.take(world, 1).unwrap();
        let base = block.base;
        block.free(world).unwrap();
        base
    };
    let before = first_free();
    let error = tune(heap, team, grid, &Tuning { fields: HEAP / 1000, ..tuning }).err().unwrap();
    assert!(matches!(error, Error::Runtime(symrail::Error::TeamHeapFull { .. })), "{error}");
    assert_eq!(first_free(), before);
    // A file that only one PE has.
    if rt.my_pe() == 0 {
        tuned.store(&path).unwrap();
    }
    assert!(Tuned::load(&path, world).is_err());
    let _ = std::fs::remove_file(&path);
    if rt.my_pe() == 0 {
        println!("{tuned}");
    }
}

/// The last PE makes no call: the others' rounds end, whether their own arguments are right or not.
fn late(rt: &Runtime, heap: &TeamHeap, arrays: &[SymSlice<u64>; 2]) -> Result<()> {
    let (n, last) = (rt.n_pes() as usize, rt.my_pe() + 1 == rt.n_pes());
    // Blocks with their own space over rails, and others.
    for edge in [8, 64] {
        let array = Decomposition::new(heap, rt.team_world()?, Grid::new([edge; 3], [1, n])).unwrap();
        let bytes = edge.pow(3) / n * 8;
        for given in [bytes, bytes - 8] {
            let mut plan = array.transpose(&Transpose::new((Axis::Y, Axis::Z), 8)).unwrap();
            let mut work = array.workspace(plan.workspace_bytes()).unwrap();
            // SAFETY: the arrays are longer, and nothing else uses them.
            let [input, output] = [(0, given), (1, bytes)]
                .map(|(i, bytes)| unsafe { symrail_decomp::Buffer::raw(arrays[i].as_ptr().cast(), bytes) });
            if !last {
                let error = plan.run(input, output, &mut work).unwrap_err();
                assert!(matches!(error, Error::Runtime(symrail::Error::Interrupted { .. })), "{edge} {given}: {error}");
            }
            // The last PE waits here meanwhile.
            rt.barrier_all()?;
            array.give_back(work).unwrap();
            array.give_up(plan).unwrap();
        }
    }
    Ok(())
}

/// One PE has no memory for what is measured: all get an error, and the next measurement works.
fn memory(rt: &Runtime, heap: &TeamHeap) -> Result<()> {
    let grid = Grid::new([128; 3], [1, rt.n_pes() as usize]);
    let (processes, mode) = (Some(grid.processes), Some(Mode::default()));
    let tuning = Tuning { warmup: 0, rounds: 1, processes, mode, ..Tuning::default() };
    let poor = rt.my_pe() == 1;
    // Each of the arrays that are measured has 8 MiB.
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    let limited = |most| setrlimit(Resource::RLIMIT_AS, most, hard).unwrap();
    limited(if poor { pages * 4096 + (4 << 20) } else { soft });
    let found = tune(heap, rt.team_world()?, grid, &tuning);
    limited(soft);
    match found.map(drop).unwrap_err() {
        Error::Plan { what: "array", .. } if poor => {}
        Error::Round(symrail::rounds::Error::PeerRefused { .. }) if !poor => {}
        error => panic!("{error}"),
    }
    let (_, tuned) = tune(heap, rt.team_world()?, grid, &tuning).unwrap();
    assert_eq!(tuned.candidates.len(), 1);
    Ok(())
}

/// The start of symmetric offsets.
fn rt_base(rt: &Runtime, work: &symrail_decomp::Workspace) -> usize {
    work.base().addr() - rt.symmetric_offset(work.base(), 1).unwrap() as usize
}

/// Whether PEs have found a parameter that differs.
fn differs(error: &Error, parameter: &str) -> bool {
    matches!(error, Error::Runtime(symrail::Error::ParametersDiffer { what, .. }) if *what == parameter)
}

/// One PE's mistake is an error on all, and the next call works.
fn misuse(rt: &Runtime, heap: &TeamHeap, arrays: &[SymSlice<u64>; 2]) {
    let (me, n) = (rt.my_pe(), rt.n_pes() as usize);
    let grid = Grid::new([8, 8, 8], [1, n]);
    let world = || rt.team_world().unwrap();
    // Extents, and then the memory order, of the last PE differ.
    let last = me + 1 == rt.n_pes();
    let other = Grid { extents: [8, 8, if last { 9 } else { 8 }], ..grid };
    let error = Decomposition::new(heap, world(), other).err().unwrap();
    assert!(differs(&error, "extents"), "{error}");
    let other = if last { grid.axis_contiguous() } else { grid };
    let error = Decomposition::new(heap, world(), other).err().unwrap();
    assert!(differs(&error, "memory order"), "{error}");
    let error = Decomposition::new(heap, world(), Grid::new([8, 8, 8], [2, n])).err().unwrap();
    assert!(matches!(error, Error::Grid { .. }), "{error}");

    // The size from which copy engines move blocks, which both ends of a pair go by, is one of the team's.
    let array = Decomposition::new(heap, world(), grid).unwrap();
    for [of_last, of_others] in [[Some(4096), Some(8192)], [Some(0), None]] {
        let mode = Mode { engines: if last { of_last } else { of_others }, ..Mode::default() };
        let transpose = Transpose { mode, ..Transpose::new((Axis::Y, Axis::Z), 8) };
        let form = Form { halo: [1; 3], padding: [0; 3] };
        let halo = Halo { axis: Axis::X, dim: 2, periodic: true, form, element: 8, fields: 1, mode };
        let spans = vec![Span { offset: 0, count: 1 }; n];
        for error in [
            array.transpose(&transpose).err(),
            array.halo(&halo).err(),
            AllToAll::new(heap, array.team(), 8, mode, &spans, &spans).err(),
        ] {
            assert!(error.as_ref().is_some_and(|error| differs(error, "copy engines")), "{error:?}");
        }
    }
    drop(array);
    misuse_of_teams(rt, heap);

    // Blocks with their own space over rails, and others.
    for edge in [8, 64] {
        misuse_of_rounds(rt, heap, arrays, edge);
    }
}

/// What a team has allocated is freed by all of its PEs at once: no PE uses it any more then.
fn misuse_of_teams(rt: &Runtime, heap: &TeamHeap) {
    let (me, n) = (rt.my_pe(), rt.n_pes());
    let world = || rt.team_world().unwrap();
    let alone = world().split(Group::new(me.into(), 1, 1, me, n)).unwrap().unwrap();
    let spans = vec![Span { offset: 0, count: 1 }; n as usize];
    let array = Decomposition::new(heap, world(), Grid::new([8; 3], [1, n as usize])).unwrap();
    let other = Decomposition::new(heap, alone.clone(), Grid::new([8; 3], [1, 1])).unwrap();
    let plan = || array.transpose(&Transpose::new((Axis::X, Axis::Y), 8)).unwrap();
    let all_to_all = || AllToAll::new(heap, &world(), 8, Mode::default(), &spans, &spans).unwrap();
    for error in [
        other.give_up(plan()),
        other.give_up_all(vec![AnyPlan::Host(plan())]),
        other.give_back(array.workspace(8).unwrap()),
        other.replace(array.workspace(8).unwrap()).map(drop),
        all_to_all().give_up(&alone),
    ] {
        let error = error.err().unwrap();
        assert!(matches!(error, Error::Runtime(symrail::Error::OtherTeam { pe, .. }) if pe == me), "{error}");
    }
    // One PE frees another block.
    let [mut one, mut two] = [array.workspace(8).unwrap(), array.workspace(8).unwrap()];
    if me == 0 {
        std::mem::swap(&mut one, &mut two);
    }
    let error = array.give_back(one).err().unwrap();
    assert!(differs(&error, "the blocks"), "{error}");
    // One PE frees what is another team's.
    let evens = world().split(Group::new(0, 2, 2, me, n)).unwrap();
    if let Some(evens) = evens {
        let array = Decomposition::new(heap, evens, Grid::new([8; 3], [1, 2])).unwrap();
        let own = array.workspace(8).unwrap();
        let error = array.give_back(if me == 0 { two } else { own }).err().unwrap();
        assert!(differs(&error, "whether the blocks are the team's"), "{error}");
    }
}

/// A PE with a wrong argument gives an error on all, and the next round is right.
fn misuse_of_rounds(rt: &Runtime, heap: &TeamHeap, arrays: &[SymSlice<u64>; 2], edge: usize) {
    let (me, n) = (rt.my_pe(), rt.n_pes() as usize);
    let (grid, last) = (Grid::new([edge; 3], [1, n]), me + 1 == rt.n_pes());
    let world = || rt.team_world().unwrap();
    let array = Decomposition::new(heap, world(), grid).unwrap();
    let wanted = Transpose::new((Axis::Y, Axis::Z), if last { 4 } else { 8 });
    let error = array.transpose(&wanted).err().unwrap();
    assert!(differs(&error, "bytes of an element"), "{error}");
    let error = array.transpose(&Transpose::new((Axis::X, Axis::Z), 8)).err().unwrap();
    assert!(matches!(error, Error::Plan { .. }), "{error}");
    let error = array.workspace(HEAP + 1).err().unwrap();
    assert!(matches!(error, Error::Runtime(symrail::Error::TeamHeapFull { .. })), "{error}");

    let mut plan = array.transpose(&Transpose::new((Axis::Y, Axis::Z), 8)).unwrap();
    let mut work = array.workspace(plan.workspace_bytes()).unwrap();
    let mut small = array.workspace(0).unwrap();
    let foreign = Decomposition::new(heap, world(), grid).unwrap();
    let mut of_other = foreign.workspace(plan.workspace_bytes()).unwrap();
    let elements = edge.pow(3) / n;
    let [a, b] = [arrays[0].as_ptr(), arrays[1].as_ptr()];
    // SAFETY: the arrays are longer than any of these, and this thread waits for the end of each operation.
    let buffer = |ptr: *mut u64, bytes| unsafe { symrail_decomp::Buffer::raw(ptr.cast(), bytes) };
    let whole = elements * 8;
    for peer in plan.routes(&buffer(a, whole), &buffer(b, whole)).iter().filter(|peer| peer.path == Path::Rails) {
        assert_eq!(peer.receive == Route::Staged(Reason::Small), edge == 8, "{peer:?}");
    }
    let mut round = |what: &str, wrong: bool, refusal: Option<Refusal>| {
        let (input, output) = (buffer(a, whole), buffer(b, whole));
        let result = match what {
            _ if !wrong => plan.run(input, output, &mut work),
            "input" => plan.run(buffer(a, whole - 8), output, &mut work),
            "null" => plan.run(buffer(std::ptr::null_mut(), whole), output, &mut work),
            "output" => plan.run(input, buffer(b, 1), &mut work),
            "aligned" => plan.run(input, buffer(b.wrapping_byte_add(4), whole), &mut work),
            "overlap" => plan.run(input, buffer(a.wrapping_add(1), whole), &mut work),
            "work" => plan.run(input, output, &mut small),
            _ => plan.run(input, output, &mut of_other),
        };
        match (result, refusal, wrong) {
            (Ok(()), None, _) => {}
            (Err(Error::Refused { refusal: found, pe, .. }), Some(refusal), true) => {
                assert_eq!((found, pe), (refusal, me));
            }
            (Err(Error::RefusedBy { refusal: found, pe, by, .. }), Some(refusal), false) => {
                assert_eq!((found, pe), (refusal, me));
                assert!(by != me);
            }
            (result, ..) => panic!("{what}, wrong here: {wrong}: {result:?}"),
        }
    };
    for (what, refusal) in [
        ("input", Refusal::InputTooSmall),
        ("null", Refusal::InputTooSmall),
        ("output", Refusal::OutputTooSmall),
        ("aligned", Refusal::Misaligned),
        ("overlap", Refusal::Overlap),
        ("work", Refusal::WorkspaceTooSmall),
        ("other", Refusal::OtherWorkspace),
    ] {
        // One PE, all but one, all.
        for wrong in [last, !last, true] {
            pe::doing(format!("{what}, wrong here: {wrong}"));
            round(what, wrong, Some(refusal));
            round("nothing", false, None);
        }
    }

    // A round that is never ended.
    std::mem::forget(plan.start(buffer(a, whole), buffer(b, whole), &mut work).unwrap());
    let error = plan.run(buffer(a, whole), buffer(b, whole), &mut work).unwrap_err();
    assert!(matches!(error, Error::Round(symrail::rounds::Error::Poisoned { pe, .. }) if pe == me), "{error}");
}
