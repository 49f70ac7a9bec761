//! The library as NVSHMEM loads it: installed by the script, opened by name, called by a stand-in for the host library.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../tests/support/libraries.rs"]
mod libraries;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libraries::{build, job_slot, missing, remove_settings, succeed};

const TWO_RAILS: &str = "127.0.0.2,127.0.0.3";

struct Made {
    program: PathBuf,
    prefix: PathBuf,
    built: PathBuf,
}

/// The compiled stand-in and the installed library; `None` where there is no C++ compiler.
fn made() -> Option<&'static Made> {
    static MADE: OnceLock<Option<Made>> = OnceLock::new();
    MADE.get_or_init(|| {
        if missing("c++") {
            return None;
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let built = build();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvshmem");
        let _ = std::fs::remove_dir_all(&folder);
        let prefix = folder.join("prefix");
        let said = install(&prefix, &built, &[]);
        assert!(said.contains("LD_PRELOAD=") && said.contains("NVSHMEM_REMOTE_TRANSPORT=libfabric"), "{said}");
        let program = folder.join("fake_host");
        let mut cxx = Command::new("c++");
        cxx.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
        succeed(cxx.arg(here.join("tests/host/fake_host.cpp")).arg("-ldl"));
        Some(Made { program, prefix, built })
    })
    .as_ref()
}

fn install(prefix: &Path, built: &Path, more: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/nvshmem-install.sh");
    succeed(Command::new(script).arg("--prefix").arg(prefix).args(more).env("SYMRAIL_INSTALL_FROM", built))
}

/// The command of the stand-in for a version of the interface, with settings by NVSHMEM's names.
fn stand_in(version: u32, provider: &str, nics: &str) -> Option<Command> {
    let Made { program, prefix, .. } = made()?;
    let mut command = Command::new(program);
    remove_settings(&mut command, &["SYMRAIL_", "NVSHMEM_"]);
    command.arg(version.to_string()).env("LD_LIBRARY_PATH", prefix.join("lib/symrail-nvshmem"));
    command.env("NVSHMEM_REMOTE_TRANSPORT", "libfabric").env("NVSHMEM_LIBFABRIC_PROVIDER", provider);
    if !nics.is_empty() {
        command.env("SYMRAIL_NIC_LIST", nics);
    }
    command.env("SYMRAIL_TIMEOUT_S", "30");
    Some(command)
}

fn run(command: &mut Command) -> String {
    let _slot = job_slot(&made().unwrap().built);
    succeed(command)
}

fn verify(version: u32, provider: &str, nics: &str) {
    let Some(mut job) = stand_in(version, provider, nics) else { return };
    let said = run(&mut job);
    assert!(said.contains(&format!("version {version}: every function verified")), "{said}");
}

#[test]
fn all_versions_over_two_rails() {
    for version in 3..=7 {
        verify(version, "tcp", TWO_RAILS);
    }
}

#[test]
fn one_rail_and_shared_memory() {
    verify(7, "tcp", "127.0.0.2");
    verify(4, "shm", "");
}

/// The surviving PE names the killed one, and has not waited for much longer than the time-out.
fn a_pe_is_killed(version: u32, provider: &str, nics: &str) {
    let Some(mut job) = stand_in(version, provider, nics) else { return };
    let said = run(job.arg("killed").env("SYMRAIL_TIMEOUT_S", "5"));
    let complaint =
        said.lines().find(|line| line.starts_with("symrail: NVSHMEM transport, ") && line.contains(" PE 1 "));
    assert!(complaint.is_some(), "{said}");
    let after = said.lines().find_map(|line| line.strip_prefix("noticed after ")?.strip_suffix(" s"));
    assert!(after.is_some_and(|seconds| seconds.parse::<f64>().unwrap() < 25.0), "{said}");
}

#[test]
fn a_killed_pe_is_an_error_with_a_message() {
    a_pe_is_killed(7, "tcp", TWO_RAILS);
    a_pe_is_killed(3, "tcp", "127.0.0.2");
}

#[test]
fn a_killed_pe_is_noticed_in_shared_memory_too_and_tidied_up_after() {
    a_pe_is_killed(4, "shm", "");
    let Some(mut next) = stand_in(4, "shm", "") else { return };
    run(next.arg("open"));
    let of_the_dead = |name: &String| {
        let process = name.strip_prefix("symrail-").and_then(|rest| rest.split('-').nth(1));
        process.is_some_and(|process| !Path::new("/proc").join(process).exists())
    };
    let files = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let left: Vec<_> = files.map(|file| file.file_name().to_string_lossy().into_owned()).filter(of_the_dead).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn pes_with_one_core_are_told() {
    let Some(mut job) = stand_in(7, "tcp", "127.0.0.2") else { return };
    let said = run(job.arg("open"));
    assert!(!said.contains("two cores"), "{said}");
    let core = *symrail_transport::topology::allowed_cpus().first().unwrap();
    let said = run(job.arg(core.to_string()));
    let warning = format!("PE 0 may run on core {core} only");
    assert!(said.contains(&warning) && said.contains("--bind-to none") && !said.contains("PE 1 may"), "{said}");
}

#[test]
fn what_is_installed_goes_away_again() {
    let Some(Made { built, .. }) = made() else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvshmem-install");
    let _ = std::fs::remove_dir_all(&folder);
    let (theirs, prefix) = (folder.join("theirs"), folder.join("prefix"));
    std::fs::create_dir_all(&theirs).unwrap();
    for name in ["libnvshmem_host.so.3", "nvshmem_bootstrap_mpi.so.3", "nvshmem_transport_libfabric.so.5"] {
        std::fs::write(theirs.join(name), "").unwrap();
    }
    let nvshmem = ["--nvshmem", theirs.to_str().unwrap()];
    install(&prefix, built, &nvshmem);
    let said = install(&prefix, built, &nvshmem);
    assert!(said.contains("libfabric.so.5") && !said.contains("libfabric.so.3"), "{said}");
    let beside = prefix.join("lib/symrail-nvshmem/beside");
    assert!(beside.join("libnvshmem_host.so.3").exists() && beside.join("nvshmem_bootstrap_mpi.so.3").exists());
    let ours = std::fs::read(beside.join("nvshmem_transport_libfabric.so.5")).unwrap();
    assert!(ours.windows(33).any(|w| w == b"nvshmem_transport_libfabric.so.5\0"), "its name is inside");
    install(&prefix, built, &["--uninstall"]);
    assert!(!prefix.exists() && theirs.join("libnvshmem_host.so.3").exists());
}
