//! A PE's end of the rendezvous: joins once, then takes part in one step after the other.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::super::error::{Error, Result, Step};
use super::super::{Bootstrap, Gone, MAX_PES, Traffic};
use super::fault::{Fault, named};
use super::round::{Contribution, unpack};
use super::wire::{
    CHALLENGE, Direction, FINISHED, Hello, Kind, MAGIC, MAX_CONTRIBUTION, NONCE, Opener, REFUSAL, Sealer, Secret,
    random,
};
use crate::interrupt::{GoOn, InterruptPoll, LOOK};

/// How much longer than the service a PE waits: the service knows who is missing, so it should speak first.
const GRACE: Duration = Duration::from_secs(5);
/// How soon a service that closes without a word is tried again: it does so when unauthenticated connections crowd it.
/// From the first pause to the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];
/// The longest that leaving or aborting may take.
const PARTING: Duration = Duration::from_secs(2);

/// A PE's identity, and its way to the rendezvous service.
#[derive(Debug, Clone)]
pub struct Membership {
    /// The service's address.
    pub address: SocketAddr,
    /// The job's key.
    pub secret: Secret,
    /// This PE.
    pub pe: Pe,
    /// The number of PEs in the job.
    pub n_pes: u32,
    /// The longest that joining or a step may take.
    pub timeout: Duration,
}

/// A PE that has joined. Dropping it says that the PE is done.
pub struct Client {
    membership: Membership,
    /// The source of the membership, for [`Bootstrap::describe`].
    origin: &'static str,
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
    /// Collective steps started so far.
    steps: u64,
    /// The first fault, if any: every later step fails with it at once.
    broken: Option<Error>,
    /// Who takes part in nothing more, as the service has told.
    gone: Vec<Gone>,
    /// It has said that it leaves.
    left: bool,
    /// What may end waits.
    go_on: Option<GoOn>,
    traffic: Traffic,
}

