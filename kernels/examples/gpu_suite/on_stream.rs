//! Operations in the order of a stream, checked by the host of their target PE.

use symrail_kernels::cuda::on_stream::{Cmp, Copies, SignalUpdate};
use symrail_kernels::cuda::{DevicePtr, Error, Transfer};

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
    let by = [Copies::Kernel, Copies::Engine].map(|copies| job.on_stream.clone().with_copies(copies));
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
    Ok(wrong == 0 && behind_a_failure(job)?)
}

/// What stands behind a failure does nothing, also in a graph that was captured before; what is enqueued when the
/// failure was returned goes on.
fn behind_a_failure(job: &Job<'_>) -> Result<bool, Failure> {
    let (me, n, ops) = (job.me(), job.runtime.n_pes(), &job.on_stream);
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    let (dest, source, signal) = (job.area + AT, job.area + AT + (2 << 20), job.area + AT + (4 << 20));
    let (large, small) = (Transfer { dest, source, bytes: BYTES as u64 }, Transfer { dest, source, bytes: 64 });
    // SAFETY: inside of the area under test, which lives as long as the job.
    unsafe {
        job.gpu.fill(DevicePtr::new(dest), 0, BYTES)?;
        job.gpu.fill(DevicePtr::new(signal), 0, 64)?;
        job.gpu.write(DevicePtr::new(source), &pattern(me, 7))?;
    }
    job.runtime.barrier_all()?;
    let work = || {
        // SAFETY: as above.
        unsafe {
            ops.put(&job.stream, large, right)?;
            ops.put_signal(&job.stream, large, SignalUpdate::add(signal, 1), right)?;
            ops.put_signal(&job.stream, small, SignalUpdate::add(signal, 1), right)?;
        }
        ops.signal(&job.stream, SignalUpdate::add(signal, 1), right)?;
        ops.barrier(&job.stream, None)
    };
    // What the peer's puts have changed here: bytes, and signals.
    let changed = || -> Result<(Vec<u8>, u64), Failure> {
        job.runtime.barrier_all()?;
        let (mut bytes, mut word) = (vec![0; BYTES], [0; 8]);
        // SAFETY: as above.
        unsafe {
            job.gpu.read(DevicePtr::new(dest), &mut bytes)?;
            job.gpu.read(DevicePtr::new(signal), &mut word)?;
        }
        job.runtime.barrier_all()?;
        Ok((bytes, u64::from_le_bytes(word)))
    };
    let mut good = true;
    let mut expect = |holds: bool, what: &str| {
        if !holds {
            println!("FAILED on PE {me}: on streams: {what}");
            good = false;
        }
    };
    let graph = job.stream.capture(work)?;
    // An address in no heap.
    ops.signal(&job.stream, SignalUpdate::set(64, 1), right)?;
    work()?;
    job.stream.wait(job.time_limit)?;
    let failed = |text: &str| matches!(job.state().check(), Err(Error::Kernel { why, .. }) if why.contains(text));
    expect(failed("no symmetric heap"), "a signal to an address in no heap is an error");
    // SAFETY: as above.
    unsafe { job.stream.replay(&graph) }?;
    job.stream.wait(job.time_limit)?;
    expect(failed("left out"), "a graph that was captured before a failure is an error");
    expect(changed()? == (vec![0; BYTES], 0), "bytes or signals behind a failure");
    work()?;
    job.stream.wait(job.time_limit)?;
    job.state().check()?;
    expect(changed()? == (pattern(left, 7), 3), "what is enqueued when a failure was returned");
    Ok(good)
}
