//! Reaches a node of the tree: a connection on which both ends have proven that they know the job's secret.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use symrail_transport::Pe;
use symrail_transport::frames::Sealer;

use super::super::Traffic;
use super::super::error::{Error, Result, Step};
use super::fault::{Fault, named};
use super::membership::Membership;
use super::node::decode_serve;
use super::socket::{self, Address};
use super::wire::{CHALLENGE, Direction, Hello, Kind, MAGIC, NONCE, Opener, REFUSAL, random, u32_at};

/// Pauses before retrying a service that closes without an answer, from the first to the longest. A service does so
/// when too many unauthenticated connections crowd it.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];

/// A connection to a node, after the hello.
pub(super) struct Dialed {
    pub address: Address,
    pub stream: TcpStream,
    pub sealer: Sealer,
    pub opener: Opener,
    /// The frames of this connection, and of those that led to it.
    pub traffic: Traffic,
}

/// A node's answer to a newcomer.
pub(super) enum Answer {
    /// The node admits it. Names the PE that runs the node, if one does.
    Welcome(Option<Pe>),
    /// Another node serves the newcomer.
    Redirect(Address),
    /// The newcomer must run the relay of these PEs, with this fan-out.
    Serve(Range<Pe>, u32),
}

/// Returns the address where a relay listens for PEs that reach it through the interface of its own connection, which
/// leads to the given address.
pub(super) type Listen<'a> = &'a mut dyn FnMut(&TcpStream, Address) -> io::Result<Address>;

