//! Collectives on streams of GPUs, on a machine that has some: two PEs, each with its own GPU or both sharing one.

use symrail_cuda::Gpu;
use symrail_tests::job::Job;

fn run(what: &str, timeout: &str) -> Option<String> {
    if Gpu::count() == 0 {
        println!("SKIPPED: no CUDA driver or no GPU on this machine");
        return None;
    }
    let job = Job::new("gpu_collectives").args([what]).env("SYMRAIL_HEAP_KIND", "device");
    let job = job.env("SYMRAIL_HEAP_SIZE", "600M").env("SYMRAIL_LIBFABRIC_PROVIDER", "shm");
    Some(job.env("SYMRAIL_TIMEOUT_S", timeout).limit(300).succeed().out)
}

#[test]
fn everything() {
    if let Some(out) = run("all", "60") {
        assert!(out.contains("right"), "{out}");
    }
}

#[test]
fn memory_channels() {
    if let Some(out) = run("channels", "60") {
        assert!(out.contains("right"), "{out}");
    }
}

#[test]
fn a_pe_that_does_not_arrive_is_named() {
    if let Some(out) = run("late", "5") {
        assert!(out.contains("PE 1 is late or gone"), "{out}");
    }
}
