//! What a PE started here would use, decided from what was found.

use symrail_transport::Result;
use symrail_transport::env::{HeapKind, Settings, TransportKind};
use symrail_transport::topology::{Near, NicLocation, NicPeMapping, ProxySeat, proxy_core, rails_of};

use super::host::Here;
use super::report::{Chosen, Cuda, Ibverbs, Libfabric, Rail};

/// What a PE started here is near to.
pub struct Place {
    pub near: Near,
    /// In words.
    pub why: String,
    mapping: Option<NicPeMapping>,
}

impl Place {
    /// The rails of a PE that is alone on this host, in the order in which it uses them, with their distances.
    ///
    /// # Errors
    /// The mapping names a NIC that does not exist.
    pub fn in_order(&self, here: &Here, found: Vec<(NicLocation, Rail)>) -> Result<Vec<Rail>> {
        let (nics, rails): (Vec<NicLocation>, Vec<Rail>) = found.into_iter().unzip();
        let pes = std::slice::from_ref(&self.near);
        let order = rails_of(&here.machine, &nics, pes, 0, self.mapping.as_ref())?;
        Ok(order.into_iter().map(|nic| Rail { distance: nic.to_string(), ..rails[nic.nic].clone() }).collect())
    }
}

/// A PE's heap is on the first GPU when it is on a GPU at all; launchers give each PE its own through
/// `CUDA_VISIBLE_DEVICES`, which the driver's numbering follows.
pub fn near(settings: &Settings, here: &Here, cuda: &Cuda) -> Place {
    let gpu = cuda.devices.first().filter(|_| settings.heap_kind == HeapKind::Device);
    let device = gpu.and_then(|gpu| here.machine.at(gpu.pci.as_ref()?.parse().ok()?));
    let mapping = settings.nic_pe_mapping.as_ref().and_then(|text| text.parse().ok());
    let why = match (gpu, device) {
        _ if mapping.is_some() => "as SYMRAIL_NIC_PE_MAPPING says for the first PE of a host".into(),
        (Some(gpu), Some(_)) => {
            format!("nearest to GPU {} first, then to the cores that this process may use", gpu.number)
        }
        (Some(gpu), None) => {
            format!("nearest to this process's cores first (where GPU {} is, is not known)", gpu.number)
        }
        _ => "nearest to the cores that this process may use first".into(),
    };
    let gpu = device.map(|device| device.place.clone());
    Place { near: Near { gpu, cpus: here.allowed.clone() }, why, mapping }
}

/// Applies `TRANSPORT` to what was found.
pub fn decide(settings: &Settings, here: &Here, place: &Place, libfabric: &Libfabric, ibverbs: &Ibverbs) -> Chosen {
    let (transport, why, rails) = transport(settings, libfabric, ibverbs);
    let first = rails.first().map(|rail| {
        let pci = rail.pci.as_ref().and_then(|pci| pci.parse().ok());
        NicLocation::find(&here.machine, &rail.name, pci)
    });
    let device = place.near.gpu.as_ref().or(first.as_ref().and_then(|nic| nic.place.as_ref()));
    let seat = ProxySeat { allowed: here.allowed.clone(), own: None, near: device, local_pe: 0, local_pes: 1 };
    let proxy_core = proxy_core(&here.machine, &seat);
    Chosen {
        transport,
        why,
        rails: rails.iter().map(|rail| rail.name.clone()).collect(),
        order: place.why.clone(),
        proxy_core,
        proxy_core_why: match (proxy_core, device) {
            (None, _) => "too few cores: the scheduler places the proxy thread".into(),
            (_, Some(_)) => "nearest to what the proxy talks to".into(),
            (_, None) => "the last allowed core".into(),
        },
    }
}

fn transport<'a>(
    settings: &Settings,
    libfabric: &'a Libfabric,
    ibverbs: &'a Ibverbs,
) -> (&'static str, String, &'a [Rail]) {
    let reason = |missing: &Option<super::report::Missing>, no_rails: &Option<String>| {
        missing.as_ref().map(|missing| missing.reason.clone()).or_else(|| no_rails.clone()).unwrap_or_default()
    };
    let no_verbs = reason(&ibverbs.missing, &ibverbs.no_rails);
    let no_libfabric = reason(&libfabric.missing, &libfabric.no_rails);
    let (verbs, fabric) = (!ibverbs.rails.is_empty(), !libfabric.rails.is_empty());
    match settings.transport {
        TransportKind::Ibverbs if verbs => ("ibverbs", "SYMRAIL_TRANSPORT asks for it".into(), &ibverbs.rails),
        TransportKind::Ibverbs => ("none", format!("SYMRAIL_TRANSPORT asks for ibverbs, but: {no_verbs}"), &[]),
        TransportKind::Libfabric if fabric => ("libfabric", "SYMRAIL_TRANSPORT asks for it".into(), &libfabric.rails),
        TransportKind::Libfabric => ("none", format!("SYMRAIL_TRANSPORT asks for libfabric, but: {no_libfabric}"), &[]),
        TransportKind::Auto if verbs => ("ibverbs", "there is a usable device".into(), &ibverbs.rails),
        TransportKind::Auto if fabric => ("libfabric", format!("ibverbs is not usable: {no_verbs}"), &libfabric.rails),
        TransportKind::Auto => ("none", format!("ibverbs: {no_verbs}; libfabric: {no_libfabric}"), &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(name: &str) -> Rail {
        Rail { name: name.into(), provider: String::new(), details: String::new(), pci: None, distance: String::new() }
    }

    #[test]
    fn the_transport_follows_the_setting_and_what_is_there() {
        let fabric = |rails| Libfabric { rails, no_rails: Some("no provider".into()), ..Libfabric::default() };
        let verbs = |rails| Ibverbs { rails, no_rails: Some("no devices".into()), ..Ibverbs::default() };
        let choose = |kind, libfabric: &Libfabric, ibverbs: &Ibverbs| {
            let mut settings = Settings::default();
            settings.transport = kind;
            let (transport, why, _) = transport(&settings, libfabric, ibverbs);
            (transport, why)
        };
        let (some_fabric, some_verbs) = (fabric(vec![rail("eth0")]), verbs(vec![rail("mlx5_0")]));
        let (no_fabric, no_verbs) = (fabric(vec![]), verbs(vec![]));
        assert_eq!(choose(TransportKind::Auto, &some_fabric, &some_verbs).0, "ibverbs");
        assert_eq!(choose(TransportKind::Libfabric, &some_fabric, &some_verbs).0, "libfabric");
        let (transport, why) = choose(TransportKind::Auto, &some_fabric, &no_verbs);
        assert!(transport == "libfabric" && why.contains("no devices"), "{why}");
        let (transport, why) = choose(TransportKind::Ibverbs, &some_fabric, &no_verbs);
        assert!(transport == "none" && why.contains("no devices"), "{why}");
        let (transport, why) = choose(TransportKind::Auto, &no_fabric, &no_verbs);
        assert!(transport == "none" && why.contains("no devices") && why.contains("no provider"), "{why}");
    }
}
