//! Order of arrivals, and the meaning of completions.

use super::*;

/// Puts, each with a message about it, on one rail: no message may overtake its put where the rail guarantees the
/// order. Every eighth put has `long` bytes.
fn keeps_order(setup: &Setup, rounds: u64, long: usize) {
    const SLOTS: usize = 32;
    let Some(mut pair) = Pair::start(setup) else { return };
    let order = pair.side.rails[0].caps().order;
    assert!(order.write_after_write && order.send_after_write && order.send_after_send, "{order:?}");
    for round in 1..=rounds {
        // A put's last word carries the value.
        let len = if round % 8 == 0 { long } else { 8 };
        let slot = round as usize % SLOTS;
        let (from, last) = (slot * 40_960, slot * 40_960 + len - 8);
        // The slot's earlier put and message must have left.
        pair.wait("earlier put", |side| side.seen.done.len() as u64 + 2 * SLOTS as u64 > 2 * round);
        pair.side.write_heap(last, round);
        let options = WriteOptions { notify: Notify::Transmitted, ..delivered(round) };
        pair.write(0, from, from, len, options);
        let at = (2 << 20) + slot * 64;
        for (index, bytes) in order_message(last as u64, round).chunks(8).enumerate() {
            pair.side.write_heap(at + 8 * index, u64::from_ne_bytes(bytes.try_into().unwrap()));
        }
        pair.send(0, at, 24, Some(rounds + round));
    }
    let deadline = Instant::now() + TIME_LIMIT;
    while pair.ask_number("count ordered") < rounds {
        assert!(Instant::now() < deadline, "{} of {rounds} messages", pair.ask_number("count ordered"));
    }
    assert_eq!(pair.ask_number("count early"), 0, "messages overtook writes");
    assert!(pair.side.seen.failed.is_empty() && pair.side.seen.broken.is_empty(), "{:?}", pair.side.seen);
}

/// Longer than any eager protocol.
const LONG: usize = 40_000;

#[test]
#[serial]
fn keeps_order_over_tcp() {
    keeps_order(&Setup::new("tcp", "127.0.0.2"), 10_000, LONG);
}

#[test]
#[serial]
fn keeps_order_over_shm() {
    keeps_order(&SHM, 10_000, LONG);
}

#[test]
#[serial]
fn keeps_order_over_net() {
    keeps_order(&NET, 10_000, LONG);
}

#[test]
#[serial]
fn keeps_order_over_sockets() {
    // The provider waits for a whole header before it reads any of it. When the receive buffer of a connection is full,
    // TCP does not open the window for the rest of that header, and both wait without end (3 of 600 runs with `LONG`):
    // what is under way at once has to fit into the receive buffer, 128 KiB.
    keeps_order(&SOCKETS, 300, 4_000);
}

/// A write is not delivered before the target's provider has handled it, though it may be transmitted.
fn delivery_waits_for_the_target(setup: &Setup) {
    let Some(mut pair) = Pair::start(setup) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    pair.ask("pause");
    // The buffer is free again without the target's help, so delivery does not wait for that.
    pair.write(0, 64, 64, 8, WriteOptions { notify: Notify::Transmitted, ..delivered(10) });
    pair.wait_done(10);
    pair.write(0, 0, 0, 8, delivered(2));
    // No test can show that an event never happens, but a completion that does not wait needs only microseconds.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        pair.side.poll();
        assert!(!pair.side.seen.done.contains(&2), "delivered to a target that does not poll");
    }
    pair.ask("resume");
    pair.wait_done(2);
}

#[test]
#[serial]
fn delivery_waits_for_the_target_over_tcp() {
    delivery_waits_for_the_target(&TCP);
}

#[test]
#[serial]
fn delivery_waits_for_the_target_over_net() {
    delivery_waits_for_the_target(&NET);
}

#[test]
#[serial]
fn delivery_waits_for_the_target_over_shm() {
    delivery_waits_for_the_target(&SHM);
}
