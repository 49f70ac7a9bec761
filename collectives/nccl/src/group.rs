//! Calls between `ncclGroupStart` and `ncclGroupEnd`: they begin at the end, a communicator's sends and receives all at
//! once.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use symrail_collectives::Transfer;
use symrail_collectives::gpu::Memory;

use crate::collectives::Collective;
use crate::communicator::Communicator;
use crate::guard::{Failure, guarded};
use crate::types::CudaStream;

/// What a call does.
pub enum Work {
    Collective(Collective),
    Transfers(Vec<Transfer<Memory>>),
}

/// A call that waits for the end of its group.
struct Waiting {
    communicator: Arc<Communicator>,
    stream: CudaStream,
    work: Work,
}

/// The calling thread's group.
#[derive(Default)]
struct Group {
    depth: usize,
    waiting: Vec<Waiting>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Begins a call, or keeps it for the end of the group.
pub fn submit(communicator: Arc<Communicator>, stream: CudaStream, work: Work) -> Result<(), Failure> {
    let waiting = Waiting { communicator, stream, work };
    let kept = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Some(waiting),
        _ => {
            group.add(waiting);
            None
        }
    });
    kept.map_or(Ok(()), begin)
}

impl Group {
    /// Sends and receives of a communicator on a stream are one call, in the place of the first.
    fn add(&mut self, new: Waiting) {
        let Work::Transfers(more) = &new.work else { return self.waiting.push(new) };
        let same = |old: &&mut Waiting| Arc::ptr_eq(&old.communicator, &new.communicator) && old.stream == new.stream;
        let transfers = self.waiting.iter_mut().filter(same).find_map(|old| match &mut old.work {
            Work::Transfers(transfers) => Some(transfers),
            Work::Collective(_) => None,
        });
        match transfers {
            Some(transfers) => transfers.extend(more),
            None => self.waiting.push(new),
        }
    }
}

fn begin(Waiting { communicator, stream, work }: Waiting) -> Result<(), Failure> {
    communicator.with(|inside| {
        let stream = inside.stream(stream);
        match work {
            Work::Collective(collective) => collective.begin(inside, &stream),
            // SAFETY: C's caller vouches for its memory.
            Work::Transfers(transfers) => Ok(unsafe { inside.collectives.exchange(&stream, &transfers) }?),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> c_int {
    guarded(|| {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    })
}

/// Ends the innermost group, and gives what waited for the end of the outermost one.
fn end() -> Result<Vec<Waiting>, Failure> {
    GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1).ok_or_else(|| Failure::usage("the end of a group without a start"))?;
        Ok(if group.depth == 0 { std::mem::take(&mut group.waiting) } else { Vec::new() })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    guarded(|| end()?.into_iter().try_for_each(begin))
}

/// A group's time is not foretold. The group ends, or later calls would wait for its end for ever.
#[unsafe(no_mangle)]
extern "C" fn ncclGroupSimulateEnd(_info: *mut c_void) -> c_int {
    guarded(|| {
        drop(end()?);
        Err(Failure::usage("ncclGroupSimulateEnd: nothing is known about times"))
    })
}
