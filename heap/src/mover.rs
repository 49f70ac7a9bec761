//! Copying to and from memory that the CPU cannot touch: a GPU's, or what stands in for it in tests.
//!
//! A mover copies between such memory and a *window*: host memory of its own that the CPU, NICs and the device reach.
//! Copies are started and polled; neither blocks, and neither depends on the device having anything else finished: a
//! kernel that never ends must not keep a copy from being made.

use std::ptr::NonNull;

/// One copy between the window and memory that the CPU cannot touch.
#[derive(Debug, Clone, Copy)]
pub struct Copy {
    /// Address of the memory, as its device names it.
    pub memory: usize,
    /// Where in the window.
    pub host: *mut u8,
    /// Bytes.
    pub len: usize,
    /// From the window to the memory; else the other way.
    pub to_memory: bool,
}

/// One copy within memory that the CPU cannot touch: from a peer's to this PE's own, or the other way.
#[derive(Debug, Clone, Copy)]
pub struct Between {
    /// Where to, as the device names it.
    pub to: usize,
    /// Where from, as the device names it.
    pub from: usize,
    /// Bytes.
    pub len: usize,
}

/// The end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// As it was given to [`Mover::start`] or [`Mover::start_between`].
    pub ticket: u64,
    /// Whether the bytes are where they should be, or why not.
    pub result: Result<(), String>,
}

/// Copies to and from memory that the CPU cannot touch. Driven by one thread at a time.
///
/// # Safety
/// What stages through a mover reads and writes the window without asking again. So an implementation:
/// - says the same window on every call: host memory of its own that is valid for reads and writes as long as it lives,
///   aligned to a page, and that it gives to nobody else;
/// - touches the window and the memory only as a copy says, and not after it has reported that one;
/// - reports each copy that it has accepted once, by the ticket it was given.
///
/// Copies *to* the memory take effect in the order in which they were started: whoever sees a later one sees the
/// earlier ones. Copies *from* it are ordered with nothing.
pub unsafe trait Mover: Send {
    /// The window: its first byte and its length in bytes. It lives as long as the mover and is aligned to a page.
    fn window(&self) -> (NonNull<u8>, usize);

    /// Starts a copy and returns at once.
    ///
    /// # Safety
    /// `copy.host` is `len` bytes in the window that nobody changes (to the memory) or uses (from it) until the copy
    /// has been reported, and `copy.memory` is memory of the kind that this mover is for.
    ///
    /// # Errors
    /// Why it cannot be done; it is not reported a second time.
    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String>;

    /// Gets ready for copies between a peer's memory and its own, so that nothing has to be set up while a kernel
    /// spins. `peer` is where the device has mapped the peer's.
    ///
    /// # Errors
    /// Why there can be none.
    fn meet(&mut self, peer: usize) -> Result<(), String>;

    /// Starts a copy between a peer's memory and its own and returns at once. It is ordered with nothing.
    ///
    /// # Safety
    /// Both ranges are memory of the kind that this mover is for, one of them a peer's which its device has mapped.
    /// Nobody changes the source or uses the destination until the copy has been reported.
    ///
    /// # Errors
    /// Why it cannot be done; it is not reported a second time.
    unsafe fn start_between(&mut self, copy: Between, ticket: u64) -> Result<(), String>;

    /// Makes what NICs have written to the memory visible to its device, where that needs to be asked for: before words
    /// change that tell of it.
    fn see_writes(&mut self) {}

    /// How many writes of up to 8 bytes would now be made one by one, and sooner than together: by a kernel that waits.
    fn room_for_words(&mut self) -> usize {
        0
    }

    /// Says that nothing more is started for now: what several copies need only once is done here. [`Mover::poll`] does
    /// it too.
    fn flush(&mut self) {}

    /// Reports copies that have ended. Returns how many.
    fn poll(&mut self, ended: &mut dyn FnMut(Moved)) -> usize;

    /// Copies under way, for which [`Mover::poll`] has to be called.
    fn pending(&self) -> usize;

    /// How many of those are to the memory.
    fn writing(&self) -> usize;
}
