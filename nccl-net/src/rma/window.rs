//! Memory that all ranks of a group have registered together.

use std::os::fd::OwnedFd;

use symrail_heap::cuda::{DevicePtr, Gpu};
use symrail_heap::export::Exported;
use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::{Place, Registered};

use super::group::Group;
use crate::report::{Failure, Result};

/// Exports are of whole pages.
const PAGE: u64 = 4096;

/// One rank's memory before the others know of it.
pub struct Piece {
    pub base: *mut u8,
    pub len: usize,
    /// It is a GPU's.
    pub on_gpu: bool,
    /// The caller's dmabuf of exactly this memory.
    pub dma_buf: Option<OwnedFd>,
}

/// Memory of all ranks.
pub struct Window {
    base: *mut u8,
    len: usize,
    /// The memory of all ranks; that of this rank is its `own`.
    all: Vec<Registered>,
    _own: Registered,
}

// SAFETY: the address is only a number here; operations access the memory.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Registers memory. Collective: where it fails on one rank, it fails on all.
    ///
    /// # Safety
    /// The memory stays until the window is dropped.
    ///
    /// # Errors
    /// The error of the provider, of this rank or of another; the memory of a GPU without a session for it.
    pub unsafe fn new(group: &Group, piece: Piece) -> Result<Window> {
        let Piece { base, len, .. } = piece;
        // SAFETY: the caller's promise.
        let own = unsafe { register(group, piece) };
        let bytes = own.as_ref().map_or_else(|_| Vec::new(), |own| own.encode_short());
        let all = group.gather(&bytes);
        let own = own?;
        let of_rank = |(rank, bytes): (usize, &Vec<u8>)| match bytes.as_slice() {
            [] => Err(Failure::remote(format!("rank {rank} could not register its memory; its own message says why"))),
            bytes => Ok(Registered::of_peer(&group.network.session, Memory::of_peer(group.pe(rank), bytes)?)),
        };
        let all = all?.iter().enumerate().map(of_rank).collect::<Result<_>>()?;
        Ok(Window { base, len, all, _own: own })
    }

    /// A place at an offset of a rank's memory.
    pub fn place(&self, rank: usize, offset: u64) -> Place<'_> {
        self.all[rank].place(offset)
    }

    /// Checks that `len` bytes at an offset are inside of a rank's memory, and aligned if they are a word.
    pub fn check(&self, rank: usize, offset: u64, len: u64, is_word: bool) -> Result<()> {
        let memory = &self.all[rank];
        if offset.checked_add(len).is_none_or(|end| end > memory.len()) {
            return Err(Failure::argument(format!("{len} bytes at {offset} of memory that has {}", memory.len())));
        }
        if is_word && !(memory.base().wrapping_add(offset)).is_multiple_of(len) {
            return Err(Failure::argument(format!("a signal at {offset}: it must be a multiple of {len} bytes")));
        }
        Ok(())
    }

    /// `len` bytes at an offset of this rank's memory.
    pub fn local(&self, offset: u64, len: u64) -> Result<*mut u8> {
        if offset.checked_add(len).is_none_or(|end| end > self.len as u64) {
            return Err(Failure::argument(format!("{len} bytes at {offset} of memory that has {}", self.len)));
        }
        Ok(self.base.wrapping_add(offset as usize))
    }
}

/// Registers this rank's memory.
///
/// # Safety
/// As for [`Window::new`].
unsafe fn register(group: &Group, piece: Piece) -> Result<Registered> {
    let Piece { base, len, on_gpu, dma_buf } = piece;
    let session = &group.network.session;
    if !on_gpu {
        // SAFETY: the caller's promise.
        return Ok(Registered::own(session, unsafe { session.register(base, len) }?));
    }
    let Some(gpu) = &group.network.gpu else {
        let why = "memory of a GPU, and none was current when the group began to listen";
        return Err(Failure::argument(why));
    };
    let exported = match dma_buf {
        Some(dma_buf) => Ok(Exported::Gpu(gpu.ordinal(), Some(dma_buf))),
        None => export(gpu, base.addr() as u64, len as u64),
    };
    // SAFETY: the caller's promise.
    Ok(Registered::own(session, unsafe {
        session.register_staged(base, len, exported.as_ref().map_err(String::clone))
    }?))
}

/// Exports memory for rails; where that is impossible, returns why.
fn export(gpu: &Gpu, at: u64, bytes: u64) -> std::result::Result<Exported, String> {
    Exported::of_gpu(gpu, DevicePtr::new(at), bytes.next_multiple_of(PAGE))
        .inspect_err(|error| tracing::info!(%error, bytes, "rails do not reach this memory"))
        .map_err(|error| error.to_string())
}
