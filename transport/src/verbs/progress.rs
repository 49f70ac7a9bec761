//! Progress: what is found in the completion queue and among the events, and what becomes of it.

use verbs_sys as sys;

use super::credits::{Ended, Outcome};
use super::endpoint::{PeerState, VerbsRail};
use super::events::{self, Event};
use super::post::from_work_id;
use super::receive::{MESSAGE, RECEIVE_BIT};
use crate::amo::{AmoOp, AmoType};
use crate::device::DeviceMemory;
use crate::error::{Fault, Result};
use crate::rail::{
    Dest, LocalBuf, LocalKey, NativeAmo, OpId, PostError, Rail, RailCaps, RailSink, Registration, RemoteBuf,
    WriteOptions,
};

/// Polls of the completion queue between two of the asynchronous events, each of which is a system call: a power of
/// two.
const EVENT_INTERVAL: u32 = 1024;

impl VerbsRail {
    /// Puts a destination in the error state; what is outstanding there comes back as failed.
    pub(super) fn fail_peer(&mut self, index: usize, why: &Fault) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        if matches!(peer.state, PeerState::Ready) {
            peer.state = PeerState::Failed(why.clone());
            if let Err(error) = peer.queue.fail() {
                tracing::warn!("destination {index}: {error}");
            }
            self.post_last(index);
        }
    }

    /// Stops the rail: reports it as broken once, and fails all that is outstanding.
    fn take_down(&mut self, why: Fault) {
        if self.down.is_some() {
            return;
        }
        tracing::warn!("rail {} is down: {why}", self.caps.name);
        for index in 0..self.peers.len() {
            self.fail_peer(index, &why);
        }
        self.down = Some((why, true));
    }

    /// Takes all asynchronous events.
    pub(super) fn look_for_events(&mut self) {
        while let Some((event, kind)) = events::next(&self.domain) {
            let text = self.domain.verbs().event_text(kind);
            let fault = |text: String| Fault { code: kind.cast_signed(), text, retryable: true };
            tracing::info!("rail {}: {text}", self.caps.name);
            match event {
                Event::PortDown(port) if port == self.path.port => {
                    // The NIC goes on trying as long as it was told to (`IB_TIMEOUT`, `IB_RETRY_CNT`).
                    let name = &self.caps.name;
                    tracing::warn!(
                        "rail {name}: {text}; waiting for the port, or for a sign that there is another way"
                    );
                    self.port_event = true;
                }
                Event::AddressChange(port) if port == self.path.port => {
                    let lid = self.domain.context.query_port(port).map_or(0, |port| port.lid);
                    if lid != self.address.lid || !self.has_its_gid() {
                        let gid = std::net::Ipv6Addr::from(self.address.gid).to_canonical();
                        self.take_down(fault(format!("{text}: the address that peers know, {gid}, is gone")));
                    }
                }
                Event::QueuePair(qp) => {
                    if let Some(index) = self.peers.iter().position(|peer| peer.queue.raw() == qp) {
                        let about = format!("{text}: destination {index}, whose work requests were refused here");
                        self.fail_peer(index, &fault(about));
                    }
                }
                Event::Fatal => self.take_down(fault(text)),
                Event::PortDown(_) | Event::AddressChange(_) | Event::Other => {}
            }
        }
    }

    /// Why nothing can leave by the port, or come in.
    pub(super) fn port_fault(&self) -> Option<Fault> {
        let (number, device) = (self.path.port, &self.domain.context.device);
        let down = self.domain.context.query_port(number).is_ok_and(|port| port.state != sys::IBV_PORT_ACTIVE);
        let text = format!("port {number} of {device} is down");
        down.then_some(Fault { code: libc::ENETDOWN, text, retryable: true })
    }

    /// A failed completion in words.
    fn completion_fault(&self, wc: &sys::ibv_wc) -> Fault {
        let text = self.domain.verbs().status_text(wc.status);
        let advice = match wc.status {
            sys::IBV_WC_REM_ACCESS_ERR => ": the peer has not registered this address range under this key",
            sys::IBV_WC_RETRY_EXC_ERR => {
                ": no answer; is the peer alive, and the path? (SYMRAIL_IB_TIMEOUT, SYMRAIL_IB_RETRY_CNT)"
            }
            sys::IBV_WC_LOC_PROT_ERR => ": the local buffer is not registered under this key",
            sys::IBV_WC_WR_FLUSH_ERR => ": discarded because the connection had failed",
            _ => "",
        };
        // The last two are the NIC's own: soft-RoCE's, for one, when its interface is switched off while it sends.
        let path_errors = [
            sys::IBV_WC_RETRY_EXC_ERR,
            sys::IBV_WC_RNR_RETRY_EXC_ERR,
            sys::IBV_WC_RESP_TIMEOUT_ERR,
            sys::IBV_WC_WR_FLUSH_ERR,
            sys::IBV_WC_LOC_QP_OP_ERR,
            sys::IBV_WC_FATAL_ERR,
        ];
        let text = format!("{text}{advice} (vendor error {:#x})", wc.vendor_err);
        Fault { code: wc.status.cast_signed(), text, retryable: path_errors.contains(&wc.status) }
    }

    /// A work request of ours is done. Returns how many reports that gave.
    #[inline]
    fn on_done(&mut self, wr_id: u64, sink: &mut dyn RailSink) -> usize {
        let (index, sequence) = from_work_id(wr_id);
        let Some(peer) = self.peers.get_mut(index) else { return 0 };
        let mut reported = 0;
        peer.sent.complete(&mut self.credits, sequence, Outcome::Done, |ended| {
            if let (Some(id), false) = (ended.id, ended.failed) {
                sink.done(id);
                reported += 1;
            }
        });
        reported
    }

    /// A work request of ours failed.
    #[cold]
    fn on_failed(&mut self, wc: &sys::ibv_wc, sink: &mut dyn RailSink) -> usize {
        let (index, sequence) = from_work_id(wc.wr_id);
        let outcome = if wc.status == sys::IBV_WC_WR_FLUSH_ERR { Outcome::Flushed } else { Outcome::Failed };
        let fault = self.completion_fault(wc);
        self.fail_peer(index, &fault);
        let Some(peer) = self.peers.get_mut(index) else { return 0 };
        // Discarded work tells the first failure, which is the reason.
        let why = match &peer.state {
            PeerState::Failed(first) if outcome == Outcome::Flushed => Fault { retryable: true, ..first.clone() },
            _ => fault,
        };
        let mut reported = 0;
        peer.sent.complete(&mut self.credits, sequence, outcome, |Ended { id, failed }| {
            match (id, failed) {
                (Some(id), false) => sink.done(id),
                (Some(id), true) => sink.failed(id, why.clone()),
                (None, true) => sink.broken(why.clone()),
                (None, false) => return,
            }
            reported += 1;
        });
        reported
    }

    /// A message or an immediate arrived.
    fn on_received(&mut self, wc: &sys::ibv_wc, sink: &mut dyn RailSink) -> usize {
        let Some(start) = self.received.take(wc.wr_id) else { return 0 };
        if wc.status != sys::IBV_WC_SUCCESS {
            // Its queue pair failed, which the requests on it tell; the buffer is posted again.
            return 0;
        }
        if wc.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM {
            // SAFETY: this opcode comes with an immediate.
            sink.immediate(u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }).into());
        } else {
            let length = (wc.byte_len as usize).min(MESSAGE);
            // SAFETY: the buffer has `MESSAGE` bytes, and the NIC does not write it again before it is posted, which is
            // after this call.
            sink.message(unsafe { std::slice::from_raw_parts(start, length) });
        }
        1
    }

    fn report_events(&mut self, sink: &mut dyn RailSink) -> usize {
        let mut reported = 0;
        for (id, why) in self.unposted.drain(..) {
            match id {
                Some(id) => sink.failed(id, why),
                None => sink.broken(why),
            }
            reported += 1;
        }
        if let Some((why, unreported)) = &mut self.down
            && std::mem::take(unreported)
        {
            sink.broken(why.clone());
            reported += 1;
        }
        if std::mem::take(&mut self.port_event) {
            sink.port_down();
            reported += 1;
        }
        reported
    }
}

