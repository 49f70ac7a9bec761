//! Checks by kernels: all PEs check each other's work.

use symrail::Group;
use symrail_kernels::cuda::{DevicePtr, Shape};

use crate::job::{Failure, Job};

/// The names of the checks of `cu/verify.cu`, by number.
pub const CHECKS: [&str; 17] = [
    "p of 1, 4, 8 bytes",
    "g of 1, 4, 8 bytes",
    "put by a thread, odd sizes and addresses",
    "put by a block",
    "put by a warp, nbi",
    "get by a block, get nbi",
    "put_signal by block and thread, set and add",
    "fetch_add by all threads: values",
    "add, inc, or, xor, float add by all threads",
    "swap, compare_swap, fetch_and, set, fetch",
    "fence keeps data before a flag",
    "symrail_ptr",
    "many blocks, rings wrap",
    "wrong addresses and PEs",
    "waits that end",
    "teams",
    "copies of all sizes: put, get, put_signal, fence",
];
const ROUNDS: u64 = 200;
const LAPS: u64 = 2;
const THREADS: u32 = 128;

/// Runs all checks; returns `false` when one failed.
pub fn run(job: &Job<'_>) -> Result<bool, Failure> {
    let report = job.gpu.alloc(CHECKS.len() * 8)?;
    let [verify, stress, check] = ["verify", "stress", "stress_check"].map(|name| job.verify.kernel(name));
    let (verify, stress, check) = (verify?, stress?, check?);
    let shape = Shape { blocks: 1, threads: THREADS };
    let many = Shape { blocks: 8, threads: 256 };
    // SAFETY: the kernels' arguments, as `cu/verify.cu` declares them; the buffers outlive the kernels.
    unsafe {
        job.stream.launch(&verify, shape, &[job.area, report.at().get(), ROUNDS])?;
        job.stream.wait(job.time_limit)?;
        job.state().check()?;
        job.runtime.barrier_all()?;
        job.stream.launch(&stress, many, &[job.area, LAPS])?;
        job.stream.wait(job.time_limit)?;
        job.state().check()?;
        job.runtime.barrier_all()?;
        job.stream.launch(&check, many, &[job.area, report.at().get(), LAPS])?;
        job.stream.wait(job.time_limit)?;
    }
    teams(job, report.at())?;
    let mut good = print(job, report.at())?;
    good &= errors_are_told(job)?;
    job.runtime.barrier_all()?;
    Ok(good)
}

/// Prints the counts of the report on the GPU; returns `false` when a check failed.
pub fn print(job: &Job<'_>, report: DevicePtr) -> Result<bool, Failure> {
    let mut bytes = vec![0; CHECKS.len() * 8];
    // SAFETY: inside of the area under test, which lives as long as the job.
    unsafe { job.gpu.read(report, &mut bytes) }?;
    let mut good = true;
    for (what, count) in CHECKS.iter().zip(bytes.chunks(8)) {
        let count = count.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        if count > 0 {
            println!("FAILED on PE {}: {what}: {count} times", job.me());
            good = false;
        }
    }
    Ok(good)
}

/// A team of all PEs, one in the reverse order, and teams of every second one, each in the memory of the last.
fn teams(job: &Job<'_>, report: DevicePtr) -> Result<(), Failure> {
    let kernel = job.verify.kernel("teams")?;
    let n = i64::from(job.runtime.n_pes());
    let teams = [(0, 1, n, 1), (n - 1, -1, n, 1000), (0, 2, (n + 1) / 2, 2000), (1, 2, n / 2, 2000)];
    for (start, stride, size, first) in teams {
        let group = Group::new(start, stride, size, job.me(), n as u32);
        let Some(team) = job.world.split(group)? else { continue };
        let for_kernels = job.device.team(&team)?;
        // SAFETY: the arguments that `cu/verify.cu` declares; the team lives until the kernel has ended.
        unsafe {
            job.stream.launch(
                &kernel,
                Shape { blocks: 1, threads: THREADS },
                &[job.area, report.get(), for_kernels.handle(), first, ROUNDS],
            )?;
        }
        job.stream.wait(job.time_limit)?;
        job.state().check()?;
        drop(for_kernels);
        team.destroy()?;
    }
    Ok(())
}

/// Wrong addresses and PEs, and endless waits, are reported as errors, and the device continues to work.
fn errors_are_told(job: &Job<'_>) -> Result<bool, Failure> {
    let outside = job.gpu.alloc(64)?;
    let mut good = true;
    let one = Shape { blocks: 1, threads: 1 };
    for (name, argument, expected) in
        [("wrong_address", outside.at().get(), "in no symmetric heap"), ("wrong_pe", job.area, "no such PE")]
    {
        let kernel = job.verify.kernel(name)?;
        // SAFETY: its argument is one address, which the kernel must not access.
        unsafe { job.stream.launch(&kernel, one, &[argument]) }?;
        job.stream.wait(job.time_limit)?;
        let found = job.state().check();
        if !found.as_ref().is_err_and(|error| error.to_string().contains(expected)) {
            println!("FAILED on PE {}: {name} reported {found:?}", job.me());
            good = false;
        }
    }
    Ok(good)
}
