//! Peers that come and go, on the mock fabric: a number is given once, and what is kept for it is used again.
#![allow(clippy::unwrap_used)]

use crate::counting::held_bytes;
use symrail_proxy::Engine;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Owner, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::region::Segment;
use symrail_transport::{Error, Pe};

/// As many numbers as a session has.
const NUMBERS: u32 = 1 << 26;
const WORDS: usize = 512;
const OWNER: Owner = Owner { issuer: 0, tag: None };

/// An engine whose peers come and go, with the memory that it has registered, its keys, and the second that it is in.
struct Member {
    engine: Engine,
    memory: Vec<u64>,
    keys: Vec<u8>,
    second: u32,
}

impl Member {
    fn new(fabric: &Fabric, name: &str, rails: usize) -> Member {
        let rails = (0..rails).map(|rail| fabric.open(&format!("{name} {rail}")).unwrap()).collect();
        let policy = Policy::new(&Settings::default(), false);
        let mut engine = Engine::new(Endpoint::new(Role::Proxy, 0, NUMBERS, rails, policy).unwrap());
        engine.know_only_connected();
        let mut memory = vec![0; WORDS];
        // SAFETY: the memory outlives the engine, and nothing refers into it while the engine is polled.
        let segment = unsafe { Segment::new(0, 0, memory.as_mut_ptr().cast(), 8 * WORDS as u64) };
        // SAFETY: as above.
        let keys = unsafe { engine.register(segment) }.unwrap();
        Member { engine, memory, keys, second: 0 }
    }

    /// Makes `other` known as `pe`, which has the number `me` for this one.
    fn connect(&mut self, (pe, me): (Pe, Pe), other: &Member) {
        let addresses = Addresses { host: Vec::new(), proxy: other.engine.addresses() };
        self.engine.endpoint().connect_as(me, pe, &addresses).unwrap();
        self.engine.endpoint().learn_separate(pe, 0, 8 * WORDS as u64, &other.keys).unwrap();
    }

    fn submit(&mut self, pe: Pe, command: Command) -> Result<(), Error> {
        // SAFETY: sources live until a quiet has ended.
        unsafe { self.engine.submit(pe, command, OWNER) }.map(drop)
    }

    fn second_passes(&mut self) {
        self.second += 1;
        self.engine.poll();
        self.engine.tick(self.second);
    }

    /// Removes a peer, and lets seconds pass until it is forgotten. Returns their number.
    fn remove(&mut self, pe: Pe) -> u32 {
        self.engine.endpoint().remove(pe, "it has left");
        let begun = self.second;
        while self.engine.endpoint().is_connected(pe) {
            assert!(self.second < begun + 50, "it is not forgotten");
            self.second_passes();
        }
        self.second - begun
    }
}

/// Polls both until all operations of the first have ended.
fn finish(first: &mut Member, second: &mut Member) {
    for round in 0.. {
        assert!(round < 10_000, "it does not come to an end");
        first.engine.start_quiet(0);
        first.engine.poll();
        second.engine.poll();
        if first.engine.is_quiet(0) {
            break;
        }
    }
    assert!(first.engine.take_error(0).is_none());
}

const fn add(word: u64, operand: u64) -> Command {
    Command::Amo { offset: 8 * word, ty: AmoType::U64, op: AmoOp::Add, operand, compare: 0, fetch: Fetch::No }
}

/// More than the 65,536 numbers that 16 bits have, and than the 32,768 of one parity.
const JOINS: u32 = 70_000;

#[test]
fn joins_and_leaves_go_on_for_ever_in_constant_memory() {
    for (rails, joins) in [(1, JOINS), (2, 2000)] {
        let fabric = Fabric::new(5, FabricConfig::default());
        let (mut stays, mut visits) = (Member::new(&fabric, "stays", rails), Member::new(&fabric, "visits", rails));
        let bytes = [7u8; 3000];
        let mut join = |join: u32| {
            let (visitor, host) = (2 * (join + 1), 2 * (join + 1) + 1);
            stays.connect((visitor, host), &visits);
            visits.connect((host, visitor), &stays);
            visits.submit(host, add(0, 1)).unwrap();
            visits.submit(host, Command::Put { dest: 64, source: Source::Stable(bytes.as_ptr()), len: 3000 }).unwrap();
            finish(&mut visits, &mut stays);
            stays.submit(visitor, add(1, 1)).unwrap();
            finish(&mut stays, &mut visits);
            let seconds = [visits.remove(host), stays.remove(visitor)];
            assert!(seconds.iter().all(|&seconds| seconds > 1), "something may have been on its way: {seconds:?}");
            let refused = stays.submit(visitor, add(1, 1));
            assert!(matches!(refused, Err(Error::PeerLost { .. })), "{refused:?}");
        };
        (0..joins / 10).for_each(&mut join);
        let before = held_bytes();
        (joins / 10..joins).for_each(&mut join);
        // A null pointer for 64 numbers in each table.
        let grown = held_bytes() - before;
        assert!(grown < 8 * joins as isize, "{grown} bytes for {joins} joins over {rails} rails");
        assert_eq!((stays.memory[0], visits.memory[1]), (joins.into(), joins.into()));
    }
}

#[test]
fn a_late_message_of_a_peer_that_was_removed_does_not_reach_its_successor() {
    let fabric = Fabric::new(5, FabricConfig::default());
    let mut stays = Member::new(&fabric, "stays", 1);
    let (mut leaves, mut comes) = (Member::new(&fabric, "leaves", 1), Member::new(&fabric, "comes", 1));
    stays.connect((2, 3), &leaves);
    leaves.connect((3, 2), &stays);
    // The first request of its stream waits on the way.
    fabric.pull_out(1);
    leaves.submit(3, add(0, 1)).unwrap();
    leaves.engine.start_quiet(0);
    leaves.engine.poll();
    stays.remove(2);
    stays.connect((4, 5), &comes);
    comes.connect((5, 4), &stays);
    fabric.plug_in(1);
    for _ in 0..100 {
        leaves.engine.poll();
        stays.engine.poll();
    }
    assert_eq!((stays.memory[0], stays.engine.agent_counts()), (0, (0, 0)), "the late request was read");
    assert!(!stays.engine.endpoint().is_connected(2));
    // The successor's first request has the same place in its stream.
    for round in 1..3 {
        comes.submit(5, add(0, 100)).unwrap();
        finish(&mut comes, &mut stays);
        assert_eq!(stays.memory[0], 100 * round);
    }
}

#[test]
fn a_peer_that_was_lost_before_it_was_removed_is_forgotten() {
    let fabric = Fabric::new(5, FabricConfig::default());
    let (mut stays, leaves) = (Member::new(&fabric, "stays", 2), Member::new(&fabric, "leaves", 2));
    stays.connect((2, 3), &leaves);
    [2, 3].into_iter().for_each(|rail| fabric.take_down(rail));
    while stays.submit(2, add(0, 1)).is_ok() {
        assert!(stays.second < 1000, "it is not lost");
        stays.second_passes();
    }
    // Attempts to reach it go on.
    (0..100).for_each(|_| stays.second_passes());
    assert!(stays.engine.endpoint().is_connected(2) && stays.engine.endpoint().lanes_down() == 2);
    stays.remove(2);
    assert_eq!(stays.engine.endpoint().lanes_down(), 0);
}
