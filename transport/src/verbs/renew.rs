//! Renewal of failed connections, when the port works and still has its address.

use super::address::{Address, random_psn};
use super::gid;
use super::open::{Peer, PeerState, VerbsRail};
use crate::error::{Error, Result};
use crate::rail::Dest;

impl VerbsRail {
    /// [`Rail::renew`](crate::rail::Rail::renew): [`Error::NoRail`] when the rail's GID is gone, [`Error::Fabric`] with
    /// the call that failed.
    pub(super) fn renew_connection(&mut self, dest: Dest) -> Result<Option<u64>> {
        self.poll_events();
        if !self.unposted.is_empty() || self.port_fault().is_some() || !self.is_usable_again()? {
            return Ok(None);
        }
        let Some(index) = self.index(dest) else { return Ok(None) };
        let known = |peer: &&mut Peer| peer.theirs.is_some();
        let Some(peer) = self.peers.get_mut(index).filter(known) else { return Ok(None) };
        match peer.state {
            PeerState::Ready | PeerState::Leaving { .. } => return Ok(None),
            PeerState::Failed(_) if !peer.sent.is_empty() => {
                // When it failed there may have been no credit for the completion that ends them.
                if !peer.sent.is_marked() {
                    self.post_last(index);
                }
                return Ok(None);
            }
            PeerState::Failed(_) => {
                peer.queue.reset(&self.path)?;
                peer.sent.reset();
                peer.state = PeerState::Waiting;
            }
            PeerState::Waiting => {}
        }
        // The new sequence number differs, so that late packets of the former connection are not accepted.
        peer.psn = random_psn();
        Ok(Some(u64::from(peer.psn) | u64::from(self.address.lid) << 32))
    }

    /// [`Rail::reconnect`](crate::rail::Rail::reconnect).
    pub(super) fn connect_again(&mut self, dest: Dest, offer: u64) -> Result<()> {
        let Some(index) = self.index(dest) else { return Ok(()) };
        let waiting = |peer: &&mut Peer| matches!(peer.state, PeerState::Waiting);
        let Some(peer) = self.peers.get_mut(index).filter(waiting) else { return Ok(()) };
        let Some((theirs, qpn)) = &mut peer.theirs else { return Ok(()) };
        (theirs.psn, theirs.lid) = (offer as u32 & 0xff_ffff, (offer >> 32) as u16);
        let ours = Address { psn: peer.psn, qpns: Vec::new(), ..self.address.clone() };
        peer.queue.connect(&self.path, &ours, theirs, *qpn)?;
        peer.state = PeerState::Ready;
        Ok(())
    }

    /// Whether the rail works. A failed one works again when the port has its address.
    fn is_usable_again(&mut self) -> Result<bool> {
        let Some((_, unreported)) = &self.down else { return Ok(true) };
        if *unreported {
            return Ok(false);
        }
        let port = self.domain.context.query_port(self.path.port)?;
        // The GID may have come back at another index of the table.
        let gids = self.domain.context.gids(self.path.port, &port);
        let ours = |gid: &&gid::Gid| gid.raw == self.address.gid && gid.kind == self.address.gid_type;
        let Some(index) = gids.iter().find(ours).and_then(|gid| u8::try_from(gid.index).ok()) else {
            let wanted = std::net::Ipv6Addr::from(self.address.gid).to_canonical();
            return Err(Error::NoRail {
                wanted: format!("GID {wanted} on {}", self.caps.name),
                found: gid::table(&gids),
            });
        };
        self.path.gid_index = index;
        self.address.lid = port.lid;
        self.down = None;
        Ok(true)
    }

    /// Whether the GID that peers know is still at its index.
    pub(super) fn has_its_gid(&self) -> bool {
        self.domain.context.query_gid(self.path.port, self.path.gid_index.into()) == Some(self.address.gid)
    }
}
