//! Expert-parallel dispatch and combine, compared with a reference that each PE computes alone from seeds of all ranks'
//! tokens and routes. Arguments: `high`, `low`, `both`, `refuse`, `count` or `cross`; the number of cases; the seed.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::ExitCode;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use symrail::Error::ParametersDiffer;
use symrail::Runtime;
use symrail_ep::high_throughput::{Parts, Tokens};
use symrail_ep::low_latency::Shape;
use symrail_ep::plan::sizes;
use symrail_ep::{Element, Error, HighThroughput, Layout, LowLatency, Rows, Statistics, TopK, WaitLimit};
use symrail_tests::pe;
use symrail_transport::endpoint::LaneCounters;

fn main() -> ExitCode {
    let (what, cases, seed) = (pe::arg(0, "high".to_owned()), pe::arg(1, 10u64), pe::arg(2, 1u64));
    pe::run(|rt| {
        for case in 0..cases {
            let case = Case::new(seed * 1000 + case, rt.n_pes() as usize);
            pe::doing(format!("{what}: {}", case.name));
            let checked = match &what[..] {
                "high" => high_buffers(rt, &case).and_then(|mut buffers| {
                    high(rt, &case, &mut buffers)?;
                    buffers.free()
                }),
                "low" => low_buffers(rt, &case).and_then(|mut buffers| {
                    low(rt, &case, &mut buffers)?;
                    buffers.free()
                }),
                "both" => both(rt, &case),
                "refuse" => refuse(rt),
                "count" => count(rt),
                "cross" => cross(rt),
                _ => panic!("{what}"),
            };
            checked.unwrap_or_else(|error| panic!("PE {}, {what}, {}: {error}", rt.my_pe(), case.name));
        }
        Ok(())
    })
}

/// One rank's input.
struct Input {
    indices: Vec<i64>,
    weights: Vec<f32>,
    rows: Vec<u8>,
    scales: Vec<u8>,
}

impl Input {
    fn tokens(&self, k: usize) -> usize {
        self.indices.len() / k
    }
}

struct Case {
    name: String,
    ranks: usize,
    share: usize,
    k: usize,
    hidden: usize,
    element: Element,
    scale_bytes: usize,
    /// The inputs of all ranks.
    inputs: Vec<Input>,
    /// The group of each rank, one of two.
    group: Vec<bool>,
    most: usize,
    block_rows: usize,
}

impl Case {
    fn new(seed: u64, ranks: usize) -> Case {
        let rng = &mut StdRng::seed_from_u64(seed);
        let share = *[1, 2, 4, 8, 2048 / ranks].get(rng.random_range(0..9)).unwrap_or(&4);
        let k = rng.random_range(1..17);
        let hidden: usize = *[1, 24, 128, 200, 1000, 8192].get(rng.random_range(0..6)).unwrap_or(&64);
        let element = if rng.random() { Element::F32 } else { Element::Bf16 };
        let scale_bytes = if rng.random() { 4 * hidden.div_ceil(128) } else { 0 };
        let most = *[1, 7, 40].get(rng.random_range(0..3)).unwrap_or(&40);
        // Large rows of few tokens.
        let (share, most) = if hidden == 8192 { (share.min(8), most.min(7)) } else { (share, most) };
        let kind = rng.random_range(0..6);
        let row = hidden * element.bytes();
        let inputs = (0..ranks).map(|rank| {
            let tokens = if rng.random_ratio(1, 5) { 0 } else { rng.random_range(1..most + 1) };
            let indices = (0..tokens).flat_map(|_| choose(rng, kind, share * ranks, k)).collect::<Vec<_>>();
            let weights = indices.iter().map(|_| rng.random_range(-2.0..2.0)).collect();
            let rows = match element {
                Element::F32 => (0..tokens * hidden).flat_map(|_| rng.random_range(-9f32..9.0).to_ne_bytes()).collect(),
                Element::Bf16 => (0..tokens * hidden)
                    .flat_map(|_| half::bf16::from_f32(rng.random_range(-9f32..9.0)).to_ne_bytes())
                    .collect(),
            };
            assert_eq!(Vec::len(&rows), tokens * row, "{rank}");
            let mut scales = vec![0; tokens * scale_bytes];
            rng.fill_bytes(&mut scales);
            Input { indices, weights, rows, scales }
        });
        let inputs = inputs.collect();
        let group = (0..ranks).map(|rank| (seed >> (rank % 8)) & 1 == 1).collect();
        let block_rows = rng.random_range(1..9);
        let name = format!(
            "seed {seed}: {ranks} ranks with {share} experts, top-{k}, hidden {hidden} {element:?}, scales {scale_bytes}, \
             at most {most} tokens, choice {kind}, {block_rows} rows a block"
        );
        Case { name, ranks, share, k, hidden, element, scale_bytes, inputs, group, most, block_rows }
    }

