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

/// Crates whose tests are one program.
const CRATES: [&str; 5] = ["decomp", "ep", "kernels", "shmem/capi", "tests"];

#[test]
fn every_file_of_tests_is_in_a_program() {
    for folder in CRATES.map(|name| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)) {
        let programs = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let modules = std::fs::read_to_string(folder.join("tests/it.rs")).unwrap();
        for file in std::fs::read_dir(folder.join("tests")).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.file_stem().unwrap().to_str().unwrap();
            let found = modules.contains(&format!("mod {name};")) || programs.contains(&format!("name = \"{name}\""));
            assert!(found || file.extension().is_none_or(|kind| kind != "rs"), "{} is not run", file.display());
        }
    }
}