impl Client {
    /// Joins the job.
    ///
    /// # Errors
    /// A service that cannot be reached, that does not know the secret, or that refuses this PE.
    pub fn join(membership: &Membership, origin: &'static str) -> Result<Client> {
        let (pe, n_pes) = (membership.pe, membership.n_pes);
        if pe >= n_pes || n_pes > MAX_PES {
            let why = if n_pes > MAX_PES {
                format!("{n_pes} PEs are above the limit of {MAX_PES}")
            } else {
                format!("the job has {n_pes} PEs, numbered from 0")
            };
            return Err(Error::Refused { pe, address: membership.address.to_string(), why });
        }
        let deadline = Instant::now() + membership.timeout;
        let [mut pause, longest] = PAUSES;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Client::try_join(membership, origin, deadline) {
                Err(Error::Connection { .. }) if Instant::now() + pause < deadline => {
                    std::thread::sleep(pause);
                    pause = (pause * 3 / 2).min(longest);
                }
                Err(Error::Connection { address, .. }) => {
                    let seconds = membership.timeout.as_secs();
                    let why = format!(
                        "it closed {attempts} connections within {seconds} s (SYMRAIL_TIMEOUT_S) before it answered; \
                         do unauthenticated connections crowd its port?"
                    );
                    return Err(Error::Refused { pe, address, why });
                }
                joined => return joined,
            }
        }
    }

    fn try_join(membership: &Membership, origin: &'static str, deadline: Instant) -> Result<Client> {
        let (pe, step) = (membership.pe, Step::Join);
        let address = membership.address.to_string();
        let timeout = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut stream =
            TcpStream::connect_timeout(&membership.address, timeout).map_err(|error| Error::Unreachable {
                pe,
                address: address.clone(),
                reason: error.to_string(),
                remedy: "is the launcher, or the PE that created the unique id, alive?",
            })?;
        let lost = |error: io::Error| membership.broken_off(step, &error);
        stream.set_nodelay(true).map_err(lost)?;
        let mut challenge = [0; CHALLENGE];
        read_exact(&mut stream, &mut challenge, deadline).map_err(lost)?;
        let mut service_nonce = [0; NONCE];
        service_nonce.copy_from_slice(&challenge[MAGIC.len()..]);
        if challenge[..MAGIC.len()] != MAGIC {
            let why = "it does not speak this version of the rendezvous protocol".into();
            return Err(Error::Untrusted { pe, step, address, why });
        }
        let hello = Hello { pe, n_pes: membership.n_pes, nonce: random()? };
        write_all(&mut stream, &[&hello.encode(&membership.secret, &service_nonce)], deadline).map_err(lost)?;
        let key = hello.session_key(&membership.secret, &service_nonce);
        let (sealer, opener) = (Sealer::new(&key, Direction::ToService), Opener::new(&key, Direction::ToPe));
        let membership = membership.clone();
        let (steps, broken, gone, left, go_on, traffic) = (0, None, Vec::new(), false, None, Traffic::default());
        let mut client =
            Client { membership, origin, stream, sealer, opener, steps, broken, gone, left, go_on, traffic };
        match client.receive(step, deadline)? {
            (Kind::Welcome, _) => Ok(client),
            (kind, _) => Err(client.untrusted(step, &format!("{kind:?} instead of a welcome"))),
        }
    }

    /// The address of the service that it joined.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.membership.address
    }

    /// The next frame; a fault is an error.
    fn receive(&mut self, step: Step, deadline: Instant) -> Result<(Kind, Vec<u8>)> {
        // Not on the stack: the calling thread's may be small.
        let mut chunk = vec![0; 32 << 10];
        loop {
            match self.opener.next_frame() {
                Ok(Some((Kind::Fault, payload))) => return Err(self.take_fault(step, &payload)),
                Ok(Some((Kind::Gone, payload))) => {
                    self.gone.extend(Fault::decode(&payload).and_then(Fault::into_gone));
                    continue;
                }
                Ok(Some(frame)) => {
                    self.traffic.messages += 1;
                    return Ok(frame);
                }
                Ok(None) => {}
                Err(why) => return Err(self.untrusted(step, why)),
            }
            let bytes = self.read(step, &mut chunk, deadline)?;
            if step == Step::Join && chunk[..bytes] == REFUSAL {
                let Membership { pe, address, .. } = self.membership;
                let why = "this PE does not know its secret; does the id, or the launcher's pipe, belong to this job?";
                return Err(Error::Refused { pe, address: address.to_string(), why: why.into() });
            }
            self.traffic.bytes += bytes as u64;
            self.opener.feed(&chunk[..bytes]);
        }
    }

    /// What comes next, unless the wait for it is ended from within.
    fn read(&mut self, step: Step, chunk: &mut [u8], deadline: Instant) -> Result<usize> {
        let mut interrupt_poll = InterruptPoll::new(self.go_on.as_ref());
        loop {
            let until = if self.go_on.is_some() { deadline.min(Instant::now() + LOOK) } else { deadline };
            match read_some(&mut self.stream, chunk, until) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && until < deadline => {
                    if let Some(waited) = interrupt_poll.ended() {
                        return Err(Error::Interrupted { pe: self.membership.pe, step, waited });
                    }
                }
                read => return read.map_err(|error| self.membership.broken_off(step, &error)),
            }
        }
    }

    /// What a fault means for this PE, which is in `step`.
    fn take_fault(&mut self, step: Step, payload: &[u8]) -> Error {
        let Some(fault) = Fault::decode(payload) else { return self.untrusted(step, "a malformed fault") };
        self.gone.extend(fault.clone().into_gone());
        fault.into_error(self.membership.pe, step, &self.membership.address.to_string())
    }

    /// Takes what has arrived while this PE was in no step.
    fn look(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        self.stream.set_nonblocking(true)?;
        let read = self.stream.read(&mut chunk);
        self.stream.set_nonblocking(false)?;
        self.opener.feed(&chunk[..read?]);
        // The step that this PE would take next is the one that fails.
        let step = Step::Barrier(self.steps + 1);
        while let Ok(Some((kind, payload))) = self.opener.next_frame() {
            match kind {
                Kind::Gone => self.gone.extend(Fault::decode(&payload).and_then(Fault::into_gone)),
                Kind::Fault => {
                    let error = self.take_fault(step, &payload);
                    self.broken.get_or_insert(error);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn untrusted(&self, step: Step, why: &str) -> Error {
        let Membership { pe, address, .. } = self.membership;
        Error::Untrusted { pe, step, address: address.to_string(), why: why.to_owned() }
    }

    /// Tells the service, once, that this PE leaves.
    fn leave(&mut self, word: &[u8]) {
        if !std::mem::replace(&mut self.left, true) {
            // Nobody is left to tell when this fails, and the service notices a closed connection anyway.
            let _ = self.send(Kind::Bye, word, Instant::now() + PARTING);
        }
    }

    fn send(&mut self, kind: Kind, payload: &[u8], deadline: Instant) -> io::Result<()> {
        let (header, tag) = self.sealer.seal(kind, payload);
        self.traffic.messages += 1;
        self.traffic.bytes += (header.len() + payload.len() + tag.len()) as u64;
        write_all(&mut self.stream, &[&header, payload, &tag], deadline)
    }

    /// Contributes to a step and waits for its result: everybody's data, or nothing for a barrier.
    fn collect(&mut self, step: Step, number: u64, data: &[u8], patient: bool) -> Result<Vec<Vec<u8>>> {
        let timeout = self.membership.timeout;
        let mut deadline = Instant::now() + timeout + GRACE;
        let mut warned = false;
        let contribution = Contribution { step, timeout, patient, data }.encode();
        if let Err(error) = self.send(Kind::Contribute, &contribution, deadline) {
            // If the service broke the job, the reason was sent before the connection closed: prefer that.
            let error = self.membership.broken_off(step, &error);
            return match self.receive(step, Instant::now() + PARTING) {
                Err(Error::Connection { .. } | Error::Timeout { .. }) | Ok(_) => Err(error),
                Err(reason) => Err(reason),
            };
        }
        let parts = match step {
            Step::Allgather(_) => self.membership.n_pes as usize,
            _ => 0,
        };
        let mut all = Vec::new();
        loop {
            match self.receive(step, deadline)? {
                (Kind::Result, payload) => {
                    unpack(&payload, number, &mut all).map_err(|why| self.untrusted(step, why))?;
                }
                (Kind::Late, payload) => {
                    deadline = Instant::now() + timeout + GRACE;
                    if !std::mem::replace(&mut warned, true) {
                        self.tell_of_late(step, &payload);
                    }
                    continue;
                }
                (kind, _) => return Err(self.untrusted(step, &format!("{kind:?} instead of a result"))),
            }
            if all.len() > parts {
                return Err(self.untrusted(step, "a result for more PEs than the job has"));
            }
            if all.len() == parts {
                return Ok(all);
            }
        }
    }

    /// Says once a step that PEs are late and live.
    fn tell_of_late(&self, step: Step, late: &[u8]) {
        let Some(Fault::TimedOut { seconds, missing, count }) = Fault::decode(late) else { return };
        let (pe, late) = (self.membership.pe, named(&missing, count));
        tracing::warn!(
            "PE {pe} has waited in {step} for {seconds} s and goes on waiting; late, with living processes: {late}"
        );
    }

    fn run(&mut self, step: impl Fn(u64) -> Step, data: &[u8], patient: bool) -> Result<Vec<Vec<u8>>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let number = self.steps + 1;
        let step = step(number);
        if data.len() > MAX_CONTRIBUTION {
            let pe = self.membership.pe;
            return Err(Error::TooLarge { pe, step, bytes: data.len(), limit: MAX_CONTRIBUTION });
        }
        self.steps = number;
        let result = self.collect(step, number, data, patient);
        self.broken = result.as_ref().err().cloned();
        result
    }
}

impl Bootstrap for Client {
    fn pe(&self) -> Pe {
        self.membership.pe
    }

    fn n_pes(&self) -> u32 {
        self.membership.n_pes
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.run(Step::Allgather, mine, true)
    }

    fn barrier(&mut self) -> Result<()> {
        self.run(Step::Barrier, &[], true).map(drop)
    }

    fn finish(&mut self) -> Result<()> {
        self.run(Step::Barrier, &[], false)?;
        self.leave(FINISHED);
        Ok(())
    }

    fn gone(&mut self) -> &[Gone] {
        // Whatever is wrong with the connection is the next step's error.
        let _ = self.look();
        &self.gone
    }

    fn set_interrupt(&mut self, go_on: GoOn) {
        self.go_on = Some(go_on);
    }

    fn abort(&mut self, code: i32, why: &str) {
        let why = &why.as_bytes()[..why.len().min(1024)];
        let payload = [&code.to_le_bytes(), why].concat();
        let _ = self.send(Kind::Abort, &payload, Instant::now() + PARTING);
        let Membership { pe, .. } = self.membership;
        self.broken = Some(Error::Aborted { pe, peer: pe, code, why: String::from_utf8_lossy(why).into_owned() });
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn describe(&self) -> String {
        let Membership { address, pe, n_pes, .. } = self.membership;
        format!("{}: PE {pe} of {n_pes}, rendezvous at {address}", self.origin)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.leave(&[]);
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl Membership {
    fn broken_off(&self, step: Step, error: &io::Error) -> Error {
        let pe = self.pe;
        match error.kind() {
            io::ErrorKind::TimedOut => Error::Timeout {
                pe,
                step,
                seconds: self.timeout.as_secs(),
                missing: match step {
                    Step::Join => format!(
                        "no welcome from the rendezvous service at {}; a PE that joins again waits until all have left",
                        self.address
                    ),
                    _ => format!("the rendezvous service at {} does not answer", self.address),
                },
            },
            io::ErrorKind::UnexpectedEof => {
                Error::Connection { pe, step, address: self.address.to_string(), reason: "it closed".into() }
            }
            _ => Error::Connection { pe, step, address: self.address.to_string(), reason: error.to_string() },
        }
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket's own time-outs come back as "would block".
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn read_some(stream: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
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
fn write_all(stream: &mut TcpStream, parts: &[&[u8]], deadline: Instant) -> io::Result<()> {
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
