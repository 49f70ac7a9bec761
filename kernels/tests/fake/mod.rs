//! An engine without a fabric: it applies requests to the heaps of PEs in one process, late and out of order.
#![allow(dead_code, clippy::unwrap_used)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use symrail_kernels::barrier_words::Step;
use symrail_kernels::cpu::{DeviceParts, DeviceTeam, DeviceView, Element, Symmetric};
use symrail_proxy::channel::{Channel, Consumer, Local, ReplyTo, Request};
use symrail_transport::amo::{self, AmoType};

pub const HEAP: u64 = 64 << 10;

/// A zeroed heap.
pub struct Heap(*mut u8);

// SAFETY: only the address is sent; raw pointers access the memory.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

fn layout() -> Layout {
    Layout::from_size_align(HEAP as usize, 4096).unwrap()
}

impl Heap {
    fn new() -> Self {
        // SAFETY: the size is not 0.
        Heap(unsafe { alloc_zeroed(layout()) })
    }

    pub fn base(&self) -> usize {
        self.0.expose_provenance()
    }

    /// Reads an element in the test's main thread.
    pub fn read<T: Element>(&self, object: Symmetric<T>, index: u64) -> T {
        let at = object.at(index).unwrap().offset();
        // SAFETY: within the heap, since the object's name was checked; every bit pattern is a value.
        unsafe { self.0.add(at as usize).cast::<T>().read_volatile() }
    }

    fn range(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        // SAFETY: within the heap.
        (offset.checked_add(bytes)? <= HEAP).then(|| unsafe { self.0.add(offset as usize) })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.0, layout()) }
    }
}

struct Started {
    channel: usize,
    epoch: u64,
    position: u64,
    request: Request,
}

/// The engine of one PE's channels.
pub struct Engine {
    heaps: Arc<Vec<Heap>>,
    me: usize,
    channels: Vec<Consumer>,
    epochs: Vec<u64>,
    started: Vec<Started>,
    /// All applied requests, in order.
    pub applied: Vec<Request>,
    random: u64,
}

impl Engine {
    /// Takes new requests and applies some of those taken, in any order that fences allow.
    pub fn poll(&mut self) -> bool {
        let mut events = self.take();
        for _ in 0..self.random() % 8 {
            if self.started.is_empty() {
                break;
            }
            let chosen = self.random() as usize % self.started.len();
            let Started { channel, epoch, .. } = self.started[chosen];
            if self.started.iter().all(|other| other.channel != channel || other.epoch >= epoch) {
                let chosen = self.started.swap_remove(chosen);
                self.apply(chosen);
                events += 1;
            }
        }
        self.channels.iter_mut().for_each(Consumer::publish);
        events > 0
    }

    /// Takes new requests, and once there are so many applies them, the last one first.
    pub fn poll_backwards(&mut self, requests: usize) {
        self.take();
        if self.started.len() >= requests {
            while let Some(last) = self.started.pop() {
                self.apply(last);
            }
            self.channels.iter_mut().for_each(Consumer::publish);
        }
    }

    fn take(&mut self) -> usize {
        let mut events = 0;
        for channel in 0..self.channels.len() {
            while self.started.len() < 200
                && let Some((position, request)) = self.channels[channel].next()
            {
                events += 1;
                if request == Request::Fence {
                    self.epochs[channel] += 1;
                }
                self.started.push(Started { channel, epoch: self.epochs[channel], position, request });
            }
        }
        events
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    fn apply(&mut self, Started { channel, position, request, .. }: Started) {
        let result = self.perform(request);
        self.applied.push(request);
        let consumer = &mut self.channels[channel];
        if let Some(reply) = reply_of(request) {
            assert!(consumer.reply(reply, result.unwrap_or(0), result.is_none()));
        }
        assert!(if result.is_some() { consumer.complete(position) } else { consumer.fail(position) });
    }

    fn perform(&self, request: Request) -> Option<u64> {
        let remote = |pe: u32, offset, bytes| self.heaps.get(pe as usize)?.range(offset, bytes);
        let local = |local, size| match local {
            Local::Symmetric(offset) => self.heaps[self.me].range(offset, size),
            Local::Value(_) => unreachable!("a source that is in its slot"),
            Local::Address(address) => {
                self.heaps[self.me].range(address.checked_sub(self.heaps[self.me].base() as u64)?, size)
            }
        };
        // SAFETY: every range was checked; words are aligned, as the device API checks.
        unsafe {
            match request {
                Request::Nop | Request::Fence => {}
                Request::Put { pe, offset, local: from, size, .. } => {
                    std::ptr::copy(local(from, size)?, remote(pe, offset, size)?, size as usize);
                }
                Request::Get { pe, offset, local: to, size, .. } => {
                    std::ptr::copy(remote(pe, offset, size)?, local(to, size)?, size as usize);
                }
                Request::P { pe, offset, width, value } => {
                    let bytes = value.to_ne_bytes();
                    let to = remote(pe, offset, width.bytes() as u64)?;
                    std::ptr::copy(bytes.as_ptr(), to, width.bytes());
                }
                Request::G { pe, offset, width, .. } => {
                    let mut bytes = [0; 8];
                    let from = remote(pe, offset, width.bytes() as u64)?;
                    std::ptr::copy(from, bytes.as_mut_ptr(), width.bytes());
                    return Some(u64::from_ne_bytes(bytes));
                }
                Request::PutSignal { pe, offset, local: from, size, signal, op, value, .. } => {
                    std::ptr::copy(local(from, size)?, remote(pe, offset, size)?, size as usize);
                    amo::apply(remote(pe, signal, 8)?, AmoType::U64, op.into(), value, 0);
                }
                Request::Amo { pe, offset, ty, op, operand, compare }
                | Request::FetchAmo { pe, offset, ty, op, operand, compare, .. } => {
                    return Some(amo::apply(remote(pe, offset, ty.size() as u64)?, ty, op, operand, compare));
                }
                _ => return None,
            }
        }
        Some(0)
    }
}

/// How one PE accesses the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Through channels only.
    Channels,
    /// All heaps are mapped.
    Mapped,
    /// All heaps are mapped, but AMOs and signals use the channels.
    MappedForData,
}

