//! Keys of segments by which memory grows: they are derived from those of the first segment.
//!
//! Where the provider lets this library choose keys, the key for each rail is the HMAC-SHA-256 of the rail's key to the
//! first segment and the new segment's id. Peers know the first key, and so can compute all others. Strangers know
//! none. A stranger that has found a later key cannot compute the first one, if keys are too long for an exhaustive
//! search.

use hmac::Mac;
use serde::{Deserialize, Serialize};
use symrail_core::Segment;

use crate::error::{Error, Result};
use crate::frames::{self, hmac};
use crate::pe::Pe;

/// Separates these keys from other values that may once be derived from a key.
const PURPOSE: &[u8] = b"symrail: key of a segment";

/// The key to the segment with this id, derived from a rail's key to the first segment.
pub(crate) fn key(first: u64, id: u32) -> u64 {
    let mut padded = [0; frames::KEY];
    padded[..size_of::<u64>()].copy_from_slice(&first.to_le_bytes());
    let mac = hmac(&padded).chain_update(PURPOSE).chain_update(id.to_le_bytes());
    mac.finalize().into_bytes().first_chunk().map_or(first, |bytes| u64::from_le_bytes(*bytes))
}

/// The keys to a segment by which a PE's memory has grown. Connection infos here are those of
/// [`Regions::connection_info`](crate::region::Regions::connection_info).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrownKeys {
    /// The keys are derived from those of the first segment, and have so many bytes: mostly the same value on all PEs.
    Follow(u8),
    /// The provider has chosen the keys: the segment's connection info.
    Given(Vec<u8>),
}

impl GrownKeys {
    /// The keys of the segment `grown` with its connection info, for a PE with the segment `first` and its connection
    /// info.
    pub(crate) fn new(first: (&Segment, &[u8]), grown: (&Segment, &[u8])) -> GrownKeys {
        let fits = |bytes: &u8| following(first, grown.0, *bytes) == grown.1;
        (1..=8).rev().find(fits).map_or_else(|| GrownKeys::Given(grown.1.to_vec()), GrownKeys::Follow)
    }

    /// The connection info of the segment `grown` of `pe`, for the PE's `first` segment and its connection info.
    ///
    /// # Errors
    /// [`Error::Malformed`] when keys cannot have that size.
    pub fn connection_info(self, pe: Pe, first: (&Segment, &[u8]), grown: &Segment) -> Result<Vec<u8>> {
        match self {
            GrownKeys::Follow(bytes @ 1..=8) => Ok(following(first, grown, bytes)),
            GrownKeys::Follow(bytes) => {
                let why = format!("keys have 1 to 8 bytes, not {bytes}");
                Err(Error::Malformed { what: "a segment's keys", pe, why })
            }
            GrownKeys::Given(connection_info) => Ok(connection_info),
        }
    }
}

/// The connection info of a segment whose keys of so many bytes are derived from those of the first. Where peers name
/// memory by its address, segments are contiguous.
fn following((first, connection_info): (&Segment, &[u8]), grown: &Segment, bytes: u8) -> Vec<u8> {
    let behind = grown.offset().wrapping_sub(first.offset());
    let of_rail = |&[a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, k4, k5, k6, k7]: &[u8; 16]| {
        let address = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let address = if address == 0 { 0 } else { address.wrapping_add(behind) };
        let key = key(u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]), grown.id());
        [address.to_le_bytes(), (key & u64::MAX >> (64 - 8 * u32::from(bytes))).to_le_bytes()]
    };
    connection_info.as_chunks().0.iter().flat_map(of_rail).flatten().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::endpoint::{Endpoint, Policy, Role};
    use crate::env::Settings;
    use crate::mock::{Fabric, FabricConfig};

    #[test]
    fn keys_that_a_provider_has_chosen_are_told() {
        let rails = vec![Fabric::new(1, FabricConfig::default()).open("mock").unwrap()];
        let mut endpoint = Endpoint::new(Role::Proxy, 0, 2, rails, Policy::new(&Settings::default(), false)).unwrap();
        // SAFETY: no code dereferences the addresses.
        let keys =
            unsafe { endpoint.register(segment(0)).and_then(|_| endpoint.register_grown(segment(3), &segment(0))) };
        assert_eq!(keys.unwrap(), GrownKeys::Given(of_rail(0, 3)));
    }

    fn segment(id: u32) -> Segment {
        // SAFETY: no code dereferences the address.
        unsafe { Segment::new(id, u64::from(id) << 20, std::ptr::null_mut(), 1 << 20) }
    }

    /// The connection info of a rail.
    fn of_rail(address: u64, key: u64) -> Vec<u8> {
        [address.to_le_bytes(), key.to_le_bytes()].concat()
    }

    #[test]
    fn keys_that_follow_are_told_by_one_word_and_others_as_they_are() {
        let (first, grown) = (segment(0), segment(3));
        let [a, b] = [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321];
        let said = [of_rail(0, a), of_rail(7 << 20, b)].concat();
        for (bytes, mask) in [(8, u64::MAX), (2, 0xffff)] {
            let follow = [of_rail(0, key(a, 3) & mask), of_rail(10 << 20, key(b, 3) & mask)].concat();
            let keys = GrownKeys::new((&first, &said), (&grown, &follow));
            assert_eq!(keys, GrownKeys::Follow(bytes));
            assert_eq!(keys.connection_info(0, (&first, &said), &grown).unwrap(), follow);
        }
        for other in [of_rail(0, key(a, 4)), of_rail(9, key(a, 3)), of_rail(0, 5)] {
            let keys = GrownKeys::new((&first, &said[..16]), (&grown, &other));
            assert_eq!(keys, GrownKeys::Given(other.clone()));
            assert_eq!(keys.connection_info(0, (&first, &said[..16]), &grown).unwrap(), other);
        }
        for bytes in [0, 9, 255] {
            let error = GrownKeys::Follow(bytes).connection_info(6, (&first, &said), &grown).unwrap_err().to_string();
            assert!(error.contains("PE 6") && error.contains(&format!("not {bytes}")), "{error}");
        }
    }

    #[test]
    fn no_two_segments_or_rails_have_one_key() {
        let keys: Vec<u64> = (0..50).flat_map(|first| (1..50).map(move |id| key(first, id))).collect();
        let mut apart = keys.clone();
        apart.sort_unstable();
        apart.dedup();
        assert_eq!(apart.len(), keys.len());
        let ones: u32 = keys.iter().map(|key| key.count_ones()).sum();
        let mean = f64::from(ones) / keys.len() as f64;
        assert!((31.0..33.0).contains(&mean), "{mean} of 64 bits are set");
    }
}
