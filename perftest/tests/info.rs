//! `symrail info` as a user runs it: it answers whatever is missing, and refuses only values that make no sense.

#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Command, Output};

use serde_json::Value;
use symrail_transport::env::VARIABLES;

/// Runs `symrail info` with only these variables set.
fn info(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symrail"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SYMRAIL_")) {
        command.env_remove(name);
    }
    command.arg("info").args(args).envs(env.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn report(env: &[(&str, &str)]) -> Value {
    let output = info(&["--json"], env);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const NO_LIBRARIES: [(&str, &str); 2] =
    [("SYMRAIL_LIBFABRIC_SO", "/nonexistent/libfabric.so"), ("SYMRAIL_IBV_SO", "/nonexistent/libibverbs.so")];

#[test]
fn it_answers_without_any_library() {
    let report = report(&NO_LIBRARIES);
    assert_eq!(report["chosen"]["transport"], "none");
    assert!(report["host"]["cores"].as_u64().unwrap() > 0);
    for library in ["libfabric", "ibverbs"] {
        let missing = &report[library]["missing"];
        assert!(missing["reason"].as_str().unwrap().contains("/nonexistent/"), "{missing}");
        assert!(missing["remedy"].as_str().unwrap().contains("SYMRAIL_"), "{missing}");
    }
    let output = info(&[], &NO_LIBRARIES);
    assert_eq!(output.status.code(), Some(0));
    let page = text(&output.stdout);
    assert!(page.contains("libfabric1") && page.contains("transport    none"), "{page}");
}

#[test]
fn it_draws_rails_for_graphviz() {
    let output = info(&["--dot"], &NO_LIBRARIES);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let none = text(&output.stdout);
    assert!(none.starts_with("digraph symrail {") && none.contains("a PE started here"), "{none}");
    let output = info(&["--dot"], &[("SYMRAIL_NIC_LIST", "127.0.0.2,127.0.0.3")]);
    let dot = text(&output.stdout);
    for drawing in [&none, &dot] {
        // Braces in labels are possible, but none of these has any.
        assert_eq!(drawing.matches('{').count(), drawing.matches('}').count(), "{drawing}");
        assert!(drawing.lines().all(|line| line.matches('"').count() % 2 == 0), "{drawing}");
    }
    if dot.contains("libfabric") {
        assert!(dot.contains("127.0.0.2") && dot.contains("pe -> rail1 [label=\"rail 1\\n"), "{dot}");
    } else {
        println!("SKIPPED: rails: {dot}");
    }
}

#[test]
fn it_lists_rails_and_what_providers_grant() {
    let report = report(&[
        ("SYMRAIL_TRANSPORT", "libfabric"),
        ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
        ("SYMRAIL_NIC_LIST", "127.0.0.2,127.0.0.3"),
    ]);
    let libfabric = &report["libfabric"];
    if !libfabric["missing"].is_null() {
        println!("SKIPPED: {}", libfabric["missing"]);
        return;
    }
    assert_eq!(report["chosen"]["transport"], "libfabric");
    assert_eq!(report["chosen"]["rails"], serde_json::json!(["127.0.0.2", "127.0.0.3"]));
    let providers = libfabric["providers"].as_array().unwrap();
    let tcp = providers.iter().find(|provider| provider["name"] == "tcp;ofi_rxm").unwrap();
    assert!(tcp["caps"]["inject_bytes"].as_u64().unwrap() >= 8, "{tcp}");
    assert!(!tcp["caps"]["progress"].as_str().unwrap().is_empty(), "{tcp}");
    // An alias is not listed besides the provider that it stands for.
    assert!(providers.iter().all(|provider| provider["name"] != "tcp"));
    let changed: Vec<&str> =
        report["changed"].as_array().unwrap().iter().map(|setting| setting["name"].as_str().unwrap()).collect();
    assert_eq!(changed, ["SYMRAIL_TRANSPORT", "SYMRAIL_LIBFABRIC_PROVIDER", "SYMRAIL_NIC_LIST"]);
}

#[test]
fn a_listed_name_that_does_not_exist_is_told() {
    let with = |list| {
        info(
            &["--json"],
            &[
                ("SYMRAIL_TRANSPORT", "libfabric"),
                ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
                ("SYMRAIL_NIC_LIST", list),
            ],
        )
    };
    let output = with("127.0.0.2,no-such-nic");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    if !report["libfabric"]["missing"].is_null() {
        println!("SKIPPED: {}", report["libfabric"]["missing"]);
        return;
    }
    assert_eq!(report["chosen"]["rails"], serde_json::json!(["127.0.0.2"]));
    let said = text(&output.stderr);
    assert!(said.contains("has no no-such-nic on this host"), "{said}");
    let said = text(&with("127.0.0.2,127.0.0.3").stderr);
    assert!(!said.contains("on this host"), "{said}");
}

#[test]
fn a_mapping_chooses_the_rail_or_says_what_exists() {
    let among = |list, mapping| {
        report(&[
            ("SYMRAIL_TRANSPORT", "libfabric"),
            ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
            ("SYMRAIL_NIC_LIST", list),
            ("SYMRAIL_NIC_PE_MAPPING", mapping),
        ])
    };
    let with = |mapping| among("127.0.0.2,127.0.0.3", mapping);
    let report = with("127.0.0.3:1:1");
    if !report["libfabric"]["missing"].is_null() {
        println!("SKIPPED: {}", report["libfabric"]["missing"]);
        return;
    }
    assert_eq!(report["chosen"]["rails"], serde_json::json!(["127.0.0.3"]));
    let report = with("mlx9_9:1:1");
    assert_eq!(report["chosen"]["transport"], "none");
    let why = report["chosen"]["why"].to_string();
    assert!(why.contains("mlx9_9:1 does not, there are: 127.0.0.2, 127.0.0.3"), "{why}");
    // A different NIC is not taken for the named one, even if it is the only one.
    let why = among("127.0.0.2", "mlx9_9:1:1")["chosen"]["why"].to_string();
    assert!(why.contains("mlx9_9:1 does not, there are: 127.0.0.2"), "{why}");
}

#[test]
fn protocols_lists_the_form_of_each_size() {
    let tcp = [
        ("SYMRAIL_TRANSPORT", "libfabric"),
        ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
        ("SYMRAIL_NIC_LIST", "127.0.0.2"),
    ];
    if !report(&tcp)["libfabric"]["missing"].is_null() {
        println!("SKIPPED: no libfabric");
        return;
    }
    let output = info(&["--protocols", "--json"], &tcp);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let forms = |endpoint: &str, operation: &str| {
        let of = |row: &&Value| row["endpoint"] == endpoint && row["operation"] == operation;
        rows.iter().filter(of).map(|row| row["form"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert!(forms("host", "put").contains(&"message, unrecorded") && forms("host", "put").contains(&"write"));
    assert!(forms("proxy", "get").contains(&"agent read") && forms("proxy", "get").contains(&"read"));
    assert!(rows.iter().all(|row| row["provider"] == "tcp;ofi_rxm" && !row["why"].as_str().unwrap().is_empty()));
    let page = text(&info(&["--protocols"], &tcp).stdout);
    assert!(page.contains("host endpoint over tcp;ofi_rxm\n") && page.contains("agent read"), "{page}");
    let output = info(&["--protocols"], &NO_LIBRARIES);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_bad_value_is_refused_and_the_table_still_helps() {
    let bad = [("SYMRAIL_IB_MODE", "fast")];
    let output = info(&[], &bad);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("SYMRAIL_IB_MODE=fast: not accepted; use auto|rdma-atomics|write-with-imm"), "{said}");
    let output = info(&["--env"], &bad);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).contains("SYMRAIL_IB_MODE=auto"));
}

#[test]
fn an_unknown_name_is_a_warning_with_the_nearest() {
    let output = info(&["--env"], &[("SYMRAIL_HEAPSIZE", "1G")]);
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stderr);
    assert!(said.contains("SYMRAIL_HEAPSIZE is not a known variable") && said.contains("SYMRAIL_HEAP_SIZE?"), "{said}");
    assert!(!said.contains('\u{1b}'), "colours, and no terminal: {said:?}");
    let page = text(&output.stdout);
    assert!(page.contains("warning: SYMRAIL_HEAPSIZE is not a known variable"), "{page}");
    let output = info(&["--env"], &[("SYMRAIL_HEAPSIZE", "1G"), ("SYMRAIL_LOG", "")]);
    assert!(text(&output.stderr).contains("SYMRAIL_HEAPSIZE"), "empty counts as unset");
}

#[test]
fn the_table_has_every_variable() {
    let output = info(&["--env", "--json"], &[("SYMRAIL_HEAP_SIZE", "1G")]);
    let table: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(table.len(), VARIABLES.len());
    let page = text(&info(&["--env"], &[("SYMRAIL_HEAP_SIZE", "1G")]).stdout);
    for (variable, row) in VARIABLES.iter().zip(&table) {
        assert_eq!(row["name"], variable.name);
        assert!(page.contains(&format!(" {}=", variable.name)), "{page}");
    }
    assert!(page.contains("* SYMRAIL_HEAP_SIZE=1G   (default 512M)"), "{page}");
}

/// A CUDA driver with one GPU, at the PCI address of a GPU in the recorded machine.
const DRIVER: &str = r#"
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal; }
int cuDeviceGetName(char *name, int room, int device) { strncpy(name, "Paper GPU", room); return device != 7; }
int cuDeviceGetPCIBusId(char *pci, int room, int device) { strncpy(pci, "0000:43:00.0", room); return device != 7; }
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 1ul << 34; return device != 7; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? 9 : which == 124;
    return device != 7;
}
"#;

