//! Every element goes to exactly one place: flows of all PEs applied to arrays in one process.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use crate::flow::Flows;
use crate::view::View;
use crate::{Axis, Form, Grid, Halo, Pencil, RankOrder, Transpose};

fn grids() -> impl Strategy<Value = Grid> {
    let orders = || Just([0usize, 1, 2]).prop_shuffle();
    (
        prop::array::uniform3(1usize..9),
        prop::array::uniform3(0usize..4),
        (1usize..5, 1usize..5),
        any::<bool>(),
        [orders(), orders(), orders()],
    )
        .prop_map(|(extents, less, (rows, columns), by_column, memory)| Grid {
            extents,
            distributed: [0, 1, 2].map(|dim| extents[dim].saturating_sub(less[dim]).max(1)),
            processes: [rows, columns],
            ranks: if by_column { RankOrder::ColumnMajor } else { RankOrder::RowMajor },
            memory,
        })
}

fn forms() -> impl Strategy<Value = Form> {
    let widths = || prop::array::uniform3(0usize..3);
    (widths(), widths()).prop_map(|(halo, padding)| Form { halo, padding })
}

fn places(view: &View) -> Vec<usize> {
    let [_, b, c, d] = view.extents;
    let at = |n: usize| [n / (b * c * d), n / (c * d) % b, n / d % c, n % d];
    let place = |n| view.offset + at(n).iter().zip(view.strides).map(|(i, stride)| i * stride).sum::<usize>();
    (0..view.len()).map(place).collect()
}

/// Moves all blocks of all PEs.
fn exchange(flows: &[Flows], inputs: &[Vec<i64>], outputs: &mut [Vec<i64>]) {
    for (rank, of_rank) in flows.iter().enumerate() {
        for (from, to) in &of_rank.own {
            places(from).iter().zip(places(to)).for_each(|(&from, to)| outputs[rank][to] = inputs[rank][from]);
        }
        for flow in &of_rank.others {
            let back =
                flows[flow.rank].others.iter().find(|back| back.rank == rank && back.here == flow.there).unwrap();
            assert_eq!((back.there, back.at), (flow.here, flow.into), "both ends mean the same block");
            assert_eq!(flow.from.extents, flow.into.extents);
            places(&flow.from).iter().zip(places(&flow.into)).for_each(|(&from, to)| {
                assert_eq!(outputs[flow.rank][to], -1, "written once");
                outputs[flow.rank][to] = inputs[rank][from];
            });
        }
    }
}

fn number(grid: &Grid, at: [usize; 3]) -> i64 {
    ((at[2] * grid.extents[1] + at[1]) * grid.extents[0] + at[0]) as i64
}

fn own(pencil: &Pencil) -> Vec<[usize; 3]> {
    let [x, y, z] = [0, 1, 2].map(|dim| pencil.from[dim]..pencil.to[dim]);
    z.flat_map(|z| y.clone().flat_map(move |y| (0..).map(move |x| [x, y, z]).take(pencil.to[0])))
        .filter(|at| x.contains(&at[0]))
        .collect()
}

