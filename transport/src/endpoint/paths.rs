//! The addresses of the interfaces at both ends of lanes: they decide which rails pair, and messages name them.

use std::fmt::Write;
use std::net::IpAddr;

use crate::error::Error;
use crate::pairing::InterfaceAddress;
use crate::pe::Pe;
use crate::sparse::Sparse;

/// The interfaces of this endpoint's rails, and those of the peers' rails.
pub(super) struct Paths {
    mine: Box<[Option<InterfaceAddress>]>,
    /// By PE and its rail; empty where none is known.
    theirs: Sparse<Box<[Option<IpAddr>]>>,
}

impl Paths {
    pub fn new(mine: impl Iterator<Item = Option<InterfaceAddress>>) -> Paths {
        Paths { mine: mine.collect(), theirs: Sparse::default() }
    }

    /// The interfaces of this endpoint's rails.
    pub fn mine(&self) -> &[Option<InterfaceAddress>] {
        &self.mine
    }

    /// Notes the interfaces of a peer's rails.
    pub fn learn(&mut self, pe: Pe, theirs: Vec<Option<InterfaceAddress>>) {
        if theirs.iter().any(Option::is_some) {
            *self.theirs.enter(pe) = theirs.into_iter().map(|interface| interface.map(|it| it.ip)).collect();
        }
    }

    /// Forgets the interfaces of a peer's rails.
    pub fn forget(&mut self, pe: Pe) {
        self.theirs.forget(pe);
    }

    /// The addresses of a lane, this end's first; empty where they are not known.
    pub fn of(&self, pe: Pe, lane: usize, theirs: usize) -> String {
        let other = self.theirs.get(pe).get(theirs).copied().flatten();
        match (self.mine.get(lane).copied().flatten(), other) {
            (Some(mine), Some(other)) => format!("{} to {other}", mine.ip),
            _ => String::new(),
        }
    }

    /// The error about a peer with these interfaces that no rail, or not the first one, can reach.
    pub fn none(&self, pe: Pe, theirs: &[Option<InterfaceAddress>], first: bool) -> Error {
        let list = |all: &[Option<InterfaceAddress>]| {
            let mut text = String::new();
            for interface in all.iter().flatten() {
                let comma = if text.is_empty() { "" } else { ", " };
                let _ = write!(text, "{comma}{interface}");
            }
            if text.is_empty() { "nothing".to_owned() } else { text }
        };
        let (first, how) = match first {
            true => ("the first rail of ", ", over this PE's first rail, as atomics by NICs need it"),
            false => ("", ""),
        };
        Error::NoRail {
            wanted: format!("{first}PE {pe}, which is at {}{how}", list(theirs)),
            found: format!("{} (SYMRAIL_NIC_LIST chooses others)", list(&self.mine)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(ip: &str) -> Option<InterfaceAddress> {
        Some(InterfaceAddress { ip: ip.parse().unwrap(), prefix: 24, network: 1 })
    }

    #[test]
    fn messages_name_the_addresses_of_both_ends() {
        let mut paths = Paths::new([at("10.0.0.1"), None].into_iter());
        paths.learn(1, vec![None, at("10.0.0.2")]);
        paths.learn(2, vec![None]);
        assert_eq!(paths.of(1, 0, 1), "10.0.0.1 to 10.0.0.2");
        assert_eq!([paths.of(1, 0, 0), paths.of(1, 1, 1), paths.of(2, 0, 0), paths.of(3, 9, 9)], [""; 4]);
        let error = paths.none(1, &[at("fd00::1"), None], false).to_string();
        assert!(error.contains("PE 1, which is at fd00::1/24; there are: 10.0.0.1/24"), "{error}");
    }
}