    fn row(&self) -> usize {
        self.hidden * self.element.bytes()
    }

    fn topk<'a>(&self, input: &'a Input) -> TopK<'a> {
        TopK::new(&input.indices, self.k).unwrap()
    }

    /// Whether a token goes to a rank.
    fn goes(&self, input: &Input, token: usize, rank: usize) -> bool {
        self.topk(input).of(token).iter().any(|&e| e >= 0 && e as usize / self.share == rank)
    }

    /// The result of expert (or rank) `by` for a token: a row that depends on all of them.
    fn made(&self, source: usize, token: usize, by: usize) -> Vec<u8> {
        let rng = &mut StdRng::seed_from_u64(((source * 10_000 + token) * 10_000 + by) as u64);
        let value = |rng: &mut StdRng| rng.random_range(-9f32..9.0);
        match self.element {
            Element::F32 => (0..self.hidden).flat_map(|_| value(rng).to_ne_bytes()).collect(),
            Element::Bf16 => (0..self.hidden).flat_map(|_| half::bf16::from_f32(value(rng)).to_ne_bytes()).collect(),
        }
    }

    fn values(&self, row: &[u8]) -> Vec<f32> {
        match self.element {
            Element::F32 => row.chunks(4).map(|v| f32::from_ne_bytes(v.try_into().unwrap())).collect(),
            Element::Bf16 => row.chunks(2).map(|v| half::bf16::from_ne_bytes(v.try_into().unwrap()).to_f32()).collect(),
        }
    }

    fn rounded(&self, values: &[f32]) -> Vec<u8> {
        match self.element {
            Element::F32 => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
            Element::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_ne_bytes()).collect(),
        }
    }
}

/// The slots of a token: any, distinct ones, with empty ones, all the same, all of one expert, or none.
fn choose(rng: &mut StdRng, kind: u32, experts: usize, k: usize) -> Vec<i64> {
    let any = |rng: &mut StdRng| rng.random_range(0..experts as i64);
    match kind {
        0 => (0..k).map(|_| any(rng)).collect(),
        1 => {
            let mut all: Vec<i64> = (0..experts as i64).collect();
            all.shuffle(rng);
            all.resize(k, -1);
            all
        }
        2 => (0..k).map(|_| if rng.random() { any(rng) } else { -1 }).collect(),
        3 => vec![any(rng); k],
        4 => vec![experts as i64 - 1; k],
        _ => vec![-1; k],
    }
}

fn rows(data: &[u8], bytes: usize) -> Rows<'_> {
    Rows::new(data, bytes).unwrap()
}

/// Buffers whose blocks hold few rows.
fn high_buffers<'rt>(rt: &'rt Runtime, case: &Case) -> symrail_ep::Result<HighThroughput<'rt>> {
    let bytes = sizes::high_throughput(case.ranks, case.block_rows, sizes::largest_row(case.row()));
    HighThroughput::new(rt, bytes, WaitLimit::of(rt))
}

fn low_buffers<'rt>(rt: &'rt Runtime, case: &Case) -> symrail_ep::Result<LowLatency<'rt>> {
    let (experts, token) = (case.share * case.ranks, case.row());
    let shape = Shape { most_tokens: case.most, token, scales: case.scale_bytes, experts, k: case.k };
    LowLatency::new(rt, shape, WaitLimit::of(rt))
}

