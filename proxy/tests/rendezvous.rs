//! Sessions that meet by a handle over `tcp;ofi_rxm`: peers that join and leave while others communicate, requests that
//! are tested, and strangers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_heap::guarded::{GuardedCopyEngine, GuardedMemory};
use symrail_proxy::session::memory::{HANDLE_SIZE, Memory};
use symrail_proxy::session::rendezvous::{Dial, HANDLE_SIZE as HANDLE, Handle, Link, Listener, MOST_STRANGERS, State};
use symrail_proxy::session::{Place, Progress, Request, Session};
use symrail_proxy::stage::STAGING_BUFFER_BYTES;
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;
use symrail_transport::env::Settings;
use symrail_transport::{Error, Result};

const WORDS: usize = 1 << 16;

/// The settings of all sessions.
fn settings() -> Settings {
    Settings::from_iter([
        ("SYMRAIL_TRANSPORT", "libfabric"),
        ("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
        ("SYMRAIL_NIC_LIST", "127.0.0.2,127.0.0.3"),
        ("SYMRAIL_TIMEOUT_S", "10"),
    ])
    .unwrap()
}

/// A session with some memory; the last word is a signal.
struct Member {
    session: Session,
    words: Vec<u64>,
    memory: Memory,
}

impl Member {
    fn new() -> Option<Member> {
        Member::with(&settings())
    }

    fn with(settings: &Settings) -> Option<Member> {
        let session = match Session::open_without_peers(settings, Progress::Thread, None) {
            Ok(session) => session,
            Err(error) => {
                println!("SKIPPED: {error}");
                return None;
            }
        };
        let mut words = vec![0; WORDS];
        // SAFETY: it lives as long as the session, and only raw pointers access it.
        let memory = unsafe { session.register(words.as_mut_ptr().cast(), 8 * WORDS) }.unwrap();
        Some(Member { session, words, memory })
    }

    fn handle(&self) -> Vec<u8> {
        self.memory.encode()[..self.memory.encoded_len()].to_vec()
    }

    fn word(&self, at: usize) -> u64 {
        // SAFETY: an aligned word of this member's memory.
        unsafe { self.words.as_ptr().add(at).read_volatile() }
    }
}

fn until<T>(mut next: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = next() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain");
        std::thread::yield_now();
    }
}

/// Both ends of a connection, with the peers' memory.
fn meet(listener: &mut Listener, here: &Member, dialer: &Member) -> [(Link, [u8; HANDLE_SIZE]); 2] {
    meet_with(listener, (&here.session, &here.handle()), (&dialer.session, &dialer.handle()))
}

fn meet_with(
    listener: &mut Listener,
    here: (&Session, &[u8]),
    dialer: (&Session, &[u8]),
) -> [(Link, [u8; HANDLE_SIZE]); 2] {
    let mut dial = Dial::new(dialer.0, listener.handle(), dialer.1).unwrap();
    let arrival = until(|| {
        assert!(dial.poll(dialer.0).unwrap().is_none());
        listener.poll(here.0).unwrap()
    });
    let of_dialer = Memory::of_peer(arrival.pe(), arrival.payload()).unwrap().encode();
    let mut answered = arrival.answer(here.0, here.1).unwrap();
    let (link, payload) = until(|| dial.poll(dialer.0).unwrap());
    let of_listener = Memory::of_peer(link.pe(), &payload).unwrap().encode();
    [(until(|| answered.poll().unwrap()), of_dialer), (link, of_listener)]
}

fn put(from: &Member, to: &[u8; HANDLE_SIZE], len: usize, value: u64) -> Request {
    let at = |word: usize| Place::new(to, 8 * word as u64).unwrap();
    let source = (Source::Stable(from.words.as_ptr().cast()), len as u64);
    // SAFETY: no test changes the source before the request has ended.
    let start = || unsafe { from.session.start_put_signal(at(0), source, at(WORDS - 1), (AmoOp::Set, value)) };
    until(|| start().unwrap())
}

