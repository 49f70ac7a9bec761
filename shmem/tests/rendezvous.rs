//! The rendezvous service against everything that may connect to it. PEs are threads here; only the service counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket};
use symrail::bootstrap::rendezvous::{Client, Event, MAX_CONTRIBUTION, Membership, Options, Secret, Server, Shape};
use symrail::bootstrap::{Bootstrap, Error};

const CHALLENGE: usize = 40;
const HELLO: usize = 100;

fn server(n_pes: Option<u32>) -> (Server, mpsc::Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    let options = Options {
        n_pes,
        hello_timeout: Duration::from_millis(300),
        on_event: Box::new(move |event| {
            let _ = sender.send(event);
        }),
        ..Options::default()
    };
    let server = Server::start(IpAddr::V4(Ipv4Addr::LOCALHOST), &Secret::generate().unwrap(), options).unwrap();
    (server, events)
}

fn at(server: &Server) -> SocketAddr {
    server.address().ip().unwrap()
}

fn membership(server: &Server, pe: u32, n_pes: u32) -> Membership {
    let timeout = Duration::from_secs(10);
    Membership { address: server.address(), secret: server.secret().clone(), pe, n_pes, timeout }
}

fn join(server: &Server, pe: u32, n_pes: u32) -> Client {
    Client::join(&membership(server, pe, n_pes), "test").unwrap()
}

/// The error of a result without `Debug`.
fn error_of(joined: Result<Client, Error>) -> Error {
    joined.err().expect("it was let in")
}

fn stranger(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(at(server)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

/// Whether the service closed the connection, within 5 s. A reset counts as well.
fn is_dropped(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Both PEs of a job of two gather, from two threads.
fn assert_works(one: &mut Client, other: &mut Client) {
    thread::scope(|scope| {
        let other = scope.spawn(|| other.allgather(b"other").unwrap());
        assert_eq!(one.allgather(b"one").unwrap(), [b"one".to_vec(), b"other".to_vec()]);
        assert_eq!(other.join().unwrap(), [b"one".to_vec(), b"other".to_vec()]);
    });
}

#[test]
fn strangers_are_dropped_and_the_job_goes_on() {
    let (server, _events) = server(Some(2));
    let mut one = join(&server, 0, 2);

    let mut silent = stranger(&server);
    let mut garbage = stranger(&server);
    garbage.write_all(&[0x5a; 1 << 20]).ok();
    let mut hasty = stranger(&server);
    hasty.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    hasty.shutdown(Shutdown::Write).unwrap();
    assert!(is_dropped(&mut garbage) && is_dropped(&mut hasty) && is_dropped(&mut silent));

    let mut wrong = membership(&server, 1, 2);
    wrong.secret = Secret::generate().unwrap();
    let error = error_of(Client::join(&wrong, "test"));
    assert!(matches!(error, Error::Refused { pe: 1, .. }) && error.to_string().contains("secret"), "{error}");

    assert!(server.refused() >= 4);
    let mut other = join(&server, 1, 2);
    assert_works(&mut one, &mut other);
}

#[test]
fn a_crowd_of_silent_strangers_does_not_keep_pes_out() {
    let (server, _events) = server(Some(2));
    let crowd: Vec<TcpStream> = (0..300).map(|_| stranger(&server)).collect();
    let (mut one, mut other) = (join(&server, 0, 2), join(&server, 1, 2));
    assert_works(&mut one, &mut other);
    drop(crowd);
}

/// Connects without waiting, and holds the last 500 connections, until told to stop.
fn flood(port: u16, stop: &AtomicBool) {
    let address = SockaddrIn::new(127, 0, 0, 1, port);
    let mut held = VecDeque::new();
    while !stop.load(Relaxed) {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let Ok(socket) = socket(AddressFamily::Inet, SockType::Stream, flags, None) else { continue };
        let _ = connect(socket.as_raw_fd(), &address);
        held.push_back(socket);
        if held.len() == 500 {
            held.pop_front();
        }
    }
}

#[test]
fn pes_join_under_a_flood_of_strangers() {
    let (server, _events) = server(Some(4));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| flood(at(&server).port(), &stop));
        }
        while server.refused() < 500 {
            thread::yield_now();
        }
        let timeout = Duration::from_secs(60);
        let joins = (0..4).map(|pe| Membership { timeout, ..membership(&server, pe, 4) });
        let joins: Vec<_> = joins.map(|it| scope.spawn(move || Client::join(&it, "test"))).collect();
        // A PE that left before others have joined would make them fail.
        let joined: Vec<_> = joins.into_iter().map(|join| join.join().unwrap()).collect();
        stop.store(true, Relaxed);
        let failed: Vec<_> = joined.iter().filter_map(|join| join.as_ref().err()).collect();
        assert!(failed.is_empty(), "{failed:?}");
    });
}

