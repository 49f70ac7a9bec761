//! Peers whose heaps are accessible by loads and stores.
//!
//! A same-host PE's heap is opened as `/proc/<pid>/fd/<fd>`. That needs no helper process, no socket and no file name
//! that would need a clean-up. The file is mapped as a whole, once, so growth of the peer's heap needs no action here.
//! A PE that cannot be mapped is accessed through the transport. The reason is kept, and is no error.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::stat::{Mode, fstat};
use symrail_transport::sparse::Sparse;
use symrail_transport::{Error, Pe};

use crate::handle::{HeapHandle, MemoryKind};
use crate::mapping::{Access, Mapping};
use crate::memory::SEALS;

/// The means of access to a PE's heap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// It is this PE's own heap.
    Own,
    /// It is mapped into this process.
    Mapped,
    /// It is accessed through the transport.
    Wire(Refusal),
}

/// Why a PE's heap is not mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No attempt was made.
    NotOpened,
    /// `SYMRAIL_DISABLE_P2P` is set on one of the two PEs.
    Disabled,
    /// The PE runs on another host, or simulates that.
    OtherHost {
        /// This PE's host.
        ours: String,
        /// The peer's host.
        theirs: String,
    },
    /// Both run on one kernel, but the peer's PID is meaningless here, e.g. because it runs in another container.
    OtherPidNamespace,
    /// This mapping does not support this kind of memory.
    Kind(MemoryKind),
    /// The sizes of the heaps differ.
    Capacity {
        /// The peer's, in bytes.
        theirs: u64,
    },
    /// The file cannot be opened: the process has ended, or permissions forbid it.
    Open(Errno),
    /// The file is not the one that the handle describes.
    OtherFile,
    /// The file could still change its size, which would remove mapped memory.
    NotSealed,
    /// The file cannot be mapped.
    Map(Errno),
}

impl Refusal {
    /// Whether the PE should have been mapped: it is on this host, and no setting forbids it.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(self, Refusal::Open(_) | Refusal::OtherFile | Refusal::NotSealed | Refusal::Map(_))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotOpened => f.write_str("not opened"),
            Refusal::Disabled => f.write_str("SYMRAIL_DISABLE_P2P is set"),
            Refusal::OtherHost { ours, theirs } => write!(f, "on another host: {theirs}, not {ours}"),
            Refusal::OtherPidNamespace => f.write_str("in another PID namespace of this host"),
            Refusal::Kind(kind) => write!(f, "{kind:?} memory is not mapped between processes"),
            Refusal::Capacity { theirs } => write!(f, "its heap has another size ({theirs} bytes)"),
            Refusal::Open(errno) => write!(f, "its heap's file cannot be opened: {}", errno.desc()),
            Refusal::OtherFile => f.write_str("its heap's file is not the one it described: the process was replaced"),
            Refusal::NotSealed => f.write_str("its heap's file is not sealed against a change of size"),
            Refusal::Map(errno) => write!(f, "its heap cannot be mapped: {}", errno.desc()),
        }
    }
}

/// The heaps of all PEs, with the means of access to each.
#[derive(Debug)]
pub struct PeerMap {
    own: HeapHandle,
    /// The address of each PE's heap in this process; 0 where it is not mapped.
    bases: Sparse<usize>,
    /// For each PE the index of its kind of access, which most PEs share.
    reach: Vec<u32>,
    kinds: Vec<Reach>,
    /// Mappings by (PE, segment). The handle has the generation.
    mappings: HashMap<(Pe, u32), (HeapHandle, Mapping)>,
    opened: u64,
    hits: u64,
}