fn finish(session: &Session, request: &Request) -> Result<()> {
    until(|| match session.test(request) {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    })
}

#[test]
fn members_join_and_leave_while_others_communicate() {
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    let [(mut to_b, b_memory), (_to_a, a_memory)] = meet(&mut listener, &a, &b);
    // Again: they are peers already, with the same numbers.
    let [(again, _), _] = meet(&mut listener, &a, &b);
    assert_eq!(again.pe(), to_b.pe());
    for round in 1..20 {
        let under_way = put(&a, &b_memory, 400_000, round);
        let c = Member::new().unwrap();
        let [(mut to_c, c_memory), (_link, a_seen_by_c)] = meet(&mut listener, &a, &c);
        assert_ne!(to_c.pe(), to_b.pe());
        let requests = [put(&a, &c_memory, 100_000, round), put(&c, &a_seen_by_c, 100, 1000 + round)];
        finish(&a.session, &requests[0]).unwrap();
        finish(&c.session, &requests[1]).unwrap();
        assert_eq!((c.word(WORDS - 1), a.word(WORDS - 1)), (round, 1000 + round));
        finish(&a.session, &under_way).unwrap();
        assert_eq!(b.word(WORDS - 1), round);
        let late = put(&b, &a_memory, 8, round);
        drop(_link);
        until(|| (*to_c.poll(&a.session) == State::Closed).then_some(()));
        a.session.remove_peer(to_c.pe(), "it has left");
        finish(&b.session, &late).unwrap();
        drop(c);
        // SAFETY: as in `put`.
        let gone = unsafe {
            let place = Place::new(&c_memory, 0).unwrap();
            a.session.start_put(place, Source::Stable(a.words.as_ptr().cast()), 8)
        };
        assert!(matches!(gone, Err(Error::PeerLost { .. })), "{gone:?}");
    }
    assert_eq!(*to_b.poll(&a.session), State::Open);
}

#[test]
fn a_link_tells_that_the_session_behind_it_has_ended() {
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    let [(mut first, _), (to_a, _)] = meet(&mut listener, &a, &b);
    let [(mut second, _), (also_to_a, _)] = meet(&mut listener, &a, &b);
    drop(to_a);
    until(|| (*first.poll(&a.session) == State::Closed).then_some(()));
    b.session.wait_for_closed_links(Duration::ZERO);
    assert_eq!(
        (first.poll(&a.session), second.poll(&a.session)),
        (&State::Closed, &State::Open),
        "its session goes on"
    );
    drop((first, also_to_a));
    until(|| (*second.poll(&a.session) == State::Closed).then_some(()));
    drop(b);
    until(|| (*second.poll(&a.session) == State::Left).then_some(()));
}

#[test]
fn a_peer_is_removed_when_its_session_has_ended_whichever_end_has_closed_first() {
    let Some(a) = Member::new() else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    for (a_first, a_dials) in [(true, true), (true, false), (false, true), (false, false)] {
        let b = Member::new().unwrap();
        let number = || a.session.number_for(b.session.identity()).unwrap();
        let mut of_b = Listener::new(&b.session).unwrap();
        let mut meet_again = || match a_dials {
            true => {
                let [(to_a, _), (to_b, memory)] = meet(&mut of_b, &b, &a);
                (to_b, to_a, memory)
            }
            false => {
                let [(to_b, memory), (to_a, _)] = meet(&mut listener, &a, &b);
                (to_b, to_a, memory)
            }
        };
        for others in [0, 3] {
            let (mut to_b, mut to_a, memory) = meet_again();
            let others: Vec<_> = (0..others).map(|_| meet_again()).collect();
            finish(&a.session, &put(&a, &memory, 8, 1)).unwrap();
            let pe = to_b.pe();
            if a_first {
                drop(to_b);
                until(|| (*to_a.poll(&b.session) == State::Closed).then_some(()));
                drop(to_a);
            } else {
                drop(to_a);
                until(|| (*to_b.poll(&a.session) == State::Closed).then_some(()));
                drop(to_b);
            }
            others.into_iter().for_each(|(to_b, to_a, _)| drop((to_b, to_a)));
            a.session.wait_for_closed_links(Duration::from_secs(60));
            b.session.wait_for_closed_links(Duration::from_secs(60));
            assert_eq!(number(), pe, "its session goes on");
        }
        let before = number();
        let identity = *b.session.identity();
        drop(b);
        until(|| (a.session.number_for(&identity).unwrap() != before).then_some(()));
    }
}

