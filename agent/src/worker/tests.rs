#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::FromRawFd;

use nix::libc;
use symrail_proxy::session::Progress;
use symrail_transport::env::Settings;

use super::*;
use crate::devices::cuda::Cuda;
use crate::list::{Direction, List};
use crate::ring::SLOTS;
use crate::transfer::Transfer;

/// An agent without a thread: it progresses only where the test says so.
fn still(name: &str) -> Option<Shared> {
    still_with(name, "20")
}

fn still_with(name: &str, timeout_s: &str) -> Option<Shared> {
    let settings = [
        ("SYMRAIL_TIMEOUT_S", timeout_s),
        ("SYMRAIL_TRANSPORT", "libfabric"),
        ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
        ("SYMRAIL_NIC_LIST", "127.0.0.2"),
    ];
    let settings = Settings::from_iter(settings).unwrap();
    match Session::open_without_peers(&settings, Progress::Caller, None) {
        Ok(session) => {
            let sharing = Sharing::new(Arc::new(Cuda::new().unwrap()), None);
            Some(Shared::new(name, session, sharing, Duration::from_secs(settings.timeout_s)).unwrap())
        }
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

/// Connects `a` to `b`, by a notification: its delivery makes the connections of the rail, too.
fn first_notification(a: &Shared, b: &Shared) -> Arc<Peer> {
    let began = Instant::now();
    let peer = a.peer(a.session.number_for(b.handle.identity()).unwrap(), "b");
    a.connect(&peer, &b.handle).unwrap();
    let first = a.notify(&peer, b"first").unwrap();
    while first.get().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "it has not happened within 60 s");
        a.round(true);
        b.round(true);
    }
    peer
}

#[test]
fn a_notification_that_a_peer_took_before_its_goodbye_is_delivered() {
    let (Some(a), Some(b)) = (still("a"), still("b")) else { return };
    let began = Instant::now();
    let in_time = || assert!(began.elapsed() < Duration::from_secs(60), "it has not happened within 60 s");
    let peer = first_notification(&a, &b);
    let second = a.notify(&peer, b"second").unwrap();
    let taken =
        |message: &[u8]| b.inbox.take(|_| Ok::<(), ()>(())).is_some_and(|found| found.unwrap().message == message);
    assert!(taken(b"first"));
    while !taken(b"second") {
        in_time();
        b.round(true);
    }
    b.finish();
    drop(b);
    // Both are on their way; the goodbye is read first.
    let why = peer.advance(&a.session, &a.inbox, &a.sharing, true).unwrap_err();
    a.lose(&peer, &why);
    assert!(a.notify(&peer, b"third").is_err());
    while second.get().is_none() {
        in_time();
        a.round(true);
    }
    second.get().unwrap().clone().unwrap();
    a.round(true);
    assert!(lock(&a.peers).is_empty(), "a peer that has settled is forgotten");
}

#[test]
fn a_caller_that_tests_a_transfer_sees_the_end_of_its_notification_without_the_thread() {
    let (Some(a), Some(b)) = (still("a"), still("b")) else { return };
    let began = Instant::now();
    let in_time = || assert!(began.elapsed() < Duration::from_secs(60), "it has not happened within 60 s");
    let a = Arc::new(a);
    let peer = a.peer(a.session.number_for(b.handle.identity()).unwrap(), "b");
    a.connect(&peer, &b.handle).unwrap();
    while !peer.is_open().unwrap() {
        in_time();
        a.round(true);
        b.round(true);
    }
    let mut transfer = Transfer::new(&a, List::new(Direction::Write, Arc::clone(&peer)));
    for _ in 0..100 {
        transfer.post(Some(b"behind nothing")).unwrap();
        while !transfer.test().unwrap() {
            in_time();
            b.round(true);
        }
    }
}

#[test]
fn a_peer_that_the_session_has_removed_is_lost() {
    let (Some(a), Some(b)) = (still("a"), still("b")) else { return };
    let number = || a.session.number_for(b.handle.identity()).unwrap();
    let peer = a.peer(number(), "b");
    // As when the session could not add it.
    a.session.remove_peer(peer.pe, "it was refused");
    let error = a.connect(&peer, &b.handle).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(peer.is_open().is_err());
    let again = a.peer(number(), "b");
    assert_ne!(again.pe, peer.pe);
    a.connect(&again, &b.handle).unwrap();
}

#[test]
fn a_dialer_that_is_never_ready_is_removed() {
    let (Some(mut a), Some(b)) = (still("a"), still("b")) else { return };
    a.timeout = Duration::ZERO;
    let number = a.session.number_for(b.handle.identity()).unwrap();
    let peer = b.peer(b.session.number_for(a.handle.identity()).unwrap(), "a");
    b.connect(&peer, &a.handle).unwrap();
    let began = Instant::now();
    while a.session.number_for(b.handle.identity()).unwrap() == number {
        assert!(began.elapsed() < Duration::from_secs(60), "it is not removed");
        b.round(false);
        a.round(false);
    }
}

