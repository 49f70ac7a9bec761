//! Jacobi iterations on a grid whose rows are spread over the PEs; edge rows go to the neighbours by put-signal.
//!
//! Every PE compares its rows with those of a serial solution, bit for bit.
//!
//! `symrail run -n 4 -- target/release/examples/jacobi [ROWS] [COLUMNS] [ITERATIONS]`

use std::time::Instant;

use symrail::{Cmp, Result, Runtime, SignalUpdate};

/// One step: every point that is not on the left or right edge becomes the mean of its four neighbours.
fn step(above: &[f64], row: &[f64], below: &[f64], new: &mut [f64]) {
    new.copy_from_slice(row);
    for x in 1..row.len() - 1 {
        new[x] = 0.25 * (row[x - 1] + row[x + 1] + above[x] + below[x]);
    }
}

/// The fixed edges: hot on top, and a ramp on the left. Everything else starts cold.
fn start_value(y: usize, x: usize, rows: usize) -> f64 {
    match (y, x) {
        (0, _) => 1.0,
        (_, 0) => 1.0 - y as f64 / rows as f64,
        _ => 0.0,
    }
}

/// One step of the rows of a grid from row `first` on; `above` and `below` are the rows just outside of them.
fn sweep(grid: &mut Vec<Vec<f64>>, first: usize, rows: usize, above: &[f64], below: &[f64]) {
    let mut new = grid.clone();
    for (y, to) in new.iter_mut().enumerate() {
        // The top and bottom row of the whole grid are fixed.
        if first + y > 0 && first + y < rows - 1 {
            let up = if y == 0 { above } else { &grid[y - 1] };
            let down = grid.get(y + 1).map_or(below, Vec::as_slice);
            step(up, &grid[y], down, to);
        }
    }
    *grid = new;
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map_while(|arg| arg.parse::<usize>().ok());
    let rt = Runtime::init()?;
    let (me, n) = (rt.my_pe() as usize, rt.n_pes() as usize);
    let rows = args.next().unwrap_or(256).max(n);
    let columns = args.next().unwrap_or(256).max(3);
    let iterations = args.next().unwrap_or(200);
    let start = |first: usize, last: usize| -> Vec<Vec<f64>> {
        (first..last).map(|y| (0..columns).map(|x| start_value(y, x, rows)).collect()).collect()
    };

    let (first, last) = (me * rows / n, (me + 1) * rows / n);
    let mut grid = start(first, last);
    // Halo rows and their signals: from the PE above, from the PE below. Iterations use two copies of the rows
    // alternately. A neighbour is never two iterations ahead, because each needs the other's row for the next one.
    let halos = rt.alloc_slice::<f64>(4 * columns)?;
    let arrived = rt.alloc_slice::<u64>(2)?;
    let (mut above, mut below) = (vec![0.0; columns], vec![0.0; columns]);
    let begin = Instant::now();
    for iteration in 1..=iterations {
        let (copy, number) = (iteration % 2 * 2, iteration as u64);
        // This PE's first row is the row below for the PE above, and so on.
        if me > 0 {
            halos.put_signal(
                (copy + 1) * columns,
                &grid[0],
                SignalUpdate::set((&arrived, 1), number),
                rt.my_pe() - 1,
            )?;
        }
        if me < n - 1 {
            let edge = &grid[last - first - 1];
            halos.put_signal(copy * columns, edge, SignalUpdate::set((&arrived, 0), number), rt.my_pe() + 1)?;
        }
        if me > 0 {
            arrived.wait_until(0, Cmp::Ge, number)?;
            halos.read_slice(copy * columns, &mut above)?;
        }
        if me < n - 1 {
            arrived.wait_until(1, Cmp::Ge, number)?;
            halos.read_slice((copy + 1) * columns, &mut below)?;
        }
        sweep(&mut grid, first, rows, &above, &below);
    }
    rt.barrier_all()?;
    let seconds = begin.elapsed().as_secs_f64();

    let mut serial = start(0, rows);
    (0..iterations).for_each(|_| sweep(&mut serial, 0, rows, &[], &[]));
    let same = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
    let wrong = grid.iter().zip(&serial[first..last]).filter(|&pair| !same(pair)).count();
    assert!(wrong == 0, "PE {me}: {wrong} of {} rows differ from the serial solution", last - first);
    rt.barrier_all()?;
    if me == 0 {
        println!(
            "jacobi: {iterations} iterations of {rows} x {columns} points on {n} PEs in {seconds:.3} s, as serially"
        );
    }
    arrived.free()?;
    halos.free()?;
    rt.finalize()
}
