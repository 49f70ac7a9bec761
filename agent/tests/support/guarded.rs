//! Memory that only copies reach, in the place of GPUs'.
#![allow(clippy::unwrap_used, dead_code)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use symrail_agent::devices::{Copying, DeviceMemory, Devices, Mapped};
use symrail_agent::{Agent, Descriptor, MemoryId};
use symrail_core::encoding;
use symrail_heap::copy_engine::{Between, CopyEngine};
use symrail_heap::export::Exported;
use symrail_heap::guarded::{GuardedCopyEngine, GuardedMemory};
use symrail_heap::{HeapHandle, HostIdentity};
use symrail_proxy::stage::STAGING_BUFFER_BYTES;
use symrail_transport::env::Settings;

/// The number of the only device.
pub const DEVICE: i32 = 3;

/// Looks at copies before they are made.
const LATE: usize = 20;

pub struct Guarded {
    pub memory: Arc<GuardedMemory>,
    handle: HeapHandle,
    mapped: Mutex<Vec<Weak<GuardedMemory>>>,
    /// Copies between devices that were started, and whether they do not end now.
    pub copied: AtomicUsize,
    pub holds: AtomicBool,
    pub removed: AtomicUsize,
    /// Copies of this kind fail.
    pub fails: AtomicBool,
    /// How often peers' memory was to be mapped, which waits for this.
    pub maps: AtomicUsize,
    pub gate: Mutex<Option<Arc<Gate>>>,
}

/// What waits until it is opened, or for a limited time.
#[derive(Default)]
pub struct Gate {
    opened: Mutex<bool>,
    bell: Condvar,
    pub late: AtomicBool,
}

impl Gate {
    const PATIENCE: Duration = Duration::from_secs(20);

    fn wait(&self) {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let (_opened, ended) = self.bell.wait_timeout_while(opened, Self::PATIENCE, |opened| !*opened).unwrap();
        self.late.fetch_or(ended.timed_out(), Ordering::AcqRel);
    }

    pub fn open(&self) {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }
}

impl Guarded {
    pub fn new(bytes: usize) -> Arc<Guarded> {
        let memory = GuardedMemory::new(bytes).unwrap();
        let handle = memory.handle(HostIdentity::of_this_process(None).unwrap(), false).unwrap();
        Arc::new(Guarded {
            memory,
            handle,
            mapped: Mutex::default(),
            copied: AtomicUsize::new(0),
            holds: AtomicBool::new(false),
            removed: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            maps: AtomicUsize::new(0),
            gate: Mutex::default(),
        })
    }

    fn all(&self) -> Vec<Arc<GuardedMemory>> {
        let mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.iter().filter_map(Weak::upgrade).chain([Arc::clone(&self.memory)]).collect()
    }

    /// The number of peers' memories that are mapped.
    pub fn mappings(&self) -> usize {
        self.all().len() - 1
    }

    fn byte(&self, at: usize) -> *mut u8 {
        self.memory.reachable(self.memory.base().addr().get() + at, 1).unwrap()
    }

    pub fn read(&self, at: usize) -> u8 {
        // SAFETY: a byte of the memory, which only volatile accesses and copies touch.
        unsafe { self.byte(at).read_volatile() }
    }

    pub fn fill(&self, value: impl Fn(usize) -> u8) {
        for at in 0..self.memory.bytes() {
            // SAFETY: as above.
            unsafe { self.byte(at).write_volatile(value(at)) };
        }
    }

    pub fn at(&self, offset: usize, len: usize) -> Descriptor {
        Descriptor { address: (self.memory.base().addr().get() + offset) as u64, len: len as u64 }
    }

    pub fn register(&self, agent: &Agent, offset: usize, len: usize) -> MemoryId {
        let Descriptor { address, len } = self.at(offset, len);
        // SAFETY: the agent is dropped before its devices.
        unsafe { agent.register_device(address, len, DEVICE) }.unwrap()
    }
}

