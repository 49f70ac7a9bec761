//! A job of two PEs, and an attacker: another user of the same host that tries to open memory, to read processes, to
//! disturb the rendezvous, to read and write heaps through the ports of rails, and to send messages in a PE's name.
//!
//! Started by root and without a launcher. Prints `opened: PATH` for each path that the attacker could open, and
//! `refused: N`; before that `ours: N`, the number of the same paths that the job's own user could open. Then `listens:
//! ADDRESS` for each port on which the PEs listen, `reached: N` and `messages: N`, how often the attacker reached
//! memory and how many of the attacker's messages arrived; and for each PE `dropped: N`, the number of messages that it
//! reports as foreign to the job.
use std::cell::OnceCell;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use symrail::bootstrap::uid;
use symrail::{Cmp, Result, Runtime, SignalUpdate};
use symrail_tests::pe;
use symrail_tests::rail_peer::RailPeer;
use symrail_tests::unlaunched::{self, Other};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::wire::{Keepalive, Reply, Request, RequestKind, Token};

/// A user without any rights to the job: `nobody`.
const NOBODY: u32 = 65534;
/// Descriptors of a process that are tried.
const DESCRIPTORS: u32 = 100;
/// Connections before the attacker reports that it floods, and the number that it holds open at a time.
const MANY: usize = 200;
const ROUNDS: u64 = 500;
/// The attacker's argument if there are no ports.
const NO_PORTS: &str = "none";
/// The content of memory that no PE of the job writes to.
const UNTOUCHED: u64 = 0x5eed_5eed_5eed_5eed;
/// Keys that are tried, from 0.
const KEYS: u64 = 4;

pub fn main() -> ExitCode {
    let args: Vec<String> = pe::args().skip(1).collect();
    if let [address, ports, processes @ ..] = &args[..] {
        let opened = look(&processes.iter().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>());
        println!("refused: {}", opened.iter().filter(|(_, opened)| !opened).count());
        opened.iter().filter(|(_, opened)| *opened).for_each(|(path, _)| println!("opened: {}", path.display()));
        let address = address.parse().unwrap();
        let (floods, flooding) = mpsc::channel();
        std::thread::spawn(move || flood(address, &floods));
        flooding.recv().unwrap();
        attack(ports);
        loop {
            std::thread::park();
        }
    }
    if unlaunched::started().is_some() {
        return pe::run(|rt| work(rt, || (), || true));
    }
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .init();
    let id = uid::create(None).unwrap();
    let other = Other::start(unlaunched::this_program(), id, 1, 2);
    let rt = unlaunched::join(id, 0, 2);
    let processes = [std::process::id(), other.0.id()];
    let stranger = OnceCell::<Stranger>::new();
    let begin = || {
        println!("ours: {}", look(&processes).iter().filter(|(_, opened)| *opened).count());
        let ports: Vec<_> =
            processes.iter().flat_map(|pid| listens(*pid)).filter(|at| Some(*at) != id.address().ip()).collect();
        ports.iter().for_each(|at| println!("listens: {at}"));
        // Unused endpoints are not polled: an attack would only wait.
        let attacked = if rt.is_mapped(1) { &[][..] } else { &ports };
        let _ = stranger.set(Stranger::start(id.address().ip().unwrap(), attacked, &processes));
    };
    let worked = work(&rt, begin, || stranger.get().is_none_or(Stranger::is_through));
    // Leaving is a step of the rendezvous, too.
    let left = worked.and_then(|()| rt.finalize());
    left.unwrap();
    Other::end_well([other]);
    ExitCode::SUCCESS
}

