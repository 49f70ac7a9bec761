//! Sleep and automatic progress.

use super::*;

/// An arrival wakes a proxy that sleeps on its descriptor.
#[test]
#[serial]
fn sleeping_on_the_descriptor_is_ended_by_an_arrival() {
    let Some(mut pair) = Pair::start(&TCP) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    let fd = pair.side.rails[0].wait_fd().expect("tcp has a descriptor");
    // A read's answer is under way or has arrived. The test sleeps only when the rail agrees, and only for a bounded
    // time.
    for id in 2..50 {
        let (local, remote) = (pair.local(0, 64, 8), pair.remote(0, 0));
        // SAFETY: no other code uses that part of the heap.
        pair.post("read", |pair| unsafe { pair.side.rails[0].read(0, Piece { local, remote }, id, false) });
        let start = Instant::now();
        while !pair.side.seen.done.contains(&id) {
            assert!(start.elapsed() < TIME_LIMIT, "never woken");
            if pair.side.rails[0].arm() {
                let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one live entry.
                let ready = unsafe { libc::poll(&raw mut poll, 1, 60_000) };
                assert_eq!(ready, 1, "slept through an arrival");
            }
            pair.side.rails[0].poll(&mut pair.side.seen);
        }
    }
}

/// Automatic progress is used where a sleeping target progresses, and refused where the provider only claims it.
#[test]
#[serial]
fn automatic_progress_is_probed() {
    // The work of tcp;ofi_rxm's thread depends on the version and the mode: with atomics it also handles data, without
    // them (1.17) only connections.
    let tcp = Setup { nics: "127.0.0.2", ..TCP };
    let with_atomics = Setup { native_amos: true, ..tcp.clone() };
    for (setup, expected) in [(with_atomics, Some(true)), (tcp, None), (NET, Some(false))] {
        let setup = Setup { progress: ProgressModel::Automatic, ..setup };
        let Some(mut pair) = Pair::start(&setup) else { continue };
        let progress = pair.side.rails[0].caps().progress.clone();
        println!("{}: {progress}", setup.provider);
        let automatic = progress.starts_with("automatic");
        assert!(expected.is_none_or(|expected| expected == automatic), "{setup:?}: {progress}");
        pair.write(0, 0, 0, 8, delivered(1));
        pair.wait_done(1);
        if automatic {
            pair.ask("pause");
            pair.write(0, 0, 0, 8, delivered(2));
            pair.wait_done(2);
        }
    }
}
