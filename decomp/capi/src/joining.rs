//! The functions that make handles.

use std::ffi::c_int;

use symrail::Settings;
use symrail::bootstrap::uid::{self, UniqueId};
use symrail_core::CPointer;

use crate::guard::{Failure, given, guarded, value};
use crate::handle::{Handle, Opaque, with_handle};
use crate::job::Job;
use crate::mpi::{Comm, Mpi};

fn hand_out(to: CPointer<Opaque>, join: impl FnOnce() -> Result<Job, Failure>) -> c_int {
    guarded(|| {
        given("handle", to)?.set(Handle::new(join()?)?.keep());
        Ok(())
    })
}

/// A new id, whose rendezvous is served on the loopback interface unless the user names another one.
fn new_id() -> Result<UniqueId, Failure> {
    let settings = Settings::from_env().map_err(symrail::Error::from)?;
    Ok(uid::create_on(settings.nccl_interface.as_deref())?)
}

fn join(id: &[u8], [rank, size]: [c_int; 2]) -> Result<Job, Failure> {
    let [rank, size] = [rank, size].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    Job::join(uid::open(UniqueId::from_bytes(id)?, rank, size)?)
}

/// A job of the ranks of a communicator. Collective.
fn join_by(mpi: &Mpi, comm: Comm) -> Result<Job, Failure> {
    let numbers = mpi.rank_and_size(comm)?;
    let made = if numbers[0] == 0 { Some(new_id()) } else { None };
    // Without an id, zeros tell the others so.
    let mut bytes = [0; UniqueId::LEN];
    if let Some(Ok(id)) = &made {
        bytes = id.to_bytes();
    }
    mpi.broadcast(comm, &mut bytes)?;
    made.transpose()?;
    join(&bytes, numbers)
}

#[unsafe(no_mangle)]
extern "C" fn cudecompInit(handle: CPointer<Opaque>, comm: Comm) -> c_int {
    hand_out(handle, || join_by(&Mpi::find()?, comm))
}

#[unsafe(no_mangle)]
extern "C" fn cudecompInit_F(handle: CPointer<Opaque>, comm: c_int) -> c_int {
    hand_out(handle, || {
        let mpi = Mpi::find()?;
        join_by(&mpi, mpi.of_fortran(comm))
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompInit(handle: CPointer<Opaque>) -> c_int {
    hand_out(handle, Job::of_launcher)
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompUniqueId(id: CPointer<[u8; UniqueId::LEN]>) -> c_int {
    guarded(|| {
        given("id", id)?.set(new_id()?.to_bytes());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompJoin(
    handle: CPointer<Opaque>,
    id: CPointer<[u8; UniqueId::LEN]>,
    rank: c_int,
    size: c_int,
) -> c_int {
    hand_out(handle, || join(&value("id", id)?, [rank, size]))
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompRank(handle: Opaque, rank: CPointer<i32>, size: CPointer<i32>) -> c_int {
    with_handle(handle, |handle| {
        let (rank, size) = (given("rank", rank)?, given("size", size)?);
        let runtime = handle.job.runtime();
        rank.set(runtime.my_pe() as i32);
        size.set(runtime.n_pes() as i32);
        Ok(())
    })
}
