//! Collectives, sends and receives.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use symrail::kernels::cuda::Stream;
use symrail_collectives::gpu::{GpuCommunicator, Memory};
use symrail_collectives::{DataType, ReduceOp, Reduction, Transfer};

use crate::communicator::{Communicator, Inside};
use crate::config::Structure;
use crate::export::nccl;
use crate::group::{self, Work, submit};
use crate::guard::Failure;
use crate::operations::reduction;
use crate::registry;
use crate::types::{CudaStream, Handle, data_type};

/// A collective and its buffers.
pub enum Collective {
    AllReduce(Memory, Memory, DataType, Reduction),
    Reduce(Memory, Memory, DataType, Reduction, u32),
    ReduceScatter(Memory, Memory, DataType, Reduction),
    Broadcast(Memory, Memory, u32),
    AllGather(Memory, Memory),
    AllToAll(Memory, Memory),
    Gather(Memory, Memory, u32),
    Scatter(Memory, Memory, u32),
}

impl Collective {
    pub fn begin(self, inside: Inside<'_>, stream: &Stream) -> Result<(), Failure> {
        let all = inside.collectives;
        // SAFETY: C's caller vouches for its memory.
        Ok(unsafe {
            match self {
                Collective::AllReduce(from, to, ty, op) => all.all_reduce(stream, from, to, ty, op),
                Collective::Reduce(from, to, ty, op, root) => all.reduce(stream, from, to, ty, op, root),
                Collective::ReduceScatter(from, to, ty, op) => all.reduce_scatter(stream, from, to, ty, op),
                Collective::Broadcast(from, to, root) => all.broadcast(stream, from, to, root),
                Collective::AllGather(from, to) => all.all_gather(stream, from, to),
                Collective::AllToAll(from, to) => all.all_to_all(stream, from, to),
                Collective::Gather(from, to, root) => all.gather(stream, from, to, root),
                Collective::Scatter(from, to, root) => all.scatter(stream, from, to, root),
            }
        }?)
    }
}

impl Collective {
    /// See [`GpuCommunicator::is_prepared`].
    pub fn is_prepared(&self, all: &GpuCommunicator) -> bool {
        use symrail_collectives::plan::Collective as Kind;
        let moves = (DataType::Uint8, Reduction::Of(ReduceOp::Sum));
        let (kind, (from, to), (ty, reduction), root) = match *self {
            Collective::AllReduce(from, to, ty, op) => (Kind::AllReduce, (from, to), (ty, op), 0),
            Collective::Reduce(from, to, ty, op, root) => (Kind::Reduce, (from, to), (ty, op), root),
            Collective::ReduceScatter(from, to, ty, op) => (Kind::ReduceScatter, (from, to), (ty, op), 0),
            Collective::Broadcast(from, to, root) => (Kind::Broadcast, (from, to), moves, root),
            Collective::AllGather(from, to) => (Kind::AllGather, (from, to), moves, 0),
            Collective::AllToAll(from, to) => (Kind::AllToAll, (from, to), moves, 0),
            Collective::Gather(part, ..) | Collective::Scatter(_, part, _) => {
                return all.is_prepared_in_parts(part.len);
            }
        };
        all.is_prepared(&kind, from, to, ty, reduction, root)
    }
}

/// The common parts of all calls: a communicator, and elements of a type.
struct Call {
    communicator: Arc<Communicator>,
    ty: DataType,
    bytes: u64,
}

impl Call {
    /// `count` elements each.
    fn new(comm: Handle, ty: c_int, count: usize) -> Result<Call, Failure> {
        let ty = data_type(ty)?;
        let bytes = (count as u64).checked_mul(ty.size() as u64);
        let bytes = bytes.ok_or_else(|| Failure::argument(format!("{count} elements are too many")))?;
        Ok(Call { communicator: registry::find(comm)?, ty, bytes })
    }

    /// The memory of `parts` times as many elements.
    fn memory(&self, at: *const c_void, parts: u32) -> Result<Memory, Failure> {
        let (start, len) = (at.addr() as u64, self.bytes.checked_mul(parts.into()));
        let Some(len) = len.filter(|&len| start.checked_add(len).is_some()) else {
            let bytes = self.bytes;
            return Err(Failure::argument(format!("a buffer of {parts} times {bytes} bytes at {at:?} is too large")));
        };
        if at.is_null() && len > 0 {
            return Err(Failure::argument(format!("a buffer of {len} bytes is a null pointer")));
        }
        Ok(Memory { at: start, len })
    }

    fn size(&self) -> u32 {
        self.communicator.size
    }

    fn rank(&self, what: &str, rank: c_int) -> Result<u32, Failure> {
        let size = self.size();
        let known = u32::try_from(rank).ok().filter(|&rank| rank < size);
        known.ok_or_else(|| Failure::argument(format!("{what} {rank} of {size} ranks")))
    }

    /// The memory that the root alone uses; the other ranks have `other` in its place.
    fn of_root(&self, root: u32, at: *const c_void, parts: u32, other: Memory) -> Result<Memory, Failure> {
        if self.communicator.rank == root { self.memory(at, parts) } else { Ok(other) }
    }

