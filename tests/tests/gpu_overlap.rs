//! Products of tensor-parallel layers on GPUs, on a machine that has some: two PEs, each with its own GPU or both
//! sharing one. Peers' memory is mapped, or only the proxy reaches it.
#![allow(clippy::unwrap_used)]

use symrail_cuda::Gpu;
use symrail_tests::job::Job;

/// The path between PEs: a name, variables, and the number of hosts.
type Way = (&'static str, &'static [(&'static str, &'static str)], u32);

const WAYS: [Way; 3] = [
    ("device heap, mapped", &[("SYMRAIL_HEAP_KIND", "device")], 1),
    ("pinned heap, proxy", &[("SYMRAIL_HEAP_KIND", "pinned"), ("SYMRAIL_DISABLE_P2P", "1")], 1),
    ("device heap, staged", &[("SYMRAIL_HEAP_KIND", "device")], 2),
];

fn run(what: &str, timeout: &str) {
    if Gpu::count() == 0 {
        println!("SKIPPED: no CUDA driver or no GPU on this machine");
        return;
    }
    for (name, variables, hosts) in WAYS {
        let job = Job::new("gpu_overlap").args([what]).hosts(hosts).env("SYMRAIL_HEAP_SIZE", "600M");
        let job = job.env("SYMRAIL_LIBFABRIC_PROVIDER", "shm").env("SYMRAIL_TIMEOUT_S", timeout);
        let job = job.env("CUDA_DEVICE_MAX_CONNECTIONS", "32").env("CUDA_MODULE_LOADING", "EAGER");
        let out = variables.iter().fold(job, |job, (name, value)| job.env(name, value)).limit(300).succeed().out;
        assert!(out.contains(&format!("well: {what}")), "{name}: {out}");
    }
}

#[test]
fn all_types_shapes_and_schedules_give_exact_sums_with_delays_too() {
    run("right", "60");
}

#[test]
fn all_schedules_give_the_bits_of_the_unfused_form() {
    run("bits", "60");
}

#[test]
fn rounds_are_replayed_from_graphs() {
    run("graph", "60");
}

#[test]
fn a_pe_that_does_not_arrive_is_named() {
    run("late", "5");
}
