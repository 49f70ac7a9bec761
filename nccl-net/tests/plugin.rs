//! The plugin between two processes over libfabric's `tcp;ofi_rxm` on loopback, with 1, 2 and 4 rails, and `shm`.
//!
//! This program starts itself as the other process: `other` is that one's test. They pass handles by the pipes of its
//! standard input and output.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::libraries::{job_slot, remove_settings};

use crate::driver::timing;
use crate::driver::{INVALID_ARGUMENT, INVALID_USAGE, Net, PATIENCE, REMOTE_ERROR, until};
use crate::foreign;

const TIMEOUT_S: u64 = 20;
/// Names the role of the other process.
const ROLE: &str = "NCCL_NET_TEST_ROLE";
const VERSION: &str = "NCCL_NET_TEST_VERSION";
const LABEL: &str = "NCCL_NET_TEST_LABEL";
const MARK: &str = "handle ";

type Ptr = *mut c_void;

/// Rails on loopback, also with several sessions in each process, or shared memory.
#[derive(Clone, Copy)]
enum Rails {
    Tcp(usize),
    Sessions(usize),
    Shm,
}

impl Rails {
    fn settings(self) -> Vec<(&'static str, String)> {
        let (provider, list) = match self {
            Rails::Tcp(n) => {
                ("tcp;ofi_rxm", Some((0..n).map(|i| format!("127.0.0.{}", i + 2)).collect::<Vec<_>>().join(",")))
            }
            Rails::Sessions(_) => ("tcp;ofi_rxm", Some("127.0.0.2".into())),
            Rails::Shm => ("shm", None),
        };
        let sessions = if let Rails::Sessions(n) = self { n } else { 1 };
        let mut all = vec![
            ("SYMRAIL_TRANSPORT", "libfabric".into()),
            ("SYMRAIL_LIBFABRIC_PROVIDER", provider.into()),
            ("SYMRAIL_TIMEOUT_S", TIMEOUT_S.to_string()),
            ("SYMRAIL_PROXY_THREADS", sessions.to_string()),
        ];
        all.extend(list.map(|list| ("SYMRAIL_NIC_LIST", list)));
        all
    }
}

/// The pipes between both processes.
struct Pipes {
    from: Box<dyn BufRead>,
    to: Box<dyn Write>,
}

impl Pipes {
    fn tell(&mut self, bytes: &[u8]) {
        let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        self.to.write_all(format!("\n{MARK}{text}\n").as_bytes()).unwrap();
        self.to.flush().unwrap();
    }

    /// The bytes that the other process tells; `None` if it has ended.
    fn hear(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if line.starts_with("SKIPPED") {
                return None;
            }
            if let Some(text) = line.trim_end().strip_prefix(MARK) {
                return Some(
                    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect(),
                );
            }
        }
    }
}

/// Runs two processes with these settings in these roles.
fn pair(rails: Rails, version: u32, roles: [&str; 2]) {
    pair_with(rails, version, roles, &[]);
}

