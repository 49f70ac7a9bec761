//! Discovery of NICs, and the choice among them.

use std::fmt;
use std::sync::Arc;

use sys::Verbs;
use verbs_sys as sys;

use super::domain::{Context, with_devices};
use super::gid::{Gid, choose, table};
use super::library::load;
use crate::env::{NicList, Settings};
use crate::error::{Error, Result};

/// One port of one RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// The rail's name: the device's, followed by `:port` where the device has several ports.
    pub name: String,
    /// The device's name.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// Whether the port is active.
    pub active: bool,
    /// Whether the port's link layer is InfiniBand (else Ethernet).
    pub infiniband: bool,
    /// The port's active MTU in bytes.
    pub mtu: u32,
    /// The scope of the device's atomics.
    pub atomicity: Atomicity,
    /// Its PCI address, e.g. `0000:17:00.0`, unless it is a software device.
    pub pci: Option<String>,
    /// Entries of the GID table that are in use.
    pub gids: Vec<Gid>,
}

/// The scope of a device's atomics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomicity {
    /// The device has no atomics.
    None,
    /// They are atomic only with other atomics through the same device.
    Device,
    /// They are atomic with the CPU's atomics, too.
    System,
}

impl Atomicity {
    fn from_device(cap: sys::ibv_atomic_cap) -> Self {
        match cap {
            sys::IBV_ATOMIC_GLOB => Atomicity::System,
            sys::IBV_ATOMIC_HCA => Atomicity::Device,
            _ => Atomicity::None,
        }
    }
}

impl fmt::Display for Atomicity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Atomicity::None => "no atomics",
            Atomicity::Device => "atomics that are atomic with one another",
            Atomicity::System => "atomics that are atomic with the CPU's",
        })
    }
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} port {} ({}, {}, MTU {}, {}, GIDs {})",
            self.device,
            self.port,
            if self.active { "active" } else { "down" },
            if self.infiniband { "InfiniBand" } else { "Ethernet" },
            self.mtu,
            self.atomicity,
            table(&self.gids)
        )
    }
}

impl Nic {
    /// The GID that the settings choose, if any fits.
    #[must_use]
    pub fn gid(&self, settings: &Settings) -> Option<&Gid> {
        choose(&self.gids, settings)
    }

    fn is_called(&self, name: &str) -> bool {
        name == self.device || name == self.name || name.strip_prefix(&self.device) == Some(&format!(":{}", self.port))
    }
}

/// The NICs that the settings allow: the first active port of each device, or the one of `IB_PORT`, or those that
/// `NIC_LIST` names (`mlx5_0`, `mlx5_0:1`), in the list's order. Without devices the list is empty.
///
/// # Errors
/// [`Error::Library`] without libibverbs; [`Error::NoRail`] when there are devices and none fits the settings.
pub fn discover(settings: &Settings) -> Result<Vec<Nic>> {
    let all = all(&load(settings)?)?;
    if all.is_empty() {
        return Ok(all);
    }
    select(&all, settings)
}

/// Every port of every device that has reliable connections.
///
/// # Errors
/// The error of the library. A device that cannot be opened is left out with a warning.
pub fn all(verbs: &Arc<Verbs>) -> Result<Vec<Nic>> {
    let mut names = Vec::new();
    with_devices(verbs, |raw, name| {
        // SAFETY: the device is in a list that is not freed yet.
        // iWARP devices are left out: they have neither immediates nor atomics.
        if unsafe { (*raw).transport_type } == sys::IBV_TRANSPORT_IB {
            names.push(name.to_owned());
        }
    })?;
    names.sort_by_key(|name| natural(name));
    let mut nics = Vec::new();
    for name in names {
        match ports(verbs, &name) {
            Ok(mut found) => nics.append(&mut found),
            Err(error) => tracing::warn!("RDMA device {name} is left out: {error}"),
        }
    }
    Ok(nics)
}

/// Sorts `mlx5_10` behind `mlx5_2`.
fn natural(name: &str) -> (String, u64) {
    let text = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (text.into(), name[text.len()..].parse().unwrap_or(0))
}

fn ports(verbs: &Arc<Verbs>, device: &str) -> Result<Vec<Nic>> {
    let Some(context) = Context::open(verbs, device)? else { return Ok(Vec::new()) };
    let attr = context.query_device()?;
    let pci = std::fs::canonicalize(format!("/sys/class/infiniband/{device}/device"))
        .ok()
        .and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    (1..=attr.phys_port_cnt)
        .map(|port| {
            let state = context.query_port(port)?;
            Ok(Nic {
                name: if attr.phys_port_cnt > 1 { format!("{device}:{port}") } else { device.into() },
                device: device.into(),
                port,
                active: state.state == sys::IBV_PORT_ACTIVE,
                infiniband: u32::from(state.link_layer) == sys::IBV_LINK_LAYER_INFINIBAND,
                mtu: 128 << state.active_mtu.min(5),
                atomicity: Atomicity::from_device(attr.atomic_cap),
                pci: pci.clone(),
                gids: context.gids(port, &state),
            })
        })
        .collect()
}

/// Applies `NIC_LIST` and `IB_PORT`, and keeps only active ports.
fn select(all: &[Nic], settings: &Settings) -> Result<Vec<Nic>> {
    let none = |wanted: String| {
        let found = all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Err(Error::NoRail { wanted, found })
    };
    // A mistyped name is an error here, instead of costing a rail.
    let listed = settings.nic_list.as_ref().filter(|list| !list.exclude).map_or(&[][..], |list| &list.names);
    if let Some(unknown) = listed.iter().find(|name| !all.iter().any(|nic| nic.is_called(name))) {
        return none(format!("{unknown} of SYMRAIL_NIC_LIST"));
    }
    let allowed: Vec<&Nic> = match &settings.nic_list {
        None => all.iter().collect(),
        Some(NicList { exclude: true, names }) => {
            all.iter().filter(|nic| !names.iter().any(|name| nic.is_called(name))).collect()
        }
        Some(NicList { exclude: false, names }) => {
            names.iter().flat_map(|name| all.iter().filter(move |nic| nic.is_called(name))).collect()
        }
    };
    if allowed.is_empty() {
        return none("SYMRAIL_NIC_LIST".into());
    }
    let allowed: Vec<&Nic> =
        allowed.into_iter().filter(|nic| settings.ib_port.is_none_or(|port| nic.port == port)).collect();
    if let (true, Some(port)) = (allowed.is_empty(), settings.ib_port) {
        return none(format!("SYMRAIL_IB_PORT={port}"));
    }
    let named = |nic: &Nic| listed.iter().any(|name| name.contains(':') && nic.is_called(name));
    let mut chosen: Vec<Nic> = Vec::new();
    for nic in allowed.into_iter().filter(|nic| nic.active) {
        let same = |other: &Nic| other.device == nic.device && (other.port == nic.port || !named(nic));
        if !chosen.iter().any(same) {
            chosen.push(nic.clone());
        }
    }
    if chosen.is_empty() { none("an active port".into()) } else { Ok(chosen) }
}

#[cfg(test)]
#[path = "discover_tests.rs"]
mod tests;
