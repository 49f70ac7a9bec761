//! The symmetric memory of teams: one area for each team that a PE can be in at a time.
//!
//! Teams of disjoint PEs use the same area number without a barrier. The PEs that make a new team agree on its number:
//! one that is free on all of them. The words of a free area are all zero.

use symrail_kernels::barrier_words::WORDS;

use super::claim::{Claim, Claims};
use crate::alloc::Allocator;
use crate::barrier_plan::FLAG_BYTES;
use crate::error::Result;
use crate::space::at;
use crate::sync::SYNC_BYTES;

/// The most teams that a PE can be in at a time.
pub const MAX_TEAMS: u32 = 64;
/// Collectives that may be in progress on one team at a time, because a PE that only sends runs ahead.
pub(crate) const TICKETS: u64 = 8;

/// The number of the area of all PEs' team.
const WORLD: u32 = 0;
/// The first of the areas that active sets may take; the areas before it are reserved for teams.
const FIRST_OF_SETS: u32 = 32;
const FOURTH_OF_SETS: u32 = FIRST_OF_SETS + 3;
/// Bytes of each half of a scratch buffer: the most that passes through it at once. The team of all PEs has most,
/// because most programs have no other; next are the first teams and the first active sets.
const fn scratch(number: u32) -> usize {
    match number {
        WORLD => 1 << 20,
        1..=3 | FIRST_OF_SETS..=FOURTH_OF_SETS => 256 << 10,
        _ => 24 << 10,
    }
}

/// Offsets in an area.
const FLAGS: u64 = 0;
const HOST_FLAGS: u64 = FLAGS + FLAG_BYTES;
const COUNTS: u64 = HOST_FLAGS + FLAG_BYTES;
const HOST_COUNTS: u64 = COUNTS + TICKETS * 8;
const DEVICE: u64 = HOST_COUNTS + TICKETS * 8;
const ACKNOWLEDGED: u64 = DEVICE + WORDS * 8;
const TAGS: u64 = ACKNOWLEDGED + 8;

/// Bytes of the heap that the runtime uses itself in a job of `n_pes` PEs: for barriers and for teams.
pub(crate) fn own_bytes(n_pes: u32) -> usize {
    let areas = Areas { base: 0, offset: 0, n_pes, claims: Claims::new() };
    (SYNC_BYTES as usize).next_multiple_of(4096) + areas.bytes()
}

/// All areas of this PE.
pub(crate) struct Areas {
    base: usize,
    offset: u64,
    n_pes: u32,
    claims: Claims,
}

impl Areas {
    /// Allocates the areas on the heap, which starts at `base`. Collective.
    pub fn allocate(allocator: &Allocator<'_>, base: usize, n_pes: u32) -> Result<Areas> {
        let mut areas = Areas { base, offset: 0, n_pes, claims: Claims::new() };
        areas.offset = (allocator.calloc_own(areas.bytes())?.addr() - base) as u64;
        Ok(areas)
    }

    /// Bytes of all areas.
    fn bytes(&self) -> usize {
        (self.area(MAX_TEAMS).offset - self.offset) as usize
    }

    /// The area of all PEs' team, which no other team takes.
    pub fn world(&self) -> Area {
        self.area(WORLD)
    }

    /// The area with this number. Areas follow one another.
    fn area(&self, number: u32) -> Area {
        let Areas { base, n_pes, .. } = *self;
        let at = |offset, number| Area { base, offset, number, n_pes, scratch: scratch(number) };
        let start = (0..number).fold(self.offset, |start, number| start + at(start, number).bytes() as u64);
        at(start, number)
    }

    /// Agrees with the other PEs of a team on the area of its new subteams; this PE `takes` part in one of them or not.
    /// All PEs have arrived. `common` is as in [`Claims::agree`].
    pub fn for_team(&self, parent: &Area, takes: bool, common: impl FnMut(u64) -> Result<u64>) -> Result<Option<Area>> {
        let claim = Claim { rank: parent.number.into(), among: !0, takes };
        Ok(self.claims.agree(&claim, common)?.map(|number| self.area(number)))
    }

    /// As above, with the other PEs of an active set whose array is at this symmetric offset.
    pub fn for_set(&self, array: u64, common: impl FnMut(u64) -> Result<u64>) -> Result<Option<Area>> {
        let claim = Claim { rank: u64::from(MAX_TEAMS) + array, among: !0 << FIRST_OF_SETS, takes: true };
        Ok(self.claims.agree(&claim, common)?.map(|number| self.area(number)))
    }

    /// Frees an area that no PE will write to any more.
    pub fn give_back(&self, area: &Area) {
        // SAFETY: the area is in this PE's committed heap, and no other code uses it now.
        unsafe { at(self.base, area.offset).write_bytes(0, area.words() as usize) };
        self.claims.give_back(area.number);
    }
}

/// One team's area. Addresses are this PE's own, which name the same location on every PE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    base: usize,
    offset: u64,
    number: u32,
    n_pes: u32,
    scratch: usize,
}

impl Area {
    /// The number of the area: below [`MAX_TEAMS`], and the same on all of the team's PEs.
    pub fn slot(&self) -> u32 {
        self.number
    }

    /// The symmetric offset of the flags for the team's barriers.
    pub fn flags(&self) -> u64 {
        self.offset + FLAGS
    }

    /// The symmetric offset of the words for barriers of the PEs' CPU devices.
    pub fn device_words(&self) -> u64 {
        self.offset + DEVICE
    }

    /// The symmetric offset of the flags for barriers of the PEs on one host.
    pub fn host_flags(&self) -> u64 {
        self.offset + HOST_FLAGS
    }

    /// The word that counts arrivals for a ticket.
    pub fn count(&self, ticket: u64) -> *mut u64 {
        self.word(COUNTS + ticket % TICKETS * 8)
    }

    /// The word that counts the blocks that PEs of this host have forwarded for a ticket.
    pub fn host_count(&self, ticket: u64) -> *mut u64 {
        self.word(HOST_COUNTS + ticket % TICKETS * 8)
    }

    /// The last of the words that count.
    pub fn last_count(&self) -> *mut u64 {
        self.host_count(TICKETS - 1)
    }

    /// The word that counts acknowledgements of broadcasts.
    pub fn acknowledged(&self) -> *mut u64 {
        self.word(ACKNOWLEDGED)
    }

    /// The word that holds the turn for which a message with tag `number` has arrived.
    pub fn tag(&self, turn: u64, number: u32) -> *mut u64 {
        self.word(TAGS + ((turn & 1) * u64::from(self.tags()) + u64::from(number)) * 8)
    }

    /// A turn's half of the scratch buffer: [`Area::scratch_bytes`] bytes.
    pub fn scratch(&self, turn: u64) -> *mut u8 {
        at(self.base, self.offset + self.words() + (turn & 1) * self.scratch as u64)
    }

    /// Bytes of each half of the scratch buffer.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch
    }

    /// The number of tags of a turn: one for the PE beyond a power of two, and for each binary digit of the number of
    /// PEs one to gather on a host and two rounds between hosts.
    fn tags(&self) -> u32 {
        1 + 3 * self.n_pes.next_power_of_two().trailing_zeros()
    }

    /// The end of the words.
    fn words(&self) -> u64 {
        (TAGS + u64::from(2 * self.tags()) * 8).next_multiple_of(64)
    }

    fn bytes(&self) -> usize {
        self.words() as usize + 2 * self.scratch
    }

    fn word(&self, within: u64) -> *mut u64 {
        at(self.base, self.offset + within).cast()
    }
}
