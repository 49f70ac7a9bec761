//! Products of tensor-parallel layers, bit by bit beside their unfused form. Arguments: `equal` (random shapes, with
//! delays before steps if the third argument is above 0), `order`, `again`, `refuse` or `give_up`; the number of cases;
//! the most microseconds of a delay; the seed.
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use symrail::{Cmp, Group, Runtime, SignalUpdate, SymSlice, Team, TeamHeap, rounds};
use symrail_overlap::step::Observer;
use symrail_overlap::{AllGatherMatmul, Error, Layout, MatmulReduce, Reduced, Result, Schedule, Shards, Step, Weight};
use symrail_tests::pe;

/// Bytes of the heap that the plans share.
const HEAP: usize = 8 << 20;
/// The number of runs of each plan.
const ROUNDS: usize = 4;

pub fn main() -> ExitCode {
    let (what, cases) = (pe::arg(0, "equal".to_owned()), pe::arg(1, 10u64));
    let (delay, seed) = (pe::arg(2, 0u64), pe::arg(3, 1u64));
    pe::run(|rt| {
        let heap = TeamHeap::new(rt, HEAP)?;
        let world = rt.team_world()?;
        let done = match &what[..] {
            "equal" => (0..cases).try_for_each(|case| equal(rt, &heap, &world, seed * 1000 + case, delay)),
            "order" => order(rt, &heap, &world),
            "again" => again(rt, &world, (cases, delay, seed)),
            "refuse" => refuse(rt, &heap, &world),
            "give_up" => give_up(rt, &heap, &world),
            _ => panic!("{what}"),
        };
        done.unwrap_or_else(|error| panic!("PE {}: {error}", rt.my_pe()));
        heap.free()
    })
}

/// A product of random shape on some of the PEs.
struct Case {
    shards: Shards,
    inputs: usize,
    outputs: Vec<usize>,
    layout: Layout,
    bias: bool,
}

impl Case {
    fn new(rng: &mut StdRng, ranks: usize) -> Case {
        let most = *[1, 3, 17, 60].get(rng.random_range(0..4)).unwrap_or(&60);
        let rows: Vec<usize> = (0..ranks).map(|_| rng.random_range(0..most + 1)).collect();
        let shards = if rng.random() { Shards::new(&rows) } else { Shards::split(rows.iter().sum(), ranks) };
        let layout = if rng.random() { Layout::ByInputs } else { Layout::ByOutputs };
        let inputs = *[0, 1, 7, 64, 301].get(rng.random_range(0..5)).unwrap_or(&64);
        let outputs = (0..ranks).map(|_| rng.random_range(0..40)).collect();
        Case { shards, inputs, outputs, layout, bias: rng.random() }
    }

    fn schedules(rng: &mut StdRng) -> [Schedule; 3] {
        let rows = rng.random_range(1..40);
        [Schedule::Unfused, Schedule::Direct { rows }, Schedule::Ring { rows }]
    }
}

fn numbers(rng: &mut StdRng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-2.0..2.0)).collect()
}

/// Random delays before steps: by spinning, as a slow rank would compute.
fn delays(most: u64, seed: u64) -> Option<Observer> {
    let mut rng = StdRng::seed_from_u64(seed);
    (most > 0).then(|| -> Observer {
        Box::new(move |_| {
            let end = Instant::now() + Duration::from_micros(rng.random_range(0..most));
            while Instant::now() < end {
                std::thread::yield_now();
            }
        })
    })
}

/// A product of `count` rows in one process.
fn product(count: usize, rows: &[f32], weight: &Weight<'_>) -> Vec<f32> {
    let mut all = vec![0.0; count * weight.outputs];
    let at = |input, output| match weight.layout {
        Layout::ByInputs => weight.values[input * weight.outputs + output],
        Layout::ByOutputs => weight.values[output * weight.inputs + input],
    };
    for (i, sum) in all.iter_mut().enumerate() {
        let (row, output) = (i / weight.outputs, i % weight.outputs);
        let terms =
            (0..weight.inputs).map(|input| f64::from(rows[row * weight.inputs + input]) * f64::from(at(input, output)));
        *sum = (terms.sum::<f64>() + weight.bias.map_or(0.0, |bias| f64::from(bias[output]))) as f32;
    }
    all
}