#[test]
fn a_wrong_secret_is_blamed_at_once_and_only_when_it_was_the_reason() {
    let (server, _events) = server(Some(1));
    let wrong = Membership { secret: Secret::generate().unwrap(), ..membership(&server, 0, 1) };
    let error = error_of(Client::join(&wrong, "test")).to_string();
    assert!(error.contains("does not know its secret"), "{error}");
    // A listener that accepts connections and sends nothing.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                drop(listener.accept());
            }
        });
        let crowded = Membership { address: address.into(), timeout: Duration::from_millis(300), ..wrong };
        let error = error_of(Client::join(&crowded, "test")).to_string();
        // Set on success and failure alike, so that the scope ends.
        stop.store(true, Relaxed);
        drop(TcpStream::connect(address));
        assert!(error.contains("connections within") && !error.contains("secret"), "{error}");
    });
}

/// Relays between a PE and the service. Returns the bytes that the PE sent; `change` may alter the bytes of either
/// direction.
fn middleman(
    service: SocketAddr,
    change: impl Fn(bool, usize, &mut u8) + Send + Copy + 'static,
) -> (SocketAddr, mpsc::Receiver<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, seen) = mpsc::channel();
    thread::spawn(move || {
        let (pe, _) = listener.accept().unwrap();
        let service = TcpStream::connect(service).unwrap();
        let copy = move |mut from: TcpStream, mut to: TcpStream, outwards: bool, seen: Option<mpsc::Sender<u8>>| {
            let mut byte = [0];
            for at in 0.. {
                if !matches!(from.read(&mut byte), Ok(1)) {
                    break;
                }
                if let Some(seen) = &seen {
                    let _ = seen.send(byte[0]);
                }
                change(outwards, at, &mut byte[0]);
                if to.write_all(&byte).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        };
        let (from, to) = (pe.try_clone().unwrap(), service.try_clone().unwrap());
        thread::spawn(move || copy(from, to, true, Some(sender)));
        copy(service, pe, false, None);
    });
    (address, seen)
}

#[test]
fn a_recorded_hello_is_worth_nothing() {
    let (server, events) = server(Some(2));
    let (address, seen) = middleman(at(&server), |_, _, _| ());
    let mut through = membership(&server, 0, 2);
    through.address = address.into();
    let one = Client::join(&through, "test").unwrap();
    assert_eq!(events.recv().unwrap(), Event::Joined(0));
    drop(one);
    assert_eq!(events.recv().unwrap(), Event::Left(0));

    let recorded: Vec<u8> = seen.iter().take(HELLO).collect();
    let mut replay = stranger(&server);
    let before = server.refused();
    replay.write_all(&recorded).unwrap();
    assert!(is_dropped(&mut replay));
    assert_eq!(server.refused(), before + 1);
    assert!(events.try_recv().is_err(), "nobody joined");
}

#[test]
fn bytes_changed_on_the_way_are_noticed_by_either_end() {
    // A change towards the PE: in the first frame after the challenge.
    let (one_way, _events) = server(Some(1));
    let (address, _seen) = middleman(at(&one_way), |outwards, at, byte| {
        if !outwards && at == CHALLENGE + 6 {
            *byte ^= 1;
        }
    });
    let mut through = membership(&one_way, 0, 1);
    through.address = address.into();
    let error = error_of(Client::join(&through, "test"));
    assert!(matches!(error, Error::Untrusted { .. }), "{error}");

    // A change towards the service: in the first contribution. The service drops the PE, and the other PE gets a fault.
    let (other_way, events) = server(Some(2));
    let (address, _seen) = middleman(at(&other_way), |outwards, at, byte| {
        if outwards && at == HELLO + 30 {
            *byte ^= 1;
        }
    });
    let mut through = membership(&other_way, 0, 2);
    through.address = address.into();
    let mut one = Client::join(&through, "test").unwrap();
    let mut other = join(&other_way, 1, 2);
    let error = one.allgather(b"a contribution that is long enough").unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("changed on the way"), "{error}");
    assert!(matches!(other.allgather(b""), Err(Error::Peer { peer: 0, .. })));
    assert!(events.iter().take(4).any(|event| event == Event::Lost(0)));
}

