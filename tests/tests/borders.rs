//! Forbidden safe code does not compile: raw addresses, freed memory, and implementations to which engines entrust
//! memory. Beside each program are the errors for which it has to fail.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::libraries;

#[test]
fn forbidden_safe_code_does_not_compile() {
    let programs = std::fs::read_dir("borders").unwrap().map(|entry| entry.unwrap().path());
    let programs: Vec<_> = programs.filter(|path| path.extension().is_some_and(|it| it == "rs")).collect();
    assert!(!programs.is_empty());
    let libraries = libraries_of_the_workspace();
    for program in programs {
        let found = errors(&program, &libraries);
        let wanted = std::fs::read_to_string(program.with_extension("errors")).unwrap_or_default();
        assert_eq!(found, wanted, "{}", program.display());
    }
}

/// The compiler's options that name the workspace's libraries, as Cargo has built them for this test.
fn libraries_of_the_workspace() -> Vec<String> {
    let built = libraries::cargo_build().arg("--message-format=json").output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let artifacts = built.stdout.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let mut options = vec![format!("-Ldependency={}", std::env::current_exe().unwrap().parent().unwrap().display())];
    for artifact in artifacts.filter(|it: &Value| it["reason"] == "compiler-artifact") {
        let name = artifact["target"]["name"].as_str().unwrap();
        let files = artifact["filenames"].as_array().unwrap().iter().filter_map(Value::as_str);
        if name.starts_with("symrail") {
            options.extend(files.filter(|file| file.ends_with(".rlib")).map(|file| format!("--extern={name}={file}")));
        }
    }
    options
}

/// The first line of each error, with its place.
fn errors(program: &Path, libraries: &[String]) -> String {
    let mut compiler = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler.args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "-o", "/dev/null", "--error-format=short"]);
    let said = compiler.args(libraries).arg(program).output().unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    said.lines().filter(|line| line.contains(": error[")).map(|line| format!("{line}\n")).collect()
}
