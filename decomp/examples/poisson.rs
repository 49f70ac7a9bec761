//! Solves Poisson's equation on a periodic cube by FFTs of pencils, and prints the distance from the analytic solution.
//!
//! The right-hand side is that of the solution sin(2 pi x) sin(4 pi y) cos(6 pi z). Each FFT is along the axis that its
//! pencils have whole: X, then Y, then Z, and back.
//!
//! `symrail run -n 4 -- target/release/examples/poisson [ELEMENTS ALONG AN EDGE [PLOT.svg]]`
//!
//! The plot shows the computed and the analytic solution along X at y = 1/8 and z = 0, and their difference.

use std::error::Error;
use std::f64::consts::TAU;
use std::time::Instant;

use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;
use symrail::collective::Reduction;
use symrail::{Runtime, TeamHeap};
use symrail_decomp::{Axis, Decomposition, Element, Form, Grid, Pencil, Transpose, Tuning, tune};

/// Waves along X, Y and Z.
const WAVES: [f64; 3] = [1.0, 2.0, 3.0];

/// The largest error that counts as rounding.
const ROUNDING: f64 = 1e-12;

type Number = [f64; 2];

fn main() -> Result<(), Box<dyn Error>> {
    let edge: usize = std::env::args().nth(1).map_or(Ok(64), |text| text.parse())?;
    let rt = Runtime::init()?;
    // A workspace needs twice an array's share, and a little for each peer.
    let share = edge.pow(3) * size_of::<Number>() / rt.n_pes() as usize;
    let heap = TeamHeap::new(&rt, 4 * share + (4 << 20))?;
    let grid = Grid::new([edge; 3], [1, 1]).axis_contiguous();
    let (team, tuned) =
        tune(&heap, rt.team_world()?, grid, &Tuning { element: size_of::<Number>(), ..Tuning::default() })?;
    let array = Decomposition::new(&heap, team, tuned.grid)?;

    let start = Instant::now();
    let (error, solution) = solve(&array, &tuned.mode, edge)?;
    let seconds = start.elapsed().as_secs_f64();
    let mut largest = error;
    let word = (&raw mut largest).cast::<u8>();
    // SAFETY: the word is this call's own, in and out.
    unsafe { array.team().reduce(word, word, 1, Reduction::max::<f64>()) }?;
    if rt.my_pe() == 0 {
        println!(
            "{tuned}{edge}^3 on {:?} PEs in {:.1} ms: largest error {largest:.2e}",
            tuned.grid.processes,
            seconds * 1e3
        );
        println!("along X at y = 1/8 and z = 0, computed and analytic:");
        let x = |i| i as f64 / edge as f64;
        let line: Vec<_> =
            solution.iter().enumerate().map(|(i, it)| (x(i), it[0], exact([x(i), x(edge / 8), 0.0]))).collect();
        for (x, computed, analytic) in line.iter().step_by(edge.div_ceil(8)) {
            println!("{x:8.4} {computed:12.8} {analytic:12.8}");
        }
        if let Some(path) = std::env::args().nth(2) {
            plot(&path, &line)?;
        }
    }
    drop(array);
    heap.free()?;
    rt.finalize()?;
    if largest < ROUNDING { Ok(()) } else { Err(format!("an error of {largest:.2e} is more than rounding").into()) }
}

/// The solution at a point of the unit cube.
fn exact([x, y, z]: [f64; 3]) -> f64 {
    (WAVES[0] * TAU * x).sin() * (WAVES[1] * TAU * y).sin() * (WAVES[2] * TAU * z).cos()
}

