//! Small blocks over rails: each goes to a buffer of its own at the receiver at once, in one message.
//!
//! Each pair of PEs has two buffers each way, which rounds use in turn. No PE signals that a buffer is free. A sender
//! begins round `n` when the other end's block of round `n - 1` has arrived. The other end sent that block after it had
//! unpacked the block of round `n - 2`. Nor does a PE usually wait for deliveries: it overwrites its copy of a block
//! only two rounds later, when the block has long been delivered.

use symrail::Delivery;

use crate::blocks::Blocks;
use crate::error::{Refusal, Result};
use crate::exchange::{Exchange, Link};

/// Bytes before a block. They hold 0 if there is a block, and otherwise the reason why there is none, plus one. The
/// rest keeps elements aligned.
const HEAD: usize = 64;
/// The largest blocks, in bytes. A plan needs four times its largest block for each pair.
pub(crate) const MOST: usize = 64 << 10;
/// The buffers of a pair: of received and of sent blocks, in rounds with even and odd numbers.
const RECEIVED: usize = 0;
const SENT: usize = 2;
const ROOMS: usize = 4;

/// The buffers of a plan.
pub(crate) struct Small {
    base: *mut u8,
    /// Bytes of each buffer.
    room: usize,
    /// For each slot, the deliveries of the last blocks with even and odd numbers.
    deliveries: Vec<[Option<Delivery>; 2]>,
}

// SAFETY: the address is that of symmetric memory, which any thread may use by the runtime's operations.
unsafe impl Send for Small {}

impl Small {
    /// Bytes of the largest buffer that this PE needs. All PEs use the largest size that any of them needs.
    pub fn room(blocks: &Blocks) -> usize {
        let small = blocks.legs.iter().filter(|leg| leg.link.small);
        let bytes = small.map(|leg| HEAD + leg.flow.most() * blocks.kind.element);
        bytes.max().unwrap_or(0).next_multiple_of(HEAD)
    }

    /// Bytes of all buffers.
    pub fn bytes(slots: usize, room: usize) -> usize {
        slots * ROOMS * room
    }

    /// # Safety
    /// The memory is symmetric, of [`Small::bytes`] bytes. Nothing else uses it.
    pub unsafe fn new(base: *mut u8, slots: usize, room: usize) -> Small {
        Small { base, room, deliveries: (0..slots).map(|_| [None, None]).collect() }
    }

    fn at(&self, slot: usize, which: usize, round: u64) -> *mut u8 {
        self.base.wrapping_add((slot * ROOMS + which + (round % 2) as usize) * self.room)
    }

    /// The address of the other end's block of this round, once it has arrived; or the reason why there is none.
    pub fn received(&self, link: &Link, round: u64) -> Result<*mut u8, Refusal> {
        let room = self.at(link.here, RECEIVED, round);
        // SAFETY: a word of the buffer, aligned. Its writer leaves it alone until two rounds later.
        match unsafe { room.cast::<u64>().read_volatile() } {
            0 => Ok(room.wrapping_add(HEAD)),
            code => Err(Refusal::of_code(code - 1)),
        }
    }

    /// The address to which this PE writes its block of this round, for [`Small::send`].
    pub fn outgoing(&mut self, link: &Link, round: u64) -> Result<*mut u8> {
        if let Some(earlier) = self.deliveries[link.here][(round % 2) as usize].take() {
            earlier.wait()?;
        }
        Ok(self.at(link.here, SENT, round).wrapping_add(HEAD))
    }

    /// Sends this PE's block, which has the given bytes, or the reason why there is none.
    pub fn send(&mut self, exchange: &Exchange, link: &Link, block: Result<usize, Refusal>) -> Result<()> {
        let round = exchange.round();
        let (from, to) = (self.at(link.here, SENT, round), self.at(link.there, RECEIVED, round));
        let (code, bytes) = block.map_or_else(|refusal| (refusal.code() + 1, 0), |bytes| (0, bytes));
        // SAFETY: the word is in a buffer that has been this PE's since `outgoing`. The buffer stays unchanged until
        // the next `outgoing` has waited for its delivery.
        unsafe {
            from.cast::<u64>().write_volatile(code);
            let delivery = exchange.put(link, to, from, HEAD + bytes)?;
            self.deliveries[link.here][(round % 2) as usize] = Some(delivery);
        }
        Ok(())
    }
}
