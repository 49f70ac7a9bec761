//! Choosing a backend and opening a PE's rails.

use std::sync::Arc;

use crate::endpoint::{Endpoint, Role};
use crate::env::{Settings, TransportKind};
use crate::error::{Error, Result};
use crate::rail::Rail;
use crate::topology::{Machine, Near, NicLocation, PciAddress, Ranked, affinity, detect};
use crate::{ofi, verbs};

/// The NICs of one backend, in the order in which they become lanes.
pub enum Nics {
    /// libfabric's.
    Libfabric(Arc<ofi::Library>, Vec<ofi::Nic>),
    /// ibverbs'.
    Ibverbs(Vec<verbs::Nic>),
}

/// What was chosen, and why.
pub struct Choice {
    /// The NICs.
    pub nics: Nics,
    /// Reasons, one sentence each, for `symrail info` and the log.
    pub reasons: Vec<String>,
}

/// Finds the NICs that the settings allow and puts them in order: as `NIC_LIST` names them, else the nearest first.
///
/// # Errors
/// [`Error::Library`] or [`Error::NoRail`] of the backend that was asked for (with `auto`: of libfabric).
pub fn choose(settings: &Settings) -> Result<Choice> {
    let mut reasons = Vec::new();
    match settings.transport {
        TransportKind::Ibverbs => {
            let nics = verbs::discover(settings)?;
            if nics.is_empty() {
                return Err(Error::NoRail { wanted: "SYMRAIL_TRANSPORT=ibverbs".into(), found: "nothing".into() });
            }
            return Ok(ibverbs(&nics, settings, reasons));
        }
        TransportKind::Auto if settings.libfabric_provider.is_none() => match verbs::discover(settings) {
            Ok(nics) if nics.iter().any(|n| n.active) => {
                reasons.push("ibverbs: there is an active RDMA port".into());
                return Ok(ibverbs(&nics, settings, reasons));
            }
            Ok(_) => reasons.push("libfabric: there is no active RDMA port for ibverbs".into()),
            Err(error) => reasons.push(format!("libfabric: ibverbs cannot be used: {error}")),
        },
        TransportKind::Auto => reasons.push("libfabric: SYMRAIL_LIBFABRIC_PROVIDER is set".into()),
        TransportKind::Libfabric => reasons.push("libfabric: SYMRAIL_TRANSPORT=libfabric".into()),
    }
    let library = ofi::load(settings)?;
    let nics = ofi::discover(&library, settings)?;
    let named: Vec<_> = nics.iter().map(|n| (n.name.as_str(), n.pci.as_deref())).collect();
    let order = order(&named, settings, &mut reasons);
    let nics = order.into_iter().take(settings.libfabric_max_nic_per_pe).map(|i| nics[i].clone()).collect();
    Ok(Choice { nics: Nics::Libfabric(library, nics), reasons })
}

fn ibverbs(nics: &[verbs::Nic], settings: &Settings, mut reasons: Vec<String>) -> Choice {
    let named: Vec<_> = nics.iter().map(|n| (n.name.as_str(), n.pci.as_deref())).collect();
    let order = order(&named, settings, &mut reasons);
    let nics = order.into_iter().map(|i| nics[i].clone()).collect();
    Choice { nics: Nics::Ibverbs(nics), reasons }
}

/// The indexes of the NICs in lane order.
fn order(nics: &[(&str, Option<&str>)], settings: &Settings, reasons: &mut Vec<String>) -> Vec<usize> {
    let as_given = || (0..nics.len()).collect();
    if nics.len() < 2 {
        return as_given();
    }
    if settings.nic_list.as_ref().is_some_and(|l| !l.exclude) {
        reasons.push("rails in the order of SYMRAIL_NIC_LIST".into());
        return as_given();
    }
    let (machine, cpus) = match detect::this_machine() {
        Ok(found) => found,
        Err(error) => {
            reasons.push(format!("rails in the order of discovery: the topology is unknown ({error})"));
            return as_given();
        }
    };
    let ranked = rank(&machine, nics, cpus);
    for r in &ranked {
        reasons.push(format!("rail {}: {r}", nics[r.nic].0));
    }
    ranked.into_iter().map(|r| r.nic).collect()
}

fn rank(machine: &Machine, nics: &[(&str, Option<&str>)], cpus: crate::topology::CpuSet) -> Vec<Ranked> {
    let pci = |text: Option<&str>| text.and_then(|t| t.parse::<PciAddress>().ok());
    let places: Vec<_> = nics.iter().map(|(name, at)| NicLocation::find(machine, name, pci(*at))).collect();
    affinity::order(machine, &places, &Near { gpu: None, cpus })
}

impl Choice {
    /// The rails' names, in lane order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match &self.nics {
            Nics::Libfabric(_, nics) => nics.iter().map(|n| n.name.clone()).collect(),
            Nics::Ibverbs(nics) => nics.iter().map(|n| n.name.clone()).collect(),
        }
    }

    /// Opens the rails of one endpoint: the first NIC for the host endpoint, all for the proxy endpoint.
    ///
    /// # Errors
    /// What the backend says.
    pub fn open(&self, role: Role, n_pes: u32, settings: &Settings) -> Result<Vec<Box<dyn Rail>>> {
        let take = if role == Role::Host { 1 } else { usize::MAX };
        let destinations = Endpoint::destinations(role, n_pes);
        match &self.nics {
            Nics::Libfabric(library, nics) => {
                nics.iter().take(take).map(|nic| ofi::open(library, nic, role, settings)).collect()
            }
            Nics::Ibverbs(nics) => {
                nics.iter().take(take).map(|nic| verbs::open(nic, role, destinations, settings)).collect()
            }
        }
    }
}
