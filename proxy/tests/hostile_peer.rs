//! Requests that no regular peer sends: the target agent refuses them, answers their sender, and touches only the heap.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use symrail_proxy::Engine;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::error::Fault;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::rail::{LocalBuf, LocalKey, Notify, Piece, Rail, RailSink, RemoteBuf, WriteOptions};
use symrail_transport::region::Segment;
use symrail_transport::wire::{Keepalive, Outcome, Place, Refusal, Reply, Request, RequestKind, Token};

/// Size of the heap, its start, and the size of each of its neighbours in memory.
const HEAP: usize = 4096;
const START: u64 = 1 << 20;
const END: u64 = START + HEAP as u64;
const BESIDE: usize = 4096;
const FILL: u64 = 0x5eed_5eed_5eed_5eed;

struct World {
    engine: Engine,
    /// PE 1's rail, driven by the test.
    peer: Box<dyn Rail>,
    /// The token that the victim requires, and the token that it sends.
    token: Token,
    ours: Token,
    sequence: u32,
    memory: Vec<u64>,
}

/// Records messages.
#[derive(Default)]
struct Inbox(Vec<Vec<u8>>);

impl RailSink for Inbox {
    fn done(&mut self, _id: u64) {}
    fn failed(&mut self, id: u64, fault: Fault) {
        panic!("{id}: {fault}");
    }
    fn message(&mut self, bytes: &[u8]) {
        self.0.push(bytes.to_vec());
    }
    fn immediate(&mut self, immediate: u64) {
        panic!("{immediate}");
    }
    fn broken(&mut self, fault: Fault) {
        panic!("{fault}");
    }
}

impl World {
    fn new() -> World {
        let fabric = Fabric::new(1, FabricConfig { delay: 0, again: 0, inject: 4096, ..FabricConfig::default() });
        let [rail, mut peer] = ["victim", "peer"].map(|name| fabric.open(name).unwrap());
        let endpoint = Endpoint::new(Role::Proxy, 0, 2, vec![rail], Policy::new(&Settings::default(), false)).unwrap();
        let mut engine = Engine::new(endpoint);
        let ours = Token::random().unwrap();
        let addresses = [engine.addresses(), vec![ours.with_address(peer.address())]];
        let (victim, token) = Token::split(0, &addresses[0][0]).unwrap();
        peer.connect(0, victim, 1).unwrap();
        for (pe, proxy) in (0..).zip(addresses) {
            engine.endpoint().connect(pe, &Addresses { host: proxy.clone(), proxy }).unwrap();
        }
        let mut memory = vec![FILL; (HEAP + 2 * BESIDE) / 8];
        let base = memory.as_mut_ptr().cast::<u8>().wrapping_add(BESIDE);
        // SAFETY: the memory is dropped after the engine.
        unsafe { engine.register(Segment::new(0, START, base, HEAP as u64)) }.unwrap();
        World { engine, peer, token, ours, sequence: 0, memory }
    }

    /// Sends a message behind its token; returns the answers without their tokens.
    fn send(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        let answers = self.send_bare(&[&self.token.bytes(), message].concat());
        answers.iter().map(|answer| self.ours.open(answer).expect("an answer is for who asked").to_vec()).collect()
    }

    fn send_bare(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        let mut bytes = message.to_vec();
        let local = LocalBuf { ptr: bytes.as_mut_ptr(), len: bytes.len(), key: LocalKey::default() };
        // SAFETY: without an id the bytes are copied during the call.
        assert!(unsafe { self.peer.send(0, local, None) }.is_ok());
        let mut inbox = Inbox::default();
        // An answer that can wait is sent after some idle rounds.
        for _ in 0..200 {
            self.engine.poll();
            self.peer.poll(&mut inbox);
        }
        inbox.0
    }

    /// Sends a request in its turn; returns the outcomes that arrive with its acknowledgement.
    fn ask(&mut self, request: Request, payload: &[u8]) -> Vec<Outcome> {
        self.sequence += 1;
        let request = Request { sequence: self.sequence, ..request };
        let answers = self.send(&encoded(request, payload));
        let mut outcomes = Vec::new();
        let mut applied = 0;
        for answer in &answers {
            let (reply, reported) = Reply::decode(answer).unwrap();
            applied = reply.applied;
            outcomes.extend(reported.map(|(outcome, _)| outcome));
        }
        assert_eq!(applied, self.sequence, "it is acknowledged, so that whoever sent it does not wait");
        outcomes
    }