fn pair_with(rails: Rails, version: u32, roles: [&str; 2], settings: &[(&str, &str)]) {
    let _slot = job_slot(std::env::current_exe().unwrap().parent().unwrap());
    let start = |role: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        remove_settings(&mut command, &["SYMRAIL_"]);
        command.args(["plugin::other", "--exact", "--nocapture", "--test-threads=1"]);
        command.envs(rails.settings()).envs(settings.iter().copied()).env(ROLE, role).env(VERSION, version.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut both = roles.map(start);
    let [a, b] = &mut both;
    // Each reads what the other one writes.
    let relay = |from: &mut Child, to: &mut Child| {
        let (mut from, mut to) = (BufReader::new(from.stdout.take().unwrap()), to.stdin.take().unwrap());
        std::thread::spawn(move || {
            let (mut skipped, mut finished) = (false, false);
            let mut line = String::new();
            while from.read_line(&mut line).unwrap() > 0 {
                skipped |= line.starts_with("SKIPPED");
                finished |= line.starts_with("FINISHED");
                if line.starts_with("SKIPPED") || line.starts_with("FIGURE") {
                    print!("{line}");
                }
                // The other one may have ended.
                let _ = to.write_all(line.as_bytes());
                line.clear();
            }
            (skipped, finished)
        })
    };
    let relays = [relay(a, b), relay(b, a)];
    let ends = both.map(|mut child| child.wait().unwrap());
    let said = relays.map(|relay| relay.join().unwrap());
    let skipped = said.iter().any(|(skipped, _)| *skipped);
    for ((role, end), (_, finished)) in roles.iter().zip(ends).zip(said) {
        let dies = role.starts_with("dying");
        assert!(skipped || (end.success(), finished) == (!dies, !dies), "{role}: {end}, at its end: {finished}");
    }
}

/// The other process.
#[test]
fn other() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let version = std::env::var(VERSION).unwrap().parse().unwrap();
    let mut pipes = Pipes { from: Box::new(BufReader::new(std::io::stdin())), to: Box::new(std::io::stdout()) };
    let fds = descriptors();
    let net = match Net::open(version) {
        Ok(net) => net,
        Err(code) => return println!("\nSKIPPED: init returned {code}; the provider is not there"),
    };
    match role.as_str() {
        "receiver" => receive_all(&net, &mut pipes),
        "sender" => send_all(&net, &mut pipes),
        "cycling receiver" => cycle(&net, &mut pipes, true),
        "cycling sender" => cycle(&net, &mut pipes, false),
        "left receiver" => leave(&net, &mut pipes, true),
        "leaving sender" => leave(&net, &mut pipes, false),
        "surviving receiver" => survive(&net, &mut pipes, true),
        "surviving sender" => survive(&net, &mut pipes, false),
        "dying receiver" => die(&net, &mut pipes, true),
        "dying sender" => die(&net, &mut pipes, false),
        "refusing receiver" => refuse(&net, &mut pipes, true),
        "refusing sender" => refuse(&net, &mut pipes, false),
        "withdrawing receiver" => withdraw(&net, &mut pipes, true),
        "withdrawing sender" => withdraw(&net, &mut pipes, false),
        "stalling receiver" => stall(&net, &mut pipes, true),
        "stalled sender" => stall(&net, &mut pipes, false),
        "foreign peer" => foreign::peer(&net, Duration::from_secs(LOST_TIMEOUT)),
        "early sender" => early(&net, &mut pipes, false),
        "late receiver" => early(&net, &mut pipes, true),
        "with itself" => with_itself(&net),
        "measuring receiver" => measure(&net, &mut pipes, true),
        "measuring sender" => measure(&net, &mut pipes, false),
        "bereft receiver" => lose(&net, &mut pipes, true),
        "losing sender" => lose(&net, &mut pipes, false),
        "flapping receiver" => flap(&net, &mut pipes, true),
        "flapping sender" => flap(&net, &mut pipes, false),
        "timed first" => time(&net, &mut pipes, true),
        "timed second" => time(&net, &mut pipes, false),
        other => panic!("{other}"),
    }
    net.finalize();
    if version >= 11 {
        // Libraries may keep a descriptor or two of their own.
        assert!(descriptors() <= fds + 4, "{} descriptors, {fds} before", descriptors());
    }
    println!("\nFINISHED");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

const CONNECTIONS: usize = 3;
const SIZES: [usize; 16] =
    [0, 1, 7, 512, 4080, 4096, 4097, 4224, 20_000, 32 << 10, (32 << 10) + 1, 65_536, 300_001, 1 << 20, 0, 8];
const ROUNDS: usize = 6;
const LARGE: usize = 64 << 20;
/// A message that fits into the sending end's socket buffer, not into the window of the receiving end's.
const LOST_BYTES: usize = 512 << 10;
/// The time-out where a message is lost, in seconds.
const LOST_TIMEOUT: u64 = 4;
/// The time-out of one that closes a connection whose other end has left.
const LEFT_TIMEOUT: Duration = Duration::from_secs(60);

fn byte(connection: usize, message: usize, at: usize) -> u8 {
    (at * 7 + at / 251 + 31 * connection + 13 * message) as u8
}

/// Sends or receives all messages of all connections, with as many under way as fit. The sender sends groups of four in
/// the reverse order of the receives.
fn receive_all(net: &Net, pipes: &mut Pipes) {
    assert_eq!(net.devices(), 1);
    let properties = net.properties(0).unwrap();
    // ptrSupport: host memory; maxRecvs: 1; maxCollBytes.
    assert_eq!((properties[3] as u32, (properties[6] >> 32) as u32), (1, 1), "{properties:x?}");
    assert!(net.properties(1).is_err());
    let listeners: Vec<_> = (0..CONNECTIONS).map(|_| net.listen()).collect();
    listeners.iter().for_each(|(handle, _)| pipes.tell(handle));
    let connections: Vec<Ptr> = listeners.iter().map(|&(_, listener)| net.accept(listener)).collect();
    let messages = ROUNDS * SIZES.len();
    let mut buffers: Vec<Vec<Vec<u8>>> =
        (0..CONNECTIONS).map(|_| (0..messages).map(|m| vec![0xee; SIZES[m % SIZES.len()] + 16]).collect()).collect();
    let handles: Vec<Vec<Ptr>> = connections
        .iter()
        .zip(&mut buffers)
        .map(|(&c, buffers)| buffers.iter_mut().map(|buffer| net.register(c, buffer)).collect())
        .collect();
    let mut under_way: Vec<(usize, usize, Ptr)> = Vec::new();
    let (mut next, mut done) = ([0; CONNECTIONS], 0);
    let begun = Instant::now();
    while done < CONNECTIONS * messages {
        for c in 0..CONNECTIONS {
            while next[c] < messages && under_way.iter().filter(|it| it.0 == c).count() < 32 {
                let m = next[c];
                let request = net.receive(connections[c], &mut buffers[c][m], (m % 4) as i32, handles[c][m]).unwrap();
                if request.is_null() {
                    break;
                }
                under_way.push((c, m, request));
                next[c] += 1;
            }
        }
        under_way.retain(|&(c, m, request)| {
            let Some(size) = net.test(request).unwrap() else { return true };
            let buffer = &buffers[c][m];
            assert_eq!(size, SIZES[m % SIZES.len()], "connection {c}, message {m}");
            assert!(buffer[..size].iter().enumerate().all(|(i, &b)| b == byte(c, m, i)), "connection {c}, message {m}");
            assert!(buffer[size..].iter().all(|&b| b == 0xee), "connection {c}, message {m}: too much was written");
            done += 1;
            false
        });
        assert!(begun.elapsed() < PATIENCE, "{done} done, next {next:?}");
        std::thread::yield_now();
    }
    let mut large = vec![0u8; LARGE];
    let handle = net.register(connections[0], &mut large);
    let request =
        until("irecv", || net.receive(connections[0], &mut large, 9, handle).map(|r| (!r.is_null()).then_some(r)));
    assert_eq!(net.finish(request.unwrap()).unwrap(), LARGE);
    assert!(large.iter().enumerate().all(|(i, &b)| b == byte(0, 99, i)));
    net.deregister(connections[0], handle);
    for (&c, handles) in connections.iter().zip(handles) {
        handles.into_iter().for_each(|handle| net.deregister(c, handle));
        net.close_receive(c);
    }
    listeners.iter().for_each(|&(_, listener)| net.close_listen(listener));
}

fn send_all(net: &Net, pipes: &mut Pipes) {
    let mut dialed: Vec<[u8; 128]> =
        (0..CONNECTIONS).filter_map(|_| pipes.hear()).map(|b| b.try_into().unwrap()).collect();
    if dialed.len() < CONNECTIONS {
        return; // skipped
    }
    let connections: Vec<Ptr> = dialed.iter_mut().map(|handle| net.connect(handle)).collect();
    let messages = ROUNDS * SIZES.len();
    let mut buffers: Vec<Vec<Vec<u8>>> = (0..CONNECTIONS)
        .map(|c| (0..messages).map(|m| (0..SIZES[m % SIZES.len()]).map(|i| byte(c, m, i)).collect()).collect())
        .collect();
    let handles: Vec<Vec<Ptr>> = connections
        .iter()
        .zip(&mut buffers)
        .map(|(&c, buffers)| {
            buffers.iter_mut().map(|b| if b.is_empty() { std::ptr::null_mut() } else { net.register(c, b) }).collect()
        })
        .collect();
    let order: Vec<usize> = (0..messages).map(|m| m / 4 * 4 + 3 - m % 4).collect();
    let mut under_way: Vec<(usize, usize, Ptr)> = Vec::new();
    let (mut next, mut done) = ([0; CONNECTIONS], 0);
    let begun = Instant::now();
    while done < CONNECTIONS * messages {
        for c in 0..CONNECTIONS {
            while next[c] < messages && under_way.iter().filter(|it| it.0 == c).count() < 32 {
                let m = order[next[c]];
                let request = net.send(connections[c], &buffers[c][m], (m % 4) as i32, handles[c][m]).unwrap();
                if request.is_null() {
                    break;
                }
                under_way.push((c, m, request));
                next[c] += 1;
            }
        }
        under_way.retain(|&(_, m, request)| {
            let Some(size) = net.test(request).unwrap() else { return true };
            assert_eq!(size, SIZES[m % SIZES.len()]);
            done += 1;
            false
        });
        assert!(begun.elapsed() < PATIENCE, "{done} done, next {next:?}");
        std::thread::yield_now();
    }
    let mut large: Vec<u8> = (0..LARGE).map(|i| byte(0, 99, i)).collect();
    let handle = net.register(connections[0], &mut large);
    let request = until("isend", || net.send(connections[0], &large, 9, handle).map(|r| (!r.is_null()).then_some(r)));
    assert_eq!(net.finish(request.unwrap()).unwrap(), LARGE);
    net.deregister(connections[0], handle);
    for (&c, handles) in connections.iter().zip(handles) {
        handles.into_iter().filter(|handle| !handle.is_null()).for_each(|handle| net.deregister(c, handle));
        net.close_send(c);
    }
}

/// A connection of both processes; the receiver tells the handle.
fn one(net: &Net, pipes: &mut Pipes, receives: bool) -> Option<Ptr> {
    if !receives {
        let handle = pipes.hear()?;
        return Some(net.connect(&mut handle.try_into().unwrap()));
    }
    let (handle, listener) = net.listen();
    pipes.tell(&handle);
    let connection = net.accept(listener);
    net.close_listen(listener);
    Some(connection)
}

fn cycle(net: &Net, pipes: &mut Pipes, receives: bool) {
    let mut data = vec![3u8; 10_000];
    let mut before = None;
    for round in 0..200 {
        let Some(connection) = one(net, pipes, receives) else { return };
        let handle = net.register(connection, &mut data);
        let request = until("a message", || {
            let request = match receives {
                true => net.receive(connection, &mut data, 1, handle),
                false => net.send(connection, &data, 1, handle),
            };
            request.map(|r| (!r.is_null()).then_some(r))
        });
        assert_eq!(net.finish(request.unwrap()).unwrap(), data.len());
        net.deregister(connection, handle);
        if receives {
            net.close_receive(connection);
        } else {
            net.close_send(connection);
        }
        if round == 20 {
            before = Some((descriptors(), resident()));
        }
    }
    let (fds, pages) = before.unwrap();
    // One more for the last connection, if the other end has not closed it yet.
    assert!(descriptors() <= fds + 1, "{} descriptors, {fds} after 20 rounds", descriptors());
    // 180 rings of 36 KiB would be 1600 pages.
    assert!(resident() < pages + 600, "{} pages, {pages} after 20 rounds", resident());
}

/// The sender closes its end and finalizes; the receiver then posts a buffer and closes, too. Nothing acknowledges the
/// descriptor, and the receiver knows that nothing will.
fn leave(net: &Net, pipes: &mut Pipes, receives: bool) {
    let Some(connection) = one(net, pipes, receives) else { return };
    if !receives {
        return net.close_send(connection);
    }
    assert!(pipes.hear().is_none(), "the sender tells nothing more");
    let mut data = vec![0u8; 10_000];
    let handle = net.register(connection, &mut data);
    let begun = Instant::now();
    let posted = net.receive(connection, &mut data, 1, handle);
    assert!(posted.is_err() || !posted.unwrap().is_null());
    net.deregister(connection, handle);
    net.close_receive(connection);
    assert!(begun.elapsed() < LEFT_TIMEOUT / 2, "the receiver has waited for one that has left: {:?}", begun.elapsed());
}

/// Both ends deregister the memory of all requests under way, and close, as NCCL does when a communicator is aborted.
fn withdraw(net: &Net, pipes: &mut Pipes, receives: bool) {
    let begun = Instant::now();
    for _ in 0..3 {
        let Some(connection) = one(net, pipes, receives) else { return };
        let mut buffers: Vec<_> = (0..32).map(|_| vec![0u8; 1 << 20]).collect();
        let handles: Vec<_> = buffers.iter_mut().map(|buffer| net.register(connection, buffer)).collect();
        for (buffer, &handle) in buffers.iter_mut().zip(&handles) {
            let started = until("a request", || {
                let request = match receives {
                    true => net.receive(connection, buffer, 0, handle),
                    false => net.send(connection, buffer, 0, handle),
                };
                request.map(|r| (!r.is_null()).then_some(r))
            });
            started.unwrap();
        }
        handles.into_iter().for_each(|handle| net.deregister(connection, handle));
        if receives { net.close_receive(connection) } else { net.close_send(connection) }
    }
    assert!(begun.elapsed() < LEFT_TIMEOUT / 2, "an end has waited for a time-out: {:?}", begun.elapsed());
}

/// The receiver deregisters the memory of a message of which a part has come and whose sender is stopped. When the sender
/// goes on, nothing is written any more, and the receive has failed.
fn stall(net: &Net, pipes: &mut Pipes, receives: bool) {
    let Some(connection) = one(net, pipes, receives) else { return };
    // More than the buffers of a connection hold.
    let mut data = vec![if receives { 0 } else { 1 }; LARGE];
    let handle = net.register(connection, &mut data);
    if !receives {
        pipes.tell(&std::process::id().to_le_bytes());
        let sent = until("isend", || net.send(connection, &data, 0, handle).map(|r| (!r.is_null()).then_some(r)));
        // It has arrived as far as this end can tell, or has failed.
        let _ = net.finish(sent.unwrap());
        let _ = pipes.hear();
    } else {
        let other = i32::from_le_bytes(pipes.hear().unwrap().try_into().unwrap());
        let request = net.receive(connection, &mut data, 0, handle).unwrap();
        // SAFETY: bytes of the buffer, which the plugin may be writing.
        let at = |i: usize| unsafe { data.as_ptr().add(i).read_volatile() };
        let begun = Instant::now();
        while at(0) == 0 {
            assert!(begun.elapsed() < PATIENCE && net.test(request) == Ok(None));
        }
        let stopped = Stopped::new(other);
        assert_eq!(at(LARGE - 1), 0, "the message has come whole before its sender was stopped");
        net.deregister(connection, handle);
        let come = (0..LARGE).filter(|&i| at(i) != 0).count();
        drop(stopped);
        pipes.tell(b"deregistered");
        let code = until("the failure", || match net.test(request) {
            Ok(None) => Ok(None),
            other => Ok(Some(other)),
        });
        assert_eq!(code.unwrap(), Err(REMOTE_ERROR));
        // Until the sender has ended its message.
        assert!(pipes.hear().is_some());
        assert_eq!((0..LARGE).filter(|&i| at(i) != 0).count(), come, "deregistered memory was written");
    }
    if receives {
        net.close_receive(connection);
    } else {
        net.deregister(connection, handle);
        net.close_send(connection);
        pipes.tell(b"ended");
    }
}

/// The pages of this process that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The other process ends by a signal while messages are under way: requests fail by themselves.
fn survive(net: &Net, pipes: &mut Pipes, receives: bool) {
    let Some(connection) = one(net, pipes, receives) else { return };
    let mut data = vec![0u8; 4 << 20];
    let handle = net.register(connection, &mut data);
    let (begun, mut under_way) = (Instant::now(), Vec::new());
    let code = loop {
        let started = match receives {
            true => net.receive(connection, &mut data, 0, handle),
            false => net.send(connection, &data, 0, handle),
        };
        match started {
            Err(code) => break code,
            Ok(request) if !request.is_null() => under_way.push(request),
            Ok(_) => {}
        }
        let failed = under_way.iter().map(|&request| net.test(request)).collect::<Vec<_>>();
        if let Some(code) = failed.iter().find_map(|it| it.err()) {
            break code;
        }
        let mut results = failed.into_iter();
        under_way.retain(|_| results.next().unwrap().unwrap().is_none());
        assert!(begun.elapsed().as_secs() < TIMEOUT_S, "no error within the time-out");
        std::thread::yield_now();
    };
    assert_eq!(code, REMOTE_ERROR);
    net.deregister(connection, handle);
    if receives { net.close_receive(connection) } else { net.close_send(connection) }
}

fn die(net: &Net, pipes: &mut Pipes, receives: bool) {
    let Some(connection) = one(net, pipes, receives) else { return };
    let mut data = vec![0u8; 4 << 20];
    let handle = net.register(connection, &mut data);
    for message in 0.. {
        let request = until("a message", || {
            let request = match receives {
                true => net.receive(connection, &mut data, 0, handle),
                false => net.send(connection, &data, 0, handle),
            };
            request.map(|r| (!r.is_null()).then_some(r))
        });
        if message == 5 {
            // SAFETY: it has no conditions.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        net.finish(request.unwrap()).unwrap();
    }
}

/// Small messages that arrive before their receives, which are posted in another order of tags; then large ones.
fn early(net: &Net, pipes: &mut Pipes, receives: bool) {
    let Some(connection) = one(net, pipes, receives) else { return };
    let mut data = vec![0u8; 200_000];
    let handle = net.register(connection, &mut data);
    let byte = |round: usize, tag: usize, i: usize| (17 * round + 5 * tag + i) as u8;
    for round in 0..30 {
        let len = [40, 32 << 10, 5000, 0, 100_000][round % 5];
        if receives {
            // The small ones are all there by now; large ones wait for their descriptors.
            if len < 100_000 {
                pipes.hear();
            }
            for tag in (0..4).rev() {
                let request = until("irecv", || {
                    net.receive(connection, &mut data[..len.max(1)], tag, handle).map(|r| (!r.is_null()).then_some(r))
                });
                assert_eq!(net.finish(request.unwrap()), Ok(len), "round {round}, tag {tag}");
                assert!((0..len).all(|i| data[i] == byte(round, tag as usize, i)), "round {round}, tag {tag}");
            }
            pipes.tell(b"received");
        } else {
            for tag in if len < 100_000 { [0, 1, 2, 3] } else { [3, 2, 1, 0] } {
                (0..len).for_each(|i| data[i] = byte(round, tag, i));
                let sent = until("isend", || {
                    net.send(connection, &data[..len], tag as i32, handle).map(|r| (!r.is_null()).then_some(r))
                });
                assert_eq!(net.finish(sent.unwrap()), Ok(len));
            }
            if len < 100_000 {
                pipes.tell(b"sent");
            }
            pipes.hear();
        }
    }
    net.deregister(connection, handle);
    if receives { net.close_receive(connection) } else { net.close_send(connection) }
}

/// What is not supported is refused by code.
fn refuse(net: &Net, pipes: &mut Pipes, receives: bool) {
    let Some(connection) = one(net, pipes, receives) else { return };
    let mut data = vec![1u8; 4096];
    assert_eq!(net.try_register(connection, &mut data, 2), Err(INVALID_ARGUMENT), "GPU memory");
    let handle = net.register(connection, &mut data);
    if receives {
        assert_eq!(net.send(connection, &data, 0, handle), Err(INVALID_ARGUMENT));
        let mut outside = vec![0u8; 64];
        assert_eq!(net.receive(connection, &mut outside, 0, handle), Err(INVALID_ARGUMENT));
        let request = net.receive(connection, &mut data[..100], 0, handle).unwrap();
        assert_eq!(net.finish(request), Err(INVALID_USAGE), "a message that is too large");
        assert!(data.iter().all(|&b| b == 1));
    } else {
        assert_eq!(net.receive(connection, &mut data, 0, handle), Err(INVALID_ARGUMENT));
        let mut forged = [0xffu8; 128];
        assert!(net.connect_once(&mut forged).is_err());
        // The first message may have gone before the size of its buffer is known.
        let sent = until("isend", || net.send(connection, &data, 0, handle).map(|_| None::<()>));
        assert_eq!(sent, Err(INVALID_USAGE));
    }
    pipes.tell(b"done");
    pipes.hear();
    net.deregister(connection, handle);
    if receives { net.close_receive(connection) } else { net.close_send(connection) }
}

/// Both ends in one process, as between two GPUs of one; and an attempt that is given up.
fn with_itself(net: &Net) {
    let (mut handle, listener) = net.listen();
    let mut given_up = handle;
    assert!(net.connect_once(&mut given_up).unwrap().is_null());
    let (mut sends, mut receives): (Ptr, Ptr) = (std::ptr::null_mut(), std::ptr::null_mut());
    until("both ends", || {
        if sends.is_null() {
            sends = net.connect_once(&mut handle)?;
        }
        if receives.is_null() {
            receives = net.accept_once(listener)?;
        }
        Ok((!sends.is_null() && !receives.is_null()).then_some(()))
    })
    .unwrap();
    for size in [0, 5, 100_000] {
        let (mut from, mut to) = (vec![7u8; size + 1], vec![0u8; size + 1]);
        let handles = [net.register(sends, &mut from), net.register(receives, &mut to)];
        let received = net.receive(receives, &mut to[..size], 3, handles[1]).unwrap();
        let sent =
            until("isend", || net.send(sends, &from[..size], 3, handles[0]).map(|r| (!r.is_null()).then_some(r)));
        assert_eq!((net.finish(sent.unwrap()), net.finish(received)), (Ok(size), Ok(size)));
        assert!(to[..size] == from[..size] && to[size] == 0);
        net.deregister(sends, handles[0]);
        net.deregister(receives, handles[1]);
    }
    net.close_send(sends);
    net.close_receive(receives);
    net.close_listen(listener);
}

/// Bandwidth beside that of one TCP socket, in turns.
fn measure(net: &Net, pipes: &mut Pipes, receives: bool) {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    let Some(connection) = one(net, pipes, receives) else { return };
    let mut socket = match receives {
        true => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            pipes.tell(&listener.local_addr().unwrap().port().to_le_bytes());
            listener.accept().unwrap().0
        }
        false => {
            let port = pipes.hear().unwrap();
            TcpStream::connect(("127.0.0.1", u16::from_le_bytes([port[0], port[1]]))).unwrap()
        }
    };
    socket.set_nodelay(true).unwrap();
    let mut data = vec![1u8; 8 << 20];
    let handle = net.register(connection, &mut data);
    for size in [64 << 10, 512 << 10, 4 << 20] {
        let count = (256 << 20) / size;
        let mut ratios = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            let (mut started, mut done, mut under_way) = (0, 0, std::collections::VecDeque::new());
            while done < count {
                if started < count && under_way.len() < 8 {
                    let request = match receives {
                        true => net.receive(connection, &mut data[..size], 0, handle).unwrap(),
                        false => net.send(connection, &data[..size], 0, handle).unwrap(),
                    };
                    if !request.is_null() {
                        under_way.push_back(request);
                        started += 1;
                    }
                }
                if let Some(&request) = under_way.front()
                    && net.test(request).unwrap().is_some()
                {
                    under_way.pop_front();
                    done += 1;
                } else {
                    std::thread::yield_now(); // as NCCL's thread does
                }
            }
            let ours = begun.elapsed();
            let begun = Instant::now();
            for _ in 0..count {
                if receives {
                    socket.read_exact(&mut data[..size]).unwrap();
                } else {
                    socket.write_all(&data[..size]).unwrap();
                }
            }
            // The last byte has been read.
            if receives {
                socket.write_all(&[1]).unwrap();
            } else {
                socket.read_exact(&mut [0]).unwrap();
            }
            let theirs = begun.elapsed();
            ratios.push((
                theirs.as_secs_f64() / ours.as_secs_f64(),
                256.0 / ours.as_secs_f64(),
                256.0 / theirs.as_secs_f64(),
            ));
        }
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        if receives {
            let (ratio, ours, theirs) = ratios[2];
            println!(
                "\nFIGURE {} KiB: {ours:.0} MiB/s, a socket {theirs:.0} MiB/s, ratio {ratio:.2} ({:.2} to {:.2})",
                size >> 10,
                ratios[0].0,
                ratios[4].0
            );
        }
    }
    net.deregister(connection, handle);
    if receives { net.close_receive(connection) } else { net.close_send(connection) }
}