/// Both ways at once, by one thread each.
fn both(rt: &Runtime, case: &Case) -> symrail_ep::Result<()> {
    let (mut of_high, mut of_low) = (high_buffers(rt, case)?, low_buffers(rt, case)?);
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| (0..3).try_for_each(|_| low(rt, case, &mut of_low)));
        ((0..3).try_for_each(|_| high(rt, case, &mut of_high)), other.join())
    });
    first?;
    second.unwrap()?;
    of_high.free()?;
    of_low.free()
}

fn high(rt: &Runtime, case: &Case, buffers: &mut HighThroughput<'_>) -> symrail_ep::Result<()> {
    let me = rt.my_pe() as usize;
    let input = &case.inputs[me];
    let topk = case.topk(input);
    let layout = Layout::of(&topk, case.share * case.ranks, case.ranks)?;
    let scales = (case.scale_bytes > 0).then(|| rows(&input.scales, case.scale_bytes));
    let tokens = Tokens { rows: rows(&input.rows, case.row()), scales, topk: Some((topk, &input.weights)) };
    let (received, handle) = buffers.dispatch(&tokens, &layout)?;
    let hosts = hosts(rt);
    check_statistics(rt, case, &hosts, buffers.statistics());

    type Expected = (Vec<u8>, Vec<u8>, Vec<i32>, Vec<f32>, Vec<u32>);
    let mut expected = Expected::default();
    let mut origin = Vec::new();
    for (source, input) in case.inputs.iter().enumerate() {
        for token in (0..input.tokens(case.k)).filter(|&token| case.goes(input, token, me)) {
            expected.0.extend(&input.rows[token * case.row()..][..case.row()]);
            expected.1.extend(&input.scales[token * case.scale_bytes..][..case.scale_bytes]);
            for slot in token * case.k..(token + 1) * case.k {
                let expert = input.indices[slot];
                let own = expert >= 0 && expert as usize / case.share == me;
                expected.2.push(if own { expert as i32 % case.share as i32 } else { -1 });
                expected.3.push(if own { input.weights[slot] } else { 0.0 });
            }
            expected.4.push(token as u32);
            origin.push((source, token));
        }
    }
    assert!(received.rows == expected.0, "rows");
    assert!(received.scales == expected.1, "scales");
    assert_eq!(received.indices, expected.2);
    assert_eq!(received.weights, expected.3);
    assert_eq!(handle.source_tokens, expected.4);
    let named = |e: usize| case.inputs.iter().flat_map(|i| &i.indices).filter(|&&i| i == e as i64).count() as u32;
    let per_expert: Vec<u32> = (me * case.share..(me + 1) * case.share).map(named).collect();
    assert_eq!(received.per_expert, per_expert);

    let again = buffers.dispatch_again(&Tokens { topk: None, ..tokens }, &handle)?;
    assert!(again.rows == expected.0 && again.scales == expected.1, "rows by the handle");

    let made: Vec<u8> = origin.iter().flat_map(|&(source, token)| case.made(source, token, me)).collect();
    let biases: Vec<Vec<u8>> =
        (0..2).map(|i| (0..input.tokens(case.k)).flat_map(|token| case.made(me, token, 9000 + i)).collect()).collect();
    for used in 0..3 {
        let biases: Vec<_> = biases[..used].iter().map(|bias| rows(bias, case.row())).collect();
        let parts = Parts {
            rows: rows(&made, case.row()),
            element: case.element,
            weights: (used > 0).then_some((&received.weights[..], case.k)),
            biases: [biases.first().copied(), biases.get(1).copied()],
        };
        let combined = buffers.combine(&parts, &handle)?;
        assert!(combined == buffers.combine(&parts, &handle)?, "the same bits each time");
        let (mut sums, mut weights) = (Vec::new(), Vec::new());
        for token in 0..input.tokens(case.k) {
            let add =
                |sum: &mut Vec<f32>, row: Vec<f32>| sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            let mut sum = vec![0f32; case.hidden];
            // By host; then the hosts.
            for members in &hosts {
                let mut of_host = vec![0f32; case.hidden];
                for &rank in members.iter().filter(|&&rank| case.goes(input, token, rank)) {
                    add(&mut of_host, case.values(&case.made(me, token, rank)));
                }
                add(&mut sum, of_host);
            }
            (0..used).for_each(|i| add(&mut sum, case.values(&case.made(me, token, 9000 + i))));
            sums.extend(case.rounded(&sum));
            let slots = token * case.k..(token + 1) * case.k;
            weights.extend(slots.map(|slot| if input.indices[slot] < 0 { 0.0 } else { input.weights[slot] }));
        }
        assert!(combined.rows == sums, "sums");
        assert_eq!(combined.weights, if used > 0 { weights } else { Vec::new() });
    }
    Ok(())
}

