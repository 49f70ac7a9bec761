//! One PE: the engines of its proxy threads, or its host endpoint, and its memory.

use std::sync::Arc;

use symrail_heap::guarded::GuardedMemory;
use symrail_heap::mailbox::Reader;
use symrail_proxy::channel::{Channel, Producer};
use symrail_proxy::{Engine, HOST};
use symrail_transport::Error;
use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::command::{Command, Finished, Owner, Priority};

use crate::world::{BUFFERS, HEAP};

pub struct Pe {
    pub engines: Vec<Engine>,
    /// A device that streams operations, for each engine, in some worlds.
    pub devices: Vec<Producer>,
    /// The endpoint that starts operations in place of the engines.
    pub host: Option<Endpoint>,
    pub memory: Memory,
    /// A kernel that waits at times, and then performs the writes in the mailbox.
    pub kernel: Option<Reader>,
    /// Sources must outlive their operations.
    pub sources: Vec<Box<[u8]>>,
    /// Bytes of guarded memory in use.
    pub used: usize,
}

pub enum Memory {
    Ordinary(Vec<u64>),
    Guarded(Arc<GuardedMemory>),
}

impl Pe {
    pub fn ready(&self) -> bool {
        self.host.as_ref().map_or_else(|| self.engines.iter().all(Engine::ready), Endpoint::ready)
    }

    /// # Safety
    /// As for [`Engine::submit_as`].
    pub unsafe fn submit(
        &mut self,
        engine: usize,
        pe: u32,
        command: Command,
        owner: Owner,
        priority: Priority,
    ) -> Result<(), Error> {
        match &mut self.host {
            // SAFETY: the caller's promise.
            Some(host) => unsafe { host.submit_as(pe, command, owner, priority) }.map(drop),
            // SAFETY: as above.
            None => unsafe { self.engines[engine].submit_as(pe, command, owner, priority) }.map(drop),
        }
    }

    /// Gives each engine a device.
    pub fn add_devices(&mut self) {
        for engine in &mut self.engines {
            let (device, consumer) = Channel::new(512, 4).unwrap();
            engine.add_channel(consumer);
            self.devices.push(device);
        }
    }

    pub fn fence(&mut self) {
        self.host.as_mut().map_or_else(|| self.engines.iter_mut().for_each(Engine::fence), Endpoint::fence);
    }

    /// Starts or continues a quiet; returns whether it has ended.
    pub fn quiet(&mut self) -> bool {
        assert!(self.devices.iter().all(|device| device.errors() == 0));
        self.engines.iter_mut().for_each(|engine| engine.start_quiet(HOST));
        if let Some(host) = &mut self.host {
            host.start_quiet(HOST);
        }
        self.devices.iter().all(|device| device.completed() == device.pushed())
            && self.engines.iter().all(|engine| engine.is_quiet(HOST))
            && self.host.as_ref().is_none_or(|host| host.is_quiet(HOST))
    }

    pub fn take_error(&mut self) -> Option<Error> {
        let of_engines = || self.engines.iter_mut().find_map(|engine| engine.take_error(HOST));
        self.host.as_mut().map_or_else(of_engines, |host| host.take_error(HOST))
    }

    pub fn finished(&mut self) -> Vec<Finished> {
        match &mut self.host {
            Some(host) => std::iter::from_fn(|| host.next_finished()).collect(),
            None => self.engines.iter_mut().flat_map(|engine| std::mem::take(engine.host_finished())).collect(),
        }
    }

    pub fn lanes_down(&mut self) -> u32 {
        let of_engines: u32 = self.engines.iter_mut().map(|engine| engine.endpoint().lanes_down()).sum();
        of_engines + self.host.as_ref().map_or(0, Endpoint::lanes_down)
    }

    /// Announces the passing of a second.
    pub fn tick(&mut self, second: u32) {
        self.engines.iter_mut().for_each(|engine| engine.endpoint().tick(second));
        if let Some(host) = &mut self.host {
            host.tick(second);
        }
    }

    /// The kernel appears, leaves or polls, at random.
    pub fn kernel(&mut self, dice: u64) {
        let (Some(kernel), Memory::Guarded(memory)) = (&mut self.kernel, &self.memory) else { return };
        match dice {
            0 => kernel.set_present(!kernel.is_there()),
            1..4 => {
                kernel.take(|address, bytes| {
                    let to = memory.reachable(address, bytes.len()).unwrap();
                    // SAFETY: `reachable` checked the range; all code runs in this thread.
                    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                });
            }
            _ => {}
        }
    }

    pub fn base(&mut self) -> *mut u8 {
        match &mut self.memory {
            Memory::Ordinary(words) => words.as_mut_ptr().cast(),
            Memory::Guarded(memory) => memory.base().as_ptr(),
        }
    }

    pub fn fill(&mut self, offset: u64, len: u64, value: u8) {
        // SAFETY: as below.
        unsafe { self.base().add(offset as usize).write_bytes(value, len as usize) };
    }

    /// Where the test accesses `len` bytes of the heap.
    fn at(&self, offset: u64, len: u64) -> *const u8 {
        match &self.memory {
            Memory::Ordinary(words) => words.as_ptr().cast::<u8>().wrapping_add(offset as usize),
            Memory::Guarded(memory) => {
                memory.reachable(memory.base().addr().get() + offset as usize, len as usize).unwrap()
            }
        }
    }

    pub fn word(&self, offset: u64) -> u64 {
        // SAFETY: inside of the memory; the mock fabric and the copy engine run in this thread.
        unsafe { self.at(offset, 8).cast::<u64>().read_volatile() }
    }

    /// The first of a block's words `first`, `first + step` … that is not `value`: its place and what it is. One check
    /// of the range serves all words.
    pub fn other_word(&self, offset: u64, words: u64, first: u64, step: u64, value: u64) -> Option<(u64, u64)> {
        let block = self.at(offset, words * 8).cast::<u64>();
        let other = |at: u64| {
            // SAFETY: as above; blocks are whole words.
            let word = unsafe { block.wrapping_add(at as usize).read_volatile() };
            (word != value).then_some((at, word))
        };
        (first..words).step_by(step as usize).find_map(other)
    }

    /// A local buffer that holds `bytes`, in guarded memory.
    pub fn guarded(&mut self, bytes: &[u8]) -> Option<*mut u8> {
        let Memory::Guarded(memory) = &self.memory else { return None };
        let at = memory.base().addr().get() + HEAP + self.used;
        let to = memory.reachable(at, bytes.len()).filter(|_| self.used + bytes.len() <= BUFFERS)?;
        // SAFETY: `reachable` checked the range, and no other code uses it.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.used += bytes.len().next_multiple_of(64);
        Some(memory.base().as_ptr().with_addr(at))
    }
}
