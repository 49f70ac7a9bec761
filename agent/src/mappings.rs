//! One peer's memory of devices that is mapped here.

use std::collections::HashMap;
use std::sync::Arc;

use crate::devices::{Devices, Mapped};
use crate::memory::MemoryId;
use crate::sharing::Message;

/// Mappings of memory by the numbers of the devices that copy; `None` for those that do not reach it.
type ByDevice = HashMap<i32, Option<Arc<dyn Mapped>>>;

enum State {
    /// The owner was asked.
    Asked,
    /// The owner has told how to map it, or that it cannot be.
    Told(Option<Vec<u8>>, ByDevice),
}

/// How a device's copies get to memory.
pub enum Reach {
    /// The owner has not answered yet.
    Unknown,
    /// They do not.
    No,
    /// By this mapping.
    Mapped(Arc<dyn Mapped>),
}

/// The mappings of one peer's memory. They end when the owner withdraws it, or when nothing here knows it any more.
#[derive(Default)]
pub struct Mappings {
    known: HashMap<MemoryId, State>,
    /// Mappings that end with the last transfer that uses them.
    ending: Vec<(MemoryId, ByDevice)>,
}

impl Mappings {
    /// How copies of `device` get to memory. The first call asks the owner by `ask`.
    pub fn find(&mut self, devices: &dyn Devices, device: i32, id: MemoryId, ask: impl FnOnce()) -> Reach {
        match self.known.get_mut(&id) {
            // The owner must be told of the end of the last mapping first.
            None if self.ending.iter().any(|(ending, _)| *ending == id) => Reach::Unknown,
            None => {
                self.known.insert(id, State::Asked);
                ask();
                Reach::Unknown
            }
            Some(State::Asked) => Reach::Unknown,
            Some(State::Told(None, _)) => Reach::No,
            Some(State::Told(Some(shared), by_device)) => {
                let map = || {
                    let mapped = devices.map(device, shared);
                    let why = |why: &String| tracing::info!(device, why, "memory of another agent is not mapped");
                    mapped.inspect_err(why).ok().map(Arc::from)
                };
                by_device.entry(device).or_insert_with(map).clone().map_or(Reach::No, Reach::Mapped)
            }
        }
    }

    /// Notes the answer of the owner.
    pub fn told(&mut self, id: MemoryId, shared: Option<Vec<u8>>) {
        if let Some(state @ State::Asked) = self.known.get_mut(&id) {
            *state = State::Told(shared, ByDevice::new());
        }
    }

    /// Starts to end the mappings of memory that the owner withdraws.
    pub fn end(&mut self, id: MemoryId) {
        let mapped = match self.known.remove(&id) {
            Some(State::Told(_, by_device)) => by_device,
            _ => ByDevice::new(),
        };
        self.ending.push((id, mapped));
    }

    /// Ends mappings that nothing uses, and those of memory that is not `known` any more. Returns what the owner has to
    /// be told.
    pub fn sweep(&mut self, is_known: impl Fn(MemoryId) -> bool) -> Vec<Message> {
        let told = self.known.iter().filter(|(_, state)| matches!(state, State::Told(Some(_), _)));
        let unknown: Vec<MemoryId> = told.map(|(id, _)| *id).filter(|id| !is_known(*id)).collect();
        unknown.into_iter().for_each(|id| self.end(id));
        self.known.retain(|id, state| !matches!(state, State::Told(None, _)) || is_known(*id));
        let mut messages = Vec::new();
        self.ending.retain_mut(|(id, by_device)| {
            by_device.retain(|_, mapped| mapped.as_ref().is_some_and(|mapped| Arc::strong_count(mapped) > 1));
            let over = by_device.is_empty();
            messages.extend(over.then_some(Message::Unmapped(*id)));
            !over
        });
        messages
    }
}
