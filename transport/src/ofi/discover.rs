//! Discovery of NICs, and the choice among them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use libfabric_sys as ffi;
use libfabric_sys::{Info, Libfabric};

use super::fault::fault;
use super::hints::{self, Ask};
use super::interfaces::{self, LeftOut};
use super::library::Library;
use super::provider::{self, PREFERENCE, full_name};
use super::shared_memory;
use crate::env::{AmoPath, GpuDirect, HeapKind, NicList, Settings};
use crate::error::{Error, Result};
use crate::pairing::is_link_local;
use crate::topology::own_addresses;

/// One NIC, or a provider's equivalent, that can become a rail.
#[derive(Debug, Clone)]
pub struct Nic {
    /// The rail's name, as in `NIC_LIST`: the domain, or the address where domains have no name of their own.
    pub name: String,
    /// The provider's full name, e.g. `tcp;ofi_rxm`.
    pub provider: String,
    /// libfabric's name of the fabric, e.g. a subnet.
    pub fabric: String,
    /// libfabric's name of the domain, e.g. `eth0` or `mlx5_0`.
    pub domain: String,
    /// The local address in the provider's form.
    pub address: String,
    /// The device's own name, where the provider reports it.
    pub device: Option<String>,
    /// The PCI address (`0000:3b:00.0`), where the provider reports it.
    pub pci: Option<String>,
    /// Bits per second, where the provider reports it.
    pub speed: Option<u64>,
    /// The requested local address, when `NIC_LIST` names the NIC by one.
    pub(super) source: Option<String>,
    /// Whether the provider's own atomics were requested.
    pub(super) atomics: bool,
    /// Whether access to GPU memory was requested.
    pub(super) gpus: bool,
    pub(super) delivery_complete: bool,
    pub(super) info: Info,
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: provider {}, fabric {}, domain {}", self.name, self.provider, self.fabric, self.domain)?;
        if !self.address.is_empty() {
            write!(f, ", address {}", self.address)?;
        }
        if let Some(pci) = &self.pci {
            write!(f, ", PCI {pci}")?;
        }
        match self.speed {
            Some(speed) => write!(f, ", {} Gbit/s", speed as f64 / 1e9),
            None => Ok(()),
        }
    }
}

impl Nic {
    fn new(info: Info, source: Option<&str>, ask: Ask<'_>, delivery_complete: bool) -> Self {
        let (device, pci, speed) = device_facts(&info);
        let domain = info.domain();
        Nic {
            name: source.map_or_else(|| domain.clone(), str::to_owned),
            provider: info.provider(),
            fabric: info.fabric(),
            address: address_text(&info),
            domain,
            device,
            pci,
            speed,
            source: source.map(str::to_owned),
            atomics: ask.atomics,
            gpus: ask.gpus,
            delivery_complete,
            info,
        }
    }

    fn is_called(&self, name: &str) -> bool {
        [&self.name, &self.domain, &self.address].into_iter().chain(&self.device).any(|known| known == name)
    }

    /// Whether it is reachable only from this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.domain == "lo" || self.address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }

    /// Whether a CPU moves the bytes.
    #[must_use]
    pub fn is_software(&self) -> bool {
        provider::traits(&self.provider).software
    }

    /// The info for opening an endpoint: with automatic progress (`None` if the provider has none) or with manual.
    pub(super) fn info_to_open(&self, library: &Arc<Libfabric>, automatic: bool) -> Result<Option<Info>> {
        let in_memory = provider::is_in_memory(&self.provider);
        if !in_memory && !automatic {
            return Ok(Some(self.info.clone()));
        }
        // Endpoints in shared memory have names instead of addresses, and each name must be unique.
        if in_memory {
            shared_memory::remove_leftovers();
        }
        let unique = in_memory.then(shared_memory::unique_name);
        let node = unique.as_deref().or(self.source.as_deref());
        let (atomics, gpus) = (self.atomics, self.gpus);
        let infos = hints::negotiate(library, Ask { provider: &self.provider, node, atomics, gpus, automatic })?;
        if in_memory
            && infos.is_empty()
            && let Some(shortage) = shared_memory::shortage()
        {
            return Err(shortage);
        }
        Ok(infos
            .into_iter()
            .find(|info| in_memory || (info.domain() == self.domain && address_text(info) == self.address)))
    }
}

/// The NICs of a provider.
#[derive(Debug, Clone)]
pub struct Found {
    /// Those that can become rails.
    pub nics: Vec<Nic>,
    /// Network interfaces that are no rails, although no setting excludes them.
    pub left_out: Vec<LeftOut>,
    /// The names of `NIC_LIST` that the provider does not know, if it knows others: one sentence, for a warning.
    pub unknown: Option<String>,
}

