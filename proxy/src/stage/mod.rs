//! Staging: operations on memory that neither rails nor the CPU can access go through a staging buffer of host memory.
//!
//! Some fabrics cannot read a GPU's memory. Then rails access only the *staging buffer*: host memory of the copy engine
//! that is registered with every rail. An operation is split into fragments. Each has a chunk of the staging buffer at
//! its source and one at its target:
//!
//! | operation on such memory at the target | the source | the target |
//! |---|---|---|
//! | put larger than a message | copies a fragment to its chunk, sends `Pull` | reads that chunk, copies it to memory |
//! | smaller put, put-signal | sends the bytes | copies them to memory, then updates the signal |
//! | get | sends `Push`, copies its chunk to the destination | copies to a chunk, writes the source's chunk |
//! | AMO, signal | sends it | `words`: reads the word, applies it, writes it back |
//! | large put or get, rails reach the memory | posts a put or get between the two memories | nothing |
//! | put or get, the device has mapped the memory | lets its copy engine copy between the two | nothing |
//!
//! All but the last two are an `AgentRequest`. The target reports its outcome when the
//! bytes are delivered. Targets read and write sources' staging buffers, never the reverse. So a source needs no room
//! at its target, and each PE waits for its own chunks only. Chunks that serve peers are separate from those of a PE's
//! own operations. Where only the *local* buffer is such memory, a chunk is the local buffer of an ordinary put or get.
//!
//! Rails that reach the memory (GPUDirect: [`Engine::register_direct`](crate::Engine::register_direct)) move what is
//! too large for a message, if both ends' rails do. Words and messages remain the target's task, so that signals, AMOs
//! and data keep one order and no NIC has to be atomic with the CPU.
//!
//! A device that has [mapped](crate::Engine::map_peers) a peer's memory (GPUs of one host) copies by itself. A signal
//! follows such a copy when the copy has ended.
//!
//! # Order
//! Fragments arrive in any order. So a fence holds later operations back until earlier ones to the same PE have
//! completed. A signal travels with the only fragment, or after all of several.
//!
//! | file | concept |
//! |---|---|
//! | `context` | the state that these files share in one call, and the owner of a copy |
//! | `staging_buffer` | the staging buffer, divided into chunks |
//! | `source` | this PE's operations, from start to end |
//! | `order` | operations that fences hold back |
//! | `split` | splitting operations into fragments |
//! | `account` | results for issuers |
//! | `operation` | one operation: its memory, and the messages of its fragments |
//! | `peers` | memory of peers that the device has mapped |
//! | `target` | peers' requests |
//! | `words` | atomics and signals |
//! | `batch` | small copies, made together |

mod account;
mod batch;
mod context;
mod operation;
mod order;
mod peers;
mod source;
mod split;
mod staging_buffer;
mod target;
mod words;

use symrail_heap::CopyEngine;
use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::command::{Command, Finished, Issuer, Owner};
use symrail_transport::region::{Regions, Segment};
use symrail_transport::{Error, Pe, Result};

use crate::agent::Agent;
use batch::{BATCH_BYTES, Copies};
use context::{StageContext, Ticket};
use peers::Peers;
use source::{MAX_OPERATIONS, Source};
use staging_buffer::{POOL_BYTES, POOL_CHUNKS, Pool};
pub use staging_buffer::{STAGING_BUFFER_ID, STAGING_BUFFER_OFFSET};
use target::Target;
pub use words::WordLocks;

/// Size of the staging buffer, in bytes.
pub const STAGING_BUFFER_BYTES: usize = 2 * POOL_BYTES + BATCH_BYTES;
/// Limit of concurrent copies of the copy engine: one for each chunk, and one for each operation between two memories
/// that its device can access.
pub const MAX_COPIES: usize = 2 * POOL_CHUNKS + MAX_OPERATIONS;
/// State that lives as long as staging.
struct StageResources {
    copies: Copies,
    memory: Regions,
    peers: Peers,
    issuer: Issuer,
}

