//! PEs over a fabric, and the invariants of their memory.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use symrail_core::simulation;
use symrail_heap::guarded::{GuardedCopyEngine, GuardedMemory};
use symrail_heap::mailbox;
use symrail_heap::mailbox_copy_engine::MailboxCopyEngine;
use symrail_proxy::stage::{STAGING_BUFFER_BYTES, WordLocks};
use symrail_proxy::{Engine, HOST};
use symrail_transport::endpoint::command::{Command, Owner, Priority};
use symrail_transport::endpoint::{Addresses, Directory, Endpoint, NoAgent, Policy, Role};
use symrail_transport::env::RailPolicy;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::pairing::InterfaceAddress;
use symrail_transport::proxy_threads::Share;
use symrail_transport::rail::Order;
use symrail_transport::region::Segment;
use symrail_transport::wire::Token;

use crate::pe::{Memory, Pe};

/// Size of each PE's memory, and of the part of it that belongs to one source PE.
pub const HEAP: usize = 1 << 20;
pub const PART: usize = 340 << 10;
/// Offsets in a part.
pub const A: u64 = 0;
pub const B: u64 = 64;
pub const SUM: u64 = 128;
pub const SIGNAL: u64 = 192;
pub const LAST: u64 = 256;
/// The destination of puts that are not checked.
pub const NOISE: u64 = 320;
pub const BLOCK: u64 = 4096;
pub const BLOCK_MAX: u64 = 32 << 10;
/// Several fragments of a staged operation.
pub const STAGED_BLOCK_MAX: u64 = 200 << 10;
/// Several pieces of a segmented operation, whatever its priority, and a part of one.
pub const SEGMENTED_BLOCK: u64 = 140 << 10;
/// The destination of crowds, so many puts of so many bytes, behind the longest block.
pub const CROWD: u64 = BLOCK + STAGED_BLOCK_MAX;
pub const CROWD_SIZE: u64 = 150;
pub const CROWD_BYTES: u64 = 600;
/// Words of a block that are checked at each poll, at most.
const SAMPLES: u64 = 32;
/// Bytes for local buffers behind the heap, where both are guarded memory.
pub const BUFFERS: usize = 8 << 20;