    fn changed(&self) -> Vec<usize> {
        (0..self.memory.len()).filter(|&i| self.memory[i] != FILL).map(|i| 8 * i).collect()
    }
}

fn encoded(request: Request, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Request { payload: payload.len() as u16, ..request }.encode().as_flattened().to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn request(kind: RequestKind, offset: u64, second: u64) -> Request {
    Request {
        kind,
        op: AmoOp::Add,
        ty: AmoType::U64,
        origin: 0,
        fetch: false,
        urgent: false,
        lane: 0,
        source: 1,
        sequence: 0,
        payload: 0,
        acknowledged: 0,
        offset,
        operand: 1,
        second,
        id: 77,
    }
}

#[test]
fn what_is_not_inside_of_the_heap_is_refused() {
    let mut world = World::new();
    let outside = [0, START - 8, START - 1, END - 7, END - 4, END, END + 8, u64::MAX - 7, u64::MAX, 1 << 62];
    let payload = [0xab; 64];
    for fetch in [false, true] {
        for offset in outside {
            let amo = Request { fetch, ..request(RequestKind::Amo, offset, 0) };
            let put = Request { fetch, ..request(RequestKind::Put, offset, 0) };
            let data = Request { fetch, ..request(RequestKind::PutSignal, offset, START) };
            let signal = Request { fetch, ..request(RequestKind::PutSignal, START, offset) };
            for (request, payload) in [(amo, &payload[..0]), (put, &payload), (data, &payload), (signal, &payload)] {
                let outcomes = world.ask(request, payload);
                let reported: Vec<_> = outcomes.iter().map(|outcome| (outcome.id, outcome.refusal)).collect();
                assert_eq!(reported, [(77, Refusal::OutOfSegment)], "{request:?}");
            }
        }
    }
    // The range begins inside and ends outside.
    let put = world.ask(request(RequestKind::Put, END - 32, 0), &payload);
    assert_eq!(put[0].refusal, Refusal::OutOfSegment);
    assert_eq!(world.changed(), [0; 0]);
    assert_eq!(world.engine.agent_counts(), (81, 81));
    // The target still serves.
    assert_eq!(world.ask(request(RequestKind::Put, END - 64, 0), &payload), []);
    let at = BESIDE + HEAP - 64;
    assert_eq!(world.changed(), (at..at + 64).step_by(8).collect::<Vec<_>>());
}

#[test]
fn what_no_processor_does_is_refused() {
    let mut world = World::new();
    for shift in 1..8 {
        let amo = world.ask(request(RequestKind::Amo, START + shift, 0), &[]);
        let signal = world.ask(request(RequestKind::PutSignal, START, START + 64 + shift), &[1; 8]);
        let half = Request { ty: AmoType::U32, ..request(RequestKind::Amo, START + shift, 0) };
        let half = if shift == 4 { Vec::new() } else { world.ask(half, &[]) };
        let all = [amo, signal, half].concat();
        assert_eq!(all.len(), if shift == 4 { 2 } else { 3 });
        assert!(all.iter().all(|outcome| outcome.refusal == Refusal::Misaligned), "{all:?}");
    }
    for (op, ty) in [(AmoOp::Xor, AmoType::F64), (AmoOp::And, AmoType::F32), (AmoOp::CompareSwap, AmoType::F64)] {
        let outcomes = world.ask(Request { op, ty, ..request(RequestKind::Amo, START, 0) }, &[]);
        assert_eq!(outcomes[0].refusal, Refusal::Undefined, "{op:?} on {ty:?}");
    }
    for (offset, operand) in
        [(START - 8, 16), (END - 8, 9), (START, 513), (START, 1 << 20), (START, u64::MAX), (u64::MAX, 8)]
    {
        let outcomes = world.ask(Request { operand, ..request(RequestKind::Get, offset, 0) }, &[]);
        assert!(matches!(outcomes[..], [Outcome { refusal, len: 0, .. }] if refusal != Refusal::None), "{outcomes:?}");
    }
    // Requests for staging are refused where nothing is staged.
    let place = Place { offset: START, len: 8 }.encode();
    for kind in [RequestKind::Pull, RequestKind::PullSignal, RequestKind::Push] {
        assert_eq!(world.ask(request(kind, START, START), &place)[0].refusal, Refusal::Undefined);
    }
    assert_eq!(world.changed(), [0; 0]);
}

#[test]
fn what_makes_no_sense_is_dropped() {
    let mut world = World::new();
    let good = encoded(Request { sequence: 1, ..request(RequestKind::Amo, START, 0) }, &[]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let put = encoded(Request { sequence: 1, ..request(RequestKind::Put, START, 0) }, &[7; 64]);
    let malformed = [
        good[..47].to_vec(),
        put[..Request::SIZE + 56].to_vec(),
        with(0, 0),
        with(0, 0x7f),
        with(1, 7),
        with(2, 64),
        with(3, 8),
        with(4, 2),
        with(7, 0xff),
        with(8, 2),
        with(13, 0xff),
        vec![Reply::TAG; 16],
        vec![0; 200],
    ];
    for bytes in &malformed {
        assert!(world.send(bytes).is_empty(), "{bytes:?}");
        assert_eq!(world.changed(), [0; 0], "{bytes:?}");
    }
    assert_eq!(world.send(&good).len(), 1, "the connection is as good as before");
    assert_eq!(world.changed(), [BESIDE]);
    assert_eq!(world.send(&good).len(), 1, "a message that comes twice is answered twice");
    assert_eq!(world.memory[BESIDE / 8], FILL + 1, "and applied once");
}

#[test]
fn what_does_not_have_the_token_is_dropped_and_counted() {
    let mut world = World::new();
    let (amo, put) = (request(RequestKind::Amo, START, 0), request(RequestKind::Put, START, 0));
    let first = |request| Request { sequence: 1, urgent: true, ..request };
    let reply = Reply { source: 1, lane: 0, after: 0, applied: 1, generation: 1, outcomes: 0 };
    let introduction = Request { origin: 2, ..request(RequestKind::Introduce, 0, 0) };
    let bodies = [
        encoded(first(amo), &[]),
        encoded(first(put), &[7; 64]),
        encoded(first(introduction), &world.ours.with_address(world.peer.address())),
        reply.encode().to_vec(),
        Keepalive { origin: 0, source: 1 }.encode().to_vec(),
        Vec::new(),
    ];
    // Tokens: none, zero, the victim's outgoing one, and all that differ from the right one by one bit.
    let token = u64::from_le_bytes(world.token.bytes());
    let near = (0..64).map(|bit| token ^ 1 << bit);
    let forged: Vec<u64> = [0, u64::MAX, u64::from_le_bytes(world.ours.bytes())].into_iter().chain(near).collect();
    let mut sent = 0;
    for body in &bodies {
        let tokens = forged.iter().map(|token| [&token.to_le_bytes()[..], body].concat());
        for message in std::iter::once(body.clone()).chain(tokens) {
            assert!(world.send_bare(&message).is_empty(), "{message:?}");
            sent += 1;
        }
    }
    // Messages that are too short for a token.
    for len in 0..Token::SIZE {
        assert!(world.send_bare(&world.token.bytes()[..len]).is_empty());
        sent += 1;
    }
    assert_eq!((world.engine.endpoint().counters()[0].unauthenticated, world.engine.agent_counts()), (sent, (0, 0)));
    assert_eq!(world.changed(), [0; 0]);
    assert_eq!(world.ask(amo, &[]), [], "who has it is served as if nothing had been");
    assert_eq!(world.changed(), [BESIDE]);
}

#[test]
fn what_is_counted_must_have_the_token() {
    let mut world = World::new();
    let connection_info = world.engine.endpoint().regions().connection_info(0);
    let remote = RemoteBuf { address: 0, key: u64::from_le_bytes(connection_info[8..16].try_into().unwrap()) };
    let word = (START / 8) as u32;
    let mut arrive = |immediate| {
        let local = LocalBuf { ptr: [0u8; 8].as_mut_ptr(), len: 0, key: LocalKey::default() };
        let options = WriteOptions { id: None, notify: Notify::Transmitted, immediate: Some(immediate), more: false };
        // SAFETY: the length is 0, so no byte is read or written.
        assert!(unsafe { world.peer.write(0, Piece { local, remote }, options) }.is_ok());
        for _ in 0..200 {
            world.engine.poll();
        }
        (world.engine.endpoint().counters()[0].unauthenticated, world.engine.agent_counts().0)
    };
    let right = world.token.immediate(word);
    for bit in 32..64u64 {
        assert_eq!(arrive(right ^ 1 << bit), (bit - 31, 0));
    }
    assert_eq!(arrive(word.into()), (33, 0));
    assert_eq!(arrive(right), (33, 1));
    assert_eq!(world.memory[BESIDE / 8], FILL + 1);
}
