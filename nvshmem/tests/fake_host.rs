//! The library as NVSHMEM loads it: installed by the script, opened by name, called by a stand-in for the host library.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const TWO_RAILS: &str = "127.0.0.2,127.0.0.3";

struct Made {
    program: PathBuf,
    prefix: PathBuf,
    built: PathBuf,
}

/// The stand-in, compiled, and the library, installed; `None` where there is no C++ compiler.
fn made() -> Option<&'static Made> {
    static MADE: OnceLock<Option<Made>> = OnceLock::new();
    MADE.get_or_init(|| {
        let compiler = Command::new("c++").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !compiler.is_ok_and(|status| status.success()) {
            println!("SKIPPED: no C++ compiler on this machine");
            return None;
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let exe = std::env::current_exe().unwrap();
        let built = exe.ancestors().nth(2).unwrap().to_path_buf();
        // The library is not what Cargo builds for tests of this package.
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "-q", "-p", "symrail-nvshmem"]).current_dir(here);
        cargo.env("CARGO_TARGET_DIR", built.parent().unwrap());
        if built.ends_with("release") {
            cargo.arg("--release");
        }
        succeed(&mut cargo);
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

fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    assert!(output.status.success(), "{command:?}: {:?}\n{said}", output.status);
    said
}

/// Runs the stand-in for a version of the interface, with settings by NVSHMEM's names.
fn run(version: u32, provider: &str, nics: &str, more: &[&str]) -> Option<String> {
    let Made { program, prefix, built } = made()?;
    let mut command = Command::new(program);
    let theirs_and_ours = |name: &str| name.starts_with("SYMRAIL_") || name.starts_with("NVSHMEM_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| theirs_and_ours(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.arg(version.to_string()).args(more).env("LD_LIBRARY_PATH", prefix.join("lib/symrail-nvshmem"));
    command.env("NVSHMEM_REMOTE_TRANSPORT", "libfabric").env("NVSHMEM_LIBFABRIC_PROVIDER", provider);
    if !nics.is_empty() {
        command.env("SYMRAIL_NIC_LIST", nics);
    }
    command.env("SYMRAIL_TIMEOUT_S", if more.is_empty() { "30" } else { "3" });
    // One job at a time: tests of other packages wait on the same file.
    let lock = File::create(built.join("symrail-tests.lock")).unwrap();
    lock.lock().unwrap();
    Some(succeed(&mut command))
}

fn verify(version: u32, provider: &str, nics: &str) {
    if let Some(said) = run(version, provider, nics, &[]) {
        assert!(said.contains(&format!("version {version}: every function verified")), "{said}");
    }
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

#[test]
fn a_dead_pe_is_an_error_with_a_message() {
    let Some(said) = run(7, "tcp", TWO_RAILS, &["die"]) else { return };
    assert!(said.contains("the dead PE was noticed"), "{said}");
    assert!(said.contains("PE 1") && said.contains("is the PE alive?") || said.contains("failed"), "{said}");
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
