//! Limits of a process and of its container.

use std::path::PathBuf;

use indicatif::BinaryBytes;
use nix::sys::resource::Resource;
use symrail_transport::ofi;

use super::finding::Finding;
use super::{Host, limit};

/// Jobs of fewer PEs are common.
const COMMON_PES: u64 = 256;

pub fn judge(host: &Host<'_>) -> Vec<Finding> {
    let parts = [memlock(host), nofile(host), sizes(host), shm(), memory(host), cpus(host)];
    parts.into_iter().collect()
}

/// NICs that are not emulated by a CPU need the memory that they reach locked.
fn memlock(host: &Host<'_>) -> Finding {
    let heap = host.settings.heap_size as u64;
    match host.report.host.memlock_bytes {
        None => Finding::ok("memlock", "a process may lock any amount of memory"),
        Some(bytes) if host.rdma().is_empty() => {
            Finding::ok("memlock", format!("{}; no RDMA NIC needs more", BinaryBytes(bytes)))
        }
        Some(bytes) if bytes < heap => Finding::problem(
            "memlock",
            format!("a process may lock {}, and RDMA NICs lock a heap of {}", BinaryBytes(bytes), BinaryBytes(heap)),
            "ulimit -l unlimited (permanently: '* - memlock unlimited' in /etc/security/limits.conf, LimitMEMLOCK in \
             systemd, docker run --ulimit memlock=-1)",
        ),
        Some(bytes) => Finding::ok("memlock", format!("{}, more than a heap", BinaryBytes(bytes))),
    }
}

/// Connections over TCP take descriptors. The runtime raises the soft limit itself, up to the hard one.
fn nofile(host: &Host<'_>) -> Finding {
    let (_, hard) = limit(Resource::RLIMIT_NOFILE);
    match (host.report.chosen.most_pes, hard) {
        (Some(pes), Some(hard)) if pes < COMMON_PES => Finding::problem(
            "nofile",
            format!("a process may have {hard} file descriptors: connections to {pes} PEs"),
            "ulimit -Hn 1048576 as root (permanently: '* hard nofile 1048576' in /etc/security/limits.conf, \
             LimitNOFILE in systemd, docker run --ulimit nofile=1048576)",
        ),
        (Some(pes), Some(hard)) => Finding::ok("nofile", format!("{hard} descriptors: connections to {pes} PEs")),
        _ => Finding::ok("nofile", "connections take no descriptors, or there is no limit"),
    }
}

/// Heaps are memory files, and mapped by the PEs of their host.
fn sizes(host: &Host<'_>) -> Finding {
    let heap = host.settings.heap_size as u64;
    let (files, _) = limit(Resource::RLIMIT_FSIZE);
    let (addresses, _) = limit(Resource::RLIMIT_AS);
    match (files, addresses) {
        (Some(files), _) if files < heap => Finding::problem(
            "file size",
            format!("a file may have {}, and a heap is a memory file of {}", BinaryBytes(files), BinaryBytes(heap)),
            "ulimit -f unlimited",
        ),
        (_, Some(addresses)) => Finding::problem(
            "addresses",
            format!("a process may map {}; it maps the heaps of all PEs of its host", BinaryBytes(addresses)),
            "ulimit -v unlimited",
        ),
        _ => Finding::ok("sizes", "of files and of mapped memory are not limited below a heap's"),
    }
}

fn shm() -> Finding {
    ofi::shared_memory_shortage().map_or_else(
        || Finding::ok("/dev/shm", "has room for libfabric's provider shm; heaps need none"),
        |error| {
            let remedy = "mount -o remount,size=50% /dev/shm; docker run --shm-size=8g";
            Finding::hint("/dev/shm", format!("provider shm does not work: {error}"), remedy)
        },
    )
}

/// The folders of this process's control group and of those above it.
fn groups(host: &Host<'_>) -> Vec<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let root = host.sys.join("fs/cgroup");
    let up = std::path::Path::new(path).ancestors().map(|group| root.join(group)).collect::<Vec<_>>();
    up.into_iter().filter(|group| group.is_dir()).collect()
}

fn memory(host: &Host<'_>) -> Finding {
    let heap = host.settings.heap_size as u64;
    let of = |group: &PathBuf| std::fs::read_to_string(group.join("memory.max")).ok()?.trim().parse::<u64>().ok();
    match groups(host).iter().filter_map(of).min() {
        Some(bytes) if bytes < heap => Finding::problem(
            "container",
            format!("it may use {} of memory, and a heap takes {}", BinaryBytes(bytes), BinaryBytes(heap)),
            "raise the limit (docker run --memory=…, resources.limits.memory), or export SYMRAIL_HEAP_SIZE=…",
        ),
        Some(bytes) => {
            let pes = bytes / heap.max(1);
            Finding::ok("container", format!("may use {}: heaps of {pes} PEs", BinaryBytes(bytes)))
        }
        None => Finding::ok("container", "no limit of memory"),
    }
}

/// A proxy thread polls, and stands still when the group has used its share of time.
fn cpus(host: &Host<'_>) -> Finding {
    let of = |group: &PathBuf| {
        let text = std::fs::read_to_string(group.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    };
    let cores = groups(host).iter().filter_map(of).min_by(f64::total_cmp);
    match cores {
        Some(cores) => Finding::hint(
            "cpu quota",
            format!("processes may use the time of {cores:.1} cores, and stand still for the rest of each period"),
            "give whole cores instead: docker run --cpuset-cpus=0-7, or Kubernetes' static CPU policy",
        ),
        None => Finding::ok("cpu quota", format!("none; PEs may run on cores {}", host.report.host.allowed)),
    }
}
