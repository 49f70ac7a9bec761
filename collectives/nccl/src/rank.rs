//! A rank that joins a communicator, at once or at the end of a group.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;

use symrail::bootstrap::uid;
use symrail::kernels::cuda::Gpu;
use symrail_core::lock;

use crate::communicator::Communicator;
use crate::guard::Failure;
use crate::types::Handle;
use crate::{loaded, registry};

type IdAndDevice = ([u8; uid::UniqueId::LEN], Option<i32>);

/// The ids of which a rank of this process is joining, its GPU, and that rank.
static CLAIMED: Mutex<BTreeMap<IdAndDevice, u32>> = Mutex::new(BTreeMap::new());

/// A rank that joins. While it exists, no other rank of the same id joins in this process with the same GPU, whose calls
/// would wait for this one's for ever.
pub struct Joining {
    handle: Handle,
    id: uid::UniqueId,
    rank: u32,
    size: u32,
    /// The GPU that was current.
    gpu: Option<i32>,
}

impl Joining {
    pub fn new(id: uid::UniqueId, rank: u32, size: u32) -> Result<Joining, Failure> {
        let gpu = Gpu::current();
        match lock(&CLAIMED).entry((id.to_bytes(), gpu)) {
            Entry::Occupied(first) => {
                let remedy = "make another GPU current for each rank of a process";
                let why = format!("rank {rank} of an id of which rank {} is in this process, too", first.get());
                return Err(Failure::usage(format!("{why}, with the same GPU: {remedy}")));
            }
            Entry::Vacant(free) => free.insert(rank),
        };
        Ok(Joining { handle: registry::reserve(), id, rank, size, gpu })
    }

    /// The communicator's handle, which it has once it is made.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The GPU that was current when it was named.
    pub fn gpu(&self) -> Option<i32> {
        self.gpu
    }

    /// Joins; the handle is then the communicator's. Collective.
    pub fn finish(self) -> Result<(), Failure> {
        // It stays current until the communicator has it.
        let _gpu = self.gpu.map(Gpu::open).transpose()?;
        loaded::note_once();
        registry::put(self.handle, Communicator::join(self.id, self.rank, self.size)?);
        Ok(())
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        lock(&CLAIMED).remove(&(self.id.to_bytes(), self.gpu));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::c_int;

    use super::*;

    #[test]
    fn a_second_rank_of_an_id_is_refused_while_the_first_one_joins() {
        let id = || uid::create(None).unwrap();
        let (one, other) = (id(), id());
        let first = Joining::new(one, 0, 2).unwrap();
        let refused = Joining::new(one, 1, 2).map(drop).unwrap_err();
        let text = <(c_int, String)>::from(refused).1;
        assert!(text.contains("rank 1 of an id of which rank 0 is in this process"), "{text}");
        let _third = Joining::new(other, 1, 2).unwrap();
        drop(first);
        Joining::new(one, 1, 2).map(drop).unwrap();
    }
}