/// The sender breaks its connections with a message in them that has left and that the stopped receiver has not read.
/// Over one rail nothing repeats it: the receive fails.
fn lose(net: &Net, pipes: &mut Pipes, receives: bool) {
    let Some(connection) = one(net, pipes, receives) else { return };
    let mut data = vec![receives.into(); LOST_BYTES];
    let handle = net.register(connection, &mut data);
    if receives {
        // A small one connects, so that the window stays small.
        let request = net.receive(connection, &mut data, 0, handle).unwrap();
        pipes.tell(&std::process::id().to_le_bytes());
        assert_eq!(net.finish(request), Ok(64));
        let request = net.receive(connection, &mut data, 0, handle).unwrap();
        // The descriptor goes with a poll. Usually its acknowledgement is here after these: then nothing of this end is
        // under way whose failure would show the loss.
        for _ in 0..20_000 {
            assert_eq!(net.test(request), Ok(None));
            std::thread::yield_now();
        }
        pipes.tell(b"posted");
        match net.finish(request) {
            // The system may have given the connection a larger window.
            Ok(size) => {
                assert!(size == LOST_BYTES && data.iter().all(|&byte| byte == 0), "{size} bytes");
                println!("\nSKIPPED: the message had arrived before its connection was broken");
            }
            Err(code) => assert_eq!(code, REMOTE_ERROR),
        }
        pipes.tell(b"failed");
    } else {
        let other = i32::from_le_bytes(pipes.hear().unwrap().try_into().unwrap());
        let send = |size: usize| {
            until("isend", || net.send(connection, &data[..size], 0, handle).map(|r| (!r.is_null()).then_some(r)))
        };
        assert_eq!(net.finish(send(64).unwrap()), Ok(64));
        pipes.hear();
        let stopped = Stopped::new(other);
        assert_eq!(net.finish(send(LOST_BYTES).unwrap()), Ok(LOST_BYTES), "it has left");
        break_connections();
        drop(stopped);
        // What it sends now goes over a new connection.
        let _ = net.finish(send(64).unwrap());
        pipes.hear();
    }
    net.deregister(connection, handle);
    if receives { net.close_receive(connection) } else { net.close_send(connection) }
}

