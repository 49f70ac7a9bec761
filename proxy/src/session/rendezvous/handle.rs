//! The handle of a listener, which some other channel carries to the process that dials.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use hmac::Mac;
use symrail_transport::frames::{KEY, hmac};
use symrail_transport::{Error, Result};

use super::super::Identity;
use super::stream::SECRET;

/// The size of an encoded handle in bytes.
pub const HANDLE_SIZE: usize = 128;
const MAGIC: [u8; 4] = *b"SyH1";

/// What a dialer needs: the address of the listener, the identity of its session, and the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    pub(super) address: SocketAddr,
    pub(super) identity: Identity,
    pub(super) secret: [u8; SECRET],
}

impl Handle {
    /// Encodes it: magic 4, port 2, IPv6 or mapped IPv4 address 16, scope 4, identity 16, secret 32, zeros. Integers are
    /// little endian. Whoever reads it can connect: it travels as confidentially as the job's own data.
    #[must_use]
    pub fn encode(&self) -> [u8; HANDLE_SIZE] {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let scope = if let SocketAddr::V6(address) = self.address { address.scope_id() } else { 0 };
        let mut bytes = [0; HANDLE_SIZE];
        let fields: [&[u8]; 6] = [
            &MAGIC,
            &self.address.port().to_le_bytes(),
            &ip.octets(),
            &scope.to_le_bytes(),
            &self.identity,
            &self.secret,
        ];
        for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    /// The identity of the listener's session.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A key for one purpose that only those that have the handle can compute.
    #[must_use]
    pub fn key(&self, purpose: &[u8]) -> [u8; KEY] {
        hmac(&self.secret).chain_update(purpose).finalize().into_bytes().into()
    }

    /// Reads an encoded handle.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn decode(bytes: &[u8; HANDLE_SIZE]) -> Result<Handle> {
        let malformed = |why: &str| Error::Malformed { what: "a listener's handle", pe: 0, why: why.into() };
        if bytes[..4] != MAGIC {
            return Err(malformed("it is not one of this transport's"));
        }
        let (mut ip, mut scope, mut identity, mut secret) = ([0; 16], [0; 4], [0; 16], [0; SECRET]);
        let mut rest = &bytes[6..];
        for field in [&mut ip[..], &mut scope, &mut identity, &mut secret] {
            let (front, behind) = rest.split_at(field.len());
            field.copy_from_slice(front);
            rest = behind;
        }
        let (ip, port) = (Ipv6Addr::from(ip), u16::from_le_bytes([bytes[4], bytes[5]]));
        let address = match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), port),
            None => SocketAddrV6::new(ip, port, 0, u32::from_le_bytes(scope)).into(),
        };
        Ok(Handle { address, identity, secret })
    }
}
