//! `symrail tune`: measures the algorithms of device collectives on this machine, and writes the best ones as a table
//! that all PEs use (`symrail_collectives::tuning`).
//!
//! Without a launcher it starts its own PEs, which run this program with the same arguments.

mod calls;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use symrail::bootstrap;
use symrail::{Runtime, Settings};
use symrail_collectives::plan::Collective;
use symrail_collectives::tuning::{Row, Table, Way};
use symrail_kernels::cuda::Gpu;
use symrail_transport::env::HeapKind;

use crate::print;
use crate::run::{self, Job};
use calls::{Calls, Cpu, Cuda};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Arguments of `symrail tune`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many PEs to start, unless a launcher has
    #[arg(short = 'n', value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    n: u32,
    /// Let the PEs believe that they are on H hosts
    #[arg(long, value_name = "H", default_value_t = 1)]
    hosts: u32,
    /// Who carries the collectives out
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
    /// The smallest message, in bytes or with K, M, G
    #[arg(short = 'b', value_name = "MIN", default_value = "1K", value_parser = crate::perf::size)]
    min: usize,
    /// The largest message
    #[arg(short = 'e', value_name = "MAX", default_value = "1M", value_parser = crate::perf::size)]
    max: usize,
    /// Calls of every size and way
    #[arg(short = 'i', value_name = "ITERS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Where the table goes; a file of the folder tuned in SYMRAIL_CACHE_DIR if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The device that carries out the collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Device {
    /// Threads of the CPU device
    Cpu,
    /// GPUs' kernels
    Cuda,
}

const COLLECTIVES: [(&str, Collective); 6] = [
    ("allreduce", Collective::AllReduce),
    ("allgather", Collective::AllGather),
    ("reducescatter", Collective::ReduceScatter),
    ("alltoall", Collective::AllToAll),
    ("broadcast", Collective::Broadcast),
    ("reduce", Collective::Reduce),
];
/// Calls before the timed ones.
const WARMUP: u32 = 2;
/// Larger messages do not use packets, which need more memory than there may be.
const PACKETS: usize = 1 << 20;

/// Runs `symrail tune` and returns its exit code; `again` is the same command line.
pub fn main(args: &Args, again: &[OsString]) -> i32 {
    perform(args, again).unwrap_or_else(|error| {
        print::error("symrail tune", &error);
        1
    })
}

fn perform(args: &Args, again: &[OsString]) -> Result<i32> {
    let settings = Settings::from_env()?;
    if args.min > args.max {
        return Err(format!("-b {} is more than -e {}", args.min, args.max).into());
    }
    if args.out.is_none() && settings.cache_dir.is_none() {
        return Err("nowhere to write the table: name a file by --out, or a folder by SYMRAIL_CACHE_DIR".into());
    }
    if args.device == Device::Cuda && !Gpu::has_driver() {
        return Err("--device cuda: this machine has no CUDA driver; use cpu".into());
    }
    if bootstrap::is_pe() {
        return session(args, settings).map(|()| 0);
    }
    let (program, rest) = again.split_first().ok_or("this program does not know its own name")?;
    let (program, args_of_pes) = (program.clone(), rest.to_vec());
    let job = Job { program, args: args_of_pes, n: args.n, hosts: Some(args.hosts), ..Job::default() };
    Ok(run::launch(&job)?)
}

/// One PE.
fn session(args: &Args, mut settings: Settings) -> Result<()> {
    // Neither users' plans nor earlier tables are measured.
    let cache = settings.cache_dir.take();
    settings.tuning = Some("off".into());
    if args.device == Device::Cuda && !Settings::is_set("SYMRAIL_HEAP_KIND") {
        settings.heap_kind = HeapKind::Device;
    }
    let bootstrap = bootstrap::open(&settings)?;
    let runtime = Runtime::join(settings, bootstrap)?;
    // Whole elements for each PE.
    let unit = 4 * runtime.n_pes() as usize;
    let up = |bytes: usize| bytes.next_multiple_of(unit);
    let mut sizes: Vec<usize> = std::iter::successors(Some(args.min), |size| size.checked_mul(4))
        .take_while(|&size| size < args.max)
        .map(up)
        .collect();
    sizes.push(up(args.max));
    let table = match args.device {
        Device::Cpu => tune(&runtime, &sizes, args.iterations, || Cpu::new(&runtime, up(args.max)))?,
        Device::Cuda => {
            let gpu = runtime.own_gpu()?;
            let device = runtime.gpu_device(&gpu)?;
            let table = tune(&runtime, &sizes, args.iterations, || Cuda::new(&runtime, &device, up(args.max)))?;
            device.close()?;
            table
        }
    };
    if runtime.my_pe() == 0 {
        let in_cache = cache.map(|cache| Table::file(&cache, &table.device, table.pes, table.hosts));
        let file = args.out.clone().or(in_cache).ok_or("nowhere to write the table")?;
        write(&file, &table).map_err(|reason| format!("{}: {reason}", file.display()))?;
        let rows =
            table.rows.iter().map(|row| format!("{row}: {} with {} blocks\n", row.way.algorithm, row.way.blocks));
        print::out(&format!("{}table {}\n", rows.collect::<String>(), file.display()))?;
    }
    Ok(runtime.finalize()?)
}

