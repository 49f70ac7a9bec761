//! Choosing a backend and opening a PE's rails.

use std::sync::Arc;

use crate::descriptors;
use crate::endpoint::{Endpoint, Role};
use crate::env::{AmoPath, GpuDirect, Settings, TransportKind};
use crate::error::{Error, Result};
use crate::proxy_threads::{Share, Threads};
use crate::rail::Rail;
use crate::topology::{
    CpuSet, Machine, NicLocation, NicPeMapping, NumaAffinity, PciAddress, Place, ProxyPe, detect, proxy_cores, rails_of,
};
use crate::{ofi, verbs};

/// Descriptors that a rail over TCP takes without any connection, rounded up.
const DESCRIPTORS_OF_A_RAIL: u64 = 16;

/// The NICs of one backend, in lane order.
pub enum Nics {
    /// NICs of libfabric.
    Libfabric(Arc<ofi::Library>, Vec<ofi::Nic>),
    /// NICs of ibverbs.
    Ibverbs(Vec<verbs::Nic>),
}

/// The PEs of a host: the cores that each may use, and which of them this PE is.
#[derive(Debug, Clone)]
pub struct HostPes {
    /// The cores that each PE of the host may use, in PE order.
    pub cpus: Vec<CpuSet>,
    /// The index of this PE in `cpus`.
    pub local_pe: usize,
    /// This PE's index among the PEs of this *machine* that may run on some of its cores. PEs that simulate different
    /// hosts share one machine.
    pub sharing_index: usize,
    /// The number of those PEs, this one included.
    pub sharing_pes: usize,
    /// For each PE of the host in the same order: where its heap is, if on a GPU.
    pub gpus: Vec<Option<PciAddress>>,
    /// Whether all PEs of the job are known to be reachable over one loopback interface.
    pub all_here: bool,
}

impl HostPes {
    /// A PE that is alone on its host and may use `cpus`.
    #[must_use]
    pub fn alone(cpus: CpuSet) -> HostPes {
        HostPes::alike(cpus, 0, 1)
    }

    /// One of `local_pes` PEs of a host that may all use `cpus`: the assumption where the cores of other PEs are not
    /// known.
    #[must_use]
    pub fn alike(cpus: CpuSet, local_pe: usize, local_pes: usize) -> HostPes {
        HostPes {
            cpus: vec![cpus; local_pes],
            local_pe,
            sharing_index: local_pe,
            sharing_pes: local_pes,
            gpus: vec![None; local_pes],
            all_here: false,
        }
    }
}

/// The chosen backend and rails, and why.
pub struct Choice {
    /// The NICs.
    pub nics: Nics,
    /// The IB mode of all NICs and the reason for it, if the backend is ibverbs.
    pub ib_mode: Option<(verbs::Mode, String)>,
    /// The number of proxy threads for a PE that has channels. A session has one.
    pub threads: Threads,
    /// The core for each proxy thread; `None` leaves it to the scheduler.
    pub proxy_cores: Vec<Option<usize>>,
    /// The number of cores for each of the PEs that share them.
    pub cores_each: usize,
    /// Reasons, one sentence each, for `symrail info` and the log.
    pub reasons: Vec<String>,
    /// Which network interfaces are no rails, and why: the same for all PEs of a host.
    pub left_out: Option<String>,
    /// The names of `NIC_LIST` that this host has no rail for, in one sentence: the same for all PEs of a host.
    /// [`Choice::log`] warns.
    pub unknown: Option<String>,
}

