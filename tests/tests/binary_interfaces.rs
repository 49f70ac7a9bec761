//! The libraries for C have the sonames that programs were linked with, and export all functions that they had.
//!
//! `tests/abi/NAME` records a library's soname, the digests of the headers that only this project defines, and all
//! exported functions. A record grows; nothing leaves it unless the soname gets another number.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::libraries::{build, missing, succeed};

/// File, soname, and the headers that define its interface. The other interfaces are defined by NCCL, NVSHMEM and
/// cuDecomp, and by OpenSHMEM 1.5, from which `shmem.h` is generated.
const LIBRARIES: [(&str, &str, &[&str]); 7] = [
    ("libsymrail.so", "libsymrail.so.1", &["shmem/include/shmem.h", "shmem/include/shmemx.h"]),
    ("libsymrail_transport.so", "libsymrail_transport.so.1", &["transport/include/symrail_transport.h"]),
    ("libsymrail_agent_c.so", "libsymrail_agent.so.1", &["agent/include/symrail_agent.h"]),
    ("libsymrail_decomp_c.so", "libcudecomp.so.0", &["decomp/capi/include/cudecomp.h"]),
    ("libsymrail_nccl.so", "libnccl.so.2", &[]),
    ("libnccl_net_symrail.so", "libnccl-net-symrail.so", &[]),
    ("libsymrail_nvshmem.so", "nvshmem_transport_libfabric.so.0", &[]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// FNV-1a of a header's declarations, without comments and white space.
fn digest(header: &str) -> u64 {
    let mut code = String::new();
    for (index, part) in header.split("/*").enumerate() {
        code += if index == 0 { part } else { part.split_once("*/").unwrap().1 };
    }
    code.retain(|c| !c.is_whitespace());
    code.bytes().fold(0xcbf2_9ce4_8422_2325, |d, b| (d ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

fn soname(library: &Path) -> String {
    let dynamic = succeed(Command::new("readelf").args(["-dW"]).arg(library));
    let line = dynamic.lines().find(|line| line.contains("(SONAME)")).unwrap_or_default();
    line.split(['[', ']']).nth(1).unwrap_or_default().to_owned()
}

/// The record that a library has now.
fn now(library: &Path, headers: &[&str]) -> BTreeSet<String> {
    let symbols = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    // The profiling interface has every function of OpenSHMEM once more (`shmem/capi/tests/headers.rs`).
    let twin = |name: &str| name.strip_prefix('p').is_some_and(|of| exported.contains(of));
    let functions = exported.iter().filter(|name| !twin(name)).map(|name| (*name).to_owned());
    let digests = headers
        .iter()
        .map(|header| format!("{header} {:016x}", digest(&std::fs::read_to_string(root().join(header)).unwrap())));
    functions.chain(digests).chain([format!("soname {}", soname(library))]).collect()
}

#[test]
fn what_programs_were_linked_with_remains() {
    if missing("nm") || missing("readelf") {
        return;
    }
    let built = build();
    let writes = std::env::var_os("SYMRAIL_TEST_RECORD_ABI").is_some();
    for (file, expected, headers) in LIBRARIES {
        let library = built.join(file);
        assert_eq!(soname(&library), expected, "{file}");
        let now = now(&library, headers);
        let path = root().join("tests/abi").join(file.trim_end_matches(".so"));
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        let recorded: BTreeSet<String> = recorded.lines().map(str::to_owned).collect();
        let same_number = recorded.is_empty() || recorded.contains(&format!("soname {expected}"));
        let gone: Vec<_> = recorded.difference(&now).filter(|line| !line.contains('/')).collect();
        assert!(gone.is_empty() || !same_number, "{file}: programs of {expected} miss {gone:?}: raise its number");
        if writes {
            std::fs::write(&path, now.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
            continue;
        }
        let changed: Vec<_> = now.symmetric_difference(&recorded).collect();
        assert!(
            changed.is_empty(),
            "{file} and {} differ in {changed:?}. Declarations that changed need another number in the soname; if there \
             are only new ones, SYMRAIL_TEST_RECORD_ABI=1 with this test records them",
            path.display()
        );
    }
}
