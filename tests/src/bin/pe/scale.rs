//! Joins a job of many PEs, goes around the ring, waits in a barrier, sends to all PEs, and leaves. Prints a line with
//! the cost: milliseconds, and resident KiB (without pages of files) before and after each part; and descriptors. With
//! the argument `connect` it connects to all PEs first. With `works` it does the works of simulated PEs instead, and
//! prints its requests to its rails for each work.
use std::time::Instant;

use symrail::{Cmp, Reduction, Runtime};
use symrail_tests::pe;
use symrail_tests::used::Used;
use tracing_subscriber::EnvFilter;

pub fn main() -> std::process::ExitCode {
    if let Ok(filter) = EnvFilter::try_from_env("SYMRAIL_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let mut report = Report { line: String::new(), last: Instant::now() };
    report.note("start");
    let rt = Runtime::init().expect("joining");
    report.line.insert_str(0, &format!("scale pe {}", rt.my_pe()));
    report.note("join");
    if pe::arg(0, String::new()) == "works" {
        works(&rt).expect("working");
    } else {
        work(&rt, &mut report).expect("working");
    }
    rt.finalize().expect("leaving");
    report.note("leave");
    println!("{}", report.line);
    std::process::ExitCode::SUCCESS
}

/// The measurements so far.
struct Report {
    line: String,
    last: Instant,
}

impl Report {
    /// Adds the time of a part, and the memory after it.
    fn note(&mut self, part: &str) {
        let (ms, used) = (self.last.elapsed().as_secs_f64() * 1e3, Used::now());
        self.line += &format!(" {part}_ms {ms:.1} {part}_kib {} {part}_fds {}", used.kib, used.fds);
        self.last = Instant::now();
    }
}

fn work(rt: &Runtime, report: &mut Report) -> symrail::Result<()> {
    let (me, n) = (rt.my_pe(), rt.n_pes());
    if pe::arg(0, String::new()) == "connect" {
        rt.connect_all()?;
        rt.barrier_all()?;
    }
    let words = rt.alloc_slice::<u64>(n as usize + 1)?;
    report.note("alloc");
    words.put(n as usize, &[1], pe::neighbour(rt, 1))?;
    rt.quiet()?;
    words.wait_until(n as usize, Cmp::Eq, 1)?;
    report.note("first");
    rt.barrier_all()?;
    report.note("ring");
    // Another PE may address this one before it has counted what it has.
    rt.barrier_all()?;
    for distance in 1..n {
        words.put(me as usize, &[u64::from(me) + 1], pe::neighbour(rt, distance))?;
    }
    rt.barrier_all()?;
    let got = words.to_vec()?;
    assert!((0..n).all(|pe| pe == me || got[pe as usize] == u64::from(pe) + 1), "PE {me}: words are missing");
    report.note("all");
    Ok(())
}

/// The works that `symrail perf scale` simulates, in that order.
fn works(rt: &Runtime) -> symrail::Result<()> {
    const PARTNERS: u32 = 64;
    let (me, n) = (rt.my_pe(), rt.n_pes());
    let words = rt.alloc_slice::<u64>(2 * n as usize + 3)?;
    let blocks = rt.alloc_slice::<u8>(2 << 20)?;
    let team = std::cell::OnceCell::new();
    let counted = |work: &str, perform: &dyn Fn() -> symrail::Result<()>| -> symrail::Result<()> {
        rt.barrier_all()?;
        let posted = || {
            let lanes = rt.counters();
            [0, 1, 2].map(|what| lanes.iter().map(|lane| [lane.writes, lane.reads, lane.requests][what]).sum::<u64>())
        };
        let before = posted();
        let begun = Instant::now();
        perform()?;
        let (micros, after) = (begun.elapsed().as_secs_f64() * 1e6, posted());
        let [writes, reads, requests] = [0, 1, 2].map(|what| after[what] - before[what]);
        println!("work {work} pe {me} writes {writes} reads {reads} requests {requests} us {micros:.1}");
        Ok(())
    };
    counted("Ring", &|| words.put(0, &[me.into()], pe::neighbour(rt, 1)).and_then(|()| rt.quiet()))?;
    let partners = PARTNERS.min(n - 1);
    counted("AllToAll(64)", &|| {
        for partner in 1..=partners {
            let to = pe::neighbour(rt, partner * (n / (partners + 1)).max(1));
            words.put(partner as usize, &[me.into()], to)?;
        }
        rt.quiet()
    })?;
    counted("Team", &|| rt.team_world().map(|made| drop(team.set(made))))?;
    let team = team.get().expect("a team");
    for _ in 0..2 {
        counted("Barrier", &|| rt.barrier_all())?;
    }
    let (sum, parts) = (words.as_ptr(), words.as_ptr().wrapping_add(1));
    for _ in 0..2 {
        // SAFETY: both words are in this PE's block, and no PE writes to them meanwhile.
        counted("Sum", &|| unsafe { team.reduce(sum.cast(), parts.cast(), 1, Reduction::sum::<u64>()) })?;
    }
    let (received, sent) = (blocks.as_ptr(), blocks.as_ptr().wrapping_add(1 << 20));
    for _ in 0..2 {
        // SAFETY: both halves are in this PE's block, and no PE writes to them meanwhile.
        counted("Broadcast(1048576)", &|| unsafe { team.broadcast(received, sent, 1 << 20, 0) })?;
    }
    rt.barrier_all()
}
