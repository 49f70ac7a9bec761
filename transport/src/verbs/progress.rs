//! Progress: handling of completions and events.

use verbs_sys as sys;

use super::credits::{Ended, Outcome};
use super::events::{self, Event};
use super::open::{PeerState, VerbsRail};
use super::post::{from_work_id, named};
use super::receive::{MESSAGE, RECEIVE_BIT};
use crate::error::Fault;
use crate::rail::RailSink;

/// Polls of the completion queue between two polls of the asynchronous events, each of which is a system call. It is a
/// power of two.
const EVENT_INTERVAL: u32 = 1024;

impl VerbsRail {
    /// Puts a destination in the error state; its outstanding work requests come back as failed.
    pub(super) fn fail_peer(&mut self, index: usize, why: &Fault) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        if matches!(peer.state, PeerState::Ready) {
            peer.state = PeerState::Failed(why.clone());
            let used = !peer.sent.is_empty();
            if let Err(error) = peer.queue.fail() {
                tracing::warn!("destination {}: {error}", named(&self.slots, index));
            }
            if used {
                self.post_last(index);
            }
        }
    }

    /// Stops the rail: reports it as broken once, and fails all outstanding work requests.
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

    /// Reads all asynchronous events.
    pub(super) fn poll_events(&mut self) {
        while let Some((event, kind)) = events::next(&self.domain) {
            let text = self.domain.verbs().event_text(kind);
            let fault = |text: String| Fault { code: kind.cast_signed(), text, retryable: true };
            tracing::info!("rail {}: {text}", self.caps.name);
            match event {
                Event::PortDown(port) if port == self.path.port => {
                    // The NIC retries as long as configured (`IB_TIMEOUT`, `IB_RETRY_CNT`).
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
                        let dest = named(&self.slots, index);
                        let about = format!("{text}: destination {dest}, whose work requests were refused here");
                        self.fail_peer(index, &fault(about));
                    }
                }
                Event::Fatal => self.take_down(fault(text)),
                Event::PortDown(_) | Event::AddressChange(_) | Event::Other => {}
            }
        }
    }

    /// Why the port neither sends nor receives, if so.
    pub(super) fn port_fault(&self) -> Option<Fault> {
        let (number, device) = (self.path.port, &self.domain.context.device);
        let down = self.domain.context.query_port(number).is_ok_and(|port| port.state != sys::IBV_PORT_ACTIVE);
        let text = format!("port {number} of {device} is down");
        down.then_some(Fault { code: libc::ENETDOWN, text, retryable: true })
    }

    /// The fault of a failed completion.
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
        // The last two are local faults of the NIC, such as soft-RoCE's when its interface is switched off while it
        // sends.
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

    /// Handles a completed work request of ours. Returns the number of reports.
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

    /// Handles a failed work request of ours.
    #[cold]
    fn on_failed(&mut self, wc: &sys::ibv_wc, sink: &mut dyn RailSink) -> usize {
        let (index, sequence) = from_work_id(wc.wr_id);
        // A late one may be of a former connection, and says nothing about the present one.
        if !self.peers.get(index).is_some_and(|peer| peer.sent.has(sequence)) {
            return 0;
        }
        let outcome = if wc.status == sys::IBV_WC_WR_FLUSH_ERR { Outcome::Flushed } else { Outcome::Failed };
        let fault = self.completion_fault(wc);
        self.fail_peer(index, &fault);
        let Some(peer) = self.peers.get_mut(index) else { return 0 };
        // A discarded work request reports the first failure, which is the cause.
        let why = match &peer.state {
            PeerState::Failed(first) if outcome == Outcome::Flushed => Fault { retryable: true, ..first.clone() },
            _ => fault,
        };
        // Messages to a peer that has left: most have arrived, which no completion has said. None is missed.
        let leaving = matches!(peer.state, PeerState::Leaving { .. });
        let mut reported = 0;
        peer.sent.complete(&mut self.credits, sequence, outcome, |Ended { id, failed }| {
            match (id, failed) {
                (None, true) if leaving => return,
                (Some(id), false) => sink.done(id),
                (Some(id), true) => sink.failed(id, why.clone()),
                (None, true) => sink.broken(why.clone()),
                (None, false) => return,
            }
            reported += 1;
        });
        reported
    }

    /// Handles an arrived message or immediate.
    fn on_received(&mut self, wc: &sys::ibv_wc, sink: &mut dyn RailSink) -> usize {
        let Some(start) = self.received.take(wc.wr_id) else { return 0 };
        if wc.status != sys::IBV_WC_SUCCESS {
            // Its queue pair failed, which the requests on it report. The buffer is posted again.
            return 0;
        }
        if wc.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM {
            // SAFETY: a completion with this opcode has an immediate.
            sink.immediate(u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }).into());
        } else {
            let length = (wc.byte_len as usize).min(MESSAGE);
            // SAFETY: the buffer has `MESSAGE` bytes, and the NIC does not write it again before it is posted, which
            // happens after this call.
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

    /// Polls the completion queue, and at intervals the events.
    pub(super) fn progress(&mut self, sink: &mut dyn RailSink) -> usize {
        self.flush();
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(EVENT_INTERVAL) {
            self.poll_events();
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
}
