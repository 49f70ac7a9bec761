//! Memory that no rail and no CPU reaches: operations on it go through a window of host memory.
//!
//! Where a fabric cannot read a GPU's memory, or the memory is somebody's stand-in for that, rails get to see the
//! *window* only: host memory of the mover's, registered with every rail. An operation is cut into pieces, each with a
//! chunk of the window at its source and one at its target:
//!
//! | operation on such memory at the target | the source | the target |
//! |---|---|---|
//! | put of more than a message holds | copies a piece to its chunk, sends `Pull` | reads the chunk into its own, copies that to its memory |
//! | smaller put, put-signal | sends the bytes | copies them to its memory, then updates the signal |
//! | get | sends `Push`; copies its chunk to where it belongs when that is done | copies a piece to its chunk, writes that to the source's |
//! | AMO, signal | sends it | `words`: reads the word, applies it, writes it back |
//! | large put or get, where rails do reach the memory | a put or get between one memory and the other | nothing |
//! | put or get, where the source's device has mapped the target's memory | has its mover copy between the two | nothing |
//!
//! All but the last two are an [`Ask`](symrail_transport::endpoint::job::Ask), whose outcome the target tells when the
//! bytes are where they belong: what completes is delivered. Targets read and write windows, never sources, so a source
//! needs no room at its target and nobody waits for anybody's chunks but its own; and chunks for serving peers are not
//! those for one's own operations. Where only the *local* buffer is such memory, the chunk is the local buffer of an
//! ordinary put or get.
//!
//! Rails that do reach it (GPUDirect: [`Engine::register_direct`](crate::Engine::register_direct)) move what is too
//! large for a message, both ends' rails willing. Words stay the target's to change, and what is in a message its to
//! copy: so signals, AMOs and data of all sizes keep one order, and no NIC needs to be atomic with anything.
//!
//! A device that has [mapped](crate::Engine::map_peers) a peer's memory (GPUs of one host) copies between that and its
//! own by itself. A signal goes behind such a copy when that has ended.
//!
//! # Order
//! Pieces are on their way in any order. So a fence holds later operations back, here, until earlier ones to the same
//! PE have completed. A signal goes with the last piece if there is one only, else after all pieces.
//!
//! | file | concept |
//! |---|---|
//! | `window` | the window, cut into chunks |
//! | `source` | this PE's operations, from their start to their end |
//! | `order` | who waits for whom because of a fence |
//! | `cut` | cutting them into pieces |
//! | `account` | what issuers are told of them |
//! | `operation` | one of them: which memory it is about, what its pieces ask for |
//! | `peers` | memory of peers that the device has mapped |
//! | `target` | what peers ask for |
//! | `words` | atomics and signals |
//! | `batch` | small copies, made together |

mod account;
mod batch;
mod cut;
mod operation;
mod order;
mod peers;
mod source;
mod target;
mod window;
mod words;

use symrail_heap::Mover;
use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::job::{Finished, Issue, Issuer, Job};
use symrail_transport::region::{Regions, Segment};
use symrail_transport::{Error, Pe, Result};

use crate::agent::Agent;
use batch::{BATCH_BYTES, Copies};
use peers::Peers;
use source::{MAX_OPERATIONS, Source};
use target::Target;
use window::{POOL_BYTES, POOL_CHUNKS, Pool};

/// What the mover's window has to hold, in bytes.
pub const WINDOW_BYTES: usize = 2 * POOL_BYTES + BATCH_BYTES;
/// Copies that the mover has under way at most: one for each chunk, and one for each operation between memory that its
/// device reaches.
pub const MAX_COPIES: usize = 2 * POOL_CHUNKS + MAX_OPERATIONS;
/// The id under which every PE's window is registered.
pub const WINDOW_ID: u32 = 0xffff_fff0;
/// The symmetric offset of the window: beyond every heap.
pub const WINDOW_OFFSET: u64 = 1 << 62;

/// What both sides work with.
struct Tools<'a> {
    copies: &'a mut Copies,
    endpoint: &'a mut Endpoint,
    /// Segments and buffers that the CPU cannot touch.
    memory: &'a Regions,
    /// Memory that the mover copies to and from like its own.
    peers: &'a Peers,
    issuer: Issuer,
}