/// Measures all algorithms of all collectives, with a separate communicator for each. Collective; all PEs get the same
/// table.
fn tune<C: Calls>(runtime: &Runtime, sizes: &[usize], iterations: u32, new: impl Fn() -> Result<C>) -> Result<Table> {
    let (mut all, mut rows) = (new()?, Vec::new());
    for (name, collective) in &COLLECTIVES {
        let mut best: Vec<Option<(f64, Way)>> = vec![None; sizes.len()];
        for way in all.selection().ways(collective) {
            let mut calls = new()?;
            let row = Row { collective: (*name).into(), up_to: None, way: way.clone(), microseconds: None };
            let table = calls.selection().table(vec![row]);
            calls.selection().tune(table)?;
            for (best, &size) in best.iter_mut().zip(sizes) {
                if is_for_small(&way) && size > PACKETS {
                    continue;
                }
                let time = timed(runtime, &mut calls, collective, size, iterations)?;
                if best.as_ref().is_none_or(|(least, _)| time < *least) {
                    *best = Some((time, way.clone()));
                }
            }
            calls.free()?;
        }
        rows.extend(rows_of(name, sizes, best));
    }
    let table = all.selection().table(rows);
    all.free()?;
    Ok(table)
}

/// Microseconds of a call, on the PE that took longest.
fn timed(runtime: &Runtime, calls: &mut impl Calls, what: &Collective, size: usize, iterations: u32) -> Result<f64> {
    for _ in 0..WARMUP {
        calls.call(what, size)?;
    }
    calls.end()?;
    runtime.barrier_all()?;
    let begun = Instant::now();
    for _ in 0..iterations {
        calls.call(what, size)?;
    }
    calls.end()?;
    let mut time = [begun.elapsed().as_nanos() as u64];
    runtime.team_world()?.max_of_all(&mut time)?;
    Ok(time[0] as f64 / 1e3 / f64::from(iterations))
}

/// A row for each algorithm that is the best of successive sizes; a size's row goes half way to the next size, which is
/// four times as large.
fn rows_of(collective: &str, sizes: &[usize], best: Vec<Option<(f64, Way)>>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (&size, (time, way)) in sizes.iter().zip(best).filter_map(|(size, best)| Some((size, best?))) {
        let row = Row { collective: collective.into(), up_to: Some(2 * size as u64), way, microseconds: Some(time) };
        match rows.last_mut().filter(|last| last.way == row.way) {
            Some(last) => *last = row,
            None => rows.push(row),
        }
    }
    if let Some(last) = rows.last_mut().filter(|last| !is_for_small(&last.way)) {
        last.up_to = None;
    }
    rows
}

/// Whether it needs several times the memory of a message.
fn is_for_small(way: &Way) -> bool {
    matches!(way.algorithm.as_str(), "packets" | "one_shot" | "two_phase")
}

/// Writes the file so that it is either complete or absent.
fn write(file: &Path, table: &Table) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_string_pretty(table)? + "\n")?;
    Ok(std::fs::rename(new, file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_one_way_are_one_row() {
        let best = |time, algorithm: &str| Some((time, Way { algorithm: algorithm.into(), blocks: 1, chunk: None }));
        let rows = rows_of("allreduce", &[1, 4, 16, 64], vec![best(1.0, "a"), best(2.0, "a"), best(3.0, "b"), None]);
        let seen: Vec<_> = rows.iter().map(|row| (row.way.algorithm.as_str(), row.up_to, row.microseconds)).collect();
        assert_eq!(seen, [("a", Some(8), Some(2.0)), ("b", None, Some(3.0))]);
    }

    #[test]
    fn ways_that_need_much_memory_are_not_for_larger_messages_than_were_measured() {
        let up_to = |algorithm: &str| {
            let way = Way { algorithm: algorithm.into(), blocks: 1, chunk: None };
            rows_of("allreduce", &[1, 4], vec![Some((1.0, way.clone())), Some((2.0, way))])[0].up_to
        };
        assert_eq!(["packets", "one_shot", "two_phase", "direct"].map(up_to), [Some(8), Some(8), Some(8), None]);
    }
}
