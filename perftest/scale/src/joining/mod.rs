//! How PEs join: the nodes of the tree run the code of every job, driven by messages that take simulated time.
//!
//! A PE's own end of joining, which dials and waits, is reimplemented here, since a real PE's end has a socket. Its
//! contributions have the lengths of real ones over TCP with one rail, and as many equal bytes. Dialing costs three
//! messages: the connection, the challenge and the hello.
//!
//! | file | concept |
//! |---|---|
//! | here | processes, the messages between them, and nodes |
//! | `end` | a PE's own end, and its relay's |

mod end;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use symrail::Pe;
use symrail::bootstrap::Traffic;
use symrail::bootstrap::rendezvous::node::{Config, Link, Newcomer, Node, Output, PARENT};
use symrail::bootstrap::rendezvous::{Address, FAN_OUT, Kind, Shape};
use symrail_transport::mock::timed::{Calendar, Nics};

use crate::Options;
use crate::random::Random;

/// All PEs start within so many nanoseconds.
const STARTED_WITHIN: u64 = 1_000_000;
/// Bytes of a frame besides its payload.
const FRAME: u64 = 37;

/// The result of joining.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Joining {
    /// Nanoseconds until the last PE had all results, or had given up.
    pub took: u64,
    /// Messages that all PEs have sent, dialing included; and those that the busiest PE has sent and received.
    pub messages: u64,
    /// See above; including the relay that it runs.
    pub most_messages: u64,
    /// Messages of the root, which the launcher runs.
    pub of_root: u64,
    /// Frames that each PE has exchanged with the nodes that it reached, and their bytes, as real PEs count them
    /// ([`Bootstrap::traffic`](symrail::bootstrap::Bootstrap::traffic)): without hellos, and without those of its
    /// relay.
    pub frames: Vec<(u64, u64)>,
    /// Bytes of the largest message.
    pub largest: u64,
    /// The number of relays, and the largest number of them between the root and a PE.
    pub relays: u32,
    /// See above.
    pub height: u32,
    /// PEs that died, in order.
    pub dead: Vec<Pe>,
    /// PEs that gave up, and why.
    pub failed: Vec<(Pe, String)>,
    /// PEs that neither ended nor died.
    pub stuck: u32,
}

/// The two ends of a connection. The PE that runs a node names it; the number of PEs names the root.
#[derive(Clone, Copy)]
struct Connection {
    node: Pe,
    below: Pe,
    /// It belongs to a relay, not to a PE itself.
    of_relay: bool,
}

enum Message {
    Hello(Newcomer),
    Frame(Kind, Arc<[u8]>),
    Closed,
}

enum Event {
    Starts(Pe),
    Dies(Pe),
    TimeIsUp(Pe),
    /// A message arrives over a connection, up or down.
    Arrives(usize, bool, Message),
    Due(Pe),
}

/// A relay that a PE runs.
#[derive(Clone)]
struct Relay {
    /// The connection to the node above.
    parent: usize,
    pes: Range<Pe>,
    fan_out: u32,
}

#[derive(Default)]
struct Process {
    busy_until: u64,
    messages: u64,
    frames: Traffic,
    dead: bool,
    /// The connection over which it joins.
    own: Option<usize>,
    relay: Option<Relay>,
    /// Whether a node has admitted it; and until then, in words, the relay that it waits for.
    welcome: bool,
    awaited: Option<String>,
    results: usize,
    ended: Option<(u64, Option<String>)>,
}

struct World<'a> {
    options: &'a Options,
    epoch: Instant,
    now: u64,
    events: Calendar<Event>,
    nodes: HashMap<Pe, Node>,
    /// Newcomers at a relay that did not exist yet.
    early: BTreeMap<Pe, Vec<(usize, Newcomer)>>,
    processes: Vec<Process>,
    connections: Vec<Connection>,
    nics: Nics,
    /// The time of the last arrival over each connection, up and down.
    last: Vec<[u64; 2]>,
    due: HashMap<Pe, Instant>,
    report: Joining,
}

