//! PEs are connected when they are first needed, in a large job in which few PEs talk to each other.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::counting::held_bytes;
use symrail_proxy::Engine;
use symrail_transport::Result;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Owner, Source};
use symrail_transport::endpoint::{Addresses, Directory, Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;

const PES: u32 = 1000;
const HEAP: usize = 4096;

/// The directory of the few PEs of the job that exist, and a log of queries.
#[derive(Default)]
struct Book {
    entries: HashMap<u32, (Addresses, Vec<u8>)>,
    asked: Mutex<Vec<u32>>,
}

impl Directory for Book {
    fn addresses(&self, pe: u32) -> Result<Option<Addresses>> {
        self.asked.lock().unwrap().push(pe);
        Ok(self.entries.get(&pe).map(|(addresses, _)| addresses.clone()))
    }

    fn keys(&self, pe: u32, _segment: u32) -> Result<Option<Vec<u8>>> {
        Ok(self.entries.get(&pe).map(|(_, keys)| keys.clone()))
    }
}

fn engine(fabric: &Fabric, pe: u32, n_pes: u32, rails: usize) -> Engine {
    let rails = (0..rails).map(|rail| fabric.open(&format!("PE {pe} rail {rail}")).unwrap()).collect();
    let policy = Policy::new(&Settings::default(), false);
    Engine::new(Endpoint::new(Role::Proxy, pe, n_pes, rails, policy).unwrap())
}

/// Two PEs of many, with their memory and their queries to the directory.
struct Two {
    engines: [Engine; 2],
    memory: [Vec<u8>; 2],
    books: [Arc<Book>; 2],
}

const WHO: [u32; 2] = [3, 777];

fn two(rails: usize) -> Two {
    let fabric = Fabric::new(5, FabricConfig::default());
    let mut memory = [vec![0u8; HEAP], vec![0; HEAP]];
    let mut engines = WHO.map(|pe| engine(&fabric, pe, PES, rails));
    let mut entries = HashMap::new();
    for ((engine, memory), pe) in engines.iter_mut().zip(&mut memory).zip(WHO) {
        // SAFETY: the memory outlives the engines, and nothing refers into it meanwhile.
        let keys = unsafe { engine.register(Segment::new(0, 0, memory.as_mut_ptr(), HEAP as u64)) }.unwrap();
        entries.insert(pe, (Addresses { host: Vec::new(), proxy: engine.addresses() }, keys));
    }
    let books = [(); 2].map(|()| Arc::new(Book { entries: entries.clone(), asked: Mutex::default() }));
    for (engine, book) in engines.iter_mut().zip(&books) {
        engine.endpoint().set_directory(Arc::clone(book) as Arc<dyn Directory>);
    }
    Two { engines, memory, books }
}

impl Two {
    fn asked(&self) -> [Vec<u32>; 2] {
        self.books.each_ref().map(|book| book.asked.lock().unwrap().clone())
    }

    /// Starts an operation of the first PE on the second's memory, and waits until it is complete.
    fn run(&mut self, command: Command) {
        // SAFETY: the tests' sources live until the quiet below has ended.
        unsafe { self.engines[0].submit(WHO[1], command, Owner { issuer: 0, tag: None }) }.unwrap();
        for round in 0.. {
            assert!(round < 10_000, "it does not come to an end");
            self.engines[0].start_quiet(0);
            for engine in &mut self.engines {
                engine.poll();
            }
            if self.engines[0].is_quiet(0) {
                break;
            }
        }
        assert!(self.engines[0].take_error(0).is_none());
    }
}

#[test]
fn a_pe_is_connected_when_it_is_addressed_and_its_source_when_it_has_asked() {
    for rails in [1, 4] {
        let mut two = two(rails);
        assert_eq!(two.asked(), [vec![], vec![]], "nobody was needed so far");
        let text = [b'x'; 3000];
        two.run(Command::Put { dest: 64, source: Source::Stable(text.as_ptr()), len: 3000 });
        assert_eq!(two.memory[1][64..3064], text);
        assert_eq!(two.asked()[0], [WHO[1]], "{rails} rails");
        let (ty, op, fetch) = (AmoType::U64, AmoOp::Add, Fetch::No);
        let count = Command::Amo { offset: 8, ty, op, operand: 7, compare: 0, fetch };
        two.run(count);
        assert_eq!(two.asked(), [vec![WHO[1]], vec![WHO[0]]], "the target has to answer");
        two.run(count);
        assert_eq!(two.memory[1][8..16], 14u64.to_le_bytes());
        assert_eq!(two.asked(), [vec![WHO[1]], vec![WHO[0]]], "each was asked about once");
    }
}

#[test]
fn a_peer_that_has_left_is_refused_without_a_connection() {
    let mut two = two(2);
    two.engines[0].endpoint().has_left(WHO[1], "it has left");
    (0..4).for_each(|second| two.engines[0].tick(second));
    let command = Command::Put { dest: 0, source: Source::Stable(std::ptr::null()), len: 8 };
    // SAFETY: nothing is started.
    let refused = unsafe { two.engines[0].submit(WHO[1], command, Owner { issuer: 0, tag: None }) };
    assert!(refused.is_err_and(|error| error.to_string().contains("it has left")));
    assert_eq!(two.asked(), [vec![], vec![]]);
}

#[test]
fn a_pe_that_is_never_addressed_costs_an_engine_nearly_nothing() {
    const MORE: u32 = 100_000;
    let fabric = Fabric::new(5, FabricConfig::default());
    let held = |n_pes: u32| {
        let before = held_bytes();
        let engine = engine(&fabric, 0, n_pes, 4);
        let held = held_bytes() - before;
        drop(engine);
        held
    };
    held(PES); // one-time allocations
    let more = held(PES + MORE) - held(PES);
    assert!(more < MORE as isize, "{more} bytes for {MORE} more PEs");
}