    fn collective(self, stream: CudaStream, collective: Collective) -> Result<(), Failure> {
        submit(self.communicator, stream, Work::Collective(collective))
    }

    fn transfers(self, stream: CudaStream, transfers: Vec<Transfer<Memory>>) -> Result<(), Failure> {
        submit(self.communicator, stream, Work::Transfers(Vec::new(), transfers))
    }
}

/// Defines functions of calls, which may be in a group; those of collectives also with a configuration.
macro_rules! call {
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) of $comm:ident $body:block) => {
        nccl! { fn $name($($arg: $ty),*) of $comm { group::call(|| $body) } }
    };
    (fn $name:ident, $with_config:ident($($arg:ident: $ty:ty),* $(,)?) of $comm:ident $body:block) => {
        call! { fn $name($($arg: $ty),*) of $comm $body }
        call! {
            fn $with_config($($arg: $ty,)* config: Structure) of $comm {
                config.check_for_call()?;
                $body
            }
        }
    };
}

/// Defines functions of collectives from `from` to `to` with further numbers; the body makes the collective of `$call`.
macro_rules! collective {
    (fn $name:ident, $with_config:ident($from:ident, $to:ident $(, $number:ident)*) of $call:ident $body:block) => {
        call! {
            fn $name, $with_config(
                $from: *const c_void,
                $to: *mut c_void,
                count: usize,
                ty: c_int,
                $($number: c_int,)*
                comm: Handle,
                stream: CudaStream,
            ) of comm {
                let $call = Call::new(comm, ty, count)?;
                let collective = $body;
                $call.collective(stream, collective)
            }
        }
    };
}

collective! {
    fn ncclAllReduce, ncclAllReduceConfig(from, to, op) of call {
        let reduction = reduction(&call.communicator, op, call.ty)?;
        Collective::AllReduce(call.memory(from, 1)?, call.memory(to, 1)?, call.ty, reduction)
    }
}

collective! {
    fn ncclReduce, ncclReduceConfig(from, to, op, root) of call {
        let (root, reduction) = (call.rank("the root", root)?, reduction(&call.communicator, op, call.ty)?);
        let from = call.memory(from, 1)?;
        Collective::Reduce(from, call.of_root(root, to, 1, from)?, call.ty, reduction, root)
    }
}

collective! {
    fn ncclReduceScatter, ncclReduceScatterConfig(from, to, op) of call {
        let reduction = reduction(&call.communicator, op, call.ty)?;
        Collective::ReduceScatter(call.memory(from, call.size())?, call.memory(to, 1)?, call.ty, reduction)
    }
}

/// Gives all ranks the root's bytes.
fn broadcast(call: &Call, from: *const c_void, to: *mut c_void, root: c_int) -> Result<Collective, Failure> {
    let (root, to) = (call.rank("the root", root)?, call.memory(to, 1)?);
    Ok(Collective::Broadcast(call.of_root(root, from, 1, to)?, to, root))
}

collective! {
    fn ncclBroadcast, ncclBroadcastConfig(from, to, root) of call { broadcast(&call, from, to, root)? }
}

call! {
    fn ncclBcast(buffer: *mut c_void, count: usize, ty: c_int, root: c_int, comm: Handle, stream: CudaStream) of comm {
        let call = Call::new(comm, ty, count)?;
        let collective = broadcast(&call, buffer, buffer, root)?;
        call.collective(stream, collective)
    }
}

collective! {
    fn ncclAllGather, ncclAllGatherConfig(from, to) of call {
        Collective::AllGather(call.memory(from, 1)?, call.memory(to, call.size())?)
    }
}

collective! {
    fn ncclAlltoAll, ncclAlltoAllConfig(from, to) of call {
        Collective::AllToAll(call.memory(from, call.size())?, call.memory(to, call.size())?)
    }
}

collective! {
    fn ncclGather, ncclGatherConfig(from, to, root) of call {
        let (root, from) = (call.rank("the root", root)?, call.memory(from, 1)?);
        Collective::Gather(from, call.of_root(root, to, call.size(), from)?, root)
    }
}

collective! {
    fn ncclScatter, ncclScatterConfig(from, to, root) of call {
        let (root, to) = (call.rank("the root", root)?, call.memory(to, 1)?);
        Collective::Scatter(call.of_root(root, from, call.size(), to)?, to, root)
    }
}

call! {
    fn ncclSend(from: *const c_void, count: usize, ty: c_int, peer: c_int, comm: Handle, stream: CudaStream) of comm {
        let call = Call::new(comm, ty, count)?;
        let send = Transfer::Send { to: call.rank("the peer", peer)?, memory: call.memory(from, 1)? };
        call.transfers(stream, vec![send])
    }
}

call! {
    fn ncclRecv(to: *mut c_void, count: usize, ty: c_int, peer: c_int, comm: Handle, stream: CudaStream) of comm {
        let call = Call::new(comm, ty, count)?;
        let receive = Transfer::Receive { from: call.rank("the peer", peer)?, memory: call.memory(to, 1)? };
        call.transfers(stream, vec![receive])
    }
}
