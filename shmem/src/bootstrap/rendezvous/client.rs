//! A PE's end of the rendezvous: joins once, then takes part in one step after the other.

use std::io::{self, Read};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::super::error::{Error, Result, Step};
use super::super::{Bootstrap, LostPe, MAX_PES, Traffic};
use super::dial::{Answer, Dialed, enter, is_timeout, read_some, write_all};
use super::fault::{self, Fault, named};
use super::membership::Membership;
use super::plan::Shape;
use super::round::{Contribution, add_result};
use super::server::{Options, Server};
use super::socket::Address;
use super::wire::{FINISHED, Frame, Kind, MAX_CONTRIBUTION};
use crate::interrupt::{GoOn, InterruptPoll, POLL_INTERVAL};

/// How much longer than the service a PE waits: the service knows which PEs are missing, so its report should come
/// first.
const GRACE: Duration = Duration::from_secs(5);
/// How long a PE that runs a relay waits for the PEs below it to leave.
const RELAY_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that leaving or aborting may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A PE that has joined. Drop reports that the PE is done.
pub struct Client {
    membership: Membership,
    /// The source of the membership, for [`Bootstrap::describe`].
    origin: &'static str,
    /// The node of the tree that serves this PE.
    service: Dialed,
    /// The PE whose process runs that node, if any.
    run_by: Option<Pe>,
    /// The relay that this PE runs for others, and for itself.
    relay: Option<Server>,
    /// Collective steps started so far.
    steps: u64,
    /// The first fault, if any: every later step fails with it at once.
    broken: Option<Error>,
    /// The PEs that take part in no further step, as the service reported.
    lost_pes: Vec<LostPe>,
    /// Whether this PE has announced that it leaves.
    left: bool,
    /// The purpose of the next steps.
    stage: Option<&'static str>,
    /// The check that may end waits.
    go_on: Option<GoOn>,
}