/// Whose copy, or whose operation of the endpoint's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ticket {
    Piece(usize),
    Task(usize),
    Word(usize),
    Run(usize),
}

impl Ticket {
    fn encode(self) -> u64 {
        let (key, kind) = match self {
            Ticket::Piece(key) => (key, 0),
            Ticket::Task(key) => (key, 1),
            Ticket::Word(key) => (key, 2),
            Ticket::Run(key) => (key, 3),
        };
        (key as u64) << 2 | kind
    }

    fn decode(bits: u64) -> Ticket {
        let key = (bits >> 2) as usize;
        match bits & 3 {
            0 => Ticket::Piece(key),
            1 => Ticket::Task(key),
            2 => Ticket::Word(key),
            _ => Ticket::Run(key),
        }
    }
}

/// What the tools are made from, which lasts as long as staging does.
struct Means {
    copies: Copies,
    memory: Regions,
    peers: Peers,
    issuer: Issuer,
}

impl Means {
    fn with<'a>(&'a mut self, endpoint: &'a mut Endpoint) -> Tools<'a> {
        Tools { copies: &mut self.copies, endpoint, memory: &self.memory, peers: &self.peers, issuer: self.issuer }
    }
}

/// Staging: one per engine.
pub struct Stage {
    means: Means,
    source: Source,
    target: Target,
}

impl Stage {
    /// Staging by `mover`, whose operations on the endpoint are `issuer`'s.
    ///
    /// # Errors
    /// The mover's window is smaller than [`WINDOW_BYTES`].
    pub(crate) fn new(mover: Box<dyn Mover>, issuer: Issuer, n_pes: u32, timeout_s: u64) -> Result<Self> {
        let (base, bytes) = mover.window();
        if bytes < WINDOW_BYTES {
            return Err(Error::Unsupported {
                what: format!("staging through a window of {bytes} bytes"),
                by: "the proxy".into(),
                remedy: format!("give the mover a window of {WINDOW_BYTES} bytes"),
            });
        }
        let mine = Pool::new(base, WINDOW_OFFSET);
        // SAFETY: inside of the window, whose size was checked.
        let theirs = Pool::new(unsafe { base.add(POOL_BYTES) }, WINDOW_OFFSET + POOL_BYTES as u64);
        // SAFETY: as above.
        let copies = Copies::new(mover, unsafe { base.add(2 * POOL_BYTES) });
        Ok(Stage {
            means: Means { copies, memory: Regions::new(0), peers: Peers::default(), issuer },
            source: Source::new(mine, n_pes, timeout_s),
            target: Target::new(theirs),
        })
    }

    /// The window, to be registered with all rails.
    pub(crate) fn window(&self) -> Segment {
        let (base, bytes) = self.means.copies.window();
        // SAFETY: host memory that the mover keeps as long as it lives, and gives to nobody else.
        unsafe { Segment::new(WINDOW_ID, WINDOW_OFFSET, base.as_ptr(), bytes as u64) }
    }

    /// Adds a segment of symmetric memory that the CPU cannot touch. All PEs have it at the same offset.
    pub(crate) fn add_segment(&mut self, segment: Segment) {
        self.means.memory.add(segment, Vec::new());
    }

    /// See [`Engine::map_peers`](crate::Engine::map_peers).
    pub(crate) fn map_peers(&mut self, me: Pe, segment: &Segment, mut bases: Vec<usize>) -> Vec<(Pe, String)> {
        let mut refused = Vec::new();
        for (base, pe) in bases.iter_mut().zip(0..) {
            if pe == me {
                // The device may copy within its memory by a kernel, for which there is no room while another one
                // spins.
                *base = 0;
            } else if *base != 0
                && let Err(why) = self.means.copies.mover().meet(*base)
            {
                *base = 0;
                refused.push((pe, why));
            }
        }
        self.means.peers = Peers::new(segment, bases);
        refused
    }

    /// Forgets a segment.
    pub(crate) fn remove_segment(&mut self, id: u32) {
        self.means.memory.remove(id);
    }