/// PEs of one process.
pub struct World {
    pub heaps: Arc<Vec<Heap>>,
    pub views: Vec<DeviceView>,
    pub engines: Vec<Arc<Mutex<Engine>>>,
    /// How often threads of each PE have offered to drive its engine.
    pub offers: Vec<Arc<AtomicU64>>,
    /// The threads that have offered.
    pub drivers: Vec<Arc<Mutex<HashSet<ThreadId>>>>,
}

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub pes: usize,
    pub channels: usize,
    pub slots: usize,
    pub replies: usize,
    pub reach: Reach,
    /// Whether waiting threads drive the engine; otherwise only the test does.
    pub lend: bool,
    pub timeout: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        let timeout = Duration::from_secs(30);
        Shape { pes: 2, channels: 2, slots: 16, replies: 16, reach: Reach::Channels, lend: true, timeout }
    }
}

/// In each round a PE signals the PE at twice the distance, and waits for the PE at that distance on the other side.
fn steps(me: u32, n: u32) -> Vec<Step> {
    let rounds = 0..n.next_power_of_two().trailing_zeros();
    rounds.flat_map(|round| [Step::SignalPeer((me + (1 << round)) % n, round), Step::WaitFlag(round)]).collect()
}

impl World {
    pub fn new(shape: Shape) -> Self {
        let heaps: Arc<Vec<Heap>> = Arc::new((0..shape.pes).map(|_| Heap::new()).collect());
        let (mut views, mut engines, mut offers, mut drivers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for me in 0..shape.pes {
            let ends = (0..shape.channels).map(|_| Channel::new(shape.slots, shape.replies).unwrap());
            let (producers, channels): (Vec<_>, Vec<_>) = ends.unzip();
            let engine = Engine {
                heaps: Arc::clone(&heaps),
                me,
                epochs: vec![0; channels.len()],
                channels,
                started: Vec::new(),
                applied: Vec::new(),
                random: 0x9e37_79b9 + me as u64,
            };
            let engine = Arc::new(Mutex::new(engine));
            let lent = Arc::clone(&engine);
            let offered = Arc::<AtomicU64>::default();
            offers.push(Arc::clone(&offered));
            let driving = Arc::<Mutex<HashSet<ThreadId>>>::default();
            drivers.push(Arc::clone(&driving));
            let mapped = shape.reach != Reach::Channels;
            let parts = DeviceParts {
                me: me as u32,
                n_pes: shape.pes as u32,
                heap_base: heaps[me].base(),
                heap_size: HEAP,
                peer_bases: heaps.iter().map(|heap| if mapped { heap.base() } else { 0 }).collect(),
                producers,
                progress: Arc::new(move || {
                    offered.fetch_add(1, Ordering::Relaxed);
                    driving.lock().unwrap().insert(std::thread::current().id());
                    shape.lend && lent.try_lock().is_ok_and(|mut engine| engine.poll())
                }),
                direct_amos: shape.reach != Reach::MappedForData,
                world: Arc::new(DeviceTeam::new(0, &steps(me as u32, shape.pes as u32))),
                timeout: shape.timeout,
            };
            // SAFETY: the heaps outlive the views: both are dropped with the world, after the grids have ended.
            views.push(unsafe { DeviceView::new(parts) }.unwrap());
            engines.push(engine);
        }
        World { heaps, views, engines, offers, drivers }
    }
}

/// The reply entry that waits for a request, if any.
fn reply_of(request: Request) -> Option<ReplyTo> {
    match request {
        Request::Put { reply, .. } | Request::Get { reply, .. } | Request::PutSignal { reply, .. } => reply,
        Request::G { reply, .. } | Request::FetchAmo { reply, .. } => Some(reply),
        Request::P { .. } | Request::Amo { .. } => None,
        Request::Nop | Request::Fence | Request::Invalid { .. } => None,
    }
}