/// Solves, and returns the largest error of this PE's elements, with its part of the line along X at y = 1/8 and z = 0.
fn solve(
    array: &Decomposition,
    mode: &symrail_decomp::Mode,
    edge: usize,
) -> Result<(f64, Vec<Number>), Box<dyn Error>> {
    let pencils = Axis::ALL.map(|axis| array.pencil(axis, Form::default()));
    let mut data = pencils.map(|pencil| vec![[0.0; 2]; pencil.len()]);
    let plan = |axes| array.transpose(&Transpose { mode: *mode, ..Transpose::new(axes, size_of::<Number>()) });
    let [mut x_to_y, mut y_to_z, mut z_to_y, mut y_to_x] = Transpose::ALL.map(plan);
    let mut plans = [x_to_y.as_mut(), y_to_z.as_mut(), z_to_y.as_mut(), y_to_x.as_mut()];
    let bytes = plans.iter().flatten().map(|plan| plan.workspace_bytes()).max().unwrap_or(0);
    let mut work = array.workspace(bytes)?;

    let point = |at: [usize; 3]| at.map(|i| i as f64 / edge as f64);
    let stiffness: f64 = WAVES.iter().map(|wave| (wave * TAU).powi(2)).sum();
    for_each(&pencils[0], &mut data[0], |at, value| *value = [-stiffness * exact(point(at)), 0.0]);

    let mut planner = FftPlanner::new();
    let (forward, inverse) = (planner.plan_fft_forward(edge), planner.plan_fft_inverse(edge));
    let fft = |lines: &mut [Number], plan: &dyn rustfft::Fft<f64>| {
        let mut line = vec![Complex::default(); edge];
        for numbers in lines.chunks_exact_mut(edge) {
            numbers.iter().zip(&mut line).for_each(|(number, to)| *to = Complex::new(number[0], number[1]));
            plan.process(&mut line);
            line.iter().zip(numbers).for_each(|(from, number)| *number = [from.re, from.im]);
        }
    };
    let mut run = |i: usize, from: &mut Vec<Number>, to: &mut Vec<Number>| match &mut plans[i] {
        Ok(plan) => plan.run(from, to, &mut work),
        Err(error) => Err(error.clone()),
    };
    let [x, y, z] = &mut data;
    fft(x, &*forward);
    run(0, x, y)?;
    fft(y, &*forward);
    run(1, y, z)?;
    fft(z, &*forward);
    // The Laplacian of a wave is the wave itself, times this factor. The mean is free.
    let square = |i: usize| (TAU * if i <= edge / 2 { i as f64 } else { i as f64 - edge as f64 }).powi(2);
    let scale = (edge as f64).powi(-3);
    for_each(&pencils[2], z, |at, value| {
        let sum: f64 = at.into_iter().map(square).sum();
        let factor = if sum == 0.0 { 0.0 } else { -scale / sum };
        *value = value.map(|part| part * factor);
    });
    fft(z, &*inverse);
    run(2, z, y)?;
    fft(y, &*inverse);
    run(3, y, x)?;
    fft(x, &*inverse);

    let (mut error, mut line) = (0f64, Vec::new());
    for_each(&pencils[0], x, |at, value| {
        error = error.max((value[0] - exact(point(at))).abs()).max(value[1].abs());
        if at[1] == edge / 8 && at[2] == 0 {
            line.push(*value);
        }
    });
    Ok((error, line))
}

/// Draws the computed and the analytic solution over x, and below them their difference.
fn plot(path: &str, line: &[(f64, f64, f64)]) -> Result<(), Box<dyn Error>> {
    register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).map_err(|_| "no font")?;
    let root = SVGBackend::new(path, (900, 640)).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(400);
    let off = |&(x, computed, analytic): &(f64, f64, f64)| (x, computed - analytic);
    let most = line.iter().map(|it| off(it).1.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let on = |area, title: &str, high: f64| {
        let mut builder = ChartBuilder::on(area);
        builder.caption(title, ("sans-serif", 18)).margin(12).x_label_area_size(24).y_label_area_size(80);
        builder.build_cartesian_2d(0.0..1.0, -high..high)
    };
    let mut solution = on(&above, "solution: computed (points) and analytic (line)", 1.1)?;
    solution.configure_mesh().draw()?;
    solution.draw_series(LineSeries::new(line.iter().map(|it| (it.0, it.2)), &BLUE))?;
    solution.draw_series(line.iter().map(|it| Circle::new((it.0, it.1), 3, RED.filled())))?;
    let mut error = on(&below, "computed less analytic", 1.1 * most)?;
    error.configure_mesh().y_label_formatter(&|off| format!("{off:.1e}")).draw()?;
    error.draw_series(LineSeries::new(line.iter().map(off), &RED))?;
    Ok(root.present()?)
}

/// Calls `body` for each of a pencil's elements with its indexes in the array, in the order of memory.
fn for_each<T: Element>(pencil: &Pencil, data: &mut [T], mut body: impl FnMut([usize; 3], &mut T)) {
    let (shape, strides) = (pencil.shape(), pencil.strides());
    for (index, value) in data.iter_mut().enumerate() {
        body([0, 1, 2].map(|dim| pencil.from[dim] + index / strides[dim] % shape[dim]), value);
    }
}