#[test]
fn a_notification_that_its_sender_was_told_about_is_taken_before_the_sender_is_lost() {
    for leaves in [false, true] {
        let (Some(a), Some(b)) = (still("a"), still("b")) else { return };
        let began = Instant::now();
        let in_time = || assert!(began.elapsed() < Duration::from_secs(60), "it has not happened within 60 s");
        let peer = first_notification(&a, &b);
        let second = a.notify(&peer, b"second").unwrap();
        while second.get().is_none() {
            in_time();
            a.round(true);
            // It arrives in the ring, and nobody takes it.
            b.session.progress();
        }
        assert!(second.get().unwrap().is_ok());
        let sender = lock(&b.peers).values().find(|peer| peer.name == "a").cloned().unwrap();
        if leaves {
            a.finish();
            drop(a);
            while sender.is_open().is_ok() {
                in_time();
                b.round(true);
            }
        } else {
            b.lose(&sender, "an operation on its memory has failed");
        }
        let all: Vec<_> =
            std::iter::from_fn(|| b.inbox.take(|_| Ok::<(), ()>(()))).map(|one| one.unwrap().message).collect();
        assert_eq!(all, [b"first".to_vec(), b"second".to_vec()], "leaves: {leaves}");
    }
}

#[test]
fn a_forgotten_agent_without_a_connection_leaves_nothing() {
    let (Some(a), Some(b)) = (still("a"), still("b")) else { return };
    let number = || a.session.number_for(b.handle.identity()).unwrap();
    let (first, at_first) = (number(), lock(&a.peers).len());
    a.forget(&a.peer(first, "b"));
    a.round(true);
    assert_eq!(lock(&a.peers).len(), at_first);
    // What is loaded later is a new peer's, and can be connected to.
    let peer = a.peer(number(), "b");
    a.connect(&peer, &b.handle).unwrap();
    a.forget(&peer);
    let told = a.notify(&peer, b"here").unwrap();
    let began = Instant::now();
    while told.get().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "it has not happened within 60 s");
        a.round(true);
        b.round(true);
    }
    assert!(told.get().unwrap().is_ok());
}

/// Resets the connections of links to this listener, at the listener's end.
fn reset_connections(handle: &Handle) {
    let [_, _, _, _, low, high] = *handle.encode().first_chunk().unwrap();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(fd) = entry.unwrap().file_name().to_str().unwrap().parse::<i32>() else { continue };
        // SAFETY: the system checks the number; a socket that is found here belongs to a link, which stays open.
        unsafe {
            let socket = std::mem::ManuallyDrop::new(TcpStream::from_raw_fd(fd));
            let is_link = socket.local_addr().is_ok_and(|at| at.port() == u16::from_le_bytes([low, high]));
            if is_link && socket.peer_addr().is_ok() {
                let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
                assert_eq!(libc::connect(fd, &raw const nowhere, size_of::<libc::sockaddr>() as u32), 0);
            }
        }
    }
}

/// It may have mapped memory, and copy.
#[test]
fn a_peer_that_does_not_answer_over_its_rails_has_not_closed_its_end() {
    for resets in [true, false] {
        let (Some(a), Some(b)) = (still_with("a", "5"), still_with("b", "5")) else { return };
        let began = Instant::now();
        let peer = first_notification(&a, &b);
        if resets {
            reset_connections(&b.handle);
        }
        drop(b);
        while peer.is_open().is_ok() {
            assert!(began.elapsed() < Duration::from_secs(60), "it has not happened within 60 s");
            a.round(true);
        }
        assert_eq!(peer.has_closed(), !resets);
    }
}

#[test]
fn an_attempt_that_takes_too_long_tells_what_its_last_connection_ended_with() {
    let (Some(a), Some(b)) = (still_with("a", "1"), still("b")) else { return };
    let other = TcpListener::bind("127.0.0.2:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let mut handle = b.handle.encode();
    handle[4..6].copy_from_slice(&other.local_addr().unwrap().port().to_le_bytes());
    handle[6..22].copy_from_slice(&Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped().octets());
    let peer = a.peer(a.session.number_for(b.handle.identity()).unwrap(), "b");
    a.connect(&peer, &Handle::decode(&handle).unwrap()).unwrap();
    let began = Instant::now();
    let error = loop {
        // Whoever listens there closes each connection.
        other.accept().map(drop).unwrap_or_default();
        a.round(true);
        if let Err(error) = peer.is_open() {
            break error.to_string();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it has not happened within 60 s");
    };
    let at = other.local_addr().unwrap().to_string();
    assert!(error.contains("1 s (SYMRAIL_TIMEOUT_S)") && error.contains(&at), "{error}");
    assert!(["closed", "reset"].iter().any(|why| error.contains(why)), "{error}");
}

#[test]
fn notifications_that_a_peer_does_not_take_are_warned_of_once() {
    let (Some(mut a), Some(b)) = (still("a"), still("b")) else { return };
    let began = Instant::now();
    let peer = first_notification(&a, &b);
    for by_thread in [false, true] {
        a.timeout = Duration::from_secs(if by_thread { 0 } else { 3600 });
        b.inbox.add("somebody", vec![0; 64 << 20]);
        let told: Vec<_> = (0..100).map(|_| a.notify(&peer, b"waits").unwrap()).collect();
        let both = || {
            assert!(began.elapsed() < Duration::from_secs(60), "it has not happened within 60 s");
            a.round(true);
            b.round(true);
        };
        if by_thread {
            // It takes up to a quarter of the slots without telling.
            while told.iter().filter(|one| one.get().is_some()).count() < SLOTS as usize * 3 / 4 {
                both();
            }
            (0..100).for_each(|_| both());
        } else {
            while !peer.warns(Duration::ZERO) {
                both();
            }
        }
        assert!(told[SLOTS as usize].get().is_none() && !peer.warns(Duration::ZERO));
        while told.iter().any(|one| one.get().is_none()) {
            while b.inbox.take(|_| Ok::<(), ()>(())).is_some() {}
            both();
        }
    }
}
