//! `scripts/install.sh`: the wrapper, pkg-config and CMake find what it installs, and it can be uninstalled.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{built, command, folder, job, missing, source, succeed};

fn install(prefix: &Path, more: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = Command::new(script);
    succeed(command.arg("--prefix").arg(prefix).args(more).env("SYMRAIL_INSTALL_FROM", built()));
}

/// Runs a program with the `oshrun` of a prefix.
fn run(prefix: &Path, program: &Path) {
    let outcome = job(command(prefix.join("bin/oshrun")).args(["-np", "2"]).arg(program));
    assert_eq!(outcome.code, Some(0), "{}", outcome.said);
    assert!(outcome.said.contains("2 PEs share their variables"), "{}", outcome.said);
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.flat_map(|entry| below(entry.unwrap().path())).collect()
}

#[test]
fn an_installed_symrail_is_found_by_everybody_and_leaves_nothing() {
    let home = folder("install");
    let prefix = home.join("prefix");
    install(&prefix, &[]);
    install(&prefix, &[]);
    let statics = source("statics.c");

    // Programs that were linked with cuDecomp or NCCL find these libraries by their names, in folders of their own only.
    let (cudecomp, nccl) = (prefix.join("lib/symrail/cudecomp"), prefix.join("lib/symrail/nccl"));
    assert!(cudecomp.join("libcudecomp.so.0").is_file() && cudecomp.join("libcudecomp.so").is_file());
    assert!(prefix.join("include/symrail/cudecomp/cudecomp_version.h").is_file());
    assert!(nccl.join("libnccl.so.2").is_file() && nccl.join("libsymrail_nccl.so").is_file());
    for file in files(&prefix.join("lib")).iter().filter(|file| file.parent().unwrap().ends_with("lib")) {
        let name = file.file_name().unwrap().to_string_lossy();
        // ldconfig would make a link with the soname, libnccl.so.2 or libcudecomp.so.0, beside it.
        let other = ["libcudecomp", "libnccl.so", "libsymrail_nccl", "libsymrail_decomp"];
        assert!(!other.iter().any(|other| name.starts_with(other)), "{name}");
    }

    let program = home.join("by-wrapper");
    succeed(Command::new(prefix.join("bin/oshcc")).arg("-o").arg(&program).arg(&statics));
    run(&prefix, &program);

    if !missing("pkg-config") {
        let pc = prefix.join("lib/pkgconfig");
        let flags =
            succeed(Command::new("pkg-config").args(["--cflags", "--libs", "symrail"]).env("PKG_CONFIG_PATH", pc));
        let program = home.join("by-pkg-config");
        succeed(Command::new("cc").arg(&statics).arg("-o").arg(&program).args(flags.split_whitespace()));
        run(&prefix, &program);
    }

    if !missing("cmake") {
        let project = "cmake_minimum_required(VERSION 3.16)\nproject(p C)\nfind_package(Symrail 0.1 REQUIRED)\n\
                       add_executable(by-cmake ${STATICS})\ntarget_link_libraries(by-cmake Symrail::symrail)\n";
        std::fs::write(home.join("CMakeLists.txt"), project).unwrap();
        let (build, given) = (home.join("build"), |name: &str, path: &Path| format!("-D{name}={}", path.display()));
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(&home).arg("-B").arg(&build);
        succeed(configure.args([given("CMAKE_PREFIX_PATH", &prefix), given("STATICS", &statics)]));
        succeed(Command::new("cmake").arg("--build").arg(&build));
        run(&prefix, &build.join("by-cmake"));
    }

    for file in [
        "share/man/man1/oshrun.1",
        "include/symrail_agent.h",
        "include/symrail_transport.h",
        "include/symrail_device.cuh",
        "include/symrail/api.cuh",
        "lib/libsymrail.so.1",
        "lib/libsymrail_agent.so",
        "lib/libsymrail_transport.so",
    ] {
        assert!(prefix.join(file).exists(), "{file}");
    }
    let theirs = prefix.join("lib/theirs");
    std::fs::write(&theirs, "not ours").unwrap();
    install(&prefix, &["--uninstall"]);
    assert_eq!(files(&prefix), [theirs]);
    std::fs::remove_dir_all(home).unwrap();
}
