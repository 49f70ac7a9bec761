//! libfabric: the library, its providers and the rails that the settings allow.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use symrail_transport::Error;
use symrail_transport::env::Settings;
use symrail_transport::ofi::{self, Library, Nic, Role};
use symrail_transport::rail::RailCaps;
use symrail_transport::topology::NicLocation;

use super::chosen::Place;
use super::host::Here;
use super::report::{Caps, LeftOut, Libfabric, Missing, Provider, Rail};

/// How long a provider may take to open a rail.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Queries libfabric.
pub fn find_out(settings: &Settings, here: &Here, place: &Place) -> Libfabric {
    let library = match ofi::load(settings) {
        Ok(library) => library,
        Err(error) => return Libfabric { missing: Some(missing(&error)), ..Libfabric::default() },
    };
    let (major, minor) = library.version();
    let found = ofi::discover(&library, settings, false);
    found.iter().filter_map(|found| found.unknown.as_ref()).for_each(|unknown| tracing::warn!("{unknown}"));
    let left_out = found.as_ref().map_or(&[][..], |found| &found.left_out).iter().map(LeftOut::from).collect();
    let rails = found.and_then(|found| place.in_order(here, found.nics.iter().map(|nic| rail(nic, here)).collect()));
    let (rails, no_rails) = rails.map_or_else(|error| (Vec::new(), Some(error.to_string())), |rails| (rails, None));
    Libfabric {
        library: Some(library.path().into()),
        version: Some(format!("{major}.{minor}")),
        missing: None,
        providers: providers(&library, settings),
        rails,
        left_out,
        no_rails,
    }
}

/// The missing library and its remedy.
pub fn missing(error: &Error) -> Missing {
    match error {
        Error::Library { library, reason, remedy } => {
            Missing { reason: format!("{library}: {reason}"), remedy: remedy.clone() }
        }
        other => Missing { reason: other.to_string(), remedy: String::new() },
    }
}

fn rail(nic: &Nic, here: &Here) -> (NicLocation, Rail) {
    let pci = nic.pci.as_ref().and_then(|pci| pci.parse().ok());
    let found = NicLocation::find(&here.machine, nic.device.as_ref().unwrap_or(&nic.name), pci);
    let rail = Rail {
        name: nic.name.clone(),
        provider: nic.provider.clone(),
        details: nic.to_string(),
        pci: nic.pci.clone(),
        distance: String::new(),
        address: nic.address.clone(),
        software: nic.is_software(),
        remote: false,
    };
    (NicLocation { name: nic.name.clone(), ..found }, rail)
}

/// Every provider, with the capabilities that it grants when a rail is opened on its first NIC.
fn providers(library: &Arc<Library>, settings: &Settings) -> Vec<Provider> {
    let names = match ofi::providers(library) {
        Ok(names) => names,
        Err(error) => {
            tracing::warn!("{error}");
            return Vec::new();
        }
    };
    names.into_iter().filter_map(|name| provider(library, settings, name)).collect()
}

/// Providers are foreign code that may wait for hardware: a separate thread queries each, and is abandoned after a
/// while. `None` for a name that only stands for another provider (`tcp` for `tcp;ofi_rxm`).
fn provider(library: &Arc<Library>, settings: &Settings, name: String) -> Option<Provider> {
    let mut settings = settings.clone();
    settings.libfabric_provider = Some(name.clone());
    settings.nic_list = None;
    let (answer, answered) = mpsc::channel();
    let library = library.clone();
    std::thread::spawn(move || {
        let asked = ofi::discover(&library, &settings, false).and_then(|found| {
            let nics = found.nics;
            let first = nics.first().map(|nic| ofi::open(&library, nic, Role::Host, &settings)).transpose()?;
            let provider = nics.first().map(|nic| nic.provider.clone());
            Ok((provider, nics.len(), first.map(|rail| caps(rail.caps()))))
        });
        // A late answer has no receiver any more.
        let _ = answer.send(asked);
    });
    let (rails, caps, problem) = match answered.recv_timeout(TIME_LIMIT) {
        Ok(Ok((provider, ..))) if provider.as_ref().is_some_and(|provider| *provider != name) => return None,
        Ok(Ok((_, rails, caps))) => (rails, caps, None),
        Ok(Err(Error::NoRail { .. })) => (0, None, Some("no reliable datagrams with RMA and messages".into())),
        Ok(Err(error)) => (0, None, Some(error.to_string())),
        Err(_) => (0, None, Some(format!("did not open a rail within {} s", TIME_LIMIT.as_secs()))),
    };
    Some(Provider { name, rails, caps, problem })
}

fn caps(caps: &RailCaps) -> Caps {
    Caps {
        progress: caps.progress.clone(),
        write_after_write: caps.order.write_after_write,
        send_after_write: caps.order.send_after_write,
        send_after_send: caps.order.send_after_send,
        immediate: caps.immediate > 0,
        inject_bytes: caps.inject,
        max_rma_bytes: caps.max_rma,
        queue_depth: caps.queue_depth,
        local_registration: caps.local_registration,
    }
}
