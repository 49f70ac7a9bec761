//! The record of a connection on which nothing passes, as one end tells the other that it has cut it.

use crate::rail::Ports;

/// A lane whose connection the source has cut, by the target's number, and the ports from which the source opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub lane: u8,
    pub opened: Ports,
}

/// Ports as a word of a request.
pub(super) fn word(ports: Ports) -> u64 {
    ports.iter().rev().fold(0, |word, port| word << 16 | u64::from(*port))
}

/// The ports of a request's word.
pub(super) fn ports(word: u64) -> Ports {
    [0, 1, 2].map(|at| (word >> (16 * at)) as u16)
}

impl Cut {
    /// Distinguishes a cut from no cut.
    const SET: u64 = 1 << 63;

    pub fn encode(self) -> u64 {
        Cut::SET | u64::from(self.lane) << 48 | word(self.opened)
    }

    pub fn decode(word: u64) -> Option<Cut> {
        (word & Cut::SET != 0).then(|| Cut { lane: (word >> 48) as u8, opened: ports(word) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_told_in_one_word() {
        for opened in [[0; 3], [1, 0, 0], [65535, 2, 40_000]] {
            let cut = Cut { lane: 200, opened };
            assert_eq!(Cut::decode(cut.encode()), Some(cut));
            assert_eq!(ports(word(opened)), opened);
            assert_eq!(Cut::decode(word(opened)), None);
        }
    }
}
