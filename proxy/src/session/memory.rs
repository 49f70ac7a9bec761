//! The handle of registered memory, which travels to peers unchanged.

use symrail_transport::region::Segment;
use symrail_transport::{Error, Pe, Result};

/// Size of an encoded handle in bytes; NVSHMEM's handles are as large.
pub const HANDLE_SIZE: usize = 512;
/// The most rails of a session: a handle has room for so many keys of the maximum length.
pub const MOST_RAILS: usize = (HANDLE_SIZE - HEAD) / 8;

const MAGIC: u32 = u32::from_le_bytes(*b"SyM1");
/// Bytes before the keys.
const HEAD: usize = 48;

/// Memory that a PE has registered.
///
/// # Encoding
/// Little endian: magic, PE, id (4 bytes each), number of keys (2), whether it is staged (1), a byte of padding. Then
/// come 8 bytes each: the offset among its PE's registrations, the length, the address in its PE, the address of its
/// first byte for rails. A key of 8 bytes for each rail follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    pe: Pe,
    id: u32,
    offset: u64,
    len: u64,
    base: u64,
    address: u64,
    /// Keys by rail; empty for memory that rails cannot access.
    keys: Vec<u64>,
    staged: bool,
}

impl Memory {
    /// The handle of a segment with its connection info.
    pub(super) fn new(pe: Pe, segment: Segment, connection_info: &[u8]) -> Result<Memory> {
        let (entries, _) = connection_info.as_chunks::<16>();
        let places: Vec<(u64, u64)> = entries.iter().map(|e| (word(e, 0), word(e, 8))).collect();
        let address = places.first().map_or(0, |p| p.0);
        if places.len() > MOST_RAILS || places.iter().any(|p| p.0 != address) {
            return Err(Error::Unsupported {
                what: format!("a memory handle for {} rails of different kinds", places.len()),
                by: format!("handles of {HANDLE_SIZE} bytes"),
                remedy: format!("use at most {MOST_RAILS} rails of one provider (SYMRAIL_NIC_LIST)"),
            });
        }
        let keys = places.into_iter().map(|p| p.1).collect();
        let base = segment.base().expose_provenance() as u64;
        let (id, offset, len) = (segment.id(), segment.offset(), segment.bytes());
        Ok(Memory { pe, id, offset, len, base, address, keys, staged: false })
    }

    /// The handle of a segment that only a copy engine reaches.
    pub(super) fn staged(pe: Pe, segment: Segment) -> Memory {
        let base = segment.base().expose_provenance() as u64;
        let (id, offset, len) = (segment.id(), segment.offset(), segment.bytes());
        Memory { pe, id, offset, len, base, address: 0, keys: Vec::new(), staged: true }
    }

    /// The handle of a segment that both a copy engine and rails can access, with the connection info for its rails.
    pub(super) fn direct(pe: Pe, segment: Segment, connection_info: &[u8]) -> Result<Memory> {
        Ok(Memory { staged: true, ..Memory::new(pe, segment, connection_info)? })
    }

    /// Whether the CPU does not touch it.
    #[must_use]
    pub fn is_staged(&self) -> bool {
        self.staged
    }

    /// Whether rails can access it.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The PE that owns it.
    #[must_use]
    pub fn pe(&self) -> Pe {
        self.pe
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Its offset among the registrations of its PE, which are never at the same one twice.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of its first byte in its PE.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; HANDLE_SIZE] {
        let mut b = [0; HANDLE_SIZE];
        b[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4..8].copy_from_slice(&self.pe.to_le_bytes());
        b[8..12].copy_from_slice(&self.id.to_le_bytes());
        b[12..14].copy_from_slice(&(self.keys.len() as u16).to_le_bytes());
        b[14] = u8::from(self.is_staged());
        let words = [self.offset, self.len, self.base, self.address];
        for (to, value) in b[16..].chunks_exact_mut(8).zip(words.iter().chain(&self.keys)) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        b
    }

