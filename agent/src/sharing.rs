//! Memory of devices that other agents on this host map, so that copy engines move their transfers.
//!
//! | message | from | meaning |
//! |---|---|---|
//! | [`Message::Map`] | the other agent | it would like to map memory |
//! | [`Message::Shared`] | the owner | what it needs for that, or that it cannot |
//! | [`Message::Withdrawn`] | the owner | the memory is being deregistered |
//! | [`Message::Unmapped`] | the other agent | no copy accesses the memory, and it is unmapped |
//!
//! They travel as notifications do, which only authenticated agents send. From the second to the last one the owner
//! counts the other agent as a user of the memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symrail_core::lock;
use symrail_heap::HostIdentity;
use symrail_transport::Pe;

use crate::devices::{DeviceMemory, Devices};
use crate::memory::MemoryId;

/// What agents tell each other about memory of devices. The number is its owner's.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// The second number is that of the question.
    Map(MemoryId, u64, HostIdentity),
    Shared(MemoryId, u64, Option<Vec<u8>>),
    Withdrawn(MemoryId),
    Unmapped(MemoryId),
}

struct Owned {
    memory: DeviceMemory,
    /// What others need to map it, if they can, once one has asked.
    shared: Option<Option<Vec<u8>>>,
    /// Those that were lost without closing their end may copy until then.
    users: Vec<(Pe, Option<Instant>)>,
    withdrawn: bool,
}

impl Owned {
    fn shared(&mut self, devices: &dyn Devices) -> Option<Vec<u8>> {
        let share = || {
            let shared = devices.share(self.memory);
            shared.inspect_err(|why| tracing::info!(why, "others cannot map memory of a device")).ok()
        };
        self.shared.get_or_insert_with(share).clone()
    }
}

/// An agent's memory of devices, and who has mapped it.
pub struct Sharing {
    pub devices: Arc<dyn Devices>,
    /// `None` where nothing is mapped (`SYMRAIL_DISABLE_P2P`).
    pub host: Option<HostIdentity>,
    owned: Mutex<HashMap<MemoryId, Owned>>,
}

impl Sharing {
    pub fn new(devices: Arc<dyn Devices>, host: Option<HostIdentity>) -> Sharing {
        Sharing { devices, host, owned: Mutex::default() }
    }

    pub fn add(&self, id: MemoryId, memory: DeviceMemory) {
        lock(&self.owned).insert(id, Owned { memory, shared: None, users: Vec::new(), withdrawn: false });
    }

    /// The memory with this number, if it is a device's.
    pub fn get(&self, id: MemoryId) -> Option<DeviceMemory> {
        lock(&self.owned).get(&id).map(|owned| owned.memory)
    }

    /// Answers a peer that would like to map memory. From then on it is a user of the memory.
    pub fn share(&self, peer: Pe, id: MemoryId, host: &HostIdentity) -> Option<Vec<u8>> {
        self.host.as_ref().filter(|own| own.same_host(host))?;
        let mut owned = lock(&self.owned);
        let owned = owned.get_mut(&id).filter(|owned| !owned.withdrawn)?;
        let shared = owned.shared(&*self.devices)?;
        owned.users.retain(|(user, _)| *user != peer);
        owned.users.push((peer, None));
        Some(shared)
    }

    /// What this agent itself needs to map its memory.
    pub fn own(&self, id: MemoryId) -> Option<Vec<u8>> {
        lock(&self.owned).get_mut(&id)?.shared(&*self.devices)
    }

    /// Shares memory with nobody any more. Returns its users, which have to be told.
    pub fn withdraw(&self, id: MemoryId) -> Vec<Pe> {
        let mut owned = lock(&self.owned);
        let Some(owned) = owned.get_mut(&id) else { return Vec::new() };
        owned.withdrawn = true;
        owned.users.iter().map(|(user, _)| *user).collect()
    }

    /// Shares memory again whose deregistration has failed.
    pub fn offer(&self, id: MemoryId) {
        if let Some(owned) = lock(&self.owned).get_mut(&id) {
            owned.withdrawn = false;
        }
    }

    pub fn is_in_use(&self, id: MemoryId) -> bool {
        let counts = |lost: Option<Instant>| lost.is_none_or(|until| Instant::now() < until);
        lock(&self.owned).get(&id).is_some_and(|owned| owned.users.iter().any(|(_, lost)| counts(*lost)))
    }

    /// Notes that a peer has unmapped memory.
    pub fn unmapped(&self, peer: Pe, id: MemoryId) {
        if let Some(owned) = lock(&self.owned).get_mut(&id) {
            owned.users.retain(|(user, _)| *user != peer);
        }
    }

    /// Notes that a peer is lost. Its copies have ended if it has `closed` its end, and otherwise end within this time.
    pub fn lost(&self, peer: Pe, closed: bool, within: Duration) {
        let until = Some(Instant::now() + within);
        for Owned { users, .. } in lock(&self.owned).values_mut() {
            users.retain(|(user, _)| *user != peer || !closed);
            users.iter_mut().filter(|(user, _)| *user == peer).for_each(|user| user.1 = until);
        }
    }

    /// Forgets memory that is deregistered, after the last copies.
    pub fn remove(&self, id: MemoryId) {
        let removed = lock(&self.owned).remove(&id);
        if let Some(owned) = removed {
            self.devices.remove(owned.memory, owned.shared.flatten().as_deref());
        }
    }

    /// The numbers of all of it.
    pub fn all(&self) -> Vec<MemoryId> {
        lock(&self.owned).keys().copied().collect()
    }
}