fn assert_near(found: &[f32], wanted: &[f32]) {
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() <= 1e-3, "number {i}: {found}, not {wanted}");
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// All products of a random shape by all schedules, on the team of all PEs but the last `left_out`.
fn equal(rt: &Runtime, heap: &TeamHeap, world: &Team, seed: u64, delay: u64) -> Result<()> {
    let rng = &mut StdRng::seed_from_u64(seed);
    let size = rng.random_range(1..rt.n_pes() + 1);
    let group = Group::new(i64::from(rt.n_pes() - size), 1, size.into(), rt.my_pe(), rt.n_pes());
    let Some(team) = world.split(group)? else { return Ok(()) };
    let (case, schedules) = (Case::new(rng, size as usize), Case::schedules(rng));
    pe::doing(format!("seed {seed}: {:?} x {} x {:?}", case.shards, case.inputs, case.outputs));
    gathers(heap, &team, &case, schedules, (seed, delay))?;
    for reduced in [Reduced::ToShards, Reduced::Everywhere] {
        reduces(heap, &team, &case, (schedules, reduced), (seed, delay))?;
    }
    Ok(team.destroy()?)
}

fn gathers(
    heap: &TeamHeap,
    team: &Team,
    case: &Case,
    schedules: [Schedule; 3],
    (seed, delay): (u64, u64),
) -> Result<()> {
    let (me, shards, inputs) = (team.group().me() as usize, &case.shards, case.inputs);
    let outputs = case.outputs[me];
    let make = |schedule| AllGatherMatmul::new(heap, team, shards, inputs, schedule);
    let mut plans = schedules.into_iter().map(make).collect::<Result<Vec<_>>>()?;
    for (i, plan) in plans.iter_mut().enumerate() {
        plan.observe(delays(delay, seed * 100 + (me * 10 + i) as u64));
    }
    let own = shards.of(me);
    let mut unfused = Vec::new();
    // One plan's rounds follow each other, so a rank may be ahead of others.
    for plan in &mut plans {
        for round in 0..ROUNDS {
            let rng = &mut StdRng::seed_from_u64(seed + round as u64 * 7919);
            let all = numbers(rng, shards.rows() * inputs);
            let (values, bias) = (numbers(rng, inputs * outputs), numbers(rng, outputs));
            let weight = Weight::new(&values, case.layout, inputs, outputs);
            let weight = if case.bias { weight.with_bias(&bias) } else { weight };
            let (mut output, mut gathered) = (vec![f32::NAN; shards.rows() * outputs], vec![f32::NAN; all.len()]);
            plan.run(&all[own.start * inputs..own.end * inputs], &weight, &mut output)?;
            plan.gathered(&mut gathered)?;
            assert_eq!(bits(&gathered), bits(&all), "round {round}");
            assert_near(&output, &product(shards.rows(), &all, &weight));
            if unfused.len() == round {
                unfused.push(bits(&output));
            }
            assert!(bits(&output) == unfused[round], "round {round}");
        }
    }
    plans.into_iter().try_for_each(|plan| plan.free(team))
}

fn reduces(
    heap: &TeamHeap,
    team: &Team,
    case: &Case,
    (schedules, reduced): ([Schedule; 3], Reduced),
    (seed, delay): (u64, u64),
) -> Result<()> {
    let (me, shards, width) = (team.group().me() as usize, &case.shards, case.inputs);
    let make = |schedule| MatmulReduce::new(heap, team, shards, width, schedule, reduced);
    let mut plans = schedules.into_iter().map(make).collect::<Result<Vec<_>>>()?;
    for (i, plan) in plans.iter_mut().enumerate() {
        plan.observe(delays(delay, seed * 100 + (me * 10 + i) as u64));
    }
    let mut unfused = Vec::new();
    for plan in &mut plans {
        for round in 0..ROUNDS {
            let rng = &mut StdRng::seed_from_u64(seed + round as u64 * 7919);
            let bias = numbers(rng, width);
            // The factors of each rank.
            let factors: Vec<_> = case
                .outputs
                .iter()
                .map(|&inputs| (inputs, numbers(rng, shards.rows() * inputs), numbers(rng, inputs * width)))
                .collect();
            let mut sums = vec![0.0; shards.rows() * width];
            for (rank, (inputs, rows, values)) in factors.iter().enumerate() {
                let weight = Weight::new(values, case.layout, *inputs, width);
                let weight = if case.bias && rank == 0 { weight.with_bias(&bias) } else { weight };
                let product = product(shards.rows(), rows, &weight);
                sums.iter_mut().zip(product).for_each(|(sum, number)| *sum += number);
            }
            let (inputs, rows, values) = &factors[me];
            let weight = Weight::new(values, case.layout, *inputs, width);
            let weight = if case.bias { weight.with_bias(&bias) } else { weight };
            let own = if reduced == Reduced::ToShards { shards.of(me) } else { 0..shards.rows() };
            let mut output = vec![f32::NAN; own.len() * width];
            plan.run(rows, &weight, &mut output)?;
            assert_near(&output, &sums[own.start * width..own.end * width]);
            if unfused.len() == round {
                unfused.push(bits(&output));
            }
            assert!(bits(&output) == unfused[round], "round {round}");
        }
    }
    plans.into_iter().try_for_each(|plan| plan.free(team))
}