#[test]
fn pes_that_disagree_are_both_named() {
    let (server, _events) = server(None);
    let mut one = join(&server, 0, 2);
    let error = error_of(Client::join(&membership(&server, 1, 3), "test")).to_string();
    assert!(error.contains("the number of PEs differs: PE 1 has 3, PE 0 has 2"), "{error}");
    let error = one.barrier().unwrap_err().to_string();
    assert!(error.contains("PE 1 has 3, PE 0 has 2"), "{error}");
}

#[test]
fn pes_that_are_too_many_are_refused_and_the_job_goes_on() {
    let (server, _events) = server(Some(2));
    let mut one = join(&server, 0, 2);
    let error = error_of(Client::join(&membership(&server, 0, 2), "test")).to_string();
    assert!(error.contains("PE 0 has joined already"), "{error}");
    let error = error_of(Client::join(&membership(&server, 2, 2), "test")).to_string();
    assert!(error.contains("the job has 2 PEs"), "{error}");
    let mut other = join(&server, 1, 2);
    assert_works(&mut one, &mut other);
}

#[test]
fn pes_that_finalized_may_start_over_together() {
    let (server, _events) = server(Some(2));
    for _ in 0..3 {
        let other = membership(&server, 1, 2);
        thread::scope(|scope| {
            // Not synchronised: one PE may join again before the other has left, and then waits for it.
            let pe = |membership: Membership| {
                for _ in 0..20 {
                    let mut client = Client::join(&membership, "test").unwrap();
                    let pe = membership.pe as u8;
                    assert_eq!(client.allgather(&[pe]).unwrap(), [[0], [1]]);
                }
            };
            scope.spawn(move || pe(other));
            pe(membership(&server, 0, 2));
        });
    }
}

#[test]
fn pes_in_different_steps_both_hear_of_it() {
    let (server, _events) = server(Some(2));
    let (mut one, mut other) = (join(&server, 0, 2), join(&server, 1, 2));
    thread::scope(|scope| {
        let other = scope.spawn(|| other.barrier().unwrap_err());
        let errors = [one.allgather(b"").unwrap_err(), other.join().unwrap()];
        for error in errors {
            assert!(matches!(error, Error::Mismatch { what: "the collective step", .. }), "{error}");
        }
    });
}

#[test]
fn a_pe_that_left_or_never_came_is_named() {
    let (server, events) = server(Some(3));
    let mut one = join(&server, 0, 3);
    drop(join(&server, 1, 3));
    let error = one.allgather(b"").unwrap_err();
    assert!(error.to_string().contains("PE 1 has left"), "{error}");
    assert!(events.iter().take(3).any(|event| event == Event::Left(1)));

    let (server, _events) = self::server(Some(3));
    let mut one = join(&server, 0, 3);
    thread::scope(|scope| {
        let one = scope.spawn(|| one.barrier().unwrap_err());
        server.process_ended(2);
        let error = one.join().unwrap();
        assert!(error.to_string().contains("PE 2 ended before it had joined"), "{error}");
    });

    let (server, _events) = self::server(Some(3));
    let mut hurried = membership(&server, 0, 3);
    hurried.timeout = Duration::from_secs(2);
    let mut one = Client::join(&hurried, "test").unwrap();
    let started = Instant::now();
    let error = one.barrier().unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(50));
    assert!(error.to_string().contains("within 2 s (SYMRAIL_TIMEOUT_S); PEs 1, 2 did not arrive"), "{error}");
}

#[test]
fn a_late_pe_is_waited_for_where_its_process_is_seen_to_live() {
    let options = || Options { n_pes: Some(2), watched: true, ..Options::default() };
    let (here, secret) = (IpAddr::V4(Ipv4Addr::LOCALHOST), Secret::generate().unwrap());
    let error = Server::start(here, &secret, options()).err().unwrap().to_string();
    assert!(error.contains("nobody would tell relays in PEs"), "{error}");
    let options = Options { shape: Shape::STAR, ..options() };
    let server = Server::start(here, &secret, options).unwrap();
    let mut hurried = membership(&server, 0, 2);
    hurried.timeout = Duration::from_secs(1);
    let mut one = Client::join(&hurried, "test").unwrap();
    thread::scope(|scope| {
        let (late, come) = mpsc::channel::<()>();
        let server = &server;
        scope.spawn(move || {
            // The PE joins after three time-outs.
            assert!(come.recv_timeout(Duration::from_secs(3)).is_err());
            let mut other = join(server, 1, 2);
            assert_eq!(other.allgather(b"other").unwrap(), [b"one".to_vec(), b"other".to_vec()]);
            assert!(come.recv().is_err());
        });
        assert_eq!(one.allgather(b"one").unwrap(), [b"one".to_vec(), b"other".to_vec()]);
        // The last step has a time-out, even if all PEs are alive.
        assert!(matches!(one.finish(), Err(Error::Timeout { .. })));
        drop(late);
    });
}

