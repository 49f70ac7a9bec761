//! Joining by a unique id: one PE creates it, the program passes it to every PE, and all open it.
//!
//! ```no_run
//! # use symrail::bootstrap::uid;
//! # fn broadcast(_: Option<String>) -> String { String::new() }
//! # fn job(pe: u32, n_pes: u32) -> Result<(), symrail::bootstrap::Error> {
//! let id = if pe == 0 { Some(uid::create(None)?.to_hex()) } else { None };
//! let id = uid::UniqueId::from_hex(&broadcast(id))?; // MPI_Bcast, a file, a key-value store …
//! let bootstrap = uid::open(id, pe, n_pes)?;
//! # Ok(()) }
//! ```
//! The creating process serves the rendezvous on one interface until the PEs that joined have left; its end waits for
//! them, at most 5 s. If it is killed earlier, the others' steps fail. The id contains the job's secret: any process that reads it can join.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use symrail_transport::Pe;
use symrail_transport::topology::{address_by_ifname, address_of};

use super::error::{Error, Result};
use super::rendezvous::{Address, Client, FAN_OUT, Membership, ONE_INTERFACE, Options, Secret, Server, Shape, nearby};
use super::{Bootstrap, LostPe, Traffic, leaving, variables};
use crate::interrupt::GoOn;

/// Holds the unique id in hexadecimal.
pub const UID: &str = "SYMRAIL_BOOTSTRAP_UID";
/// Holds this PE's number.
pub const PE: &str = "SYMRAIL_BOOTSTRAP_PE";
/// Holds the number of PEs.
pub const N_PES: &str = "SYMRAIL_BOOTSTRAP_N_PES";

const KIND: &str = "uid";
const REMEDY: &str = "set SYMRAIL_BOOTSTRAP_UID, SYMRAIL_BOOTSTRAP_PE and SYMRAIL_BOOTSTRAP_N_PES";
const MAGIC: [u8; 4] = *b"SYU\x01";
/// The default limit of joining and of a step; also the default of `SYMRAIL_TIMEOUT_S`.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the service waits for the others to leave after the PEs of the creating process.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The services of the ids that this process created.
static CREATED: Mutex<Vec<Service>> = Mutex::new(Vec::new());

/// The PEs of this process that have left their jobs, the last ones.
static LEFT: Mutex<VecDeque<(UniqueId, Pe)>> = Mutex::new(VecDeque::new());
const MAX_LEFT: usize = 256;

struct Service {
    id: UniqueId,
    server: Server,
    /// How many PEs of this process have opened the id and not left.
    members: usize,
}

/// The address where a job joins, and its secret: 64 bytes to be passed unchanged.
///
/// Bytes: magic 4 · [`Address`] 20 · secret 32 · checksum 8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UniqueId::LEN]);

impl UniqueId {
    /// Its length in bytes.
    pub const LEN: usize = 64;

    fn new(address: Address, secret: &Secret) -> UniqueId {
        let mut bytes = [0; UniqueId::LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..24].copy_from_slice(&Address::encode(Some(address)));
        bytes[24..56].copy_from_slice(secret.bytes());
        let sum = checksum(&bytes);
        bytes[56..].copy_from_slice(&sum);
        UniqueId(bytes)
    }

    /// The bytes to pass to the PEs.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; UniqueId::LEN] {
        self.0
    }

    /// Reads an id from bytes.
    ///
    /// # Errors
    /// Another length, version or checksum.
    pub fn from_bytes(bytes: &[u8]) -> Result<UniqueId> {
        let refuse = |why: String| Error::UniqueId { why };
        let id: [u8; UniqueId::LEN] = bytes
            .try_into()
            .map_err(|_| refuse(format!("it has {} bytes instead of {}", bytes.len(), UniqueId::LEN)))?;
        if id[..4] != MAGIC {
            return Err(refuse("it is not an id of this version".into()));
        }
        if checksum(&id) != id[56..] || Address::decode(&id[4..24]).is_none() {
            return Err(refuse("its checksum is wrong".into()));
        }
        Ok(UniqueId(id))
    }

    /// 128 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads an id from hexadecimal digits; space around them is ignored.
    ///
    /// # Errors
    /// As for [`UniqueId::from_bytes`], and characters other than digits.
    pub fn from_hex(text: &str) -> Result<UniqueId> {
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let pairs = text.trim().as_bytes().chunks(2);
        let bytes = pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect::<Option<Vec<u8>>>();
        let why = || Error::UniqueId { why: "it is not made of pairs of hexadecimal digits".into() };
        UniqueId::from_bytes(&bytes.ok_or_else(why)?)
    }

    /// The service's address.
    #[must_use]
    pub fn address(&self) -> Address {
        // Checked when the id was read; a port of zero cannot be reached.
        Address::decode(&self.0[4..24]).unwrap_or(Address::Unix(0))
    }

    fn secret(&self) -> Secret {
        let mut secret = [0; Secret::LEN];
        secret.copy_from_slice(&self.0[24..56]);
        Secret(secret)
    }
}

