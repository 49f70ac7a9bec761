//! Support for the ibverbs tests: devices or a visible SKIPPED, memory, a recording sink, bounded polling, a second
//! process. To run them on RDMA devices: `scripts/roce-guest/run.sh BINARY --test-threads=1`.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use symrail_transport::env::Settings;
use symrail_transport::error::Fault;
use symrail_transport::rail::{
    LocalBuf, Notify, OpId, Piece, PostError, Rail, RailSink, Registration, RemoteBuf, WriteOptions,
};
use symrail_transport::verbs::{Nic, Role, VerbsRail, discover};

/// The limit of every wait in these tests.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Reports a skipped test visibly although it passes: the harness captures the output of `println`.
pub fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    std::io::stderr().write_all(format!("{test}: SKIPPED: {why}\n").as_bytes()).unwrap();
}

/// The NICs, or an empty list after reporting SKIPPED.
pub fn nics(settings: &Settings) -> Vec<Nic> {
    match discover(settings) {
        Ok(nics) if !nics.is_empty() => nics,
        Ok(_) => {
            skipped("no RDMA device");
            Vec::new()
        }
        Err(error) => {
            skipped(&format!("no RDMA device ({error})"));
            Vec::new()
        }
    }
}

/// The NIC of that name; `None` after reporting SKIPPED.
pub fn nic(name: &str) -> Option<Nic> {
    let found = discover(&Settings::default()).unwrap_or_default().into_iter().find(|nic| nic.name == name);
    if found.is_none() {
        skipped(&format!("no RDMA device {name}"));
    }
    found
}

/// Settings that detect a dead peer within a second.
pub fn impatient() -> Settings {
    let mut settings = Settings::default();
    (settings.ib_timeout, settings.ib_retry_cnt) = (14, 3);
    settings
}

/// Records all reports.
#[derive(Debug, Default)]
pub struct Log {
    pub done: Vec<OpId>,
    pub failed: Vec<(OpId, Fault)>,
    pub messages: Vec<Vec<u8>>,
    pub immediates: Vec<u64>,
    pub broken: Vec<Fault>,
    pub ports_down: usize,
}

impl RailSink for Log {
    fn done(&mut self, id: OpId) {
        self.done.push(id);
    }
    fn failed(&mut self, id: OpId, fault: Fault) {
        self.failed.push((id, fault));
    }
    fn message(&mut self, bytes: &[u8]) {
        self.messages.push(bytes.to_vec());
    }
    fn immediate(&mut self, immediate: u64) {
        self.immediates.push(immediate);
    }
    fn broken(&mut self, fault: Fault) {
        self.broken.push(fault);
    }
    fn port_down(&mut self) {
        self.ports_down += 1;
    }
}

/// Polls until the condition holds. It yields between polls, because a spinning process would starve soft-RoCE's
/// tasklets.
pub fn poll_until(rail: &mut dyn Rail, log: &mut Log, what: &str, mut holds: impl FnMut(&Log) -> bool) {
    let start = Instant::now();
    while !holds(log) {
        if rail.poll(log) == 0 {
            std::thread::yield_now();
        }
        assert!(start.elapsed() < LIMIT, "{what}: nothing within {LIMIT:?}; so far {log:?}");
    }
}

/// Repeats a post while the queue is full.
pub fn posted(rail: &mut dyn Rail, log: &mut Log, mut post: impl FnMut(&mut dyn Rail) -> Result<(), PostError>) {
    let start = Instant::now();
    loop {
        match post(rail) {
            Ok(()) => return,
            Err(PostError::Again) => {
                if rail.poll(log) == 0 {
                    std::thread::yield_now();
                }
            }
            Err(PostError::Failed(fault)) => panic!("post failed: {fault}"),
        }
        assert!(start.elapsed() < LIMIT, "the queue stays full; so far {log:?}");
    }
}

/// Zeroed memory that peers write.
pub struct Memory {
    ptr: *mut u8,
    layout: Layout,
    pub registration: Registration,
}

impl Memory {
    pub fn new(rail: &mut dyn Rail, len: usize, id: u32) -> Self {
        let layout = Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: the length is not zero; the tests drop rails before memory.
        let ptr = unsafe { alloc_zeroed(layout) };
        // SAFETY: as above.
        let registration = unsafe { rail.register(ptr, len, id) }.unwrap();
        Memory { ptr, layout, registration }
    }

    pub fn local(&self, offset: usize, len: usize) -> LocalBuf {
        assert!(offset + len <= self.layout.size());
        // SAFETY: inside the allocation.
        LocalBuf { ptr: unsafe { self.ptr.add(offset) }, len, key: self.registration.local }
    }

    pub fn store(&self, offset: usize, bytes: &[u8]) {
        let to = self.local(offset, bytes.len()).ptr;
        // SAFETY: inside the allocation, and nothing is outstanding on these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub fn load(&self, offset: usize, len: usize) -> Vec<u8> {
        let from = self.local(offset, len).ptr;
        // SAFETY: inside the allocation; volatile, since the NIC writes it.
        (0..len).map(|at| unsafe { from.add(at).read_volatile() }).collect()
    }

