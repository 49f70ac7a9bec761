//! The plugin beside an end of its connections that this test is itself, and that does what a plugin does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::rendezvous::{Dial, Handle, Link, Listener};
use symrail_proxy::session::{Part, Progress, Session, Words};
use symrail_transport::env::Settings;

use crate::driver::{Net, REMOTE_ERROR, until};
use crate::ring::{receiver, sender};

/// A listener of the plugin, dialed by an end whose ring has so many words. Returns what `accept` returns, and the end.
fn dial(net: &Net, session: &Arc<Session>, words: usize) -> (Result<*mut std::ffi::c_void, i32>, Words, Option<End>) {
    let (handle, listener) = net.listen();
    let ring = Words::new(session, words).unwrap();
    let mut dial = Dial::new(session, &Handle::decode(&handle).unwrap(), &ring.memory().encode_short()).unwrap();
    let mut end = None;
    let accepted = until("accept", || {
        if let Ok(Some((link, payload))) = dial.poll(session) {
            end = Some(End { theirs: Memory::of_peer(link.pe(), &payload).unwrap(), _link: link });
        }
        net.accept_once(listener).map(|connection| (!connection.is_null()).then_some(connection))
    });
    net.close_listen(listener);
    (accepted, ring, end)
}

/// The dialing end of a connection, and the ring of the accepting one.
struct End {
    theirs: Memory,
    _link: Link,
}

/// What a process of `plugin::pair` does.
pub fn peer(net: &Net, timeout: Duration) {
    let settings = Settings::from_env().unwrap();
    let session = Arc::new(Session::open_without_peers(&settings, Progress::Thread, None).unwrap());
    rings_of_another_version_are_refused(net, &session);
    a_counted_message_without_its_size_fails(net, &session);
    a_message_that_never_comes_fails_after_a_full_time_out(net, &session, timeout);
}

fn rings_of_another_version_are_refused(net: &Net, session: &Arc<Session>) {
    assert_eq!(dial(net, session, sender::WORDS + 1).0, Err(REMOTE_ERROR));
    let ring = Words::new(session, receiver::WORDS - 1).unwrap();
    let mut listener = Listener::new(session).unwrap();
    let (mut handle, mut answered) = (listener.handle().encode(), Vec::new());
    let connected = until("connect", || {
        if let Some(arrival) = listener.poll(session).unwrap() {
            answered.push(arrival.answer(session, &ring.memory().encode_short()).unwrap());
        }
        net.connect_once(&mut handle).map(|connection| (!connection.is_null()).then_some(connection))
    });
    assert_eq!((connected, answered.len()), (Err(REMOTE_ERROR), 1));
}

/// Its count comes, the write of its size was lost.
fn a_counted_message_without_its_size_fails(net: &Net, session: &Arc<Session>) {
    let (connection, ring, end) = dial(net, session, sender::WORDS);
    let (connection, End { theirs, _link }) = (connection.unwrap(), end.unwrap());
    let mut data = vec![0u8; 100_000];
    let handle = net.register(connection, &mut data);
    let request = net.receive(connection, &mut data, 0, handle).unwrap();
    until("the descriptor", || net.test(request).map(|done| (done.is_none() && ring.load(0) == 1).then_some(())))
        .unwrap();
    let place = |word: usize| theirs.place(8 * word as u64);
    assert!(session.counts_in(place(receiver::COUNTS)));
    let bytes = [7u8; 64];
    let part = || Part { place: place(receiver::EAGER + 1), local: bytes.as_ptr().cast_mut(), len: 64 };
    // SAFETY: the bytes stay until the request has ended.
    let start = || unsafe { session.start_counted([part()], place(receiver::COUNTS)) };
    let put = until("a counted put", || start().map_err(|error| panic!("{error}"))).unwrap();
    until("its end", || session.test(&put).map(|ended| ended.then_some(())).map_err(|error| panic!("{error}")))
        .unwrap();
    assert_eq!(net.finish(request), Err(REMOTE_ERROR));
    net.deregister(connection, handle);
    net.close_receive(connection);
}

/// The other end says that it has sent a message.
fn a_message_that_never_comes_fails_after_a_full_time_out(net: &Net, session: &Arc<Session>, timeout: Duration) {
    let (connection, ring, end) = dial(net, session, sender::WORDS);
    let (connection, _end) = (connection.unwrap(), end.unwrap());
    let mut data = vec![0u8; 100_000];
    let handle = net.register(connection, &mut data);
    ring.store(sender::SENT, 1);
    let request = net.receive(connection, &mut data, 0, handle).unwrap();
    let begun = Instant::now();
    assert_eq!(net.finish(request), Err(REMOTE_ERROR));
    // It is asked after half a time-out, and has a full one from the answer on.
    assert!(begun.elapsed() >= 3 * timeout / 2, "it may still have come after {:?}", begun.elapsed());
    net.deregister(connection, handle);
    net.close_receive(connection);
}