/// Finds the NICs that the settings allow and orders them: as `NIC_LIST` names them, or else as the topology spreads
/// them over the PEs of the host.
///
/// # Errors
/// [`Error::Library`] or [`Error::NoRail`] of the requested backend (with `auto`: of libfabric); an error for a mapping
/// that names a NIC that does not exist.
pub fn choose(settings: &Settings, host: &HostPes) -> Result<Choice> {
    let mut reasons = Vec::new();
    let cores_each = host.cpus.get(host.local_pe).map_or(0, |cpus| cpus.len() / host.sharing_pes.max(1));
    let verbs = match settings.transport {
        TransportKind::Ibverbs => {
            let nics = verbs::discover(settings)?;
            if nics.is_empty() {
                let found =
                    "no RDMA devices (with SYMRAIL_TRANSPORT=auto, libfabric's providers are looked for too)".into();
                return Err(Error::NoRail { wanted: "SYMRAIL_TRANSPORT=ibverbs".into(), found });
            }
            reasons.push("ibverbs: SYMRAIL_TRANSPORT=ibverbs".into());
            Some(nics)
        }
        TransportKind::Auto if settings.libfabric_provider.is_none() => match verbs::discover(settings) {
            Ok(nics) if nics.iter().any(|n| n.active) => {
                reasons.push("ibverbs: there is an active RDMA port".into());
                Some(nics)
            }
            Ok(_) => {
                reasons.push("libfabric: there is no active RDMA port for ibverbs".into());
                None
            }
            Err(error) => {
                reasons.push(format!("libfabric: ibverbs cannot be used: {error}"));
                None
            }
        },
        TransportKind::Auto => {
            reasons.push("libfabric: SYMRAIL_LIBFABRIC_PROVIDER is set".into());
            None
        }
        TransportKind::Libfabric => {
            reasons.push("libfabric: SYMRAIL_TRANSPORT=libfabric".into());
            None
        }
    };
    if let Some(nics) = verbs {
        let named: Vec<_> = nics.iter().map(|n| (n.name.as_str(), n.pci.as_deref())).collect();
        let places = place(&named, settings, host, &mut reasons)?;
        let nics: Vec<_> = places.order.iter().map(|&i| nics[i].clone()).collect();
        reasons.extend(nics.iter().filter_map(|nic| Some(format!("rail {}: GID {}", nic.name, nic.gid(settings)?))));
        let mode = verbs::decide(&nics, settings)?;
        reasons.push(format!("IB mode {}: {}", mode.0, mode.1));
        let threads = Threads::choose(settings, nics.len(), cores_each, mode.0 == verbs::Mode::RdmaAtomics);
        let (proxy_cores, nics) = (places.proxy_cores(host, threads.number), Nics::Ibverbs(nics));
        return Ok(Choice {
            nics,
            ib_mode: Some(mode),
            threads,
            proxy_cores,
            cores_each,
            reasons,
            left_out: None,
            unknown: None,
        });
    }
    let library = ofi::load(settings)?;
    let ofi::Found { nics, left_out, unknown } = ofi::discover(&library, settings, host.all_here)?;
    let left_out: Vec<_> = left_out.iter().map(ToString::to_string).collect();
    let left_out =
        (!left_out.is_empty()).then(|| format!("no rails: {}; SYMRAIL_NIC_LIST can name them", left_out.join(", ")));
    if host.all_here && settings.nic_list.is_none() && nics.iter().all(ofi::Nic::is_loopback) {
        reasons.push("loopback only: all PEs are on this machine".into());
    }
    let named: Vec<_> = nics.iter().map(|n| (n.name.as_str(), n.pci.as_deref())).collect();
    let places = place(&named, settings, host, &mut reasons)?;
    let most = settings.libfabric_max_nic_per_pe;
    let nics: Vec<_> = places.order.iter().take(most).map(|&i| nics[i].clone()).collect();
    let threads = Threads::choose(settings, nics.len(), cores_each, settings.amo_path == AmoPath::Native);
    let (proxy_cores, nics) = (places.proxy_cores(host, threads.number), Nics::Libfabric(library, nics));
    Ok(Choice { nics, ib_mode: None, threads, proxy_cores, cores_each, reasons, left_out, unknown })
}

/// Whether the rails that these settings choose may read and write a GPU's memory, as far as that is known before a
/// rail is open.
#[must_use]
pub fn reaches_gpus(settings: &Settings) -> bool {
    if settings.gpudirect == GpuDirect::Off {
        return false;
    }
    match choose(settings, &HostPes::alone(CpuSet::new())) {
        Ok(Choice { nics: Nics::Ibverbs(_), .. }) => true,
        Ok(Choice { nics: Nics::Libfabric(_, nics), .. }) => nics.iter().all(|nic| !nic.is_software()),
        Err(_) => false,
    }
}

