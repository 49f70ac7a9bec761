//! Addresses of rails: their encoding for peers, and the table of connected ones.

use std::collections::HashMap;
use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use libfabric_sys as ffi;

use super::domain::{Domain, Object};
use super::provider::traits;
use crate::error::{Error, Result};
use crate::pairing::{self, InterfaceAddress};
use crate::rail::Dest;
use crate::sparse::Sparse;

/// First byte of an address, which identifies the version and the backend.
const VERSION: u8 = 0x52;

/// A bound above the length of any provider's address.
const LONGEST: usize = 512;

/// Most peers that one rail ever has. A larger index is an error, not a job size.
const MAX_DESTS: Dest = 1 << 27;

/// The prefix of a rail whose addresses are none of IP.
const NO_PREFIX: u8 = u8::MAX;

/// The length of the prefix of the subnet that libfabric's name of a fabric is, such as `10.0.0.0/24`.
pub(super) fn prefix(fabric: &str) -> Option<u8> {
    fabric.parse().ok().map(|net: ipnet::IpNet| net.prefix_len())
}

/// The address that peers need to reach `endpoint`: the version, the provider's name with its length before it, the
/// prefix of its subnet, the network namespace, and the provider's own bytes.
pub(super) fn of_endpoint(endpoint: &Object<ffi::fid_ep>, provider: &str, prefix: Option<u8>) -> Vec<u8> {
    let mut raw = [0_u8; LONGEST];
    let mut length = raw.len();
    // SAFETY: an enabled endpoint, and a place of the stated length.
    let code = unsafe { ffi::fi_getname(endpoint.as_ptr(), raw.as_mut_ptr().cast(), &raw mut length) };
    if code != 0 {
        // A peer that connects to an empty address refuses it, and its error names this provider.
        tracing::error!(provider, code, "fi_getname failed");
        length = 0;
    }
    let mut address = vec![VERSION, provider.len() as u8];
    address.extend_from_slice(provider.as_bytes());
    address.push(prefix.unwrap_or(NO_PREFIX));
    address.extend_from_slice(&prefix.map_or(0, |_| pairing::network()).to_le_bytes());
    address.extend_from_slice(&raw[..length.min(raw.len())]);
    address
}

/// The parts of an address of [`of_endpoint`]: the provider, the prefix, the network namespace and the provider's own
/// bytes.
type Parts<'a> = (&'a [u8], u8, u32, &'a [u8]);

/// The parts of an address, or a description of the error.
fn split(address: &[u8]) -> Result<Parts<'_>, String> {
    let [VERSION, length, rest @ ..] = address else {
        return Err("it is not one of a libfabric rail of this version".to_owned());
    };
    let parts = rest.split_at_checked(usize::from(*length));
    let Some((provider, [prefix, n0, n1, n2, n3, raw @ ..])) = parts else {
        return Err(format!("it ends after {} bytes", address.len()));
    };
    Ok((provider, *prefix, u32::from_le_bytes([*n0, *n1, *n2, *n3]), raw))
}

/// The interface of a rail with such an address, if it is one of IP.
pub(super) fn interface(address: &[u8]) -> Option<InterfaceAddress> {
    let (_, prefix, network, raw) = split(address).ok().filter(|parts| parts.1 != NO_PREFIX)?;
    Some(InterfaceAddress { ip: socket(raw)?.ip(), prefix, network })
}

/// The socket at which a rail with such an address listens, if it is one of IP.
pub(super) fn listens_at(address: &[u8]) -> Option<SocketAddr> {
    split(address).ok().and_then(|parts| socket(parts.3))
}

/// A provider's own bytes, if they are a `sockaddr` of IP.
fn socket(raw: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = raw.split_first_chunk()?;
    let ip: IpAddr = match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => <[u8; 4]>::try_from(rest.get(2..6)?).ok()?.into(),
        libc::AF_INET6 => <[u8; 16]>::try_from(rest.get(6..22)?).ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*rest.first_chunk()?)))
}

/// Parses an address of [`of_endpoint`]. Returns the provider's own bytes, or a description of the error.
fn parse<'a>(address: &'a [u8], own_provider: &str) -> Result<&'a [u8], String> {
    let (provider, _, _, raw) = split(address)?;
    if provider != own_provider.as_bytes() {
        let theirs = String::from_utf8_lossy(provider);
        return Err(format!(
            "it is of provider {theirs}, and this rail is of provider {own_provider}; set SYMRAIL_LIBFABRIC_PROVIDER to \
             the same on both"
        ));
    }
    if raw.is_empty() || raw.len() > LONGEST {
        return Err(format!("provider {own_provider} has no addresses of {} bytes", raw.len()));
    }
    Ok(raw)
}

/// libfabric's index of a destination.
struct Known(ffi::fi_addr_t);

impl Default for Known {
    fn default() -> Self {
        Known(ffi::FI_ADDR_UNSPEC)
    }
}

/// The peers of a rail, by destination.
pub(super) struct Peers {
    table: Object<ffi::fid_av>,
    known: Sparse<Known>,
    /// Where they listen, if their addresses are those of IP.
    listen_at: HashMap<Dest, SocketAddr>,
}

