//! Times the four transposes of an array of complex numbers, and the halo of three fields, for a comparison with MPI in
//! `decomp/bench/alltoallv.c`. PEs use host memory; X is the fastest axis in all pencils.
//!
//! `symrail run -n 4 -- target/release/examples/transposes ROWS COLUMNS EDGE…` prints, for each edge, microseconds of
//! the four transposes with arrays in the symmetric heap, with arrays of the process, and of the three halo updates.

use std::error::Error;
use std::time::{Duration, Instant};

use symrail::{Runtime, TeamHeap};
use symrail_decomp::{Axis, Buffer, Decomposition, Form, Grid, Halo, Mode, Transpose};

/// Bytes of a complex number.
const ELEMENT: usize = 16;
/// The time for the measurement of each figure.
const BUDGET: Duration = Duration::from_millis(400);

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [rows, columns, edges @ ..] = &numbers[..] else { return Err("ROWS COLUMNS EDGE…".into()) };
    let rt = Runtime::init()?;
    for &edge in edges {
        let grid = Grid::new([edge; 3], [*rows, *columns]);
        let bytes = (edge + 2 * rows + 2) * (edge + 2 * columns + 2) * (edge + 2) * 2 * ELEMENT / (rows * columns);
        let heap = TeamHeap::new(&rt, 3 * bytes + (4 << 20))?;
        let arrays = [rt.alloc_slice::<u64>(bytes / 8)?, rt.alloc_slice::<u64>(bytes / 8)?];
        let array = Decomposition::new(&heap, rt.team_world()?, grid)?;
        let mut plans = Vec::new();
        for axes in Transpose::ALL {
            plans.push(array.transpose(&Transpose::new(axes, ELEMENT))?);
        }
        let mut work = array.workspace(plans.iter().map(|plan| plan.workspace_bytes()).max().unwrap_or(0))?;
        let mut own = [vec![0u64; bytes / 8], vec![0u64; bytes / 8]];
        let mut four = |symmetric: bool| -> Result<f64, Box<dyn Error>> {
            time(&array, || {
                for plan in &mut plans {
                    let [one, other] = &mut own;
                    let (input, output): (Buffer<'_>, Buffer<'_>) = if symmetric {
                        ((&*arrays[0]).into(), (&*arrays[1]).into())
                    } else {
                        (one.into(), other.into())
                    };
                    plan.run(input, output, &mut work)?;
                }
                Ok(())
            })
        };
        let (direct, staged) = (four(true)?, four(false)?);
        let form = Form { halo: [1; 3], padding: [0; 3] };
        let halo =
            |dim| Halo { axis: Axis::X, dim, periodic: true, form, element: 8, fields: 3, mode: Mode::default() };
        let mut halos = Vec::new();
        for dim in 0..3 {
            halos.push(array.halo(&halo(dim))?);
        }
        let mut of_halo = array.workspace(halos.iter().map(|plan| plan.workspace_bytes()).max().unwrap_or(0))?;
        let updates =
            time(&array, || halos.iter_mut().try_for_each(|plan| Ok(plan.run_in_place(&*arrays[0], &mut of_halo)?)))?;
        if rt.my_pe() == 0 {
            println!("edge {edge}: symmetric {direct:.1} private {staged:.1} halo {updates:.1}");
        }
        plans.into_iter().chain(halos).try_for_each(|plan| array.give_up(plan))?;
        drop((array, work, of_halo));
        let [one, other] = arrays;
        one.free()?;
        other.free()?;
        heap.free()?;
    }
    Ok(rt.finalize()?)
}

/// Mean microseconds of a call on the slowest PE.
fn time(array: &Decomposition, mut body: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut run = |rounds: u64| -> Result<u64, Box<dyn Error>> {
        array.team().sync()?;
        let start = Instant::now();
        (0..rounds).try_for_each(|_| body())?;
        Ok(array.largest((start.elapsed().as_nanos() as u64 / rounds) as usize)? as u64)
    };
    run(3)?;
    let once = run(3)?.max(1);
    let rounds = (BUDGET.as_nanos() as u64 / once).clamp(3, 2000);
    Ok(run(rounds)? as f64 / 1e3)
}