impl PeerMap {
    /// A map of `n_pes` PEs that knows only this one. `base` is the address of this PE's heap.
    ///
    /// # Errors
    /// [`Error::NoSuchPe`] if `me` is not below `n_pes`.
    pub fn new(me: Pe, n_pes: u32, own: HeapHandle, base: NonNull<u8>) -> Result<Self, Error> {
        if me >= n_pes {
            return Err(no_such_pe(me, n_pes));
        }
        let (reach, kinds) = (vec![0; n_pes as usize], vec![Reach::Wire(Refusal::NotOpened)]);
        let bases = Sparse::default();
        let mut map = PeerMap { own, bases, reach, kinds, mappings: HashMap::new(), opened: 0, hits: 0 };
        *map.bases.enter(me) = base.as_ptr().expose_provenance();
        map.set_reach(me as usize, Reach::Own);
        Ok(map)
    }

    fn reach_at(&self, index: usize) -> &Reach {
        &self.kinds[self.reach[index] as usize]
    }

    fn set_reach(&mut self, index: usize, reach: Reach) {
        // PEs of one host are consecutive as a rule.
        let kind = self.kinds.iter().rposition(|kind| *kind == reach).unwrap_or_else(|| {
            self.kinds.push(reach);
            self.kinds.len() - 1
        });
        self.reach[index] = kind as u32;
    }

    /// Maps PE `pe`'s heap if possible, and returns the means of access from now on.
    ///
    /// Opening a mapped heap again costs a look-up. A handle of a later generation replaces the mapping, which
    /// invalidates pointers into the old one.
    ///
    /// # Errors
    /// [`Error::NoSuchPe`]. A heap that cannot be mapped is no error: see [`Reach::Wire`].
    pub fn open(&mut self, pe: Pe, handle: &HeapHandle) -> Result<&Reach, Error> {
        let index = self.index(pe)?;
        if *self.reach_at(index) == Reach::Own {
            return Ok(self.reach_at(index));
        }
        let key = (pe, handle.segment);
        if self.mappings.get(&key).is_some_and(|(known, _)| known == handle) {
            self.hits += 1;
            return Ok(self.reach_at(index));
        }
        self.close(pe);
        let reach = match self.map(handle) {
            Ok(mapping) => {
                self.opened += 1;
                *self.bases.enter(pe) = mapping.base().as_ptr().expose_provenance();
                self.mappings.insert(key, (handle.clone(), mapping));
                Reach::Mapped
            }
            Err(refusal) => {
                tracing::debug!(pe, reason = %refusal, "heap not mapped, reached over the wire");
                Reach::Wire(refusal)
            }
        };
        self.set_reach(index, reach);
        Ok(self.reach_at(index))
    }

    /// Unmaps PE `pe`'s heap, which invalidates pointers into it. Does nothing for this PE and for unmapped ones.
    pub fn close(&mut self, pe: Pe) {
        if let Ok(index) = self.index(pe)
            && *self.reach_at(index) == Reach::Mapped
        {
            *self.bases.enter(pe) = 0;
            self.set_reach(index, Reach::Wire(Refusal::NotOpened));
            self.mappings.retain(|&(owner, _), _| owner != pe);
        }
    }

    /// Whether PE `pe`'s heap is mapped and its process has ended. The mapping survives the process, so nothing else
    /// shows that.
    #[must_use]
    pub fn has_ended(&self, pe: Pe) -> bool {
        let mut mapped = self.mappings.iter().filter(|((owner, _), _)| *owner == pe);
        mapped.any(|(_, (handle, _))| {
            let found = find_memory_file(handle);
            matches!(found, Err(Refusal::Open(Errno::ENOENT | Errno::ESRCH) | Refusal::OtherFile))
        })
    }

    /// The means of access to PE `pe`'s heap, and the reason if that is the transport.
    ///
    /// # Errors
    /// [`Error::NoSuchPe`].
    pub fn reach(&self, pe: Pe) -> Result<&Reach, Error> {
        Ok(self.reach_at(self.index(pe)?))
    }

