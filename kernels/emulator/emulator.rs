//! Compiles kernels for the CPU, on which threads play a GPU. A test includes this file.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sums are rounded as on a GPU, and pointers are cast as kernels cast them.
const FLAGS: [&str; 11] = [
    "-std=c++20",
    "-O1",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-pthread",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-unused-function",
    "-I",
];

/// Compiles a source, with headers of these folders: all are paths in the repository. The result is kept in the target
/// folder for all tests, as long as sources, headers and options are the same. `None` where there is no C++ compiler.
pub fn compiled(source: &str, folders: &[&str], more: &[&str]) -> Option<PathBuf> {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = above.map(Path::to_path_buf).find(|folder| folder.join("kernels/emulator").is_dir()).unwrap();
    let mut hasher = DefaultHasher::new();
    (FLAGS, folders, more).hash(&mut hasher);
    let own = Path::new(source).parent().unwrap();
    for folder in folders.iter().map(Path::new).chain([own, Path::new("kernels/emulator")]) {
        hash_files(&root.join(folder), &mut hasher);
    }
    let built = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("emulated");
    std::fs::create_dir_all(&built).unwrap();
    let name = Path::new(source).file_stem().unwrap().to_string_lossy().into_owned();
    let result = built.join(format!("{name}-{:016x}", hasher.finish()));
    if result.exists() {
        return Some(result);
    }
    let part = result.with_extension(std::process::id().to_string());
    let mut compiler = Command::new("c++");
    compiler.current_dir(&root).args(FLAGS).arg("kernels/emulator").args(more);
    for folder in folders {
        compiler.arg("-I").arg(folder);
    }
    let Ok(said) = compiler.arg(source).arg("-o").arg(&part).output() else {
        println!("SKIPPED: there is no C++ compiler");
        return None;
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    // Tests of another process may have compiled the same.
    std::fs::rename(&part, &result).unwrap();
    Some(result)
}

/// Compiles a shared library: as [`compiled`].
pub fn library(source: &str, folders: &[&str]) -> Option<PathBuf> {
    compiled(source, folders, &["-shared", "-fPIC"])
}

/// Compiles and runs a program, which prints `well` or what is wrong.
pub fn run(source: &str, folders: &[&str]) {
    let Some(program) = compiled(source, folders, &[]) else { return };
    let ran = Command::new(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "well\n", "{}", String::from_utf8_lossy(&ran.stderr));
}

fn hash_files(folder: &Path, hasher: &mut DefaultHasher) {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            hash_files(&path, hasher);
        } else {
            (path.file_name(), std::fs::read(&path).unwrap()).hash(hasher);
        }
    }
}
