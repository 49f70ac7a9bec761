//! The symmetric memory that teams talk through: one area for each team that a PE can be in at a time.
//!
//! Teams of disjoint PEs use the same area number without meeting. Which number a new team gets is agreed by its parent:
//! one that is free on all PEs. An area is all zero when it is free.

use std::sync::Mutex;

use symrail_kernels::meeting::WORDS;
use symrail_transport::Pe;

use crate::error::Result;
use crate::meeting::FLAG_BYTES;
use crate::rma::at;
use crate::runtime::{Runtime, lock};

/// Teams that a PE can be in at a time.
pub const MAX_TEAMS: u32 = 64;
/// The most bytes that a reduction exchanges by way of the area.
pub(crate) const SMALL: usize = 4096;
/// Collectives that may be under way on one team at a time, because a PE that only sends runs ahead.
pub(crate) const TICKETS: u64 = 8;

/// The number of the area of all PEs' team.
const WORLD: u32 = 0;

/// Where things are in an area.
const FLAGS: u64 = 0;
const COUNTS: u64 = FLAGS + FLAG_BYTES;
const DEVICE: u64 = COUNTS + TICKETS * 8;
const STAMPS: u64 = DEVICE + WORDS * 8;

/// All areas of this PE.
pub(crate) struct Areas {
    base: usize,
    offset: u64,
    n_pes: u32,
    rounds: u32,
    /// Bit `i`: area `i` is free.
    free: Mutex<u64>,
}

impl Areas {
    /// Takes the areas from the heap. Collective.
    pub fn allocate(runtime: &Runtime) -> Result<Areas> {
        let n_pes = runtime.n_pes();
        // Two more than a power of two needs: the PEs beyond it hand in theirs and get the result.
        let rounds = n_pes.next_power_of_two().trailing_zeros() + 2;
        let mut areas = Areas { base: runtime.base, offset: 0, n_pes, rounds, free: Mutex::new(!(1 << WORLD)) };
        let block = runtime.calloc_host(MAX_TEAMS as usize, areas.bytes())?;
        areas.offset = (block.addr() - runtime.base) as u64;
        Ok(areas)
    }

    fn bytes(&self) -> usize {
        let words = STAMPS + u64::from(2 * self.rounds) * 8 + u64::from(2 * self.n_pes) * 8;
        (words.next_multiple_of(64) as usize) + 2 * self.rounds as usize * SMALL
    }

    /// Bits of the areas that are free here.
    pub fn free(&self) -> u64 {
        *lock(&self.free)
    }

    /// The area of all PEs' team, which nobody takes.
    pub fn world(&self) -> Area {
        self.area(WORLD)
    }

    fn area(&self, number: u32) -> Area {
        let offset = self.offset + u64::from(number) * self.bytes() as u64;
        Area { base: self.base, offset, number, rounds: self.rounds, n_pes: self.n_pes }
    }

    /// Takes the lowest of the areas that all PEs have said to be free; `None` if there is none.
    pub fn take(&self, free_everywhere: u64) -> Option<Area> {
        let number = free_everywhere.trailing_zeros();
        if number >= MAX_TEAMS {
            return None;
        }
        *lock(&self.free) &= !(1 << number);
        Some(self.area(number))
    }

    /// Gives an area back that no PE will write to any more.
    pub fn give_back(&self, area: &Area) {
        // SAFETY: the area is in this PE's committed heap, and nobody else uses it now.
        unsafe { at(self.base, area.offset).write_bytes(0, self.bytes()) };
        *lock(&self.free) |= 1 << area.number;
    }
}

/// One team's area. Addresses are this PE's own, which name the same place on every PE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    base: usize,
    offset: u64,
    number: u32,
    rounds: u32,
    n_pes: u32,
}

impl Area {
    /// Which of the areas it is: below [`MAX_TEAMS`], and the same on all of the team's PEs.
    pub fn slot(&self) -> u32 {
        self.number
    }

    /// The symmetric offset of the flags for the team's meetings.
    pub fn flags(&self) -> u64 {
        self.offset + FLAGS
    }

    /// The symmetric offset of the words for meetings of the PEs' CPU devices.
    pub fn device_words(&self) -> u64 {
        self.offset + DEVICE
    }

    /// The word that counts arrivals for a ticket.
    pub fn count(&self, ticket: u64) -> *mut u64 {
        self.word(COUNTS + ticket % TICKETS * 8)
    }

    /// The word that says which reduction the data of a round is from.
    pub fn stamp(&self, set: u64, round: u32) -> *mut u64 {
        self.word(STAMPS + (set * u64::from(self.rounds) + u64::from(round)) * 8)
    }

    /// The word in which PE `from` leaves a number.
    pub fn number(&self, set: u64, from: Pe) -> *mut u64 {
        let first = STAMPS + u64::from(2 * self.rounds) * 8;
        self.word(first + (set * u64::from(self.n_pes) + u64::from(from)) * 8)
    }

    /// [`SMALL`] bytes for the data of a round.
    pub fn data(&self, set: u64, round: u32) -> *mut u8 {
        let words = STAMPS + u64::from(2 * self.rounds) * 8 + u64::from(2 * self.n_pes) * 8;
        let slot = set * u64::from(self.rounds) + u64::from(round);
        at(self.base, self.offset + words.next_multiple_of(64) + slot * SMALL as u64)
    }

    /// How many rounds there are at most.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    fn word(&self, within: u64) -> *mut u64 {
        at(self.base, self.offset + within).cast()
    }
}
