//! `symrail doctor` as a user runs it: limits, a machine that is described by files, a CUDA driver that is made up.

#![allow(clippy::panic, clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Runs `symrail doctor`, after shell commands that set limits, with only these variables set.
fn doctor(limits: &str, args: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new("sh");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SYMRAIL_")) {
        command.env_remove(name);
    }
    let line = format!("{limits}\nexec {} doctor {args}", env!("CARGO_BIN_EXE_symrail"));
    command.args(["-c", &line]).envs(env.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The findings, after a check that number of problems and exit code agree with them.
fn findings(limits: &str, env: &[(&str, &str)]) -> Vec<Value> {
    let output = doctor(limits, "--json", env);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let findings = report["findings"].as_array().unwrap().clone();
    let problems = findings.iter().filter(|finding| finding["state"] == "problem").count();
    assert_eq!(report["problems"], problems, "{report}");
    assert_eq!(output.status.code(), Some(i32::from(problems > 0)), "{report}");
    for finding in &findings {
        let is_ok = finding["state"] == "ok";
        assert_eq!(finding["remedy"].is_null(), is_ok, "a remedy where something is to be done: {finding}");
        assert!(!finding["found"].as_str().unwrap().is_empty(), "{finding}");
    }
    findings
}

/// The states of all findings about a subject, with the texts of those that match.
#[track_caller]
fn one<'a>(findings: &'a [Value], subject: &str, state: &str, words: &str) -> &'a Value {
    let said = |finding: &&Value| finding["found"].as_str().unwrap().contains(words);
    let mut found = findings.iter().filter(|finding| finding["subject"] == subject && finding["state"] == state);
    found.find(said).unwrap_or_else(|| panic!("no {state} of {subject} with {words:?}: {findings:#?}"))
}

const NO_LIBRARIES: [(&str, &str); 2] =
    [("SYMRAIL_LIBFABRIC_SO", "/nonexistent/libfabric.so"), ("SYMRAIL_IBV_SO", "/nonexistent/libibverbs.so")];