#[test]
fn a_pe_in_no_step_learns_of_departed_pes() {
    let (server, events) = server(Some(3));
    let (mut one, two, three) = (join(&server, 0, 3), join(&server, 1, 3), join(&server, 2, 3));
    assert!(one.lost_pes().is_empty());
    drop(two);
    assert!(eventually(|| !one.lost_pes().is_empty()));
    assert!(one.lost_pes().iter().map(|lost| lost.pe).eq([1]), "{:?}", one.lost_pes());
    assert!(events.iter().take(5).any(|event| event == Event::LeftEarly(1)));
    drop((one, three));

    let (server, events) = self::server(Some(2));
    let (mut one, mut other) = (join(&server, 0, 2), join(&server, 1, 2));
    thread::scope(|scope| {
        scope.spawn(|| other.finish().unwrap());
        one.finish().unwrap();
    });
    drop(other);
    drop(server);
    assert!(one.lost_pes().is_empty() && !events.iter().any(|event| event == Event::LeftEarly(1)));
}

/// Relays between a PE and the service. Returns its address, the number of bytes for the PE that it has received, and
/// the least number that it passes on in one piece.
fn holding_relay(service: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (received, at_least) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(1)));
    let of_relay = (Arc::clone(&received), Arc::clone(&at_least));
    thread::spawn(move || {
        let (mut pe, _) = listener.accept().unwrap();
        let mut service = TcpStream::connect(service).unwrap();
        let (mut from, mut to) = (pe.try_clone().unwrap(), service.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let (mut chunk, mut held) = ([0; 4096], Vec::new());
        while let Ok(bytes @ 1..) = service.read(&mut chunk) {
            held.extend_from_slice(&chunk[..bytes]);
            // Before the PE can go on.
            of_relay.0.fetch_add(bytes, Relaxed);
            if held.len() >= of_relay.1.load(Relaxed) {
                if pe.write_all(&held).is_err() {
                    break;
                }
                held.clear();
            }
        }
    });
    (address, received, at_least)
}

#[test]
fn news_that_come_with_a_result_are_read() {
    let (server, _events) = server(Some(2));
    let (address, received, at_least) = holding_relay(at(&server));
    let mut through = membership(&server, 0, 2);
    through.address = address.into();
    let (mut one, mut two) = (Client::join(&through, "test").unwrap(), join(&server, 1, 2));
    let mut barrier = |two: &mut Client| {
        thread::scope(|scope| {
            scope.spawn(|| two.barrier().unwrap());
            one.barrier().unwrap();
        });
        received.load(Relaxed)
    };
    let (before, after) = (barrier(&mut two), barrier(&mut two));
    // The third barrier's result reaches PE 0 only together with the news that PE 1 has left.
    at_least.store(after - before + 1, Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| one.barrier().unwrap());
        two.barrier().unwrap();
        drop(two);
    });
    assert!(one.lost_pes().iter().map(|lost| lost.pe).eq([1]), "{:?}", one.lost_pes());
}

/// Waits until it holds, for 20 s.
fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if holds() {
            return true;
        }
        thread::yield_now();
    }
    false
}

/// A relay for PEs 2 to 5 of six, run by PE 2.
fn relay_at(address: SocketAddr, server: &Server) -> Server {
    let mut job = membership(server, 2, 6);
    job.address = address.into();
    Server::relay(&job, 2..6, Some(2), Options { shape: Shape::FanOut(4), ..Options::default() }).unwrap()
}

/// PE 3, below such a relay.
fn below(relay: &Server, server: &Server) -> Result<Client, Error> {
    let mut job = membership(server, 3, 6);
    job.address = relay.address();
    Client::join(&job, "test")
}

