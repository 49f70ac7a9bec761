//! Bounce buffers: small registered buffers for bytes that must outlive the call that brought them.
//!
//! The endpoint copies messages and the sources of blocking puts to them, and also user buffers where the NIC can only
//! read registered memory. There are two sizes: small slots for messages without payload and for small values, large
//! slots for the largest message.

use std::ptr::NonNull;

use crate::error::Result;
use crate::rail::{LocalKey, Rail};

/// Bytes of a small slot.
pub const SMALL: usize = 128;
const SMALL_SLOTS: usize = 4096;
const LARGE_SLOTS: usize = 256;
/// Registration id of the arena; symmetric segments and user buffers never get it.
const ARENA_ID: u32 = u32::MAX;

/// One slot of the arena. Each [`Bounce::alloc`] and [`Bounce::share`] needs one [`Bounce::free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u32);

/// The arena of slots.
pub struct Bounce {
    memory: Vec<u64>,
    large: usize,
    free_small: Vec<u32>,
    free_large: Vec<u32>,
    /// The reference count of each slot.
    holders: Vec<u16>,
    keys: Vec<LocalKey>,
}

impl Bounce {
    /// Allocates the arena and registers it with every rail. `large` is the size of a large slot in bytes.
    ///
    /// # Errors
    /// The error of the registration.
    pub fn new(rails: &mut [Box<dyn Rail>], large: usize) -> Result<Self> {
        let large = large.next_multiple_of(64);
        let bytes = SMALL_SLOTS * SMALL + LARGE_SLOTS * large;
        let mut memory = vec![0u64; bytes / 8];
        let mut keys = Vec::with_capacity(rails.len());
        for rail in rails {
            let key = if rail.caps().local_registration {
                // SAFETY: the vector is never resized, and lives as long as the endpoint, which drops its rails first.
                unsafe { rail.register_local(memory.as_mut_ptr().cast(), bytes, ARENA_ID) }?
            } else {
                LocalKey::default()
            };
            keys.push(key);
        }
        Ok(Bounce {
            memory,
            large,
            free_small: (0..SMALL_SLOTS as u32).rev().collect(),
            free_large: (0..LARGE_SLOTS as u32).rev().map(|i| i + SMALL_SLOTS as u32).collect(),
            holders: vec![0; SMALL_SLOTS + LARGE_SLOTS],
            keys,
        })
    }

    /// Bytes of a large slot: the most that [`Bounce::alloc`] can provide.
    pub fn largest(&self) -> usize {
        self.large
    }

    /// Whether small and large slots are plentiful: at least a quarter of each is free.
    pub fn plentiful(&self) -> bool {
        self.free_small.len() > SMALL_SLOTS / 4 && self.free_large.len() > LARGE_SLOTS / 4
    }

    /// Whether at least an eighth of each is free: enough to continue work that has begun. The limit is below that of
    /// `plentiful`, so that waiting work that holds slots does not wait for its own slots.
    pub fn sufficient(&self) -> bool {
        self.free_small.len() > SMALL_SLOTS / 8 && self.free_large.len() > LARGE_SLOTS / 8
    }

    /// Whether at least half of the slots are free.
    pub fn ample(&self) -> bool {
        self.free_small.len() > SMALL_SLOTS / 2 && self.free_large.len() > LARGE_SLOTS / 2
    }

    /// A slot of at least `len` bytes, if there is one.
    pub fn alloc(&mut self, len: usize) -> Option<Slot> {
        if len > self.large {
            return None;
        }
        let small = if len <= SMALL { self.free_small.pop() } else { None };
        let slot = small.or_else(|| self.free_large.pop())?;
        self.holders[slot as usize] = 1;
        Some(Slot(slot))
    }

    /// Moves the first `len` bytes of this slot, which is freed, to a small slot if they fit and one is free. Returns
    /// the slot that holds them.
    pub fn shrink(&mut self, slot: Slot, len: usize) -> Slot {
        if len > SMALL || (slot.0 as usize) < SMALL_SLOTS || self.free_small.is_empty() {
            return slot;
        }
        let Some(small) = self.alloc(len) else { return slot };
        let (from, to) = (self.ptr(slot), self.ptr(small));
        // SAFETY: both slots have room for `len` bytes, and are not the same.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), len) };
        self.free(slot);
        small
    }

    /// Adds a reference: the slot needs one more [`Bounce::free`].
    pub fn share(&mut self, slot: Slot) {
        self.holders[slot.0 as usize] += 1;
    }

    /// Drops a reference to a slot.
    pub fn free(&mut self, slot: Slot) {
        let holders = &mut self.holders[slot.0 as usize];
        *holders = holders.saturating_sub(1);
        if *holders > 0 {
            return;
        }
        if (slot.0 as usize) < SMALL_SLOTS { self.free_small.push(slot.0) } else { self.free_large.push(slot.0) }
    }

    /// The address of the slot's first byte.
    pub fn ptr(&mut self, slot: Slot) -> NonNull<u8> {
        let i = slot.0 as usize;
        let at = if i < SMALL_SLOTS { i * SMALL } else { SMALL_SLOTS * SMALL + (i - SMALL_SLOTS) * self.large };
        // SAFETY: slots are only made by `alloc`, so `at` is inside of the arena, whose pointer is not null.
        unsafe { NonNull::new_unchecked(self.memory.as_mut_ptr().cast::<u8>().add(at)) }
    }

    /// The key by which a rail knows the arena.
    pub fn key(&self, rail: usize) -> LocalKey {
        self.keys.get(rail).copied().unwrap_or_default()
    }
}