/// Shows the address but not the secret, since the text ends up in logs.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({}, ..)", self.address())
    }
}

fn checksum(id: &[u8; UniqueId::LEN]) -> [u8; 8] {
    let mut sum = [0; 8];
    sum.copy_from_slice(&Sha256::digest(&id[..56])[..8]);
    sum
}

/// Creates an id and starts its rendezvous service in this process, on one interface of this machine.
///
/// `None` stands for the loopback interface, or what replaces it (see [`nearby`]): PEs of this machine only. For PEs on
/// other machines pass the address of the interface through which they reach this machine.
///
/// # Errors
/// An address that belongs to no interface, or an error of the system.
pub fn create(interface: Option<IpAddr>) -> Result<UniqueId> {
    create_tree(interface, Shape::FanOut(FAN_OUT))
}

/// As [`create`], on an interface that a program's user names by its address or its name. Without one
/// `NCCL_SOCKET_IFNAME` chooses it as NCCL does, if that is set.
///
/// # Errors
/// As for [`create`]; no interface of that name is up.
pub fn create_on(interface: Option<&str>) -> Result<UniqueId> {
    const IFNAME: &str = "NCCL_SOCKET_IFNAME";
    let none = |address: String| {
        let reason = "no interface of this machine that is up has this address or name".into();
        Error::Service { address, reason, remedy: ONE_INTERFACE }
    };
    let rule = std::env::var(IFNAME).ok().filter(|rule| !rule.is_empty());
    let address = match (interface, rule) {
        (Some(name), _) => Some(address_of(name).ok_or_else(|| none(name.to_owned()))?),
        (None, Some(rule)) => Some(address_by_ifname(&rule).ok_or_else(|| none(format!("{IFNAME}={rule}")))?),
        (None, None) => None,
    };
    create(address)
}

/// As [`create`], with another tree.
///
/// # Errors
/// As for [`create`].
pub fn create_tree(interface: Option<IpAddr>, shape: Shape) -> Result<UniqueId> {
    // The service has a thread; setting variables is unsafe after that.
    symrail_transport::ofi::variables::set_defaults();
    let interface = interface.or_else(nearby);
    if let Some(IpAddr::V6(ip)) = interface
        && ip.is_unicast_link_local()
    {
        let reason = "a link-local address means another interface on every machine".into();
        return Err(Error::Service { address: ip.to_string(), reason, remedy: ONE_INTERFACE });
    }
    let server = Server::start(interface, &Secret::generate()?, Options { shape, ..Options::default() })?;
    let id = UniqueId::new(server.address(), server.secret());
    lock().push(Service { id, server, members: 0 });
    Ok(id)
}

fn lock() -> std::sync::MutexGuard<'static, Vec<Service>> {
    CREATED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the job of an id as PE `pe` of `n_pes`. Waits at most 60 s for the others in every step.
///
/// # Errors
/// The service has ended, the PE number is taken or does not exist, or PEs disagree on `n_pes`.
pub fn open(id: UniqueId, pe: Pe, n_pes: u32) -> Result<Box<dyn Bootstrap>> {
    Ok(Box::new(open_within(id, pe, n_pes, TIMEOUT)?))
}

/// As [`open`], with a limit for joining and for each step.
///
/// # Errors
/// As for [`open`]; at once for a PE of this process that has left the job.
pub fn open_within(id: UniqueId, pe: Pe, n_pes: u32, timeout: Duration) -> Result<Member> {
    if LEFT.lock().unwrap_or_else(PoisonError::into_inner).contains(&(id, pe)) {
        let why = "this PE has left its job. A program that passes ids through a store under keys that repeat has \
                   read an old one, as torch.distributed does when processes of torchrun call init_process_group again: \
                   make the others wait until the first has stored the new one"
            .into();
        return Err(Error::UniqueId { why });
    }
    let membership = Membership { address: id.address(), secret: id.secret(), pe, n_pes, timeout };
    let client = Client::join(&membership, KIND)?;
    Ok(Member { client, host: Host::of(id), _left: Left(id, pe) })
}

/// Joins the job whose id, PE and size are in the environment.
pub(super) fn open_from_env(timeout: Duration) -> Result<Member> {
    let id = UniqueId::from_hex(&variables::text(KIND, UID, REMEDY)?)?;
    let pe = variables::number(KIND, PE, REMEDY)?;
    open_within(id, pe, variables::number(KIND, N_PES, REMEDY)?, timeout)
}