/// Where the NICs are.
struct Places {
    /// The indexes of the NICs in lane order.
    order: Vec<usize>,
    /// The machine, unless it was not worth reading, and the places of each NIC and of the PE's GPU.
    machine: Option<Machine>,
    nics: Vec<Option<Place>>,
    gpu: Option<Place>,
}

impl Places {
    /// The core of each of so many proxy threads. A single thread gets one near the GPU; each of several gets one near
    /// its first rail's NIC.
    fn proxy_cores(&self, host: &HostPes, threads: usize) -> Vec<Option<usize>> {
        let Some(machine) = &self.machine else { return vec![None; threads] };
        let nic = |thread: usize| self.nics.get(*self.order.get(thread)?)?.as_ref();
        let talks_to = |thread| match threads {
            1 => self.gpu.as_ref().or(nic(thread)),
            _ => nic(thread).or(self.gpu.as_ref()),
        };
        let pe = ProxyPe {
            allowed: host.cpus.get(host.local_pe).cloned().unwrap_or_default(),
            own: None,
            talks_to: (0..threads).map(talks_to).collect(),
            sharing_index: host.sharing_index,
            sharing_pes: host.sharing_pes,
        };
        proxy_cores(machine, &pe)
    }
}

/// The NICs in lane order, and the places of everything.
fn place(
    nics: &[(&str, Option<&str>)],
    settings: &Settings,
    host: &HostPes,
    reasons: &mut Vec<String>,
) -> Result<Places> {
    let as_given: Vec<usize> = (0..nics.len()).collect();
    let mapping: Option<NicPeMapping> = settings.nic_pe_mapping.as_ref().map(|text| text.parse()).transpose()?;
    let listed = settings.nic_list.as_ref().is_some_and(|l| !l.exclude) && mapping.is_none();
    let few_cores = host.cpus.get(host.local_pe).is_none_or(|cpus| cpus.len() <= 2);
    let anywhere = |order| Places { order, machine: None, nics: Vec::new(), gpu: None };
    if few_cores && mapping.is_none() && (listed || nics.len() < 2) {
        return Ok(anywhere(as_given)); // there is no choice to make, and reading the topology takes time
    }
    let machine = detect::machine(settings.sysfs.as_deref());
    let pci = |text: Option<&str>| text.and_then(|t| t.parse::<PciAddress>().ok());
    let places: Vec<_> = nics.iter().map(|(name, at)| NicLocation::find(&machine, name, pci(*at))).collect();
    let pes = affinities(&machine, host);
    let order = if listed {
        reasons.push("rails in the order of SYMRAIL_NIC_LIST".into());
        as_given
    } else {
        let ranked = rails_of(&machine, &places, &pes, host.local_pe, mapping.as_ref())?;
        reasons.extend(ranked.iter().map(|r| format!("rail {}: {r}", nics[r.nic].0)));
        ranked.into_iter().map(|r| r.nic).collect()
    };
    let gpu = pes.get(host.local_pe).and_then(|affinity| affinity.gpu.clone());
    let nics = places.into_iter().map(|nic| nic.place).collect();
    Ok(Places { order, machine: Some(machine), nics, gpu })
}

/// For each PE of the host, the GPU and the cores that its NICs should be near to.
fn affinities(machine: &Machine, host: &HostPes) -> Vec<NumaAffinity> {
    let place = |gpu: &Option<PciAddress>| Some(machine.at((*gpu)?)?.place.clone());
    let gpus = host.gpus.iter().map(place).chain(std::iter::repeat(None));
    host.cpus.iter().zip(gpus).map(|(cpus, gpu)| NumaAffinity { gpu, cpus: cpus.clone() }).collect()
}