impl StageResources {
    fn with<'a>(&'a mut self, endpoint: &'a mut Endpoint) -> StageContext<'a> {
        StageContext {
            copies: &mut self.copies,
            endpoint,
            memory: &self.memory,
            peers: &self.peers,
            issuer: self.issuer,
        }
    }
}

/// Staging: one per engine.
pub struct Stage {
    resources: StageResources,
    source: Source,
    target: Target,
}

impl Stage {
    /// Staging by `copy_engine`. Its operations on the endpoint belong to `issuer`.
    ///
    /// # Errors
    /// The copy engine's staging buffer is smaller than [`STAGING_BUFFER_BYTES`].
    pub(crate) fn new(copy_engine: Box<dyn CopyEngine>, issuer: Issuer, n_pes: u32, timeout_s: u64) -> Result<Self> {
        let (base, bytes) = copy_engine.staging_buffer();
        if bytes < STAGING_BUFFER_BYTES {
            return Err(Error::Unsupported {
                what: format!("staging through a staging_buffer of {bytes} bytes"),
                by: "the proxy".into(),
                remedy: format!("give the copy_engine a staging_buffer of {STAGING_BUFFER_BYTES} bytes"),
            });
        }
        let mine = Pool::new(base, STAGING_BUFFER_OFFSET);
        // SAFETY: inside of the staging buffer, whose size was checked.
        let theirs = Pool::new(unsafe { base.add(POOL_BYTES) }, STAGING_BUFFER_OFFSET + POOL_BYTES as u64);
        // SAFETY: as above.
        let copies = Copies::new(copy_engine, unsafe { base.add(2 * POOL_BYTES) });
        Ok(Stage {
            resources: StageResources { copies, memory: Regions::new(0), peers: Peers::default(), issuer },
            source: Source::new(mine, n_pes, timeout_s),
            target: Target::new(theirs),
        })
    }

    /// The staging buffer, to be registered with all rails.
    pub(crate) fn staging_buffer(&self) -> Segment {
        let (base, bytes) = self.resources.copies.staging_buffer();
        // SAFETY: host memory that the copy engine keeps as long as it lives, and shares with no other user.
        unsafe { Segment::new(STAGING_BUFFER_ID, STAGING_BUFFER_OFFSET, base.as_ptr(), bytes as u64) }
    }

    /// See [`Engine::share_words`](crate::Engine::share_words).
    pub(crate) fn share_words(&mut self, locks: WordLocks) {
        self.target.share_words(locks);
    }

    /// Adds a segment of symmetric memory that the CPU cannot touch. All PEs have it at the same offset.
    pub(crate) fn add_segment(&mut self, segment: Segment) {
        self.resources.memory.add(segment, Vec::new());
    }

    /// See [`Engine::map_peers`](crate::Engine::map_peers).
    pub(crate) fn map_peers(&mut self, me: Pe, segment: &Segment, mut bases: Vec<usize>) -> Vec<(Pe, String)> {
        let mut refused = Vec::new();
        for (base, pe) in bases.iter_mut().zip(0..) {
            if pe == me {
                // The device may copy within its memory by a kernel, which cannot run while another kernel spins.
                *base = 0;
            } else if *base != 0
                && let Err(why) = self.resources.copies.copy_engine().prepare_peer(*base)
            {
                *base = 0;
                refused.push((pe, why));
            }
        }
        self.resources.peers = Peers::new(segment, bases);
        refused
    }

    /// Forgets a segment.
    pub(crate) fn remove_segment(&mut self, id: u32) {
        self.resources.memory.remove(id);
    }

    /// See [`Engine::learn_staged`](crate::Engine::learn_staged).
    pub(crate) fn learn_separate(&mut self, pe: (Pe, u32), offset: u64, len: u64) -> Result<()> {
        // Rails cannot access it, so it has no keys, but connection info needs at least one entry.
        self.resources.memory.learn_separate(pe, offset, len, &[0; 16])
    }

    /// Forgets a PE, unless operations to it are under way. Returns whether it has.
    pub(crate) fn forget_pe(&mut self, pe: Pe) -> bool {
        let over = self.source.forget_pe(pe);
        if over {
            self.resources.memory.forget_all_of(pe);
        }
        over
    }

