//! libfabric rails between two processes, over every provider that a plain machine has.
//!
//! A test whose provider is missing prints SKIPPED. Traffic stays on loopback addresses and in shared memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod faults;
mod order;
mod peer;
mod pieces;
mod progress;
mod surroundings;

use std::time::{Duration, Instant};

use peer::{HEAP, Pair, Setup, TIME_LIMIT, order_message};
use serial_test::serial;
use symrail_core::VariantArray;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::backend::{self, HostPes};
use symrail_transport::device::{DeviceMemory, Export};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::{ProgressModel, TransportKind};
use symrail_transport::grown::GrownKeys;
use symrail_transport::rail::{LocalBuf, NativeAmo, Notify, Piece, PostError, RemoteBuf, WriteOptions};
use symrail_transport::region::Segment;

const TCP: Setup = Setup::new("tcp", "127.0.0.2,127.0.0.3");
const SHM: Setup = Setup::new("shm", "");
const NET: Setup = Setup::new("net", "127.0.0.2");
const UDP: Setup = Setup::new("udp", "127.0.0.2");
const SOCKETS: Setup = Setup::new("sockets", "127.0.0.2");

impl Pair {
    fn local(&self, rail: usize, offset: usize, len: usize) -> LocalBuf {
        assert!(offset + len <= HEAP);
        let key = self.side.registrations[rail].local;
        LocalBuf { ptr: self.side.heap.wrapping_add(offset), len, key }
    }

    fn remote(&self, rail: usize, offset: usize) -> RemoteBuf {
        let RemoteBuf { address, key } = self.remote[rail];
        RemoteBuf { address: address + offset as u64, key }
    }

    /// Posts until the rail accepts it.
    fn post(&mut self, what: &str, mut post: impl FnMut(&mut Pair) -> Result<(), PostError>) {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            match post(self) {
                Ok(()) => return,
                Err(PostError::Again) => self.side.poll(),
                Err(PostError::Failed(fault)) => panic!("{what}: {fault}"),
            }
            assert!(Instant::now() < deadline, "{what}: the rail stays busy");
        }
    }

    fn write(&mut self, rail: usize, from: usize, to: usize, len: usize, options: WriteOptions) {
        let (local, remote) = (self.local(rail, from, len), self.remote(rail, to));
        // SAFETY: the heap stays, and the tests do not access posted parts of it.
        self.post("write", |pair| unsafe { pair.side.rails[rail].write(0, Piece { local, remote }, options) });
    }

    fn send(&mut self, rail: usize, from: usize, len: usize, id: Option<u64>) {
        let local = self.local(rail, from, len);
        // SAFETY: as above.
        self.post("send", |pair| unsafe { pair.side.rails[rail].send(0, local, id) });
    }

    fn wait_done(&mut self, id: u64) {
        self.wait("completion", |side| {
            assert!(side.seen.failed.is_empty() && side.seen.broken.is_empty(), "{:?}", side.seen);
            side.seen.done.contains(&id)
        });
    }
}

fn delivered(id: u64) -> WriteOptions {
    WriteOptions { id: Some(id), notify: Notify::Delivered, immediate: None, more: false }
}

fn injected() -> WriteOptions {
    WriteOptions { id: None, notify: Notify::Transmitted, immediate: None, more: false }
}