/// Makes each plan where the one before was, in a heap with room for one plan: the words of the old plan must not
/// release the waits of the new one, whichever rank is late.
fn again(rt: &Runtime, team: &Team, (plans, delay, seed): (u64, u64, u64)) -> Result<()> {
    let (me, ranks) = (team.group().me() as usize, team.group().size() as usize);
    let (shards, width) = (Shards::split(5 * ranks + 1, ranks), 6);
    let schedules = [Schedule::Direct { rows: 2 }, Schedule::Ring { rows: 1 }, Schedule::Unfused];
    let bytes = |&schedule: &Schedule| {
        let summed = MatmulReduce::bytes(&shards, width, schedule, Reduced::ToShards);
        summed.max(AllGatherMatmul::bytes(&shards, width, schedule))
    };
    let most = schedules.iter().map(bytes).max().unwrap_or(0);
    let heap = Box::leak(Box::new(TeamHeap::new(rt, most)?));
    let (values, own) = (vec![1.0; width * width], shards.of(me));
    let weight = Weight::new(&values, Layout::ByInputs, width, width);
    for plan in 0..plans {
        let schedule = schedules[plan as usize / 2 % 3];
        let observer = delays(delay, seed * 1000 + plan * 10 + me as u64);
        // A number tells its plan, round and row.
        let number = |round: u64, row: usize| (plan * 100 + round * 10) as f32 + row as f32;
        let rows = |round, rows: std::ops::Range<usize>| -> Vec<f32> {
            rows.flat_map(|row| std::iter::repeat_n(number(round, row), width)).collect()
        };
        let check = |round, ranks: usize, found: &[f32], wanted: std::ops::Range<usize>| {
            let wanted: Vec<f32> = rows(round, wanted).iter().map(|number| number * (width * ranks) as f32).collect();
            assert_eq!(found, wanted, "plan {plan}, {schedule:?}, round {round}");
        };
        // The next plan has fewer rounds than this one, or more.
        let rounds = 1 + plan * 5 % 7;
        if plan % 2 == 0 {
            let mut it = AllGatherMatmul::new(heap, team, &shards, width, schedule)?;
            it.observe(observer);
            for round in 0..rounds {
                let mut output = vec![f32::NAN; shards.rows() * width];
                it.run(&rows(round, own.clone()), &weight, &mut output)?;
                check(round, 1, &output, 0..shards.rows());
            }
            it.free(team)?;
        } else {
            let mut it = MatmulReduce::new(heap, team, &shards, width, schedule, Reduced::ToShards)?;
            it.observe(observer);
            for round in 0..rounds {
                let mut output = vec![f32::NAN; own.len() * width];
                it.run(&rows(round, 0..shards.rows()), &weight, &mut output)?;
                check(round, ranks, &output, own.clone());
            }
            it.free(team)?;
        }
    }
    Ok(())
}

