//! Which network interfaces are rails by default. Every host with containers or virtual machines has interfaces that no
//! other host can reach, often with addresses that other hosts have, too.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;

use crate::pairing::is_link_local;

/// A network interface that is no rail because other hosts are unlikely to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Why, in a few words.
    pub reason: String,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}): {}", self.name, self.address, self.reason)
    }
}

/// How unlikely other hosts reach an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    /// It may be the only network of a host: a VPN, or a bridge between virtual machines.
    Some,
    /// Its address is valid on its own link only.
    LinkLocal,
}

/// Hardware types of the kernel (`ARPHRD_*`) that are tunnels: none (tun, WireGuard), IPIP, IP6 tunnel, SIT, GRE, IP6
/// GRE.
const TUNNELS: [&str; 6] = ["65534", "768", "769", "776", "778", "823"];
/// Kinds of virtual interfaces, as in `DEVTYPE`, that carry packets inside of others.
const OVERLAYS: [&str; 4] = ["wireguard", "vxlan", "geneve", "bareudp"];
/// The bit of the flags of an interface that answers no ARP.
const IFF_NOARP: u32 = 0x80;
/// The most interfaces below one another: a bridge over a VLAN over a bond.
const MOST_BELOW: u32 = 4;

/// Of interfaces with an address, those that other hosts probably reach, by their indexes, and the others with the
/// reasons. Where none is without doubt, those with the least doubt are taken. `sys` is the folder of the kernel's
/// files, or of copies; in the kernel's own only interfaces of this process's network namespace count.
pub(super) fn sort_out(interfaces: &[(&str, IpAddr)], sys: Option<&Path>) -> (Vec<usize>, Vec<LeftOut>) {
    let own = sys.is_none();
    let class = sys.unwrap_or(Path::new("/sys")).join("class/net");
    let doubts: Vec<_> = interfaces
        .iter()
        .map(|&(name, ip)| {
            let reason = || if own && !is_of_this_namespace(&class, name) { None } else { oddity(&class, name) };
            if is_link_local(ip) {
                Some((Doubt::LinkLocal, "it has only a link-local address".to_owned()))
            } else {
                reason().map(|reason| (Doubt::Some, reason))
            }
        })
        .collect();
    let least = doubts.iter().map(|doubt| doubt.as_ref().map(|doubt| doubt.0)).min().flatten();
    let is_taken = |at: &usize| doubts[*at].as_ref().map(|doubt| doubt.0) <= least;
    let left_out = |at: usize| {
        let reason = doubts[at].as_ref().map_or_else(String::new, |doubt| doubt.1.clone());
        LeftOut { name: interfaces[at].0.to_owned(), address: interfaces[at].1.to_string(), reason }
    };
    let (taken, others): (Vec<usize>, Vec<usize>) = (0..interfaces.len()).partition(is_taken);
    (taken, others.into_iter().map(left_out).collect())
}

/// Why other hosts are unlikely to reach an interface, from the kernel's files about it. `None` if nothing speaks
/// against it, or if nothing is known.
fn oddity(class: &Path, name: &str) -> Option<String> {
    let folder = class.join(name);
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default().trim().to_owned();
    let is_device = has_device(class, name, MOST_BELOW);
    if let Ok(master) = fs::read_link(folder.join("master")) {
        let master = class.join(master.file_name()?);
        if master.join("bridge").exists() || master.join("bonding").exists() {
            return Some(format!("it is a port of {}", master.file_name()?.display()));
        }
    }
    if folder.join("bridge").exists() && !is_device {
        return Some("it is a bridge without a network device, for containers or virtual machines".into());
    }
    let kind = read("uevent").lines().find_map(|line| line.strip_prefix("DEVTYPE=").map(str::to_owned));
    let overlay = kind.filter(|kind| OVERLAYS.contains(&kind.as_str()));
    if overlay.is_some() || TUNNELS.contains(&read("type").as_str()) || folder.join("tun_flags").exists() {
        return Some("it is a tunnel".into());
    }
    if read("carrier") == "0" {
        return Some("it has no carrier".into());
    }
    let flags = u32::from_str_radix(read("flags").trim_start_matches("0x"), 16).unwrap_or(0);
    (flags & IFF_NOARP != 0 && !is_device).then(|| "it answers no ARP".into())
}

/// Whether a network device, or a virtual machine's, is behind an interface.
fn has_device(class: &Path, name: &str, below: u32) -> bool {
    let folder = class.join(name);
    let lower = || fs::read_dir(&folder).into_iter().flatten().flatten();
    let names = lower().filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("lower_")?.to_owned()));
    folder.join("device").exists() || (below > 0 && { names }.any(|lower| has_device(class, &lower, below - 1)))
}

