//! The rails and cores that a PE started here would use, from the function that a PE calls when it joins its job.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use symrail_transport::Result;
use symrail_transport::backend::{self, Choice, HostPes, Nics};
use symrail_transport::env::{HeapKind, Settings};
use symrail_transport::topology::{Distance, NicLocation, NicPeMapping, NumaAffinity, PciAddress, Ranked, rails_of};

use super::host::Here;
use super::report::{Chosen, Cuda, Rail};

/// Descriptors of a program besides those of connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// The location of a PE started here.
pub struct Place {
    /// The GPU of its heap, if any.
    gpu: Option<PciAddress>,
    affinity: NumaAffinity,
    mapping: Option<NicPeMapping>,
}

impl Place {
    /// A PE's heap on a GPU is on the first GPU; launchers give each PE its own GPU through `CUDA_VISIBLE_DEVICES`, and
    /// the driver numbers GPUs accordingly.
    pub fn new(settings: &Settings, here: &Here, cuda: &Cuda) -> Place {
        let first = cuda.devices.first().filter(|_| settings.heap_kind == HeapKind::Device);
        let gpu: Option<PciAddress> = first.and_then(|gpu| gpu.pci.as_ref()?.parse().ok());
        let device = gpu.and_then(|pci| here.machine.at(pci));
        let affinity = NumaAffinity { gpu: device.map(|device| device.place.clone()), cpus: here.allowed.clone() };
        Place { gpu, affinity, mapping: settings.nic_pe_mapping.as_ref().and_then(|text| text.parse().ok()) }
    }

    /// The rails of a PE that is alone on this host, in the order in which it uses them, with their distances.
    ///
    /// # Errors
    /// The mapping names a NIC that does not exist.
    pub fn in_order(&self, here: &Here, found: Vec<(NicLocation, Rail)>) -> Result<Vec<Rail>> {
        let (nics, rails): (Vec<NicLocation>, Vec<Rail>) = found.into_iter().unzip();
        let pes = std::slice::from_ref(&self.affinity);
        let order = rails_of(&here.machine, &nics, pes, 0, self.mapping.as_ref())?;
        let ranked = |nic: Ranked| {
            let remote = nic.from_gpu.unwrap_or(nic.from_cores) == Distance::Machine;
            Rail { distance: nic.to_string(), remote, ..rails[nic.nic].clone() }
        };
        Ok(order.into_iter().map(ranked).collect())
    }
}

/// Chooses for a PE that is alone on this host.
pub fn find_out(settings: &Settings, here: &Here, place: &Place) -> Chosen {
    let host = HostPes { gpus: vec![place.gpu], ..HostPes::alone(here.allowed.clone()) };
    match backend::choose(settings, &host) {
        Ok(choice) => Chosen {
            ignored: choice.ignored(settings),
            transport: match &choice.nics {
                Nics::Ibverbs(_) => "ibverbs",
                Nics::Libfabric(..) => "libfabric",
            },
            rails: choice.names(),
            most_pes: most_pes(&choice),
            proxy_cores: choice.proxy_cores.clone(),
            why: choice.why(),
        },
        Err(error) => Chosen {
            transport: "none",
            rails: Vec::new(),
            most_pes: None,
            proxy_cores: Vec::new(),
            why: vec![error.to_string()],
            ignored: Vec::new(),
        },
    }
}

/// The largest job whose connections have room in this process's hard limit of descriptors.
fn most_pes(choice: &Choice) -> Option<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok().filter(|(_, hard)| *hard != RLIM_INFINITY)?;
    let always = choice.descriptors(0) + OTHER_DESCRIPTORS;
    let each = choice.descriptors(1) - choice.descriptors(0);
    hard.saturating_sub(always).checked_div(each)
}