    pub fn load_u64(&self, offset: usize) -> u64 {
        // SAFETY: inside the allocation, which is aligned; volatile, since the NIC writes it.
        unsafe { self.local(offset, 8).ptr.cast::<u64>().read_volatile() }
    }

    /// The bytes as peers address them.
    pub fn remote(&self, offset: usize) -> RemoteBuf {
        remote(&self.registration, offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.ptr, self.layout) };
    }
}

pub fn remote(registration: &Registration, offset: usize) -> RemoteBuf {
    RemoteBuf { address: registration.remote_base + offset as u64, key: registration.remote_key }
}

pub fn options(id: Option<OpId>) -> WriteOptions {
    WriteOptions { id, notify: Notify::Delivered, immediate: None, more: false }
}

/// Bytes that encode their position.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ seed.wrapping_mul(97) ^ (at >> 8)) as u8).collect()
}

/// Two rails of this process, connected with one another.
pub struct Pair {
    pub a: VerbsRail,
    pub b: VerbsRail,
    pub log_a: Log,
    pub log_b: Log,
    // The memories come behind the rails, which hold registrations of them.
    pub at_a: Memory,
    pub at_b: Memory,
}

impl Pair {
    pub fn new(nic: &Nic, settings: &Settings, len: usize) -> Self {
        let mut a = VerbsRail::open(nic, Role::Host, 1, settings).unwrap();
        let mut b = VerbsRail::open(nic, Role::Proxy, 1, settings).unwrap();
        connect(&mut a, &mut b);
        let (at_a, at_b) = (Memory::new(&mut a, len, 1), Memory::new(&mut b, len, 1));
        Pair { a, b, log_a: Log::default(), log_b: Log::default(), at_a, at_b }
    }

    /// Writes and reads back, while no other operation is under way.
    pub fn assert_works(&mut self, seed: usize) {
        let bytes = pattern(3000, seed);
        self.at_a.store(0, &bytes);
        self.log_a = Log::default();
        let piece = Piece { local: self.at_a.local(0, 3000), remote: self.at_b.remote(0) };
        // SAFETY: both memories live as long as the rails.
        unsafe { self.a.write(0, piece, options(Some(1))) }.unwrap();
        poll_until(&mut self.a, &mut self.log_a, "a write that must work", |log| log.done == [1]);
        assert_eq!(self.at_b.load(0, 3000), bytes);
    }
}

pub fn connect(a: &mut VerbsRail, b: &mut VerbsRail) {
    let (address_a, address_b) = (a.address(), b.address());
    a.connect(0, &address_b, 0).unwrap();
    b.connect(0, &address_a, 0).unwrap();
}

/// The link to the other process of a test. It exchanges bytes, and so synchronizes the two.
pub struct Link(TcpStream);

const PEER_PORT: &str = "VERBS_TEST_PEER_PORT";
const PEER_PLAY: &str = "VERBS_TEST_PEER_PLAY";

impl Link {
    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Link(stream)
    }

    /// The link and the scenario in the second process; `None` in the first.
    pub fn of_peer() -> Option<(Self, String)> {
        let port: u16 = std::env::var(PEER_PORT).ok()?.parse().unwrap();
        Some((Self::over(TcpStream::connect(("127.0.0.1", port)).unwrap()), std::env::var(PEER_PLAY).unwrap()))
    }

    pub fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.0.write_all(&(bytes.len() as u32).to_le_bytes()).unwrap();
        self.0.write_all(bytes).unwrap();
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut theirs = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut theirs).unwrap();
        theirs
    }

    pub fn barrier(&mut self) {
        assert!(self.exchange(&[]).is_empty());
    }

    pub fn exchange_registration(&mut self, ours: &Registration) -> Registration {
        let theirs = self.exchange(&[ours.remote_key.to_le_bytes(), ours.remote_base.to_le_bytes()].concat());
        let word = |at: usize| u64::from_le_bytes(theirs[at..at + 8].try_into().unwrap());
        Registration { local: Default::default(), remote_key: word(0), remote_base: word(8) }
    }
}

/// The second process: this test binary again, running its test `peer`. Dropping it kills the process.
pub struct Peer(pub Child);

impl Peer {
    pub fn start(play: &str) -> (Self, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["verbs_rail::peer", "--exact", "--nocapture", "--test-threads=1"])
            .env(PEER_PORT, listener.local_addr().unwrap().port().to_string())
            .env(PEER_PLAY, play)
            .spawn()
            .unwrap();
        let mut peer = Peer(child);
        listener.set_nonblocking(true).unwrap();
        let start = Instant::now();
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    return (peer, Link::over(stream));
                }
                Err(_) => std::thread::yield_now(),
            }
            assert!(peer.0.try_wait().unwrap().is_none(), "the second process ended");
            assert!(start.elapsed() < LIMIT, "the second process does not answer");
        }
    }

    pub fn ends_well(mut self) {
        assert!(self.0.wait().unwrap().success(), "the second process failed");
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command that must succeed.
pub fn run(command: &str) {
    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
}

/// The output of a command.
pub fn output(command: &str) -> String {
    String::from_utf8(Command::new("sh").args(["-c", command]).output().unwrap().stdout).unwrap()
}
