//! Topology: which rails are near which cores and GPUs, and the decisions that follow.
//!
//! | file | concept |
//! |---|---|
//! | [`place`] | the abstract machine: domains of cores, devices behind bridges, and the [`Distance`] between two places |
//! | [`detect`] | fills a [`Machine`] from `/sys`, or from a folder like it that describes another machine |
//! | [`locate`] | finds the place of a NIC of which only a name, a PCI address or an IP address is known; lists own addresses |
//! | [`affinity`] | orders rails for one PE, and spreads NICs over the PEs of a host |
//! | [`mapping`] | `NIC_PE_MAPPING`, the user's own assignment |
//! | [`proxy_core`] | the cores that proxy threads are pinned to |
//!
//! Only `detect`, `locate` and [`allowed_cpus`] read the machine. All decisions are pure functions of a [`Machine`].

pub mod affinity;
pub mod detect;
pub mod locate;
pub mod mapping;
pub mod place;
pub mod proxy_core;

pub use affinity::{NumaAffinity, Ranked, order, rails_of, spread};
pub use locate::{NicLocation, address_by_ifname, address_of, own_addresses, prefix_of};
pub use mapping::NicPeMapping;
pub use place::{CpuSet, Distance, Machine, Place, allowed_cpus};
pub use proxy_core::{ProxyPe, proxy_cores};
pub use symrail_core::PciAddress;