    /// See [`Engine::learn_staged`](crate::Engine::learn_staged).
    pub(crate) fn learn_apart(&mut self, pe: (Pe, u32), offset: u64, len: u64) -> Result<()> {
        // Rails do not reach it, so there are no keys; a card has one at least.
        self.means.memory.learn_apart(pe, offset, len, &[0; 16])
    }

    /// Forgets what was learnt so.
    pub(crate) fn forget_apart(&mut self, pe: Pe, offset: u64) {
        self.means.memory.forget_apart(pe, offset);
    }

    /// See [`Mover::see_writes`].
    pub(crate) fn see_writes(&mut self) {
        self.means.copies.mover().see_writes();
    }

    /// Adds a local buffer that the CPU cannot touch.
    ///
    /// # Safety
    /// As for [`Engine::add_staged_buffer`](crate::Engine::add_staged_buffer).
    pub(crate) unsafe fn add_buffer(&mut self, base: *mut u8, len: usize, id: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.means.memory.add_buffer(base, len, id, Vec::new()) };
    }

    /// Forgets a buffer.
    pub(crate) fn remove_buffer(&mut self, base: *const u8) {
        if let Some(id) = self.means.memory.buffer_starting_at(base) {
            self.means.memory.remove_buffer(id);
        }
    }

    /// Segments and buffers that the CPU cannot touch.
    pub(crate) fn memory(&self) -> &Regions {
        &self.means.memory
    }

    /// Starts an operation, whichever memory it is about.
    ///
    /// # Safety
    /// As for [`Endpoint::submit`].
    pub(crate) unsafe fn submit(&mut self, endpoint: &mut Endpoint, pe: Pe, job: Job, issue: Issue) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.source.submit(self.means.with(endpoint), pe, job, issue) }
    }

    /// Orders what comes after it behind what came before it, per destination.
    pub(crate) fn fence(&mut self) {
        self.source.fence();
    }

    /// Whether there is room for another operation.
    pub(crate) fn ready(&self) -> bool {
        self.source.ready()
    }

    /// Whether everything that `issuer` issued here is complete.
    pub(crate) fn is_quiet(&self, issuer: Issuer) -> bool {
        self.source.accounts.is_quiet(issuer)
    }

    /// The first error since it was last asked for, of operations without a tag.
    pub(crate) fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        self.source.accounts.take_error(issuer)
    }

    /// Takes the end of an operation that staging itself had started.
    pub(crate) fn came(&mut self, endpoint: &mut Endpoint, agent: &mut Agent, finished: Finished) {
        let tools = self.means.with(endpoint);
        match Ticket::decode(finished.tag) {
            Ticket::Piece(key) => self.source.came(tools, key, finished.result.map_err(|error| *error)),
            Ticket::Task(key) => self.target.came(tools, agent, key, finished.result.map_err(|error| *error)),
            Ticket::Word(_) | Ticket::Run(_) => {}
        }
    }

    /// Looks at copies and goes on with what waits. Returns how much happened.
    pub(crate) fn poll(&mut self, endpoint: &mut Endpoint, agent: &mut Agent) -> usize {
        let mut ended = std::mem::take(&mut self.source.ended);
        let events = self.means.copies.poll(&mut ended);
        let mut tools = self.means.with(endpoint);
        for moved in ended.drain(..) {
            match Ticket::decode(moved.ticket) {
                Ticket::Piece(key) => self.source.moved(&mut tools, key, moved.result),
                Ticket::Task(key) => self.target.moved(&mut tools, agent, key, moved.result),
                Ticket::Word(key) => self.target.word_moved(&mut tools, agent, key, moved.result.is_ok()),
                Ticket::Run(_) => {}
            }
        }
        self.source.ended = ended;
        self.target.poll(&mut tools, agent);
        self.source.poll(&mut tools);
        self.means.copies.flush();
        events
    }

    /// The next finished operation that had a tag.
    pub(crate) fn next_finished(&mut self) -> Option<Finished> {
        self.source.accounts.next_finished()
    }

    /// Whether only polling brings something forward: nothing wakes a sleeper when a copy has ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.means.copies.pending() > 0 || self.source.is_busy() || self.target.is_busy()
    }

    /// Tells the time in whole seconds; fails operations that are too old.
    pub(crate) fn tick(&mut self, now_s: u32) {
        self.source.tick(now_s);
    }
}
