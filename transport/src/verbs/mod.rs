//! The ibverbs backend: rails over InfiniBand and RoCE NICs, by reliable-connected queue pairs.
//!
//! [`load`] opens the library, [`discover()`] lists the NICs that fit the settings, [`open()`] makes one of them a
//! [`Rail`]. Each rail has its own context, protection domain, completion queue and receive queue, so host and proxy
//! rails share nothing, and one thread polls one queue per NIC. It has one queue pair for each destination.
//!
//! | read | for |
//! |---|---|
//! | `library` | loading libibverbs |
//! | `discover` | NICs and ports: `NIC_LIST`, `IB_PORT`, names |
//! | `gid`, `mode` | the choice of the GID and of the IB mode, with reasons |
//! | `address` | the data that peers exchange, and mismatches that are refused |
//! | `domain` | the opened device, and queries to it |
//! | `port` | a port of it: GID, partition key, paths and addresses |
//! | `sizes` | the lengths of a rail's queues, for a number of PEs |
//! | `queue_pair` | a queue pair through its states |
//! | `open` | the rail: opening and connecting; [`VerbsRail`] |
//! | `rail` | the operations of a rail as verbs calls: work requests, registrations |
//! | `renew` | a failed connection made again |
//! | `forget` | a destination that is forgotten, whose queue pair serves another |
//! | `post` | chains of work requests, and inline data |
//! | `credits` | when a queue pair may post, and which work requests get a completion |
//! | `completion`, `progress` | the completion queue, and the handling of its entries |
//! | `receive` | the shared receive queue, where messages and immediates arrive |
//! | `memory` | registration |
//! | `events` | ports and devices that fail during operation |
//!
//! A write's completion means that the peer's NIC acknowledged it: it checked the key and received the bytes. Its later
//! actions for the same queue pair (a later write, a read, a message, an atomic) come behind these bytes, and so does a
//! receive completion for its host. So the completion counts as [`Notify::Delivered`](crate::rail::Notify::Delivered):
//! any party that learns of it through the fabric finds the bytes. The order also holds up to memory, unless relaxed
//! ordering is on (`IB_RELAXED_ORDERING`). Then PCIe may swap two writes, and
//! [`Order::write_after_write`](crate::rail::Order) is not guaranteed. Messages and immediates still come behind the
//! data.
//!
//! # When something fails
//! A failed work request stops its queue pair, and so one destination: all its outstanding work requests are reported
//! once, as failed. A failed port or device stops the rail ([`RailSink::broken`](crate::rail::RailSink::broken)) and
//! all its queue pairs. [`Rail::renew`] makes both usable again when the cause is gone.

use crate::env::Settings;
use crate::error::Result;
use crate::rail::Rail;

mod address;
mod completion;
mod credits;
mod discover;
mod domain;
mod events;
mod forget;
mod gid;
mod library;
mod memory;
mod mode;
mod open;
mod port;
mod post;
mod progress;
mod queue_pair;
mod rail;
mod receive;
mod renew;
mod sizes;

pub use discover::{Atomicity, Nic, all, discover};
pub use gid::{Gid, GidType};
pub use library::load;
pub use mode::{Mode, decide};
pub use open::{Destinations, VerbsRail};

pub use crate::endpoint::Role;

/// Opens a rail on a NIC, for these destinations, in the mode that [`decide`] returned for all NICs of the
/// PE.
///
/// # Errors
/// As for [`VerbsRail::open`].
pub fn open(
    nic: &Nic,
    role: Role,
    destinations: Destinations,
    mode: (Mode, String),
    settings: &Settings,
) -> Result<Box<dyn Rail>> {
    Ok(Box::new(VerbsRail::open_in(nic, role, destinations, mode, settings)?))
}
