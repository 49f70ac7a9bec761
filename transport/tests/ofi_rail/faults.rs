//! Wrong keys, killed peers, and errors of the caller.

use super::*;

/// A write with a key that the target never gave fails.
fn bad_key_fails(setup: &Setup) {
    let Some(mut pair) = Pair::start(setup) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    let (local, mut remote) = (pair.local(0, 0, 8), pair.remote(0, 0));
    remote.key = 0xbad;
    // SAFETY: the heap stays; the wrong key is the subject of the test.
    pair.post("write", |pair| unsafe { pair.side.rails[0].write(0, Piece { local, remote }, delivered(2)) });
    pair.wait("failure", |side| !side.seen.failed.is_empty());
    assert_eq!(pair.side.seen.failed[0].0, 2);
    let fault = &pair.side.seen.failed[0].1;
    println!("{fault}");
    assert!(fault.code > 0 && !fault.text.is_empty(), "{fault}");
    assert!(!pair.side.seen.done.contains(&2));
    works_again(&mut pair, 3);
}

/// After a failure the rail still works: tcp loses its connection to a bad key and makes a new one.
fn works_again(pair: &mut Pair, first_id: u64) {
    let deadline = Instant::now() + TIME_LIMIT;
    for id in first_id.. {
        pair.side.seen.failed.clear();
        pair.side.write_heap(0, id);
        pair.write(0, 0, 0, 8, delivered(id));
        pair.wait("an end", |side| side.seen.done.contains(&id) || !side.seen.failed.is_empty());
        if pair.side.seen.done.contains(&id) {
            assert_eq!(pair.ask_number("peek 0"), id);
            return;
        }
        assert!(Instant::now() < deadline, "the rail never worked again: {:?}", pair.side.seen);
    }
}

#[test]
#[serial]
fn bad_key_fails_over_tcp() {
    bad_key_fails(&TCP);
}

#[test]
#[serial]
fn bad_key_fails_over_net() {
    bad_key_fails(&NET);
}

#[test]
#[serial]
fn bad_key_fails_over_sockets() {
    bad_key_fails(&SOCKETS);
}

/// A killed peer causes a fault within bounded time, and the rail then still releases everything.
fn killed_peer_is_a_fault(setup: &Setup) {
    let Some(mut pair) = Pair::start(setup) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    pair.kill();
    let start = Instant::now();
    let mut next = 2;
    let mut refused = None;
    while pair.side.seen.failed.is_empty() && pair.side.seen.broken.is_empty() && refused.is_none() {
        assert!(start.elapsed() < TIME_LIMIT, "no fault; seen {:?}", pair.side.seen);
        let (local, remote) = (pair.local(0, 0, 8), pair.remote(0, 0));
        if next < 10 {
            // SAFETY: the heap stays.
            match unsafe { pair.side.rails[0].write(0, Piece { local, remote }, delivered(next)) } {
                Ok(()) => next += 1,
                Err(PostError::Again) => {}
                Err(PostError::Failed(fault)) => refused = Some(fault),
            }
        }
        pair.side.poll();
    }
    println!("after {:?}: refused {refused:?}, {:?}", start.elapsed(), pair.side.seen);
    assert_eq!(pair.side.seen.done, [1], "nothing is delivered to a dead process");
}

#[test]
#[serial]
fn killed_peer_is_a_fault_over_tcp() {
    killed_peer_is_a_fault(&TCP);
}

#[test]
#[serial]
fn killed_peer_is_a_fault_over_net() {
    killed_peer_is_a_fault(&NET);
}

#[test]
#[serial]
fn killed_peer_is_a_fault_over_sockets() {
    killed_peer_is_a_fault(&SOCKETS);
}

/// An invalid destination, size or address causes a fault or an error, not a crash.
#[test]
#[serial]
fn mistakes_are_values() {
    let Some(mut pair) = Pair::start(&TCP) else { return };
    let (local, remote) = (pair.local(0, 0, 4096), pair.remote(0, 0));
    let rail = &mut pair.side.rails[0];
    let failed = |result: Result<(), PostError>, text: &str| match result {
        Err(PostError::Failed(fault)) => assert!(fault.text.contains(text), "{fault}"),
        other => panic!("{other:?}"),
    };
    // SAFETY: no work request is posted.
    unsafe {
        failed(rail.write(9, Piece { local, remote }, delivered(1)), "destination 9 is not connected");
        failed(rail.read(u32::MAX, Piece { local, remote }, 1, false), "is not connected");
        failed(rail.write(0, Piece { local, remote }, injected()), "4096 bytes");
        failed(rail.send(0, LocalBuf { len: HEAP, ..local }, Some(1)), "takes at most");
    }
    let own = rail.address();
    for (address, text) in [
        (&b""[..], "not one of a libfabric rail"),
        (&own[..1], "not one of a libfabric rail"),
        (&own[..5], "ends after 5 bytes"),
        (&[&own[..1], b"\x03shm-name"].concat(), "provider shm"),
    ] {
        let error = rail.connect(1, address, 0).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let error = rail.connect(u32::MAX, &own, 0).unwrap_err().to_string();
    assert!(error.contains("destination 4294967295"), "{error}");
    // SAFETY: the heap stays.
    let error = unsafe { rail.register(pair.side.heap, HEAP, 7) }.unwrap_err().to_string();
    assert!(error.contains("registered already"), "{error}");
    let export = Export::Gpu { ordinal: 0, dmabuf: None };
    // SAFETY: nothing is registered.
    let error = unsafe { rail.register_device(DeviceMemory { base: pair.side.heap, len: HEAP, export }, 8) };
    let error = error.unwrap_err().to_string();
    assert!(error.contains("(tcp;ofi_rxm)") && error.contains("SYMRAIL_GPUDIRECT=off"), "{error}");
    rail.deregister(7);
    rail.deregister(7);
}
