//! Communicators of a communicator's ranks and of further ones, which join with an id.

use std::ffi::c_int;

use symrail::bootstrap::uid;
use symrail_core::CPointer;

use crate::communicator::Communicator;
use crate::config::Structure;
use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::ids::{self, Passed, Ranks};
use crate::joining::{self, new_id};
use crate::rank::Joining;
use crate::types::{Handle, UniqueId};
use crate::{group, registry};

/// Gives all ranks the id of the first rank that has one. Collective.
fn share(ranks: Ranks<'_>, id: Option<uid::UniqueId>) -> Result<Passed, Failure> {
    let given = ranks.gather(&[u64::from(id.is_some())])?;
    let Some(root) = (0..).zip(&given).find_map(|(rank, &given)| (given != 0).then_some(rank)) else {
        return Err(Failure::argument("no rank has an id: one of them passes that of ncclCommGetUniqueId"));
    };
    let own = ranks.runtime.my_pe();
    match id {
        Some(id) if root == own => ranks.send(id, (0..ranks.runtime.n_pes()).filter(|&rank| rank != own).collect()),
        _ => ranks.receive(root),
    }
}

nccl! {
    fn ncclCommGetUniqueId(comm: Handle, id: CPointer<UniqueId>) of comm {
        registry::find(comm)?.check_failed()?;
        given("uniqueId", id)?.set(UniqueId::of(&new_id()?));
        Ok(())
    }
}

// Ranks of the communicator keep their numbers, and pass -1; further ranks pass a null pointer for it.
nccl! {
    fn ncclCommGrow(
        comm: Handle,
        size: c_int,
        id: CPointer<UniqueId>,
        rank: c_int,
        new: CPointer<Handle>,
        config: Structure,
    ) leaves (registry::is_unknown(comm) || comm == 0 && id.get().is_some_and(|id| !id.is_ours())) {
        let id = id.get();
        if comm == 0 {
            let id = id.ok_or_else(|| Failure::argument("a rank that joins needs the id of ncclCommGetUniqueId"))?;
            return group::call(|| joining::join(new, size, &id, rank, config));
        }
        group::call(|| {
            given("newcomm", new)?.set(0);
            config.check_for_communicator()?;
            let parent = registry::find(comm)?;
            parent.check_failed()?;
            let (before, own) = (parent.size, parent.rank);
            if rank != -1 && rank != own as c_int {
                let why = format!("rank {own} of the communicator keeps its number: pass -1, not {rank}");
                return Err(Failure::argument(why));
            }
            if i64::from(size) <= i64::from(before) {
                return Err(Failure::argument(format!("a communicator of {before} ranks does not grow to {size}")));
            }
            let id = id.as_ref().map(UniqueId::job).transpose()?;
            new.set(group::join(Joining::new(Some(comm), move || {
                let join = |id| Communicator::join(id, own, size as u32).map(Some);
                ids::join_by(&*parent, |ranks| share(ranks, id), join)
            }))?);
            Ok(())
        })
    }
}
