//! Which rails of two PEs form lanes.
//!
//! Both ends compute the pairs from the same data, the addresses that PEs exchange, and get the same pairs: the rule is
//! symmetric in the two ends. Rails in one subnet come first, then those that a router may connect, each with the
//! smallest indexes first. So equal lists of rails in one network pair by index, and PEs that use the NICs of a host in
//! different orders still pair each NIC with the one in its own network.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// The address of a rail's network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The IP address.
    pub ip: IpAddr,
    /// The length of its subnet's prefix, in bits.
    pub prefix: u8,
    /// The network namespace, see [`network`]; 0 if it is not known.
    pub network: u32,
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// How likely two rails reach each other. Rails that certainly do not have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Both have link-local addresses, which every link has.
    LinkLocal,
    /// A router may connect them, or their addresses do not show it.
    Routed,
    /// They are in one subnet.
    Subnet,
}

/// A number for this process's network namespace: the same in all processes there, and, but for one chance in 2^32,
/// another one elsewhere. 0 if it cannot be read.
pub fn network() -> u32 {
    static NETWORK: OnceLock<u32> = OnceLock::new();
    *NETWORK.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let Ok(namespace) = std::fs::metadata("/proc/self/ns/net") else { return 0 };
        let bytes = boot.into_iter().chain(namespace.ino().to_le_bytes());
        // FNV-1a: every build computes the same.
        bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)).max(1)
    })
}

/// Whether an address is valid on its own link only.
#[must_use]
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether two rails may reach each other, from their addresses; rails without an address may.
fn reach(a: Option<InterfaceAddress>, b: Option<InterfaceAddress>) -> Option<Reach> {
    let (Some(a), Some(b)) = (a, b) else { return Some(Reach::Routed) };
    if a.ip.is_ipv4() != b.ip.is_ipv4() {
        return None;
    }
    let subnet = contains(a, b.ip) && contains(b, a.ip);
    if a.network == b.network && a.network != 0 {
        return Some(if subnet { Reach::Subnet } else { Reach::Routed });
    }
    if apart(a, b) && (a.ip.is_loopback() || b.ip.is_loopback() || a.ip == b.ip) {
        return None;
    }
    match (is_link_local(a.ip), is_link_local(b.ip)) {
        (false, false) => Some(if subnet { Reach::Subnet } else { Reach::Routed }),
        (true, true) if subnet => Some(Reach::LinkLocal),
        _ => None,
    }
}

/// Whether two addresses are known to belong to different network namespaces.
fn apart(a: InterfaceAddress, b: InterfaceAddress) -> bool {
    a.network != b.network && a.network != 0 && b.network != 0
}

fn contains(subnet: InterfaceAddress, ip: IpAddr) -> bool {
    ipnet::IpNet::new(subnet.ip, subnet.prefix).is_ok_and(|net| net.contains(&ip))
}