/// Exchanges verified data for a while, and at PE 0 until all is `over`; calls `first` at the beginning, when both PEs
/// are connected.
fn work(rt: &Runtime, first: impl FnOnce(), over: impl Fn() -> bool) -> Result<()> {
    let words = rt.alloc_slice::<u64>(102)?;
    let untouched = rt.alloc_slice::<u64>(1000)?;
    untouched.fill(UNTOUCHED)?;
    rt.barrier_all()?;
    first();
    rt.barrier_all()?;
    let other = pe::neighbour(rt, 1);
    for round in 1.. {
        let mut data = [round; 101];
        data[100] = u64::from(round >= ROUNDS && over());
        words.put_signal(1, &data, SignalUpdate::set((&words, 0), round), other)?;
        words.wait_until(0, Cmp::Ge, round)?;
        let found = words.to_vec()?;
        assert_eq!(found[1..101], [round; 100], "round {round}");
        rt.barrier_all()?;
        if if rt.my_pe() == 0 { data[100] } else { found[101] } == 1 {
            break;
        }
    }
    assert!(untouched.to_vec()?.iter().all(|word| *word == UNTOUCHED), "somebody has written to the heap");
    println!("dropped: {}", rt.counters().iter().map(|lane| lane.unauthenticated).sum::<u64>());
    Ok(())
}

/// The TCP ports on which a process listens.
fn listens(process: u32) -> Vec<SocketAddr> {
    let fds = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let sockets: Vec<String> = fds
        .filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.to_str()?.strip_prefix("socket:[")?.replace(']', "")))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap();
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening = fields.filter(|fields| fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9]));
    let address = |fields: Vec<&str>| {
        let (ip, port) = fields[1].split_once(':').unwrap();
        let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).unwrap().to_le_bytes());
        SocketAddr::from((ip, u16::from_str_radix(port, 16).unwrap()))
    };
    listening.map(address).collect()
}

/// Tries to access memory, and to pass for a PE, through every port.
fn attack(ports: &str) {
    if ports == NO_PORTS {
        return;
    }
    let (mut reached, mut messages) = (0, 0);
    for port in ports.split(',').map(|port| port.parse::<SocketAddrV4>().unwrap()) {
        let mut peer = RailPeer::open("tcp;ofi_rxm", port);
        for message in forged() {
            peer.buffer[..message.len()].copy_from_slice(&message);
            // Also with an immediate that names a word.
            messages += u64::from(peer.send(message.len(), None)) + u64::from(peer.send(message.len(), Some(80)));
        }
        messages += u64::from(peer.immediate_alone(80));
        for key in 0..KEYS {
            for write in [false, true] {
                // Each refusal costs the connection.
                let mut peer = RailPeer::open("tcp;ofi_rxm", port);
                reached += u64::from(peer.reach(key, 640, 64, write));
            }
        }
    }
    println!("reached: {reached}");
    println!("messages: {messages}");
}

/// Messages in the format of PEs, with other tokens or none, and truncated.
fn forged() -> Vec<Vec<u8>> {
    let request = |kind, payload: &[u8]| {
        let request = Request {
            kind,
            op: AmoOp::Set,
            ty: AmoType::U64,
            origin: 0,
            fetch: false,
            urgent: true,
            lane: 0,
            source: 1,
            sequence: 1,
            payload: payload.len() as u16,
            acknowledged: 0,
            offset: 640,
            operand: 1,
            second: 648,
            id: 1,
        };
        [request.encode().as_flattened(), payload].concat()
    };
    let reply = Reply { source: 1, lane: 0, after: 0, applied: 1, generation: 1, outcomes: 0 };
    let bodies = [
        request(RequestKind::Amo, &[]),
        request(RequestKind::Put, &[0xee; 64]),
        request(RequestKind::PutSignal, &[0xee; 64]),
        request(RequestKind::Introduce, &[0; 28]),
        request(RequestKind::Move, &[]),
        reply.encode().to_vec(),
        Keepalive { origin: 0, source: 1 }.encode().to_vec(),
    ];
    let tokens = [Vec::new(), vec![0; Token::SIZE], vec![0xff; Token::SIZE], vec![0x5a; Token::SIZE - 1]];
    let with = |body: &Vec<u8>| tokens.iter().map(|token| [&token[..], body].concat()).collect::<Vec<_>>();
    let mut all: Vec<_> = bodies.iter().flat_map(with).collect();
    let cut: Vec<_> =
        all.iter().flat_map(|message| [message[..message.len() / 2].to_vec(), message[..3].to_vec()]).collect();
    all.extend(cut);
    all.push(vec![0xa5; 4096]);
    all
}

