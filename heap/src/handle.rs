//! What a PE publishes about its heap, so that others can check agreement and, on the same host, map it.
//!
//! The encoding has a fixed size and starts with a magic number and a version. It comes from peers, so decoding checks
//! everything it can.

use symrail_transport::env::HeapKind;
use symrail_transport::{Error, Pe};

use crate::host::{HOST_NAME_MAX, HostIdentity};

/// The size of an encoded handle in bytes.
pub const HANDLE_LEN: usize = 144;

const MAGIC: [u8; 4] = *b"SyHp";
const VERSION: u16 = 1;
const FLAG_PRIVATE: u8 = 1;
const WHAT: &str = "heap handle";

/// No process has more than 47 bits of addresses for user memory (5-level paging has to be asked for).
const CAPACITY_MAX: u64 = 1 << 47;

/// What memory a heap is made of, as peers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum MemoryKind {
    /// Shared host memory.
    Host = 0,
    /// Host memory that the GPU can reach.
    Pinned = 1,
    /// GPU memory.
    Device = 2,
}

impl From<HeapKind> for MemoryKind {
    fn from(kind: HeapKind) -> Self {
        match kind {
            HeapKind::Host => MemoryKind::Host,
            HeapKind::Pinned => MemoryKind::Pinned,
            HeapKind::Device | HeapKind::Guarded => MemoryKind::Device,
        }
    }
}

/// One PE's heap, as described to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeapHandle {
    /// The PE's host.
    pub host: HostIdentity,
    /// Its process, in its PID namespace.
    pub pid: u32,
    /// The memory file's number in that process.
    pub fd: u32,
    /// The memory file's device number.
    pub device: u64,
    /// The memory file's inode number.
    pub inode: u64,
    /// The heap's size in bytes, committed or not.
    pub capacity: u64,
    /// The heap grows by multiples of this, in bytes.
    pub granule: u64,
    /// Which part of the heap this is about. Host memory is one file, so 0.
    pub segment: u32,
    /// Counts the heaps that this process has made, so that an old mapping is not taken for a new heap's.
    pub generation: u32,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The PE wants nobody to map its heap (`SYMRAIL_DISABLE_P2P`).
    pub private: bool,
}

impl HeapHandle {
    /// Whether two PEs on one host may map each other's heaps, as far as their handles tell: the same on all PEs, which
    /// whether they succeed is not.
    #[must_use]
    pub fn may_share(&self, other: &HeapHandle) -> bool {
        !self.private
            && !other.private
            && self.host.same_host(&other.host)
            && self.host.pid_namespace == other.host.pid_namespace
    }

    /// The handle as bytes, little-endian.
    #[must_use]
    pub fn encode(&self) -> [u8; HANDLE_LEN] {
        let mut out = Writer { bytes: [0; HANDLE_LEN], at: 0 };
        out.put(&MAGIC);
        out.put(&VERSION.to_le_bytes());
        out.put(&[self.kind as u8, if self.private { FLAG_PRIVATE } else { 0 }]);
        out.put(&self.pid.to_le_bytes());
        out.put(&self.fd.to_le_bytes());
        out.put(&self.segment.to_le_bytes());
        out.put(&self.generation.to_le_bytes());
        out.put(&self.device.to_le_bytes());
        out.put(&self.inode.to_le_bytes());
        out.put(&self.capacity.to_le_bytes());
        out.put(&self.granule.to_le_bytes());
        out.put(&self.host.pid_namespace.to_le_bytes());
        out.put(&self.host.boot_id.to_le_bytes());
        // Padded with zeros, which are in no name.
        out.put(&self.host.name.as_bytes()[..self.host.name.len().min(HOST_NAME_MAX)]);
        out.bytes
    }