/// The pairs of rails of two endpoints, each as (index in `mine`, index in `theirs`), in the order of the first. No rail
/// is in two pairs. An address that both hosts have is in none: a connection to it would end at the own host.
///
/// `first_together`: the first rails of both form a pair if they may reach each other, whatever else could.
#[must_use]
pub fn pairs(
    mine: &[Option<InterfaceAddress>],
    theirs: &[Option<InterfaceAddress>],
    first_together: bool,
) -> Vec<(usize, usize)> {
    let is_own = |address: Option<InterfaceAddress>, all: &[Option<InterfaceAddress>]| {
        address.is_some_and(|address| all.iter().flatten().any(|own| own.ip == address.ip && apart(*own, address)))
    };
    let usable = |all: &[Option<InterfaceAddress>], others: &[Option<InterfaceAddress>]| -> Vec<usize> {
        (0..all.len()).filter(|&at| !is_own(all[at], others)).collect()
    };
    let (mine_usable, theirs_usable) = (usable(mine, theirs), usable(theirs, mine));
    let all = mine_usable.iter().flat_map(|&i| theirs_usable.iter().map(move |&j| (i, j)));
    let mut candidates: Vec<_> = all.filter_map(|(i, j)| Some((reach(mine[i], theirs[j])?, i, j))).collect();
    // Two candidates that exclude each other share a rail, so their sums differ, and their order is the same at both
    // ends.
    candidates.sort_by_key(|&(reach, i, j)| (!(first_together && (i, j) == (0, 0)), std::cmp::Reverse(reach), i + j));
    let (mut used, mut used_there) = (HashSet::new(), HashSet::new());
    let mut pairs = Vec::new();
    for (_, i, j) in candidates {
        if !used.contains(&i) && !used_there.contains(&j) {
            used.insert(i);
            used_there.insert(j);
            pairs.push((i, j));
        }
    }
    pairs.sort_unstable();
    pairs
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn at(network: u32, address: &str) -> Option<InterfaceAddress> {
        let net: ipnet::IpNet = address.parse().unwrap();
        Some(InterfaceAddress { ip: net.addr(), prefix: net.prefix_len(), network })
    }

    fn paired(a: &[&str], b: &[&str]) -> Vec<(usize, usize)> {
        let all = |network, list: &[&str]| list.iter().map(|text| at(network, text)).collect::<Vec<_>>();
        pairs(&all(1, a), &all(2, b), false)
    }

    #[test]
    fn rails_pair_within_their_subnets_and_else_by_index() {
        let (eth0, eth1) = ("10.0.0.1/24", "10.0.1.1/24");
        assert_eq!(paired(&[eth0, eth1], &["10.0.0.2/24", "10.0.1.2/24"]), [(0, 0), (1, 1)]);
        assert_eq!(paired(&[eth0, eth1], &["10.0.1.2/24", "10.0.0.2/24"]), [(0, 1), (1, 0)], "the other way round");
        assert_eq!(paired(&[eth0, eth1], &["10.0.1.2/24"]), [(1, 0)], "fewer rails");
        assert_eq!(paired(&["10.0.0.1/24", "10.0.0.2/24"], &["10.0.0.3/24", "10.0.0.4/24"]), [(0, 0), (1, 1)]);
        assert_eq!(paired(&["10.0.0.1/31", "10.0.1.1/31"], &["10.2.0.1/31", "10.2.1.1/31"]), [(0, 0), (1, 1)]);
        assert_eq!(paired(&[eth0], &["fd00::2/64", "10.9.0.1/24"]), [(0, 1)], "the same family");
        assert_eq!(pairs(&[None, None], &[None, None, None], false), [(0, 0), (1, 1)], "addresses that show nothing");
    }

    #[test]
    fn an_address_that_both_hosts_have_is_in_no_pair() {
        let docker0 = "172.17.0.1/16";
        assert_eq!(paired(&["10.0.0.1/24", docker0], &["10.0.0.2/24", docker0]), [(0, 0)]);
        assert_eq!(paired(&[docker0, "10.0.0.1/24"], &["10.0.0.2/24", docker0]), [(1, 0)]);
        assert_eq!(paired(&["172.17.0.9/16", docker0], &[docker0, "172.17.0.8/16"]), [(0, 1)]);
        assert_eq!(paired(&[docker0], &[docker0]), []);
        assert_eq!(paired(&["127.0.0.1/8", "10.0.0.1/24"], &["127.0.0.2/8", "10.0.0.2/24"]), [(1, 1)], "loopback");
        let here = [at(1, docker0), at(1, "127.0.0.2/8")];
        assert_eq!(pairs(&here, &here, false), [(0, 0), (1, 1)], "in one namespace it is one interface");
        let unknown = [at(0, docker0)];
        assert_eq!(pairs(&unknown, &unknown, false), [(0, 0)]);
    }

    #[test]
    fn link_local_addresses_pair_only_with_each_other() {
        assert_eq!(paired(&["169.254.3.1/16", "10.0.0.1/24"], &["10.0.0.2/24", "169.254.3.2/16"]), [(0, 1), (1, 0)]);
        assert_eq!(paired(&["169.254.3.1/16"], &["10.0.0.2/24"]), []);
        assert_eq!(paired(&["fe80::1/64"], &["fe80::2/64"]), [(0, 0)]);
    }

    #[test]
    fn first_rails_may_have_to_stay_together() {
        let (a, b) = ([at(1, "10.0.0.1/24"), at(1, "10.0.1.1/24")], [at(2, "10.0.1.2/24"), at(2, "10.0.0.2/24")]);
        assert_eq!(pairs(&a, &b, true), [(0, 0), (1, 1)]);
        assert_eq!(pairs(&[at(1, "10.0.0.1/24")], &[at(2, "fd00::1/64"), at(2, "10.0.0.2/24")], true), [(0, 1)]);
    }

    #[test]
    fn this_processs_namespace_has_one_number() {
        assert_eq!(network(), network());
    }

    fn address() -> impl Strategy<Value = Option<InterfaceAddress>> {
        let ips = ["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/16", "10.0.1.1/24", "172.17.0.1/16", "127.0.0.1/8"];
        let more = ["169.254.0.1/16", "169.254.0.2/16", "fe80::1/64", "fd00::1/64", "fd00::2/64", "127.0.0.2/8"];
        let all: Vec<_> = ips.into_iter().chain(more).collect();
        prop_oneof![Just(None), (prop::sample::select(all), 0u32..3).prop_map(|(text, network)| at(network, text))]
    }

    proptest! {
        /// Both ends compute the same pairs, and no rail is in two.
        #[test]
        fn both_ends_agree(
            a in prop::collection::vec(address(), 0..6),
            b in prop::collection::vec(address(), 0..6),
            first_together: bool,
        ) {
            let here = pairs(&a, &b, first_together);
            let mut there: Vec<_> = pairs(&b, &a, first_together).into_iter().map(|(i, j)| (j, i)).collect();
            there.sort_unstable();
            prop_assert_eq!(&here, &there);
            prop_assert!(here.is_sorted_by(|x, y| x.0 < y.0));
            prop_assert_eq!(here.iter().map(|pair| pair.1).collect::<HashSet<_>>().len(), here.len());
        }
    }
}
