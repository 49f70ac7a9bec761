//! One queue pair: its creation, and its transitions between states.
//!
//! A queue pair waits for its peer in INIT. [`QueuePair::connect`] takes it through RTR (it may receive) to RTS (it may
//! send). A failed work request puts it in the error state, where every posted work request is discarded with a
//! completion, until [`QueuePair::reset`] makes it wait for a peer again.

use std::sync::Arc;

use verbs_sys as sys;

use super::address::Address;
use super::domain::{Domain, failed, refused};
use super::gid::GidType;
use crate::error::Result;

/// The attributes that all queue pairs of a rail share.
#[derive(Debug, Clone)]
pub(super) struct Path {
    pub port: u8,
    pub gid_index: u8,
    pub pkey_index: u16,
    pub service_level: u8,
    pub traffic_class: u8,
    /// The acknowledgement time-out in the encoding of verbs: 4.096 µs · 2^value.
    pub timeout: u8,
    pub retries: u8,
    /// Reads and atomics that the device may have under way per queue pair as the initiator.
    pub outgoing_reads: u8,
    /// Reads and atomics that the device may have under way per queue pair as the target.
    pub incoming_reads: u8,
    /// Whether peers may use the NIC's atomics.
    pub atomics: bool,
}

/// How long a peer without a free receive buffer asks us to wait, in the encoding of verbs: 12 is 0.64 ms. A running
/// agent posts buffers again within microseconds. If it does not run, the wait limits retries on the wire.
const RECEIVER_NOT_READY_WAIT: u8 = 12;
/// 7 means for ever. A peer that polls slowly is no error, and a dead one answers nothing at all: the time-out and the
/// retry count detect that.
const RECEIVER_NOT_READY_RETRIES: u8 = 7;
/// Routers that a packet may cross.
const HOP_LIMIT: u8 = 64;

/// The call whose error means that the device or its driver has no room for another queue pair.
pub(super) const CREATE: &str = "ibv_create_qp";

/// A reliable-connected queue pair.
pub(super) struct QueuePair {
    domain: Arc<Domain>,
    qp: *mut sys::ibv_qp,
    /// Largest inline data that it accepts.
    pub inline: u32,
    /// Number of work requests that it accepts.
    pub depth: u32,
}

// SAFETY: as for `Domain`; posting goes through `&mut`.
unsafe impl Send for QueuePair {}

/// The queues that queue pairs of a rail share.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    pub cq: *mut sys::ibv_cq,
    pub srq: *mut sys::ibv_srq,
}

impl QueuePair {
    /// Creates a queue pair in the state INIT. It requests the given inline size, and a smaller one when the device
    /// refuses.
    pub fn new(domain: &Arc<Domain>, shared: Shared, depth: u32, inline: u32, path: &Path) -> Result<Self> {
        let mut inline = inline;
        loop {
            let mut init = sys::ibv_qp_init_attr {
                send_cq: shared.cq,
                recv_cq: shared.cq,
                srq: shared.srq,
                cap: sys::ibv_qp_cap {
                    max_send_wr: depth,
                    max_send_sge: 1,
                    max_inline_data: inline,
                    ..Default::default()
                },
                qp_type: sys::IBV_QPT_RC,
                sq_sig_all: 0,
                ..Default::default()
            };
            // SAFETY: the domain and both queues are live; the rail drops its queue pairs before them.
            let qp = unsafe { (domain.verbs().ibv_create_qp)(domain.pd, &raw mut init) };
            if qp.is_null() {
                let error = failed(CREATE, &domain.rail);
                if inline == 0 {
                    return Err(error);
                }
                inline /= 2;
                continue;
            }
            let made = QueuePair { domain: domain.clone(), qp, inline: init.cap.max_inline_data, depth };
            made.init(path)?;
            return Ok(made);
        }
    }

    /// The queue pair's pointer, for posting.
    pub fn raw(&self) -> *mut sys::ibv_qp {
        self.qp
    }

    /// Its number, which peers use to address it.
    pub fn number(&self) -> u32 {
        // SAFETY: created and not yet destroyed.
        unsafe { (*self.qp).qp_num }
    }

    fn modify(
        &self,
        attr: &mut sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
        call: &'static str,
        remedy: &str,
    ) -> Result<()> {
        let mask = (mask | sys::IBV_QP_STATE).cast_signed();
        // SAFETY: the queue pair is live and `attr` holds what `mask` names.
        match unsafe { (self.domain.verbs().ibv_modify_qp)(self.qp, attr, mask) } {
            0 => Ok(()),
            code => Err(refused(call, &self.domain.rail, code, remedy)),
        }
    }

