//! A rail's address: the data that a peer needs to pair a queue pair with one of ours, or to find that it must not.

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv6Addr;

use super::gid::GidType;
use super::mode::Mode;
use crate::error::{Error, Result};
use crate::pairing::InterfaceAddress;
use crate::pe::Pe;
use crate::rail::Dest;

const VERSION: u8 = 2;
const MAGIC: [u8; 3] = *b"ibv";
/// The bytes before the queue pair numbers.
const HEAD: usize = 44;

/// The address of one rail. `qpns[i]` is the queue pair that waits for the PE whose index is `i`; where there is one only,
/// it waits for the PE that gets the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub mode: Mode,
    pub gid_type: GidType,
    pub gid: [u8; 16],
    /// The length of the prefix of the GID's subnet.
    pub prefix: u8,
    pub lid: u16,
    /// Whether the port needs global route headers.
    pub needs_grh: bool,
    /// The MTU in the encoding of verbs: 1 (256 bytes) to 5 (4096 bytes).
    pub mtu: u8,
    pub pkey: u16,
    /// Reads and atomics that the rail serves concurrently for one peer.
    pub incoming_reads: u8,
    /// The number from which the first packet sequence numbers of connections follow, 24 bits.
    pub psn: u32,
    pub qpns: Vec<u32>,
}

impl Address {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + 4 * self.qpns.len());
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.push(self.mode as u8);
        out.push(self.gid_type as u8);
        out.push(u8::from(self.needs_grh));
        out.push(self.mtu);
        out.extend_from_slice(&self.gid);
        out.extend_from_slice(&self.lid.to_le_bytes());
        out.extend_from_slice(&self.pkey.to_le_bytes());
        out.push(self.incoming_reads);
        out.push(self.prefix);
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(&self.psn.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.qpns.len()).unwrap_or(0).to_le_bytes());
        debug_assert_eq!(out.len(), HEAD);
        for qpn in &self.qpns {
            out.extend_from_slice(&qpn.to_le_bytes());
        }
        out
    }

    /// Decodes a peer's address.
    pub fn decode(bytes: &[u8], from: Pe) -> Result<Self> {
        let malformed = |why: String| Error::Malformed { what: "ibverbs rail address", pe: from, why };
        let (head, tail) = bytes
            .split_first_chunk::<HEAD>()
            .ok_or_else(|| malformed(format!("{} bytes, at least {HEAD} expected", bytes.len())))?;
        if head[..3] != MAGIC {
            return Err(malformed("it is not one of ibverbs; do all PEs use the same SYMRAIL_TRANSPORT?".into()));
        }
        if head[3] != VERSION {
            return Err(malformed(format!("version {}, expected {VERSION}", head[3])));
        }
        let mode = Mode::from_repr(head[4]).ok_or_else(|| malformed(format!("IB mode {}", head[4])))?;
        let gid_type = GidType::from_repr(head[5]).ok_or_else(|| malformed(format!("GID type {}", head[5])))?;
        let mtu = head[7];
        if !(1..=5).contains(&mtu) {
            return Err(malformed(format!("MTU code {mtu}")));
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&head[8..24]);
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (words, rest) = tail.as_chunks::<4>();
        if words.len() != u32_at(40) as usize || !rest.is_empty() {
            return Err(malformed(format!("{} bytes for {} queue pairs", tail.len(), u32_at(40))));
        }
        Ok(Address {
            mode,
            gid_type,
            gid,
            prefix: head[29],
            lid: u16::from_le_bytes([head[24], head[25]]),
            needs_grh: head[6] & 1 != 0,
            mtu,
            pkey: u16::from_le_bytes([head[26], head[27]]),
            incoming_reads: head[28],
            psn: u32_at(36) & 0xff_ffff,
            qpns: words.iter().map(|word| u32::from_le_bytes(*word)).collect(),
        })
    }

    /// The queue pair that waits for the PE with this index.
    pub fn queue_pair_for(&self, index: Dest) -> Option<u32> {
        let at = if self.qpns.len() == 1 { 0 } else { index as usize };
        self.qpns.get(at).copied()
    }

    /// The address of the end of one connection: that of the rail for the PE with this index. The first packet sequence
    /// number differs from that of other PEs which had the same queue pair before, so that their late packets are not
    /// accepted, and a connection whose ends do not mean the same one carries nothing.
    pub fn of(&self, index: Dest) -> Address {
        // An odd factor, so that no two of 2^24 indices have the same number, and those of one queue pair are far apart.
        let psn = self.psn.wrapping_add(index.wrapping_mul(0x9e_3779)) & 0xff_ffff;
        Address { psn, qpns: Vec::new(), ..*self }
    }

    /// The GID in an encoded address as that of an interface; `None` if the address is none of this version.
    ///
    /// It tells of no network namespace: processes of several may use one NIC, and then have one GID.
    pub fn interface(bytes: &[u8]) -> Option<InterfaceAddress> {
        let address = Address::decode(bytes, 0).ok()?;
        let ip = Ipv6Addr::from(address.gid).to_canonical();
        Some(InterfaceAddress { ip, prefix: address.prefix, network: 0 })
    }

    /// Refuses a peer with which this rail could not communicate. The error names both values.
    pub fn check(&self, peer: &Address, pe: Pe, other_pe: Pe) -> Result<()> {
        let differs =
            |what, value: String, other_value: String| Err(Error::Mismatch { what, pe, value, other_pe, other_value });
        if self.mode != peer.mode {
            return differs("SYMRAIL_IB_MODE", self.mode.to_string(), peer.mode.to_string());
        }
        if self.gid_type != peer.gid_type {
            return differs("the GID's type", self.gid_type.to_string(), peer.gid_type.to_string());
        }
        let family = |address: &Address| if is_ipv4(&address.gid) { "IPv4" } else { "IPv6" };
        if self.gid_type == GidType::RoceV2 && family(self) != family(peer) {
            return differs("the GID's address family", family(self).into(), family(peer).into());
        }
        // The highest bit means full or limited member. Two limited members cannot communicate; all other pairs can.
        if self.pkey & 0x7fff != peer.pkey & 0x7fff || (self.pkey | peer.pkey) & 0x8000 == 0 {
            return differs("the partition key", format!("{:#06x}", self.pkey), format!("{:#06x}", peer.pkey));
        }
        Ok(())
    }
}