    /// The number of bytes at the front of an encoded handle behind which all are zero.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        HEAD + 8 * self.keys.len()
    }

    /// Encodes it without the zeros at its end, for [`Memory::of_peer`] at a peer.
    #[must_use]
    pub fn encode_short(&self) -> Vec<u8> {
        self.encode()[..self.encoded_len()].to_vec()
    }

    /// Reads a handle that the peer `pe` has sent, in which the peer has its own number, as one of its memory here.
    /// `bytes` are [`Memory::encoded_len`] or more.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn of_peer(pe: Pe, bytes: &[u8]) -> Result<Memory> {
        let mut handle = [0; HANDLE_SIZE];
        let Some(front) = handle.get_mut(..bytes.len()) else {
            return Err(malformed(format!("it has {} bytes, more than {HANDLE_SIZE}", bytes.len())));
        };
        front.copy_from_slice(bytes);
        Ok(Memory { pe, ..Memory::decode(&handle)? })
    }

    /// Reads an encoded handle.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn decode(bytes: &[u8; HANDLE_SIZE]) -> Result<Memory> {
        let head = Head::read(bytes)?;
        let count = usize::from(u16::from_le_bytes([bytes[12], bytes[13]]));
        let staged = bytes[14] == 1;
        if count > MOST_RAILS || (count == 0 && !staged) || bytes[14] > 1 {
            return Err(malformed(format!("{count} keys")));
        }
        let keys = (0..count).map(|i| word(bytes, HEAD + 8 * i)).collect();
        let Head { pe, offset, len, base } = head;
        Ok(Memory { pe, id: half(bytes, 8), offset, len, base, address: word(bytes, 40), keys, staged })
    }

    pub(super) fn head(&self) -> Head {
        Head { pe: self.pe, offset: self.offset, len: self.len, base: self.base }
    }

    /// The argument for [`Regions::learn_separate`](symrail_transport::region::Regions::learn_separate).
    pub(super) fn connection_info(&self) -> Vec<u8> {
        self.keys.iter().flat_map(|key| [self.address.to_le_bytes(), key.to_le_bytes()].concat()).collect()
    }
}

/// The fields of a handle that an operation needs when its session knows the handle already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub pe: Pe,
    pub offset: u64,
    pub len: u64,
    pub base: u64,
}

impl Head {
    #[inline]
    pub fn read(bytes: &[u8; HANDLE_SIZE]) -> Result<Head> {
        if half(bytes, 0) != MAGIC {
            return Err(malformed("it is not one of this transport's".into()));
        }
        let head = Head { pe: half(bytes, 4), offset: word(bytes, 16), len: word(bytes, 24), base: word(bytes, 32) };
        if head.offset.checked_add(head.len).is_none() {
            return Err(malformed(format!("{} bytes at {:#x}", head.len, head.offset)));
        }
        Ok(head)
    }
}

fn malformed(why: String) -> Error {
    // The sender is only known from the handle, if at all.
    Error::Malformed { what: "memory handle", pe: 0, why }
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn handles_come_back_with_any_number_of_rails() {
        for rails in [1, 2, 16, MOST_RAILS] {
            let base = std::ptr::without_provenance_mut(0x7000_1000);
            // SAFETY: no code here dereferences the address.
            let segment = unsafe { Segment::new(7, 0x2000, base, 5000) };
            let connection_info: Vec<u8> =
                (0..rails as u64).flat_map(|r| [77u64.to_le_bytes(), (u64::MAX - r).to_le_bytes()].concat()).collect();
            let memory = Memory::new(3, segment, &connection_info).unwrap();
            let bytes = memory.encode();
            let back = Memory::decode(&bytes).unwrap();
            assert_eq!(back, memory);
            assert_eq!(back.connection_info(), connection_info);
            assert_eq!(Head::read(&bytes).unwrap(), Head { pe: 3, offset: 0x2000, len: 5000, base: 0x7000_1000 });
        }
        assert_eq!(MOST_RAILS, 58);
        // SAFETY: as above.
        let segment = unsafe { Segment::new(8, 0x9000, std::ptr::without_provenance_mut(0x10), 1) };
        let staged = Memory::staged(1, segment);
        assert!(staged.is_staged() && !staged.has_keys() && Memory::decode(&staged.encode()).unwrap() == staged);
        let direct = Memory::direct(1, segment, &[5; 32]).unwrap();
        assert!(direct.is_staged() && direct.has_keys() && Memory::decode(&direct.encode()).unwrap() == direct);
    }

    #[test]
    fn garbage_is_no_handle() {
        assert!(Memory::decode(&[0; HANDLE_SIZE]).is_err());
        let mut bytes = [0xff; HANDLE_SIZE];
        bytes[0..4].copy_from_slice(b"SyM1");
        assert!(Memory::decode(&bytes).is_err());
    }
}