    fn init(&self, path: &Path) -> Result<()> {
        let mut access = sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;
        if path.atomics {
            access |= sys::IBV_ACCESS_REMOTE_ATOMIC;
        }
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            pkey_index: path.pkey_index,
            port_num: path.port,
            qp_access_flags: access,
            ..Default::default()
        };
        let mask = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask, "ibv_modify_qp(INIT)", "")
    }

    /// Pairs it with the peer's queue pair `qpn`. `ours` is this rail's address, `theirs` the peer's. When that fails it
    /// waits for a peer as before.
    pub fn connect(&self, path: &Path, ours: &Address, theirs: &Address, qpn: u32) -> Result<()> {
        self.pair(path, ours, theirs, qpn).inspect_err(|_| {
            if let Err(error) = self.reset(path) {
                tracing::warn!("rail {}: a queue pair cannot be used again: {error}", self.domain.rail);
            }
        })
    }

    fn pair(&self, path: &Path, ours: &Address, theirs: &Address, qpn: u32) -> Result<()> {
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: ours.mtu.min(theirs.mtu).into(),
            dest_qp_num: qpn,
            rq_psn: theirs.psn,
            max_dest_rd_atomic: path.incoming_reads,
            min_rnr_timer: RECEIVER_NOT_READY_WAIT,
            ah_attr: route(path, ours, theirs),
            ..Default::default()
        };
        let mask = sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        let remedy = format!(
            "from GID {} to GID {}; is there a route between these addresses (SYMRAIL_IB_GID_INDEX, SYMRAIL_IB_ADDR_RANGE)?",
            std::net::Ipv6Addr::from(ours.gid).to_canonical(),
            std::net::Ipv6Addr::from(theirs.gid).to_canonical()
        );
        self.modify(&mut attr, mask, "ibv_modify_qp(RTR)", &remedy)?;
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            timeout: path.timeout,
            retry_cnt: path.retries,
            rnr_retry: RECEIVER_NOT_READY_RETRIES,
            sq_psn: ours.psn,
            max_rd_atomic: path.outgoing_reads.min(theirs.incoming_reads),
            ..Default::default()
        };
        let mask = sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask, "ibv_modify_qp(RTS)", "")
    }

    /// Puts it in the error state, which produces a completion for every outstanding work request.
    pub fn fail(&self) -> Result<()> {
        let mut attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut attr, 0, "ibv_modify_qp(ERR)", "")
    }

    /// Makes it wait for a peer again, with the same number.
    pub fn reset(&self, path: &Path) -> Result<()> {
        let mut attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_RESET, ..Default::default() };
        self.modify(&mut attr, 0, "ibv_modify_qp(RESET)", "")?;
        self.init(path)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed only here; its asynchronous events are acknowledged when they are
        // read.
        unsafe { (self.domain.verbs().ibv_destroy_qp)(self.qp) };
    }
}

/// The route to the peer: by GID on RoCE, by LID on InfiniBand. On InfiniBand it has a global header when a port
/// demands one, when the peer has no LID, or when the peer is in another subnet.
fn route(path: &Path, ours: &Address, theirs: &Address) -> sys::ibv_ah_attr {
    let other_subnet = ours.gid[..8] != theirs.gid[..8];
    let global =
        ours.gid_type != GidType::InfiniBand || ours.needs_grh || theirs.needs_grh || theirs.lid == 0 || other_subnet;
    let mut attr = sys::ibv_ah_attr {
        dlid: theirs.lid,
        sl: path.service_level,
        is_global: u8::from(global),
        port_num: path.port,
        ..Default::default()
    };
    if global {
        attr.grh = sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: theirs.gid },
            sgid_index: path.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: path.traffic_class,
            ..Default::default()
        };
    }
    attr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::mode::Mode;

    fn path() -> Path {
        Path {
            port: 1,
            gid_index: 3,
            pkey_index: 0,
            service_level: 2,
            traffic_class: 96,
            timeout: 20,
            retries: 7,
            outgoing_reads: 16,
            incoming_reads: 16,
            atomics: true,
        }
    }

    fn address(gid_type: GidType, subnet: u8, lid: u16) -> Address {
        let mut gid = [0; 16];
        gid[0] = subnet;
        Address {
            mode: Mode::RdmaAtomics,
            gid_type,
            gid,
            prefix: 64,
            lid,
            needs_grh: false,
            mtu: 5,
            pkey: 0xffff,
            incoming_reads: 16,
            psn: 0,
            qpns: vec![],
        }
    }

    #[test]
    fn infiniband_uses_the_lid_and_a_global_header_only_where_needed() {
        let ours = address(GidType::InfiniBand, 0xfe, 1);
        let local = route(&path(), &ours, &address(GidType::InfiniBand, 0xfe, 7));
        assert_eq!((local.is_global, local.dlid, local.sl), (0, 7, 2));
        assert_eq!(route(&path(), &ours, &address(GidType::InfiniBand, 0x20, 7)).is_global, 1, "another subnet");
        assert_eq!(route(&path(), &ours, &address(GidType::InfiniBand, 0xfe, 0)).is_global, 1, "no LID");
        let demanding = Address { needs_grh: true, ..address(GidType::InfiniBand, 0xfe, 7) };
        assert_eq!(route(&path(), &ours, &demanding).is_global, 1, "the port demands it");
    }

    #[test]
    fn roce_always_has_a_global_header() {
        let ours = address(GidType::RoceV2, 0, 0);
        let way = route(&path(), &ours, &address(GidType::RoceV2, 0, 0));
        assert_eq!((way.is_global, way.grh.sgid_index, way.grh.traffic_class, way.sl), (1, 3, 96, 2));
    }
}