impl Choice {
    /// Logs what is the same for all PEs of a host, on the first of them: a warning about names of `NIC_LIST` that are
    /// unknown, and the interfaces that are no rails.
    pub fn log(&self, host: &HostPes) {
        let first = host.local_pe == 0;
        match &self.unknown {
            Some(unknown) if first => tracing::warn!("{unknown}"),
            _ => {}
        }
        match &self.left_out {
            Some(left_out) if first => tracing::info!("{left_out}"),
            Some(left_out) => tracing::debug!("{left_out}"),
            None => {}
        }
    }

    /// All reasons, one sentence each.
    #[must_use]
    pub fn why(&self) -> Vec<String> {
        self.reasons.iter().chain(&self.left_out).chain([&self.threads.reason]).cloned().collect()
    }

    /// The rails' names, in lane order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match &self.nics {
            Nics::Libfabric(_, nics) => nics.iter().map(|n| n.name.clone()).collect(),
            Nics::Ibverbs(nics) => nics.iter().map(|n| n.name.clone()).collect(),
        }
    }

    /// A description of the NICs, in lane order.
    #[must_use]
    pub fn details(&self) -> Vec<String> {
        match &self.nics {
            Nics::Libfabric(_, nics) => nics.iter().map(ToString::to_string).collect(),
            Nics::Ibverbs(nics) => nics.iter().map(ToString::to_string).collect(),
        }
    }

    /// One sentence for each user setting that has no effect with this choice.
    #[must_use]
    pub fn ignored(&self, settings: &Settings) -> Vec<String> {
        settings.ignored(matches!(self.nics, Nics::Ibverbs(..)))
    }

    /// Whether there are cores enough for the own threads of the PEs that share them and for so many proxy threads of
    /// each.
    #[must_use]
    pub fn spare_core(&self, proxy_threads: usize) -> bool {
        self.cores_each > proxy_threads
    }

    /// Whether providers or NICs perform all AMOs and signals, including those on this PE's own memory; otherwise CPUs
    /// perform all of them.
    #[must_use]
    pub fn native_amo(&self, settings: &Settings) -> bool {
        match &self.ib_mode {
            Some((mode, _)) => *mode == verbs::Mode::RdmaAtomics,
            None => settings.amo_path == AmoPath::Native,
        }
    }

    /// Whether a PE may open further host endpoints after its peers have connected. It may where a connection needs no
    /// exchange between both ends.
    #[must_use]
    pub fn opens_more(&self) -> bool {
        matches!(self.nics, Nics::Libfabric(..))
    }

    /// Opens the rails of one endpoint, one on each NIC.
    ///
    /// # Errors
    /// The error of the backend.
    pub fn open(&self, role: Role, n_pes: u32, settings: &Settings) -> Result<Vec<Box<dyn Rail>>> {
        let all: Vec<usize> = (0..self.names().len()).collect();
        self.open_some(&all, role, n_pes, settings)
    }

    /// Opens the rails of a proxy endpoint that
    /// [knows only peers that are connected](Endpoint::know_only_connected), about so many at a time.
    ///
    /// # Errors
    /// The error of the backend.
    pub fn open_for_any(&self, expected: u32, settings: &Settings) -> Result<Vec<Box<dyn Rail>>> {
        let Nics::Ibverbs(nics) = &self.nics else { return self.open(Role::Proxy, expected, settings) };
        let open = |nic| self.open_verbs(nic, Role::Proxy, verbs::Destinations::Any(expected), settings);
        nics.iter().map(open).collect()
    }

    fn open_verbs(
        &self,
        nic: &verbs::Nic,
        role: Role,
        destinations: verbs::Destinations,
        settings: &Settings,
    ) -> Result<Box<dyn Rail>> {
        let decide = || verbs::decide(std::slice::from_ref(nic), settings);
        verbs::open(nic, role, destinations, self.ib_mode.clone().map_or_else(decide, Ok)?, settings)
    }

    /// Opens the rails of a proxy thread's endpoint, or of a host endpoint whose requests that thread's agent answers.
    ///
    /// # Errors
    /// The error of the backend.
    pub fn open_share(&self, share: &Share, role: Role, n_pes: u32, settings: &Settings) -> Result<Vec<Box<dyn Rail>>> {
        self.open_some(&share.rails, role, n_pes, settings)
    }

    /// Opens a single rail for an endpoint, on the first NIC.
    ///
    /// # Errors
    /// The error of the backend.
    pub fn open_first(&self, role: Role, n_pes: u32, settings: &Settings) -> Result<Vec<Box<dyn Rail>>> {
        self.open_some(&[0], role, n_pes, settings)
    }

    /// Descriptors that the connections of a PE's host and proxy endpoint may take; 0 where connections take none.
    #[must_use]
    pub fn descriptors(&self, n_pes: u32) -> u64 {
        let of = |role| self.descriptors_of(self.names().len(), role, n_pes);
        of(Role::Host) + of(Role::Proxy)
    }

    fn descriptors_of(&self, rails: usize, role: Role, n_pes: u32) -> u64 {
        match &self.nics {
            Nics::Libfabric(_, nics) if nics.iter().any(ofi::Nic::is_software) => {
                rails as u64 * (u64::from(Endpoint::destinations(role, n_pes)) + DESCRIPTORS_OF_A_RAIL)
            }
            _ => 0,
        }
    }

    fn open_some(&self, rails: &[usize], role: Role, n_pes: u32, settings: &Settings) -> Result<Vec<Box<dyn Rail>>> {
        let destinations = Endpoint::destinations(role, n_pes);
        let needed = self.descriptors_of(rails.len(), role, n_pes);
        if needed > 0 {
            descriptors::make_room(needed);
        }
        match &self.nics {
            Nics::Libfabric(library, nics) => rails
                .iter()
                .filter_map(|&rail| nics.get(rail))
                .map(|nic| ofi::open(library, nic, role, settings))
                .collect(),
            Nics::Ibverbs(nics) => {
                let nics = rails.iter().filter_map(|&rail| nics.get(rail));
                nics.map(|nic| self.open_verbs(nic, role, destinations.into(), settings)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::topology::place::Device;

    #[test]
    fn pes_whose_gpus_share_two_nics_begin_with_one_each() {
        let at = |bus, bridges: &[u64]| Device {
            pci: PciAddress { domain: 0, bus, device: 0, function: 0 },
            place: Place { cpus: [0, 1].into(), bridges: bridges.to_vec() },
            names: Vec::new(),
        };
        // Two GPUs and two NICs are behind one switch; another NIC elsewhere comes first in the list.
        let devices = vec![at(1, &[1]), at(2, &[2, 3]), at(3, &[2, 3]), at(4, &[2, 3]), at(5, &[2, 3])];
        let nic = |device: usize| NicLocation { name: String::new(), place: Some(devices[device].place.clone()) };
        let nics = [nic(0), nic(1), nic(2)];
        let machine = Machine { devices: devices.clone(), ..Machine::default() };
        let first = |local_pe, gpus: Vec<_>| {
            let host = HostPes { gpus, ..HostPes::alike([0, 1].into(), local_pe, 2) };
            rails_of(&machine, &nics, &affinities(&machine, &host), local_pe, None).unwrap()[0].nic
        };
        let gpus = || vec![Some(devices[3].pci), Some(devices[4].pci)];
        assert_eq!((first(0, gpus()), first(1, gpus())), (1, 2));
        assert_eq!(first(1, vec![Some(devices[3].pci), None]), 0);
        assert_eq!(first(1, Vec::new()), 1);
    }

    #[test]
    fn pes_of_a_host_have_seats_of_their_own() {
        let sharing = |host: HostPes| (host.sharing_index, host.sharing_pes);
        let all = [0, 1, 2].map(|pe| sharing(HostPes::alike([0, 1].into(), pe, 3)));
        assert_eq!(all, [(0, 3), (1, 3), (2, 3)]);
        assert_eq!(sharing(HostPes::alone([0].into())), (0, 1));
    }
}
