//! The state that the files of staging share in one call, and the owner of a copy.

use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::command::Issuer;
use symrail_transport::region::Regions;

use super::batch::Copies;
use super::peers::Peers;

/// The state that source and target share in one call.
pub struct StageContext<'a> {
    pub copies: &'a mut Copies,
    pub endpoint: &'a mut Endpoint,
    /// Segments and buffers that the CPU cannot touch.
    pub memory: &'a Regions,
    /// Peers' memory that the copy engine can access.
    pub peers: &'a Peers,
    pub issuer: Issuer,
}

/// The owner of a copy, or of an endpoint's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ticket {
    Fragment(usize),
    Task(usize),
    Word(usize),
    Run(usize),
}

impl Ticket {
    pub fn encode(self) -> u64 {
        let (key, kind) = match self {
            Ticket::Fragment(key) => (key, 0),
            Ticket::Task(key) => (key, 1),
            Ticket::Word(key) => (key, 2),
            Ticket::Run(key) => (key, 3),
        };
        (key as u64) << 2 | kind
    }

    pub fn decode(bits: u64) -> Ticket {
        let key = (bits >> 2) as usize;
        match bits & 3 {
            0 => Ticket::Fragment(key),
            1 => Ticket::Task(key),
            2 => Ticket::Word(key),
            _ => Ticket::Run(key),
        }
    }
}
