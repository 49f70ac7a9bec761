//! A job of a team's PEs alone, beside the team's own job.

use std::net::IpAddr;

use super::Team;
use crate::bootstrap::uid::{self, UniqueId};
use crate::error::{Error, Result};

impl Team {
    /// A new unique id, by which this team's PEs join a job of their own beside this one: [`uid::open`], with their
    /// indexes in the team as PEs. The team's first PE serves the rendezvous on the interface with this address, by
    /// default on the loopback interface, for PEs of one machine. Collective over the team.
    ///
    /// # Errors
    /// On the first PE the address is of no interface, or the system refuses; then the others get [`Error::System`]. A
    /// peer does not answer.
    pub fn unique_id(&self, interface: Option<IpAddr>) -> Result<UniqueId> {
        let made = (self.group().me() == 0).then(|| uid::create(interface)).transpose();
        let mut words = [0; UniqueId::LEN / 8];
        if let Ok(Some(id)) = &made {
            let bytes = id.to_bytes();
            words.iter_mut().zip(bytes.as_chunks::<8>().0).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        }
        let all = self.gather(&words)?;
        made?;
        let bytes: Vec<u8> = all[..words.len()].iter().flat_map(|word| word.to_ne_bytes()).collect();
        UniqueId::from_bytes(&bytes).map_err(|_| {
            let reason = format!("PE {} cannot create it, and has the reason", self.group().pe(0));
            Error::System { what: "the unique id of a team's job", reason }
        })
    }
}
