//! One endpoint over several rails: the path from an operation to work requests and back.
//!
//! A PE has two of them: its *host endpoint* (driven by host threads; on one rail, while that works) and its *proxy
//! endpoint* (on all rails, driven by the engine). Both only ever address proxy endpoints, because those are always
//! polled; that is why a peer that computes without calling us still serves. Target agents answer to the endpoint that
//! asked.
//!
//! An endpoint is its rails and eleven structs, each of which owns what it is about:
//!
//! | struct | owns |
//! |---|---|
//! | `profile` | what the endpoint and its rails are, and in which form these let operations travel |
//! | `issuers` | who has issued operations, and what became of them |
//! | `operations` | one record of each operation that has not ended |
//! | `lanes` | what is under way on each lane; which lane an operation takes, and what a fence makes wait |
//! | `queue` | work requests until a rail has completed them |
//! | `swap_loop::Loops` | AMOs that the provider does by loops |
//! | `failover::Recovery` | what has to be done because of lanes that have failed |
//! | `observe` | counters, times, records |
//! | `clock` | time |
//! | `region`, `bounce` of the crate | memory that rails know |
//!
//! An operation passes: [`command`], what can be asked; `submit`, which checks and enters it, or `quick`, for small
//! puts without an operation; `launch`, which cuts it into work requests, or `message`, for requests to target agents;
//! `queue`, which hands them to rails. `drive` polls, and `completion` turns what rails report into ended operations.
//! Beside that path: `open` makes an endpoint and its peers and memory known to it; `counted` is for puts whose arrival
//! the target counts; `emulate` is AMOs by the provider, which has `abilities`, with a `swap_loop` for what it lacks;
//! `failover` does without lanes and peers that have failed.
//!
//! # Delivery
//! Every operation is finished only when it is visible at its target: writes ask for delivery, requests are
//! acknowledged by the target agent. One exception saves an acknowledgement each: on a single lane that keeps writes in
//! order and messages behind writes, small writes are posted without a completion, and [`Endpoint::start_quiet`] sends
//! one flush request behind them all. Where the target's CPU moves the bytes anyway, the smallest puts are requests to
//! its agent instead, many to a message. An operation that is followed by a quiet at once is better off with a
//! completion or acknowledgement of its own; `issuers` predicts which is the case. So are puts that no quiet completes:
//! flags, and puts that are `counted` where they arrive.
//!
//! # Inlining
//! The steps from a command to its post, and from a completion to the operation's end, are small, and each is called
//! from a few places. They are inlined by force: a call would cost as much as the step itself, and repeat what its
//! caller has checked.

mod abilities;
mod clock;
pub mod command;
mod completion;
mod counted;
mod drive;
mod emulate;
mod failover;
mod issuers;
mod lanes;
mod launch;
mod message;
mod observe;
mod open;
mod operations;
mod profile;
mod queue;
mod quick;
mod submit;
mod swap_loop;

use clock::Clock;
pub use completion::NoAgent;
use failover::Recovery;
use issuers::Issuers;
use lanes::Lanes;
use observe::Observer;
pub use observe::{LaneCounters, Latency, Record};
use operations::Operations;
use profile::Profile;
pub use profile::{Policy, Role};
use queue::SendQueue;
use swap_loop::Loops;

use std::sync::Arc;

use crate::bounce::Bounce;
use crate::error::Result;
use crate::pe::Pe;
use crate::rail::{Rail, RailCaps};
use crate::region::Regions;
use crate::wire::Request;

/// What applies requests of peers to this PE's memory.
pub trait TargetAgent {
    /// A request arrived over `lane`, from a PE that exists. Offsets and lengths in it are unchecked.
    fn request(&mut self, lane: usize, request: &Request, payload: &[u8]);

    /// What a peer has put is here, and is to be counted in the word at this symmetric offset, which is unchecked.
    fn count(&mut self, word: u64);
}

/// What a PE tells all others so that they can connect: the addresses of its rails.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The host endpoint's rails, in lane order; empty for a PE that has no host endpoint.
    pub host: Vec<Vec<u8>>,
    /// The proxy endpoint's rails, in lane order.
    pub proxy: Vec<Vec<u8>>,
}

/// Where an endpoint finds what it takes to reach a PE when it first has to do with it.
pub trait Directory: Send + Sync {
    /// The addresses of a PE's rails; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed).
    fn addresses(&self, pe: Pe) -> Result<Option<Addresses>>;

    /// The keys of a PE's segment with this id, as its proxy endpoint's [`Endpoint::register`] gave them; `None` while
    /// they are not known.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed).
    fn keys(&self, pe: Pe, segment: u32) -> Result<Option<Vec<u8>>>;
}

/// An endpoint. Not for concurrent use: whoever drives it owns it.
pub struct Endpoint {
    // Dropped first: rails may still access memory that `core` owns.
    rails: Vec<Box<dyn Rail>>,
    /// Where PEs are found that were not connected by name.
    directory: Option<Arc<dyn Directory>>,
    core: Core,
}

/// Everything but the rails, so that a rail that is being polled can report into it.
struct Core {
    profile: Profile,
    clock: Clock,
    observer: Observer,
    lanes: Lanes,
    regions: Regions,
    bounce: Bounce,
    queue: SendQueue,
    recovery: Recovery,
    ops: Operations,
    issuers: Issuers,
    /// AMOs that the provider does by loops.
    loops: Loops,
}

// SAFETY: the raw pointers inside are buffers of operations in flight, whose owners promised (`submit`) to keep them
// valid whichever thread completes the operation; nothing else in here is tied to a thread.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// The PE whose endpoint this is.
    #[must_use]
    pub fn me(&self) -> Pe {
        self.core.profile.me()
    }

    /// The number of PEs in the job.
    #[must_use]
    pub fn n_pes(&self) -> u32 {
        self.core.profile.n_pes()
    }

    /// How it behaves.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.core.profile.policy()
    }

    /// How many lanes to peers are out of use because they have failed.
    #[must_use]
    pub fn lanes_down(&self) -> u32 {
        self.core.lanes.down()
    }

    /// This PE's own segments, as the target agent and local operations see them.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.core.regions
    }

    /// What the rails are and can do, in lane order.
    #[must_use]
    pub fn caps(&self) -> &[RailCaps] {
        self.core.profile.all_caps()
    }

    /// How many of its lanes are used while all work.
    #[must_use]
    pub fn lanes_in_use(&self) -> usize {
        self.core.lanes.in_use()
    }

    /// Counters per lane.
    #[must_use]
    pub fn counters(&self) -> &[LaneCounters] {
        self.core.observer.counters()
    }

    /// Records every work request from now on.
    pub fn record(&mut self) {
        self.core.observer.record();
    }

    /// Takes what has been recorded so far of completed work requests. What was posted without a completion is not
    /// among it.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.core.observer.take_records()
    }
}
