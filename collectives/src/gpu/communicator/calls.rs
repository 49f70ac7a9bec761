//! The calls of a communicator.

use symrail::kernels::cuda::Stream;

use super::GpuCommunicator;
use crate::buffers::Buffers;
use crate::communicator::Reduction;
use crate::error::{Error, Result};
use crate::gpu::exchange;
use crate::gpu::plan::Memory;
use crate::gpu::program::{Which, load};
use crate::number::{DataType, ReduceOp};
use crate::plan::Collective;
use crate::transfer::{Transfer, all_to_all_v};

/// The type and reduction for calls that only move bytes.
const MOVES: (DataType, Reduction) = (DataType::Uint8, Reduction::Of(ReduceOp::Sum));

impl GpuCommunicator {
    /// Reduces all PEs' inputs into the output of every PE, which may be the input.
    ///
    /// # Safety
    /// Both are memory that this GPU can access, and they stay valid and unchanged by others until the stream has
    /// passed the call.
    ///
    /// # Errors
    /// Input and output overlap otherwise, the call does not suit its plan, there is no memory, a kernel cannot be
    /// compiled, or the driver reports an error. [`GpuCommunicator::check`] returns the errors of kernels.
    pub unsafe fn all_reduce(
        &mut self,
        stream: &Stream,
        input: Memory,
        output: Memory,
        ty: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.run(stream, &Collective::AllReduce, Buffers { input, output, part: input.len }, ty, op.into(), 0)
        }
    }

    /// Reduces all PEs' inputs; each PE gets its part. The output may be that part of the input.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`].
    pub unsafe fn reduce_scatter(
        &mut self,
        stream: &Stream,
        input: Memory,
        output: Memory,
        ty: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.run(stream, &Collective::ReduceScatter, Buffers { input, output, part: output.len }, ty, op.into(), 0)
        }
    }

    /// Gives every PE all PEs' inputs, in the order of PEs. The input may be its own part of the output.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`].
    pub unsafe fn all_gather(&mut self, stream: &Stream, input: Memory, output: Memory) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.run(stream, &Collective::AllGather, Buffers { input, output, part: input.len }, MOVES.0, MOVES.1, 0)
        }
    }

    /// Gives every PE its part of every input. The output may be the input.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or the parts have different sizes.
    pub unsafe fn all_to_all(&mut self, stream: &Stream, input: Memory, output: Memory) -> Result<()> {
        let part = self.selection.part_of_all_to_all(input.len)?;
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &Collective::AllToAll, Buffers { input, output, part }, MOVES.0, MOVES.1, 0) }
    }

    /// Gives every PE the input of PE `root`. The input may be the output.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or there is no such PE.
    pub unsafe fn broadcast(&mut self, stream: &Stream, input: Memory, output: Memory, root: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.run(stream, &Collective::Broadcast, Buffers { input, output, part: input.len }, MOVES.0, MOVES.1, root)
        }
    }

    /// Reduces all PEs' inputs into the output of PE `root`, which may be its input. The others pass an output of the
    /// same size, which stays unchanged.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or there is no such PE.
    pub unsafe fn reduce(
        &mut self,
        stream: &Stream,
        input: Memory,
        output: Memory,
        ty: DataType,
        op: impl Into<Reduction>,
        root: u32,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.run(stream, &Collective::Reduce, Buffers { input, output, part: input.len }, ty, op.into(), root)
        }
    }

    /// Sends and receives, all at once. Not collective: only the named PEs take part. The n-th send from a PE to
    /// another matches the n-th receive there, of the same size, in whichever calls both are. The memory may be any of
    /// the GPU's.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// There is no such PE, or the driver reports an error. [`GpuCommunicator::check`] reports a receive that matched a
    /// send of another size ([`Error::Sizes`]); on the sender it reports a PE that has given up.
    pub unsafe fn exchange(&mut self, stream: &Stream, transfers: &[Transfer<Memory>]) -> Result<()> {
        let launches = self.exchange.launches(transfers)?;
        self.in_order(stream, |all, captured| {
            if captured && all.exchanges.is_none() {
                let reason = "a first send or receive cannot be captured: make one once before";
                return Err(Error::Call(reason.into()));
            }
            let kernels = match &mut all.exchanges {
                Some(kernels) => kernels,
                none => none.insert(exchange::Kernels::new(&load(&all.device, &all.nvrtc, Which::Exchange)?)?),
            };
            // SAFETY: the caller's promise.
            unsafe { all.exchange.run(stream, kernels, &launches) }
        })
    }

    /// Gives every PE its part of every input, of any sizes: part `i` of `inputs` goes to PE `i`, and part `i` of
    /// `outputs` comes from PE `i`.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::exchange`]; or there is not a part for each PE.
    pub unsafe fn all_to_all_v(&mut self, stream: &Stream, inputs: &[Memory], outputs: &[Memory]) -> Result<()> {
        let transfers = all_to_all_v(self.members.n(), inputs, outputs, Memory::span)?;
        // SAFETY: the caller's promise.
        unsafe { self.exchange(stream, &transfers) }
    }
}
