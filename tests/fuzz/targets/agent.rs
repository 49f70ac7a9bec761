//! Requests from a faulty peer or an unauthenticated one, with any fields, well formed or not, against an engine and
//! its target agent. They may do anything to the heap, and nothing to other memory.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use symrail_heap::guarded::{GuardedMemory, GuardedCopyEngine};
use symrail_proxy::Engine;
use symrail_proxy::stage::{STAGING_BUFFER_BYTES, STAGING_BUFFER_OFFSET};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::rail::{LocalBuf, LocalKey, Rail};
use symrail_transport::region::Segment;
use symrail_transport::wire::{Place, Request, RequestKind, Token};

/// The heap's offset, so that there is memory before it, and its size.
const START: u64 = 1 << 16;
const HEAP: usize = 1 << 14;
/// PEs of the job; the attacked one is the first.
const N_PES: u32 = 2;
/// Rounds after each message.
const ROUNDS: usize = 4;
const KINDS: [RequestKind; 15] = [
    RequestKind::Amo,
    RequestKind::PutSignal,
    RequestKind::Flush,
    RequestKind::Put,
    RequestKind::Pull,
    RequestKind::PullSignal,
    RequestKind::Push,
    RequestKind::Move,
    RequestKind::Broken,
    RequestKind::Offer,
    RequestKind::Accept,
    RequestKind::Introduce,
    RequestKind::Ping,
    RequestKind::Pong,
    RequestKind::Get,
];

/// An offset near a boundary of a check, or any.
fn offset(u: &mut Unstructured<'_>) -> Result<u64> {
    let near = [0, START, START + HEAP as u64, STAGING_BUFFER_OFFSET, STAGING_BUFFER_OFFSET + STAGING_BUFFER_BYTES as u64];
    Ok(match u.int_in_range(0..=near.len())? {
        at if at < near.len() => near[at].wrapping_add_signed(i64::from(u.arbitrary::<i16>()? >> 4)),
        _ => u.arbitrary()?,
    })
}

/// A message: arbitrary bytes, or valid requests with arbitrary fields.
fn message(u: &mut Unstructured<'_>, sequence: &mut [u32; 2]) -> Result<Vec<u8>> {
    let mut message = Vec::new();
    if u.ratio(1, 8)? {
        let length = u.int_in_range(0..=200)?;
        message.extend_from_slice(u.bytes(length)?);
        return Ok(message);
    }
    for _ in 0..u.int_in_range(1..=4)? {
        let (kind, from_host) = (*u.choose(&KINDS)?, bool::arbitrary(u)?);
        let length = u.int_in_range(0..=100)?;
        let payload = match kind {
            RequestKind::Pull | RequestKind::PullSignal | RequestKind::Push if u.ratio(7, 8)? => {
                Place { offset: offset(u)?, len: offset(u)? }.encode().to_vec()
            }
            _ => u.bytes(length)?.to_vec(),
        };
        let expected = &mut sequence[usize::from(from_host)];
        *expected = if u.ratio(15, 16)? { expected.wrapping_add(1) } else { u.arbitrary()? };
        let request = Request {
            kind,
            op: AmoOp::from_repr(u.int_in_range(0..=6)?).unwrap_or(AmoOp::Add),
            ty: AmoType::from_repr(u.int_in_range(0..=5)?).unwrap_or(AmoType::U64),
            origin: u8::from(from_host),
            fetch: u.arbitrary()?,
            urgent: u.arbitrary()?,
            lane: if u.ratio(15, 16)? { 0 } else { u.arbitrary()? },
            source: if u.ratio(15, 16)? { 1 } else { u.arbitrary()? },
            sequence: *expected,
            acknowledged: u.arbitrary()?,
            payload: payload.len() as u16,
            offset: offset(u)?,
            operand: u.arbitrary()?,
            second: offset(u)?,
            id: u.arbitrary()?,
        };
        message.extend_from_slice(request.encode().as_flattened());
        message.extend_from_slice(&payload);
        message.resize(message.len().next_multiple_of(8), 0);
    }
    Ok(message)
}

struct Victim {
    engine: Engine,
    stranger: Box<dyn Rail>,
    token: Token,
    // Dropped after the engine.
    _heap: Box<[u64]>,
}

impl Victim {
    /// PE 0, and a rail through which any peer can send to it.
    fn new(staged: bool) -> Victim {
        let config = FabricConfig { delay: 0, again: 0, inject: 4096, ..FabricConfig::default() };
        let fabric = Fabric::new(1, config);
        let [rail, mut stranger] = ["victim", "stranger"].map(|name| fabric.open(name).expect("a rail"));
        let policy = Policy::new(&Settings::default(), false);
        let endpoint = Endpoint::new(Role::Proxy, 0, N_PES, vec![rail], policy).expect("an endpoint");
        let mut engine = Engine::new(endpoint);
        let addresses = [engine.addresses(), vec![Token::default().with_address(stranger.address())]];
        let (address, token) = Token::split(0, &addresses[0][0]).expect("an address with a token");
        stranger.connect(0, address, 0).expect("the stranger's connection");
        for (pe, proxy) in (0..).zip(addresses) {
            let addresses = Addresses { host: proxy.clone(), proxy };
            engine.endpoint().connect(pe, &addresses).expect("a connection");
        }
        let mut heap = vec![0u64; HEAP / 8].into_boxed_slice();
        // SAFETY: the memory outlives the segment's users, and no references into it exist meanwhile.
        let segment = |base| unsafe { Segment::new(0, START, base, HEAP as u64) };
        if staged {
            let memory = GuardedMemory::new(HEAP).expect("memory that nobody can touch");
            let copy_engine = GuardedCopyEngine::new(Arc::clone(&memory), STAGING_BUFFER_BYTES, 1).expect("a copy_engine");
            let connection_info = engine.stage(Box::new(copy_engine)).expect("a window");
            // SAFETY: the copy engine keeps the memory.
            unsafe { engine.add_staged_segment(segment(memory.base().as_ptr())) };
            engine.learn_window(&[connection_info.clone(), connection_info]).expect("connection infos");
        } else {
            // SAFETY: the heap is dropped after the engine.
            let connection_info = unsafe { engine.register(segment(heap.as_mut_ptr().cast())) }.expect("a segment");
            engine.endpoint().learn(0, &[connection_info.clone(), connection_info]).expect("connection infos");
        }
        Victim { engine, stranger, token, _heap: heap }
    }
}

fn attack(u: &mut Unstructured<'_>) -> Result<()> {
    let mut victim = Victim::new(u.arbitrary()?);
    let mut sequence = [0; 2];
    while !u.is_empty() {
        // A peer has the token; another sender may use anything in its place.
        let token = if u.ratio(15, 16)? { victim.token.bytes() } else { u.arbitrary()? };
        let mut message = [&token[..], &message(u, &mut sequence)?].concat();
        let local = LocalBuf { ptr: message.as_mut_ptr(), len: message.len(), key: LocalKey::default() };
        // SAFETY: without an id the bytes are copied during the call. A message that the rail refuses is not sent.
        let _ = unsafe { victim.stranger.send(0, local, None) };
        for _ in 0..ROUNDS {
            victim.engine.poll();
        }
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    // If the bytes run out, the attack ends.
    let _ = attack(&mut Unstructured::new(bytes));
});
