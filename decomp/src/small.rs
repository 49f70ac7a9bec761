//! Small blocks over rails: they go to room of their own at the receiver at once, in one message.
//!
//! Each pair of PEs has room for two blocks each way, which rounds use in turns. Nobody has to say that it is free: a
//! sender begins round `n` when the other end's block of round `n - 1` has arrived, and that was sent after the other
//! end had unpacked the block of round `n - 2`. Nor does anybody wait long for deliveries: a block's copy here is
//! written again, and its word there set again, two rounds later, when it has long been delivered.

use symrail::{Delivery, Runtime};

use crate::blocks::Blocks;
use crate::error::{Refusal, Result};
use crate::exchange::{Exchange, Link};

/// Bytes before a block: why there is none, plus one; 0 if there is one. The rest keeps elements aligned.
const HEAD: usize = 64;
/// The largest blocks, in bytes. With what is before them they are not more than 64 KiB, the smallest largest message
/// of the providers that we know, so that they travel in one piece.
pub(crate) const MOST: usize = (64 << 10) - HEAD;
/// Room of a pair: what has come, and what has been sent, in rounds with even and odd numbers.
const RECEIVED: usize = 0;
const SENT: usize = 2;
const ROOMS: usize = 4;

/// The rooms of a plan.
pub(crate) struct Small<'rt> {
    runtime: &'rt Runtime,
    base: *mut u8,
    /// Bytes of each.
    room: usize,
    /// Of each slot, the deliveries of the last blocks with even and odd numbers.
    deliveries: Vec<[Option<Delivery<'rt>>; 2]>,
}

// SAFETY: the address is that of symmetric memory, which any thread may use by the runtime's operations.
unsafe impl Send for Small<'_> {}

impl<'rt> Small<'rt> {
    /// Bytes of the largest room that this PE needs. All PEs make as large ones as any of them needs.
    pub fn room(blocks: &Blocks) -> usize {
        let small = blocks.legs.iter().filter(|leg| leg.link.small);
        let bytes = small.map(|leg| HEAD + leg.flow.most() * blocks.element);
        bytes.max().unwrap_or(0).next_multiple_of(HEAD)
    }

    /// Bytes of all rooms.
    pub fn bytes(slots: usize, room: usize) -> usize {
        slots * ROOMS * room
    }

    /// # Safety
    /// The memory is symmetric, of [`Small::bytes`], and used by nobody else.
    pub unsafe fn new(runtime: &'rt Runtime, base: *mut u8, slots: usize, room: usize) -> Small<'rt> {
        Small { runtime, base, room, deliveries: (0..slots).map(|_| [None, None]).collect() }
    }

    fn at(&self, slot: usize, which: usize, round: u64) -> *mut u8 {
        self.base.wrapping_add((slot * ROOMS + which + (round % 2) as usize) * self.room)
    }

    /// Where the other end's block of this round is, once it has arrived; or why there is none.
    pub fn received(&self, link: &Link, round: u64) -> Result<*mut u8, Refusal> {
        let room = self.at(link.here, RECEIVED, round);
        // SAFETY: a word of the room, aligned, which its writer leaves alone until two rounds later.
        match unsafe { room.cast::<u64>().read_volatile() } {
            0 => Ok(room.wrapping_add(HEAD)),
            code => Err(Refusal::of_code(code - 1)),
        }
    }

    /// Where this PE's block of this round is written, for [`Small::send`].
    pub fn outgoing(&mut self, link: &Link, round: u64) -> Result<*mut u8> {
        let delivery = &mut self.deliveries[link.here][(round % 2) as usize];
        if let Some(earlier) = delivery
            && !earlier.is_done()?
        {
            self.runtime.quiet()?;
        }
        *delivery = None;
        Ok(self.at(link.here, SENT, round).wrapping_add(HEAD))
    }

    /// Sends this PE's block of so many bytes, or says why there is none.
    pub fn send(&mut self, exchange: &Exchange<'rt>, link: &Link, block: Result<usize, Refusal>) -> Result<()> {
        let round = exchange.round();
        let (from, to) = (self.at(link.here, SENT, round), self.at(link.there, RECEIVED, round));
        let (code, bytes) = block.map_or_else(|refusal| (refusal.code() + 1, 0), |bytes| (0, bytes));
        // SAFETY: a word of the room, which is this PE's since `outgoing`; the room stays as it is until it is asked
        // there whether it was delivered.
        unsafe {
            from.cast::<u64>().write_volatile(code);
            let delivery = exchange.put_tracked(link, to, from, HEAD + bytes)?;
            self.deliveries[link.here][(round % 2) as usize] = Some(delivery);
        }
        Ok(())
    }
}