/// Whether the kernel's files about an interface are those of the one with this name in this process's network
/// namespace. `/sys` shows the namespace in which it was mounted.
fn is_of_this_namespace(class: &Path, name: &str) -> bool {
    let read = |file: &str| fs::read_to_string(class.join(name).join(file)).unwrap_or_default().trim().to_owned();
    let address = |found: nix::ifaddrs::InterfaceAddress| {
        let link = found.address?.as_link_addr()?.addr()?;
        Some(link.map(|byte| format!("{byte:02x}")).join(":"))
    };
    let index = nix::net::if_::if_nametoindex(name).is_ok_and(|index| read("ifindex") == index.to_string());
    let Ok(all) = getifaddrs() else { return false };
    // A tunnel has no hardware address.
    let hardware = all.filter(|found| found.interface_name == name).find_map(address);
    index && hardware.is_none_or(|hardware| read("address") == hardware || read("address").is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A folder like `/sys` with these interfaces, each with files, folders (`name/`) and links (`name -> target`).
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str, interfaces: &[(&str, &[(&str, &str)])]) -> Sys {
            let at = std::env::temp_dir().join(format!("symrail-net-{name}-{}", std::process::id()));
            for (interface, entries) in interfaces {
                let folder = at.join("class/net").join(interface);
                fs::create_dir_all(&folder).unwrap();
                for (file, text) in *entries {
                    match (file.strip_suffix('/'), text.strip_prefix("-> ")) {
                        (Some(inside), _) => fs::create_dir(folder.join(inside)).unwrap(),
                        (_, Some(target)) => symlink(Path::new("..").join(target), folder.join(file)).unwrap(),
                        _ => fs::write(folder.join(file), text).unwrap(),
                    }
                }
            }
            Sys(at)
        }

        /// The names of the interfaces that are rails, and the others with the reasons.
        fn sort_out(&self, interfaces: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
            let given: Vec<_> = interfaces.iter().map(|(name, ip)| (*name, ip.parse().unwrap())).collect();
            let (taken, left_out) = sort_out(&given, Some(&self.0));
            (
                taken.into_iter().map(|at| given[at].0.into()).collect(),
                left_out.iter().map(ToString::to_string).collect(),
            )
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn interfaces_of_containers_and_virtual_machines_are_left_out() {
        let sys = Sys::new(
            "host",
            &[
                ("eth0", &[("device/", ""), ("carrier", "1\n"), ("type", "1\n"), ("flags", "0x1003\n")]),
                ("docker0", &[("bridge/", ""), ("carrier", "0\n")]),
                ("cni0", &[("bridge/", ""), ("carrier", "1\n"), ("lower_veth1", "-> veth1")]),
                ("veth1", &[("master", "-> cni0"), ("carrier", "1\n")]),
                ("tun0", &[("tun_flags", "0x1001\n"), ("type", "65534\n"), ("flags", "0x1091\n")]),
                ("wg0", &[("uevent", "DEVTYPE=wireguard\nINTERFACE=wg0\n")]),
                ("eth1", &[("device/", ""), ("carrier", "0\n")]),
                ("dummy0", &[("type", "1\n"), ("flags", "0x10c3\n"), ("carrier", "1\n")]),
                ("eth2", &[("device/", ""), ("carrier", "1\n")]),
            ],
        );
        let (taken, left_out) = sys.sort_out(&[
            ("docker0", "172.17.0.1"),
            ("eth0", "10.0.0.1"),
            ("cni0", "10.88.0.1"),
            ("veth1", "10.88.0.7"),
            ("tun0", "10.8.0.2"),
            ("wg0", "10.9.0.2"),
            ("eth1", "10.0.1.1"),
            ("dummy0", "10.96.0.10"),
            ("eth2", "169.254.7.1"),
        ]);
        assert_eq!(taken, ["eth0"]);
        assert_eq!(
            left_out,
            [
                "docker0 (172.17.0.1): it is a bridge without a network device, for containers or virtual machines",
                "cni0 (10.88.0.1): it is a bridge without a network device, for containers or virtual machines",
                "veth1 (10.88.0.7): it is a port of cni0",
                "tun0 (10.8.0.2): it is a tunnel",
                "wg0 (10.9.0.2): it is a tunnel",
                "eth1 (10.0.1.1): it has no carrier",
                "dummy0 (10.96.0.10): it answers no ARP",
                "eth2 (169.254.7.1): it has only a link-local address",
            ]
        );
    }

    #[test]
    fn a_bridge_over_a_network_device_and_a_containers_interface_are_rails() {
        let sys = Sys::new(
            "bridged",
            &[
                ("br0", &[("bridge/", ""), ("carrier", "1\n"), ("lower_bond0.5", "-> bond0.5")]),
                ("bond0.5", &[("lower_bond0", "-> bond0"), ("master", "-> br0")]),
                ("bond0", &[("bonding/", ""), ("lower_eno1", "-> eno1")]),
                ("eno1", &[("device/", ""), ("master", "-> bond0")]),
                ("eth0", &[("carrier", "1\n"), ("type", "1\n"), ("flags", "0x1003\n")]),
            ],
        );
        let (taken, left_out) =
            sys.sort_out(&[("br0", "10.0.0.1"), ("eth0", "10.1.0.1"), ("eno1", "10.2.0.1"), ("unknown", "10.3.0.1")]);
        assert_eq!(taken, ["br0", "eth0", "unknown"]);
        assert_eq!(left_out, ["eno1 (10.2.0.1): it is a port of bond0"]);
    }

    #[test]
    fn where_all_are_doubtful_the_least_doubtful_are_rails() {
        let sys = Sys::new("vpn", &[("tun0", &[("tun_flags", "0x1001\n")]), ("virbr0", &[("bridge/", "")])]);
        let all = [("eth0", "169.254.0.1"), ("tun0", "10.8.0.2"), ("virbr0", "192.168.122.1")];
        assert_eq!(sys.sort_out(&all).0, ["tun0", "virbr0"]);
        assert_eq!(sys.sort_out(&all[..1]), (vec!["eth0".into()], vec![]));
    }

    #[test]
    fn files_of_another_namespace_prove_nothing() {
        let sys = Sys::new("elsewhere", &[("lo", &[("ifindex", "7777\n"), ("address", "00:00:00:00:00:00\n")])]);
        assert!(!is_of_this_namespace(&sys.0.join("class/net"), "lo"));
        assert!(!is_of_this_namespace(&sys.0.join("class/net"), "none0"));
    }
}