/// A PE that joined by a unique id. Drop reports that the PE is done. It waits for no other PE: programs that pass the
/// next id under the same key of a store (torch does) would give an old one to PEs that left before the creator.
pub struct Member {
    // In this order: the PE leaves before the service waits for the others to leave.
    client: Client,
    host: Option<Host>,
    _left: Left,
}

/// Notes that a PE has left its job.
struct Left(UniqueId, Pe);

impl Drop for Left {
    fn drop(&mut self) {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.truncate(MAX_LEFT - 1);
        left.push_front((self.0, self.1));
    }
}

impl Bootstrap for Member {
    fn pe(&self) -> Pe {
        self.client.pe()
    }

    fn n_pes(&self) -> u32 {
        self.client.n_pes()
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.client.allgather(mine)
    }

    fn barrier(&mut self) -> Result<()> {
        self.client.barrier()
    }

    fn finish(&mut self) -> Result<()> {
        self.client.finish()
    }

    fn lost_pes(&mut self) -> &[LostPe] {
        self.client.lost_pes()
    }

    fn set_stage(&mut self, stage: Option<&'static str>) {
        self.client.set_stage(stage);
    }

    fn set_interrupt(&mut self, go_on: GoOn) {
        self.client.set_interrupt(go_on);
    }

    fn abort(&mut self, code: i32, why: &str) {
        let created = lock();
        let host = self.host.as_ref().and_then(|host| created.iter().find(|service| service.id == host.0));
        self.client.abort_beside(host.map(|service| &service.server), code, why);
    }

    fn traffic(&self) -> Traffic {
        self.client.traffic()
    }

    fn describe(&self) -> String {
        self.client.describe()
    }
}

/// Keeps alive the service of an id that this process created, while PEs in this process use it.
struct Host(UniqueId);

impl Host {
    fn of(id: UniqueId) -> Option<Host> {
        let mut created = lock();
        let service = created.iter_mut().find(|service| service.id == id)?;
        service.members += 1;
        Some(Host(id))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut created = lock();
        let Some(at) = created.iter().position(|service| service.id == self.0) else { return };
        created[at].members -= 1;
        if created[at].members == 0 {
            let service = created.swap_remove(at);
            // Other threads may create and open ids while this one starts a thread.
            drop(created);
            leaving::wait_aside(move || {
                service.server.wait_until_empty(LEAVE_TIMEOUT);
            });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_hex_and_bytes_and_show_no_secret() {
        for address in ["127.0.0.1:4711", "[2001:db8::7]:65535", "unix-abstract:symrail-0123456789abcdef"] {
            let id = UniqueId::new(address.parse().unwrap(), &Secret([0xcd; Secret::LEN]));
            assert_eq!(UniqueId::from_hex(&format!(" {}\n", id.to_hex())).unwrap(), id);
            assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
            assert_eq!(id.address(), address.parse().unwrap());
            assert_eq!(id.secret(), Secret([0xcd; Secret::LEN]));
            assert_eq!(format!("{id:?}"), format!("UniqueId({address}, ..)"));
        }
    }

    #[test]
    fn a_pe_that_has_left_its_job_does_not_join_it_again() {
        let (id, limit) = (create(None).unwrap(), Duration::from_secs(20));
        drop(open_within(id, 0, 1, limit).unwrap());
        let error = open_within(id, 0, 1, limit).err().unwrap().to_string();
        assert!(error.contains("has left its job"), "{error}");
        drop(open_within(create(None).unwrap(), 0, 1, limit).unwrap());
    }

    #[test]
    fn damaged_ids_are_refused() {
        let id = UniqueId::new("127.0.0.1:1".parse().unwrap(), &Secret([1; Secret::LEN]));
        for at in 0..UniqueId::LEN {
            let mut bytes = id.to_bytes();
            bytes[at] ^= 1;
            assert!(UniqueId::from_bytes(&bytes).is_err(), "byte {at}");
        }
        let hex = id.to_hex();
        for text in ["", &hex[..126], &hex[..127], &format!("{hex}00"), &hex.replace('0', "x"), "ä"] {
            assert!(UniqueId::from_hex(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_service_listens_on_one_interface_only() {
        for ip in ["0.0.0.0", "::", "224.0.0.1", "fe80::1"] {
            let error = create(Some(ip.parse().unwrap())).unwrap_err().to_string();
            assert!(error.contains(ip), "{error}");
        }
        // An address that no machine has (it is reserved for documentation).
        assert!(matches!(create(Some("192.0.2.1".parse().unwrap())), Err(Error::Service { .. })));
        assert!(create_on(Some("lo")).unwrap().address().ip().unwrap().ip().is_loopback());
        assert!(create_on(Some("no such")).unwrap_err().to_string().contains("no such"));
    }
}
