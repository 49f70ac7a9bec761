//! A channel's memory: one zeroed, page-aligned block that is accessed only by atomics.
//!
//! The channel's own memory is an anonymous mapping, so that it can be registered with a GPU as it is.
//! [`ChannelMemory::from_raw`] accepts memory that was allocated elsewhere (pinned by the CUDA driver).

use std::sync::OnceLock;

use super::error::ChannelError;
use super::layout::{self, CHUNK_BYTES, CHUNKS, HEADER_BYTES, REPLY_BYTES, SLOT_BYTES};
use super::sleep::SleepingThreads;
use super::sync::{AtomicU64, Ordering};

/// The memory of one channel: header, slots, reply table (see [`layout`]).
#[derive(Debug)]
pub struct ChannelMemory {
    words: Words,
    slots: usize,
    replies: usize,
    sleepers: OnceLock<SleepingThreads>,
}

/// The most slots, and the most reply entries, of a channel.
pub const MAX_ENTRIES: usize = 1 << 20;

impl ChannelMemory {
    /// Allocates memory for `slots` (a power of two from 2) and `replies`, each at most [`MAX_ENTRIES`].
    ///
    /// # Errors
    /// A capacity is out of range, or there is no memory.
    pub fn new(slots: usize, replies: usize) -> Result<Self, ChannelError> {
        check(slots, replies)?;
        Ok(Self::with(Words::allocate(slots, replies)?, slots, replies))
    }

    /// Uses memory that was allocated elsewhere. `owner` is dropped with the channel and may free it.
    ///
    /// # Safety
    /// `base` points to [`layout::channel_bytes`] zeroed bytes, aligned to 128, that stay valid until `owner` is
    /// dropped. Only producers, the consumer and devices that follow the channel's protocol access them.
    ///
    /// # Errors
    /// A capacity is out of range.
    #[cfg(not(loom))]
    pub unsafe fn from_raw(
        base: std::ptr::NonNull<u8>,
        slots: usize,
        replies: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Self, ChannelError> {
        check(slots, replies)?;
        Ok(Self::with(Words { base, owner: real::Owner::Given(owner) }, slots, replies))
    }

    fn with(words: Words, slots: usize, replies: usize) -> Self {
        // A loom model does not track what this lock publishes, so the table exists from the beginning.
        let sleepers = if cfg!(loom) { OnceLock::from(SleepingThreads::new(replies)) } else { OnceLock::new() };
        let memory = Self { words, slots, replies, sleepers };
        for (index, constant) in [layout::LAYOUT_VERSION, slots as u64, replies as u64].into_iter().enumerate() {
            memory.words.at(layout::CONSTANTS + index * 8).store(constant, Ordering::Relaxed);
        }
        memory
    }

    /// The ring's capacity.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The reply table's size.
    #[must_use]
    pub fn replies(&self) -> usize {
        self.replies
    }

    /// The table of requesters that sleep until their answer arrives; `None` before the first sleep.
    pub(super) fn sleepers(&self) -> Option<&SleepingThreads> {
        self.sleepers.get()
    }

    pub(super) fn sleeping_threads(&self) -> &SleepingThreads {
        self.sleepers.get_or_init(|| SleepingThreads::new(self.replies))
    }

    /// Size of the memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        layout::channel_bytes(self.slots, self.replies)
    }

    /// The address of the first byte, for mapping the memory into a GPU.
    #[cfg(not(loom))]
    #[must_use]
    pub fn base(&self) -> std::ptr::NonNull<u8> {
        self.words.base
    }

    #[inline]
    pub(super) fn head(&self) -> &AtomicU64 {
        self.words.at(layout::HEAD)
    }

    #[inline]
    pub(super) fn cached_tail(&self) -> &AtomicU64 {
        self.words.at(layout::CACHED_TAIL)
    }

    #[inline]
    pub(super) fn tail(&self) -> &AtomicU64 {
        self.words.at(layout::TAIL)
    }

    #[inline]
    pub(super) fn completed(&self) -> &AtomicU64 {
        self.words.at(layout::COMPLETED)
    }

    #[inline]
    pub(super) fn errors(&self) -> &AtomicU64 {
        self.words.at(layout::ERRORS)
    }

    #[inline]
    pub(super) fn sleeping(&self) -> &AtomicU64 {
        self.words.at(layout::SLEEPING)
    }

    /// The parity of `position`'s lap, in place.
    #[inline]
    pub(super) fn parity(&self, position: u64) -> u64 {
        layout::parity(position, self.slots as u64)
    }

