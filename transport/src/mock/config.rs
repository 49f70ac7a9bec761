//! The guarantees of a mock fabric, and the faults that it injects.

use crate::rail::Order;

/// The guarantees of a fabric, and the faults that it injects. Probabilities are in parts of 256.
#[derive(Debug, Clone, Copy)]
pub struct FabricConfig {
    /// The order that is guaranteed within a connection; everything else is reordered.
    pub order: Order,
    /// Probability that a step of the fabric does not move a given connection.
    pub delay: u8,
    /// Probability that a post is refused although there is room.
    pub again: u8,
    /// Probability that a completion is reported a second time.
    pub repeat: u8,
    /// Probability that a work request fails without effect.
    pub fail: u8,
    /// Largest write or read in bytes.
    pub max_rma: usize,
    /// Largest post without completion in bytes.
    pub inject: usize,
    /// See [`RailCaps::polls_post`](crate::rail::RailCaps::polls_post).
    pub polls_post: bool,
    /// Most pieces of a write or read.
    pub pieces: usize,
    /// Whether local buffers must be registered.
    pub local_registration: bool,
    /// Whether messages are as cheap as writes. See [`RailCaps::software`](crate::rail::RailCaps::software).
    pub software: bool,
    /// Whether a failing rail may leave connections that only one end knows to be broken. See
    /// [`RailCaps::half_open`](crate::rail::RailCaps::half_open).
    pub half_open: bool,
    /// Whether both ends have to renew a connection that was cut. See [`Rail::renew`](crate::rail::Rail::renew).
    pub renews: bool,
    /// Whether a rail tells that a destination is silent. See [`Rail::is_silent`](crate::rail::Rail::is_silent).
    pub tells_silence: bool,
    /// Work requests that may be outstanding on one rail.
    pub queue_depth: usize,
    /// Bytes under way to one destination, as [`RailCaps::window`](crate::rail::RailCaps::window).
    pub window: u64,
    /// Whether rails perform atomics as NICs do: additions and compare-swaps of 64-bit words, which are atomic only
    /// with those of the same rail. An AMO fails if an earlier one on the same word used another rail.
    pub atomics: bool,
}

impl Default for FabricConfig {
    fn default() -> Self {
        let order =
            Order { write_after_write: true, send_after_write: true, send_after_send: true, amo_after_write: true };
        FabricConfig {
            order,
            delay: 128,
            again: 16,
            repeat: 0,
            fail: 0,
            max_rma: 1 << 20,
            inject: 64,
            polls_post: false,
            pieces: 4,
            local_registration: false,
            software: true,
            half_open: false,
            renews: false,
            tells_silence: false,
            queue_depth: 64,
            window: u64::MAX,
            atomics: false,
        }
    }
}
