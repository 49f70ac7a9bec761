//! Whole trees of nodes and PEs. Messages arrive in any order that connections allow.
#![allow(clippy::unwrap_used)]

use std::collections::{HashSet, VecDeque};

use super::super::super::error::Step;
use super::super::round::{Contribution, add_result};
use super::super::socket::Address;
use super::*;

const STEPS: u64 = 3;
const TIMEOUT: Duration = Duration::from_secs(10);

enum Message {
    Hello(Newcomer),
    Frame(Kind, Arc<[u8]>),
    Closed,
}

/// The lower end of a connection.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Pe(Pe),
    Relay(usize),
}

struct Connection {
    node: usize,
    below: End,
    up: VecDeque<Message>,
    down: VecDeque<Message>,
}

#[derive(Default)]
struct Process {
    dead: bool,
    connection: Option<usize>,
    relay: Option<usize>,
    run_by: Option<Pe>,
    results: u64,
    /// Why the PE gave up.
    fault: Option<Fault>,
    /// The late PEs of the last warning, and the number of warnings.
    late: Option<(Fault, u32)>,
}

struct World {
    now: Instant,
    random: u64,
    /// Nodes, and whether each is alive.
    nodes: Vec<(Node, bool)>,
    connections: Vec<Connection>,
    pes: Vec<Process>,
    /// Frames that each node has sent and received.
    frames: Vec<u64>,
    delivered: u64,
}

