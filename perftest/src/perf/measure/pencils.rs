//! Arrays in pencils: a cube of complex doubles, spread over all PEs.
//!
//! A round is the four transposes that an FFT and its inverse need, or an update of a halo of one element along X, Y
//! and Z. On a GPU the PE posts a round on a stream, and waits for it before the next one.

use std::time::Duration;

use symrail::{Runtime, SymSlice, TeamHeap};
use symrail_decomp::cuda::{GpuKernels, GpuMemory};
use symrail_decomp::{AnyPlan, Axis, Decomposition, Form, Grid, Halo, Mode, Pencil, Transpose};
use symrail_kernels::cuda::Stream;

use super::Bench;
use crate::perf::backend::Backend;
use crate::perf::catalog::Exchange;
use crate::perf::error::{Error, Result};
use crate::perf::heap;
use crate::perf::sample::Figures;

/// A complex number of two doubles.
const ELEMENT: usize = heap::COMPLEX;
const WORDS: usize = ELEMENT / size_of::<u64>();

/// The array of a round.
pub struct Cube {
    edge: usize,
    processes: [usize; 2],
    /// Bytes that PE 0 sends to others in a round.
    sent: usize,
}

impl Cube {
    /// The array's size, and the bandwidth of rounds that take `micros` microseconds.
    pub fn over(&self, micros: f64) -> String {
        let Cube { edge, processes: [rows, columns], sent } = self;
        let rate = *sent as f64 / micros;
        format!("{edge} x {edge} x {edge} on {rows} x {columns} PEs: a PE sends {sent} bytes, {rate:.0} MB/s")
    }
}