/// Each piece is in flight while another is multiplied, if no rank is late: before some products, ranks wait for one
/// another.
fn order(rt: &Runtime, heap: &TeamHeap, team: &Team) -> Result<()> {
    let (me, ranks) = (team.group().me() as usize, team.group().size() as usize);
    let (shards, width) = (Shards::split(24 * ranks, ranks), 16);
    let values = vec![0.5; width * width];
    let weight = Weight::new(&values, Layout::ByInputs, width, width);
    let rows = vec![1.0; shards.rows() * width];
    let mut output = vec![0.0; shards.rows() * width];
    let own = shards.of(me);
    let came: Arc<SymSlice<u64>> = Arc::new(rt.alloc_slice(1)?);
    let (rt, times) = (rt.clone(), Arc::new(AtomicU64::new(0)));
    let all_come = move || {
        let times = times.fetch_add(1, Ordering::Relaxed) + 1;
        rt.quiet().unwrap();
        for rank in (0..ranks).filter(|&rank| rank != me) {
            came.put_signal(0, &[], SignalUpdate::add((&**came, 0), 1), rank as u32).unwrap();
        }
        came.wait_until(0, Cmp::Ge, times * (ranks as u64 - 1)).unwrap();
    };
    let steps = Arc::new(Mutex::new(Vec::new()));
    let watch = |mut at: Vec<usize>, mut all_come: Box<dyn FnMut() + Send>| -> Option<Observer> {
        let noted = Arc::clone(&steps);
        Some(Box::new(move |step: &Step| {
            if let Step::Multiply { rows } = step
                && at.first() == Some(&rows.start)
            {
                at.remove(0);
                all_come();
            }
            noted.lock().unwrap().push(step.clone());
        }))
    };
    let count = |steps: &[Step], is: fn(&Step) -> bool| steps.iter().filter(|step| is(step)).count();
    let others = ranks - 1;

    let mut plan = AllGatherMatmul::new(heap, team, &shards, width, Schedule::Direct { rows: 6 })?;
    plan.observe(watch(vec![own.start], Box::new(all_come.clone())));
    plan.run(&rows[..24 * width], &weight, &mut output)?;
    let seen = std::mem::take(&mut *steps.lock().unwrap());
    assert_eq!(count(&seen, |step| matches!(step, Step::Get { .. })), 4 * others, "{seen:?}");
    // No rank's rows are waited for; no piece is waited for right after it was begun.
    assert_eq!(count(&seen, |step| matches!(step, Step::Wait { .. })), 0, "{seen:?}");
    let at_once = seen.windows(2).filter(|two| matches!(two, [Step::Get { .. }, Step::Quiet])).count();
    assert_eq!(at_once, 0, "{seen:?}");
    plan.free(team)?;
    team.barrier()?;

    let mut plan = MatmulReduce::new(heap, team, &shards, width, Schedule::Direct { rows: 6 }, Reduced::ToShards)?;
    let first = shards.of((me + 1) % ranks).start;
    plan.observe(watch(vec![first, own.start], Box::new(all_come)));
    plan.run(&rows, &weight, &mut output[..24 * width])?;
    let seen = std::mem::take(&mut *steps.lock().unwrap());
    let position = |rows: std::ops::Range<usize>| {
        seen.iter().position(|step| step == &Step::Multiply { rows: rows.clone() }).unwrap()
    };
    let (first_own, last) = (position(own.start..own.start + 6), position(own.end - 6..own.end));
    // Everything was put before the rank's own rows were multiplied, and added before the last of them were, except
    // these.
    assert_eq!(count(&seen[..first_own], |step| matches!(step, Step::Put { .. })), 4 * others, "{seen:?}");
    assert_eq!(count(&seen[..last], |step| matches!(step, Step::Sum { .. })), 3, "{seen:?}");
    plan.free(team)
}