    /// The address of `len` bytes at symmetric offset `offset` of PE `pe` in this process; `None` if they are not
    /// mapped or not inside of the heap.
    #[must_use]
    pub fn peer_ptr(&self, pe: Pe, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let base = *self.bases.get(pe);
        if base == 0 || offset.checked_add(len)? > self.own.capacity {
            return None;
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(base.checked_add(usize::try_from(offset).ok()?)?))
    }

    /// The address of each PE's heap in this process, for callers that check bounds themselves; 0 where it is not
    /// mapped. An address is valid as long as the map lives and maps that PE.
    #[must_use]
    pub fn bases_now(&self) -> Arc<[usize]> {
        (0..).zip(&self.reach).map(|(pe, _)| *self.bases.get(pe)).collect()
    }

    /// The number of heaps mapped, and of opens that found the heap mapped already.
    #[must_use]
    pub fn opened_and_hits(&self) -> (u64, u64) {
        (self.opened, self.hits)
    }

    fn index(&self, pe: Pe) -> Result<usize, Error> {
        let n_pes = self.reach.len();
        if (pe as usize) < n_pes { Ok(pe as usize) } else { Err(no_such_pe(pe, n_pes as u32)) }
    }

    fn map(&self, handle: &HeapHandle) -> Result<Mapping, Refusal> {
        let file = open_heap(&self.own, handle, MemoryKind::Host)?;
        let len = usize::try_from(handle.capacity).map_err(|_| Refusal::Map(Errno::ENOMEM))?;
        Mapping::of_file(file.as_fd(), len, Access::Open).map_err(|error| Refusal::Map(error.errno))
    }
}

/// Opens the file of a peer's heap, if both PEs may share heaps of this kind.
pub(crate) fn open_heap(own: &HeapHandle, handle: &HeapHandle, kind: MemoryKind) -> Result<OwnedFd, Refusal> {
    if own.private || handle.private {
        return Err(Refusal::Disabled);
    }
    if !own.host.same_host(&handle.host) {
        return Err(Refusal::OtherHost { ours: own.host.to_string(), theirs: handle.host.to_string() });
    }
    if own.host.pid_namespace != handle.host.pid_namespace {
        return Err(Refusal::OtherPidNamespace);
    }
    if handle.kind != kind {
        return Err(Refusal::Kind(handle.kind));
    }
    if handle.capacity != own.capacity {
        return Err(Refusal::Capacity { theirs: handle.capacity });
    }
    open_memory_file(handle)
}

/// Finds the file that a handle describes, and no other, without opening it.
fn find_memory_file(handle: &HeapHandle) -> Result<OwnedFd, Refusal> {
    let path = format!("/proc/{}/fd/{}", handle.pid, handle.fd);
    let pointed = open(path.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(Refusal::Open)?;
    let status = fstat(&pointed).map_err(Refusal::Open)?;
    // Devices and pipes have no size, and directories cannot be opened for writing, so only files remain.
    let identity = (status.st_dev, status.st_ino, u64::try_from(status.st_size).unwrap_or(0));
    if identity == (handle.device, handle.inode, handle.capacity) { Ok(pointed) } else { Err(Refusal::OtherFile) }
}

/// Opens the file that a handle describes.
///
/// The process may have died, and its PID and descriptor may belong to anything by now, e.g. a terminal or a device
/// that reacts to being opened. So the file is first referenced by `O_PATH`, checked, and then opened through that
/// reference.
fn open_memory_file(handle: &HeapHandle) -> Result<OwnedFd, Refusal> {
    let pointed = find_memory_file(handle)?;
    let path = format!("/proc/self/fd/{}", pointed.as_raw_fd());
    let file = open(path.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map_err(Refusal::Open)?;
    // Other files do not support seals at all.
    let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
    if SealFlag::from_bits_truncate(seals).contains(SEALS) { Ok(file) } else { Err(Refusal::NotSealed) }
}

fn no_such_pe(pe: Pe, n_pes: u32) -> Error {
    Error::NoSuchPe { pe: pe.into(), last: n_pes.saturating_sub(1) }
}
