//! A rank that joins a communicator, at once or at the end of a group.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;

use symrail::bootstrap::uid;
use symrail::kernels::cuda::Gpu;
use symrail_core::lock;

use crate::communicator::Communicator;
use crate::guard::Failure;
use crate::loaded;
use crate::registry::Reserved;
use crate::types::Handle;

/// Makes a communicator, or nothing for a rank that only takes part. Waits for other ranks.
type Make = Box<dyn FnOnce() -> Result<Option<Communicator>, Failure> + Send>;

/// A rank that joins.
pub struct Joining {
    reserved: Reserved,
    /// The communicator whose ranks pass data to one another for this.
    of: Option<Handle>,
    make: Make,
}

impl Joining {
    /// A rank that joins by `make`, on whatever thread. Ranks of the communicator `of` pass data to one another for it.
    pub fn new(
        of: Option<Handle>,
        make: impl FnOnce() -> Result<Option<Communicator>, Failure> + Send + 'static,
    ) -> Joining {
        Joining { reserved: Reserved::new(), of, make: Box::new(make) }
    }

    /// A rank with the current GPU, which joins by an id.
    pub fn by_id(id: uid::UniqueId, rank: u32, size: u32) -> Result<Joining, Failure> {
        let gpu = Gpu::current();
        let claim = Claim::new(id, rank, gpu)?;
        Ok(Joining::new(None, move || {
            // It stays current until the communicator has it.
            let _gpu = gpu.map(Gpu::open).transpose()?;
            loaded::note_once(rank);
            let made = Communicator::join(id, rank, size).map(Some);
            drop(claim);
            made
        }))
    }

    /// The communicator's handle, which it has once it is made.
    pub fn handle(&self) -> Handle {
        self.reserved.handle()
    }

    /// A number that those have in common which are made in their order: those of the same communicator's ranks.
    pub fn among(&self) -> Handle {
        self.of.unwrap_or(self.handle())
    }

    /// Joins; the handle is then the communicator's. Collective.
    pub fn finish(self) -> Result<(), Failure> {
        let made = (self.make)()?;
        self.reserved.put(made);
        Ok(())
    }
}

type IdAndDevice = ([u8; uid::UniqueId::LEN], Option<i32>);

/// The ids of which a rank of this process is joining, its GPU, and that rank.
static CLAIMED: Mutex<BTreeMap<IdAndDevice, u32>> = Mutex::new(BTreeMap::new());

/// While it exists, no other rank of the same id joins in this process with the same GPU, whose calls would wait for
/// this one's for ever.
struct Claim(IdAndDevice);

impl Claim {
    fn new(id: uid::UniqueId, rank: u32, gpu: Option<i32>) -> Result<Claim, Failure> {
        let key = (id.to_bytes(), gpu);
        match lock(&CLAIMED).entry(key) {
            Entry::Occupied(first) => {
                let remedy = "make another GPU current for each rank of a process";
                let why = format!("rank {rank} of an id of which rank {} is in this process, too", first.get());
                Err(Failure::usage(format!("{why}, with the same GPU: {remedy}")))
            }
            Entry::Vacant(free) => {
                free.insert(rank);
                Ok(Claim(key))
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&CLAIMED).remove(&self.0);
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
        let first = Joining::by_id(one, 0, 2).unwrap();
        let refused = Joining::by_id(one, 1, 2).map(drop).unwrap_err();
        let text = <(c_int, String)>::from(refused).1;
        assert!(text.contains("rank 1 of an id of which rank 0 is in this process"), "{text}");
        let _third = Joining::by_id(other, 1, 2).unwrap();
        drop(first);
        Joining::by_id(one, 1, 2).map(drop).unwrap();
    }
}
