//! Access of PEs to one another's memory, NUMA, huge pages, settings.

use std::fs::File;
use std::process::{Command, Stdio};

use super::Host;
use super::finding::Finding;

pub fn judge(host: &Host<'_>) -> Vec<Finding> {
    let mut findings = vec![mapping(), cross_memory()];
    findings.extend(namespaces());
    findings.extend(balancing(host));
    findings.push(huge_pages(host));
    findings.extend(host.report.unknown.iter().chain(&host.report.chosen.ignored).map(|warning| {
        let name = warning.split(['=', ' ']).next().unwrap_or_default();
        Finding::hint("setting", warning.as_str(), format!("unset {name}"))
    }));
    findings
}

/// PEs of one host map one another's heaps by the descriptors of the other under `/proc`. This does the same with a
/// child.
fn mapping() -> Finding {
    let Ok(mut child) = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn() else {
        return Finding::ok("mapping", "not tried: there is no program cat");
    };
    let opened = File::open(format!("/proc/{}/fd/0", child.id()));
    // The end of its input ends it.
    drop(child.stdin.take());
    let _ = child.wait();
    match opened {
        Ok(_) => Finding::ok("mapping", "PEs of this host can map one another's heaps (/proc/PID/fd)"),
        Err(error) => Finding::problem(
            "mapping",
            format!("PEs of this host cannot map one another's heaps (/proc/PID/fd: {error}); they use rails instead"),
            "mount /proc, and allow it in the container's security profile",
        ),
    }
}

/// libfabric's provider shm copies large messages once if it may access the other process by `process_vm_writev`.
fn cross_memory() -> Finding {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => Finding::ok("ptrace", "processes of a user may access one another (provider shm copies once)"),
        scope => Finding::hint(
            "ptrace",
            format!(
                "kernel.yama.ptrace_scope is {scope}: libfabric's provider shm copies twice; heaps are mapped anyway"
            ),
            "sysctl kernel.yama.ptrace_scope=0",
        ),
    }
}

/// PEs in different containers have different process numbers.
fn namespaces() -> Option<Finding> {
    let inside = ["/.dockerenv", "/run/.containerenv"].iter().any(|file| std::path::Path::new(file).exists());
    inside.then(|| {
        Finding::hint(
            "container",
            "PEs of one host in different containers do not map one another's heaps",
            "run all PEs of a host in one container, or start the containers with --pid=host --ipc=host",
        )
    })
}

fn balancing(host: &Host<'_>) -> Option<Finding> {
    let nodes = host.report.host.numa_nodes.len();
    let active = std::fs::read_to_string("/proc/sys/kernel/numa_balancing").is_ok_and(|text| text.trim() != "0");
    (nodes > 1 && active).then(|| {
        let found = "the kernel moves pages between NUMA nodes (kernel.numa_balancing), which stops threads for faults";
        Finding::hint("NUMA", found, "sysctl kernel.numa_balancing=0")
    })
}

/// Heaps request huge pages, which shared memory gets where the administrator allows it.
fn huge_pages(host: &Host<'_>) -> Finding {
    let file = "kernel/mm/transparent_hugepage/shmem_enabled";
    match host.read(file) {
        Some(text) if text.contains("[never]") || text.contains("[deny]") => Finding::hint(
            "huge pages",
            "heaps get none: page tables of large heaps take time and memory",
            format!("echo advise > /sys/{file}"),
        ),
        Some(_) => Finding::ok("huge pages", "heaps get them"),
        None => Finding::ok("huge pages", "the kernel does not say whether heaps get them"),
    }
}