    /// The slot of `position`.
    #[inline]
    pub(super) fn slot(&self, position: u64) -> Slot<'_> {
        let index = (position & (self.slots as u64 - 1)) as usize;
        Slot { words: &self.words, at: HEADER_BYTES + index * SLOT_BYTES }
    }

    /// The value and state words of a reply entry; `None` when the entry does not exist.
    pub(super) fn reply(&self, index: u32) -> Option<[&AtomicU64; 2]> {
        let index = usize::try_from(index).ok().filter(|index| *index < self.replies)?;
        let at = HEADER_BYTES + self.slots * SLOT_BYTES + index * REPLY_BYTES;
        Some([self.words.at(at), self.words.at(at + 8)])
    }
}

/// The words of one slot.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    words: &'a Words,
    at: usize,
}

impl<'a> Slot<'a> {
    /// Both words of a chunk, whose number is taken modulo the chunks of a slot.
    #[inline]
    pub(super) fn chunk(self, chunk: usize) -> [&'a AtomicU64; 2] {
        let at = self.at + (chunk % CHUNKS) * CHUNK_BYTES;
        [self.words.at(at), self.words.at(at + 8)]
    }
}

fn check(slots: usize, replies: usize) -> Result<(), ChannelError> {
    if !slots.is_power_of_two() || !(2..=MAX_ENTRIES).contains(&slots) {
        let accepted = "a power of two from 2 to 1048576";
        return Err(ChannelError::Capacity { what: "slots", value: slots, accepted });
    }
    if replies > MAX_ENTRIES {
        return Err(ChannelError::Capacity { what: "reply entries", value: replies, accepted: "at most 1048576" });
    }
    Ok(())
}

#[cfg(not(loom))]
use real::Words;

#[cfg(not(loom))]
mod real {
    use std::num::NonZeroUsize;
    use std::ptr::NonNull;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::{AtomicU64, ChannelError, layout};

    pub(super) struct Words {
        pub(super) base: NonNull<u8>,
        pub(super) owner: Owner,
    }

    pub(super) enum Owner {
        Mapping { bytes: usize },
        Given(#[expect(dead_code, reason = "held for its drop")] Box<dyn Send + Sync>),
    }

    // SAFETY: any thread accesses the memory only by atomics, and its owner is Send and Sync.
    unsafe impl Send for Words {}
    // SAFETY: as above.
    unsafe impl Sync for Words {}

    impl std::fmt::Debug for Words {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Words").field("base", &self.base).finish_non_exhaustive()
        }
    }

    impl Words {
        pub(super) fn allocate(slots: usize, replies: usize) -> Result<Self, ChannelError> {
            let bytes = layout::channel_bytes(slots, replies);
            let length = NonZeroUsize::new(bytes).unwrap_or(NonZeroUsize::MIN);
            let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a new mapping, at an address that the system chooses, overlaps nothing.
            let base = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }
                .map_err(|errno| ChannelError::Memory { bytes, source: errno.into() })?;
            Ok(Self { base: base.cast(), owner: Owner::Mapping { bytes } })
        }

        /// The word at a byte offset. Callers derive offsets only from checked capacities, reduced indices and
        /// [`layout`]'s constants: a multiple of 8 inside the memory.
        #[inline]
        pub(super) fn at(&self, offset: usize) -> &AtomicU64 {
            debug_assert_eq!(offset % 8, 0);
            // SAFETY: the offset is inside the memory and aligned (see above), the memory lives as long as `self`, and
            // everyone accesses it only by atomics.
            unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
        }
    }

    impl Drop for Words {
        fn drop(&mut self) {
            if let Owner::Mapping { bytes } = self.owner {
                // SAFETY: mapped by `allocate` with this size; no reference into it outlives `self`. It cannot fail for
                // a mapping that exists.
                let _ = unsafe { munmap(self.base.cast(), bytes) };
            }
        }
    }
}

#[cfg(loom)]
use modelled::Words;

#[cfg(loom)]
mod modelled {
    use std::collections::BTreeMap;

    use super::{AtomicU64, ChannelError, layout};

    /// In loom atomics are objects, not memory: one for each word that is used.
    #[derive(Debug)]
    pub(super) struct Words(BTreeMap<usize, AtomicU64>);

    impl Words {
        pub(super) fn allocate(slots: usize, replies: usize) -> Result<Self, ChannelError> {
            use layout::{CACHED_TAIL, COMPLETED, CONSTANTS, ERRORS, HEAD, SLEEPING, TAIL};
            let header = [HEAD, CACHED_TAIL, TAIL, COMPLETED, ERRORS, SLEEPING];
            let constants = (0..3).map(|index| CONSTANTS + index * 8);
            let rest = (layout::HEADER_BYTES..layout::channel_bytes(slots, replies)).step_by(8);
            let offsets = header.into_iter().chain(constants).chain(rest);
            Ok(Self(offsets.map(|offset| (offset, AtomicU64::new(0))).collect()))
        }

        pub(super) fn at(&self, offset: usize) -> &AtomicU64 {
            &self.0[&offset]
        }
    }
}
