//! The table of protocols (`symrail info --protocols`) says what endpoints do: on both sides of each limit, an operation
//! is counted as the form that its row names.
#![allow(clippy::unwrap_used, clippy::panic)]

use symrail_proxy::engine::{Engine, HOST};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, OpHandle, Owner, Signal, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, LaneCounters, NoAgent, Policy, ProtocolRow, Role};
use symrail_transport::env::RailPolicy;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::rail::Order;
use symrail_transport::region::Segment;

/// Bytes of each PE's memory: the data, and behind it a word for signals and AMOs.
const DATA: usize = 512 << 10;
const STRIPE: u64 = 256 << 10;

/// PE 0's proxy and host endpoints, and PE 1.
struct World {
    engines: [Engine; 2],
    host: Endpoint,
    role: Role,
    memory: [Vec<u64>; 2],
    fetched: Vec<u64>,
}

/// What an operation did: the change of the lanes' counters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    writes: u64,
    reads: u64,
    requests: u64,
}

impl World {
    fn new(role: Role, lanes: usize, native_amo: bool, config: FabricConfig) -> World {
        let fabric = Fabric::new(1, FabricConfig { delay: 0, again: 0, queue_depth: 1024, ..config });
        let policy = Policy { rails: RailPolicy::Stripe, stripe_threshold: STRIPE, native_amo, timeout_s: 60 };
        let endpoint = |role, pe| {
            let rails = (0..lanes).map(|lane| fabric.open(&format!("{pe}{role:?}{lane}")).unwrap()).collect();
            Endpoint::new(role, pe, 2, rails, policy).unwrap()
        };
        let mut host = endpoint(Role::Host, 0);
        let other = endpoint(Role::Host, 1);
        let mut engines = [0, 1].map(|pe| Engine::new(endpoint(Role::Proxy, pe)));
        let mut memory = [(); 2].map(|()| vec![7u64; DATA / 8 + 1]);
        let mut keys = Vec::new();
        for (engine, memory) in engines.iter_mut().zip(&mut memory) {
            // SAFETY: the memory is dropped after the engines.
            let segment = unsafe { Segment::new(0, 0, memory.as_mut_ptr().cast(), DATA as u64 + 8) };
            // SAFETY: as above.
            keys.push(unsafe { engine.register(segment) }.unwrap());
        }
        // SAFETY: as above.
        let own = unsafe { Segment::new(0, 0, memory[0].as_mut_ptr().cast(), DATA as u64 + 8) };
        // SAFETY: as above.
        unsafe { host.register(own) }.unwrap();
        let addresses = [
            Addresses { host: host.addresses(), proxy: engines[0].addresses() },
            Addresses { host: other.addresses(), proxy: engines[1].addresses() },
        ];
        let [first, second] = &mut engines;
        for endpoint in [&mut host, first.endpoint(), second.endpoint()] {
            for (pe, address) in (0..).zip(&addresses) {
                endpoint.connect(pe, address).unwrap();
            }
            endpoint.learn(0, &keys).unwrap();
        }
        World { engines, host, role, memory, fetched: vec![0; DATA / 8] }
    }

    fn endpoint(&mut self) -> &mut Endpoint {
        match self.role {
            Role::Host => &mut self.host,
            Role::Proxy => self.engines[0].endpoint(),
        }
    }

    fn counters(&mut self) -> Seen {
        let sum = |all: &[LaneCounters], of: fn(&LaneCounters) -> u64| all.iter().map(of).sum::<u64>();
        let all = self.endpoint().counters();
        Seen { writes: sum(all, |c| c.writes), reads: sum(all, |c| c.reads), requests: sum(all, |c| c.requests) }
    }

    /// The change of the counters while something is done.
    fn change(&mut self, act: impl FnOnce(&mut World)) -> Seen {
        let before = self.counters();
        act(self);
        let now = self.counters();
        Seen {
            writes: now.writes - before.writes,
            reads: now.reads - before.reads,
            requests: now.requests - before.requests,
        }
    }

