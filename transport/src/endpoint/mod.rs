//! One endpoint over several rails: the path from an operation to work requests and back.
//!
//! A PE has two endpoints: its *host endpoint* (driven by host threads; on one rail, while that works) and its *proxy
//! endpoint* (on all rails, driven by the engine). Both address only proxy endpoints, because those are always polled.
//! So a PE that computes without calling this library still serves its peers. Target agents answer the endpoint that
//! sent the request.
//!
//! An endpoint consists of its rails and thirteen structs, each with one concern:
//!
//! | struct | owns |
//! |---|---|
//! | `profile` | what the endpoint and its rails are, and the protocols of operations |
//! | `issuers` | the issuers of operations, and the results of these |
//! | `operations` | one record of each operation that has not ended |
//! | `lanes` | work under way on each lane; the lane of an operation; which operations wait because of a fence |
//! | `queue` | work requests until a rail has completed them |
//! | `segmentation` | the data of large operations in pieces, which give way to operations that are not segmented |
//! | `swap_loop::Loops` | AMOs that the endpoint performs by loops |
//! | `failover::Recovery` | recovery work for failed lanes |
//! | `observe` | counters, times, records |
//! | `paths` | the addresses at both ends of lanes, for pairing and messages |
//! | `clock` | time |
//! | `region`, `bounce` of the crate | memory that is registered with rails |
//!
//! An operation passes through [`command`], its description; `submit`, which checks and enters it; `lanes::order`, which
//! places it on a lane; `protocol`, which selects its form there; `launch`, which cuts it into work requests, `message`
//! for requests to target agents, or `inject` for small puts without a record; and `queue`, which hands work requests to
//! rails. `drive` polls, and `completion` turns reports of rails into ended operations. `software` gathers and coalesces
//! small operations for providers whose CPU moves the bytes; no operation over another provider enters it.
//!
//! Other files: `open` opens an endpoint and makes peers and memory known to it. `counted` has puts whose arrival the
//! target counts. `emulate` has AMOs by the provider; `abilities` lists what the provider can do, and `swap_loop`
//! replaces what it lacks. `failover` handles failed lanes and dead peers, and `membership` peers that come and go.
//!
//! # Delivery
//! An operation is finished only when it is visible at its target: writes ask for delivery, and the target agent
//! acknowledges requests. One exception saves acknowledgements. On a single lane that keeps writes in order and
//! messages behind writes, small writes are posted without a completion, and [`Endpoint::start_quiet`] sends one flush
//! request behind all of them.
//!
//! Where the target's CPU moves the bytes anyway, the smallest puts are requests to its agent instead, many to a
//! message.
//!
//! An operation that a quiet follows at once is faster with a completion or acknowledgement of its own; `wait_predictor`
//! predicts this. So are puts that no quiet completes: flags, and puts that are `counted` where they arrive.
//!
//! # Inlining
//! The steps from a command to its post, and from a completion to the operation's end, are small, and each has only a
//! few callers. They are `inline(always)`: a call would cost as much as the step itself, and would repeat the caller's
//! checks.

mod abilities;
mod clock;
pub mod command;
mod completion;
mod counted;
mod drive;
mod emulate;
mod failover;
mod inject;
mod issuers;
mod lanes;
mod launch;
mod membership;
mod message;
mod observe;
mod open;
mod operations;
mod paths;
mod profile;
mod protocol;
mod protocol_table;
mod queue;
mod segmentation;
mod software;
mod submit;
mod swap_loop;
mod wait_predictor;

use clock::Clock;
use command::OpHandle;
pub use completion::NoAgent;
pub use counted::Part;
use failover::Recovery;
use issuers::Issuers;
pub use lanes::LaneSpeed;
use lanes::Lanes;
use observe::Observer;
pub use observe::{LaneCounters, Latency, Record};
use operations::Operations;
use paths::Paths;
use profile::Profile;
pub use profile::{Policy, Role};
pub use protocol_table::ProtocolRow;
use queue::SendQueue;
use segmentation::Segmentation;
use swap_loop::Loops;

use std::ops::Range;
use std::sync::Arc;

use crate::bounce::Bounce;
use crate::error::Result;
use crate::pe::Pe;
use crate::rail::{Rail, RailCaps};
use crate::region::Regions;
use crate::wire::Request;

/// Applies requests of peers to this PE's memory.
pub trait TargetAgent {
    /// Handles a request that arrived over `lane`, from a PE that exists. Offsets and lengths in it are unchecked.
    fn request(&mut self, lane: usize, request: &Request, payload: &[u8]);

    /// Counts an arrived put in the word at this symmetric offset, which is unchecked.
    fn count(&mut self, word: u64);
}

/// The addresses of a PE's rails, which all other PEs need to connect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The host endpoint's rails; empty for a PE that has no host endpoint.
    pub host: Vec<Vec<u8>>,
    /// The proxy endpoint's rails, in the order of the keys of its segments.
    pub proxy: Vec<Vec<u8>>,
}

/// Provides what an endpoint needs to reach a PE that it first addresses or hears of.
pub trait Directory: Send + Sync {
    /// The addresses of a PE's rails; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed).
    fn addresses(&self, pe: Pe) -> Result<Option<Addresses>>;

    /// The keys of a PE's segment with this id, as its proxy endpoint's [`Endpoint::register`] returned them; `None`
    /// while they are not known.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed).
    fn keys(&self, pe: Pe, segment: u32) -> Result<Option<Vec<u8>>>;
}

/// An endpoint. It is not for concurrent use: the thread that drives it owns it.
pub struct Endpoint {
    // The rails are dropped first, because they may still access memory that `core` owns.
    rails: Vec<Box<dyn Rail>>,
    /// The directory of PEs that were not connected explicitly.
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
    /// Operations that have taken too long, and end when their rails have returned their work requests.
    late: Vec<OpHandle>,
    /// Deregistered buffers, by id, whose bytes work requests may still use.
    closing: Vec<(u32, Range<u64>)>,
    bounce: Bounce,
    queue: SendQueue,
    segmentation: Segmentation,
    recovery: Recovery,
    ops: Operations,
    issuers: Issuers,
    /// AMOs that the endpoint performs by loops.
    loops: Loops,
    paths: Paths,
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

    /// The number of lanes to peers that are out of use because they have failed.
    #[must_use]
    pub fn lanes_down(&self) -> u32 {
        self.core.lanes.down()
    }

    /// This PE's own segments, as the target agent and local operations use them.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.core.regions
    }

    /// The properties of the rails, in lane order.
    #[must_use]
    pub fn caps(&self) -> &[RailCaps] {
        self.core.profile.all_caps()
    }

    /// The number of its lanes that are used while all work.
    #[must_use]
    pub fn lanes_in_use(&self) -> usize {
        self.core.lanes.in_use()
    }

    /// Counters per lane.
    #[must_use]
    pub fn counters(&self) -> &[LaneCounters] {
        self.core.observer.counters()
    }

    /// The measured speed of each rail's lanes, as far as it is known: [`RailPolicy::Adaptive`] needs it.
    ///
    /// [`RailPolicy::Adaptive`]: crate::env::RailPolicy::Adaptive
    #[must_use]
    pub fn speeds(&self) -> Vec<Option<LaneSpeed>> {
        (0..self.rails.len()).map(|lane| self.core.lanes.speed(lane)).collect()
    }

    /// Records every work request from now on.
    pub fn record(&mut self) {
        self.core.observer.record();
    }

    /// Takes the records of completed work requests so far. Work requests that were posted without a completion have
    /// none.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.core.observer.take_records()
    }
}
