//! Copying to and from memory that the CPU cannot touch: a GPU's, or its stand-in in tests.
//!
//! A copy engine copies between such memory and a *staging buffer*: its own host memory, which the CPU, NICs and the
//! device can access. Copies are started and polled, and neither call blocks. Copies must not depend on anything that
//! runs on the device: a kernel that never ends must not delay them.

use std::ptr::NonNull;

/// One copy between the staging buffer and memory that the CPU cannot touch.
#[derive(Debug, Clone, Copy)]
pub struct Copy {
    /// Address of the memory in the device's address space.
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
    /// Address of the destination on the device.
    pub to: usize,
    /// Address of the source on the device.
    pub from: usize,
    /// Bytes.
    pub len: usize,
}

/// The end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyCompletion {
    /// The ticket of the call of [`CopyEngine::start`] or [`CopyEngine::start_between`].
    pub ticket: u64,
    /// Success, or the reason of the failure.
    pub result: Result<(), String>,
}

/// Copies to and from memory that the CPU cannot touch. One thread at a time drives it.
///
/// # Safety
/// Callers read and write the staging buffer without further checks. So an implementation:
/// - returns the same staging buffer on every call: host memory of its own that is valid for reads and writes as long
///   as it lives, aligned to a page, shared with no one else;
/// - accesses the staging buffer and the memory only as a copy specifies, and not after it has reported that copy;
/// - reports each accepted copy once, by its ticket.
///
/// Copies *to* the memory take effect in the order in which they were started: a reader that observes a later one also
/// observes the earlier ones. Copies *from* it have no order.
pub unsafe trait CopyEngine: Send {
    /// The staging buffer: its first byte and its length in bytes. It lives as long as the copy engine and is aligned
    /// to a page.
    fn staging_buffer(&self) -> (NonNull<u8>, usize);

    /// Starts a copy and returns at once.
    ///
    /// # Safety
    /// `copy.host` is `len` bytes in the staging buffer that no one changes (for a copy to the memory) or uses (for one
    /// from it) until the copy has been reported. `copy.memory` is memory of the kind that this copy engine is for.
    ///
    /// # Errors
    /// The reason why the copy is impossible; it is not reported a second time.
    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String>;

    /// Prepares copies between a peer's memory and its own, because a set-up during the first copy could deadlock with
    /// a kernel that spins. `peer` is the address at which the device has mapped the peer's memory.
    ///
    /// # Errors
    /// The reason why such copies are impossible.
    fn prepare_peer(&mut self, peer: usize) -> Result<(), String>;

    /// Starts a copy between a peer's memory and its own and returns at once. The copy has no order with others.
    ///
    /// # Safety
    /// Both ranges are memory of the kind that this copy engine is for, one of them a peer's which its device has
    /// mapped. No one changes the source or uses the destination until the copy has been reported.
    ///
    /// # Errors
    /// The reason why the copy is impossible; it is not reported a second time.
    unsafe fn start_between(&mut self, copy: Between, ticket: u64) -> Result<(), String>;

    /// Makes NICs' writes to the memory visible to the device, where that needs an explicit flush. Callers flush before
    /// they change words that signal such writes.
    fn flush_nic_writes(&mut self) {}

    /// The number of writes of up to 8 bytes that a waiting kernel would perform now, one by one, faster than a copy of
    /// all.
    fn room_for_words(&mut self) -> usize {
        0
    }

    /// Ends a batch: performs work that several copies share. [`CopyEngine::poll`] does it too.
    fn flush(&mut self) {}

    /// Reports completed copies. Returns their number.
    fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize;

    /// The number of copies under way. While there are any, the caller has to call [`CopyEngine::poll`].
    fn pending(&self) -> usize;

    /// The number of those that are to the memory.
    fn writing(&self) -> usize;
}