fn low(rt: &Runtime, case: &Case, buffers: &mut LowLatency<'_>) -> symrail_ep::Result<()> {
    let me = rt.my_pe() as usize;
    // Several rounds on the same buffers, of which two are in progress at a time; then one by one. In one of these each
    // of two random groups of ranks has masked the other.
    for (rounds, apart) in [(2, false), (1, false), (1, true), (1, false)] {
        let takes_part = |rank: usize| !apart || case.group[rank] == case.group[me];
        (0..case.ranks as u32).try_for_each(|rank| buffers.mask(rank, !takes_part(rank as usize)))?;
        let input = &case.inputs[me];
        let scales = (case.scale_bytes > 0).then(|| rows(&input.scales, case.scale_bytes));
        let mut sent = Vec::new();
        for _ in 0..rounds {
            sent.push(buffers.send_dispatch(rows(&input.rows, case.row()), scales, case.topk(input))?);
        }
        if rounds == 2 {
            let third = buffers.send_dispatch(rows(&input.rows, case.row()), scales, case.topk(input));
            assert!(matches!(third, Err(Error::Order { .. })));
            assert!(matches!(buffers.receive_dispatch(&sent[1]), Err(Error::Order { .. })));
        }
        let mut combining = Vec::new();
        for dispatching in sent {
            let found = buffers.receive_dispatch(&dispatching)?;
            let most = case.ranks * case.most;
            let mut made = vec![0; case.share * most * case.row()];
            for expert in 0..case.share {
                let mut row = expert * most;
                for (source, input) in case.inputs.iter().enumerate() {
                    let first = row;
                    for token in (0..input.tokens(case.k)).filter(|_| takes_part(source)) {
                        let global = (me * case.share + expert) as i64;
                        if !case.topk(input).of(token).contains(&global) {
                            continue;
                        }
                        let (bytes, scales) = (case.row(), case.scale_bytes);
                        assert!(
                            found.rows[row * bytes..][..bytes] == input.rows[token * bytes..][..bytes],
                            "row {row}"
                        );
                        assert!(found.scales[row * scales..][..scales] == input.scales[token * scales..][..scales]);
                        assert_eq!(found.source_tokens[row], token as i32);
                        made[row * bytes..][..bytes].copy_from_slice(&case.made(source, token, global as usize));
                        row += 1;
                    }
                    let range = ((first - expert * most) as u32, (row - first) as u32);
                    let range = if takes_part(source) { range } else { (0, 0) };
                    assert_eq!(found.ranges[expert * case.ranks + source], range);
                }
                assert_eq!(found.counts[expert] as usize, row - expert * most);
            }
            combining.push(buffers.send_combine(rows(&made, case.row()), case.element, &found.ranges)?);
        }
        for combining in combining {
            let combined = buffers.receive_combine(&combining, case.topk(input), &input.weights)?;
            let mut sums = Vec::new();
            for token in 0..input.tokens(case.k) {
                let mut sum = vec![0f32; case.hidden];
                let counts = |&slot: &usize| {
                    let expert = input.indices[slot];
                    expert >= 0 && takes_part(expert as usize / case.share)
                };
                for slot in (token * case.k..(token + 1) * case.k).filter(counts) {
                    let row = case.values(&case.made(me, token, input.indices[slot] as usize));
                    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * input.weights[slot]);
                }
                sums.extend(case.rounded(&sum));
            }
            assert!(combined == sums, "sums");
        }
    }
    Ok(())
}

/// The ranks of each host.
fn hosts(rt: &Runtime) -> Vec<Vec<usize>> {
    let of = |first: u32| (0..rt.n_pes()).filter(|&pe| rt.first_on_host(pe) == first).map(|pe| pe as usize).collect();
    (0..rt.n_pes()).filter(|&pe| rt.first_on_host(pe) == pe).map(of).collect()
}