/// Joins the tree at the node at this address, or at a node that this one redirects to; as a relay, if `listen` is
/// given. Returns when a node has admitted it or makes it run a relay.
pub(super) fn enter(
    membership: &Membership,
    address: Address,
    mut listen: Option<Listen<'_>>,
) -> Result<(Dialed, Answer)> {
    let deadline = Instant::now() + membership.timeout;
    let [mut pause, longest] = PAUSES;
    let (mut attempts, mut at, mut traffic) = (0, address, Traffic::default());
    loop {
        attempts += 1;
        match try_enter(membership, at, &mut listen, deadline, &mut traffic) {
            Ok((_, Answer::Redirect(next))) => {
                at = next;
                continue;
            }
            Err(Error::Connection { .. }) => {}
            // The relay may have ended since the root named it.
            Err(Error::Unreachable { .. }) if at != address => {}
            entered => return entered,
        }
        if Instant::now() + pause >= deadline {
            let seconds = membership.timeout.as_secs();
            let why = format!(
                "it closed {attempts} connections within {seconds} s (SYMRAIL_TIMEOUT_S) before it answered; \
                 do unauthenticated connections crowd its port?"
            );
            return Err(Error::Refused { pe: membership.pe, address: at.to_string(), why });
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(longest);
        at = address;
    }
}

fn try_enter(
    membership: &Membership,
    address: Address,
    listen: &mut Option<Listen<'_>>,
    deadline: Instant,
    traffic: &mut Traffic,
) -> Result<(Dialed, Answer)> {
    let mut dialed = dial(membership, address, listen, deadline)?;
    dialed.traffic = *traffic;
    let answer = dialed.answer(membership, deadline);
    *traffic = dialed.traffic;
    Ok((dialed, answer?))
}

fn dial(
    membership: &Membership,
    address: Address,
    listen: &mut Option<Listen<'_>>,
    deadline: Instant,
) -> Result<Dialed> {
    let (pe, step) = (membership.pe, Step::Join);
    let timeout = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut stream = socket::dial(address, timeout).map_err(|error| Error::Unreachable {
        pe,
        address: address.to_string(),
        reason: error.to_string(),
        remedy: "is the launcher, or the PE that created the unique id, alive?",
    })?;
    let lost = |error: io::Error| membership.broken_off(step, address, &error);
    let relay = listen.as_mut().map(|listen| listen(&stream, address)).transpose().map_err(lost)?;
    let mut challenge = [0; CHALLENGE];
    read_exact(&mut stream, &mut challenge, deadline).map_err(lost)?;
    let mut service_nonce = [0; NONCE];
    service_nonce.copy_from_slice(&challenge[MAGIC.len()..]);
    if challenge[..MAGIC.len()] != MAGIC {
        let why = "it does not speak this version of the rendezvous protocol".into();
        return Err(Error::Untrusted { pe, step, address: address.to_string(), why });
    }
    let hello = Hello { pe, n_pes: membership.n_pes, relay, nonce: random()? };
    write_all(&mut stream, &[&hello.encode(&membership.secret, &service_nonce)], deadline).map_err(lost)?;
    let key = hello.session_key(&membership.secret, &service_nonce);
    let (sealer, opener) = (Sealer::new(&key, Direction::ToService as u8), Opener::new(&key, Direction::ToPe));
    Ok(Dialed { address, stream, sealer, opener, traffic: Traffic::default() })
}

impl Dialed {
    /// Reads the node's answer to the hello.
    fn answer(&mut self, membership: &Membership, deadline: Instant) -> Result<Answer> {
        let (pe, step, address) = (membership.pe, Step::Join, self.address);
        let untrusted = |why: String| Error::Untrusted { pe, step, address: address.to_string(), why };
        let mut awaited = None;
        let mut chunk = vec![0; 4096];
        loop {
            while let Some((kind, payload)) = self.opener.next_frame().map_err(|why| untrusted(why.into()))? {
                self.traffic.messages += 1;
                let answer = match kind {
                    Kind::Welcome => Some(Answer::Welcome((payload.len() == 4).then(|| u32_at(&payload, 0)))),
                    Kind::Redirect => Address::decode(&payload).map(Answer::Redirect),
                    Kind::Serve => decode_serve(&payload).map(|(pes, fan_out)| Answer::Serve(pes, fan_out)),
                    Kind::Late => {
                        awaited = Fault::decode(&payload);
                        continue;
                    }
                    Kind::LostPes => continue,
                    Kind::Fault => {
                        let fault = Fault::decode(&payload).ok_or_else(|| untrusted("a malformed fault".into()))?;
                        return Err(fault.into_error(pe, step, &address.to_string()));
                    }
                    _ => None,
                };
                return answer.ok_or_else(|| untrusted(format!("{kind:?} instead of a welcome")));
            }
            let bytes = read_some(&mut self.stream, &mut chunk, deadline).map_err(|error| {
                let error_of = |awaited| late(membership, awaited);
                let waited = awaited.take().filter(|_| error.kind() == io::ErrorKind::TimedOut).and_then(error_of);
                waited.unwrap_or_else(|| membership.broken_off(step, address, &error))
            })?;
            if chunk[..bytes] == REFUSAL {
                let why = "this PE does not know its secret; does the id, or the launcher's pipe, belong to this job?";
                return Err(Error::Refused { pe, address: address.to_string(), why: why.into() });
            }
            self.traffic.bytes += bytes as u64;
            self.opener.feed(&chunk[..bytes]);
        }
    }
}

/// The error that the PE whose relay was awaited has not arrived.
fn late(membership: &Membership, awaited: Fault) -> Option<Error> {
    let Fault::TimedOut { missing, count, .. } = awaited else { return None };
    let (pe, seconds) = (membership.pe, membership.timeout.as_secs());
    let missing = format!("{} did not arrive, whose relay serves this PE", named(&missing, count));
    Some(Error::Timeout { pe, step: Step::Join, seconds, missing })
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket's own time-outs return as "would block".
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

pub(super) fn read_some(stream: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        stream.set_read_timeout(Some(time_left(deadline)?))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if is_timeout(&error) => {}
            result => return result,
        }
    }
}

fn read_exact(stream: &mut TcpStream, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        let bytes = read_some(stream, buffer, deadline)?;
        buffer = &mut buffer[bytes..];
    }
    Ok(())
}

/// Writes the parts one after the other; small ones in one packet.
pub(super) fn write_all(stream: &mut TcpStream, parts: &[&[u8]], deadline: Instant) -> io::Result<()> {
    let bytes = parts.concat();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(time_left(deadline)?))?;
        match stream.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => rest = &rest[bytes..],
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