/// A first packet sequence number. Any will do, as long as it differs from that of late packets of a former connection.
pub(super) fn random_psn() -> u32 {
    (RandomState::new().hash_one(std::process::id()) & 0xff_ffff) as u32
}

fn is_ipv4(gid: &[u8; 16]) -> bool {
    Ipv6Addr::from(*gid).to_ipv4_mapped().is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sample() -> Address {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        Address {
            mode: Mode::RdmaAtomics,
            gid_type: GidType::RoceV2,
            gid,
            prefix: 24,
            lid: 0x1234,
            needs_grh: true,
            mtu: 5,
            pkey: 0xffff,
            incoming_reads: 16,
            psn: 0xabcdef,
            qpns: vec![17, 0x12_3456, 3],
        }
    }

    #[test]
    fn rails_pair_by_the_subnets_of_their_gids() {
        let rail = |gid: &str, prefix| {
            let gid = match gid.parse().unwrap() {
                std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                std::net::IpAddr::V6(ip) => ip,
            };
            Address::interface(&Address { gid: gid.octets(), prefix, ..sample() }.encode())
        };
        let pairs = |a: &[_], b: &[_]| crate::pairing::pairs(a, b, false);
        let of = |host: u8| [rail(&format!("10.1.0.{host}"), 24), rail(&format!("10.2.0.{host}"), 24)];
        let ([a1, a2], [b1, b2]) = (of(1), of(2));
        assert_eq!(pairs(&[a1, a2], &[b2, b1]), [(0, 1), (1, 0)], "RoCE, IPv4");
        let points = [rail("10.1.0.1", 32), rail("10.2.0.1", 32)];
        assert_eq!(pairs(&points, &[rail("10.3.0.1", 32), rail("10.4.0.1", 32)]), [(0, 0), (1, 1)], "routed: by index");
        assert_eq!(pairs(&[a1], &[rail("fd00::1", 64), rail("10.3.0.1", 24)]), [(0, 1)], "families");
        // InfiniBand: the default subnet prefix, and another one.
        let (default, other) = (|id| rail(&format!("fe80::{id}"), 64), |id| rail(&format!("fec1:0:0:7::{id}"), 64));
        assert_eq!(pairs(&[default(1), default(2)], &[default(3), default(4)]), [(0, 0), (1, 1)]);
        assert_eq!(pairs(&[default(1), other(2)], &[other(3), default(4)]), [(0, 1), (1, 0)]);
        assert_eq!(pairs(&[default(1)], &[default(1)]), [(0, 0)], "containers that share a NIC");
        assert_eq!(Address::interface(b"another backend's"), None);
    }

    #[test]
    fn comes_back_as_it_was() {
        assert_eq!(Address::decode(&sample().encode(), 1).unwrap(), sample());
    }

    #[test]
    fn every_truncation_and_odd_field_is_an_error() {
        let good = sample().encode();
        for length in 0..good.len() {
            assert!(Address::decode(&good[..length], 1).is_err(), "{length} bytes passed");
        }
        for (at, value) in [(0, b'x'), (3, 9), (4, 0), (4, 3), (5, 3), (7, 0), (7, 6), (40, 200), (43, 255)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Address::decode(&bad, 1).is_err(), "byte {at} = {value} passed");
        }
    }

    #[test]
    fn mismatches_name_both_values() {
        let ours = sample();
        let refused = |change: &dyn Fn(&mut Address)| {
            let mut theirs = sample();
            change(&mut theirs);
            ours.check(&theirs, 0, 7).unwrap_err().to_string()
        };
        assert!(ours.check(&sample(), 0, 7).is_ok());
        let mode = refused(&|a| a.mode = Mode::WriteWithImm);
        assert!(mode.contains("PE 0 has rdma-atomics") && mode.contains("PE 7 has write-with-imm"), "{mode}");
        assert!(refused(&|a| a.gid_type = GidType::RoceV1).contains("RoCE v1"));
        assert!(refused(&|a| a.gid = [0xfe; 16]).contains("IPv6"));
        assert!(refused(&|a| a.pkey = 0x8001).contains("0x8001"));
    }
}