impl World {
    fn new(n_pes: u32, fan_out: u32, watched: bool, seed: u64) -> World {
        let shape = Shape::FanOut(fan_out);
        let root = Node::new(Config { n_pes: Some(n_pes), relay: None, shape, watched });
        World {
            now: Instant::now(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            nodes: vec![(root, true)],
            connections: Vec::new(),
            pes: (0..n_pes).map(|_| Process::default()).collect(),
            frames: vec![0],
            delivered: 0,
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) as usize % below
    }

    fn connect(&mut self, node: usize, below: End, relay: Option<usize>) {
        let pe = match below {
            End::Pe(pe) => pe,
            End::Relay(at) => self.nodes[at].0.pes.start,
        };
        let relay = relay.map(|at| Address::Unix(at as u64));
        let newcomer = Newcomer { pe, n_pes: self.pes.len() as u32, relay };
        let hello = VecDeque::from([Message::Hello(newcomer)]);
        let refused = VecDeque::from([Message::Closed]);
        let (up, down) = if self.nodes[node].1 { (hello, VecDeque::new()) } else { (VecDeque::new(), refused) };
        if let End::Pe(pe) = below {
            self.pes[pe as usize].connection = Some(self.connections.len());
        }
        self.connections.push(Connection { node, below, up, down });
    }

    fn start(&mut self, pe: Pe) {
        self.connect(0, End::Pe(pe), None);
    }

    /// Ends a PE's process, with the relay in it. Messages that it has sent may still arrive.
    fn kill(&mut self, pe: Pe) {
        self.pes[pe as usize].dead = true;
        let relay = (0..self.nodes.len()).find(|&node| self.run_by(node) == Some(pe));
        if let Some(relay) = relay {
            self.nodes[relay].1 = false;
        }
        for connection in &mut self.connections {
            if connection.below == End::Pe(pe) || relay.is_some_and(|relay| connection.below == End::Relay(relay)) {
                connection.up.push_back(Message::Closed);
                connection.down.clear();
            }
            if Some(connection.node) == relay {
                connection.down.push_back(Message::Closed);
                connection.up.clear();
            }
        }
    }

    fn say(&mut self, pe: Pe, kind: Kind, payload: Arc<[u8]>) {
        let connection = self.pes[pe as usize].connection.unwrap();
        self.connections[connection].up.push_back(Message::Frame(kind, payload));
    }

    /// Delivers one message, or lets time pass. Returns whether there was anything to do.
    fn turn(&mut self) -> bool {
        let waiting = |(at, it): (usize, &Connection)| {
            [(at, true, it.up.len()), (at, false, it.down.len())].into_iter().filter(|(.., queued)| *queued > 0)
        };
        let ready: Vec<_> = self.connections.iter().enumerate().flat_map(waiting).collect();
        if ready.is_empty() {
            let due = self.nodes.iter().filter(|(_, lives)| *lives).filter_map(|(node, _)| node.due()).min();
            let Some(due) = due else { return false };
            self.now = self.now.max(due);
            for at in 0..self.nodes.len() {
                self.nodes[at].0.tick(self.now);
                self.carry_out(at);
            }
            return true;
        }
        let at = self.random(ready.len());
        let (at, up, _) = ready[at];
        self.delivered += 1;
        let node = self.connections[at].node;
        if up {
            let message = self.connections[at].up.pop_front().unwrap();
            self.hear(node, at as Link + 1, message);
        } else {
            let message = self.connections[at].down.pop_front().unwrap();
            match self.connections[at].below {
                End::Pe(pe) if self.pes[pe as usize].connection == Some(at) => self.pe_receives(pe, node, message),
                End::Pe(_) => {}
                End::Relay(relay) => self.relay_receives(relay, node, message),
            }
        }
        true
    }

    fn hear(&mut self, node: usize, link: Link, message: Message) {
        if !self.nodes[node].1 {
            return;
        }
        let now = self.now;
        self.frames[node] += 1;
        match message {
            Message::Hello(newcomer) => self.nodes[node].0.joined(link, newcomer, now),
            Message::Frame(kind, payload) => self.nodes[node].0.frame(link, kind, &payload, now),
            Message::Closed => self.nodes[node].0.lost(link, now),
        }
        self.carry_out(node);
    }

    fn carry_out(&mut self, node: usize) {
        for output in self.nodes[node].0.outputs().collect::<Vec<_>>() {
            self.frames[node] += 1;
            match output {
                Output::Send(PARENT, kind, payload) => {
                    let parent = self.connections.iter_mut().find(|it| it.below == End::Relay(node)).unwrap();
                    parent.up.push_back(Message::Frame(kind, payload));
                }
                Output::Send(link, kind, payload) => {
                    self.connections[link as usize - 1].down.push_back(Message::Frame(kind, payload));
                }
                Output::Close(link) => self.connections[link as usize - 1].down.push_back(Message::Closed),
                Output::Tell(_) => self.frames[node] -= 1,
            }
        }
    }

    /// A relay's driver waits for the relay's welcome; then its PE's own joining continues.
    fn relay_receives(&mut self, relay: usize, parent: usize, message: Message) {
        let pe = self.nodes[relay].0.pes.start;
        if self.pes[pe as usize].dead {
            return;
        }
        if self.pes[pe as usize].relay.is_some() {
            return self.hear(relay, PARENT, message);
        }
        match message {
            Message::Frame(Kind::Welcome, payload) => {
                let run_by = (payload.len() == 4).then(|| u32_at(&payload, 0));
                self.nodes[relay].0.config.relay.as_mut().unwrap().parent_run_by = run_by;
                self.pes[pe as usize].relay = Some(relay);
                self.connect(relay, End::Pe(pe), None);
            }
            Message::Frame(Kind::Fault, payload) => self.pes[pe as usize].fault = Fault::decode(&payload),
            Message::Closed => self.gave_up(pe, self.run_by(parent)),
            _ => {}
        }
    }

    fn run_by(&self, node: usize) -> Option<Pe> {
        self.nodes[node].0.config.relay.as_ref().and_then(|place| place.run_by)
    }

    /// The fault of a PE that is cut off before it is admitted. The root might give a better reason.
    fn gave_up(&mut self, pe: Pe, by: Option<Pe>) {
        self.pes[pe as usize].fault.get_or_insert(by.map_or(Fault::NoService, |peer| Fault::Lost { peer }));
    }

    fn pe_receives(&mut self, pe: Pe, node: usize, message: Message) {
        let n_pes = self.pes.len() as u32;
        let run_by = self.run_by(node);
        let process = &mut self.pes[pe as usize];
        if process.dead || process.fault.is_some() || process.results == STEPS {
            return;
        }
        match message {
            Message::Frame(Kind::Welcome, _) => {
                process.run_by = run_by;
                self.contribute(pe);
            }
            Message::Frame(Kind::Redirect, address) => {
                let node = match Address::decode(&address).unwrap() {
                    Address::Unix(node) => node as usize,
                    Address::Ip(at) => usize::from(at.port()),
                };
                self.connect(node, End::Pe(pe), None);
            }
            Message::Frame(Kind::Serve, payload) => {
                let (pes, fan_out) = decode_serve(&payload).unwrap();
                let place = Place { pes, run_by: Some(pe), parent_run_by: None };
                let shape = Shape::FanOut(fan_out);
                let config = Config { n_pes: Some(n_pes), relay: Some(place), shape, watched: false };
                // The relay listens before any PE is redirected to it.
                self.nodes.push((Node::new(config), true));
                self.frames.push(0);
                let relay = self.nodes.len() - 1;
                process.connection = None;
                self.connect(node, End::Relay(relay), Some(relay));
            }
            Message::Frame(Kind::Result, payload) => {
                process.results += 1;
                let (results, mut all) = (process.results, Vec::new());
                let parts = if results == 2 { 0 } else { n_pes };
                add_result(&payload, results, parts, &mut all).unwrap();
                assert!(all.iter().enumerate().all(|(pe, row)| row == &[pe as u8, results as u8]));
                assert_eq!(all.len(), parts as usize);
                if results < STEPS { self.contribute(pe) } else { self.say(pe, Kind::Bye, Arc::from(FINISHED)) }
            }
            Message::Frame(Kind::Fault, payload) => {
                process.fault = Fault::decode(&payload);
                self.say(pe, Kind::Bye, Arc::from([]));
            }
            Message::Frame(Kind::Late, payload) => {
                let times = process.late.as_ref().map_or(0, |(_, times)| *times);
                process.late = Fault::decode(&payload).map(|fault| (fault, times + 1));
            }
            Message::Closed => self.gave_up(pe, run_by),
            Message::Frame(..) | Message::Hello(_) => {}
        }
    }

    fn contribute(&mut self, pe: Pe) {
        let number = self.pes[pe as usize].results + 1;
        let (step, row) = match number {
            2 => (Step::Barrier(number), vec![]),
            _ => (Step::Allgather(number), vec![pe as u8, number as u8]),
        };
        // PEs have different times left, so the root's deadline may pass before a relay's.
        let left = TIMEOUT + Duration::from_millis(u64::from(pe) * 7919 % 5000);
        let contribution = Contribution { step, timeout: TIMEOUT, left, extendable: true, first: pe, rows: vec![row] };
        let payload = contribution.encode().remove(0);
        self.say(pe, Kind::Contribute, payload);
    }

    /// The PEs that the fault of a PE names.
    fn named(&self, pe: Pe) -> Vec<Pe> {
        let process = &self.pes[pe as usize];
        match process.fault.as_ref().or(process.late.as_ref().map(|(fault, _)| fault)) {
            Some(Fault::Lost { peer } | Fault::Left { peer }) => vec![*peer],
            Some(Fault::TimedOut { missing, .. }) => missing.clone(),
            _ => Vec::new(),
        }
    }
}

#[test]
fn all_get_all_results_and_no_node_has_many_messages() {
    for (n_pes, fan_out) in [(1, 3), (2, 3), (7, 3), (24, 4), (33, 32), (200, 6)] {
        for seed in 0..5 {
            let mut world = World::new(n_pes, fan_out, false, seed);
            (0..n_pes).for_each(|pe| world.start(pe));
            while world.turn() {}
            assert!(world.pes.iter().all(|pe| pe.results == STEPS && pe.fault.is_none()), "{n_pes} {fan_out} {seed}");
            for (at, (node, _)) in world.nodes.iter().enumerate() {
                let children = node.children.len() as u64;
                // Hello and welcome, three steps, and a farewell; further frames only for PEs that are redirected.
                let sent_on = 4 * (node.pes.len() as u64 - children);
                let most = (children + 1) * (2 + 2 * STEPS + 1) + 2 * children + sent_on;
                assert!(world.frames[at] <= most, "{n_pes} {fan_out}: node {at}: {} of {most}", world.frames[at]);
            }
            assert_eq!(world.nodes[0].0.present(), 0, "all have left");
        }
    }
}

#[test]
fn pes_that_die_or_do_not_come_are_named_to_all_others() {
    for (n_pes, fan_out) in [(5, 3), (6, 3), (6, 8)] {
        for seed in 0..6 {
            for lost in 1..(1 << n_pes) - 1 {
                let lost: HashSet<Pe> = (0..n_pes).filter(|pe| lost >> pe & 1 == 1).collect();
                check_losses(n_pes, fan_out, &lost, seed);
            }
        }
    }
    for seed in 0..100 {
        let mut world = World::new(90, 4, false, seed);
        let lost = (0..1 + seed % 4).map(|_| world.random(90) as Pe).collect();
        check_losses(90, 4, &lost, seed);
    }
}

/// Some PEs never arrive, or die at any time.
fn check_losses(n_pes: u32, fan_out: u32, lost: &HashSet<Pe>, seed: u64) {
    let mut world = World::new(n_pes, fan_out, false, seed);
    let never = |pe: Pe| lost.contains(&pe) && (u64::from(pe) + seed).is_multiple_of(3);
    (0..n_pes).filter(|pe| !never(*pe)).for_each(|pe| world.start(pe));
    let mut to_kill: Vec<Pe> = lost.iter().copied().filter(|pe| !never(*pe)).collect();
    to_kill.sort_unstable();
    while let Some(pe) = to_kill.pop() {
        for _ in 0..world.random(8 * n_pes as usize) {
            if !world.turn() {
                break;
            }
        }
        world.kill(pe);
    }
    while world.turn() {}
    let context = || format!("{n_pes} PEs, {fan_out}, seed {seed}, lost {lost:?}");
    for pe in (0..n_pes).filter(|pe| !lost.contains(pe)) {
        let process = &world.pes[pe as usize];
        if process.results == STEPS {
            continue;
        }
        let named = world.named(pe);
        let who = format!("{}: PE {pe}: {:?} {:?}", context(), process.fault, process.late);
        // Some PEs may have received the last result before a PE died, and have left normally.
        let all_done = world.pes.iter().any(|pe| pe.results == STEPS);
        assert!(named.iter().any(|named| lost.contains(named)) || all_done, "{who}");
        assert!(named.iter().all(|named| lost.contains(named)) || all_done, "{who}");
    }
    let frames: u64 = world.frames.iter().sum();
    let most = u64::from(n_pes) * (40 + 8 * lost.len() as u64) + 40 * world.nodes.len() as u64;
    assert!(frames <= most, "{}: {frames} of {most} frames", context());
}

#[test]
fn those_who_are_late_and_live_are_waited_for_and_named() {
    for seed in 0..50 {
        let mut world = World::new(24, 4, true, seed);
        let late = world.random(24) as Pe;
        (0..24).filter(|pe| *pe != late).for_each(|pe| world.start(pe));
        let begun = world.now;
        while world.now < begun + 3 * TIMEOUT {
            assert!(world.turn(), "somebody waits");
        }
        for pe in (0..24).filter(|pe| *pe != late) {
            assert_eq!(world.named(pe), [late], "seed {seed}, PE {pe}: {:?}", world.pes[pe as usize].late);
        }
        world.start(late);
        while world.turn() {}
        assert!(world.pes.iter().all(|pe| pe.results == STEPS && pe.fault.is_none()), "seed {seed}");
    }
}

#[test]
fn bytes_of_any_kind_are_no_panic_and_leave_nobody_waiting() {
    for seed in 0..200 {
        let mut world = World::new(24, 4, false, seed);
        (0..24).for_each(|pe| world.start(pe));
        for _ in 0..40 + world.random(400) {
            world.turn();
        }
        let kinds =
            [Kind::Contribute, Kind::LostPes, Kind::Missing, Kind::Fault, Kind::Abort, Kind::Result, Kind::Late];
        let kind = kinds[world.random(kinds.len())];
        let length = world.random(60);
        let payload: Arc<[u8]> = (0..length).map(|_| world.random(4) as u8).collect();
        let at = world.random(world.connections.len());
        world.connections[at].up.push_back(Message::Frame(kind, payload));
        while world.turn() {}
        let ended = |pe: &Process| pe.results == STEPS || pe.fault.is_some();
        assert!(world.pes.iter().all(ended), "seed {seed}, {kind:?}");
    }
}

#[test]
fn a_relay_without_a_node_above_still_tells_its_own_pes_of_deaths() {
    let now = Instant::now();
    let place = Place { pes: 4..8, run_by: Some(4), parent_run_by: Some(0) };
    let mut node = Node::new(Config { n_pes: Some(8), relay: Some(place), shape: Shape::STAR, watched: false });
    // The number of a connection is that of its PE.
    (4..8).for_each(|pe| node.joined(pe.into(), Newcomer { pe, n_pes: 8, relay: None }, now));
    node.lost(PARENT, now);
    node.outputs().for_each(drop);
    node.lost(5, now);
    let told: Vec<_> = node.outputs().filter(|output| matches!(output, Output::Send(..))).collect();
    let gone = Arc::from(fault::encode_all(&[Fault::Lost { peer: 5 }]));
    assert_eq!(told, [4, 6, 7].map(|link| Output::Send(link, Kind::LostPes, Arc::clone(&gone))));
}

#[test]
fn a_round_that_cannot_complete_below_a_relay_breaks_the_job() {
    for fault in [Fault::Ended { peer: 1 }, Fault::Left { peer: 1 }] {
        let (now, shape) = (Instant::now(), Shape::Hosts(vec![2]));
        let mut root = Node::new(Config { n_pes: Some(2), relay: None, shape, watched: true });
        let relay = PARENT + 1;
        root.joined(relay, Newcomer { pe: 0, n_pes: 2, relay: Some(Address::Unix(0)) }, now);
        root.outputs().for_each(drop);
        let sent: Arc<[u8]> = fault.encode().into();
        root.frame(relay, Kind::Fault, &sent, now);
        assert!(
            root.outputs().any(|output| output == Output::Send(relay, Kind::Fault, Arc::clone(&sent))),
            "{fault:?}"
        );
    }
}

#[test]
fn the_owner_learns_that_the_job_is_broken_before_the_pes_do_and_before_the_reason() {
    let config = Config { n_pes: Some(2), relay: None, shape: Shape::STAR, watched: true };
    let (mut root, now) = (Node::new(config), Instant::now());
    for pe in 0..2 {
        root.joined(PARENT + 1 + Link::from(pe), Newcomer { pe, n_pes: 2, relay: None }, now);
    }
    root.outputs().for_each(drop);
    let payload = [&7_i32.to_le_bytes()[..], b"why"].concat();
    root.frame(PARENT + 1, Kind::Abort, &Arc::from(payload), now);
    let outputs: Vec<Output> = root.outputs().collect();
    let at = |is: &dyn Fn(&Output) -> bool| outputs.iter().position(is).unwrap();
    let broken = at(&|output| *output == Output::Tell(Event::Broken));
    assert!(broken < at(&|output| matches!(output, Output::Send(_, Kind::Fault, _))), "{outputs:?}");
    assert!(broken < at(&|output| matches!(output, Output::Tell(Event::Aborted { pe: 0, .. }))), "{outputs:?}");
}