impl Client {
    /// Joins the job.
    ///
    /// # Errors
    /// The service cannot be reached, does not know the secret, or refuses this PE.
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
        let (mut service, mut answer) = enter(membership, membership.address, None)?;
        let mut relay = None;
        if let Answer::Serve(pes, fan_out) = answer {
            let options = Options { shape: Shape::FanOut(fan_out), ..Options::default() };
            let server = Server::relay(membership, pes, Some(pe), options)?;
            let traffic = service.traffic;
            (service, answer) = enter(membership, server.address(), None)?;
            service.traffic += traffic;
            relay = Some(server);
        }
        let membership = membership.clone();
        let mut client = Client {
            membership,
            origin,
            service,
            run_by: None,
            relay,
            steps: 0,
            broken: None,
            lost_pes: Vec::new(),
            left: false,
            stage: None,
            go_on: None,
        };
        match answer {
            Answer::Welcome(run_by) => client.run_by = run_by,
            _ => return Err(client.untrusted(Step::Join, "another place for a PE that has one")),
        }
        Ok(client)
    }

    /// The address of the service that this PE joined.
    #[must_use]
    pub fn address(&self) -> Address {
        self.service.address
    }

    /// Receives the next frame; a fault is an error.
    fn receive(&mut self, step: Step, deadline: Instant) -> Result<Frame> {
        // Not on the stack: the calling thread's stack may be small.
        let mut chunk = vec![0; 32 << 10];
        loop {
            match self.service.opener.next_frame() {
                Ok(Some(frame)) => {
                    if let Some(frame) = self.take_news(step, frame)? {
                        self.service.traffic.messages += 1;
                        return Ok(frame);
                    }
                    continue;
                }
                Ok(None) => {}
                Err(why) => return Err(self.untrusted(step, why)),
            }
            let bytes = self.read(step, &mut chunk, deadline)?;
            self.service.traffic.bytes += bytes as u64;
            self.service.opener.feed(&chunk[..bytes]);
        }
    }

    /// Reads the next bytes, unless the interrupt ends the wait.
    fn read(&mut self, step: Step, chunk: &mut [u8], deadline: Instant) -> Result<usize> {
        let mut interrupt_poll = InterruptPoll::new(self.go_on.as_ref());
        loop {
            let until = if interrupt_poll.may_end() { deadline.min(Instant::now() + POLL_INTERVAL) } else { deadline };
            match read_some(&mut self.service.stream, chunk, until) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && until < deadline => {
                    if let Some(waited) = interrupt_poll.ended() {
                        return Err(Error::Interrupted { pe: self.membership.pe, step, waited });
                    }
                }
                read => return read.map_err(|error| self.broken_off(step, &error)),
            }
        }
    }

    /// Records the lost PEs of a frame; a fault is an error. Returns other frames.
    fn take_news(&mut self, step: Step, (kind, payload): Frame) -> Result<Option<Frame>> {
        match kind {
            Kind::LostPes => {
                self.lost_pes.extend(fault::decode_all(&payload).into_iter().filter_map(Fault::into_lost_pe));
            }
            Kind::Fault => return Err(self.take_fault(step, &payload)),
            _ => return Ok(Some((kind, payload))),
        }
        Ok(None)
    }

    /// The error that a fault means for this PE, which is in `step`.
    fn take_fault(&mut self, step: Step, payload: &[u8]) -> Error {
        let Some(fault) = Fault::decode(payload) else { return self.untrusted(step, "a malformed fault") };
        self.lost_pes.extend(fault.clone().into_lost_pe());
        fault.into_error(self.membership.pe, step, &self.service.address.to_string())
    }

    /// Receives the frames that arrived while this PE was in no step. A fault, also one of the connection, is the error
    /// of the next step.
    fn receive_pending(&mut self) {
        let mut chunk = [0; 4096];
        let stream = &mut self.service.stream;
        let read = stream.set_nonblocking(true).and_then(|()| stream.read(&mut chunk));
        let read = stream.set_nonblocking(false).and(read);
        // Frames that came with the result of the last step wait in the opener, whether or not there are new bytes.
        self.service.opener.feed(&chunk[..*read.as_ref().unwrap_or(&0)]);
        // The fault breaks the step that this PE would make next.
        let step = Step::Barrier(self.steps + 1);
        while let Ok(Some(frame)) = self.service.opener.next_frame() {
            if let Err(error) = self.take_news(step, frame) {
                self.broken.get_or_insert(error);
            }
        }
        let ended = match read {
            Ok(0) => io::ErrorKind::UnexpectedEof.into(),
            Err(error) if !is_timeout(&error) => error,
            _ => return,
        };
        if !self.left && self.broken.is_none() {
            self.broken = Some(self.broken_off(step, &ended));
        }
    }

    fn untrusted(&self, step: Step, why: &str) -> Error {
        let (pe, address) = (self.membership.pe, self.service.address.to_string());
        Error::Untrusted { pe, step, address, why: why.to_owned() }
    }

    /// The connection broke: if a PE runs the node at its other end, that PE is lost.
    fn broken_off(&mut self, step: Step, error: &io::Error) -> Error {
        match self.run_by.filter(|peer| *peer != self.membership.pe && error.kind() != io::ErrorKind::TimedOut) {
            Some(peer) => self.take_fault(step, &Fault::Lost { peer }.encode()),
            None => self.membership.broken_off(step, self.service.address, error),
        }
    }

    /// Announces to the service, once, that this PE leaves.
    fn leave(&mut self, word: &[u8]) {
        if !std::mem::replace(&mut self.left, true) {
            // A failure is ignored: the service notices a closed connection anyway.
            let _ = self.send(Kind::Bye, word, Instant::now() + LEAVE_TIMEOUT);
        }
    }

    fn send(&mut self, kind: Kind, payload: &[u8], deadline: Instant) -> io::Result<()> {
        let (header, tag) = self.service.sealer.seal(kind as u8, payload);
        self.service.traffic.messages += 1;
        self.service.traffic.bytes += (header.len() + payload.len() + tag.len()) as u64;
        write_all(&mut self.service.stream, &[&header, payload, &tag], deadline)
    }

    /// Contributes to a step and returns its result: all contributions, or nothing for a barrier.
    fn collect(&mut self, step: Step, number: u64, data: &[u8], extendable: bool) -> Result<Vec<Vec<u8>>> {
        let timeout = self.membership.timeout;
        let mut deadline = Instant::now() + timeout + GRACE;
        let mut warned = false;
        let (first, rows) = (self.membership.pe, vec![data.to_vec()]);
        let contribution = Contribution { step, timeout, left: timeout, extendable, first, rows };
        let frames = contribution.encode();
        if let Err(error) = frames.iter().try_for_each(|frame| self.send(Kind::Contribute, frame, deadline)) {
            // If the service broke the job, it sent the reason before it closed the connection: prefer that reason.
            let error = self.broken_off(step, &error);
            return match self.receive(step, Instant::now() + LEAVE_TIMEOUT) {
                Err(Error::Connection { .. } | Error::Timeout { .. }) | Ok(_) => Err(error),
                Err(reason) => Err(reason),
            };
        }
        let parts = match step {
            Step::Allgather(_) => self.membership.n_pes,
            _ => 0,
        };
        let mut all = Vec::new();
        loop {
            match self.receive(step, deadline)? {
                (Kind::Result, payload) => {
                    add_result(&payload, number, parts, &mut all).map_err(|why| self.untrusted(step, why))?;
                }
                (Kind::Late, payload) => {
                    deadline = Instant::now() + timeout + GRACE;
                    if !std::mem::replace(&mut warned, true) {
                        self.warn_of_late(step, &payload);
                    }
                    continue;
                }
                (kind, _) => return Err(self.untrusted(step, &format!("{kind:?} instead of a result"))),
            }
            if all.len() == parts as usize {
                return Ok(all);
            }
        }
    }

    /// Warns once a step that PEs are late and alive.
    fn warn_of_late(&self, step: Step, late: &[u8]) {
        let Some(Fault::TimedOut { seconds, missing, count }) = Fault::decode(late) else { return };
        let (pe, late) = (self.membership.pe, named(&missing, count));
        let step = self.stage.map_or(step, |stage| step.in_stage(stage));
        tracing::warn!(
            "PE {pe} has waited in {step} for {seconds} s and goes on waiting; late, with living processes: {late}"
        );
    }

    fn run(&mut self, step: impl Fn(u64) -> Step, data: &[u8], extendable: bool) -> Result<Vec<Vec<u8>>> {
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
        let result = self.collect(step, number, data, extendable);
        self.broken = result.as_ref().err().cloned();
        result
    }

    /// Requests the end of the job. The process may end right after this call, so the nodes of the tree in it (the
    /// root, or the PE's relay) first pass the request on.
    pub(in super::super) fn abort_beside(&mut self, root: Option<&Server>, code: i32, why: &str) {
        let why = &why.as_bytes()[..why.len().min(1024)];
        let payload = [&code.to_le_bytes(), why].concat();
        let deadline = Instant::now() + LEAVE_TIMEOUT;
        let _ = self.send(Kind::Abort, &payload, deadline);
        if root.is_some() || self.relay.is_some() {
            // The root sends it back, through the relay.
            while self.receive(Step::Barrier(self.steps + 1), deadline).is_ok() {}
        }
        root.into_iter().chain(&self.relay).for_each(|node| node.wait_until_sent(deadline));
        let Membership { pe, .. } = self.membership;
        self.broken = Some(Error::Aborted { pe, peer: pe, code, why: String::from_utf8_lossy(why).into_owned() });
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

    fn lost_pes(&mut self) -> &[LostPe] {
        self.receive_pending();
        &self.lost_pes
    }

    fn set_stage(&mut self, stage: Option<&'static str>) {
        self.stage = stage;
    }

    fn set_interrupt(&mut self, go_on: GoOn) {
        self.go_on = Some(go_on);
    }

    fn abort(&mut self, code: i32, why: &str) {
        self.abort_beside(None, code, why);
    }

    fn traffic(&self) -> Traffic {
        self.service.traffic
    }

    fn describe(&self) -> String {
        let Membership { address, pe, n_pes, .. } = self.membership;
        format!("{}: PE {pe} of {n_pes}, rendezvous at {address}", self.origin)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.leave(&[]);
        let _ = self.service.stream.shutdown(Shutdown::Write);
        if let Some(relay) = &self.relay {
            relay.wait_until_empty(RELAY_TIMEOUT);
        }
    }
}
