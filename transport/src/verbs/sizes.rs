//! The sizes of a rail's queues.

use verbs_sys as sys;

use super::discover::Nic;
use super::receive::RECEIVES;
use crate::error::{Error, Result};

/// Completions for which a rail has room, at most, beyond those that one queue pair needs.
const COMPLETIONS: u32 = 8192;
/// Work requests for which all send queues of a rail together have room. Each needs a cache line or more, so queues are
/// shorter in a job of many PEs.
const SEND_QUEUES: u32 = 64 << 10;
/// The shortest send queue, which keeps a NIC busy with one destination.
const SHORTEST: u32 = 64;

/// The lengths of the queues.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// The length of each send queue.
    pub(super) depth: u32,
    /// Credits: work requests over all send queues.
    pub(super) credits: u32,
    /// The number of posted receives.
    pub(super) receives: u32,
}

impl Sizes {
    /// The lengths for a rail with so many destinations; `depth` is the limit of a send queue.
    pub(super) fn new(device: &sys::ibv_device_attr, destinations: u32, depth: u32, nic: &Nic) -> Result<Sizes> {
        let limit = |value: i32| u32::try_from(value).unwrap_or(0);
        let unsupported = |what: String, remedy: &str| {
            Err(Error::Unsupported { what, by: nic.device.clone(), remedy: remedy.into() })
        };
        if destinations > limit(device.max_qp) {
            let what = format!("{destinations} queue pairs (it has {})", device.max_qp);
            return unsupported(what, "use fewer PEs, or SYMRAIL_TRANSPORT=libfabric");
        }
        let depth = depth.min(share(destinations)).min(limit(device.max_qp_wr)).max(1);
        let receives = RECEIVES.min(limit(device.max_srq_wr)).min(limit(device.max_cqe) / 4);
        let room = limit(device.max_cqe).saturating_sub(receives);
        if receives == 0 || room == 0 {
            return unsupported("a shared receive queue".into(), "use SYMRAIL_TRANSPORT=libfabric");
        }
        let credits = destinations.saturating_mul(depth).min(COMPLETIONS.max(depth)).clamp(1, room);
        Ok(Sizes { depth, credits, receives })
    }
}

/// The length of each of so many send queues, for all of them to have room.
fn share(destinations: u32) -> u32 {
    (SEND_QUEUES / destinations.max(1)).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_queues_of_many_destinations_are_shorter() {
        assert_eq!([0, 1, 64, 128, 1024, 100_000].map(share), [65536, 65536, 1024, 512, 64, 64]);
    }
}