/// Another process of this test that is stopped. Dropping it lets the process go on.
struct Stopped(libc::pid_t);

impl Stopped {
    fn new(process: libc::pid_t) -> Stopped {
        // SAFETY: it has no conditions.
        assert_eq!(unsafe { libc::kill(process, libc::SIGSTOP) }, 0);
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: it has no conditions.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

/// Ends all connections over TCP of this process by a reset, which drops what the other end has not read.
fn break_connections() {
    for fd in 3..256 {
        // SAFETY: an address of this size; other descriptors than connected sockets refuse it.
        unsafe {
            let mut peer: libc::sockaddr = std::mem::zeroed();
            let mut len = size_of::<libc::sockaddr>() as libc::socklen_t;
            if libc::getpeername(fd, &raw mut peer, &raw mut len) != 0 || peer.sa_family != libc::AF_INET as u16 {
                continue;
            }
            peer.sa_family = libc::AF_UNSPEC as u16;
            libc::connect(fd, &raw const peer, size_of::<libc::sockaddr>() as libc::socklen_t);
        }
    }
}

/// Streams of messages of all sizes, eight under way, while the file exists that this makes
/// (`scripts/netns-rails.sh flap SECONDS nccl`): all come once, in order and whole. A last message of one byte ends it.
fn flap(net: &Net, pipes: &mut Pipes, receives: bool) {
    const SIZES: [usize; 8] = [8, 65_536, 4000, 300_001, 32 << 10, 1 << 20, 0, 20_000];
    const DEPTH: usize = 8;
    const STALL: Duration = Duration::from_secs(60);
    let until = std::env::var("NCCL_NET_TEST_UNTIL").unwrap();
    let Some(connection) = one(net, pipes, receives) else { return };
    let mut buffers: Vec<_> = (0..DEPTH).map(|_| vec![0u8; (1 << 20) + 1]).collect();
    let handles: Vec<_> = buffers.iter_mut().map(|buffer| net.register(connection, buffer)).collect();
    if !receives {
        std::fs::write(&until, "").unwrap();
    }
    let (mut started, mut done, mut under_way) = (0usize, 0usize, std::collections::VecDeque::new());
    let (mut ends, mut heard) = (false, Instant::now());
    while !ends || !under_way.is_empty() {
        assert!(heard.elapsed() < STALL, "{done} messages, {} under way", under_way.len());
        if under_way.len() < DEPTH && !ends {
            let buffer = &mut buffers[started % DEPTH];
            let request = if receives {
                buffer.fill(0xee);
                net.receive(connection, buffer, 0, handles[started % DEPTH])
            } else {
                let last = !std::path::Path::new(&until).exists();
                let size = if last { 1 } else { SIZES[started % SIZES.len()] };
                buffer[..size].iter_mut().enumerate().for_each(|(i, b)| *b = byte(0, started, i));
                net.send(connection, &buffer[..size], 0, handles[started % DEPTH])
                    .inspect(|request| ends = last && !request.is_null())
            };
            let request = request.unwrap();
            if !request.is_null() {
                under_way.push_back(request);
                started += 1;
            }
        }
        let Some(size) = under_way.front().and_then(|&request| net.test(request).unwrap()) else {
            std::thread::yield_now();
            continue;
        };
        under_way.pop_front();
        if receives {
            let buffer = &buffers[done % DEPTH];
            ends = size == 1;
            assert!(ends || size == SIZES[done % SIZES.len()], "message {done} has {size} bytes");
            assert!(buffer[..size].iter().enumerate().all(|(i, &b)| b == byte(0, done, i)), "message {done}");
            assert!(buffer[size..].iter().all(|&b| b == 0xee), "message {done}: too much was written");
            if ends {
                under_way.clear();
            }
        }
        (done, heard) = (done + 1, Instant::now());
    }
    if receives {
        eprintln!("{done} messages came once, in order and whole");
    }
    handles.into_iter().for_each(|handle| net.deregister(connection, handle));
    if receives { net.close_receive(connection) } else { net.close_send(connection) }
}

/// Times of messages of all sizes beside those over a socket.
fn time(net: &Net, pipes: &mut Pipes, first: bool) {
    let Some(ahead) = one(net, pipes, !first) else { return };
    let Some(back) = one(net, pipes, first) else { return };
    let (sends, receives) = if first { (ahead, back) } else { (back, ahead) };
    let socket = match first {
        true => timing::socket(true, |port| pipes.tell(&port.to_le_bytes()), || 0),
        false => {
            let port = pipes.hear().unwrap();
            timing::socket(false, |_| (), || u16::from_le_bytes([port[0], port[1]]))
        }
    };
    let (mut from, mut to) = (vec![1u8; 8 << 20], vec![0u8; 8 << 20]);
    let handles = [net.register(sends, &mut from), net.register(receives, &mut to)];
    let mut ends = timing::Ends { net, sends, receives, from: (from, handles[0]), to: (to, handles[1]) };
    let label = std::env::var(LABEL).unwrap_or_default();
    timing::measure(&mut ends, &socket, first, &label);
    net.deregister(sends, handles[0]);
    net.deregister(receives, handles[1]);
    net.close_send(sends);
    net.close_receive(receives);
}

#[test]
fn messages_over_one_rail() {
    pair(Rails::Tcp(1), 9, ["receiver", "sender"]);
}

#[test]
fn messages_over_two_rails() {
    pair(Rails::Tcp(2), 11, ["receiver", "sender"]);
}

#[test]
fn messages_over_four_rails() {
    pair(Rails::Tcp(4), 10, ["receiver", "sender"]);
}

#[test]
fn messages_over_three_sessions() {
    pair(Rails::Sessions(3), 11, ["receiver", "sender"]);
    pair(Rails::Sessions(3), 9, ["with itself", "with itself"]);
}

#[test]
fn small_messages_may_arrive_before_their_receives() {
    for rails in [Rails::Tcp(2), Rails::Sessions(2), Rails::Shm] {
        pair(rails, 11, ["late receiver", "early sender"]);
    }
}

#[test]
fn messages_over_shared_memory() {
    pair(Rails::Shm, 12, ["receiver", "sender"]);
}

#[test]
fn one_that_closes_last_does_not_wait_for_one_that_has_left() {
    let limit = LEFT_TIMEOUT.as_secs().to_string();
    pair_with(Rails::Tcp(2), 11, ["left receiver", "leaving sender"], &[("SYMRAIL_TIMEOUT_S", &limit)]);
}

#[test]
fn memory_of_requests_under_way_may_be_deregistered() {
    let limit = LEFT_TIMEOUT.as_secs().to_string();
    for rails in [Rails::Tcp(1), Rails::Tcp(2), Rails::Shm] {
        pair_with(rails, 11, ["withdrawing receiver", "withdrawing sender"], &[("SYMRAIL_TIMEOUT_S", &limit)]);
    }
}

#[test]
fn deregistered_memory_is_not_written_although_a_message_to_it_had_begun() {
    for rails in [Rails::Tcp(1), Rails::Tcp(2)] {
        pair_with(rails, 11, ["stalling receiver", "stalled sender"], &[("SYMRAIL_TIMEOUT_S", "10")]);
    }
}

#[test]
fn connections_that_come_and_go_leave_nothing() {
    pair(Rails::Tcp(2), 11, ["cycling receiver", "cycling sender"]);
}

#[test]
fn a_sender_that_dies_fails_the_receives() {
    pair(Rails::Tcp(2), 11, ["surviving receiver", "dying sender"]);
    pair(Rails::Sessions(2), 11, ["surviving receiver", "dying sender"]);
}

#[test]
fn a_receiver_that_dies_fails_the_sends() {
    pair(Rails::Tcp(1), 9, ["dying receiver", "surviving sender"]);
}

#[test]
fn a_message_that_a_connection_has_lost_fails_the_receive() {
    let limit = LOST_TIMEOUT.to_string();
    pair_with(Rails::Tcp(1), 11, ["bereft receiver", "losing sender"], &[("SYMRAIL_TIMEOUT_S", &limit)]);
}

#[test]
fn what_only_another_implementation_does_is_an_error() {
    let limit = LOST_TIMEOUT.to_string();
    pair_with(Rails::Tcp(1), 11, ["foreign peer", "foreign peer"], &[("SYMRAIL_TIMEOUT_S", &limit)]);
}

#[test]
fn a_process_connects_to_itself() {
    pair(Rails::Tcp(2), 11, ["with itself", "with itself"]);
}

#[test]
fn what_is_not_supported_is_refused() {
    pair(Rails::Tcp(1), 12, ["refusing receiver", "refusing sender"]);
}

/// `cargo test --release --workspace --test it -- --ignored --nocapture plugin::bandwidth`
#[test]
#[ignore = "a measurement"]
fn bandwidth() {
    for rails in [Rails::Tcp(1), Rails::Tcp(2), Rails::Sessions(2), Rails::Shm] {
        pair(rails, 11, ["measuring receiver", "measuring sender"]);
    }
}

/// `cargo test --release --workspace --test it -- --ignored --nocapture plugin::times_of_messages`
#[test]
#[ignore = "a measurement"]
fn times_of_messages() {
    let all = [
        ("one rail", Rails::Tcp(1)),
        ("two rails", Rails::Tcp(2)),
        ("two sessions", Rails::Sessions(2)),
        ("shm", Rails::Shm),
    ];
    let only = std::env::var(LABEL).ok();
    for (label, rails) in all.into_iter().filter(|(label, _)| only.as_ref().is_none_or(|only| only == label)) {
        pair_with(rails, 11, ["timed first", "timed second"], &[(LABEL, label)]);
    }
}