/// `None`, and a line about it, where the provider is missing.
pub fn agent(name: &str, settings: &Settings, devices: &Arc<Guarded>) -> Option<Agent> {
    let devices = Arc::clone(devices);
    Agent::open_with(name, settings, Arc::new(Handle(devices))).inspect_err(|error| println!("SKIPPED: {error}")).ok()
}

struct Handle(Arc<Guarded>);

struct Mapping(Arc<GuardedMemory>, u64);

impl Mapped for Mapping {
    fn base(&self) -> u64 {
        self.0.base().addr().get() as u64 + self.1
    }
}

struct Late {
    guarded: Arc<Guarded>,
    copies: Vec<Between>,
    left: usize,
}

impl Copying for Late {
    fn outcome(&mut self) -> Option<Result<(), String>> {
        self.left -= usize::from(self.left > 0);
        if self.left > 0 || self.guarded.holds.load(Ordering::Acquire) {
            return None;
        }
        if self.guarded.fails.load(Ordering::Acquire) {
            return Some(Err("it fails on purpose".into()));
        }
        let all = self.guarded.all();
        let find = |address: usize, len: usize| all.iter().find_map(|memory| memory.reachable(address, len));
        for Between { to, from, len } in self.copies.drain(..) {
            let (Some(to), Some(from)) = (find(to, len), find(from, len)) else {
                return Some(Err(format!("{len} bytes from {from:#x} to {to:#x} are not mapped")));
            };
            // SAFETY: both are in mapped memory; the caller of `copy` lends them.
            unsafe { symrail_heap::copy::copy(to, from, len) };
        }
        Some(Ok(()))
    }
}

impl Devices for Handle {
    fn copy_engine(&self) -> Result<Box<dyn CopyEngine>, String> {
        let engine = GuardedCopyEngine::new(Arc::clone(&self.0.memory), STAGING_BUFFER_BYTES, 11);
        Ok(Box::new(engine.map_err(|error| error.call.to_owned())?))
    }

    fn add(&self, DeviceMemory { device, base, len }: DeviceMemory) -> Result<(), String> {
        let inside = device == DEVICE && self.0.memory.reachable(base as usize, len as usize).is_some();
        if inside { Ok(()) } else { Err(format!("what is at {base:#x} is not in the memory of device {device}")) }
    }

    fn export(&self, memory: DeviceMemory) -> Result<Exported, String> {
        Err(format!("it begins in the middle of a page, at {:#x}", memory.base))
    }

    fn remove(&self, _: DeviceMemory, _: Option<&[u8]>) {
        self.0.removed.fetch_add(1, Ordering::AcqRel);
    }

    fn share(&self, memory: DeviceMemory) -> Result<Vec<u8>, String> {
        let offset = memory.base - self.0.memory.base().addr().get() as u64;
        Ok(encoding::encode(&(self.0.handle.encode(), offset)))
    }

    fn map(&self, device: i32, shared: &[u8], _: u64) -> Result<Box<dyn Mapped>, String> {
        assert_eq!(device, DEVICE);
        self.0.maps.fetch_add(1, Ordering::AcqRel);
        if let Some(gate) = &*self.0.gate.lock().unwrap_or_else(PoisonError::into_inner) {
            gate.wait();
        }
        let decoded: Result<(Vec<u8>, u64), _> = encoding::decode(shared, "shared memory", 0);
        let (handle, offset) = decoded.map_err(|error| error.to_string())?;
        let theirs = HeapHandle::decode(&handle, 0).map_err(|error| error.to_string())?;
        let memory = GuardedMemory::of_peer(&self.0.handle, &theirs).map_err(|why| why.to_string())?;
        self.0.mapped.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&memory));
        Ok(Box::new(Mapping(memory, offset)))
    }

    unsafe fn copy(&self, device: i32, copies: &mut dyn Iterator<Item = Between>) -> Result<Box<dyn Copying>, String> {
        assert_eq!(device, DEVICE);
        let copies: Vec<Between> = copies.collect();
        self.0.copied.fetch_add(copies.len(), Ordering::AcqRel);
        Ok(Box::new(Late { guarded: Arc::clone(&self.0), copies, left: LATE }))
    }
}