#[test]
fn a_dialer_that_dies_before_it_is_ready_is_removed_unless_it_has_other_links() {
    let Some(a) = Member::new() else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    for links in [0, 1] {
        let b = Member::new().unwrap();
        let mut dial = Dial::new(&b.session, listener.handle(), &b.handle()).unwrap();
        let arrival = until(|| {
            assert!(dial.poll(&b.session).unwrap().is_none());
            listener.poll(&a.session).unwrap()
        });
        let number = arrival.pe();
        let mut answered = arrival.answer(&a.session, &a.handle()).unwrap();
        let links: Vec<_> = (0..links).map(|_| meet(&mut listener, &a, &b)).collect();
        drop(dial);
        let Err(error) = until(|| answered.poll().map_or_else(|e| Some(Err(e)), |link| link.map(Ok))) else { panic!() };
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        drop(answered);
        let is_known = || a.session.number_for(b.session.identity()).unwrap() == number;
        let [(mut to_b, memory), (to_a, _)] = match links.into_iter().next() {
            Some(link) => link,
            None => {
                assert!(!is_known());
                meet(&mut listener, &a, &b)
            }
        };
        finish(&a.session, &put(&a, &memory, 8, 1)).unwrap();
        let pe = to_b.pe();
        assert_eq!(is_known(), pe == number);
        drop(to_a);
        until(|| (*to_b.poll(&a.session) == State::Closed).then_some(()));
        drop(to_b);
        a.session.wait_for_closed_links(Duration::from_secs(60));
        assert_eq!(a.session.number_for(b.session.identity()).unwrap(), pe, "its session goes on");
    }
}