#[test]
fn a_heap_on_a_gpu_takes_the_rails_and_the_proxy_core_near_it() {
    let folder = std::env::temp_dir().join(format!("symrail-info-gpu-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("driver.c"), DRIVER).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o", "libcuda.so.1", "driver.c"])
        .current_dir(&folder)
        .status()
        .is_ok_and(|status| status.success());
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../transport/src/topology/testdata/two-sockets.sh");
    let sys = folder.join("sys");
    std::fs::create_dir(&sys).unwrap();
    assert!(Command::new("sh").arg(machine).arg(&sys).status().unwrap().success());
    let report = built.then(|| {
        report(&[
            ("LD_LIBRARY_PATH", folder.to_str().unwrap()),
            ("SYMRAIL_SYSFS", sys.to_str().unwrap()),
            ("SYMRAIL_HEAP_KIND", "device"),
            ("SYMRAIL_TRANSPORT", "libfabric"),
            ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
        ])
    });
    std::fs::remove_dir_all(&folder).unwrap();
    let Some(report) = report else {
        println!("SKIPPED: no C compiler (cc)");
        return;
    };
    let gpu = &report["cuda"]["devices"][0];
    assert_eq!((&gpu["name"], &gpu["pci"]), (&"Paper GPU".into(), &"0000:43:00.0".into()));
    assert_eq!((&gpu["compute_capability"], &gpu["dmabuf"]), (&"9.0".into(), &true.into()));
    assert_eq!(gpu["memory_bytes"], 1u64 << 34);
    assert_eq!(report["cuda"]["driver"], "12.4");
    if !report["libfabric"]["missing"].is_null() {
        println!("SKIPPED: {}", report["libfabric"]["missing"]);
        return;
    }
    let why = report["chosen"]["why"].to_string();
    assert!(why.contains("GPU: "), "{why}");
    // The last core of NUMA node 2, where that GPU is.
    assert_eq!(report["chosen"]["proxy_cores"][0], 11);
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let into = |args: &[&str], out: std::process::Stdio| {
        Command::new(env!("CARGO_BIN_EXE_symrail")).args(args).stdout(out).output().unwrap()
    };
    for args in [&["info"][..], &["info", "--env"], &["info", "--json"], &["--help"], &["perf", "--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = into(args, full.into());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("No space left on device"), "{args:?}: {said}");
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let output = into(args, closed.into());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()), "{args:?}");
    }
}

