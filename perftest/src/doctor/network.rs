//! Rails, interfaces that are none, RDMA ports, the loopback interface.

use std::net::IpAddr;

use symrail::bootstrap::rendezvous;

use super::Host;
use super::finding::Finding;
use crate::info::report::Rail;

pub fn judge(host: &Host<'_>) -> Vec<Finding> {
    let mut findings = vec![loopback(), rails(host)];
    findings.extend(rdma(host));
    let report = host.report;
    findings.extend(report.libfabric.left_out.iter().map(|interface| {
        Finding::hint(
            "no rail",
            format!("{} ({}): {}", interface.name, interface.address, interface.reason),
            format!("if other hosts reach it: export SYMRAIL_NIC_LIST={}", interface.name),
        )
    }));
    findings.extend(used(host).filter(|rail| rail.remote).map(|rail| {
        Finding::problem(
            "NUMA",
            format!("rail {} is far from the PE ({})", rail.name, rail.distance),
            "start PEs on the NIC's package: numactl --cpunodebind=netdev:NAME, or --bind-to numa of mpirun",
        )
    }));
    findings
}

/// The rails that a PE started here would use.
fn used<'a>(host: &Host<'a>) -> impl Iterator<Item = &'a Rail> {
    let report = host.report;
    let rails = if report.chosen.transport == "ibverbs" { &report.ibverbs.rails } else { &report.libfabric.rails };
    rails.iter().filter(|rail| report.chosen.rails.contains(&rail.name))
}

/// PEs of one host join over an address of its own.
fn loopback() -> Finding {
    match rendezvous::nearby() {
        Some(address) => Finding::ok("loopback", format!("PEs of this host join over {address}")),
        None => Finding::hint(
            "loopback",
            "no interface that is up has an address: PEs of this host join over Unix-domain sockets, without rails",
            "ip link set lo up",
        ),
    }
}

fn rails(host: &Host<'_>) -> Finding {
    let chosen = &host.report.chosen;
    let libfabric = &host.report.libfabric;
    let of_host = |name: &String| {
        let address = libfabric.rails.iter().find(|rail| rail.name == *name).map_or(name, |rail| &rail.address);
        address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    };
    if chosen.rails.is_empty() {
        let why = chosen.why.join("; ");
        let remedy = "symrail info says which NICs and providers there are, symrail info --env how to choose";
        Finding::problem("rails", format!("there are none: {why}"), remedy)
    } else if chosen.rails.iter().all(of_host) {
        let found = format!("{}: the loopback interface only; no other host is reached", chosen.rails.join(", "));
        Finding::hint("rails", found, "give a network interface an address: ip addr add ADDRESS/BITS dev NAME")
    } else {
        Finding::ok("rails", format!("{} over {}", chosen.rails.join(", "), chosen.transport))
    }
}

fn rdma(host: &Host<'_>) -> Vec<Finding> {
    let devices = host.rdma();
    let report = host.report;
    if devices.is_empty() {
        return vec![Finding::ok("RDMA", "no RDMA devices (/sys/class/infiniband)")];
    }
    let mut findings: Vec<Finding> = report
        .ibverbs
        .inactive
        .iter()
        .map(|port| {
            let found = format!("port {port} is not active");
            Finding::problem(
                "RDMA",
                found,
                "ip link set NAME up for its interface; on InfiniBand start a subnet manager",
            )
        })
        .collect();
    let is_rdma = |rail: &Rail| !rail.software;
    if !used(host).any(is_rdma) {
        let found = format!("{} is there, and rails do not use it", devices.join(", "));
        let why = report.chosen.why.join("; ");
        let remedy = format!("export SYMRAIL_TRANSPORT=ibverbs says why not; now: {why}");
        findings.push(Finding::problem("RDMA", found, remedy));
    } else if findings.is_empty() {
        findings.push(Finding::ok("RDMA", devices.join(", ")));
    }
    findings
}
