//! NICs, and the transfer time of a message.

use super::Link;

/// The times until which a host's NIC is busy sending and receiving.
#[derive(Debug, Clone, Copy, Default)]
struct Nic {
    sends: u64,
    receives: u64,
}

/// The NICs of all hosts.
pub struct Nics {
    nics: Vec<Nic>,
    /// Nanoseconds between two messages of a NIC.
    gap: u64,
}

impl Nics {
    /// The NICs of so many hosts.
    #[must_use]
    pub fn new(hosts: usize, gap: u64) -> Nics {
        Nics { nics: vec![Nic::default(); hosts], gap }
    }

    /// The arrival time of a message that is ready at `time` and has this `latency`. A message within a host passes no
    /// NIC.
    pub fn carry(&mut self, time: u64, (here, there): (usize, usize), link: &Link, latency: u64, bytes: u64) -> u64 {
        let on_its_way = bytes * link.byte_ps / 1000;
        if here == there {
            return time + latency + on_its_way;
        }
        let passes = self.gap.max(on_its_way);
        let begins = time.max(self.nics[here].sends);
        self.nics[here].sends = begins + passes;
        let nic = &mut self.nics[there];
        // The first byte does not wait for the last one.
        nic.receives = (begins + latency).max(nic.receives) + passes;
        nic.receives
    }
}
