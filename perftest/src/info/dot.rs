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
        let label = quoted(&[&rail.name, &rail.address, &place]);
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
    use super::quoted;

    #[test]
    fn labels_end_where_they_should() {
        assert_eq!(quoted(&["a \"b\"", "", "c\\"]), r#""a \"b\"\nc\\""#);
    }
}