/// The guarantees of every provider.
fn works(setup: &Setup) {
    let Some(mut pair) = Pair::start(setup) else { return };
    for rail in 0..pair.side.rails.len() {
        let caps = pair.side.rails[rail].caps().clone();
        println!("{caps:?}");
        assert!(caps.inject >= 8 && caps.max_send >= 4096 && caps.queue_depth >= 16, "{caps:?}");
        let base = rail << 20;
        let seed = 1 + rail as u64 * 1000;

        // A delivered write is in the other process's memory: small, and larger than any eager protocol.
        for (index, len) in [8, 4096, 200_000].into_iter().enumerate() {
            let id = seed + index as u64;
            pair.side.write_heap(base + len - 8, id);
            pair.write(rail, base, base, len, delivered(id));
            pair.wait_done(id);
            let found = pair.ask_number(&format!("peek {}", base + len - 8));
            assert_eq!(found, id, "{len} bytes were not visible on delivery");
        }

        // A read returns those bytes, at both sizes.
        for (index, len) in [8, 200_000].into_iter().enumerate() {
            let id = seed + 10 + index as u64;
            pair.ask(&format!("poke {} {id}", base + 300_000 + len - 8));
            let (local, remote) = (pair.local(rail, base + 600_000, len), pair.remote(rail, base + 300_000));
            // SAFETY: no other code uses that part of the heap.
            pair.post("read", |pair| unsafe { pair.side.rails[rail].read(0, Piece { local, remote }, id, false) });
            pair.wait_done(id);
            assert_eq!(pair.side.read_heap(base + 600_000 + len - 8), id);
        }

        // An injected write copies its bytes, so the source may change at once. The delivery of a later write on an
        // ordered rail shows that it arrived.
        pair.side.write_heap(base, seed + 20);
        pair.write(rail, base, base + 64, 8, injected());
        pair.side.write_heap(base, 0);
        let deadline = Instant::now() + TIME_LIMIT;
        while pair.ask_number(&format!("peek {}", base + 64)) != seed + 20 {
            assert!(Instant::now() < deadline, "an injected write did not arrive");
        }

        // Messages, copied and not, up to the largest.
        let before = pair.ask_number("count messages");
        for (index, len) in [1, caps.inject.min(caps.max_send), caps.max_send].into_iter().enumerate() {
            let id = (index != 1).then_some(seed + 30 + index as u64);
            pair.side.write_heap(base + 512, 0x1122_3344_5566_7700 + len as u64 % 256);
            pair.send(rail, base + 512, len, id);
            if let Some(id) = id {
                pair.wait_done(id);
            }
            let deadline = Instant::now() + TIME_LIMIT;
            while pair.ask_number("count messages") <= before + index as u64 {
                assert!(Instant::now() < deadline, "a message of {len} bytes did not arrive");
            }
            let text = pair.ask(&format!("message {}", before + index as u64));
            assert_eq!(text.len(), 2 * len);
            assert!(text.starts_with(&format!("{:02x}", len % 256)), "{text}");
        }

        // An immediate arrives after its data, whether or not the sender wants a completion.
        assert_eq!(caps.immediate, 8);
        let before = pair.ask_number("count immediates");
        for (index, id) in [Some(seed + 40), None].into_iter().enumerate() {
            let value = 0xfeed_0000_beef_0000 + rail as u64 * 16 + index as u64;
            pair.side.write_heap(base, value);
            let options = WriteOptions { immediate: Some(value), id, ..delivered(0) };
            pair.write(rail, base, base + 128, 8, options);
            if let Some(id) = id {
                pair.wait_done(id);
            }
            let deadline = Instant::now() + TIME_LIMIT;
            while pair.ask_number("count immediates") <= before + index as u64 {
                assert!(Instant::now() < deadline, "an immediate did not arrive");
            }
            let found = pair.ask_number(&format!("immediate {}", before + index as u64));
            assert_eq!(found, value);
            assert_eq!(pair.ask_number(&format!("peek {}", base + 128)), value);
        }
    }
    // Each id completed once, and no fault was reported anywhere.
    let mut done = pair.side.seen.done.clone();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done.len(), pair.side.seen.done.len());
    assert!(pair.side.seen.failed.is_empty() && pair.side.seen.broken.is_empty(), "{:?}", pair.side.seen);
    assert_eq!(pair.ask_number("count broken"), 0);
}

#[test]
#[serial]
fn works_over_two_tcp_rails() {
    works(&TCP);
}

#[test]
#[serial]
fn works_over_shm() {
    works(&SHM);
}

#[test]
#[serial]
fn works_over_two_shm_rails() {
    works(&Setup::new("shm", "shm0,shm1"));
}

#[test]
#[serial]
fn works_over_net() {
    works(&NET);
}

#[test]
#[serial]
fn works_over_udp() {
    works(&UDP);
}

#[test]
#[serial]
fn works_over_sockets() {
    works(&SOCKETS);
}