/// Lets all PEs of a job join. With `dies`, a hundredth of them die meanwhile.
#[must_use]
pub fn join(options: &Options, dies: bool) -> Joining {
    let n = options.pes;
    let shape = Shape::FanOut(FAN_OUT);
    let root = Node::new(Config { n_pes: Some(n), relay: None, shape: shape.clone(), watched: false });
    let mut world = World {
        options,
        epoch: Instant::now(),
        now: 0,
        events: Calendar::default(),
        nodes: HashMap::from([(n, root)]),
        early: BTreeMap::new(),
        processes: (0..=n).map(|_| Process::default()).collect(),
        connections: Vec::new(),
        nics: Nics::new(options.hosts as usize + 2, options.costs.gap),
        last: Vec::new(),
        due: HashMap::new(),
        report: Joining { height: shape.height(0..n), ..Joining::default() },
    };
    let mut random = Random::new(options.seed);
    for pe in 0..n {
        let at = random.below(STARTED_WITHIN);
        world.events.at(at, Event::Starts(pe));
        world.events.at(at + options.timeout_s * 1_000_000_000, Event::TimeIsUp(pe));
    }
    while dies && world.report.dead.len() < (n / 100).max(1) as usize {
        let pe = random.below(n.into()) as Pe;
        if !world.report.dead.contains(&pe) {
            world.report.dead.push(pe);
            let at = random.below(3 * STARTED_WITHIN);
            world.events.at(at, Event::Dies(pe));
        }
    }
    world.run();
    world.ended()
}

