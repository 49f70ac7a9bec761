//! The libfabric backend: rails over any provider that has reliable datagrams with RMA and messages.
//!
//! [`load`] opens the library, [`discover()`] lists the NICs that fit the settings, [`open()`] makes one of them a
//! [`Rail`]. Each rail has its own fabric, domain, address vector, completion queue and endpoint, so rails share no
//! lock and one thread may drive each of them (`FI_THREAD_COMPLETION`).
//!
//! | read | for |
//! |---|---|
//! | `hints` | what is requested of a provider, and what it grants: ordering, threading, progress |
//! | `discover` | providers and NICs: preference, `NIC_LIST`, names |
//! | `interfaces` | network interfaces that are no rails by default |
//! | [`provider`] | facts about providers, in one table |
//! | `library` | the loaded library |
//! | `fault` | faults from its error numbers |
//! | `domain` | opening and closing libfabric's objects in the right order |
//! | `address` | a rail's address, and the table of peers |
//! | `open` | the rail: its parts, and how it is opened |
//! | `rail` | connecting and posting |
//! | `progress` | handling of completion queue entries |
//! | `completion` | contexts of posted work, and polling the completion queue |
//! | `messages` | the posted receive buffers |
//! | `memory` | registration, keys and addressing |
//! | `atomics` | which atomics the provider performs, and posting them |
//! | `shared_memory` | names of endpoints in shared memory, and what killed processes leave there |
//! | `sockets` | the TCP connections of a rail: silent ones, and cutting them |
//! | `variables` | settings that libfabric reads only from the environment |
//! | `probe` | whether automatic progress really progresses |
//!
//! Behaviour that providers do not report: `shm` and `udp;ofi_rxd` never notice a dead peer. `shm` (1.17) does not
//! answer a write with a bad key and then holds back every later completion. So bounds and keys must be right before
//! posting, and waiting must be bounded. `tcp` and `net` answer a bad key by dropping the connection, which fails all
//! work under way to that peer; a later post connects again.
//!
//! Invariants: posting and polling allocate nothing; memory that the provider may access (contexts, receive buffers,
//! registered memory) outlives the endpoint; a granted automatic progress is trusted only after a probe.

use std::sync::Arc;

use crate::env::{ProxyPoll, Settings};
use crate::error::{Error, Result};
use crate::rail::Rail;

mod address;
mod atomics;
mod completion;
mod discover;
mod domain;
mod fault;
mod hints;
mod interfaces;
mod library;
mod memory;
mod messages;
mod open;
mod probe;
mod progress;
pub mod provider;
mod rail;
mod shared_memory;
mod sockets;
pub mod variables;

pub use discover::{Found, Nic, discover, providers};
pub use interfaces::LeftOut;
pub use library::{Library, load};
pub use shared_memory::shortage as shared_memory_shortage;

pub use crate::endpoint::Role;

/// Opens a rail on a NIC.
///
/// # Errors
/// [`Error::Unsupported`] when the provider lacks something that every rail needs (delivery completions), or
/// [`Error::Fabric`] with the call that failed.
pub fn open(library: &Arc<Library>, nic: &Nic, role: Role, settings: &Settings) -> Result<Box<dyn Rail>> {
    if !nic.delivery_complete {
        return Err(Error::Unsupported {
            what: "waiting until a write is visible (FI_DELIVERY_COMPLETE)".to_owned(),
            by: format!("provider {}", nic.provider),
            remedy: "choose another with SYMRAIL_LIBFABRIC_PROVIDER".to_owned(),
        });
    }
    let (info, progress) = probe::choose(library, nic, settings)?;
    // A queue with a wait descriptor makes a system call at every poll: on tcp;ofi_rxm an 8-byte write is 20 % slower.
    // So only an endpoint whose thread may sleep has one.
    let sleeps = role == Role::Proxy && settings.proxy_poll == ProxyPoll::Adaptive;
    Ok(Box::new(open::OfiRail::open(&library.fabric, info, &nic.name, sleeps, progress)?))
}
