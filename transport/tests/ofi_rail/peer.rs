//! The other process: this test binary again, which serves its memory and reports its events.
//!
//! Both sides communicate over a socket pair (the child's standard input). A command is one line, its answer another.
//! While the child waits for the next command, it polls its rails like a proxy thread.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use symrail_transport::env::{AmoPath, NicList, ProgressModel, Settings};
use symrail_transport::error::Fault;
use symrail_transport::ofi::{self, Role};
use symrail_transport::rail::{Rail, RailSink, Registration, RemoteBuf};

/// Bytes of memory that each side registers, zeroed.
pub const HEAP: usize = 4 << 20;
/// The limit of every wait in these tests.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);
const PEER: &str = "SYMRAIL_TEST_OFI_PEER";

/// The configuration of a pair of processes.
#[derive(Debug, Clone)]
pub struct Setup {
    pub provider: &'static str,
    /// NIC_LIST, comma separated; empty for none.
    pub nics: &'static str,
    pub native_amos: bool,
    pub progress: ProgressModel,
    /// For measurements: each side spins on a core of its own, and rails are opened for the host role.
    pub spin: bool,
}

impl Setup {
    pub const fn new(provider: &'static str, nics: &'static str) -> Self {
        Setup { provider, nics, native_amos: false, progress: ProgressModel::Auto, spin: false }
    }

    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.libfabric_so = std::env::var_os("SYMRAIL_LIBFABRIC_SO").map(Into::into);
        settings.libfabric_provider = Some(self.provider.to_owned());
        if !self.nics.is_empty() {
            settings.nic_list =
                Some(NicList { exclude: false, names: self.nics.split(',').map(str::to_owned).collect() });
        }
        settings.amo_path = if self.native_amos { AmoPath::Native } else { AmoPath::Agent };
        settings.progress = self.progress;
        settings
    }

    pub fn open(&self, role: Role) -> symrail_transport::Result<Vec<Box<dyn Rail>>> {
        let settings = self.settings();
        let library = ofi::load(&settings)?;
        let found = ofi::discover(&library, &settings, false)?;
        found.nics.iter().map(|nic| ofi::open(&library, nic, role, &settings)).collect()
    }

    fn encode(&self) -> String {
        format!("{}|{}|{}|{:?}|{}", self.provider, self.nics, self.native_amos, self.progress, self.spin)
    }

    fn decode(text: &str) -> Self {
        let [provider, nics, amos, progress, spin] = text.split('|').collect::<Vec<_>>()[..] else { unreachable!() };
        let leak = |text: &str| -> &'static str { text.to_owned().leak() };
        let progress = match progress {
            "Manual" => ProgressModel::Manual,
            "Automatic" => ProgressModel::Automatic,
            _ => ProgressModel::Auto,
        };
        Setup {
            provider: leak(provider),
            nics: leak(nics),
            native_amos: amos == "true",
            progress,
            spin: spin == "true",
        }
    }
}