pub struct Random(u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The operations of one PE on one peer.
#[derive(Default)]
pub struct Stream {
    pub pair: u64,
    pub signals: u64,
    pub added: u64,
    pub fetched: HashSet<u64>,
    pub crowds: u64,
    pub seen_pair: u64,
    pub block_len: u64,
    /// Whether the block is under way. Its next content must wait for the quiet.
    pub block_busy: bool,
    /// The latest signal whose block was checked as a whole.
    pub seen_signal: u64,
    /// The signal that the target observed before it overwrote the block itself.
    pub consumed: u64,
}

/// The directory of all PEs in one thread's endpoints.
struct AllPes {
    addresses: Vec<Addresses>,
    /// Keys of the heap; none where it is staged.
    keys: Vec<Vec<u8>>,
}

impl Directory for AllPes {
    fn addresses(&self, pe: u32) -> symrail_transport::Result<Option<Addresses>> {
        Ok(self.addresses.get(pe as usize).cloned())
    }

    fn keys(&self, pe: u32, segment: u32) -> symrail_transport::Result<Option<Vec<u8>>> {
        Ok(self.keys.get(pe as usize).filter(|_| segment == 0).cloned())
    }
}

pub struct World {
    pub pes: Vec<Pe>,
    pub streams: Vec<Vec<Stream>>,
    pub random: Random,
    pub next_tag: u64,
    pub staged: bool,
    pub fabric: Fabric,
    pub lanes: usize,
    /// Which rails do not work, which may fail, and after how many polls one fails or comes back; 0 for never.
    pub down: Vec<bool>,
    pub mortal: Vec<usize>,
    pub fails_every: u64,
    /// Whether ports go down and up instead, or traffic stops without notice.
    pub pulls: bool,
    pub mutes: bool,
    /// A PE that gets no core for some polls.
    pub starved: Option<(usize, u64)>,
    pub polls: u64,
    pub polls_per_second: u64,
    /// The remaining number of crowds, which need long, and of blocks that are segmented.
    pub crowds_left: u32,
    pub segmented_left: u32,
    /// Whether operations are segmented: rails change their speed, and operations have either priority.
    pub segments: bool,
}

pub fn random(seed: u64) -> Random {
    Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

pub fn world(seed: u64, staged: bool) -> World {
    let mut random = random(seed);
    // A single lane takes other paths.
    let (lanes, native_amo) = ([1, 1, 1, 2, 3, 4][random.below(6) as usize], random.below(2) == 0);
    let native_amo = native_amo && !staged;
    let threads = if native_amo { 1 } else { 1 + random.below(lanes as u64) as usize };
    world_with(seed, random, (lanes, threads), native_amo, staged)
}

/// A world with so many lanes and proxy threads.
pub fn world_with(
    seed: u64,
    mut random: Random,
    (lanes, threads): (usize, usize),
    native_amo: bool,
    staged: bool,
) -> World {
    // The speed of lanes depends on the time, and a seed has to do the same each time.
    simulation::set_nanos(Some(0));
    let n = 2 + random.below(2) as usize;
    let ordered = random.below(2) == 0;
    let order = Order {
        write_after_write: ordered,
        send_after_write: ordered,
        send_after_send: true,
        amo_after_write: ordered && random.below(2) == 0,
    };
    let renews = random.below(3) == 0;
    let segments = !staged && seed % 5 == 4;
    let mut config = FabricConfig {
        order,
        delay: random.below(250) as u8,
        again: random.below(100) as u8,
        repeat: random.below(40) as u8,
        fail: 0,
        max_rma: [700, 4096, 1 << 20][random.below(3) as usize],
        inject: [0, 64, 128][random.below(3) as usize],
        polls_post: random.below(2) == 0,
        pieces: [1, 2, 4][random.below(3) as usize],
        local_registration: random.below(2) == 0,
        software: random.below(2) == 0,
        half_open: random.below(2) == 0 && !renews,
        renews,
        tells_silence: !renews && seed.is_multiple_of(2),
        queue_depth: [2, 16, 256][random.below(3) as usize],
        window: [1, 5000, u64::MAX][random.below(3) as usize],
        atomics: native_amo,
    };
    if segments {
        config.max_rma = config.max_rma.max(20 << 10);
    }
    let fabric = Fabric::new(seed, config);
    let drawn = [RailPolicy::RoundRobin, RailPolicy::Stripe][random.below(2) as usize];
    let rails = if seed % 5 == 4 { RailPolicy::Adaptive } else { drawn };
    let policy = Policy { rails, stripe_threshold: 8192, native_amo, timeout_s: 1_000_000 };
    // PEs may use the networks in different orders, so that lanes pair by subnets.
    let turned = threads == 1 && lanes > 1 && !native_amo && seed % 3 == 1;
    // The lane of each rail, or its network, in the order of opening.
    let opened = RefCell::new(Vec::new());
    let endpoint = |role: Role, me: usize, thread: usize| {
        let share = Share::of(thread, threads, lanes);
        let network = |rail: usize| if turned { (rail + me) % lanes } else { rail };
        opened.borrow_mut().extend(share.rails.iter().enumerate().map(|(lane, &rail)| match turned {
            true => network(rail),
            false => lane,
        }));
        let interface = |rail| InterfaceAddress {
            ip: [10, 0, network(rail) as u8, me as u8 + 1].into(),
            prefix: 24,
            network: me as u32 + 1,
        };
        let open = |rail: &usize| {
            let interface = turned.then(|| interface(*rail));
            fabric.open_at(&format!("pe{me}{role:?}{thread}rail{rail}"), interface).unwrap()
        };
        let rails = share.rails.iter().map(open).collect();
        let mut endpoint = Endpoint::new(role, me as u32, n as u32, rails, policy).unwrap();
        if share.spare {
            endpoint.keep_others_spare();
        }
        endpoint
    };
    let mut pes: Vec<Pe> = (0..n)
        .map(|me| {
            let engine = |thread| Engine::new(endpoint(Role::Proxy, me, thread));
            let engines = (0..threads).map(engine).collect();
            let memory = if staged {
                Memory::Guarded(GuardedMemory::new(HEAP + BUFFERS).unwrap())
            } else {
                Memory::Ordinary(vec![0; HEAP / 8])
            };
            Pe { engines, devices: Vec::new(), host: None, memory, kernel: None, sources: Vec::new(), used: 0 }
        })
        .collect();
    // Host endpoints segment nothing.
    let hosts = !staged && random.below(2) == 0 && !segments;
    for (me, pe) in pes.iter_mut().enumerate().filter(|_| hosts) {
        pe.host = Some(endpoint(Role::Host, me, 0));
    }
    if seed % 4 == 3 {
        pes.iter_mut().for_each(Pe::add_devices);
    }
    let nobody = Token::default().with_address(fabric.open("nobody's").unwrap().address());
    let addresses = |p: &Pe, thread: usize| Addresses {
        host: match &p.host {
            _ if thread > 0 => Vec::new(),
            None => vec![nobody.clone()],
            Some(host) => host.addresses(),
        },
        proxy: p.engines[thread].addresses(),
    };
    let addresses: Vec<Vec<Addresses>> =
        (0..threads).map(|thread| pes.iter().map(|p| addresses(p, thread)).collect()).collect();
    // The connection infos of each thread, by PE.
    let (mut connection_infos, mut direct_connection_infos) = (vec![Vec::new(); threads], vec![Vec::new(); threads]);
    // Rails can access none of it, or the heaps, or local buffers as well.
    let reached = if staged { [0, HEAP, HEAP + BUFFERS][random.below(3) as usize] } else { 0 };
    let guarded = |pe: &Pe| if let Memory::Guarded(memory) = &pe.memory { Some(Arc::clone(memory)) } else { None };
    let guarded: Vec<_> = pes.iter().filter_map(guarded).collect();
    // Devices have mapped nothing, or each about every other peer's memory, or all.
    let mapped_of_4 = if staged { [0, 2, 4][random.below(3) as usize] } else { 0 };
    for pe in &mut pes {
        let base = pe.base();
        // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
        let segment = unsafe { Segment::new(0, 0, base, HEAP as u64) };
        match &pe.memory {
            // SAFETY: the memory is dropped after the engines.
            Memory::Ordinary(_) => unsafe {
                if let Some(host) = &mut pe.host {
                    host.register(segment).unwrap();
                }
                for (engine, connection_infos) in pe.engines.iter_mut().zip(&mut connection_infos) {
                    connection_infos.push(engine.register(segment).unwrap());
                }
            },
            Memory::Guarded(memory) => {
                let locks = WordLocks::default();
                for (engine, thread) in pe.engines.iter_mut().zip(0..) {
                    let seed = seed ^ base.addr() as u64 ^ thread as u64;
                    let copy_engine = GuardedCopyEngine::new(Arc::clone(memory), STAGING_BUFFER_BYTES, seed).unwrap();
                    let copy_engine = copy_engine.with_peers(Arc::new(guarded.clone().into()));
                    let connection_info = if thread == 0 {
                        let (mailbox, reader) = mailbox::pair();
                        pe.kernel = Some(reader);
                        engine.stage(Box::new(MailboxCopyEngine::new(copy_engine, mailbox)))
                    } else {
                        engine.stage(Box::new(copy_engine))
                    };
                    connection_infos[thread].push(connection_info.unwrap());
                    if threads > 1 {
                        engine.share_words(&locks);
                    }
                    // SAFETY: the memory outlives the engine.
                    unsafe { engine.add_staged_segment(segment) };
                    let is_mapped = guarded.iter().map(|memory| (memory, random.below(4) < mapped_of_4));
                    let bases = is_mapped.map(|(memory, is)| if is { memory.base().addr().get() } else { 0 });
                    // SAFETY: all PEs' memory, which outlives the engines.
                    assert_eq!(unsafe { engine.map_peers(&segment, bases.collect()) }, []);
                    // SAFETY: behind the heap, in the copy engine's memory.
                    unsafe { engine.add_staged_buffer(base.wrapping_add(HEAP), BUFFERS, 1) };
                    // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
                    let all = unsafe { Segment::new(2, 0, base, reached as u64) };
                    // SAFETY: the memory is dropped after the engine. Not all mock rails accept it.
                    let offer = || unsafe { engine.register_direct(all, memory.export().as_export()) }.ok();
                    direct_connection_infos[thread].push((reached > 0).then(offer).flatten().unwrap_or_default());
                }
            }
        }
    }
    let directory = |(addresses, keys): (&Vec<Addresses>, &Vec<Vec<u8>>)| -> Arc<dyn Directory> {
        let keys = if staged { Vec::new() } else { keys.clone() };
        Arc::new(AllPes { addresses: addresses.clone(), keys })
    };
    let directories: Vec<_> = addresses.iter().zip(&connection_infos).map(directory).collect();
    for pe in &mut pes {
        for (engine, directory) in pe.engines.iter_mut().zip(&directories) {
            engine.endpoint().set_directory(Arc::clone(directory));
        }
        if let Some(host) = &mut pe.host {
            host.set_directory(Arc::clone(&directories[0]));
        }
        for ((engine, connection_infos), direct) in
            pe.engines.iter_mut().zip(&connection_infos).zip(&direct_connection_infos)
        {
            if staged {
                engine.learn_window(connection_infos).unwrap();
                engine.learn_direct(2, direct).unwrap();
            }
        }
    }
    let streams = (0..n).map(|_| (0..n).map(|_| Stream::default()).collect()).collect();
    let fails_every = if lanes > 1 { [0, 100, 500, 2000][random.below(4) as usize] } else { 0 };
    let pulls = renews && seed.is_multiple_of(2);
    let mutes = !renews && seed.is_multiple_of(3);
    let polls_per_second = [100, 1000][random.below(2) as usize];
    // Where connections have to be renewed, one lane stays up for the exchange. Where ports go down, none has to.
    let spared = usize::from(native_amo || renews && !pulls);
    let opened = opened.into_inner();
    let mortal = (0..opened.len()).filter(|&rail| opened[rail] >= spared).collect();
    let down = vec![false; opened.len()];
    let (polls, crowds_left, segmented_left) = (0, if staged { 0 } else { 3 }, if segments { 2 } else { 0 });
    #[rustfmt::skip]
    let world = World {
        pes, streams, random, next_tag: 1, staged, fabric, lanes, down, mortal, fails_every, pulls, mutes, starved: None, polls, polls_per_second, crowds_left, segmented_left, segments,
    };
    world
}

impl World {
    pub fn poll_one(&mut self) {
        self.polls += 1;
        simulation::spend(1_000_000_000 / self.polls_per_second);
        if self.fails_every > 0 && self.random.below(self.fails_every) == 0 {
            self.disturb();
        }
        if self.segments && self.lanes > 1 && self.random.below(200) == 0 {
            let rail = self.random.below(self.down.len() as u64) as usize;
            self.fabric.delay(rail, [0, 64, 192][self.random.below(3) as usize]);
        }
        if self.polls.is_multiple_of(self.polls_per_second) {
            let second = (self.polls / self.polls_per_second) as u32;
            self.pes.iter_mut().for_each(|pe| pe.tick(second));
        }
        let mut pe = self.random.below(self.pes.len() as u64) as usize;
        if let Some((starved, until)) = self.starved {
            pe = if pe == starved { (pe + 1) % self.pes.len() } else { pe };
            self.starved = self.starved.filter(|_| self.polls < until);
        } else if self.lanes > 1 && self.random.below(10_000) == 0 {
            self.starved = Some((pe, self.polls + self.random.below(10 * self.polls_per_second)));
        }
        if let Some(host) = &mut self.pes[pe].host
            && self.random.below(2) == 0
        {
            host.poll(&mut NoAgent);
        } else {
            let engine = self.random.below(self.pes[pe].engines.len() as u64) as usize;
            self.pes[pe].engines[engine].poll();
        }
        let dice = self.random.below(8);
        self.pes[pe].kernel(dice);
        self.check();
    }

    /// A rail fails, for a moment or for longer, or comes back.
    pub fn disturb(&mut self) {
        let rail = self.mortal[self.random.below(self.mortal.len() as u64) as usize];
        if !self.down[rail] {
            self.fail(rail);
        }
        if self.down[rail] || self.random.below(4) == 0 {
            self.mend(rail);
            self.down[rail] = false;
        } else {
            self.down[rail] = true;
        }
    }

    fn fail(&self, rail: usize) {
        match (self.pulls, self.mutes) {
            (true, _) => self.fabric.pull_out(rail),
            (_, true) if rail.is_multiple_of(2) => self.fabric.mute(rail),
            _ => self.fabric.take_down(rail),
        }
    }

    fn mend(&self, rail: usize) {
        self.fabric.bring_up(rail);
        self.fabric.plug_in(rail);
    }

    /// No more failures.
    pub fn heal(&mut self) {
        (0..self.down.len()).for_each(|rail| self.mend(rail));
        self.fails_every = 0;
    }

    /// Checks the invariants.
    pub fn check(&mut self) {
        for target in 0..self.pes.len() {
            for source in 0..self.pes.len() {
                let part = (source * PART) as u64;
                let pe = &self.pes[target];
                let (b, a) = (pe.word(part + B), pe.word(part + A));
                let stream = &mut self.streams[source][target];
                assert!(a >= b, "PE {target} sees B = {b} of PE {source} before A = {a}");
                assert!(b >= stream.seen_pair, "B went back from {} to {b}", stream.seen_pair);
                stream.seen_pair = b;
                self.check_block(source, target, false);
            }
        }
    }

    /// Checks the block of the latest signal: all words when the signal is seen first and where `whole`, else some, at
    /// each poll other ones.
    pub fn check_block(&mut self, source: usize, target: usize, whole: bool) {
        let part = (source * PART) as u64;
        let (pe, stream) = (&self.pes[target], &mut self.streams[source][target]);
        let signal = pe.word(part + SIGNAL);
        assert!(signal <= stream.signals);
        if signal != stream.signals || signal == 0 {
            return;
        }
        let whole = whole || std::mem::replace(&mut stream.seen_signal, signal) != signal;
        let consumed = stream.consumed == signal;
        let content = if consumed { !(signal as u8) } else { signal as u8 };
        let (fill, why) = (u64::from_ne_bytes([content; 8]), if consumed { "again" } else { "late" });
        let words = stream.block_len / 8;
        let step = if whole { 1 } else { words.div_ceil(SAMPLES).max(1) };
        if let Some((word, seen)) = pe.other_word(part + BLOCK, words, self.polls % step, step, fill) {
            panic!("PE {target}, signal {signal} of PE {source}: word {word} came {why}: {seen:#x} != {fill:#x}");
        }
        if !self.staged && !consumed {
            stream.consumed = signal;
            let len = stream.block_len;
            self.pes[target].fill(part + BLOCK, len, !(signal as u8));
        }
    }

    pub fn submit(&mut self, source: usize, target: usize, command: Command, tag: Option<u64>) {
        while !self.pes[source].ready() {
            self.poll_one();
        }
        let owner = Owner { issuer: HOST, tag };
        // Ordered steps use one engine, and sums use any.
        let engines = self.pes[source].engines.len();
        let any = matches!(command, Command::Amo { offset, .. } if offset == (source * PART) as u64 + SUM);
        let engine = if any { self.random.below(engines as u64) as usize } else { target % engines };
        let priority = if self.segments && self.random.below(2) == 0 { Priority::Bulk } else { Priority::Urgent };
        // SAFETY: sources are kept in `sources` until the end.
        unsafe { self.pes[source].submit(engine, target as u32, command, owner, priority) }.unwrap();
    }

    pub fn keep(&mut self, pe: usize, bytes: Vec<u8>) -> *const u8 {
        if self.random.below(2) == 0
            && let Some(ptr) = self.pes[pe].guarded(&bytes)
        {
            return ptr;
        }
        let bytes = bytes.into_boxed_slice();
        let ptr = bytes.as_ptr();
        self.pes[pe].sources.push(bytes);
        ptr
    }

    pub fn quiet(&mut self, pe: usize) {
        for round in 0.. {
            if self.pes[pe].quiet() {
                break;
            }
            assert!(round < 2_000_000, "PE {pe} never becomes quiet");
            if round == 50_000 {
                self.heal(); // against so many faults the end would take too long
            }
            self.poll_one();
        }
        assert_eq!(self.pes[pe].take_error().map(|e| e.to_string()), None);
        for target in 0..self.pes.len() {
            let part = (pe * PART) as u64;
            let (there, stream) = (&self.pes[target], &mut self.streams[pe][target]);
            stream.block_busy = false;
            assert_eq!(there.word(part + A), stream.pair, "a quiet left a put behind");
            assert_eq!(there.word(part + B), stream.pair, "a quiet left a put behind");
            assert_eq!(there.word(part + SUM), stream.added, "a quiet left an AMO behind");
            assert_eq!(there.word(part + SIGNAL), stream.signals, "a quiet left a signal behind");
            assert_eq!(there.word(part + LAST), stream.crowds, "a quiet left the last of a crowd behind");
            for at in (0..stream.crowds.min(1) * CROWD_SIZE).map(|i| part + CROWD + i * CROWD_BYTES) {
                assert_eq!(there.word(at) as u8, stream.crowds as u8, "a quiet left one of a crowd behind");
            }
            self.check_block(pe, target, true);
        }
    }

    pub fn collect_fetched(&mut self) {
        for source in 0..self.pes.len() {
            for finished in self.pes[source].finished() {
                let target = (finished.tag & 0xffff) as usize;
                let fresh = self.streams[source][target].fetched.insert(finished.result.unwrap());
                assert!(fresh, "two fetch-adds saw the same value");
            }
        }
    }
}