impl Peers {
    pub fn new(table: Object<ffi::fid_av>) -> Self {
        Peers { table, known: Sparse::default(), listen_at: HashMap::new() }
    }

    /// libfabric's index of a destination, if it is connected.
    #[inline]
    pub fn get(&self, dest: Dest) -> Option<ffi::fi_addr_t> {
        let Known(peer) = *self.known.get(dest);
        (peer != ffi::FI_ADDR_UNSPEC).then_some(peer)
    }

    /// Where a destination listens, if its address is one of IP.
    pub fn listens_at(&self, dest: Dest) -> Option<SocketAddr> {
        self.listen_at.get(&dest).copied()
    }

    /// Makes the rail with `address` known as `dest`, replacing an earlier one.
    pub fn connect(&mut self, domain: &Domain, provider: &str, dest: Dest, address: &[u8]) -> Result<()> {
        let malformed = |why| Error::Malformed { what: "a rail's address", pe: dest, why };
        let raw = parse(address, provider).map_err(malformed)?;
        if dest >= MAX_DESTS {
            return Err(malformed(format!("destination {dest} is not below {MAX_DESTS}")));
        }
        let Known(known) = self.known.enter(dest);
        remove(&self.table, std::mem::replace(known, ffi::FI_ADDR_UNSPEC));
        // Providers derive an address's length from its format. So a short one is padded with zeros instead of whatever
        // follows it in memory.
        let mut padded = [0_u8; LONGEST];
        padded[..raw.len()].copy_from_slice(raw);
        let mut peer = ffi::FI_ADDR_UNSPEC;
        let from = padded.as_ptr().cast::<c_void>();
        // SAFETY: an open table, one address, longer than any format, and a place for one result.
        let count = unsafe { ffi::fi_av_insert(self.table.as_ptr(), from, 1, &raw mut peer, 0, ptr::null_mut()) };
        if count != 1 {
            // Without an error number, libfabric means that the address itself is wrong.
            domain.check("fi_av_insert", if count < 0 { count } else { -ffi::FI_EINVAL })?;
        }
        *known = peer;
        self.listen_at.extend(socket(raw).map(|at| (dest, at)));
        Ok(())
    }

    /// Forgets a destination. The provider forgets it, too, if that is safe while messages from it may arrive.
    pub fn forget(&mut self, provider: &str, dest: Dest) {
        if traits(provider).connected
            && let Some(known) = self.get(dest)
        {
            remove(&self.table, known);
        }
        self.known.forget(dest);
        self.listen_at.remove(&dest);
    }
}

/// Removes an address of this table from it, if it is one.
fn remove(table: &Object<ffi::fid_av>, mut known: ffi::fi_addr_t) {
    if known != ffi::FI_ADDR_UNSPEC {
        // SAFETY: an address from this table. A failure leaves an unused entry behind.
        let _ = unsafe { ffi::fi_av_remove(table.as_ptr(), &raw mut known, 1, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart_or_refused_in_words() {
        assert_eq!(parse(b"\x52\x03shm\xff\0\0\0\0name", "shm"), Ok(&b"name"[..]));
        for (address, text) in [
            (&b""[..], "not one of a libfabric rail"),
            (b"\x52", "not one of a libfabric rail"),
            (b"\x51\x03shmname", "not one of a libfabric rail"),
            (b"\x52\x09shmname", "ends after 9 bytes"),
            (b"\x52\xffshmname", "ends after 9 bytes"),
            (b"\x52\x03shm", "ends after 5 bytes"),
            (b"\x52\x03tcp\xff\0\0\0\0name", "provider tcp"),
            (b"\x52\x03shm\xff\0\0\0\0", "no addresses of 0 bytes"),
        ] {
            let why = parse(address, "shm").err().unwrap_or_default();
            assert!(why.contains(text), "{address:?}: {why}");
        }
        let long = [&b"\x52\x03shm\xff\0\0\0\0"[..], &[1; LONGEST + 1]].concat();
        assert!(parse(&long, "shm").is_err_and(|why| why.contains("513 bytes")));
    }

    #[test]
    fn an_address_names_its_interface_if_it_has_one() {
        let with = |prefix: u8, family: i32, rest: &[u8]| {
            [&b"\x52\x03tcp"[..], &[prefix, 7, 0, 0, 0], &(family as u16).to_ne_bytes(), rest].concat()
        };
        let v4 = with(24, libc::AF_INET, &[0, 80, 10, 0, 0, 1]);
        let v6 = with(64, libc::AF_INET6, &[[0; 6].as_slice(), &[0xfd], &[0; 14], &[1]].concat());
        let text = |address: &[u8]| interface(address).map(|found| (found.to_string(), found.network));
        assert_eq!(text(&v4), Some(("10.0.0.1/24".into(), 7)));
        assert_eq!(text(&v6), Some(("fd00::1/64".into(), 7)));
        for none in [with(NO_PREFIX, libc::AF_INET, &[0; 8]), with(24, libc::AF_INET, &[0; 5]), with(24, 1, &[0; 8])] {
            assert_eq!(text(&none), None);
        }
        assert_eq!((prefix("10.0.0.0/24"), prefix("fd00::/64"), prefix("shm")), (Some(24), Some(64), None));
    }
}