/// Every NIC that fits the settings, in the list's order or else in the provider's. The caller applies the limit of
/// NICs per PE when it orders them. `all_here`: all PEs are reachable over the loopback interface, so no other one is
/// used unless the user names it. Without a list or mapping that names NICs, network interfaces that other hosts are
/// unlikely to reach are left out.
///
/// # Errors
/// [`Error::NoRail`] when none fits, with a list of the existing ones.
pub fn discover(library: &Arc<Library>, settings: &Settings, all_here: bool) -> Result<Found> {
    let loopback = all_here && settings.nic_pe_mapping.is_none();
    let atomics = settings.amo_path == AmoPath::Native;
    let gpus = settings.heap_kind == HeapKind::Device && settings.gpudirect != GpuDirect::Off;
    let wanted: Vec<String> = match &settings.libfabric_provider {
        Some(name) => vec![full_name(name).to_owned()],
        None => PREFERENCE.map(str::to_owned).to_vec(),
    };
    let mut seen = Vec::new();
    for provider in &wanted {
        // Where CPUs move the bytes, the provider would have to copy them from and to the GPU. Staging does that as
        // well.
        let gpus = gpus && !provider::traits(provider).software;
        let ask = Ask { provider, node: None, atomics, gpus, automatic: false };
        let all = all_of(&library.fabric, ask)?;
        let nobody = |nics| Found { nics, left_out: Vec::new(), unknown: None };
        let reachable = |nics| {
            let nics = where_they_are_needed(nics, loopback);
            let by_name = loopback || settings.nic_pe_mapping.is_some();
            if by_name { nobody(nics) } else { without_unlikely(&nics, settings) }
        };
        let chosen = match &settings.nic_list {
            None => reachable(all.clone()),
            Some(NicList { exclude: true, names }) => {
                let kept = all.iter().filter(|nic| !names.iter().any(|name| nic.is_called(name))).cloned().collect();
                reachable(kept)
            }
            Some(NicList { exclude: false, names }) => named(&library.fabric, ask, &all, names)?,
        };
        if !chosen.nics.is_empty() {
            return Ok(chosen);
        }
        seen.extend(all.into_iter().map(|nic| format!("{} ({})", nic.name, nic.provider)));
    }
    let in_memory = wanted.iter().all(|provider| provider::is_in_memory(provider));
    let shortage = if in_memory { shared_memory::shortage() } else { None };
    Err(shortage.unwrap_or_else(|| no_rail(library, settings, &wanted, &seen)))
}

/// NICs but for network interfaces that other hosts are unlikely to reach.
fn without_unlikely(nics: &[Nic], settings: &Settings) -> Found {
    let (interfaces, at): (Vec<_>, Vec<_>) =
        (0..).zip(nics).filter_map(|(at, nic)| Some(((nic.domain.as_str(), nic.address.parse().ok()?), at))).unzip();
    let (taken, left_out) = interfaces::sort_out(&interfaces, settings.sysfs.as_deref());
    let taken: Vec<usize> = taken.into_iter().map(|index| at[index]).collect();
    let is_left = |index: &usize| !at.contains(index) || taken.contains(index);
    let nics = (0..).zip(nics).filter(|(index, _)| is_left(index)).map(|(_, nic)| nic.clone()).collect();
    Found { nics, left_out, unknown: None }
}

