//! Joins a job of many PEs, goes around the ring, waits in a barrier, sends to everybody, and leaves. Prints a line with what that
//! took: milliseconds, and resident KiB (without pages of files) before and after each part; and descriptors. With the
//! argument `connect` it connects to everybody first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Instant;

use symrail::{Cmp, Runtime};
use symrail_tests::pe;
use symrail_tests::used::Used;
use tracing_subscriber::EnvFilter;

fn main() -> std::process::ExitCode {
    if let Ok(filter) = EnvFilter::try_from_env("SYMRAIL_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let mut report = Report { line: String::new(), last: Instant::now() };
    report.note("start");
    let rt = Runtime::init().expect("joining");
    report.line.insert_str(0, &format!("scale pe {}", rt.my_pe()));
    report.note("join");
    work(&rt, &mut report).expect("working");
    rt.finalize().expect("leaving");
    report.note("leave");
    println!("{}", report.line);
    std::process::ExitCode::SUCCESS
}

/// What has been noted so far.
struct Report {
    line: String,
    last: Instant,
}

impl Report {
    /// Adds what a part took, and the memory after it.
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
    for distance in 1..n {
        words.put(me as usize, &[u64::from(me) + 1], pe::neighbour(rt, distance))?;
    }
    rt.barrier_all()?;
    let got = words.to_vec();
    assert!((0..n).all(|pe| pe == me || got[pe as usize] == u64::from(pe) + 1), "PE {me}: words are missing");
    report.note("all");
    Ok(())
}