/// One rank's different argument is an error by name on all ranks, and the others' plans continue.
fn refuse(rt: &Runtime, heap: &TeamHeap, team: &Team) -> Result<()> {
    let ranks = rt.n_pes() as usize;
    let other = usize::from(rt.my_pe() == rt.n_pes() - 1);
    let shards = Shards::split(10, ranks);
    let mine = Shards::split(10 + other, ranks);
    let unfused = Schedule::Unfused;
    let differs = |error: Option<Error>, name: &str| match error {
        Some(Error::Runtime(symrail::Error::ParametersDiffer { what, .. })) => assert_eq!(what, name),
        error => panic!("{name}: {error:?}"),
    };
    differs(AllGatherMatmul::new(heap, team, &mine, 4, unfused).err(), "rows of a shard");
    differs(AllGatherMatmul::new(heap, team, &shards, 4 + other, unfused).err(), "numbers of a row");
    let schedule = Schedule::Ring { rows: 1 + other };
    differs(AllGatherMatmul::new(heap, team, &shards, 4, schedule).err(), "rows of a piece");
    let reduced = if other == 1 { Reduced::ToShards } else { Reduced::Everywhere };
    differs(MatmulReduce::new(heap, team, &shards, 4, unfused, reduced).err(), "the kind of product");
    let error = AllGatherMatmul::new(heap, team, &Shards::split(HEAP, ranks), 8, unfused).err();
    assert!(matches!(error, Some(Error::Runtime(symrail::Error::TeamHeapFull { .. }))), "{error:?}");
    let error = AllGatherMatmul::new(heap, team, &shards, usize::MAX, unfused).err();
    assert!(matches!(error, Some(Error::Runtime(symrail::Error::TeamHeapFull { .. }))), "{error:?}");
    let error = AllGatherMatmul::new(heap, team, &Shards::new(&[1]), 8, unfused).err();
    assert!(ranks == 1 || matches!(error, Some(Error::Length { .. })), "{error:?}");
    let error = MatmulReduce::new(heap, team, &Shards::new(&[]), 8, unfused, Reduced::ToShards).err();
    assert!(matches!(error, Some(Error::Length { given: 0, .. })), "{error:?}");
    // A heap of exactly the bytes that a plan needs is large enough for it.
    let just_enough = Box::leak(Box::new(TeamHeap::new(rt, AllGatherMatmul::bytes(&shards, 26, unfused))?));
    AllGatherMatmul::new(just_enough, team, &shards, 26, unfused)?.free(team)?;

    let mut plan = AllGatherMatmul::new(heap, team, &shards, 4, unfused)?;
    let (own, values) = (vec![1.0; shards.of(rt.my_pe() as usize).len() * 4], [1.0; 8]);
    let (weight, mut output) = (Weight::new(&values, Layout::ByInputs, 4, 2), vec![0.0; 20]);
    // Nothing was sent: the same round continues with the right argument.
    let wrong = plan.run(&own, &Weight { inputs: 5, ..weight }, &mut output).err();
    assert!(matches!(wrong, Some(Error::Length { given: 5, wanted: 4, .. })), "{wrong:?}");
    let wrong = plan.run(&own, &weight, &mut output[..19]).err();
    assert!(matches!(wrong, Some(Error::Length { what: "the output", .. })), "{wrong:?}");
    plan.run(&own, &weight, &mut output)?;
    assert_eq!(output, [4.0; 20]);
    plan.free(team)
}

/// PE 0 is interrupted in a round in which it waits for PE 2, which has not begun. PE 1, which waits in that round or
/// has ended it, and PE 2, which begins later, get an error.
fn give_up(rt: &Runtime, heap: &TeamHeap, team: &Team) -> Result<()> {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    rt.set_interrupt(|| (!INTERRUPTED.load(Ordering::Relaxed)).then_some(Duration::from_millis(1)));
    let may_begin = rt.alloc_slice::<u64>(1)?;
    // PE 1 has no rows: in a reduction it may continue to the next round.
    let (shards, direct) = (Shards::new(&[4, 0, 4]), Schedule::Direct { rows: 2 });
    let (values, rows) = ([1.0; 16], [1.0; 32]);
    let weight = Weight::new(&values, Layout::ByInputs, 4, 4);
    let mine = shards.of(rt.my_pe() as usize).len() * 4;
    let mut times = 0;
    let mut lose = |run: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        times += 1;
        if rt.my_pe() == 2 {
            may_begin.wait_until(0, Cmp::Ge, times)?;
        }
        INTERRUPTED.store(rt.my_pe() == 0, Ordering::Relaxed);
        let error = (0..3).find_map(|_| run().err());
        INTERRUPTED.store(false, Ordering::Relaxed);
        match (rt.my_pe(), error) {
            (0, Some(Error::Runtime(symrail::Error::Interrupted { .. }))) => {
                may_begin.put_signal(0, &[], SignalUpdate::add((&may_begin, 0), 1), 2)?;
            }
            (1 | 2, Some(Error::Round(rounds::Error::Aborted { by: 0, lost: None, .. }))) => {}
            (_, error) => panic!("time {times}: {error:?}"),
        }
        assert!(matches!(run(), Err(Error::Round(rounds::Error::Poisoned { .. }))), "time {times}");
        Ok(())
    };
    for schedule in [direct, Schedule::Ring { rows: 2 }] {
        let (mut plan, mut output) = (AllGatherMatmul::new(heap, team, &shards, 4, schedule)?, [0.0; 32]);
        lose(&mut || plan.run(&rows[..mine], &weight, &mut output))?;
        plan.free(team)?;
    }
    for (reduced, count) in [(Reduced::ToShards, mine), (Reduced::Everywhere, 32)] {
        let mut plan = MatmulReduce::new(heap, team, &shards, 4, direct, reduced)?;
        let mut output = vec![0.0; count];
        lose(&mut || plan.run(&rows, &weight, &mut output))?;
        plan.free(team)?;
    }
    Ok(may_begin.free()?)
}