/// The names of the library's providers on this machine.
///
/// # Errors
/// The error of libfabric.
pub fn providers(library: &Arc<Library>) -> Result<Vec<String>> {
    let infos = library.fabric.getinfo(None, 0, None).map_err(|code| Error::Fabric {
        call: "fi_getinfo",
        rail: "any".to_owned(),
        fault: fault(&library.fabric, code as isize),
    })?;
    let mut names: Vec<String> = infos.iter().map(Info::provider).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// One NIC per domain of the provider, at an address that an interface has. Of several addresses of a domain, the first
/// IPv4 one is used, or else the first; link-local ones only where there is no other.
fn all_of(library: &Arc<Libfabric>, ask: Ask<'_>) -> Result<Vec<Nic>> {
    let mut infos = hints::negotiate(library, ask)?;
    // libfabric adds 127.0.0.1 and ::1, whether or not the loopback interface has them.
    if let Some(own) = own_addresses() {
        let is_own = |ip: IpAddr| is_link_local(ip) || own.contains(&ip);
        infos.retain(|info| address_text(info).parse().map_or(true, is_own));
    }
    if infos.is_empty() {
        return Ok(Vec::new());
    }
    let delivers = hints::delivers(library, ask)?;
    infos.sort_by_key(|info| {
        let is_link_local = address_text(info).parse().is_ok_and(is_link_local);
        // SAFETY: a live struct.
        (is_link_local, unsafe { (*info.as_ptr()).addr_format } != ffi::FI_SOCKADDR_IN)
    });
    let mut nics: Vec<Nic> = Vec::new();
    for info in infos {
        if !nics.iter().any(|nic| nic.domain == info.domain()) {
            nics.push(Nic::new(info, None, ask, delivers));
        }
    }
    Ok(nics)
}

/// Of NICs of both kinds, those of the loopback interface or all others. Other hosts cannot reach the former.
fn where_they_are_needed(mut nics: Vec<Nic>, loopback: bool) -> Vec<Nic> {
    if nics.iter().any(|nic| nic.is_loopback() == loopback) {
        nics.retain(|nic| nic.is_loopback() == loopback);
    }
    nics
}

/// The NICs of a list, in its order. Names unknown to this provider are left out, because one list may serve hosts with
/// different NICs. So a mistyped name costs a rail.
fn named(library: &Arc<Libfabric>, ask: Ask<'_>, all: &[Nic], names: &[String]) -> Result<Found> {
    let (mut chosen, mut unknown) = (Vec::new(), Vec::new());
    for name in names {
        let before = chosen.len();
        if let Some(nic) = all.iter().find(|nic| nic.is_called(name)) {
            chosen.push(nic.clone());
        } else if provider::is_in_memory(ask.provider) {
            // Shared memory has no devices. shm0, shm1, … are any number of rails.
            let number = name.strip_prefix(ask.provider).unwrap_or_default();
            if !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()) {
                chosen.extend(all.first().map(|nic| Nic { name: name.clone(), ..nic.clone() }));
            }
        } else if name.parse::<IpAddr>().is_ok() && !all.is_empty() {
            // An address that no domain lists, such as any of 127.0.0.0/8, can still be bound to.
            let ask = Ask { node: Some(name), ..ask };
            let delivers = hints::delivers(library, ask)?;
            let first = hints::negotiate(library, ask)?.into_iter().find(|info| address_text(info) == *name);
            chosen.extend(first.map(|info| Nic::new(info, Some(name), ask, delivers)));
        }
        if chosen.len() == before {
            unknown.push(name.as_str());
        }
    }
    // If none is known here, the next provider may know them. Otherwise they become part of the error.
    let (provider, names) = (ask.provider, unknown.join(", "));
    let warning = || {
        format!("SYMRAIL_NIC_LIST: provider {provider} has no {names} on this host; rails are the others of the list")
    };
    let unknown = (!chosen.is_empty() && !unknown.is_empty()).then(warning);
    Ok(Found { nics: chosen, left_out: Vec::new(), unknown })
}

fn no_rail(library: &Arc<Library>, settings: &Settings, wanted: &[String], seen: &[String]) -> Error {
    let mut text = match &settings.libfabric_provider {
        Some(_) => format!("SYMRAIL_LIBFABRIC_PROVIDER={}", wanted.join(",")),
        None => format!("any provider of {}", wanted.join(", ")),
    };
    if let Some(list) = &settings.nic_list {
        text += &format!(" with SYMRAIL_NIC_LIST={}{}", if list.exclude { "^" } else { "" }, list.names.join(","));
    }
    let found = if seen.is_empty() && own_addresses().is_some_and(|own| own.is_empty()) {
        "no interface that is up and has an address (the loopback interface: ip link set lo up)".to_owned()
    } else if seen.is_empty() {
        let names = providers(library).unwrap_or_default();
        if names.is_empty() { "nothing".to_owned() } else { format!("providers {}", names.join(", ")) }
    } else {
        seen.join(", ")
    };
    Error::NoRail { wanted: text, found }
}

/// Device name, PCI address and speed, as far as the provider reports them.
fn device_facts(info: &Info) -> (Option<String>, Option<String>, Option<u64>) {
    let text = |string: *const std::ffi::c_char| {
        // SAFETY: libfabric's strings are zero-terminated and live as long as the info.
        (!string.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(string) }.to_string_lossy().into_owned())
    };
    // SAFETY: a live info; each level is checked before it is entered, and the union is read as its tag says.
    unsafe {
        let Some(nic) = (*info.as_ptr()).nic.as_ref() else { return (None, None, None) };
        let device = nic.device_attr.as_ref().and_then(|device| text(device.name));
        let pci = nic.bus_attr.as_ref().filter(|bus| bus.bus_type == ffi::FI_BUS_PCI).map(|bus| {
            let pci = bus.attr.pci;
            format!("{:04x}:{:02x}:{:02x}.{:x}", pci.domain_id, pci.bus_id, pci.device_id, pci.function_id)
        });
        let speed = nic.link_attr.as_ref().map(|link| link.speed as u64).filter(|speed| *speed != 0);
        (device, pci, speed)
    }
}

/// The local address as text.
fn address_text(info: &Info) -> String {
    let bytes = info.source();
    // SAFETY: a live struct.
    match unsafe { (*info.as_ptr()).addr_format } {
        ffi::FI_SOCKADDR_IN if bytes.len() >= 8 => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).to_string(),
        ffi::FI_SOCKADDR_IN6 if bytes.len() >= 24 => <[u8; 16]>::try_from(&bytes[8..24])
            .map_or_else(|_| String::new(), |bytes| Ipv6Addr::from(bytes).to_string()),
        ffi::FI_ADDR_STR => String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