/// Atomics that the provider supports return the right old values and results.
fn native_atomics(setup: &Setup) {
    let setup = Setup { native_amos: true, ..setup.clone() };
    let Some(mut pair) = Pair::start(&setup) else { return };
    let rail = &pair.side.rails[0];
    let types = [AmoType::I32, AmoType::U32, AmoType::I64, AmoType::U64];
    let all: Vec<_> = types.into_iter().flat_map(|ty| AmoOp::VARIANTS.iter().map(move |&op| (ty, op))).collect();
    let (mut tried, order) = (0, rail.caps().order);
    let supported: Vec<_> = all.iter().filter(|(ty, op)| rail.supports_amo(*ty, *op, true)).copied().collect();
    println!("{} of {} fetching atomics, {order:?}", supported.len(), all.len());
    for (ty, op) in supported {
        let mask = if ty.size() == 4 { u64::from(u32::MAX) } else { u64::MAX };
        let (start, operand, compare) = (0x1234_5678_9abc_def0_u64, 0xffff_ffff_ffff_ff01, 0x1234_5678_9abc_def0);
        let mut expected = start;
        // SAFETY: a word of ours.
        unsafe { symrail_transport::amo::apply((&raw mut expected).cast(), ty, op, operand, compare) };
        for fetching in [true, false] {
            if !pair.side.rails[0].supports_amo(ty, op, fetching) {
                continue;
            }
            tried += 1;
            pair.ask(&format!("poke 64 {start}"));
            pair.side.write_heap(1024, 0);
            let result = fetching.then(|| pair.local(0, 1024, 8));
            let (remote, id) = (pair.remote(0, 64), 100 + tried);
            let amo = NativeAmo { ty, op, operand, compare, result };
            // SAFETY: the destination of the result stays.
            pair.post("amo", |pair| unsafe { pair.side.rails[0].amo(0, remote, amo, id) });
            pair.wait_done(id);
            assert_eq!(pair.ask_number("peek 64"), expected, "{ty:?} {op:?} fetching {fetching}");
            if fetching {
                assert_eq!(pair.side.read_heap(1024) & mask, start & mask, "{ty:?} {op:?}");
            }
        }
    }
    assert!(tried > 0 || setup.provider == "net", "{setup:?} claims atomics nowhere");
}

#[test]
#[serial]
fn native_atomics_over_tcp() {
    native_atomics(&TCP);
}

#[test]
#[serial]
fn native_atomics_over_shm() {
    native_atomics(&SHM);
}

#[test]
#[serial]
fn native_atomics_over_net_are_none() {
    native_atomics(&NET);
}

#[test]
#[serial]
fn native_atomics_over_sockets() {
    native_atomics(&SOCKETS);
}

/// A measurement, not a test: 8-byte writes, each awaited. Both processes spin, on cores 0 and 1.
#[test]
#[serial]
#[ignore = "a measurement: run it alone, in release mode"]
fn measures_put_latency() {
    let provider = std::env::var("PROVIDER").unwrap_or_else(|_| "tcp".into()).leak();
    let nics = std::env::var("NICS").unwrap_or_default().leak();
    let setup = Setup { spin: true, ..Setup::new(provider, nics) };
    let Some(mut pair) = Pair::start(&setup) else { return };
    let (local, remote) = (pair.local(0, 0, 8), pair.remote(0, 0));
    let mut times = Vec::new();
    let (rails, seen) = (&mut pair.side.rails, &mut pair.side.seen);
    let rail = &mut rails[0];
    for id in 0..6000 {
        let start = Instant::now();
        // SAFETY: the heap stays.
        while unsafe { rail.write(0, Piece { local, remote }, delivered(id)) }.is_err() {
            rail.poll(seen);
        }
        while seen.done.is_empty() {
            rail.poll(seen);
        }
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
        seen.done.clear();
    }
    times.drain(..1000);
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    println!(
        "put 8 B delivered: min {:.2}  p50 {:.2}  mean {mean:.2}  p99 {:.2} us",
        times[0], times[2500], times[4950]
    );
}
