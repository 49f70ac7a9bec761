//! The functions that make handles.

use std::ffi::c_int;

use symrail::Settings;
use symrail::bootstrap::uid::{self, UniqueId};

use crate::guard::{Failure, given, guarded};
use crate::handle::{Handle, Opaque, with_handle};
use crate::job::Job;
use crate::mpi::{Comm, Mpi};

fn hand_out(to: *mut Opaque, join: impl FnOnce() -> Result<Job, Failure>) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        let to = unsafe { given("handle", to) }?;
        *to = Handle::new(join()?)?.keep();
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
extern "C" fn cudecompInit(handle: *mut Opaque, comm: Comm) -> c_int {
    hand_out(handle, || join_by(&Mpi::find()?, comm))
}

#[unsafe(no_mangle)]
extern "C" fn cudecompInit_F(handle: *mut Opaque, comm: c_int) -> c_int {
    hand_out(handle, || {
        let mpi = Mpi::find()?;
        join_by(&mpi, mpi.of_fortran(comm))
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompInit(handle: *mut Opaque) -> c_int {
    hand_out(handle, Job::of_launcher)
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompUniqueId(id: *mut [u8; UniqueId::LEN]) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        let to = unsafe { given("id", id) }?;
        *to = new_id()?.to_bytes();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompJoin(handle: *mut Opaque, id: *mut [u8; UniqueId::LEN], rank: c_int, size: c_int) -> c_int {
    hand_out(handle, || {
        // SAFETY: C's caller vouches for its pointers.
        let id = unsafe { given("id", id) }?;
        join(id, [rank, size])
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompRank(handle: Opaque, rank: *mut i32, size: *mut i32) -> c_int {
    with_handle(handle, |handle| {
        // SAFETY: C's caller vouches for its pointers.
        let (rank, size) = unsafe { (given("rank", rank)?, given("size", size)?) };
        let runtime = handle.job.runtime();
        (*rank, *size) = (runtime.my_pe() as i32, runtime.n_pes() as i32);
        Ok(())
    })
}
