//! Copying to and from memory that the CPU cannot touch: a GPU's, or what stands in for it in tests.
//!
//! A copy engine copies between such memory and a *staging buffer*: its own host memory, which the CPU, NICs and the
//! device reach. Copies are started and polled, and neither blocks. Copies depend on nothing that runs on the device: a
//! kernel that never ends must not hold them up.

use std::ptr::NonNull;

/// One copy between the staging buffer and memory that the CPU cannot touch.
#[derive(Debug, Clone, Copy)]
pub struct Copy {
    /// Address of the memory, as its device names it.
    pub memory: usize,
    /// Address in the staging buffer.
    pub host: *mut u8,
    /// Bytes.
    pub len: usize,
    /// Direction: from the staging buffer to the memory, or back.
    pub to_memory: bool,
}

/// One copy within memory that the CPU cannot touch: from a peer's to this PE's own, or the other way.
#[derive(Debug, Clone, Copy)]
pub struct Between {
    /// Destination, as the device addresses it.
    pub to: usize,
    /// Source, as the device addresses it.
    pub from: usize,
    /// Bytes.
    pub len: usize,
}

/// The end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyCompletion {
    /// The ticket that was given to [`CopyEngine::start`] or [`CopyEngine::start_between`].
    pub ticket: u64,
    /// Success, or why the copy failed.
    pub result: Result<(), String>,
}

/// Copies to and from memory that the CPU cannot touch. Driven by one thread at a time.
///
/// # Safety
/// Callers read and write the staging buffer without further checks. So an implementation:
/// - returns the same staging buffer on every call: host memory of its own that is valid for reads and writes as long
///   as it lives, aligned to a page, shared with nobody else;
/// - touches the staging buffer and the memory only as a copy says, and not after it has reported that one;
/// - reports each copy that it has accepted once, by the ticket it was given.
///
/// Copies *to* the memory take effect in the order in which they were started: whoever sees a later one sees the
/// earlier ones. Copies *from* it are ordered with nothing.
pub unsafe trait CopyEngine: Send {
    /// The staging buffer: its first byte and its length in bytes. It lives as long as the copy engine and is aligned
    /// to a page.
    fn staging_buffer(&self) -> (NonNull<u8>, usize);

    /// Starts a copy and returns at once.
    ///
    /// # Safety
    /// `copy.host` is `len` bytes in the staging buffer that nobody changes (to the memory) or uses (from it) until the
    /// copy has been reported, and `copy.memory` is memory of the kind that this copy engine is for.
    ///
    /// # Errors
    /// Why it cannot be done; it is not reported a second time.
    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String>;

    /// Prepares copies between a peer's memory and its own: a set-up during the first copy could deadlock with a kernel
    /// that spins. `peer` is the address at which the device has mapped the peer's memory.
    ///
    /// # Errors
    /// The reason why such copies are impossible.
    fn prepare_peer(&mut self, peer: usize) -> Result<(), String>;

    /// Starts a copy between a peer's memory and its own and returns at once. It is ordered with nothing.
    ///
    /// # Safety
    /// Both ranges are memory of the kind that this copy engine is for, one of them a peer's which its device has
    /// mapped. Nobody changes the source or uses the destination until the copy has been reported.
    ///
    /// # Errors
    /// Why it cannot be done; it is not reported a second time.
    unsafe fn start_between(&mut self, copy: Between, ticket: u64) -> Result<(), String>;

    /// Makes NICs' writes to the memory visible to the device, where that takes an explicit flush. Callers flush before
    /// they change words that tell of such writes.
    fn flush_nic_writes(&mut self) {}

    /// How many writes of up to 8 bytes a waiting kernel would take now, one by one. That is faster than one copy of
    /// all.
    fn room_for_words(&mut self) -> usize {
        0
    }

    /// Ends a batch: work that several copies share is done here. [`CopyEngine::poll`] does it too.
    fn flush(&mut self) {}

    /// Reports copies that have ended. Returns how many.
    fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize;

    /// Copies under way, for which [`CopyEngine::poll`] has to be called.
    fn pending(&self) -> usize;

    /// How many of those are to the memory.
    fn writing(&self) -> usize;
}