#[test]
fn a_fault_that_comes_with_a_relay_s_welcome_reaches_its_pes() {
    let server = tree(LOOPBACK);
    let mut one = join(&server, 0, 6);
    // The welcome has fewer bytes than the challenge.
    let (address, received, at_least) = holding_relay(at(&server));
    at_least.store(CHALLENGE, Relaxed);
    thread::scope(|scope| {
        let relay = scope.spawn(|| relay_at(address, &server));
        assert!(eventually(|| received.load(Relaxed) > CHALLENGE));
        one.abort(7, "out of heap");
        let relay = relay.join().unwrap();
        let error = below(&relay, &server).and_then(|mut pe| pe.barrier()).unwrap_err();
        assert!(matches!(error, Error::Aborted { peer: 0, code: 7, .. }), "{error}");
    });
}

#[test]
fn a_pe_in_no_step_learns_that_its_relay_is_lost() {
    let server = tree(LOOPBACK);
    let _one = join(&server, 0, 6);
    let relay = relay_at(at(&server), &server);
    let mut three = below(&relay, &server).unwrap();
    assert!(three.lost_pes().is_empty());
    drop(relay);
    assert!(eventually(|| three.lost_pes().iter().map(|lost| lost.pe).eq([2])), "{:?}", three.lost_pes());
    assert!(matches!(three.barrier(), Err(Error::Peer { peer: 2, .. })));
}

#[test]
fn an_abort_reaches_the_service_and_the_others() {
    let (server, events) = server(Some(2));
    let (mut one, mut other) = (join(&server, 0, 2), join(&server, 1, 2));
    other.abort(7, "out of heap");
    let error = one.barrier().unwrap_err();
    assert!(error.to_string().contains("PE 1 aborted the job with code 7: out of heap"), "{error}");
    assert!(matches!(other.barrier(), Err(Error::Aborted { code: 7, .. })));
    let aborted = Event::Aborted { pe: 1, code: 7, why: "out of heap".into() };
    assert!(events.iter().take(4).any(|event| event == aborted));
}

#[test]
fn the_largest_contribution_passes_and_a_larger_one_is_refused_at_home() {
    let (server, _events) = server(Some(2));
    let (mut one, mut other) = (join(&server, 0, 2), join(&server, 1, 2));
    assert!(matches!(one.allgather(&vec![0; MAX_CONTRIBUTION + 1]), Err(Error::TooLarge { .. })));
    let large: Vec<u8> = (0..MAX_CONTRIBUTION).map(|at| (at % 251) as u8).collect();
    thread::scope(|scope| {
        let other = scope.spawn(|| other.allgather(&large).unwrap());
        let all = one.allgather(&large).unwrap();
        assert!(all.iter().chain(&other.join().unwrap()).all(|part| *part == large));
    });
}

#[test]
fn a_service_that_is_gone_is_an_error_at_once() {
    let (server, _events) = server(Some(2));
    let [one, membership] =
        [0, 1].map(|pe| Membership { timeout: Duration::from_secs(60), ..membership(&server, pe, 2) });
    let mut one = Client::join(&one, "test").unwrap();
    drop(server);
    let started = Instant::now();
    assert!(matches!(one.barrier(), Err(Error::Connection { .. })));
    assert!(matches!(error_of(Client::join(&membership, "test")), Error::Unreachable { .. }));
    assert!(started.elapsed() < Duration::from_secs(30), "a time-out is 60 s");
}

#[test]
fn a_wait_for_others_ends_when_it_is_told_to() {
    let (server, _events) = server(Some(2));
    let mut one = join(&server, 0, 2);
    let mut other = join(&server, 1, 2);
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = std::sync::Arc::clone(&asked);
    one.set_interrupt(std::sync::Arc::new(move || (count.fetch_add(1, Relaxed) < 2).then_some(Duration::ZERO)));
    let error = one.allgather(b"one").unwrap_err();
    assert!(matches!(error, Error::Interrupted { pe: 0, .. }), "{error}");
    assert_eq!((asked.load(Relaxed), one.barrier().unwrap_err()), (3, error));
    // The others wait for it until it is gone.
    drop(one);
    let error = other.allgather(b"other").unwrap_err();
    assert!(error.to_string().contains("PE 0"), "{error}");
}

const LOOPBACK: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
/// Unix-domain sockets.
const NO_INTERFACE: Option<IpAddr> = None;

/// A service for a job whose nodes serve at most four.
fn tree(interface: Option<IpAddr>) -> Server {
    let options = Options { shape: Shape::FanOut(4), ..Options::default() };
    Server::start(interface, &Secret::generate().unwrap(), options).unwrap()
}