/// Tries to open every path that could lead into the memory of these processes, and returns for each whether that
/// succeeded.
fn look(processes: &[u32]) -> Vec<(PathBuf, bool)> {
    let mut tried = Vec::new();
    let mut open = |path: PathBuf| {
        let opened = [true, false].map(|write| OpenOptions::new().read(true).write(write).open(&path).is_ok());
        tried.push((path, opened.contains(&true)));
    };
    for process in processes {
        let of_process = PathBuf::from(format!("/proc/{process}"));
        ["mem", "environ", "maps"].iter().for_each(|file| open(of_process.join(file)));
        (0..DESCRIPTORS).for_each(|fd| open(of_process.join(format!("fd/{fd}"))));
    }
    let shared = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
    shared.filter(|path| path.to_string_lossy().contains("symrail")).for_each(open);
    tried
}

/// Connects to the service repeatedly, and sends nonsense, or nothing.
fn flood(address: SocketAddr, floods: &mpsc::Sender<()>) -> ! {
    let mut held = Vec::new();
    for turn in 0.. {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let mut challenge = [0; 40];
        // The service may close the connection at any byte.
        let _ = match turn % 5 {
            0 => Ok(()),
            1 => stream.write_all(&[0x5a; 1 << 16]),
            2 => stream.write_all(b"GET / HTTP/1.0\r\n\r\n"),
            // A hello of the right form without the secret.
            3 => stream
                .read_exact(&mut challenge)
                .and_then(|()| stream.write_all(&[&challenge[..], &challenge].concat())),
            // The head of a frame of 4 GiB.
            _ => stream.write_all(&[0xff, 0xff, 0xff, 0xff, 2]),
        };
        held.push(stream);
        if held.len() == MANY {
            held.clear();
        }
        if turn == MANY {
            println!("flooding");
            floods.send(()).unwrap();
        }
    }
    unreachable!("it goes on for ever")
}

/// The other user's process; dropping it kills the process and removes the copied program.
struct Stranger {
    child: Child,
    copy: PathBuf,
    /// Prints the process's output; the thread ends when the process has attacked.
    out: Option<JoinHandle<()>>,
}

impl Stranger {
    /// Starts it, and waits until it has tried the paths and is flooding. It continues by attacking these ports, if
    /// there are any.
    fn start(address: SocketAddr, ports: &[SocketAddr], processes: &[u32]) -> Stranger {
        // The program may be in a folder that only its owner can access.
        let copy = std::env::temp_dir().join(format!("symrail-stranger-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = Command::new(&copy);
        let ports: Vec<_> = ports.iter().map(SocketAddr::to_string).collect();
        let ports = if ports.is_empty() { NO_PORTS.into() } else { ports.join(",") };
        command
            .args(["stranger", &address.to_string(), &ports])
            .args(processes.iter().map(u32::to_string))
            .current_dir("/");
        // The job's own settings: peers with different buffers do not connect.
        let variables = [("FI_OFI_RXM_BUFFER_SIZE", "4304"), ("FI_UNIVERSE_SIZE", "16"), ("IPATH_NO_BACKTRACE", "1")];
        command.env_clear().envs(variables).uid(NOBODY).gid(NOBODY).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        pass_on(&mut out, "flooding");
        let out = (ports != NO_PORTS).then(|| std::thread::spawn(move || pass_on(&mut out, "messages: ")));
        Stranger { child, copy, out }
    }

    /// Whether it has finished all attacks.
    fn is_through(&self) -> bool {
        self.out.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// Prints lines up to the one that begins with `last`.
fn pass_on(from: &mut BufReader<ChildStdout>, last: &str) {
    let mut line = String::new();
    while !line.starts_with(last) {
        line.clear();
        assert!(from.read_line(&mut line).unwrap() > 0, "the stranger has ended");
        print!("{line}");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // Both fail if it has ended or never existed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.copy);
    }
}