fn pin(core: usize) {
    // SAFETY: a set of our own.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// All reports that a process has received.
#[derive(Debug, Default)]
pub struct Seen {
    pub done: Vec<u64>,
    pub failed: Vec<(u64, Fault)>,
    pub broken: Vec<Fault>,
    pub messages: Vec<Vec<u8>>,
    pub immediates: Vec<u64>,
    /// Messages `order <offset> <value>` that arrived before the value was visible at the offset.
    pub early: u64,
    pub ordered: u64,
    heap: usize,
}

/// A message on which its receiver compares memory with a value at once.
pub fn order_message(offset: u64, value: u64) -> Vec<u8> {
    [b"order!!!".as_slice(), &offset.to_ne_bytes(), &value.to_ne_bytes()].concat()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl RailSink for Seen {
    fn done(&mut self, id: u64) {
        self.done.push(id);
    }
    fn failed(&mut self, id: u64, fault: Fault) {
        self.failed.push((id, fault));
    }
    fn message(&mut self, bytes: &[u8]) {
        if bytes.len() == 24 && bytes.starts_with(b"order!!!") {
            self.ordered += 1;
            let (offset, value) = (word(bytes, 8) as usize, word(bytes, 16));
            assert!(offset + 8 <= HEAP);
            // SAFETY: inside the heap, which lives as long as the process.
            let found = unsafe { ((self.heap + offset) as *const u64).read_volatile() };
            // A later write may have overtaken the message, but an earlier one must not be missing.
            self.early += u64::from(found < value);
        } else {
            self.messages.push(bytes.to_vec());
        }
    }
    fn immediate(&mut self, immediate: u64) {
        self.immediates.push(immediate);
    }
    fn broken(&mut self, fault: Fault) {
        self.broken.push(fault);
    }
}

/// One side: rails, memory that is registered with all of them, and their reports.
pub struct Side {
    pub rails: Vec<Box<dyn Rail>>,
    pub heap: *mut u8,
    pub registrations: Vec<Registration>,
    pub seen: Seen,
    spin: bool,
}

impl Side {
    pub fn open(setup: &Setup) -> symrail_transport::Result<Side> {
        if setup.spin {
            pin(usize::from(std::env::var_os(PEER).is_some()));
        }
        let waits = std::env::var_os("WAIT_FD").is_some() || !setup.spin;
        let mut rails = setup.open(if waits { Role::Proxy } else { Role::Host })?;
        // It is leaked, because the rails of a failed test must not outlive it.
        let heap = vec![0_u64; HEAP / 8].leak().as_mut_ptr().cast::<u8>();
        // SAFETY: leaked memory stays.
        let registrations = rails.iter_mut().map(|rail| unsafe { rail.register(heap, HEAP, 7) });
        let registrations = registrations.collect::<Result<_, _>>()?;
        Ok(Side { rails, heap, registrations, spin: setup.spin, seen: Seen { heap: heap as usize, ..Seen::default() } })
    }

    pub fn poll(&mut self) {
        let mut events = 0;
        for rail in &mut self.rails {
            events += rail.poll(&mut self.seen);
        }
        if events == 0 && !self.spin {
            std::thread::yield_now();
        }
    }

    /// Address, key and base of every rail, in one line.
    fn connection_info(&self) -> String {
        let mut entries = Vec::new();
        for (rail, registration) in self.rails.iter().zip(&self.registrations) {
            let address: String = rail.address().iter().map(|byte| format!("{byte:02x}")).collect();
            entries.push(format!("{address},{},{}", registration.remote_key, registration.remote_base));
        }
        entries.join(";")
    }

    fn connect(&mut self, connection_info: &str) -> Vec<RemoteBuf> {
        let mut heaps = Vec::new();
        for (rail, entry) in self.rails.iter_mut().zip(connection_info.trim().split(';')) {
            let [address, key, base] = entry.split(',').collect::<Vec<_>>()[..] else { unreachable!() };
            let byte = |at: usize| u8::from_str_radix(&address[at..at + 2], 16).unwrap();
            let address: Vec<u8> = (0..address.len()).step_by(2).map(byte).collect();
            rail.connect(0, &address, 0).unwrap();
            heaps.push(RemoteBuf { address: base.parse().unwrap(), key: key.parse().unwrap() });
        }
        heaps
    }

    pub fn read_heap(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= HEAP);
        // SAFETY: inside the heap.
        unsafe { self.heap.add(offset).cast::<u64>().read_volatile() }
    }

    pub fn write_heap(&mut self, offset: usize, value: u64) {
        assert!(offset + 8 <= HEAP);
        // SAFETY: inside the heap.
        unsafe { self.heap.add(offset).cast::<u64>().write_volatile(value) }
    }
}

/// The test process's side, connected to the other process.
pub struct Pair {
    pub side: Side,
    /// The other process's memory, by rail.
    pub remote: Vec<RemoteBuf>,
    child: Child,
    commands: BufReader<UnixStream>,
}

impl Pair {
    /// Starts the other process and connects to it. `None` when the machine lacks the provider.
    pub fn start(setup: &Setup) -> Option<Pair> {
        let side = match Side::open(setup) {
            Ok(side) => side,
            Err(error) => {
                println!("SKIPPED: {error}");
                return None;
            }
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["ofi_rail::peer::serve", "--exact", "--nocapture", "--test-threads=1"])
            .env(PEER, setup.encode())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut pair = Pair { side, remote: Vec::new(), child, commands: BufReader::new(ours) };
        let connection_info = pair.side.connection_info();
        let answer = pair.ask(&format!("connect {connection_info}"));
        pair.remote = pair.side.connect(&answer);
        Some(pair)
    }

    /// Sends a command and polls until its answer arrives.
    pub fn ask(&mut self, command: &str) -> String {
        self.commands.get_mut().write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.commands.get_ref().set_nonblocking(true).unwrap();
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            match self.commands.read_line(&mut line) {
                Ok(0) => panic!("the other process ended instead of answering {command:?}"),
                Ok(_) if line.ends_with('\n') => return line.trim_end().to_owned(),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{command:?}: {error}"),
            }
            assert!(Instant::now() < deadline, "no answer to {command:?} in {TIME_LIMIT:?}");
            self.side.poll();
        }
    }

    pub fn ask_number(&mut self, command: &str) -> u64 {
        self.ask(command).parse().unwrap()
    }

    /// Polls until `until` holds.
    pub fn wait(&mut self, what: &str, mut until: impl FnMut(&mut Side) -> bool) {
        let deadline = Instant::now() + TIME_LIMIT;
        while !until(&mut self.side) {
            assert!(Instant::now() < deadline, "{what}: not within {TIME_LIMIT:?}; seen: {:?}", self.side.seen);
            self.side.poll();
        }
    }

    /// Kills the other process, and waits until the system has reaped it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets the other process close its rails and end.
    pub fn part(&mut self) {
        self.commands.get_mut().write_all(b"quit\n").unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    pub fn peer_id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Pair {
    /// Ends the other process; regularly if it still listens, so that it cleans up.
    fn drop(&mut self) {
        let _ = self.commands.get_mut().write_all(b"quit\n");
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            self.side.poll();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own: the other process of [`Pair::start`] runs it.
#[test]
fn serve() {
    let Ok(setup) = std::env::var(PEER) else { return };
    // SAFETY: standard input is the socket that Pair::start put there, and nothing else reads it.
    let mut commands = BufReader::new(unsafe { UnixStream::from_raw_fd(0) });
    let mut side = Side::open(&Setup::decode(&setup)).unwrap();
    commands.get_ref().set_nonblocking(true).unwrap();
    let mut line = String::new();
    let mut paused = false;
    // The parent may die at any time, and then the socket ends. The test runner bounds a hang of both.
    loop {
        if !paused {
            side.poll();
        }
        match commands.read_line(&mut line) {
            Ok(0) => return,
            Ok(_) if line.ends_with('\n') => {}
            Ok(_) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => panic!("{error}"),
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let answer = match words[0] {
            "connect" => {
                side.connect(words[1]);
                side.connection_info()
            }
            "peek" => side.read_heap(number(1) as usize).to_string(),
            "poke" => {
                side.write_heap(number(1) as usize, number(2));
                String::new()
            }
            "message" => side
                .seen
                .messages
                .get(number(1) as usize)
                .map_or_else(String::new, |bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            "count" => match words[1] {
                "messages" => side.seen.messages.len() as u64,
                "immediates" => side.seen.immediates.len() as u64,
                "broken" => side.seen.broken.len() as u64,
                "ordered" => side.seen.ordered,
                "early" => side.seen.early,
                other => panic!("count {other}"),
            }
            .to_string(),
            "immediate" => side.seen.immediates.get(number(1) as usize).map_or(String::new(), u64::to_string),
            "pause" | "resume" => {
                paused = words[0] == "pause";
                String::new()
            }
            "quit" => return,
            other => panic!("{other}"),
        };
        commands.get_mut().write_all(format!("{answer}\n").as_bytes()).unwrap();
        line.clear();
    }
}