    fn submit(&mut self, command: Command, tag: Option<u64>) -> OpHandle {
        // SAFETY: the memory stays unchanged, and no other code uses the destinations of gets.
        unsafe { self.endpoint().submit(1, command, Owner { issuer: HOST, tag }) }.unwrap()
    }

    fn put(&self, len: u64) -> Command {
        Command::Put { dest: 0, source: Source::Stable(self.memory[0].as_ptr().cast()), len }
    }

    fn command(&mut self, operation: &str, len: u64) -> Command {
        let amo = |fetch| {
            let (ty, op) = (AmoType::U64, AmoOp::Add);
            Command::Amo { offset: DATA as u64, ty, op, operand: 1, compare: 0, fetch }
        };
        let signal = Signal { offset: DATA as u64, value: 1, op: AmoOp::Add };
        let source = Source::Stable(self.memory[0].as_ptr().cast());
        match operation {
            "put" => self.put(len),
            "get" => Command::Get { source: 0, dest: self.fetched.as_mut_ptr().cast(), len },
            "put_signal" => Command::PutSignal { dest: 0, source, len, signal },
            "amo" => amo(Fetch::No),
            _ => amo(Fetch::Returned),
        }
    }

    fn poll(&mut self) {
        self.host.poll(&mut NoAgent);
        self.engines.iter_mut().for_each(|engine| _ = engine.poll());
    }

    /// Polls until no work is under way here, or none but messages whose acknowledgement only a quiet asks for.
    fn drain(&mut self) {
        (0..200).for_each(|_| self.poll());
    }

    fn quiet(&mut self) {
        for _ in 0..10_000 {
            self.endpoint().start_quiet(HOST);
            if self.endpoint().is_quiet(HOST) {
                break;
            }
            self.poll();
        }
        assert!(self.endpoint().is_quiet(HOST));
        assert!(self.endpoint().take_error(HOST).is_none());
    }

    /// Makes the endpoint predict this completion for the next operation; returns the tag of that.
    fn expect(&mut self, completion: &str) -> Option<u64> {
        match completion {
            // A put without a tag, behind a quiet, is expected to be waited for.
            "signaled" => None,
            // A wait for several operations ended, so the next is not the only one.
            "unsignaled" => {
                for _ in 0..2 {
                    (0..2).for_each(|_| _ = self.submit(self.put(8), None));
                    self.quiet();
                }
                None
            }
            // An earlier one with a tag has not ended.
            _ => {
                let get = self.command("get", 8192);
                self.submit(get, Some(1));
                Some(2)
            }
        }
    }
}

/// Checks one operation against its row.
fn check(world: &mut World, row: &ProtocolRow, completion: &str, len: u64) {
    let context = format!("{row:?} with {len} B, {completion}");
    let tag = world.expect(completion);
    let mut op = 0;
    let command = world.command(row.operation, len);
    let at_once = world.change(|world| op = world.submit(command, tag));
    let mut done = world.change(World::drain);
    done = Seen {
        writes: at_once.writes + done.writes,
        reads: at_once.reads + done.reads,
        requests: at_once.requests + done.requests,
    };
    let flushes = world.change(World::quiet).requests;
    let (moves, reads) = (done.writes.min(1), done.reads.min(1));
    // Has a record; writes; reads; requests at once, and in all; requests of the quiet.
    let seen = (op != 0, moves, reads, at_once.requests, done.requests, flushes);
    let acknowledged = u64::from(completion == "unsignaled" && row.operation != "fetching amo");
    let expected = match row.form {
        "inject" => (false, 1, 0, 0, 0, 1),
        "message, unrecorded" => (false, 0, 0, 1, 1, flushes.min(1)),
        // The quiet asks with a flush, unless the target has answered before.
        "message" => (true, 0, 0, 1, 1, flushes.min(acknowledged)),
        "agent read" => (true, 0, 0, 1, 1, 0),
        "write" => (true, 1, 0, 0, 0, 0),
        "write, transmit-complete" => (true, 1, 0, 0, 0, 1),
        "read" => (true, 0, 1, 0, 0, 0),
        "write + message" | "write, transmit-complete + message" => (true, 1, 0, 1, 1, flushes.min(acknowledged)),
        "write, then signal" => (true, 1, 0, 0, done.requests.min(1), 0),
        "write + native amo" => (true, 1, 0, 0, 0, 0),
        "native amo" => (true, 0, 0, 0, 0, 0),
        other => panic!("{other}"),
    };
    assert_eq!(seen, expected, "{context}");
}

