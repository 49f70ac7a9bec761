//! One peer's memory of devices that is mapped here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_proxy::session::memory::Memory;

use crate::devices::{Devices, Mapped};
use crate::memory::MemoryId;
use crate::sharing::Message;

/// Mappings of memory by the numbers of the devices that copy; `None` for those that do not reach it.
type ByDevice = HashMap<i32, Option<Arc<dyn Mapped>>>;

enum State {
    /// The owner was asked this question, at this time.
    Asked(u64, Instant),
    /// The owner has told how to map it, or that it cannot be.
    Told(Option<Vec<u8>>, ByDevice),
}

/// How a device's copies get to memory.
pub enum Reach {
    /// The owner has not answered yet.
    Unknown,
    /// They do not, or not now.
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
    questions: u64,
}

/// For so long transfers wait for an owner's answer; afterwards they go by the rails until it comes.
const PATIENCE: Duration = Duration::from_secs(1);

impl Mappings {
    /// How copies of `device` get to memory. The first call asks the owner by `ask`.
    pub fn find(&mut self, devices: &dyn Devices, device: i32, memory: &Memory, ask: impl FnOnce(u64)) -> Reach {
        let (id, len) = (memory.offset(), memory.len());
        match self.known.get_mut(&id) {
            // The owner must be told of the end of the last mapping first.
            None if self.ending.iter().any(|(ending, _)| *ending == id) => Reach::No,
            None => {
                self.questions += 1;
                self.known.insert(id, State::Asked(self.questions, Instant::now()));
                ask(self.questions);
                Reach::Unknown
            }
            Some(State::Asked(_, since)) if since.elapsed() > PATIENCE => Reach::No,
            Some(State::Asked(..)) => Reach::Unknown,
            Some(State::Told(None, _)) => Reach::No,
            Some(State::Told(Some(shared), by_device)) => {
                let map = || {
                    let mapped = devices.map(device, shared, len);
                    let why = |why: &String| tracing::info!(device, why, "memory of another agent is not mapped");
                    mapped.inspect_err(why).ok().map(Arc::from)
                };
                by_device.entry(device).or_insert_with(map).clone().map_or(Reach::No, Reach::Mapped)
            }
        }
    }

    /// Notes the answer of the owner to a question.
    pub fn told(&mut self, id: MemoryId, question: u64, shared: Option<Vec<u8>>) {
        if let Some(state @ State::Asked(..)) = self.known.get_mut(&id)
            && matches!(state, State::Asked(asked, _) if *asked == question)
        {
            *state = State::Told(shared, ByDevice::new());
        }
    }

    /// Starts to end the mappings of memory that the owner withdraws.
    pub fn end(&mut self, id: MemoryId) {
        let mapped = match self.known.remove(&id) {
            Some(State::Told(_, by_device)) => by_device,
            _ => ByDevice::new(),
        };
        // It may be withdrawn again before the end, which is told once.
        match self.ending.iter_mut().find(|(ending, _)| *ending == id) {
            Some((_, ending)) => ending.extend(mapped),
            None => self.ending.push((id, mapped)),
        }
    }

    /// Starts to end all mappings. Returns whether none is left.
    pub fn end_all(&mut self) -> bool {
        let all: Vec<MemoryId> = self.known.keys().copied().collect();
        all.into_iter().for_each(|id| self.end(id));
        self.sweep(|_| false);
        self.ending.is_empty()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use symrail_heap::copy_engine::{Between, CopyEngine};
    use symrail_heap::export::Exported;

    use super::*;
    use crate::devices::{Copying, DeviceMemory};

    /// It maps everything.
    struct Any;

    impl Mapped for Any {
        fn base(&self) -> u64 {
            0
        }
    }

    impl Devices for Any {
        fn copy_engine(&self) -> Result<Box<dyn CopyEngine>, String> {
            Err(String::new())
        }

        fn add(&self, _: DeviceMemory) -> Result<Option<Exported>, String> {
            Ok(None)
        }

        fn remove(&self, _: DeviceMemory, _: Option<&[u8]>) {}

        fn share(&self, _: DeviceMemory) -> Result<Vec<u8>, String> {
            Ok(Vec::new())
        }

        fn map(&self, _: i32, _: &[u8], _: u64) -> Result<Box<dyn Mapped>, String> {
            Ok(Box::new(Any))
        }

        unsafe fn copy(&self, _: i32, _: &mut dyn Iterator<Item = Between>) -> Result<Box<dyn Copying>, String> {
            Err(String::new())
        }
    }

    /// The handle of some memory, as a peer's.
    fn memory() -> Memory {
        let mut bytes = [0; 48];
        bytes[..4].copy_from_slice(b"SyM1");
        bytes[14] = 1;
        bytes[16..24].copy_from_slice(&4096u64.to_le_bytes());
        bytes[24..32].copy_from_slice(&64u64.to_le_bytes());
        Memory::of_peer(2, &bytes).unwrap()
    }

    #[test]
    fn an_end_is_told_once_and_behind_the_last_use_and_late_answers_are_for_nobody() {
        let (memory, mut mappings, mut asked) = (memory(), Mappings::default(), Vec::new());
        let id = memory.offset();
        assert!(matches!(mappings.find(&Any, 0, &memory, |question| asked.push(question)), Reach::Unknown));
        mappings.end(id);
        assert!(matches!(mappings.sweep(|_| true)[..], [Message::Unmapped(_)]));
        assert!(matches!(mappings.find(&Any, 0, &memory, |question| asked.push(question)), Reach::Unknown));
        mappings.told(id, asked[0], Some(Vec::new()));
        assert!(
            matches!(mappings.find(&Any, 0, &memory, |_| {}), Reach::Unknown),
            "it was the first question's answer"
        );
        mappings.told(id, asked[1], Some(Vec::new()));
        let Reach::Mapped(used) = mappings.find(&Any, 0, &memory, |_| {}) else { unreachable!() };
        for _ in 0..2 {
            mappings.end(id);
            assert!(mappings.sweep(|_| true).is_empty(), "it is in use");
            assert!(matches!(mappings.find(&Any, 0, &memory, |_| {}), Reach::No));
        }
        assert!(!mappings.end_all(), "a lost peer's memory is in use");
        drop(used);
        assert_eq!(mappings.sweep(|_| true).len(), 1);
        assert!(mappings.end_all());
    }
}