/// The settings allow 25 s for connecting.
#[test]
fn a_listener_that_is_gone_is_not_dialed_for_long() {
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let handle = Listener::new(&a.session).unwrap().handle().clone();
    let begun = Instant::now();
    let dialed = Dial::new(&b.session, &handle, &[]);
    let error = match dialed {
        Ok(mut dial) => until(|| dial.poll(&b.session).map(|link| assert!(link.is_none())).err()),
        Err(error) => error,
    };
    assert!(matches!(error, Error::PeerLost { .. } | Error::System { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}: {error}", begun.elapsed());
}

const IN_NAMESPACE: &str = "SYMRAIL_TEST_NO_ROUTE";

/// In a network namespace whose only neighbour does not answer, so the system reports EHOSTUNREACH behind `connect`. The
/// settings allow 205 s for connecting.
#[test]
fn a_listener_that_cannot_be_reached_is_named_with_the_system_s_reason() {
    if std::env::var_os(IN_NAMESPACE).is_none() {
        let setup = "ip link set lo up && ip link add veth0 type veth peer name veth1 && ip link set veth0 up && \
                     ip link set veth1 up && ip address add 10.77.0.1/24 dev veth0 && \
                     echo 1 > /proc/sys/net/ipv4/neigh/veth0/mcast_solicit";
        let inside = |then: &str| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--map-root-user", "--net", "sh", "-c", &format!("{setup}{then}")]);
            command
        };
        let probe = inside("").output();
        if !probe.as_ref().is_ok_and(|output| output.status.success()) {
            return println!("SKIPPED: this needs network namespaces and the right to add interfaces there: {probe:?}");
        }
        let name = std::thread::current().name().unwrap().to_owned();
        let mut again = inside(" && exec \"$@\"");
        again.arg("sh").arg(std::env::current_exe().unwrap()).args(["--exact", &name, "--nocapture"]);
        let output = again.env(IN_NAMESPACE, "1").output().unwrap();
        return assert!(output.status.success(), "{output:?}");
    }
    let mut settings = settings();
    settings.timeout_s = 100;
    let (Some(a), Some(b)) = (Member::with(&settings), Member::with(&settings)) else { return };
    let mut handle = Listener::new(&a.session).unwrap().handle().encode();
    handle[6..22].copy_from_slice(&Ipv4Addr::new(10, 77, 0, 2).to_ipv6_mapped().octets());
    let mut dial = Dial::new(&b.session, &Handle::decode(&handle).unwrap(), &[]).unwrap();
    let error = until(|| dial.poll(&b.session).map(|link| assert!(link.is_none())).err());
    let Error::PeerLost { why, .. } = &error else { panic!("{error}") };
    assert!(["10.77.0.2:", "No route to host", "firewalls"].iter().all(|part| why.contains(part)), "{why}");
}

#[test]
fn settings_that_differ_are_named_at_both_ends() {
    let mut others = settings();
    others.libfabric_provider = Some("sockets".into());
    let (Some(a), Some(b)) = (Member::new(), Member::with(&others)) else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    let mut dial = Dial::new(&b.session, listener.handle(), &[]).unwrap();
    let at_listener = until(|| {
        assert!(dial.poll(&b.session).unwrap().is_none());
        listener.poll(&a.session).map(|arrival| assert!(arrival.is_none())).err()
    });
    let at_dialer = until(|| dial.poll(&b.session).map(|link| assert!(link.is_none())).err());
    for error in [at_listener, at_dialer] {
        let told = error.to_string();
        assert!(matches!(error, Error::Mismatch { .. }) && told.contains("SYMRAIL_LIBFABRIC_PROVIDER"), "{told}");
    }
}

/// The listener closes with the card unread, so that the system resets the connection.
#[test]
fn a_listener_that_closes_without_reading_the_card_ends_the_dial() {
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    let mut dial = Dial::new(&b.session, listener.handle(), &[]).unwrap();
    assert!(dial.poll(&b.session).unwrap().is_none());
    assert!(listener.poll(&a.session).unwrap().is_none(), "it has shown that it has the secret");
    assert!(dial.poll(&b.session).unwrap().is_none(), "it has sent its card");
    drop(listener);
    let error = until(|| dial.poll(&b.session).map(|link| assert!(link.is_none())).err());
    assert!(matches!(error, Error::PeerLost { .. } | Error::System { .. }), "{error}");
}

/// Resets the connection of a link to a listener at this port, at the listener's end.
fn reset_connection(port: u16) {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(fd) = entry.unwrap().file_name().to_str().unwrap().parse::<i32>() else { continue };
        // SAFETY: the system checks the number; a socket that is found here belongs to a link, which stays open.
        unsafe {
            let socket = std::mem::ManuallyDrop::new(TcpStream::from_raw_fd(fd));
            if socket.local_addr().is_ok_and(|at| at.port() == port) && socket.peer_addr().is_ok() {
                let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
                assert_eq!(libc::connect(fd, &raw const nowhere, size_of::<libc::sockaddr>() as u32), 0);
            }
        }
    }
}

#[test]
fn a_link_whose_path_has_failed_asks_the_session_behind_it() {
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let mut listener = Listener::new(&b.session).unwrap();
    let [.., low, high] = *listener.handle().encode().first_chunk::<6>().unwrap();
    let port = u16::from_le_bytes([low, high]);
    let [(_to_a, _), (mut to_b, b_memory)] = meet(&mut listener, &b, &a);
    reset_connection(port);
    until(|| {
        assert_eq!(*to_b.poll(&a.session), State::Open, "the peer is reached over its rails");
        to_b.is_broken().then_some(())
    });
    let under_way = put(&a, &b_memory, 8, 1);
    finish(&a.session, &under_way).unwrap();
    assert_eq!(*to_b.poll(&a.session), State::Open);
    drop((_to_a, b));
    until(|| matches!(to_b.poll(&a.session), State::Failed(_)).then_some(()));
}