/// A folder that describes a machine.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    /// The machine with two packages, of which each NUMA node has a GPU and a NIC.
    fn two_sockets() -> Folder {
        let folder = Folder::new();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../transport/src/topology/testdata/two-sockets.sh");
        assert!(Command::new("sh").arg(script).arg(folder.0.path()).status().unwrap().success());
        folder
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

#[test]
fn without_libfabric_the_command_that_installs_it_is_named() {
    let found = findings("", &NO_LIBRARIES);
    let missing = one(&found, "library", "problem", "/nonexistent/libfabric.so");
    assert!(missing["remedy"].as_str().unwrap().contains("SYMRAIL_LIBFABRIC_SO"), "{missing}");
    one(&found, "rails", "problem", "there are none");
    let page = doctor("", "", &NO_LIBRARIES);
    assert_eq!(page.status.code(), Some(1));
    let page = text(&page.stdout);
    assert!(page.contains("PROBLEM  library") && page.contains("-> "), "{page}");
}

#[test]
fn limits_of_the_process_are_found() {
    let machine = Folder::two_sockets();
    let env = [NO_LIBRARIES[0], NO_LIBRARIES[1], ("SYMRAIL_SYSFS", machine.path())];
    let found = findings("ulimit -l 64; ulimit -f 64; ulimit -v 8000000", &env);
    let memlock = one(&found, "memlock", "problem", "64.00 KiB, and RDMA NICs lock a heap of 512.00 MiB");
    assert!(memlock["remedy"].as_str().unwrap().starts_with("ulimit -l unlimited"), "{memlock}");
    one(&found, "file size", "problem", "a heap is a memory file of 512.00 MiB");
    let found = findings("ulimit -v 8000000", &env);
    one(&found, "addresses", "problem", "7.63 GiB");
    // Without an RDMA NIC no memory is locked.
    let plain = Folder::new();
    let found = findings("ulimit -l 64", &[NO_LIBRARIES[0], NO_LIBRARIES[1], ("SYMRAIL_SYSFS", plain.path())]);
    one(&found, "memlock", "ok", "no RDMA NIC needs more");
}

#[test]
fn few_descriptors_are_as_many_pes() {
    let env = [
        ("SYMRAIL_TRANSPORT", "libfabric"),
        ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
        ("SYMRAIL_NIC_LIST", "127.0.0.2,127.0.0.3"),
    ];
    let found = findings("ulimit -n 256", &env);
    if found
        .iter()
        .any(|finding| finding["subject"] == "library" && finding["found"].as_str().unwrap().starts_with("libfabric: "))
    {
        println!("SKIPPED: no libfabric");
        return;
    }
    // Of 256 descriptors 64 are the program's and 64 those of two endpoints' rails; a PE takes 6.
    one(&found, "nofile", "problem", "256 file descriptors: connections to 21 PEs");
    one(&found, "rails", "hint", "127.0.0.2, 127.0.0.3: the loopback interface only");
}

#[test]
fn a_container_s_limits_are_found() {
    let machine = Folder::new();
    machine.write("fs/cgroup/memory.max", "104857600\n");
    machine.write("fs/cgroup/cpu.max", "150000 100000\n");
    machine.write("kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n");
    let env = [NO_LIBRARIES[0], NO_LIBRARIES[1], ("SYMRAIL_SYSFS", machine.path())];
    let found = findings("", &env);
    one(&found, "container", "problem", "100.00 MiB of memory, and a heap takes 512.00 MiB");
    one(&found, "cpu quota", "hint", "1.5 cores");
    one(&found, "huge pages", "hint", "heaps get none");
    machine.write("fs/cgroup/memory.max", "max\n");
    machine.write("fs/cgroup/cpu.max", "max 100000\n");
    let found = findings("", &[env[0], env[1], env[2], ("SYMRAIL_HEAPSIZE", "1G")]);
    one(&found, "container", "ok", "no limit of memory");
    one(&found, "cpu quota", "ok", "none");
    let setting = one(&found, "setting", "hint", "SYMRAIL_HEAPSIZE");
    assert_eq!(setting["remedy"], "unset SYMRAIL_HEAPSIZE");
}

#[test]
fn hardware_without_its_library_is_a_problem() {
    let machine = Folder::two_sockets();
    let gpu = "devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/vendor";
    machine.write(gpu, "0x10de\n");
    let found = findings("", &[NO_LIBRARIES[0], NO_LIBRARIES[1], ("SYMRAIL_SYSFS", machine.path())]);
    let verbs = one(&found, "library", "problem", "/nonexistent/libibverbs.so");
    assert!(verbs["found"].as_str().unwrap().contains("needed for mlx5_0, mlx5_1, mlx5_2, mlx5_3"), "{verbs}");
    one(&found, "RDMA", "problem", "mlx5_0, mlx5_1, mlx5_2, mlx5_3 is there, and rails do not use it");
    if found.iter().any(|finding| finding["found"].as_str().unwrap().starts_with("CUDA driver")) {
        println!("SKIPPED: a machine with NVIDIA's driver");
        return;
    }
    one(&found, "library", "problem", "needed for the GPU at PCI 0000:03:00.0");
}

/// A CUDA driver with three GPUs. The last one reaches no other, and none exports a dmabuf.
const DRIVER: &str = r#"
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int room, int device) { strncpy(name, "Paper GPU", room); return 0; }
int cuDeviceGetPCIBusId(char *pci, int room, int device) { strncpy(pci, "0000:43:00.0", room); return 0; }
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 1ul << 34; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = 0; return 0; }
int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != 2 && peer != 2; return 0; }
"#;

fn driver(folder: &Path) -> bool {
    std::fs::write(folder.join("driver.c"), DRIVER).unwrap();
    let cc = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o", "libcuda.so.1", "driver.c"])
        .current_dir(folder)
        .status();
    cc.is_ok_and(|status| status.success())
}

#[test]
fn gpus_that_do_not_reach_one_another_or_nics_are_found() {
    let machine = Folder::two_sockets();
    machine.write("kernel/iommu_groups/0/type", "identity\n");
    machine.write("kernel/iommu_groups/1/type", "DMA-FQ\n");
    if !driver(machine.0.path()) {
        println!("SKIPPED: no C compiler (cc)");
        return;
    }
    let env =
        [NO_LIBRARIES[0], NO_LIBRARIES[1], ("SYMRAIL_SYSFS", machine.path()), ("LD_LIBRARY_PATH", machine.path())];
    let found = findings("", &env);
    one(&found, "GPU", "problem", "GPU 0 cannot map the memory of GPU 2: ");
    one(&found, "GPU", "problem", "GPU 1 cannot map the memory of GPU 2: ");
    one(&found, "GPU", "problem", "GPU 2 cannot map the memory of GPU 0, 1: ");
    let direct = one(&found, "GPUDirect", "problem", "NICs do not reach GPU 0");
    assert!(direct["remedy"].as_str().unwrap().starts_with("modprobe nvidia_peermem"), "{direct}");
    one(&found, "IOMMU", "problem", "DMA-FQ");
    machine.write("module/nvidia_peermem/version", "1");
    machine.write("kernel/iommu_groups/1/type", "identity\n");
    let found = findings("", &env);
    one(&found, "GPUDirect", "ok", "GPU 2 is reached by NICs through nvidia_peermem");
    one(&found, "IOMMU", "ok", "passes addresses through");
}
