//! Endpoints over ibverbs rails: the effect of a failed work request on the operation's issuer.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Instant;

use crate::verbs_support::*;
use symrail_transport::Error;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Owner, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, NoAgent, Policy, Role, TargetAgent};
use symrail_transport::env::{IbMode, Settings};
use symrail_transport::rail::Rail;
use symrail_transport::region::Segment;
use symrail_transport::verbs::{Nic, VerbsRail};
use symrail_transport::wire::{Reply, Request, RequestKind, Token};

const HEAP: usize = 1 << 20;

/// One PE of two, with its memory behind its endpoints.
struct Pe {
    host: Endpoint,
    proxy: Endpoint,
    heap: Vec<u64>,
}

fn endpoint(nics: &[Nic], role: Role, me: u32, settings: &Settings) -> Endpoint {
    let open = |nic| -> Box<dyn Rail> {
        Box::new(VerbsRail::open(nic, role, Endpoint::destinations(role, 2), settings).unwrap())
    };
    Endpoint::new(role, me, 2, nics.iter().map(open).collect(), Policy::new(settings, true)).unwrap()
}

/// Two PEs with connected endpoints. `forge` may change PE 1's connection info of keys before PE 0 learns it.
fn pes(nics: &[Nic], forge: impl Fn(&mut [u8])) -> [Pe; 2] {
    let mut settings = Settings::default();
    settings.ib_mode = IbMode::RdmaAtomics;
    let mut pes = [0, 1].map(|me| Pe {
        host: endpoint(&nics[..1], Role::Host, me, &settings),
        proxy: endpoint(nics, Role::Proxy, me, &settings),
        heap: vec![0; HEAP / 8],
    });
    let addresses = |pe: &Pe| Addresses { host: pe.host.addresses(), proxy: pe.proxy.addresses() };
    let addresses = [addresses(&pes[0]), addresses(&pes[1])];
    let mut connection_infos: Vec<Vec<u8>> = pes
        .iter_mut()
        .map(|pe| {
            // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
            let segment = unsafe { Segment::new(0, 0, pe.heap.as_mut_ptr().cast(), HEAP as u64) };
            // SAFETY: the heap is dropped after the endpoints, and its vector does not grow.
            unsafe { (pe.host.register(segment).unwrap(), pe.proxy.register(segment).unwrap()).1 }
        })
        .collect();
    forge(&mut connection_infos[1]);
    for pe in &mut pes {
        for (peer, theirs) in addresses.iter().enumerate() {
            pe.host.connect(peer as u32, theirs).unwrap();
            pe.proxy.connect(peer as u32, theirs).unwrap();
        }
        pe.host.learn(0, &connection_infos).unwrap();
        pe.proxy.learn(0, &connection_infos).unwrap();
    }
    pes
}

/// A target agent that answers only how far it has applied a stream that is moved to another lane.
#[derive(Default)]
struct Moves(Vec<(usize, Request)>);

impl TargetAgent for Moves {
    fn request(&mut self, lane: usize, request: &Request, _payload: &[u8]) {
        assert_eq!(request.kind, RequestKind::Move, "NICs do all else");
        self.0.push((lane, *request));
    }

    fn count(&mut self, word: u64) {
        panic!("nobody asks for {word} to be counted");
    }
}

impl Moves {
    /// Polls, and answers on behalf of PE `me`.
    fn serve(&mut self, me: u32, endpoint: &mut Endpoint) {
        endpoint.poll(self);
        self.0.retain(|(lane, request)| {
            let (lane, applied, generation) = (*lane, request.sequence, request.operand as u32);
            let reply = Reply { source: me, lane: request.lane, after: applied, applied, generation, outcomes: 0 };
            let mut answer = [&[0; Token::SIZE][..], &reply.encode()].concat();
            !endpoint.reply(request.source, request.origin, lane, &mut answer)
        });
    }
}