#[test]
fn a_setting_without_effect_is_told() {
    let env = [("SYMRAIL_TRANSPORT", "libfabric"), ("SYMRAIL_IB_MODE", "rdma-atomics"), ("SYMRAIL_GPUDIRECT", "on")];
    let report = report(&env);
    if !report["libfabric"]["missing"].is_null() {
        println!("SKIPPED: {}", report["libfabric"]["missing"]);
        return;
    }
    let ignored = report["chosen"]["ignored"].to_string();
    assert!(ignored.contains("SYMRAIL_IB_MODE=rdma-atomics has no effect: the transport is libfabric"), "{ignored}");
    assert!(ignored.contains("SYMRAIL_GPUDIRECT=on has no effect"), "{ignored}");
    assert!(text(&info(&[], &env).stdout).contains("warning      SYMRAIL_IB_MODE"));
}

#[test]
fn it_names_the_tables_that_collectives_choose_by() {
    let cache = std::env::temp_dir().join(format!("symrail-info-cache-{}", std::process::id()));
    let folder = cache.join("tuned");
    std::fs::create_dir_all(&folder).unwrap();
    let row = r#"{"collective": "allreduce", "up_to": 4096, "algorithm": "one_shot", "blocks": 1}"#;
    let table = format!(r#"{{"device": "cpu", "pes": 4, "hosts": 1, "rows": [{row}, {row}]}}"#);
    std::fs::write(folder.join("cpu-4x1.json"), table).unwrap();
    std::fs::write(folder.join("wrong.json"), "{}").unwrap();
    let cache_dir = ("SYMRAIL_CACHE_DIR", cache.to_str().unwrap());
    let found = report(&[NO_LIBRARIES[0], NO_LIBRARIES[1], cache_dir]);
    let page = text(&info(&[], &[NO_LIBRARIES[0], NO_LIBRARIES[1], cache_dir]).stdout);
    let off = report(&[NO_LIBRARIES[0], NO_LIBRARIES[1], cache_dir, ("SYMRAIL_TUNING", "off")]);
    std::fs::remove_dir_all(&cache).unwrap();
    let tables = &found["collectives"]["tables"];
    assert!(tables[0]["file"].as_str().unwrap().ends_with("cpu-4x1.json"), "{tables}");
    assert_eq!((&tables[0]["pes"], &tables[0]["rows"]), (&serde_json::json!(4), &serde_json::json!(2)));
    assert!(tables[1]["problem"].as_str().unwrap().contains("missing field"), "{tables}");
    assert!(page.contains("cpu-4x1.json") && page.contains("for cpu, 4 PEs on 1 hosts; 2 rows"), "{page}");
    assert_eq!(off["collectives"]["no_tables"], "none: SYMRAIL_TUNING=off");
}