/// A dispatch crosses once for each host, and its statistics show that.
fn check_statistics(rt: &Runtime, case: &Case, hosts: &[Vec<usize>], statistics: &Statistics) {
    let me = rt.my_pe() as usize;
    let get = |source: usize, ranks: &[usize]| {
        let input = &case.inputs[source];
        let gets = |token: &usize| ranks.iter().any(|&rank| case.goes(input, *token, rank));
        (0..input.tokens(case.k)).filter(gets).count()
    };
    let elsewhere = hosts.iter().filter(|members| !members.contains(&me));
    let crossings: usize = elsewhere.map(|members| get(me, members)).sum();
    let own_host = hosts.iter().find(|members| members.contains(&me)).unwrap();
    let place = own_host.iter().position(|&rank| rank == me).unwrap();
    let through_me = |members: &&Vec<usize>, source: &usize| {
        members.iter().position(|rank| rank == source).unwrap() % own_host.len() == place
    };
    let others = || own_host.iter().filter(|&&rank| rank != me);
    let served = hosts
        .iter()
        .filter(|members| !members.contains(&me))
        .flat_map(|members| members.iter().filter(move |source| through_me(&members, source)));
    let passed: usize = served
        .flat_map(|&source| others().map(move |&rank| (source, rank)))
        .map(|(source, rank)| get(source, &[rank]))
        .sum();
    let own: usize = others().map(|&rank| get(me, &[rank])).sum();
    if (0..rt.n_pes()).all(|pe| rt.is_mapped(pe) == hosts.iter().any(|h| h.contains(&me) && h.contains(&(pe as usize))))
    {
        assert_eq!(statistics.wire.rows as usize, crossings, "{statistics:?}");
        assert_eq!(
            statistics.wire.rows as usize + statistics.mapped.rows as usize,
            crossings + own + passed,
            "{statistics:?}"
        );
    }
    let count = |rank: usize| get(me, &[rank]) as u32;
    assert_eq!(statistics.to_ranks, (0..case.ranks).map(count).collect::<Vec<_>>());
    assert_eq!(statistics.from_ranks, (0..case.ranks).map(|source| get(source, &[me]) as u32).collect::<Vec<_>>());
    let phases: Vec<_> = statistics.phases.iter().map(|phase| phase.0).collect();
    assert_eq!(phases, ["headers", "between hosts", "within the host"]);
}

/// Prints how often tokens for all ranks cross to each other host, from the bytes sent over rails.
fn cross(rt: &Runtime) -> symrail_ep::Result<()> {
    let (tokens, bytes, ranks) = (200, 4096, rt.n_pes() as usize);
    let mut buffers =
        HighThroughput::new(rt, sizes::high_throughput(ranks, 16, sizes::largest_row(bytes)), WaitLimit::of(rt))?;
    let (data, slots) = (vec![1; tokens * bytes], (0..ranks as i64).collect::<Vec<_>>().repeat(tokens));
    let weights = vec![1.0; slots.len()];
    let topk = TopK::new(&slots, ranks)?;
    let layout = Layout::of(&topk, ranks, ranks)?;
    let tokens_of = Tokens { rows: rows(&data, bytes), scales: None, topk: Some((topk, &weights)) };
    let sent = |before: &[LaneCounters]| {
        let sum = |counters: &[LaneCounters]| counters.iter().map(|lane| lane.bytes).sum::<u64>();
        (sum(&rt.counters()) - sum(before)) as f64 / (tokens * bytes * (hosts(rt).len() - 1)) as f64
    };
    rt.barrier_all()?;
    let before = rt.counters();
    let (received, handle) = buffers.dispatch(&tokens_of, &layout)?;
    rt.quiet()?;
    let dispatched = sent(&before);
    rt.barrier_all()?;
    let before = rt.counters();
    let parts = Parts { rows: rows(&received.rows, bytes), element: Element::F32, weights: None, biases: [None, None] };
    buffers.combine(&parts, &handle)?;
    rt.quiet()?;
    println!("crossings {dispatched:.3} back {:.3}", sent(&before));
    rt.barrier_all()?;
    buffers.free()
}

