//! Progress: handling of completion queue entries.

use libfabric_sys as ffi;

use super::completion::{Failure, Polled};
use super::fault::fault;
use super::open::OfiRail;
use crate::error::Fault;
use crate::rail::RailSink;

impl OfiRail {
    /// Makes progress and reports completions and arrivals. Returns the number of reports.
    #[inline]
    pub(super) fn progress(&mut self, sink: &mut dyn RailSink) -> usize {
        if self.receives.is_short() {
            let code = self.receives.post_waiting(&self.endpoint);
            if code != 0 {
                sink.broken(self.receive_fault(code));
                return 1;
            }
        }
        match self.queue.read(&self.domain) {
            Polled::Empty => 0,
            Polled::Entries(count) => {
                for index in 0..count {
                    // SAFETY: the index is below the count that was just read.
                    let entry = unsafe { self.queue.entry(index) };
                    self.report(&entry, sink);
                }
                count
            }
            Polled::Failed(failure) => {
                self.report_failure(failure, sink);
                1
            }
            Polled::Broken(fault) => {
                sink.broken(fault);
                1
            }
        }
    }

    /// Reports one completed operation or arrival.
    #[inline]
    fn report(&mut self, entry: &ffi::fi_cq_data_entry, sink: &mut dyn RailSink) {
        if let Some(id) = self.slab.finish(entry.op_context) {
            return sink.done(id);
        }
        if entry.flags & ffi::FI_REMOTE_CQ_DATA != 0 && entry.flags & ffi::FI_RECV == 0 {
            return sink.immediate(entry.data);
        }
        match self.receives.find(entry.op_context) {
            Some(index) => {
                // SAFETY: the receive completed, and is posted again only below.
                sink.message(unsafe { self.receives.bytes(index, entry.len) });
                self.post_receive(index, sink);
            }
            None => tracing::error!(
                rail = self.caps.name,
                flags = entry.flags,
                "a completion belongs to nothing that was posted"
            ),
        }
    }

    fn post_receive(&mut self, index: usize, sink: &mut dyn RailSink) {
        let code = self.receives.post(&self.endpoint, index);
        if code != 0 {
            sink.broken(self.receive_fault(code));
        }
    }

    #[cold]
    fn receive_fault(&self, code: isize) -> Fault {
        let mut fault = fault(&self.domain.library, code);
        fault.text = format!("posting a receive buffer failed: {}", fault.text);
        fault
    }

    /// Reports one failed operation.
    #[cold]
    fn report_failure(&mut self, failure: Failure, sink: &mut dyn RailSink) {
        if let Some(id) = self.slab.finish(failure.context) {
            return sink.failed(id, failure.fault);
        }
        let Some(index) = self.receives.find(failure.context) else {
            return sink.broken(failure.fault);
        };
        if failure.code == ffi::FI_ECANCELED {
            return;
        }
        // A dead peer does not finish its message. The message is lost, and the next sender into the buffer is not
        // affected. A message that does not fit violates the protocol, and is lost.
        if failure.code == ffi::FI_ETRUNC {
            sink.broken(failure.fault);
        } else {
            tracing::debug!(rail = self.caps.name, fault = %failure.fault, "a receive failed");
        }
        self.post_receive(index, sink);
    }
}
