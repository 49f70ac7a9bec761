//! Calls of collectives on the devices that are tuned.

use std::time::Duration;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::Stream;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::{Runtime, SymSlice};
use symrail_collectives::gpu::{GpuCommunicator, Memory};
use symrail_collectives::plan::Collective;
use symrail_collectives::{Buffer, Communicator, DataType, ReduceOp, Selection};

use super::Result;

/// A device's collectives on its own buffers.
pub trait Calls {
    fn selection(&mut self) -> &mut Selection;
    /// Begins a call with a message of `message` bytes: the larger of input and output.
    fn call(&mut self, what: &Collective, message: usize) -> Result<()>;
    /// Waits until all calls have ended.
    fn end(&mut self) -> Result<()>;
    fn free(self) -> Result<()>;
}

/// Methods that both communicators have under the same names.
macro_rules! by_the_communicator {
    () => {
        fn selection(&mut self) -> &mut Selection {
            self.all.selection_mut()
        }

        fn free(self) -> Result<()> {
            self.all.free()?;
            self.dest.free()?;
            Ok(self.source.free()?)
        }
    };
}

/// Bytes of input and output.
fn bytes(what: &Collective, message: usize, n: usize) -> (usize, usize) {
    match what {
        Collective::AllGather => (message / n, message),
        Collective::ReduceScatter => (message, message / n),
        _ => (message, message),
    }
}

/// The CPU device.
pub struct Cpu {
    all: Communicator,
    n: usize,
    source: SymSlice<u8>,
    dest: SymSlice<u8>,
}

impl Cpu {
    pub fn new(runtime: &Runtime, room: usize) -> Result<Self> {
        let (source, dest) = (runtime.alloc_slice(room)?, runtime.alloc_slice(room)?);
        Ok(Cpu { all: Communicator::new(runtime)?, n: runtime.n_pes() as usize, source, dest })
    }
}

impl Calls for Cpu {
    by_the_communicator!();

    fn call(&mut self, what: &Collective, message: usize) -> Result<()> {
        let (input, output) = bytes(what, message, self.n);
        let from = Buffer::of(&self.source)?.part(0, input as u64)?;
        let to = Buffer::of(&self.dest)?.part(0, output as u64)?;
        let (all, ty, op) = (&mut self.all, DataType::Float32, ReduceOp::Sum);
        Ok(match what {
            Collective::AllReduce => all.all_reduce(from, to, ty, op),
            Collective::AllGather => all.all_gather(from, to),
            Collective::ReduceScatter => all.reduce_scatter(from, to, ty, op),
            Collective::AllToAll => all.all_to_all(from, to),
            Collective::Broadcast => all.broadcast(from, to, 0),
            _ => all.reduce(from, to, ty, op, 0),
        }?)
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// GPUs, on one stream.
pub struct Cuda<'d> {
    all: GpuCommunicator,
    runtime: &'d Runtime,
    device: &'d GpuDevice,
    stream: Stream,
    source: SymSlice<u8>,
    dest: SymSlice<u8>,
}

impl<'d> Cuda<'d> {
    pub fn new(runtime: &'d Runtime, device: &'d GpuDevice, room: usize) -> Result<Self> {
        let (source, dest) = (runtime.alloc_slice(room)?, runtime.alloc_slice(room)?);
        let all = GpuCommunicator::new(device, Nvrtc::find().map_err(symrail_collectives::Error::from)?)?;
        Ok(Cuda { all, runtime, device, stream: Stream::new(device.gpu())?, source, dest })
    }
}

impl Calls for Cuda<'_> {
    by_the_communicator!();

    fn call(&mut self, what: &Collective, message: usize) -> Result<()> {
        let (input, output) = bytes(what, message, self.runtime.n_pes() as usize);
        let from = Memory { at: self.device.address(self.source.as_ptr()), len: input as u64 };
        let to = Memory { at: self.device.address(self.dest.as_ptr()), len: output as u64 };
        let (all, stream, ty, op) = (&mut self.all, &self.stream, DataType::Float32, ReduceOp::Sum);
        // SAFETY: both are this structure's slices, and stay until the stream has ended.
        Ok(unsafe {
            match what {
                Collective::AllReduce => all.all_reduce(stream, from, to, ty, op),
                Collective::AllGather => all.all_gather(stream, from, to),
                Collective::ReduceScatter => all.reduce_scatter(stream, from, to, ty, op),
                Collective::AllToAll => all.all_to_all(stream, from, to),
                Collective::Broadcast => all.broadcast(stream, from, to, 0),
                _ => all.reduce(stream, from, to, ty, op, 0),
            }
        }?)
    }

    fn end(&mut self) -> Result<()> {
        // The kernels' own waits end before this.
        let patience = Duration::from_secs(2 * self.runtime.settings().timeout_s);
        self.stream.wait(patience)?;
        Ok(self.all.check()?)
    }
}