/// Prints the cost on the wire of low-latency rounds with 128 tokens, each for every rank; and checks that they cost
/// nothing if all other ranks are masked.
fn count(rt: &Runtime) -> symrail_ep::Result<()> {
    let (rounds, tokens, bytes) = (20, 128, 256);
    let (ranks, others) = (rt.n_pes() as usize, rt.n_pes() as usize - 1);
    let shape = Shape { most_tokens: tokens, token: bytes, scales: 0, experts: ranks, k: ranks };
    let mut buffers = LowLatency::new(rt, shape, WaitLimit::of(rt))?;
    let (data, slots) = (vec![0; tokens * bytes], (0..ranks as i64).collect::<Vec<_>>().repeat(tokens));
    let topk = TopK::new(&slots, ranks)?;
    // Writes and acknowledgements of the rounds.
    let cost = |buffers: &mut LowLatency<'_>| -> symrail_ep::Result<(u64, u64)> {
        let before = rt.counters();
        for _ in 0..rounds {
            let sent = buffers.send_dispatch(rows(&data, bytes), None, topk)?;
            let found = buffers.receive_dispatch(&sent)?;
            let sent = buffers.send_combine(rows(&found.rows, bytes), Element::F32, &found.ranges)?;
            buffers.receive_combine(&sent, topk, &vec![1.0; slots.len()])?;
        }
        rt.quiet()?;
        let since = |of: fn(&LaneCounters) -> u64| -> u64 {
            let sum = |counters: &[LaneCounters]| counters.iter().map(of).sum::<u64>();
            sum(&rt.counters()) - sum(&before)
        };
        Ok((since(|lane| lane.writes), since(|lane| lane.acknowledgements)))
    };
    rt.barrier_all()?;
    let (writes, acknowledgements) = cost(&mut buffers)?;
    // Each token crosses to each other rank, and a row comes back.
    let crossings = 2 * rounds * tokens * others;
    println!("crossings {crossings} writes {writes} acknowledgements {acknowledgements}");
    rt.barrier_all()?;
    (0..rt.n_pes()).filter(|&rank| rank != rt.my_pe()).try_for_each(|rank| buffers.mask(rank, true))?;
    let (writes, _) = cost(&mut buffers)?;
    assert_eq!(writes, 0, "something goes to masked ranks");
    rt.barrier_all()?;
    buffers.free()
}

