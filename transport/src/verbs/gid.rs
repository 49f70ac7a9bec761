//! The choice of an entry in a port's GID table.
//!
//! On RoCE a GID stands for an IP address and a protocol version. The table usually has several entries that work, and
//! some with a short reach (link-local). [`choose`] returns the index that the settings demand or the entry with the
//! best score.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::env::{AddrFamily, Settings};
use crate::topology::prefix_of;

/// The packet format of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum GidType {
    /// InfiniBand.
    InfiniBand = 0,
    /// RoCE version 1 (its own Ethernet type; not routed).
    RoceV1 = 1,
    /// RoCE version 2 (UDP).
    RoceV2 = 2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidType::InfiniBand => "InfiniBand",
            GidType::RoceV1 => "RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        })
    }
}

/// One entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// Its bytes.
    pub raw: [u8; 16],
    /// The packet format.
    pub kind: GidType,
    /// The network interface it belongs to, where there is one.
    pub interface: Option<String>,
}

impl Gid {
    /// The IP address that the GID stands for (on InfiniBand: the GID in IPv6 notation).
    #[must_use]
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.raw).to_canonical()
    }

    /// The length of the prefix of its subnet: of the interface that has its address, or else as usual.
    pub(super) fn prefix(&self) -> u8 {
        let ip = self.address();
        let of_interface = if self.kind == GidType::InfiniBand { None } else { prefix_of(ip) };
        of_interface.unwrap_or(if ip.is_ipv4() { 32 } else { 64 })
    }

    /// The address's family.
    #[must_use]
    pub fn family(&self) -> AddrFamily {
        if self.address().is_ipv4() { AddrFamily::Ipv4 } else { AddrFamily::Ipv6 }
    }

    /// Whether the address is valid on one link only.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        match self.address() {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.index, self.address(), self.kind)?;
        match &self.interface {
            Some(interface) => write!(f, " ({interface})"),
            None => Ok(()),
        }
    }
}

/// A table as text, for messages.
pub(super) fn table(gids: &[Gid]) -> String {
    if gids.is_empty() {
        return "no GID".into();
    }
    gids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The wanted attributes as text, for messages.
pub(super) fn wanted(settings: &Settings) -> String {
    match (settings.ib_gid_index, settings.ib_addr_range) {
        (Some(index), _) => format!("SYMRAIL_IB_GID_INDEX={index}"),
        (None, Some(range)) => format!("SYMRAIL_IB_ADDR_RANGE={range}"),
        (None, None) => "a GID that is not zero".into(),
    }
}

/// The entry to use: the index of the settings, or the best entry within the address range. The best has, in this
/// order, the preferred RoCE version, a scope beyond link-local, the preferred family, the lowest index. `None` when
/// nothing fits.
pub(super) fn choose<'a>(gids: &'a [Gid], settings: &Settings) -> Option<&'a Gid> {
    if let Some(index) = settings.ib_gid_index {
        return gids.iter().find(|gid| gid.index == index);
    }
    let version = if settings.ib_roce_version == 1 { GidType::RoceV1 } else { GidType::RoceV2 };
    gids.iter()
        .filter(|gid| {
            gid.kind == GidType::InfiniBand || settings.ib_addr_range.is_none_or(|range| range.contains(&gid.address()))
        })
        .max_by_key(|gid| {
            let family = gid.family() == settings.ib_addr_family;
            (gid.kind == version, !gid.is_link_local(), family, std::cmp::Reverse(gid.index))
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, kind: GidType) -> Gid {
        let raw = match address.parse().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Gid { index, raw, kind, interface: None }
    }

    fn usual() -> Vec<Gid> {
        vec![
            gid(0, "fe80::1", GidType::RoceV1),
            gid(1, "fe80::1", GidType::RoceV2),
            gid(2, "10.0.0.1", GidType::RoceV1),
            gid(3, "10.0.0.1", GidType::RoceV2),
            gid(4, "2001:db8::1", GidType::RoceV1),
            gid(5, "2001:db8::1", GidType::RoceV2),
        ]
    }

    fn pick(change: impl Fn(&mut Settings)) -> Option<u32> {
        let mut settings = Settings::default();
        change(&mut settings);
        choose(&usual(), &settings).map(|gid| gid.index)
    }

    #[test]
    fn the_score_prefers_version_then_reach_then_family() {
        assert_eq!(pick(|_| ()), Some(3));
        assert_eq!(pick(|s| s.ib_roce_version = 1), Some(2));
        assert_eq!(pick(|s| s.ib_addr_family = AddrFamily::Ipv6), Some(5));
        assert_eq!(pick(|s| s.ib_addr_range = Some("2001:db8::/32".parse().unwrap())), Some(5));
        assert_eq!(pick(|s| s.ib_addr_range = Some("fe80::/10".parse().unwrap())), Some(1));
        assert_eq!(pick(|s| s.ib_addr_range = Some("192.168.0.0/16".parse().unwrap())), None);
    }

    #[test]
    fn an_index_is_taken_literally() {
        assert_eq!(pick(|s| s.ib_gid_index = Some(0)), Some(0));
        assert_eq!(pick(|s| s.ib_gid_index = Some(6)), None);
    }

    #[test]
    fn link_local_is_better_than_nothing() {
        let only = [gid(0, "fe80::1", GidType::RoceV2)];
        assert_eq!(choose(&only, &Settings::default()).map(|gid| gid.index), Some(0));
    }

    #[test]
    fn tables_read_well() {
        let mut entry = gid(1, "10.0.0.1", GidType::RoceV2);
        entry.interface = Some("eth0".into());
        assert_eq!(table(&[entry]), "1: 10.0.0.1 RoCE v2 (eth0)");
        assert_eq!(table(&[]), "no GID");
    }
}
