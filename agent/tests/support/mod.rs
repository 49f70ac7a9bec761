//! Agents with some memory, for the tests of this folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

pub mod guarded;

use std::cell::UnsafeCell;
use std::io::Write;
use std::time::{Duration, Instant};

use symrail_agent::{Agent, Descriptor, Direction, MemoryId, Notification, Result};
use symrail_transport::env::Settings;

/// Longer than anything takes that does not fail: more than twice the longest time-out.
pub const LONG: Duration = Duration::from_secs(180);

/// In the place of a provider: ibverbs, over soft-RoCE.
pub const IBVERBS: &str = "ibverbs";

/// The settings for a provider, with this time-out.
pub fn settings(provider: &str, timeout_s: u32) -> Settings {
    let timeout_s = timeout_s.to_string();
    let mut all = vec![("SYMRAIL_TIMEOUT_S", timeout_s.as_str())];
    match provider {
        // A lost packet costs a time-out: milliseconds, not seconds.
        IBVERBS => all.extend([
            ("SYMRAIL_TRANSPORT", IBVERBS),
            ("SYMRAIL_IB_TIMEOUT", "13"),
            ("SYMRAIL_NIC_LIST", "rxe0,rxe1"),
        ]),
        _ => all.extend([("SYMRAIL_TRANSPORT", "libfabric"), ("SYMRAIL_LIBFABRIC_PROVIDER", provider)]),
    }
    if provider.starts_with("tcp") {
        all.push(("SYMRAIL_NIC_LIST", "127.0.0.2,127.0.0.3"));
    }
    Settings::from_iter(all).unwrap()
}

/// An agent and its memory.
pub struct Member {
    /// It is dropped before the memory.
    pub agent: Agent,
    pub bytes: Box<[UnsafeCell<u8>]>,
    pub id: MemoryId,
}

impl Member {
    /// `None`, and a line about it, where the provider is missing.
    pub fn new(name: &str, provider: &str, bytes: usize) -> Option<Member> {
        Member::with_timeout(name, provider, bytes, 20)
    }

    pub fn with_timeout(name: &str, provider: &str, bytes: usize, timeout_s: u32) -> Option<Member> {
        let agent = match Agent::open(name, &settings(provider, timeout_s)) {
            Ok(agent) => agent,
            Err(error) => {
                // The harness captures the output of `println`, and a script looks for this line.
                std::io::stderr().write_all(format!("{name}: SKIPPED: {error}\n").as_bytes()).unwrap();
                return None;
            }
        };
        let bytes: Box<[UnsafeCell<u8>]> = (0..bytes).map(|_| UnsafeCell::new(0)).collect();
        // SAFETY: it is dropped behind the agent, and accessed by volatile accesses only.
        let id = unsafe { agent.register(bytes.as_ptr().cast_mut().cast(), bytes.len()) }.unwrap();
        Some(Member { agent, bytes, id })
    }

    pub fn at(&self, offset: usize, len: usize) -> Descriptor {
        Descriptor { address: self.bytes.as_ptr().addr() as u64 + offset as u64, len: len as u64 }
    }

    pub fn read(&self, offset: usize) -> u8 {
        // SAFETY: a byte of this member's memory.
        unsafe { self.bytes[offset].get().read_volatile() }
    }

    pub fn fill(&self, value: impl Fn(usize) -> u8) {
        for (at, byte) in self.bytes.iter().enumerate() {
            // SAFETY: as above.
            unsafe { byte.get().write_volatile(value(at)) };
        }
    }

    pub fn loads(&self, other: &Member) {
        assert_eq!(self.agent.load(&other.agent.metadata()).unwrap(), other.agent.name());
    }

    /// Transfers everything.
    pub fn whole(&self, direction: Direction, other: &Member, notification: Option<&[u8]>) -> Result<()> {
        let len = self.bytes.len().min(other.bytes.len());
        let name = other.agent.name();
        let mut transfer = self.agent.transfer(direction, &[self.at(0, len)], &[other.at(0, len)], name)?;
        transfer.post(notification)?;
        assert!(transfer.wait(LONG)?, "it does not end");
        Ok(())
    }

    pub fn notification(&self) -> Notification {
        self.agent.wait_notification(LONG).expect("no notification")
    }
}

/// Waits until `done`.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LONG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