/// Refusals before anything is sent; the buffers still work afterwards.
fn refuse(rt: &Runtime) -> symrail_ep::Result<()> {
    let (me, ranks) = (rt.my_pe(), rt.n_pes() as usize);
    let different = (1 << 20) + 4096 * me as usize;
    let differs = HighThroughput::new(rt, different, WaitLimit::of(rt)).err();
    assert!(matches!(differs, Some(Error::Runtime(ParametersDiffer { pe, .. })) if pe == me), "{differs:?}");
    let small = HighThroughput::new(rt, 100, WaitLimit::of(rt)).err();
    assert!(matches!(small, Some(Error::BufferTooSmall { given: 100, .. })), "{small:?}");
    let shape = Shape { most_tokens: 4, token: 64, scales: 0, experts: 2 * ranks, k: 2 };
    let differs = LowLatency::new(rt, Shape { k: 2 + me as usize, ..shape }, WaitLimit::of(rt)).err();
    assert!(
        matches!(differs, Some(Error::Runtime(ParametersDiffer { what: "top-k slots of a token", .. }))),
        "{differs:?}"
    );
    assert!(matches!(
        LowLatency::new(rt, Shape { experts: 2 * ranks + 1, ..shape }, WaitLimit::of(rt)),
        Err(Error::Argument { .. })
    ));

    let mut buffers = HighThroughput::new(rt, sizes::high_throughput(ranks, 1, 256), WaitLimit::of(rt))?;
    let (data, indices, weights) = (vec![7; 128], [0, 1, -1, 2 * ranks as i64 - 1], [1.0; 4]);
    let topk = TopK::new(&indices, 2)?;
    let layout = Layout::of(&topk, 2 * ranks, ranks)?;
    let good = Tokens { rows: rows(&data, 64), scales: None, topk: Some((topk, &weights)) };
    // Mistakes of PE 0 that the others do not notice.
    if me == 0 {
        let far = [0, 1, -1, 2 * ranks as i64];
        let wrong = buffers.dispatch(&Tokens { topk: Some((TopK::new(&far, 2)?, &weights)), ..good }, &layout);
        assert!(matches!(wrong, Err(Error::NoSuchExpert { token: 1, slot: 1, .. })));
        for wrong in [
            Tokens { rows: rows(&data, 128), ..good },
            Tokens { topk: Some((topk, &weights[1..])), ..good },
            Tokens { scales: Some(rows(&data, 128)), ..good },
        ] {
            assert!(matches!(buffers.dispatch(&wrong, &layout), Err(Error::Argument { .. })));
        }
        let large = vec![1; 2 * 512];
        let wrong = buffers.dispatch(&Tokens { rows: rows(&large, 512), ..good }, &layout);
        assert!(matches!(wrong, Err(Error::BufferTooSmall { needed, .. }) if needed > buffers.bytes()), "{wrong:?}");
    }
    let (_, handle) = buffers.dispatch(&good, &layout)?;
    // Rows of another size on one rank: an error on all.
    let bytes = if me == 0 { 32 } else { 64 };
    let differs = buffers.dispatch(&Tokens { rows: rows(&data[..2 * bytes], bytes), ..good }, &layout);
    assert!(matches!(&differs, Err(Error::Differ { what: "bytes of a row", .. })), "{differs:?}");
    // Different calls.
    let made = vec![1; 64 * handle.rows()];
    let parts = Parts { rows: rows(&made, 64), element: Element::Bf16, weights: None, biases: [None, None] };
    let differs = if me == 0 { buffers.combine(&parts, &handle).err() } else { buffers.dispatch(&good, &layout).err() };
    assert!(matches!(differs, Some(Error::Differ { .. })), "{differs:?}");
    if me == 0 {
        let wrong = Parts { rows: rows(&made[64..], 64), ..parts };
        assert!(matches!(buffers.combine(&wrong, &handle), Err(Error::Argument { .. })));
        let wrong = Parts { biases: [Some(rows(&data[..64], 64)), None], ..parts };
        assert!(matches!(buffers.combine(&wrong, &handle), Err(Error::Argument { .. })));
    }
    buffers.combine(&parts, &handle)?;

    let mut low = LowLatency::new(rt, shape, WaitLimit::of(rt))?;
    if me == 0 {
        let many = vec![0; 5 * 64];
        let wrong = low.send_dispatch(rows(&many, 64), None, TopK::new(&[0; 10], 2)?);
        assert!(matches!(wrong, Err(Error::TooManyTokens { tokens: 5, most: 4 })));
        let wrong = low.send_dispatch(rows(&many[..64], 64), None, TopK::new(&[0, -2], 2)?);
        assert!(matches!(wrong, Err(Error::NoSuchExpert { token: 0, slot: 1, expert: -2, .. })));
        for (bytes, k) in [(128, 2), (64, 4)] {
            let wrong = low.send_dispatch(rows(&many[..2 * bytes], bytes), None, TopK::new(&vec![0; 2 * k], k)?);
            assert!(matches!(wrong, Err(Error::Argument { .. })));
        }
    }
    let sent = low.send_dispatch(rows(&data, 64), None, topk)?;
    let found = low.receive_dispatch(&sent)?;
    let bytes = if me == 0 { 32 } else { 64 };
    let sent = low.send_dispatch(rows(&data[..2 * bytes], bytes), None, topk)?;
    let differs = low.receive_dispatch(&sent);
    assert!(matches!(&differs, Err(Error::Differ { what: "bytes of a row", .. })), "{differs:?}");
    if me == 0 {
        let all = vec![0; 2 * ranks * 4 * 64];
        let mut ranges = found.ranges.clone();
        ranges[0].1 = 100;
        for (data, ranges) in [(&all[64..], &found.ranges), (&all[..], &ranges)] {
            assert!(matches!(low.send_combine(rows(data, 64), Element::F32, ranges), Err(Error::Argument { .. })));
        }
    }
    let sent = low.send_dispatch(rows(&data, 64), None, topk)?;
    low.receive_dispatch(&sent)?;
    low.free()?;
    buffers.free()
}