impl World<'_> {
    fn root(&self) -> Pe {
        self.options.pes
    }

    /// The launcher is on its own host.
    fn host(&self, pe: Pe) -> usize {
        (pe / self.options.pes_of_a_host()) as usize
    }

    fn instant(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.now)
    }

    fn run(&mut self) {
        let limit = 3 * self.options.timeout_s * 1_000_000_000;
        while let Some((time, event)) = self.events.take() {
            self.now = time;
            if time > limit {
                break;
            }
            match event {
                Event::Starts(pe) => self.dial(self.root(), pe, None),
                Event::Dies(pe) => self.die(pe),
                Event::TimeIsUp(pe) => self.time_is_up(pe),
                Event::Due(pe) => {
                    self.due.remove(&pe);
                    self.of_node(pe, Node::tick);
                }
                Event::Arrives(connection, up, message) => self.arrive(connection, up, message),
            }
        }
    }

    /// Sends a message over a connection. The sender is busy meanwhile, and so are the hosts' NICs.
    fn send(&mut self, connection: usize, up: bool, message: Message, parts: u64) {
        let Connection { node, below, .. } = self.connections[connection];
        let (from, to) = if up { (below, node) } else { (node, below) };
        let (here, there) = (self.host(from), self.host(to));
        // Frames pass through sockets, also within a host.
        let link = self.options.costs.between_hosts;
        let bytes = match &message {
            Message::Frame(_, payload) => FRAME + payload.len() as u64,
            Message::Hello(_) => 200,
            Message::Closed => 0,
        };
        let sender = &mut self.processes[from as usize];
        let posted = self.now.max(sender.busy_until) + link.post + bytes * link.copy_ps / 1000;
        sender.busy_until = posted;
        let time = self.nics.carry(posted, (here, there), &link, parts * link.latency, bytes);
        if up {
            self.count_frame(connection, &message);
        }
        if !matches!(message, Message::Closed) {
            self.processes[from as usize].messages += parts;
            self.report.messages += parts;
            self.report.largest = self.report.largest.max(bytes);
        }
        let last = &mut self.last[connection][usize::from(up)];
        *last = time.max(*last);
        let time = *last;
        self.events.at(time, Event::Arrives(connection, up, message));
    }

    /// Counts a frame that a PE sends or receives.
    fn count_frame(&mut self, connection: usize, message: &Message) {
        let Connection { below, of_relay, .. } = self.connections[connection];
        if let (Message::Frame(_, payload), false) = (message, of_relay) {
            self.processes[below as usize].frames += Traffic { messages: 1, bytes: FRAME + payload.len() as u64 };
        }
    }

    fn dial(&mut self, node: Pe, below: Pe, relay: Option<Address>) {
        if self.processes[below as usize].dead {
            return;
        }
        let connection = self.connections.len();
        self.connections.push(Connection { node, below, of_relay: relay.is_some() });
        self.last.push([0; 2]);
        if relay.is_none() {
            self.processes[below as usize].own = Some(connection);
        }
        if self.processes[node as usize].dead {
            return self.send(connection, false, Message::Closed, 1);
        }
        let newcomer = Newcomer { pe: below, n_pes: self.options.pes, relay };
        self.send(connection, true, Message::Hello(newcomer), 3);
    }

    fn arrive(&mut self, connection: usize, up: bool, message: Message) {
        let Connection { node, below, of_relay } = self.connections[connection];
        let to = if up { node } else { below };
        let link = self.options.costs.between_hosts;
        let bytes = if let Message::Frame(_, payload) = &message { payload.len() as u64 } else { 0 };
        let receiver = &mut self.processes[to as usize];
        if receiver.dead {
            return;
        }
        receiver.busy_until = self.now.max(receiver.busy_until) + link.arrival + bytes * link.copy_ps / 1000;
        receiver.messages += u64::from(!matches!(message, Message::Closed));
        if !up {
            self.count_frame(connection, &message);
        }
        match (up, message) {
            (true, Message::Hello(newcomer)) if self.nodes.contains_key(&node) => {
                self.of_node(node, |node, now| node.joined(connection as Link + 1, newcomer, now));
            }
            (true, Message::Hello(newcomer)) => self.early.entry(node).or_default().push((connection, newcomer)),
            (true, message) => self.of_node(node, |node, now| receives(node, connection as Link + 1, &message, now)),
            (false, message) if of_relay => self.relay_receives(below, &message),
            (false, message) if self.processes[below as usize].own == Some(connection) => {
                self.pe_receives(below, message);
            }
            (false, _) => {}
        }
    }

    /// Passes an event to a node, and carries out its outputs.
    fn of_node(&mut self, pe: Pe, act: impl FnOnce(&mut Node, Instant)) {
        let now = self.instant();
        let Some(node) = self.nodes.get_mut(&pe) else { return };
        act(node, now);
        let outputs: Vec<_> = node.outputs().collect();
        let due = node.due();
        for output in outputs {
            match output {
                Output::Send(PARENT, kind, payload) => {
                    if let Some(relay) = &self.processes[pe as usize].relay {
                        self.send(relay.parent, true, Message::Frame(kind, payload), 1);
                    }
                }
                Output::Send(link, kind, payload) => {
                    self.send(link as usize - 1, false, Message::Frame(kind, payload), 1);
                }
                Output::Close(link) => self.send(link as usize - 1, false, Message::Closed, 1),
                Output::Tell(_) => {}
            }
        }
        if let Some(due) = due.filter(|due| self.due.get(&pe) != Some(due)) {
            self.due.insert(pe, due);
            let time = due.saturating_duration_since(self.epoch).as_nanos() as u64;
            self.events.at(time.max(self.now), Event::Due(pe));
        }
    }

    /// The system closes the dead PE's connections.
    fn die(&mut self, pe: Pe) {
        self.processes[pe as usize].dead = true;
        for at in 0..self.connections.len() {
            let Connection { node, below, .. } = self.connections[at];
            if below == pe {
                self.send(at, true, Message::Closed, 1);
            } else if node == pe {
                self.send(at, false, Message::Closed, 1);
            }
        }
    }

    fn ended(mut self) -> Joining {
        self.report.dead.sort_unstable();
        self.report.of_root = self.processes.last().map_or(0, |root| root.messages);
        self.processes.truncate(self.options.pes as usize);
        self.report.frames = self.processes.iter().map(|it| (it.frames.messages, it.frames.bytes)).collect();
        self.report.most_messages = self.processes.iter().map(|it| it.messages).max().unwrap_or(0);
        for (process, pe) in self.processes.into_iter().zip(0..) {
            match process.ended {
                _ if process.dead => {}
                None => self.report.stuck += 1,
                Some((at, why)) => {
                    self.report.took = self.report.took.max(at);
                    self.report.failed.extend(why.map(|why| (pe, why)));
                }
            }
        }
        self.report
    }
}

fn receives(node: &mut Node, link: Link, message: &Message, now: Instant) {
    match message {
        Message::Frame(kind, payload) => node.frame(link, *kind, payload, now),
        Message::Closed => node.lost(link, now),
        Message::Hello(newcomer) => node.joined(link, *newcomer, now),
    }
}
