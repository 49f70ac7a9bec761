//! A PE's membership: which PE it is, of which job, and where it joins.

use std::io;
use std::time::Duration;

use symrail_transport::Pe;

use super::super::error::{Error, Step};
use super::socket::Address;
use super::wire::Secret;

/// A PE's identity and the address of the rendezvous service.
#[derive(Debug, Clone)]
pub struct Membership {
    /// The service's address.
    pub address: Address,
    /// The job's key.
    pub secret: Secret,
    /// This PE.
    pub pe: Pe,
    /// The number of PEs in the job.
    pub n_pes: u32,
    /// The longest that joining or a step may take.
    pub timeout: Duration,
}

impl Membership {
    pub(super) fn broken_off(&self, step: Step, address: Address, error: &io::Error) -> Error {
        let (pe, address) = (self.pe, address.to_string());
        match error.kind() {
            io::ErrorKind::TimedOut => Error::Timeout {
                pe,
                step,
                seconds: self.timeout.as_secs(),
                missing: match step {
                    Step::Join => format!(
                        "no welcome from the rendezvous service at {address}; a PE that joins again waits until all have left"
                    ),
                    _ => format!("the rendezvous service at {address} does not answer"),
                },
            },
            io::ErrorKind::UnexpectedEof => Error::Connection { pe, step, address, reason: "it closed".into() },
            _ => Error::Connection { pe, step, address, reason: error.to_string() },
        }
    }
}