/// Runs all PEs of a job, each on its own thread, and returns their results.
fn run_pes<R: Send>(server: &Server, n_pes: u32, pe: impl Fn(Client) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let (pe, server) = (&pe, server);
        let run = |number| scope.spawn(move || pe(join(server, number, n_pes)));
        let pes: Vec<_> = (0..n_pes).map(run).collect();
        pes.into_iter().map(|pe| pe.join().unwrap()).collect()
    })
}

#[test]
fn pes_of_a_large_job_join_and_leave_by_relays_again_and_again() {
    for server in [LOOPBACK, NO_INTERFACE].map(tree) {
        pes_join_and_leave_by_relays(&server);
    }
}

fn pes_join_and_leave_by_relays(server: &Server) {
    for _ in 0..3 {
        let messages = run_pes(server, 30, |mut client| {
            let mine = client.pe() as u8;
            let all: Vec<Vec<u8>> = (0..30).map(|pe| vec![pe; 1 + usize::from(pe)]).collect();
            assert_eq!(client.allgather(&vec![mine; 1 + usize::from(mine)]).unwrap(), all);
            client.barrier().unwrap();
            client.finish().unwrap();
            client.traffic().messages
        });
        // Three steps and a farewell, and two messages for each node that redirects a PE.
        assert!(messages.iter().all(|messages| (8..=18).contains(messages)), "{messages:?}");
    }
    assert!(server.wait_until_empty(Duration::from_secs(5)));
}

#[test]
fn relays_pass_on_contributions_that_are_larger_than_a_frame() {
    run_pes(&tree(NO_INTERFACE), 7, |mut client| {
        let mine = client.pe() as u8;
        let all = client.allgather(&vec![mine; MAX_CONTRIBUTION / 3]).unwrap();
        assert!(all.iter().zip(0..).all(|(part, pe)| part.len() == MAX_CONTRIBUTION / 3 && part[0] == pe));
        client.finish().unwrap();
    });
}

#[test]
fn an_abort_and_a_departure_reach_all_over_relays() {
    for (abort, interface) in [(true, LOOPBACK), (false, LOOPBACK), (true, NO_INTERFACE), (false, NO_INTERFACE)] {
        let server = tree(interface);
        let left = std::sync::Barrier::new(30);
        run_pes(&server, 30, |mut client| {
            client.barrier().unwrap();
            if client.pe() == 22 {
                if abort {
                    client.abort(7, "out of heap");
                } else {
                    drop(client);
                }
                left.wait();
                return;
            }
            let error = client.barrier().unwrap_err().to_string();
            let what = if abort { "PE 22 aborted the job with code 7: out of heap" } else { "PE 22 has left" };
            assert!(error.contains(what), "{error}");
            assert!(client.lost_pes().iter().any(|lost| lost.pe == 22));
            left.wait();
        });
    }
}

/// As in a C program, in which a write to a closed socket ends the process unless the writer says otherwise.
#[test]
fn connections_that_close_at_once_raise_no_signal() {
    // SAFETY: the default action is no handler.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.unwrap();
    let server = tree(NO_INTERFACE);
    let name = server.address().to_string();
    let name = UnixAddr::from_abstract_name(name.strip_prefix("unix-abstract:").unwrap()).unwrap();
    for _ in 0..200 {
        drop(UnixStream::connect_addr(&name).unwrap());
    }
    let mut client = join(&server, 0, 1);
    client.barrier().unwrap();
}

#[test]
fn strangers_at_a_relay_are_dropped_and_no_relay_is_without_the_secret() {
    let server = tree(LOOPBACK);
    let seen = std::sync::Barrier::new(30);
    run_pes(&server, 30, |mut client| {
        client.barrier().unwrap();
        if client.address() != server.address() {
            let mut garbage = TcpStream::connect(client.address().ip().unwrap()).unwrap();
            garbage.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            garbage.write_all(&[0x5a; 4096]).ok();
            assert!(is_dropped(&mut garbage));
            let secret = Secret::generate().unwrap();
            let stranger = Membership { address: client.address(), secret, ..membership(&server, 29, 30) };
            let error = error_of(Client::join(&stranger, "test"));
            assert!(error.to_string().contains("secret"), "{error}");
            let error = Server::relay(&stranger, 29..30, Some(29), Options::default()).err().unwrap();
            assert!(error.to_string().contains("secret"), "{error}");
        }
        seen.wait();
        client.finish().unwrap();
    });
}
