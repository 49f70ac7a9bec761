//! What a mock fabric promises, and which faults it injects.

use crate::rail::Order;

/// What a fabric promises, and which faults it injects. Probabilities are in parts of 256.
#[derive(Debug, Clone, Copy)]
pub struct FabricConfig {
    /// What is promised about order within a connection; the rest is reordered.
    pub order: Order,
    /// A step of the fabric does not move a given connection.
    pub delay: u8,
    /// A post is refused although there is room.
    pub again: u8,
    /// A completion is reported a second time.
    pub repeat: u8,
    /// A work request fails without effect.
    pub fail: u8,
    /// Largest write or read in bytes.
    pub max_rma: usize,
    /// Largest post without completion in bytes.
    pub inject: usize,
    /// See [`RailCaps::polls_post`](crate::rail::RailCaps::polls_post).
    pub polls_post: bool,
    /// Most pieces of a write or read.
    pub pieces: usize,
    /// Local buffers must be registered.
    pub local_registration: bool,
    /// Messages are as cheap as writes; see [`RailCaps::software`](crate::rail::RailCaps::software).
    pub software: bool,
    /// Rails that fail may leave connections of which one end does not know; see
    /// [`RailCaps::half_open`](crate::rail::RailCaps::half_open).
    pub half_open: bool,
    /// Connections that were cut have to be renewed by both ends; see [`Rail::renew`](crate::rail::Rail::renew).
    pub renews: bool,
    /// Work requests that may be outstanding on one rail.
    pub queue_depth: usize,
    /// Bytes that should be under way to one destination.
    pub window: u64,
    /// Rails perform atomics as NICs do: additions and compare-swaps of 64-bit words, which are atomic with those of
    /// the same rail only. An AMO on a word that came over another rail before is failed.
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
            queue_depth: 64,
            window: u64::MAX,
            atomics: false,
        }
    }
}
