//! The size of blocks above which copy engines are faster than multiprocessors, measured between the PEs of a team.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symrail::kernels::cuda::{DeviceBuffer, Stream};
use symrail::{Team, TeamHeap};

use crate::all_to_all::{GpuAllToAll, Span};
use crate::cuda::{GpuKernels, GpuMemory, GpuPlan};
use crate::error::{Error, Result};
use crate::measure::{MEASURING, seconds_of_a_round};
use crate::mode::Mode;
use crate::staging::Path;

/// Bytes of the elements that are measured.
const ELEMENT: usize = 16;
/// The number of warm-up rounds, and of timed rounds.
const ROUNDS: [u32; 2] = [3, 10];

/// The times of blocks of several sizes. It prints as a table.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Crossover {
    /// The times, the smallest blocks first; empty if no peers are mapped.
    pub sizes: Vec<BlockTime>,
}

/// The times of all-to-alls with one size of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BlockTime {
    /// Bytes of the block from each PE to each other one.
    pub bytes: usize,
    /// Seconds of a round by multiprocessors, on the slowest PE.
    pub multiprocessors: f64,
    /// Seconds of a round by copy engines, on the slowest PE.
    pub engines: f64,
}

impl Crossover {
    /// The size in bytes from which on copy engines were faster at all larger sizes; `None` if they were not at the
    /// largest.
    #[must_use]
    pub fn engines_from(&self) -> Option<usize> {
        let faster = self.sizes.iter().rev().take_while(|it| it.engines < it.multiprocessors);
        faster.last().map(|it| it.bytes)
    }

    /// Measures blocks of 4 KiB to `most` bytes, as far as the heap has space for them, with arrays in the GPU's memory
    /// that are not symmetric. Collective over the team; all its PEs get the same result.
    ///
    /// # Errors
    /// An error that names a peer that does not answer; an error of the driver.
    pub fn measure(kernels: &GpuKernels, heap: &TeamHeap, team: &Team, most: usize) -> Result<Crossover> {
        let group = team.group();
        let mut others = (0..group.size()).map(|rank| group.pe(rank)).filter(|&pe| pe != heap.runtime().my_pe());
        let mapped = others.any(|pe| GpuPlan::path(kernels, pe) == Path::Mapped);
        let mut agreed = [most as u64, u64::from(mapped)];
        team.max_of_all(&mut agreed)?;
        let [most, mapped] = agreed;
        let mut crossover = Crossover::default();
        let mut bytes = 4096;
        while mapped != 0 && bytes as u64 <= most {
            let time = |engines| seconds(kernels, heap, team, bytes, Mode { engines, ..Mode::default() });
            let both = time(None).and_then(|multiprocessors| Ok((multiprocessors, time(Some(0))?)));
            match both {
                // All PEs get this error, so that all stop here.
                Err(error) if error.is_full() => break,
                both => {
                    let (multiprocessors, engines) = both?;
                    crossover.sizes.push(BlockTime { bytes, multiprocessors, engines });
                }
            }
            bytes *= 4;
        }
        Ok(crossover)
    }
}

impl fmt::Display for Crossover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>12}  {:>20}  {:>17}", "block (bytes)", "multiprocessors (us)", "copy engines (us)")?;
        for it in &self.sizes {
            let [one, other] = [it.multiprocessors, it.engines].map(|seconds| seconds * 1e6);
            writeln!(f, "{:>13}  {one:>20.1}  {other:>17.1}", it.bytes)?;
        }
        Ok(())
    }
}

/// Seconds of an all-to-all with blocks of `bytes` bytes.
fn seconds(kernels: &GpuKernels, heap: &TeamHeap, team: &Team, bytes: usize, mode: Mode) -> Result<f64> {
    let (size, me) = (team.group().size() as usize, team.group().me() as usize);
    let count = bytes / ELEMENT;
    let span = |rank| Span { offset: rank * count, count: if rank == me { 0 } else { count } };
    let spans: Vec<Span> = (0..size).map(span).collect();
    let arrays = || {
        let gpu = kernels.device().gpu();
        Ok::<_, Error>((gpu.alloc(size * bytes)?, gpu.alloc(size * bytes)?, Stream::new(gpu)?))
    };
    let (input, output, stream) = team.all_or_none(MEASURING, arrays())?;
    let memory = |array: &DeviceBuffer| GpuMemory { at: array.at().get(), bytes: size * bytes };
    let limit = Duration::from_secs(2 * heap.runtime().settings().timeout_s);
    let mut it = GpuAllToAll::on_gpu(kernels, heap, team, ELEMENT, mode, &spans, &spans)?;
    let mut time = |rounds| {
        // SAFETY: the arrays are large enough, and stay valid until the rounds have ended.
        let post = |plan: &mut GpuPlan| unsafe { plan.post(&stream, memory(&input), memory(&output), &mut it.work) };
        let ends = |plan: &GpuPlan| (stream.wait(limit).map_err(Error::from), plan.check());
        seconds_of_a_round(team, rounds, &mut it.plan, post, ends)
    };
    let taken = time(ROUNDS[0]).and_then(|_| time(ROUNDS[1]));
    let freed = it.give_up_gpu(team);
    let taken = taken?;
    freed?;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_begin_where_they_stay_faster() {
        let of = |times: &[(f64, f64)]| {
            let sizes = times.iter().enumerate().map(|(i, &(multiprocessors, engines))| BlockTime {
                bytes: 4096 << (2 * i),
                multiprocessors,
                engines,
            });
            Crossover { sizes: sizes.collect() }.engines_from()
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(1.0, 2.0), (2.0, 1.0), (3.0, 3.5)]), None, "multiprocessors are faster in the end");
        assert_eq!(of(&[(2.0, 1.0), (2.0, 3.0), (4.0, 3.5), (9.0, 4.0)]), Some(4096 << 4), "one size was an exception");
        assert_eq!(of(&[(2.0, 1.0), (3.0, 1.0)]), Some(4096));
    }
}
