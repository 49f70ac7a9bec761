//! Packets: data with flags inside, so that a reader needs no signal.
//!
//! A word of 64 bits holds four bytes of data in its lower half and the call's flag in its upper half. It is written
//! and read atomically, so a word with the flag has the data. (This is a packet of 8 bytes; two consecutive ones are a
//! packet of 16 bytes.)
//!
//! A wire does not promise atomic words. There packets are sent twice: first with a flag that no reader waits for,
//! then, ordered behind that, with the right one. The second write does not change the data any more.

/// The word of a packet.
pub(super) fn word(data: [u8; 4], flag: u32) -> u64 {
    u64::from(flag) << 32 | u64::from(u32::from_ne_bytes(data))
}

/// The data of a packet that has this flag.
pub(super) fn data(word: u64, flag: u32) -> Option<[u8; 4]> {
    ((word >> 32) as u32 == flag).then_some((word as u32).to_ne_bytes())
}

/// The packets of some data; the last one is padded with zeros.
pub(super) fn words(bytes: &[u8], flag: u32) -> Vec<u64> {
    let four = |bytes: &[u8]| {
        let mut data = [0; 4];
        data[..bytes.len()].copy_from_slice(bytes);
        data
    };
    bytes.chunks(4).map(|bytes| word(four(bytes), flag)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_flag_gives_the_data() {
        let packets = words(&[1, 2, 3, 4, 5], 7);
        assert_eq!(packets.len(), 2);
        assert_eq!(data(packets[0], 7), Some([1, 2, 3, 4]));
        assert_eq!(data(packets[1], 7), Some([5, 0, 0, 0]));
        assert_eq!((data(packets[0], 6), data(0, 7)), (None, None));
    }
}
