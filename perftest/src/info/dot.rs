//! The report as a drawing for Graphviz (`--dot`): a PE started here, its rails in order, and the GPUs.

use std::fmt::Write;

use indicatif::BinaryBytes;

use super::report::{Gpu, Rail, Report};

/// The whole drawing.
pub fn of(report: &Report) -> String {
    let mut dot = String::new();
    let about = format!("symrail {} on {}", report.version, report.host.name);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(dot, "digraph symrail {{\n  label={}; labelloc=t; rankdir=LR; ranksep=1.2;", quoted(&[&about]));
    dot += "  fontname=\"sans-serif\"; node [shape=box, fontname=\"sans-serif\"]; edge [fontname=\"sans-serif\"];\n";
    let _ = writeln!(dot, "  pe [label={}, style=filled, fillcolor=lightgray];", pe(report));
    gpus(&mut dot, report);
    rails(&mut dot, report);
    dot + "}\n"
}

fn pe(report: &Report) -> String {
    let proxy = |core: &Option<usize>| core.map_or_else(|| "any core".into(), |core| format!("core {core}"));
    let proxies: Vec<String> = report.chosen.proxy_cores.iter().map(proxy).collect();
    let proxies = if proxies.is_empty() { "no proxy thread".into() } else { format!("proxy: {}", proxies.join(", ")) };
    quoted(&["a PE started here", &format!("cores {}", report.host.allowed), &proxies])
}

/// The GPUs, and which of them map one another's memory.
fn gpus(dot: &mut String, report: &Report) {
    let gpus = &report.cuda.devices;
    if gpus.is_empty() {
        return;
    }
    let _ = writeln!(dot, "  subgraph cluster_gpus {{\n    label=\"GPUs\"; rank=same;");
    for gpu in gpus {
        let memory = BinaryBytes(gpu.memory_bytes).to_string();
        let place = format!("PCI {}", gpu.pci.as_deref().unwrap_or("unknown"));
        let dmabuf = if gpu.dmabuf { "dmabuf" } else { "no dmabuf" };
        let label = quoted(&[&format!("GPU {}: {}", gpu.number, gpu.name), &memory, &place, dmabuf]);
        let _ = writeln!(dot, "    gpu{} [label={label}];", gpu.number);
    }
    dot.push_str("  }\n");
    let maps = |one: &Gpu, other: &Gpu| !one.cannot_map.contains(&other.number);
    for (at, one) in gpus.iter().enumerate() {
        for other in gpus[at + 1..].iter().filter(|other| maps(one, other) && maps(other, one)) {
            let (from, to) = (one.number, other.number);
            let _ = writeln!(dot, "  gpu{from} -> gpu{to} [dir=both, label=\"mapped\", constraint=false];");
        }
    }
    let _ = writeln!(dot, "  gpu{} -> pe [dir=none];", gpus[0].number);
}

/// The rails, those that the PE uses with their places in its order, and the interfaces that are none.
fn rails(dot: &mut String, report: &Report) {
    let (chosen, all): (_, &[Rail]) = match report.chosen.transport {
        "ibverbs" => (&report.chosen.rails, &report.ibverbs.rails),
        _ => (&report.chosen.rails, &report.libfabric.rails),
    };
    let transport = match all.first() {
        Some(rail) if report.chosen.transport == "libfabric" => format!("rails (libfabric, {})", rail.provider),
        _ => format!("rails ({})", report.chosen.transport),
    };
    let _ = writeln!(dot, "  subgraph cluster_rails {{\n    label={};", quoted(&[&transport]));
    for (number, rail) in all.iter().enumerate() {
        let place = rail.pci.as_deref().map_or_else(String::new, |pci| format!("PCI {pci}"));
        let address = if rail.address == rail.name { "" } else { &rail.address };
        let label = quoted(&[&rail.name, address, &place]);
        let style = if chosen.contains(&rail.name) { "solid" } else { "dashed" };
        let _ = writeln!(dot, "    rail{number} [label={label}, style={style}];");
    }
    // A cluster without nodes is not drawn.
    if all.is_empty() {
        let none = report.libfabric.no_rails.as_deref().unwrap_or("none");
        let _ = writeln!(dot, "    none [label={}, style=dashed];", quoted(&[none]));
    }
    dot.push_str("  }\n");
    for (number, rail) in all.iter().enumerate() {
        if let Some(at) = chosen.iter().position(|name| *name == rail.name) {
            let label = quoted(&[&format!("rail {at}"), &rail.distance]);
            let _ = writeln!(dot, "  pe -> rail{number} [label={label}];");
        }
    }
    for (number, out) in report.libfabric.left_out.iter().enumerate() {
        let label = quoted(&[&format!("{}: no rail", out.name), &out.address, &out.reason]);
        let _ = writeln!(dot, "  out{number} [label={label}, style=dotted];");
    }
}

