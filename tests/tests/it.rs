//! Tests of the whole, in one program: `cargo test --workspace --test it MODULE`. Those of ibverbs are a program of
//! their own, which also runs in a guest.
#![allow(clippy::unwrap_used)]

#[path = "../support/emulation.rs"]
mod emulation;
#[path = "../support/libraries.rs"]
mod libraries;

mod apart;
mod atomics;
mod binary_interfaces;
mod blocks;
mod borders;
mod calls;
mod collectives;
mod decomp;
mod device_barriers;
mod expert_parallel;
mod failures;
mod gpu_collectives;
mod gpu_exchange;
mod gpu_executor;
mod gpu_normed;
mod gpu_overlap;
mod gpu_straight;
mod handles;
mod heap;
mod lost_peer;
mod operations;
mod ordering;
mod overlap;
mod proxy_threads;
mod rejoining;
mod scale;
mod soak;
mod stranger;

/// Where cargo does not look for tests itself, each file is a program in the manifest or a module of another file.
#[test]
fn every_file_of_tests_is_in_a_program() {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let workspace = read(root.join("Cargo.toml"));
    let members = workspace.lines().find(|line| line.starts_with("members")).unwrap();
    let mut files = 0;
    for folder in members.split('"').skip(1).step_by(2).map(|member| root.join(member)) {
        let manifest = read(folder.join("Cargo.toml"));
        if !manifest.contains("autotests = false") {
            continue;
        }
        let tests = || std::fs::read_dir(folder.join("tests")).unwrap().map(|entry| entry.unwrap().path());
        let texts: String = tests().filter(|path| path.is_file()).map(read).collect();
        for path in tests() {
            let source = path.extension().is_some_and(|kind| kind == "rs")
                || ["main.rs", "mod.rs"].iter().any(|name| path.join(name).exists());
            let name = path.file_stem().unwrap().to_str().unwrap();
            let found = texts.contains(&format!("mod {name};")) || manifest.contains(&format!("name = \"{name}\""));
            assert!(found || !source, "{} is not run", path.display());
            files += usize::from(source);
        }
    }
    assert!(files > 80, "{files} files were looked at");
}