// SAFETY: libibverbs and the NIC follow work requests; what is reported done is what the completion queue says.
unsafe impl Rail for VerbsRail {
    fn caps(&self) -> &RailCaps {
        &self.caps
    }

    fn address(&self) -> Vec<u8> {
        self.encode_address()
    }

    fn connect(&mut self, dest: Dest, address: &[u8], return_dest: Dest) -> Result<()> {
        self.connect_to(dest, address, return_dest)
    }

    unsafe fn register(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<Registration> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.register_host(ptr, len, true, id) }
    }

    unsafe fn register_local(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<LocalKey> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.register_host(ptr, len, false, id) }.map(|registration| registration.local)
    }

    unsafe fn register_device(&mut self, memory: DeviceMemory<'_>, id: u32) -> Result<Registration> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.register_of_device(memory, id) }
    }

    fn deregister(&mut self, id: u32) {
        self.memory.remove(&id);
    }

    unsafe fn write(
        &mut self,
        dest: Dest,
        local: LocalBuf,
        remote: RemoteBuf,
        options: WriteOptions,
    ) -> Result<(), PostError> {
        self.post_write(dest, local, remote, options)
    }

    unsafe fn read(
        &mut self,
        dest: Dest,
        local: LocalBuf,
        remote: RemoteBuf,
        id: OpId,
        more: bool,
    ) -> Result<(), PostError> {
        self.post_read(dest, local, remote, id, more)
    }

    unsafe fn send(&mut self, dest: Dest, local: LocalBuf, id: Option<OpId>) -> Result<(), PostError> {
        self.post_message(dest, local, id)
    }

    fn supports_amo(&self, ty: AmoType, op: AmoOp, _fetching: bool) -> bool {
        self.performs(ty, op)
    }

    unsafe fn amo(&mut self, dest: Dest, remote: RemoteBuf, amo: NativeAmo, id: OpId) -> Result<(), PostError> {
        self.post_amo(dest, remote, &amo, id)
    }

    fn poll(&mut self, sink: &mut dyn RailSink) -> usize {
        self.flush();
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(EVENT_INTERVAL) {
            self.look_for_events();
        }
        let mut reported = 0;
        match self.completions.take(&mut self.entries) {
            Ok(count) => {
                for nth in 0..count {
                    let sys::ibv_wc { wr_id, status, .. } = self.entries[nth];
                    reported += match (wr_id & RECEIVE_BIT == 0, status) {
                        (true, sys::IBV_WC_SUCCESS) => self.on_done(wr_id, sink),
                        (true, _) => self.on_failed(&{ self.entries[nth] }, sink),
                        (false, _) => self.on_received(&{ self.entries[nth] }, sink),
                    };
                }
                if self.received.has_used()
                    && let Err(why) = self.received.repost()
                {
                    self.take_down(why);
                }
            }
            Err(why) => self.take_down(why),
        }
        if self.down.is_some() || self.port_event || !self.unposted.is_empty() {
            reported += self.report_events(sink);
        }
        reported
    }

    fn is_connected(&self, dest: Dest) -> bool {
        self.peers.get(dest as usize).is_none_or(|peer| peer.theirs.is_none() || matches!(peer.state, PeerState::Ready))
    }

    fn port_down(&mut self) -> Option<Fault> {
        self.look_for_events();
        if self.port_event { None } else { self.port_fault() }
    }

    fn disconnect(&mut self, dest: Dest, why: &Fault) {
        self.fail_peer(dest as usize, why);
    }

    fn renew(&mut self, dest: Dest) -> Result<Option<u64>> {
        self.renew_connection(dest)
    }

    fn reconnect(&mut self, dest: Dest, offer: u64) -> Result<()> {
        self.connect_again(dest, offer)
    }

    fn wait_fd(&self) -> Option<std::os::fd::RawFd> {
        self.completions.wait_fd()
    }

    fn arm(&mut self) -> bool {
        self.flush();
        self.look_for_events();
        let pending = self.port_event
            || !self.unposted.is_empty()
            || self.down.as_ref().is_some_and(|(_, unreported)| *unreported);
        !pending && self.completions.arm()
    }
}
