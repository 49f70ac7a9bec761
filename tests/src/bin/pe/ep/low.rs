//! Low latency, compared with the reference.

use symrail::Runtime;
use symrail_ep::low_latency::Shape;
use symrail_ep::{Error, LowLatency, WaitLimit};

use super::case::{Case, rows};

pub fn low_buffers(rt: &Runtime, case: &Case) -> symrail_ep::Result<LowLatency> {
    let (experts, token) = (case.share * case.ranks, case.row());
    let shape = Shape { most_tokens: case.most, token, scales: case.scale_bytes, experts, k: case.k };
    LowLatency::new(rt, shape, WaitLimit::of(rt))
}

pub fn low(rt: &Runtime, case: &Case, buffers: &mut LowLatency) -> symrail_ep::Result<()> {
    let me = rt.my_pe() as usize;
    // Several rounds run on the same buffers: first two rounds in flight at a time, then single rounds. In one of these
    // two random groups of ranks have masked each other.
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
                let of = |slot: usize| input.indices[slot] as usize / case.share;
                let counts = |&slot: &usize| {
                    let expert = input.indices[slot];
                    expert >= 0 && takes_part(expert as usize / case.share)
                };
                for rank in 0..case.ranks {
                    let mut of_rank = vec![0f32; case.hidden];
                    for slot in (token * case.k..(token + 1) * case.k).filter(counts).filter(|&slot| of(slot) == rank) {
                        let row = case.values(&case.made(me, token, input.indices[slot] as usize));
                        of_rank.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * input.weights[slot]);
                    }
                    let row = case.values(&case.rounded(&of_rank));
                    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
                sums.extend(case.rounded(&sum));
            }
            assert!(combined == sums, "sums");
        }
    }
    Ok(())
}