#[test]
fn shares_differ_by_one_element_at_most_and_the_first_are_the_larger_ones() {
    for (extent, parts) in (1..30).flat_map(|extent| (1..9).map(move |parts| (extent, parts))) {
        let grid = Grid::new([extent, 1, 1], [1, 1]);
        let shares: Vec<_> = (0..parts).map(|part| grid.share(0, part, parts)).collect();
        let sizes: Vec<_> = shares.iter().map(|(from, to)| to - from).collect();
        assert_eq!(sizes.iter().sum::<usize>(), extent, "{shares:?}");
        assert!(sizes.is_sorted_by(|one, next| one >= next) && sizes[0] - sizes[parts - 1] <= 1, "{shares:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pencils_share_the_array_out(grid in grids(), axis in prop::sample::select(&Axis::ALL[..])) {
        let mut owners = vec![0; grid.extents.iter().product()];
        for rank in 0..grid.processes.iter().product() {
            prop_assert_eq!(grid.rank(grid.place(rank)), rank);
            for at in own(&grid.pencil(rank, axis, Form::default())) {
                owners[number(&grid, at) as usize] += 1;
            }
        }
        prop_assert!(owners.iter().all(|&owners| owners == 1));
    }

    #[test]
    fn transposes_bring_each_element_to_its_place(
        grid in grids(), input in forms(), output in forms(), fields in 1usize..3, axes in prop::sample::select(&Transpose::ALL[..]),
    ) {
        let transpose = Transpose { input, output, fields, ..Transpose::new(axes, 8) };
        let ranks = grid.processes.iter().product();
        let flows: Vec<Flows> = (0..ranks).map(|rank| transpose.flows(&grid, rank).unwrap()).collect();
        let pencil = |rank, axis, form| grid.pencil(rank, axis, form);
        let total = grid.extents.iter().product::<usize>() as i64;
        let inputs: Vec<Vec<i64>> = (0..ranks).map(|rank| {
            let pencil = pencil(rank, transpose.from, input);
            let mut all = vec![-2; pencil.len() * fields];
            for at in own(&pencil) {
                (0..fields).for_each(|field| all[field * pencil.len() + pencil.index(at)] = number(&grid, at) + total * field as i64);
            }
            all
        }).collect();
        let mut outputs: Vec<Vec<i64>> = (0..ranks).map(|rank| vec![-1; pencil(rank, transpose.to, output).len() * fields]).collect();
        exchange(&flows, &inputs, &mut outputs);
        for (rank, found) in outputs.iter().enumerate() {
            let pencil = pencil(rank, transpose.to, output);
            let mut expected = vec![-1; found.len()];
            for at in own(&pencil) {
                (0..fields).for_each(|field| expected[field * pencil.len() + pencil.index(at)] = number(&grid, at) + total * field as i64);
            }
            prop_assert_eq!(found, &expected);
        }
    }

    #[test]
    fn halos_bring_the_neighbours_elements(
        grid in grids(), form in forms(), axis in prop::sample::select(&Axis::ALL[..]), periodic in any::<bool>(),
    ) {
        let ranks: usize = grid.processes.iter().product();
        let halo = |dim| Halo { axis, dim, periodic, form, element: 8, fields: 1, mode: crate::Mode::default() };
        let mut arrays: Vec<Vec<i64>> = (0..ranks).map(|rank| {
            let pencil = grid.pencil(rank, axis, form);
            let mut all = vec![-1; pencil.len()];
            own(&pencil).into_iter().for_each(|at| all[pencil.index(at)] = number(&grid, at));
            all
        }).collect();
        for dim in 0..3 {
            let flows: Result<Vec<Flows>, _> = (0..ranks).map(|rank| halo(dim).flows(&grid, rank)).collect();
            let Ok(flows) = flows else { return Ok(()) }; // a halo wider than a share
            let inputs = arrays.clone();
            exchange(&flows, &inputs, &mut arrays);
        }
        for (rank, found) in arrays.iter().enumerate() {
            let pencil = grid.pencil(rank, axis, form);
            let (shape, strides) = (pencil.shape(), pencil.strides());
            for (n, &element) in found.iter().enumerate() {
                let at = [0, 1, 2].map(|dim| n / strides[dim] % shape[dim]);
                let mut there = [0; 3];
                let inside = (0..3).all(|dim| {
                    let whole = grid.extents[dim] as i64;
                    let global = pencil.from[dim] as i64 + at[dim] as i64 - form.halo[dim] as i64;
                    there[dim] = global.rem_euclid(whole) as usize;
                    (periodic || (0..whole).contains(&global)) && at[dim] < shape[dim] - form.padding[dim]
                });
                let expected = if inside { number(&grid, there) } else { -1 };
                prop_assert_eq!(element, expected, "rank {} at {:?}", rank, at);
            }
        }
    }
}
