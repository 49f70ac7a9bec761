//! Symmetric memory for plans, allocated on the heap in large chunks: only a call that needs a further chunk waits for
//! the other PEs.

use symrail::SignalOp;
use symrail::gpu::GpuDevice;
use symrail::rounds::Abort;

use crate::error::Result;
use crate::members::{Members, Taken};

/// Bytes of a chunk, unless one allocation needs more.
const PIECE: usize = 24 << 20;
const ALIGNMENT: usize = 256;

pub(super) struct SymmetricMemory {
    pieces: Vec<Taken>,
    /// Bytes of the last chunk that are in use.
    used: usize,
    /// Words that tell kernels which PE has given up: the chunk of each, and its offset there.
    stops: Vec<(usize, usize)>,
    members: Members,
    device: GpuDevice,
}

impl SymmetricMemory {
    pub fn new(device: &GpuDevice, members: &Members) -> Self {
        SymmetricMemory {
            device: device.clone(),
            members: members.clone(),
            pieces: Vec::new(),
            used: 0,
            stops: Vec::new(),
        }
    }

    /// The members whose memory it is.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The device's address of `bytes` zeros, at the same offset of the heap on all members, which make the same
    /// allocations in the same order.
    ///
    /// # Errors
    /// The runtime's: the heap is exhausted.
    pub fn take(&mut self, bytes: usize) -> Result<u64> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        if self.pieces.last().is_none_or(|piece| piece.bytes() - self.used < bytes) {
            self.pieces.push(self.members.take(bytes.max(PIECE))?);
            self.used = 0;
            // No kernel writes to memory that has not been allocated yet.
            self.members.barrier()?;
        }
        let start = self.used;
        self.used += bytes;
        Ok(self.pieces.last().map_or(0, |piece| self.device.address(piece.start())) + start as u64)
    }

    /// As [`SymmetricMemory::take`], for memory that begins with the word of an alarm (`symrail/semaphore.cuh`).
    ///
    /// # Errors
    /// As there.
    pub fn take_behind_stop(&mut self, bytes: usize) -> Result<u64> {
        let at = self.take(bytes)?;
        self.stops.push((self.pieces.len() - 1, self.used - bytes.next_multiple_of(ALIGNMENT)));
        Ok(at)
    }

    /// Tells the kernels of all other PEs that this PE has given up, including kernels that have not begun yet. Returns
    /// at once.
    ///
    /// # Errors
    /// The runtime's.
    pub fn signal_given_up(&self) -> Result<()> {
        let runtime = self.members.runtime();
        let word = Abort { by: runtime.my_pe(), lost: None }.to_word();
        for &(piece, start) in &self.stops {
            let Some(piece) = self.pieces.get(piece) else { continue };
            let stop = piece.start().wrapping_add(start).cast_mut().cast::<u64>();
            for rank in (0..self.members.n()).filter(|&rank| rank != self.members.me()) {
                runtime.signal_op(stop, word, SignalOp::Set, self.members.pe(rank as usize))?;
            }
        }
        Ok(())
    }

    /// Frees all of it. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn free(self) -> Result<()> {
        self.pieces.into_iter().try_for_each(Taken::free)
    }
}