    /// Reads a handle that PE `pe` published.
    ///
    /// # Errors
    /// [`Error::Malformed`] with the reason.
    pub fn decode(bytes: &[u8], pe: Pe) -> Result<Self, Error> {
        let bad = |why: String| Error::Malformed { what: WHAT, pe, why };
        let bytes: &[u8; HANDLE_LEN] =
            bytes.try_into().map_err(|_| bad(format!("it has {} bytes instead of {HANDLE_LEN}", bytes.len())))?;
        let mut input = Reader { bytes, at: 0 };
        if input.take() != MAGIC {
            return Err(bad("it does not start as one".into()));
        }
        let version = u16::from_le_bytes(input.take());
        if version != VERSION {
            return Err(bad(format!("it has version {version}, this PE speaks {VERSION}; run one Symrail on all PEs")));
        }
        let [kind, flags] = input.take();
        let kind = MemoryKind::from_repr(kind).ok_or_else(|| bad(format!("memory kind {kind} does not exist")))?;
        if flags & !FLAG_PRIVATE != 0 {
            return Err(bad(format!("it has unknown flags {flags:#x}")));
        }
        let [pid, fd, segment, generation] = [(); 4].map(|()| u32::from_le_bytes(input.take()));
        let [device, inode, capacity, granule, pid_namespace] = [(); 5].map(|()| u64::from_le_bytes(input.take()));
        let boot_id = u128::from_le_bytes(input.take());
        let name: [u8; HOST_NAME_MAX] = input.take();
        if pid == 0 || i32::try_from(pid).is_err() || i32::try_from(fd).is_err() {
            return Err(bad(format!("file {fd} of process {pid} cannot exist")));
        }
        if capacity == 0 || capacity > CAPACITY_MAX || granule == 0 || granule > CAPACITY_MAX {
            return Err(bad(format!("a heap of {capacity} bytes that grows by {granule} cannot exist")));
        }
        let used = name.iter().position(|&byte| byte == 0).unwrap_or(HOST_NAME_MAX);
        let (name, padding) = name.split_at(used);
        if padding.iter().any(|&byte| byte != 0) {
            return Err(bad("its host name does not end".into()));
        }
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| bad("its host name is empty or not UTF-8".into()))?.to_owned();
        Ok(HeapHandle {
            host: HostIdentity { name, boot_id, pid_namespace },
            pid,
            fd,
            device,
            inode,
            capacity,
            granule,
            segment,
            generation,
            kind,
            private: flags & FLAG_PRIVATE != 0,
        })
    }
}

struct Writer {
    bytes: [u8; HANDLE_LEN],
    at: usize,
}

impl Writer {
    /// Appends; what has no room is dropped, which the round-trip test would see.
    fn put(&mut self, field: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.at).zip(field) {
            *to = *from;
        }
        self.at += field.len();
    }
}

struct Reader<'a> {
    bytes: &'a [u8; HANDLE_LEN],
    at: usize,
}

impl Reader<'_> {
    /// The next `N` bytes; zeros beyond the end.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        for (to, from) in field.iter_mut().zip(self.bytes.iter().skip(self.at)) {
            *to = *from;
        }
        self.at += N;
        field
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn handle() -> impl Strategy<Value = HeapHandle> {
        let host = ("[a-zé.-]{1,32}", any::<u128>(), any::<u64>())
            .prop_map(|(name, boot_id, pid_namespace)| HostIdentity { name, boot_id, pid_namespace });
        let file = (1u32..1 << 31, 0u32..1 << 31, any::<u64>(), any::<u64>());
        let size = (1..=CAPACITY_MAX, 1..=CAPACITY_MAX, any::<u32>(), any::<u32>());
        (host, file, size, 0u8..3, any::<bool>()).prop_map(|(host, file, size, kind, private)| HeapHandle {
            host,
            pid: file.0,
            fd: file.1,
            device: file.2,
            inode: file.3,
            capacity: size.0,
            granule: size.1,
            segment: size.2,
            generation: size.3,
            kind: MemoryKind::from_repr(kind).unwrap(),
            private,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn comes_back_as_it_went(handle in handle()) {
            prop_assert_eq!(HeapHandle::decode(&handle.encode(), 3).unwrap(), handle);
        }

        #[test]
        fn garbage_is_an_error_that_names_the_pe(bytes in prop::collection::vec(any::<u8>(), 0..2 * HANDLE_LEN)) {
            let error = HeapHandle::decode(&bytes, 5).unwrap_err().to_string();
            prop_assert!(error.contains("PE 5"), "{}", error);
        }

        #[test]
        fn a_damaged_handle_is_another_handle_or_an_error(
            handle in handle(), at in 0..HANDLE_LEN, flip in 1u8..,
        ) {
            let mut bytes = handle.encode();
            bytes[at] ^= flip;
            if let Ok(decoded) = HeapHandle::decode(&bytes, 5) {
                prop_assert_ne!(&decoded, &handle);
                prop_assert_eq!(decoded.encode(), bytes, "decoding ignored something");
            }
        }

        #[test]
        fn a_short_handle_is_an_error(handle in handle(), len in 0..HANDLE_LEN) {
            prop_assert!(HeapHandle::decode(&handle.encode()[..len], 5).is_err());
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = [0; HANDLE_LEN];
        bytes[..6].copy_from_slice(b"SyHp\x02\x00");
        let error = HeapHandle::decode(&bytes, 1).unwrap_err().to_string();
        assert!(error.contains("version 2") && error.contains("speaks 1"), "{error}");
    }
}
