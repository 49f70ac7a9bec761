//! The handle that a PE publishes about its heap. Other PEs use it to check agreement and, on the same host, to map the
//! heap.
//!
//! The encoding starts with a magic number and a version. It comes from peers, so decoding checks everything it can.
//! Fields that differ among PEs have a fixed size, so that a table of many handles stores their common part once.

use serde::{Deserialize, Serialize};
use symrail_core::encoding;
use symrail_transport::env::HeapKind;
use symrail_transport::{Error, Pe};

use crate::host::{HOST_NAME_MAX, HostIdentity};

const MAGIC: [u8; 4] = *b"SyHp";
const VERSION: u16 = 3;
const WHAT: &str = "heap handle";

/// No process has more than 47 bits of addresses for user memory (5-level paging needs an explicit request).
const CAPACITY_MAX: u64 = 1 << 47;

/// The kind of a heap's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryKind {
    /// Shared host memory.
    Host,
    /// Host memory that the GPU can access.
    Pinned,
    /// GPU memory.
    Device,
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

/// The description of one PE's heap for other PEs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapHandle {
    /// The PE's process, in its PID namespace.
    #[serde(with = "postcard::fixint::le")]
    pub pid: u32,
    /// The memory file's descriptor in that process.
    #[serde(with = "postcard::fixint::le")]
    pub fd: u32,
    /// The memory file's device number.
    #[serde(with = "postcard::fixint::le")]
    pub device: u64,
    /// The memory file's inode number.
    #[serde(with = "postcard::fixint::le")]
    pub inode: u64,
    /// The heap's size in bytes, committed or not.
    pub capacity: u64,
    /// The unit of the heap's growth, in bytes.
    pub granule: u64,
    /// The part of the heap that this handle describes. Host memory is one file, so 0.
    pub segment: u32,
    /// The number of the heap in this process, so that an old mapping is not used for a new heap.
    #[serde(with = "postcard::fixint::le")]
    pub generation: u32,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Whether the PE forbids others to map its heap (`SYMRAIL_DISABLE_P2P`).
    pub private: bool,
    /// The PE's host.
    pub host: HostIdentity,
}

impl HeapHandle {
    /// Whether two PEs on one host may map each other's heaps, as far as their handles show. All PEs compute the same
    /// answer, whereas the success of a mapping may differ.
    #[must_use]
    pub fn may_share(&self, other: &HeapHandle) -> bool {
        !self.private
            && !other.private
            && self.host.same_host(&other.host)
            && self.host.pid_namespace == other.host.pid_namespace
    }

    /// The handle as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoding::encode(&(MAGIC, VERSION, self))
    }

    /// Decodes a handle that PE `pe` published.
    ///
    /// # Errors
    /// [`Error::Malformed`] with the reason.
    pub fn decode(bytes: &[u8], pe: Pe) -> Result<Self, Error> {
        let bad = |why: String| Error::Malformed { what: WHAT, pe, why };
        let ((magic, version), rest): (([u8; 4], u16), _) = encoding::decode_first(bytes, WHAT, pe)?;
        if magic != MAGIC {
            return Err(bad("it does not start as one".into()));
        }
        if version != VERSION {
            return Err(bad(format!("it has version {version}, this PE speaks {VERSION}; run one Symrail on all PEs")));
        }
        let handle: HeapHandle = encoding::decode(rest, WHAT, pe)?;
        let HeapHandle { pid, fd, capacity, granule, host, .. } = &handle;
        if *pid == 0 || i32::try_from(*pid).is_err() || i32::try_from(*fd).is_err() {
            return Err(bad(format!("file {fd} of process {pid} cannot exist")));
        }
        if !(1..=CAPACITY_MAX).contains(capacity) || !(1..=CAPACITY_MAX).contains(granule) {
            return Err(bad(format!("a heap of {capacity} bytes that grows by {granule} cannot exist")));
        }
        if host.name.is_empty() || host.name.len() > HOST_NAME_MAX {
            return Err(bad(format!("its host name has {} bytes", host.name.len())));
        }
        Ok(handle)
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
        (host, file, size, 0usize..3, any::<bool>()).prop_map(|(host, file, size, kind, private)| HeapHandle {
            host,
            pid: file.0,
            fd: file.1,
            device: file.2,
            inode: file.3,
            capacity: size.0,
            granule: size.1,
            segment: size.2,
            generation: size.3,
            kind: [MemoryKind::Host, MemoryKind::Pinned, MemoryKind::Device][kind],
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
        fn garbage_is_an_error_that_names_the_pe(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let error = HeapHandle::decode(&bytes, 5).unwrap_err().to_string();
            prop_assert!(error.contains("PE 5"), "{}", error);
        }

        #[test]
        fn a_damaged_handle_is_another_handle_or_an_error(
            handle in handle(), at in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let mut bytes = handle.encode();
            *at.get_mut(&mut bytes) ^= flip;
            if let Ok(decoded) = HeapHandle::decode(&bytes, 5) {
                prop_assert_ne!(decoded, handle);
            }
        }

        #[test]
        fn a_short_or_long_handle_is_an_error(handle in handle(), at in any::<prop::sample::Index>()) {
            let bytes = handle.encode();
            prop_assert!(HeapHandle::decode(&bytes[..at.index(bytes.len())], 5).is_err());
            prop_assert!(HeapHandle::decode(&[&bytes[..], &[0]].concat(), 5).is_err());
        }
    }

    #[test]
    fn another_version_is_named() {
        let error = HeapHandle::decode(b"SyHp\x01\x00 and what it had to say", 1).unwrap_err().to_string();
        assert!(error.contains("version 1") && error.contains("speaks 3"), "{error}");
    }
}