    /// Forgets such memory.
    pub(crate) fn forget_separate(&mut self, pe: Pe, offset: u64) {
        self.resources.memory.forget_separate(pe, offset);
    }

    /// See [`CopyEngine::flush_nic_writes`].
    pub(crate) fn flush_nic_writes(&mut self) {
        self.resources.copies.copy_engine().flush_nic_writes();
    }

    /// Adds a local buffer that the CPU cannot touch.
    ///
    /// # Safety
    /// As for [`Engine::add_staged_buffer`](crate::Engine::add_staged_buffer).
    pub(crate) unsafe fn add_buffer(&mut self, base: *mut u8, len: usize, id: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.resources.memory.add_buffer(base, len, id, Vec::new()) };
    }

    /// Forgets a buffer.
    pub(crate) fn remove_buffer(&mut self, base: *const u8, id: u32) {
        self.resources.memory.remove_buffer(base.addr(), id);
    }

    /// Segments and buffers that the CPU cannot touch.
    pub(crate) fn memory(&self) -> &Regions {
        &self.resources.memory
    }

    /// Starts an operation on any kind of memory.
    ///
    /// # Safety
    /// As for [`Endpoint::submit`].
    pub(crate) unsafe fn submit(
        &mut self,
        endpoint: &mut Endpoint,
        pe: Pe,
        command: Command,
        owner: Owner,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.source.submit(self.resources.with(endpoint), pe, command, owner) }
    }

    /// Orders later operations behind earlier ones, per destination.
    pub(crate) fn fence(&mut self) {
        self.source.fence();
    }

    /// Whether there is room for another operation.
    pub(crate) fn ready(&self) -> bool {
        self.source.ready()
    }

    /// Whether all operations that `issuer` issued here are complete.
    pub(crate) fn is_quiet(&self, issuer: Issuer) -> bool {
        self.source.accounts.is_quiet(issuer)
    }

    /// The first error of operations without a tag since the last call.
    pub(crate) fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        self.source.accounts.take_error(issuer)
    }

    /// Handles the end of an operation that staging itself started.
    pub(crate) fn operation_ended(&mut self, endpoint: &mut Endpoint, agent: &mut Agent, finished: Finished) {
        let ctx = self.resources.with(endpoint);
        match Ticket::decode(finished.tag) {
            Ticket::Fragment(key) => self.source.operation_ended(ctx, key, finished.result.map_err(|error| *error)),
            Ticket::Task(key) => self.target.operation_ended(ctx, agent, key, finished.result.map_err(|error| *error)),
            Ticket::Word(_) | Ticket::Run(_) => {}
        }
    }

    /// Polls copies and continues what waited for them. Returns the number of events.
    pub(crate) fn poll(&mut self, endpoint: &mut Endpoint, agent: &mut Agent) -> usize {
        let mut ended = std::mem::take(&mut self.source.ended);
        let events = self.resources.copies.poll(&mut ended);
        let mut ctx = self.resources.with(endpoint);
        for moved in ended.drain(..) {
            match Ticket::decode(moved.ticket) {
                Ticket::Fragment(key) => self.source.copy_ended(&mut ctx, key, moved.result),
                Ticket::Task(key) => self.target.copy_ended(&mut ctx, agent, key, moved.result),
                Ticket::Word(key) => self.target.word_copied(&mut ctx, agent, key, moved.result.is_ok()),
                Ticket::Run(_) => {}
            }
        }
        self.source.ended = ended;
        self.target.poll(&mut ctx, agent);
        self.source.poll(&mut ctx);
        self.resources.copies.flush();
        events
    }

    /// The next finished operation that had a tag.
    pub(crate) fn next_finished(&mut self) -> Option<Finished> {
        self.source.accounts.next_finished()
    }

    /// Whether polling is needed, because the end of a copy wakes no thread.
    pub(crate) fn is_busy(&self) -> bool {
        self.resources.copies.pending() > 0 || self.source.is_busy() || self.target.is_busy()
    }

    /// Sets the time, in whole seconds; fails operations that are too old.
    pub(crate) fn tick(&mut self, now_s: u32) {
        self.source.tick(now_s);
    }
}