/// Issues a command from PE 0's proxy endpoint to PE 1 and waits for its end.
fn outcome(pes: &mut [Pe; 2], command: Command) -> Result<u64, Error> {
    let owner = Owner { issuer: 0, tag: Some(7) };
    // SAFETY: the tests' sources are heap memory, which outlives the wait below.
    unsafe { pes[0].proxy.submit(1, command, owner) }.unwrap();
    let (start, mut agents) = (Instant::now(), [Moves::default(), Moves::default()]);
    loop {
        for (me, (pe, agent)) in pes.iter_mut().zip(&mut agents).enumerate() {
            agent.serve(me as u32, &mut pe.proxy);
        }
        if let Some(finished) = pes[0].proxy.next_finished() {
            return finished.result.map_err(|error| *error);
        }
        std::thread::yield_now();
        assert!(start.elapsed() < LIMIT, "the operation never ends");
    }
}

#[test]
fn a_wrong_key_names_the_pe_and_the_rail() {
    let nics: Vec<_> = nics(&Settings::default()).into_iter().filter(|n| n.name.starts_with("rxe")).take(2).collect();
    if nics.len() < 2 {
        return skipped("fewer than two soft-RoCE rails");
    }
    // The second rail's key: an entry is an address and a key of 8 bytes each.
    let mut pes = pes(&nics, |connection_info| connection_info[16 + 8] ^= 0x55);
    let source = Source::Stable(pes[0].heap.as_ptr().cast());
    let mut errors = Vec::new();
    // Operations of more than 64 KiB take the rails in turn.
    for _ in 0..4 {
        match outcome(&mut pes, Command::Put { dest: 4096, source, len: 70_000 }) {
            Ok(_) => {}
            Err(error) => errors.push(error.to_string()),
        }
    }
    // The queue pair is then in its error state. Work requests that are flushed there are not at fault, and move to the
    // other rail.
    assert_eq!(errors.len(), 1, "one put was refused, and no other may fail for it: {errors:?}");
    for error in &errors {
        assert!(error.contains("put of 70000 bytes to PE 1"), "{error}");
        assert!(error.contains(&format!("over rail {}", nics[1].name)), "{error}");
        assert!(error.contains("key"), "{error}");
    }
    // The first rail still works.
    let add =
        Command::Amo { offset: 8, ty: AmoType::U64, op: AmoOp::Add, operand: 5, compare: 0, fetch: Fetch::Returned };
    assert_eq!(outcome(&mut pes, add).unwrap(), 0);
    let set =
        Command::Amo { offset: 12, ty: AmoType::U32, op: AmoOp::Set, operand: 9, compare: 0, fetch: Fetch::Returned };
    assert_eq!(outcome(&mut pes, set).unwrap(), 0);
    let all =
        Command::Amo { offset: 8, ty: AmoType::U64, op: AmoOp::Fetch, operand: 0, compare: 0, fetch: Fetch::Returned };
    assert_eq!(outcome(&mut pes, all).unwrap(), 9 << 32 | 5);
}

/// The NIC fails a loop like an atomic: once, and AMOs that wait for the word continue.
#[test]
fn a_wrong_key_ends_loops_too() {
    let nics: Vec<_> = nics(&Settings::default()).into_iter().filter(|n| n.name.starts_with("rxe")).take(1).collect();
    if nics.is_empty() {
        return skipped("no soft-RoCE rail");
    }
    let mut pes = pes(&nics, |connection_info| connection_info[8] ^= 0x55);
    let set = Command::Amo { offset: 8, ty: AmoType::U64, op: AmoOp::Set, operand: 5, compare: 0, fetch: Fetch::No };
    for tag in 0..5 {
        // SAFETY: no buffers.
        unsafe { pes[0].proxy.submit(1, set, Owner { issuer: 0, tag: Some(tag) }) }.unwrap();
    }
    let (start, mut ended) = (Instant::now(), Vec::new());
    while ended.len() < 5 {
        pes[0].proxy.poll(&mut NoAgent);
        while let Some(finished) = pes[0].proxy.next_finished() {
            let error = finished.result.unwrap_err().to_string();
            assert!(error.contains("amo of 8 bytes to PE 1") && error.contains(&nics[0].name), "{error}");
            ended.push(finished.tag);
        }
        std::thread::yield_now();
        assert!(start.elapsed() < LIMIT, "only {ended:?} ended");
    }
    assert!(!pes[0].proxy.is_active());
}
