//! Operations in the order of a stream, checked by the host of their target PE.

use symrail_kernels::cuda::on_stream::{Cmp, Copies, SignalUpdate};
use symrail_kernels::cuda::{DevicePtr, Transfer};

use crate::job::{Failure, Job};

/// The offset behind the memory of the kernels of `cu/verify.cu`.
const AT: u64 = 32 << 20;
const BYTES: usize = 300_000;
const ROUNDS: u64 = 20;

fn pattern(pe: u32, round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|i| (i * 7 + (i >> 8) * 13 + round * 101 + u64::from(pe) * 31) as u8).collect()
}

/// Runs all checks; returns `false` when one failed.
pub fn run(job: &Job<'_>) -> Result<bool, Failure> {
    let (me, n) = (job.me(), job.runtime.n_pes());
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    let (dest, source, signal) = (job.area + AT, job.area + AT + (2 << 20), job.area + AT + (4 << 20));
    let what = Transfer { dest, source, bytes: BYTES as u64 };
    let ops = &job.on_stream;
    let mut wrong = 0;
    let mut arrived = |round: u64| -> Result<(), Failure> {
        job.stream.wait(job.time_limit)?;
        job.state().check()?;
        let mut bytes = vec![0; BYTES];
        // SAFETY: inside of the area under test, which lives as long as the job.
        unsafe { job.gpu.read(DevicePtr::new(dest), &mut bytes) }?;
        let expected = pattern(left, round);
        if let Some(first) = (0..BYTES).find(|&at| bytes[at] != expected[at]) {
            let count = (0..BYTES).filter(|&at| bytes[at] != expected[at]).count();
            println!("PE {me}: on streams: round {round}: {count} wrong bytes, the first at {first}");
            wrong += 1;
        }
        // The next round's bytes must not arrive before these have been read.
        Ok(job.runtime.barrier_all()?)
    };
    // SAFETY: inside of the area under test, which lives as long as the job.
    unsafe { job.gpu.fill(DevicePtr::new(signal), 0, 64) }?;
    job.runtime.barrier_all()?;
    let by = [Copies::Auto, Copies::Kernel, Copies::Engine].map(|copies| job.on_stream.clone().with_copies(copies));
    for (round, ops) in (1..=ROUNDS).zip(by.iter().cycle()) {
        // SAFETY: inside of the area under test, which lives as long as the job.
        unsafe { job.gpu.write(DevicePtr::new(source), &pattern(me, round)) }?;
        // SAFETY: the heap's own memory, which stays.
        unsafe {
            if round % 2 == 0 {
                ops.put_signal(&job.stream, what, SignalUpdate::set(signal, round), right)?;
                ops.wait(&job.stream, signal, Cmp::Gt, round - 1)?;
            } else {
                ops.put(&job.stream, what, right)?;
                ops.signal(&job.stream, SignalUpdate::set(signal, round), right)?;
                ops.wait(&job.stream, signal, Cmp::Ge, round)?;
            }
        }
        arrived(round)?;
    }
    ops.signal(&job.stream, SignalUpdate::add(signal, 5), right)?;
    // SAFETY: as above.
    unsafe { ops.wait(&job.stream, signal, Cmp::Eq, ROUNDS + 5) }?;
    job.stream.wait(job.time_limit)?;
    let graph = job.stream.capture(|| {
        ops.barrier(&job.stream, None)?;
        // SAFETY: as above.
        unsafe {
            ops.wait(&job.stream, signal, Cmp::Eq, ROUNDS + 5)?;
            ops.put(&job.stream, what, right)?;
        }
        ops.quiet(&job.stream)?;
        ops.barrier(&job.stream, None)
    })?;
    for round in 100..103 {
        // SAFETY: inside of the area under test, which lives as long as the job.
        unsafe { job.gpu.write(DevicePtr::new(source), &pattern(me, round)) }?;
        // SAFETY: as above.
        unsafe { job.stream.replay(&graph) }?;
        arrived(round)?;
    }
    if wrong > 0 {
        println!("FAILED on PE {me}: on streams: wrong bytes in {wrong} rounds");
    }
    Ok(wrong == 0)
}