impl<C: Backend> Bench<'_, C> {
    /// Measures one size: bytes of the whole array. A GPU copies if there are kernels. PE 0 returns the figures.
    /// Collective.
    pub fn pencils(
        &mut self,
        rt: &Runtime,
        kernels: Option<&GpuKernels>,
        what: Exchange,
        size: usize,
    ) -> Result<(Option<Figures>, Cube)> {
        let edge = heap::edge(size);
        let grid = Grid::new([edge; 3], heap::processes(rt.n_pes()));
        let form = Form { halo: if what == Exchange::Halo { [1; 3] } else { [0; 3] }, padding: [0; 3] };
        let words = WORDS * heap::largest_pencil(grid);
        let arrays = [rt.alloc_slice::<u64>(words)?, rt.alloc_slice::<u64>(words)?];
        let team_heap = TeamHeap::new(rt, heap::of_workspace(grid))?;
        let array = Decomposition::new(&team_heap, rt.team_world()?, grid)?;
        let [x, y, z] = Axis::ALL.map(|axis| array.pencil(axis, form));
        let outside = |from: &Pencil, to: &Pencil| {
            let common = |dim: usize| from.to[dim].min(to.to[dim]).saturating_sub(from.from[dim].max(to.from[dim]));
            from.extents().iter().product::<usize>() - (0..3).map(common).product::<usize>()
        };
        let (mut plans, elements) = match what {
            Exchange::Transpose => {
                let plans =
                    Transpose::ALL.map(|axes| AnyPlan::new(&array, kernels, &Transpose::new(axes, ELEMENT).into()));
                (
                    plans.into_iter().collect::<Result<Vec<_>, _>>()?,
                    [(&x, &y), (&y, &z), (&z, &y), (&y, &x)].iter().map(|(from, to)| outside(from, to)).sum::<usize>(),
                )
            }
            Exchange::Halo => {
                let mode = Mode::default();
                let update = |dim| Halo { axis: Axis::X, dim, periodic: true, form, element: ELEMENT, fields: 1, mode };
                let shape = x.shape();
                let faces = [0, 1].map(|split| {
                    let is_split = grid.processes[split] > 1;
                    if is_split { 2 * shape.iter().product::<usize>() / shape[split + 1] } else { 0 }
                });
                let plans = [0, 1, 2].map(|dim| AnyPlan::new(&array, kernels, &update(dim).into()));
                (plans.into_iter().collect::<Result<Vec<_>, _>>()?, faces.iter().sum())
            }
        };
        let needed = plans.iter().map(AnyPlan::workspace_bytes).max().unwrap_or(0);
        let mut work = array.workspace(array.largest(needed)?)?;
        let buffers = arrays.each_ref().map(|array| {
            let at = array.as_ptr();
            let at = kernels.map_or(at.expose_provenance() as u64, |kernels| kernels.device().address(at.cast()));
            GpuMemory { at, bytes: words * size_of::<u64>() }
        });
        let stream = kernels.map(|kernels| Stream::new(kernels.device().gpu())).transpose()?;
        let handle = stream.as_ref().map_or(0, |stream| stream.raw().expose_provenance());
        // The kernels' own waits end before this.
        let patience = Duration::from_secs(2 * rt.settings().timeout_s);
        let mut round = || -> Result<()> {
            for (step, plan) in plans.iter_mut().enumerate() {
                let used = match what {
                    Exchange::Transpose => [buffers[step % 2], buffers[1 - step % 2]],
                    Exchange::Halo => [buffers[0]; 2],
                };
                // SAFETY: both are of these arrays, which nothing else uses before the round is over.
                unsafe { plan.run(used, &mut work, handle) }?;
            }
            if let Some(stream) = &stream {
                stream.wait(patience)?;
            }
            Ok(plans.iter().try_for_each(AnyPlan::check)?)
        };
        number(&arrays[0], &x, edge)?;
        round()?;
        self.numbered(&arrays[0], (&x, edge), size)?;
        if what == Exchange::Transpose {
            // The array that the last transpose read.
            self.numbered(&arrays[1], (&y, edge), size)?;
        }
        let (samples, warmup) = self.timed_together(size, |_| round())?;
        self.numbered(&arrays[0], (&x, edge), size)?;
        plans.into_iter().try_for_each(|plan| plan.give_up(&array))?;
        drop((work, array));
        team_heap.free()?;
        arrays.into_iter().try_for_each(SymSlice::free)?;
        let cube = Cube { edge, processes: grid.processes, sent: elements * ELEMENT };
        Ok((self.is_first().then(|| samples.latency(1.0, warmup)), cube))
    }

    /// Checks that all elements of a pencil, including its halo, have their numbers.
    fn numbered(&self, array: &SymSlice<u64>, (pencil, edge): (&Pencil, usize), size: usize) -> Result<()> {
        let found = array.to_vec()?;
        for (index, place) in places(pencil, edge).enumerate() {
            let expected = words(place);
            if let Some(word) = (0..WORDS).find(|&word| found[WORDS * index + word] != expected[word]) {
                let (found, expected) = (found[WORDS * index + word], expected[word]);
                let byte = ((found ^ expected).trailing_zeros() / 8) as usize;
                return Err(Error::WrongData {
                    test: self.test.name,
                    size,
                    pe: self.backend.pe(),
                    at: ELEMENT * index + size_of::<u64>() * word + byte,
                    found: found.to_le_bytes()[byte],
                    expected: expected.to_le_bytes()[byte],
                });
            }
        }
        Ok(())
    }
}

/// Sets all elements of a pencil, except its halo, to their numbers.
fn number(array: &SymSlice<u64>, pencil: &Pencil, edge: usize) -> Result<()> {
    let (shape, strides) = (pencil.shape(), pencil.strides());
    let own = |index: usize| {
        (0..3).all(|dim| {
            let (at, halo) = (index / strides[dim] % shape[dim], pencil.form.halo[dim]);
            (halo..shape[dim] - halo).contains(&at)
        })
    };
    let numbers =
        places(pencil, edge).enumerate().flat_map(|(index, place)| if own(index) { words(place) } else { [0; WORDS] });
    Ok(array.write_slice(0, &numbers.collect::<Vec<_>>())?)
}

/// The numbers of a pencil's elements in the whole array, in the order of memory. A halo beyond the array's end has the
/// elements of the array's other end.
fn places(pencil: &Pencil, edge: usize) -> impl Iterator<Item = usize> {
    let (pencil, shape, strides) = (*pencil, pencil.shape(), pencil.strides());
    (0..pencil.len()).map(move |index| {
        let at =
            |dim: usize| (pencil.from[dim] + index / strides[dim] % shape[dim] + edge - pencil.form.halo[dim]) % edge;
        at(0) + edge * (at(1) + edge * at(2))
    })
}

fn words(number: usize) -> [u64; WORDS] {
    [number as u64, !(number as u64)]
}