#[test]
fn a_session_waits_for_the_other_ends_of_its_closed_links() {
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    let [(mut to_b, _), (to_a, _)] = meet(&mut listener, &a, &b);
    drop(to_a);
    let ends = std::thread::scope(|scope| {
        let waits = scope.spawn(|| b.session.wait_for_closed_links(Duration::from_secs(60)));
        until(|| (*to_b.poll(&a.session) == State::Closed).then_some(()));
        assert!(!waits.is_finished());
        let begun = Instant::now();
        drop(to_b);
        waits.join().unwrap();
        begun.elapsed()
    });
    assert!(ends < Duration::from_secs(30), "it waits longer: {ends:?}");
}

#[test]
fn an_answer_that_is_given_up_says_goodbye() {
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    let [(mut first, _), _other] = meet(&mut listener, &a, &b);
    let mut dial = Dial::new(&b.session, listener.handle(), &b.handle()).unwrap();
    let arrival = until(|| {
        assert!(dial.poll(&b.session).unwrap().is_none());
        listener.poll(&a.session).unwrap()
    });
    let answered = arrival.answer(&a.session, &a.handle()).unwrap();
    let (mut link, _) = until(|| dial.poll(&b.session).unwrap());
    drop(answered);
    until(|| (*link.poll(&b.session) != State::Open).then_some(()));
    assert_eq!((link.poll(&b.session), first.poll(&a.session)), (&State::Closed, &State::Open), "its process lives");
}

#[test]
fn more_dialers_than_are_kept_connect_all_at_once() {
    const DIALERS: usize = 3 * MOST_STRANGERS;
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    let dial = |_| Dial::new(&b.session, listener.handle(), &b.handle()).unwrap();
    let mut dials: Vec<Dial> = (0..DIALERS).map(dial).collect();
    let (mut answers, mut links) = (Vec::new(), Vec::new());
    until(|| {
        // All take a step before the listener does.
        dials.iter_mut().for_each(|dial| links.extend(dial.poll(&b.session).unwrap()));
        if let Some(arrival) = listener.poll(&a.session).unwrap() {
            answers.push(arrival.answer(&a.session, &a.handle()).unwrap());
        }
        (links.len() == DIALERS).then_some(())
    });
    answers.iter_mut().for_each(|answered| drop(until(|| answered.poll().unwrap())));
    assert_eq!(answers.len(), DIALERS, "each connected once");
}

#[test]
fn impossible_lengths_are_refused_and_offsets_are_given_once() {
    let Some(a) = Member::new() else { return };
    let words = [0u64; 4];
    let base = words.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: the first one is refused, and the others are inside of `words`, which outlives the session's use.
    unsafe {
        let first = a.session.register(base, 8).unwrap();
        let refused = a.session.register(base, usize::MAX).unwrap_err().to_string();
        assert!(refused.contains("18446744073709551615 bytes"), "{refused}");
        let second = a.session.register(base.add(8), 8).unwrap();
        assert!(second.offset() > first.offset());
        let local = a.session.register_local(base, 8).unwrap();
        assert_eq!(a.session.local_buffer_at(base), Some(local));
        a.session.deregister_local(local);
        assert_eq!(a.session.local_buffer_at(base), None);
        [first, second].iter().for_each(|memory| a.session.deregister(memory));
    }
}