#[test]
fn protocols_table_agrees_with_what_endpoints_do() {
    let plain = FabricConfig::default();
    let no_order = Order { write_after_write: false, send_after_write: false, ..plain.order };
    let nic = FabricConfig { software: false, pieces: 1, polls_post: true, ..plain };
    let mut forms = std::collections::BTreeSet::new();
    for (native, lanes, config) in [
        (false, 1, plain),
        (false, 2, plain),
        (false, 1, FabricConfig { order: no_order, ..plain }),
        (false, 1, FabricConfig { inject: 2000, ..plain }),
        (false, 1, nic),
        (false, 2, nic),
        (true, 1, FabricConfig { atomics: true, ..nic }),
        (true, 1, FabricConfig { atomics: true, order: no_order, ..nic }),
    ] {
        for role in [Role::Host, Role::Proxy] {
            let rows = World::new(role, lanes, native, config).endpoint().protocols();
            for row in rows.iter().filter(|row| row.order.starts_with("no fence") || row.order == "any") {
                for completion in ["signaled", "batched", "unsignaled"] {
                    let included = row.completion == "any" || row.completion.split(" | ").any(|one| one == completion);
                    if !included || row.operation == "staged fragment" {
                        continue;
                    }
                    forms.insert(row.form);
                    for len in [row.from, row.to.unwrap_or(DATA as u64)] {
                        let mut world = World::new(role, lanes, native, config);
                        check(&mut world, row, completion, len);
                    }
                }
            }
        }
    }
    assert_eq!(forms.len(), 12, "the worlds show all forms: {forms:?}");
}

#[test]
fn protocols_behind_a_fence_are_posted_or_deferred_as_the_table_says() {
    let plain = FabricConfig::default();
    let no_order = Order { write_after_write: false, send_after_write: false, ..plain.order };
    let mut deferred = 0;
    for config in [plain, FabricConfig { order: no_order, ..plain }, FabricConfig { software: false, ..plain }] {
        for role in [Role::Host, Role::Proxy] {
            for row in World::new(role, 1, false, config).endpoint().protocols() {
                let has = |all: &str, one: &str| all == "any" || all.split(" | ").any(|name| name == one);
                if !has(&row.order, "fence, write") || !has(&row.completion, "batched") || row.posting == "coalesced" {
                    continue;
                }
                if row.operation == "staged fragment" || row.operation == "get" {
                    continue; // a fence orders no gets
                }
                for len in [row.from, row.to.unwrap_or(DATA as u64)] {
                    let mut world = World::new(role, 1, false, config);
                    world.submit(world.put(8192), Some(1));
                    world.endpoint().fence();
                    let command = world.command(row.operation, len);
                    let Seen { writes, requests, .. } = world.change(|world| _ = world.submit(command, Some(2)));
                    let expected = match row.form {
                        "deferred" => (0, 0),
                        "message" => (0, 1),
                        "write" => (1, 0),
                        _ => (1, requests.min(1)),
                    };
                    assert_eq!((writes.min(1), requests), expected, "{row:?} with {len} B");
                    deferred += usize::from(row.form == "deferred");
                    world.quiet();
                }
            }
        }
    }
    assert!(deferred > 0);
}

#[test]
fn protocols_table_has_each_size_once() {
    let world = |role| World::new(role, 1, false, FabricConfig::default());
    for role in [Role::Host, Role::Proxy] {
        let rows = world(role).endpoint().protocols();
        assert!(!rows.is_empty());
        // Words and fragments have one size.
        let sized: Vec<&ProtocolRow> = rows.iter().filter(|row| row.to != Some(row.from)).collect();
        for (row, next) in sized.iter().zip(&sized[1..]) {
            let follows = row.to.map_or(1, |to| to + 1);
            assert_eq!(next.from, follows, "{row:?}, then {next:?}");
        }
    }
}
