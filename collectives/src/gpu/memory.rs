//! Symmetric memory for plans, allocated on the heap in large chunks: only a call that needs a further chunk waits for
//! the other PEs.

use symrail::SignalOp;
use symrail::gpu::GpuDevice;
use symrail::rounds::Abort;

use crate::error::Result;
use crate::members::{Members, Taken};

/// Bytes of a chunk for small allocations. One of more than half of it has a chunk of its own.
const PIECE: usize = 24 << 20;
const ALIGNMENT: usize = 256;

/// The chunk in which small allocations are made, and its bytes in use.
#[derive(Clone, Copy, Default)]
struct Current(Option<(usize, usize)>);

impl Current {
    /// The chunk and the offset of an allocation behind `pieces` chunks, and the size of the chunk if it is a new one.
    fn place(self, pieces: usize, bytes: usize) -> (usize, usize, Option<usize>) {
        match self.0 {
            _ if bytes > PIECE / 2 => (pieces, 0, Some(bytes)),
            Some((piece, used)) if PIECE - used >= bytes => (piece, used, None),
            _ => (pieces, 0, Some(PIECE)),
        }
    }
}

pub(super) struct SymmetricMemory {
    pieces: Vec<Taken>,
    current: Current,
    /// The word that tells all kernels which PE has given up (`symrail/semaphore.cuh`): its chunk, and the offset there.
    stop: (usize, usize),
    members: Members,
    device: GpuDevice,
}

impl SymmetricMemory {
    /// Collective.
    ///
    /// # Errors
    /// The runtime's: the heap is exhausted.
    pub fn new(device: &GpuDevice, members: &Members) -> Result<Self> {
        let mut memory = SymmetricMemory {
            device: device.clone(),
            members: members.clone(),
            pieces: Vec::new(),
            current: Current::default(),
            stop: (0, 0),
        };
        memory.stop = memory.place(8)?;
        Ok(memory)
    }

    /// The device's address of the word that is not 0 once a PE has given up: its number, plus 1.
    pub fn stop(&self) -> u64 {
        self.address(self.stop)
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
        let place = self.place(bytes)?;
        Ok(self.address(place))
    }

    /// The device's address of a place: a chunk and an offset there.
    fn address(&self, (piece, start): (usize, usize)) -> u64 {
        self.device.address(self.pieces[piece].start()) + start as u64
    }

    /// Allocates; returns the chunk and the offset there.
    fn place(&mut self, bytes: usize) -> Result<(usize, usize)> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let (piece, start, new) = self.current.place(self.pieces.len(), bytes);
        if let Some(bytes) = new {
            self.pieces.push(self.members.take(bytes)?);
            // No kernel writes to memory that has not been allocated yet.
            self.members.barrier()?;
        }
        if bytes <= PIECE / 2 {
            self.current = Current(Some((piece, start + bytes)));
        }
        Ok((piece, start))
    }

    /// Tells the kernels of all other PEs that this PE has given up, including kernels that have not begun yet. Returns
    /// at once.
    ///
    /// # Errors
    /// The runtime's.
    pub fn signal_given_up(&self) -> Result<()> {
        let runtime = self.members.runtime();
        let word = Abort { by: runtime.my_pe(), lost: None }.to_word();
        // A PE that is lost does not keep the others from being told.
        let (piece, start) = self.stop;
        let stop = self.pieces[piece].start().wrapping_add(start).cast_mut().cast::<u64>();
        let others = (0..self.members.n()).filter(|&rank| rank != self.members.me());
        let told = others.map(|rank| runtime.signal_op(stop, word, SignalOp::Set, self.members.pe(rank as usize)));
        Ok(told.fold(Ok(()), std::result::Result::and)?)
    }

    /// Frees all of it. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn free(self) -> Result<()> {
        self.pieces.into_iter().try_for_each(Taken::free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_allocation_leaves_room_for_small_ones() {
        assert_eq!(Current(None).place(0, 256), (0, 0, Some(PIECE)));
        assert_eq!(Current(Some((0, 256))).place(1, 32 << 20), (1, 0, Some(32 << 20)), "a chunk of its own");
        assert_eq!(Current(Some((0, 256))).place(2, PIECE / 2), (0, 256, None));
        assert_eq!(Current(Some((0, PIECE - 256))).place(2, 256), (0, PIECE - 256, None));
        assert_eq!(Current(Some((0, PIECE - 256))).place(2, 512), (2, 0, Some(PIECE)));
    }
}
