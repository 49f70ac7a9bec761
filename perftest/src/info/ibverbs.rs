//! libibverbs: the library, its devices' ports, and the rails that the settings allow.

use symrail_transport::env::Settings;
use symrail_transport::topology::NicLocation;
use symrail_transport::verbs::{self, Nic};

use super::chosen::Place;
use super::host::Here;
use super::libfabric::missing;
use super::report::{Ibverbs, Rail};

/// Queries libibverbs.
pub fn find_out(settings: &Settings, here: &Here, place: &Place) -> Ibverbs {
    let library = match verbs::load(settings) {
        Ok(library) => library,
        Err(error) => return Ibverbs { missing: Some(missing(&error)), ..Ibverbs::default() },
    };
    let rails = verbs::discover(settings)
        .and_then(|nics| place.in_order(here, nics.iter().map(|nic| rail(nic, here, settings)).collect()));
    let (rails, no_rails) = match rails {
        Ok(rails) if rails.is_empty() => (rails, Some("no InfiniBand devices on this machine".into())),
        Ok(rails) => (rails, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let ports = verbs::all(&library).unwrap_or_default();
    Ibverbs {
        library: Some(library.path().display().to_string()),
        missing: None,
        ports: ports.iter().map(ToString::to_string).collect(),
        inactive: ports.iter().filter(|port| !port.active).map(|port| port.name.clone()).collect(),
        rails,
        no_rails,
    }
}

fn rail(nic: &Nic, here: &Here, settings: &Settings) -> (NicLocation, Rail) {
    let pci = nic.pci.as_ref().and_then(|pci| pci.parse().ok());
    let found = NicLocation::find(&here.machine, &nic.device, pci);
    let rail = Rail {
        name: nic.name.clone(),
        provider: "verbs".into(),
        details: format!("{}: port {} of {}, {}", nic.name, nic.port, nic.device, gid(nic, settings)),
        pci: nic.pci.clone(),
        distance: String::new(),
        address: String::new(),
        software: false,
        remote: false,
    };
    (NicLocation { name: format!("{}:{}", nic.device, nic.port), ..found }, rail)
}

/// The GID that a PE would use.
fn gid(nic: &Nic, settings: &Settings) -> String {
    nic.gid(settings).map_or_else(|| "no GID that the settings allow".into(), |gid| format!("GID {gid}"))
}
