//! A job of two PEs, and another user of the same host who tries what he can: to open memory, to read processes, and to
//! disturb the rendezvous. Started by root and without a launcher. Prints `opened: PATH` for whatever the stranger could open, and
//! `refused: N`; before that `ours: N`, how much of the same the job's own user could open.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use symrail::bootstrap::uid;
use symrail::{Cmp, Result, Runtime, Settings, SignalOp};
use symrail_tests::{pe, unlaunched};

/// Who has nothing to do with the job: `nobody`.
const NOBODY: u32 = 65534;
/// Descriptors of a process that are tried.
const DESCRIPTORS: u32 = 100;
/// Connections before the stranger says that he floods, and how many he holds open at a time.
const MANY: usize = 200;
const ROUNDS: u64 = 500;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [address, processes @ ..] = &args[..] {
        let opened = look(&processes.iter().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>());
        println!("refused: {}", opened.iter().filter(|(_, opened)| !opened).count());
        opened.iter().filter(|(_, opened)| *opened).for_each(|(path, _)| println!("opened: {}", path.display()));
        flood(address.parse().unwrap());
    }
    if unlaunched::is_other() {
        return pe::run(|rt| work(rt, || ()));
    }
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .init();
    let id = uid::create(None).unwrap();
    let mut other = unlaunched::start_other(id);
    let rt = Runtime::join(Settings::from_env().unwrap(), uid::open(id, 0, 2).unwrap()).unwrap();
    symrail_tests::path::check(&rt);
    let processes = [std::process::id(), other.id()];
    let mut stranger = None;
    let worked = work(&rt, || {
        println!("ours: {}", look(&processes).iter().filter(|(_, opened)| *opened).count());
        stranger = Some(Stranger::start(id.address(), &processes));
    });
    // Leaving is a step of the rendezvous, too.
    let left = worked.and_then(|()| rt.finalize());
    let code = other.wait().unwrap();
    drop(stranger);
    assert!(code.success() && left.is_ok(), "PE 0: {left:?}, PE 1: {code}");
    ExitCode::SUCCESS
}

/// Exchanges verified data for a while; `first` happens at the beginning, when both are connected.
fn work(rt: &Runtime, first: impl FnOnce()) -> Result<()> {
    let words = rt.alloc_slice::<u64>(101)?;
    rt.barrier_all()?;
    first();
    rt.barrier_all()?;
    let other = pe::neighbour(rt, 1);
    for round in 1..=ROUNDS {
        words.put_signal(1, &[round; 100], (&words, 0), round, SignalOp::Set, other)?;
        words.wait_until(0, Cmp::Ge, round)?;
        assert_eq!(words.to_vec()[1..], [round; 100], "round {round}");
        rt.barrier_all()?;
    }
    Ok(())
}

/// Tries to open everything that could lead into the memory of these processes, and says of each whether that went well.
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

/// Connects to the service again and again, and says things that make no sense, or nothing.
fn flood(address: SocketAddr) -> ! {
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
        }
    }
    unreachable!("it goes on for ever")
}

/// The other user's process; killed when dropped, with what it was copied to.
struct Stranger {
    child: Child,
    copy: PathBuf,
    _out: BufReader<ChildStdout>,
}

impl Stranger {
    /// Starts it, and waits until it has looked around and is flooding.
    fn start(address: SocketAddr, processes: &[u32]) -> Stranger {
        // The program may be where only its owner gets.
        let copy = std::env::temp_dir().join(format!("symrail-stranger-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = Command::new(&copy);
        command.arg(address.to_string()).args(processes.iter().map(u32::to_string)).current_dir("/");
        command.env_clear().uid(NOBODY).gid(NOBODY).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line != "flooding\n" {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "the stranger has ended");
            print!("{line}");
        }
        Stranger { child, copy, _out: out }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // Both fail when it has ended or was never there.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.copy);
    }
}
