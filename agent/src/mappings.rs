//! One peer's memory of devices that is mapped here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::devices::Mapped;
use crate::memory::MemoryId;
use crate::sharing::Message;

/// A device's mapping of memory.
enum Mapping {
    /// A thread makes it.
    InMaking,
    /// The device does not reach the memory.
    None,
    Made(Arc<dyn Mapped>),
}

impl Mapping {
    fn is_in_use(&self) -> bool {
        match self {
            Mapping::InMaking => true,
            Mapping::None => false,
            Mapping::Made(mapped) => Arc::strong_count(mapped) > 1,
        }
    }
}

/// Mappings of memory by the numbers of the devices that copy.
type ByDevice = HashMap<i32, Mapping>;

enum State {
    /// The owner was asked this question, at this time.
    Asked(u64, Instant),
    /// The owner has told how to map it, or that it cannot be.
    Told(Option<Vec<u8>>, ByDevice),
}

/// How a device's copies get to memory.
pub enum Reach {
    /// It is not known yet: the owner has not answered, or the mapping is not made.
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
    pub fn find(&mut self, device: i32, id: MemoryId, ask: impl FnOnce(u64)) -> Reach {
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
            Some(State::Told(Some(_), by_device)) => match by_device.get(&device) {
                Some(Mapping::InMaking) | None => Reach::Unknown,
                Some(Mapping::None) => Reach::No,
                Some(Mapping::Made(mapped)) => Reach::Mapped(Arc::clone(mapped)),
            },
        }
    }

    /// What is needed to map memory for copies of `device`, if nobody has begun to. The caller makes the mapping, and
    /// returns it to [`Mappings::made`].
    pub fn begin(&mut self, device: i32, id: MemoryId) -> Option<Vec<u8>> {
        let Some(State::Told(Some(shared), by_device)) = self.known.get_mut(&id) else { return None };
        let Entry::Vacant(place) = by_device.entry(device) else { return None };
        place.insert(Mapping::InMaking);
        Some(shared.clone())
    }

    /// Takes the mapping that [`Mappings::begin`] has begun, or that the device does not reach the memory. If it has been
    /// withdrawn meanwhile, the mapping ends.
    pub fn made(&mut self, id: MemoryId, device: i32, mapped: Option<Arc<dyn Mapped>>) -> Reach {
        if let Some(State::Told(_, by_device)) = self.known.get_mut(&id)
            && let Some(mapping) = by_device.get_mut(&device)
        {
            *mapping = mapped.clone().map_or(Mapping::None, Mapping::Made);
            return mapped.map_or(Reach::No, Reach::Mapped);
        }
        // The owner is told of its end, which comes first.
        drop(mapped);
        if let Some((_, by_device)) = self.ending.iter_mut().find(|(ending, _)| *ending == id) {
            by_device.remove(&device);
        }
        Reach::No
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
            by_device.retain(|_, mapping| mapping.is_in_use());
            let over = by_device.is_empty();
            messages.extend(over.then_some(Message::Unmapped(*id)));
            !over
        });
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Any;

    impl Mapped for Any {
        fn base(&self) -> u64 {
            0
        }
    }

    const ID: MemoryId = 4096;

    #[test]
    fn an_end_is_told_once_and_behind_the_last_use_and_late_answers_are_for_nobody() {
        let (mut mappings, mut asked) = (Mappings::default(), Vec::new());
        assert!(matches!(mappings.find(0, ID, |question| asked.push(question)), Reach::Unknown));
        mappings.end(ID);
        assert!(matches!(mappings.sweep(|_| true)[..], [Message::Unmapped(_)]));
        assert!(matches!(mappings.find(0, ID, |question| asked.push(question)), Reach::Unknown));
        mappings.told(ID, asked[0], Some(Vec::new()));
        assert!(matches!(mappings.find(0, ID, |_| {}), Reach::Unknown), "it was the first question's answer");
        mappings.told(ID, asked[1], Some(vec![7]));
        assert_eq!(mappings.begin(0, ID), Some(vec![7]));
        assert!(matches!(mappings.find(0, ID, |_| {}), Reach::Unknown) && mappings.begin(0, ID).is_none(), "once");
        let Reach::Mapped(used) = mappings.made(ID, 0, Some(Arc::new(Any))) else { unreachable!() };
        assert!(matches!(mappings.find(0, ID, |_| {}), Reach::Mapped(_)));
        for _ in 0..2 {
            mappings.end(ID);
            assert!(mappings.sweep(|_| true).is_empty(), "it is in use");
            assert!(matches!(mappings.find(0, ID, |_| {}), Reach::No));
        }
        assert!(!mappings.end_all(), "a lost peer's memory is in use");
        drop(used);
        assert_eq!(mappings.sweep(|_| true).len(), 1);
        assert!(mappings.end_all());
    }

    #[test]
    fn a_mapping_that_is_made_while_its_memory_is_withdrawn_ends_before_the_owner_is_told() {
        let (mut mappings, made) = (Mappings::default(), Arc::new(Any));
        mappings.find(0, ID, |_| {});
        mappings.told(ID, 1, Some(Vec::new()));
        assert!(mappings.begin(0, ID).is_some());
        mappings.end(ID);
        assert!(mappings.sweep(|_| true).is_empty() && !mappings.end_all(), "a thread maps it");
        let reach = mappings.made(ID, 0, Some(Arc::clone(&made) as Arc<dyn Mapped>));
        assert!(matches!(reach, Reach::No) && Arc::strong_count(&made) == 1, "it stays mapped");
        assert!(matches!(mappings.sweep(|_| true)[..], [Message::Unmapped(ID)]));
        assert!(mappings.end_all());
    }
}