#[test]
fn strangers_get_nothing_and_do_not_disturb() {
    let (Some(a), Some(b)) = (Member::new(), Member::new()) else { return };
    let mut listener = Listener::new(&a.session).unwrap();
    let bytes = listener.handle().encode();
    assert!(Handle::decode(&bytes).unwrap() == *listener.handle());
    assert!(Handle::decode(&[0; HANDLE]).is_err());
    let ip: [u8; 16] = bytes[6..22].try_into().unwrap();
    let address =
        (IpAddr::from(Ipv6Addr::from(ip).to_ipv4_mapped().unwrap()), u16::from_le_bytes([bytes[4], bytes[5]]));
    // Silent ones and noisy ones, more than are kept.
    let mut strangers: Vec<TcpStream> = Vec::new();
    for i in 0..2 * MOST_STRANGERS {
        let mut stranger = TcpStream::connect(address).unwrap();
        if i % 2 == 0 {
            stranger.write_all(&[i as u8; 300]).unwrap();
        }
        strangers.push(stranger);
        assert!(listener.poll(&a.session).unwrap().is_none());
    }
    // One that has a wrong secret.
    let mut forged = bytes;
    forged[50] ^= 1;
    let number = b.session.number_for(listener.handle().identity()).unwrap();
    let mut dial = Dial::new(&b.session, &Handle::decode(&forged).unwrap(), &[]).unwrap();
    let error = until(|| {
        assert!(listener.poll(&a.session).unwrap().is_none());
        dial.poll(&b.session).map(|done| assert!(done.is_none())).err()
    });
    assert!(error.to_string().contains("secret"), "{error}");
    let again = b.session.number_for(listener.handle().identity()).unwrap();
    assert_ne!(again, number, "nothing is kept for one that was dialed in vain");
    let [(link, _), _] = meet(&mut listener, &a, &b);
    assert!(link.pe() >= 2);
}

/// Memory that neither rails nor the CPU access, of sessions that meet: to the other one and to oneself.
#[test]
fn members_stage_memory_that_rails_do_not_reach() {
    for progress in [Progress::Thread, Progress::Delegated] {
        let open = |seed: u64| {
            let guarded = GuardedMemory::new(8 * WORDS).unwrap();
            let copy_engine = GuardedCopyEngine::new(Arc::clone(&guarded), STAGING_BUFFER_BYTES, seed).unwrap();
            let session = Session::open_without_peers(&settings(), progress, Some(Box::new(copy_engine))).ok()?;
            // SAFETY: it lives as long as the session.
            let memory =
                unsafe { session.register_staged(guarded.base().as_ptr(), 8 * WORDS, Err("the test has none".into())) }
                    .unwrap();
            let handle = memory.encode()[..memory.encoded_len()].to_vec();
            Some((session, guarded, memory, handle))
        };
        let (Some(a), Some(b)) = (open(3), open(4)) else { return println!("SKIPPED: the provider is not there") };
        let mut listener = Listener::new(&a.0).unwrap();
        let [(_to_b, b_memory), (_to_a, _)] = meet_with(&mut listener, (&a.0, &a.3), (&b.0, &b.3));
        let open_at = |guarded: &GuardedMemory| guarded.reachable(guarded.base().addr().get(), 8 * WORDS).unwrap();
        let (from, half) = (open_at(&a.1).cast::<u64>(), WORDS / 2);
        for (round, len) in [8, 4000, 100_000, 4 * WORDS as u64 - 64].into_iter().enumerate() {
            for (to, guarded) in [(&b_memory, &b.1), (&a.2.encode(), &a.1)] {
                for i in 0..half {
                    // SAFETY: the first half of the memory, which no operation uses now.
                    unsafe { from.add(i).write_volatile((round * WORDS + i) as u64) };
                }
                let at = |word: usize| Place::new(to, 8 * word as u64).unwrap();
                let source = (Source::Stable(a.1.base().as_ptr().cast_const()), len);
                // SAFETY: the source is not changed before the request has ended.
                let start = || unsafe { a.0.start_put_signal(at(half), source, at(WORDS - 1), (AmoOp::Add, 1)) };
                finish(&a.0, &until(|| start().unwrap())).unwrap();
                let there = open_at(guarded).cast::<u64>();
                for i in 0..len as usize / 8 {
                    // SAFETY: the second half of the memory, to which no operation is under way.
                    let got = unsafe { there.add(half + i).read_volatile() };
                    assert_eq!(got, (round * WORDS + i) as u64, "{len} bytes, at {i}");
                }
                // SAFETY: as above.
                assert_eq!(unsafe { there.add(WORDS - 1).read_volatile() }, round as u64 + 1);
            }
        }
    }
}
