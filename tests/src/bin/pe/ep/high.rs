//! High throughput, compared with the reference.

use symrail::Runtime;
use symrail_ep::high_throughput::{Parts, Tokens};
use symrail_ep::plan::sizes;
use symrail_ep::{HighThroughput, Layout, Statistics, WaitLimit};

use super::case::{Case, rows};

/// Buffers whose blocks hold few rows.
pub fn high_buffers(rt: &Runtime, case: &Case) -> symrail_ep::Result<HighThroughput> {
    let bytes = sizes::high_throughput(case.ranks, case.block_rows, sizes::largest_row(case.row()));
    HighThroughput::new(rt, bytes, WaitLimit::of(rt))
}

pub fn high(rt: &Runtime, case: &Case, buffers: &mut HighThroughput) -> symrail_ep::Result<()> {
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
            // The sums of each host come first, and then the sum of the hosts.
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

/// The ranks of each host.
pub fn hosts(rt: &Runtime) -> Vec<Vec<usize>> {
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