/// A label of these lines, without empty ones.
fn quoted(lines: &[&str]) -> String {
    let escaped = |line: &&str| line.replace('\\', "\\\\").replace('"', "\\\"");
    let lines: Vec<String> = lines.iter().filter(|line| !line.is_empty()).map(escaped).collect();
    format!("\"{}\"", lines.join("\\n"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::report::{Chosen, Collectives, Cuda, Host, Ibverbs, Libfabric};
    use super::*;

    fn gpu(number: usize, cannot_map: &[usize]) -> Gpu {
        Gpu {
            number,
            name: "a GPU".into(),
            pci: None,
            memory_bytes: 1 << 30,
            compute_capability: "9.0".into(),
            dmabuf: true,
            cannot_map: cannot_map.to_vec(),
        }
    }

    fn rail(name: &str) -> Rail {
        Rail {
            name: name.into(),
            provider: "verbs".into(),
            details: String::new(),
            pci: Some("0000:01:00.0".into()),
            distance: "GPU: same PCI switch".into(),
            address: String::new(),
            software: false,
            remote: false,
        }
    }

    fn report() -> Report {
        let host = Host {
            name: "node".into(),
            kernel: String::new(),
            packages: 1,
            cores: 2,
            processing_units: 2,
            allowed: "0-1".into(),
            memory_bytes: 0,
            numa_nodes: Vec::new(),
            shm_free_bytes: None,
            memlock_bytes: None,
        };
        let chosen = Chosen {
            transport: "ibverbs",
            rails: vec!["mlx5_1".into()],
            most_pes: None,
            proxy_cores: vec![Some(1)],
            why: Vec::new(),
            ignored: Vec::new(),
        };
        let devices = vec![gpu(0, &[2]), gpu(1, &[]), gpu(2, &[0])];
        Report {
            version: "0",
            host,
            libfabric: Libfabric::default(),
            ibverbs: Ibverbs { rails: vec![rail("mlx5_1"), rail("mlx5_0")], ..Ibverbs::default() },
            cuda: Cuda { devices, ..Cuda::default() },
            chosen,
            collectives: Collectives { tables: Vec::new(), no_tables: None },
            changed: Vec::new(),
            unknown: Vec::new(),
        }
    }

    #[test]
    fn gpus_that_map_each_other_and_rails_in_use_are_joined_by_lines() {
        let dot = of(&report());
        if let Some(path) = std::env::var_os("SYMRAIL_TEST_DRAWING") {
            std::fs::write(path, &dot).unwrap();
        }
        assert!(dot.contains("gpu0 -> gpu1") && dot.contains("gpu1 -> gpu2") && !dot.contains("gpu0 -> gpu2"), "{dot}");
        assert!(dot.contains("pe -> rail0") && !dot.contains("pe -> rail1") && dot.contains("style=dashed"), "{dot}");
    }

    #[test]
    fn labels_end_where_they_should() {
        assert_eq!(quoted(&["a \"b\"", "", "c\\"]), r#""a \"b\"\nc\\""#);
    }
}
