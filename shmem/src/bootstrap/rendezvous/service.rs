//! The service's thread: waits for its sockets, and keeps the job's state.
//!
//! Strangers never disturb the job: a connection is not read beyond a hello, held longer than the hello's time-out, or
//! counted as a PE before its hello was proven; at most [`STRANGERS`] more than the job has PEs are held at a time, and
//! the oldest makes room. However many unauthenticated connections come, those who have said something are served
//! before anybody makes room for others, and a PE that had to make room tries again. What the job's own PEs do wrong
//! breaks the job once, and every PE is told the same reason.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use symrail_transport::Pe;

use super::connection::Connection;
use super::fault::Fault;
use super::round::{Contribution, Round};
use super::server::{Event, Options, Shared, lock};
use super::wire::{FINISHED, Hello, Kind, Secret, random};

/// Connections that have not said hello, beyond one for every PE: so many come while a PE is answering its challenge.
const STRANGERS: usize = 512;
/// Of the descriptors that this process may have, unauthenticated connections take at most one in so many.
const SHARE: u64 = 8;
/// The number of connections accepted in one turn.
const TURN: usize = 32;
/// The largest job.
const MAX_PES: u32 = 1 << 20;
/// How long to leave the listener alone when the system has no descriptor for another connection.
const PAUSE: Duration = Duration::from_millis(50);
/// Refused connections are logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The state of a PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Absent,
    Here(u64),
    Left,
    Lost,
    /// Its process ended while it was in no job.
    Ended,
}

impl Member {
    /// What others are told of one that takes part in nothing more.
    fn fault(self, peer: Pe) -> Option<Fault> {
        match self {
            Member::Left => Some(Fault::Left { peer }),
            Member::Ended => Some(Fault::Ended { peer }),
            Member::Lost => Some(Fault::Lost { peer }),
            Member::Absent | Member::Here(_) => None,
        }
    }
}

/// How many unauthenticated connections a process with few descriptors can hold without harm to the rest of it.
fn unauthenticated() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(files / SHARE).unwrap_or(usize::MAX).min(STRANGERS)
}

pub(super) struct Service {
    listener: TcpListener,
    woken: UnixStream,
    secret: Secret,
    options: Options,
    shared: Arc<Shared>,
    /// By age, so that the first is the oldest.
    connections: BTreeMap<u64, Connection>,
    next_id: u64,
    /// How many unauthenticated connections are held, beyond one for every PE.
    unauthenticated: usize,
    members: Vec<Member>,
    /// PEs whose processes have ended: they never come again.
    ended: Vec<Pe>,
    /// Connections of PEs that had left and join again. They are let in when everybody has left.
    early: Vec<(u64, Pe)>,
    /// Who fixed the job's size; `None` when it was given at the start.
    sized_by: Option<Pe>,
    round: Round,
    /// Why nothing more can complete. Set once.
    failure: Option<Arc<[u8]>>,
    accept_again: Option<Instant>,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Service {
    pub(super) fn new(
        listener: TcpListener,
        woken: UnixStream,
        secret: Secret,
        options: Options,
        shared: Arc<Shared>,
    ) -> Service {
        let mut service = Service {
            listener,
            woken,
            secret,
            options,
            shared,
            connections: BTreeMap::new(),
            next_id: 0,
            unauthenticated: unauthenticated(),
            members: Vec::new(),
            ended: Vec::new(),
            early: Vec::new(),
            sized_by: None,
            round: Round::default(),
            failure: None,
            accept_again: None,
            logged: None,
            unlogged: 0,
        };
        if let Some(n_pes) = service.options.n_pes {
            service.resize(n_pes);
        }
        service
    }

    /// Serves until the handle is dropped.
    pub(super) fn run(mut self) {
        let mut scratch = vec![0; 64 << 10];
        while !self.shared.stop.load(Ordering::Acquire) {
            let ready = self.wait();
            let _ = (&self.woken).read(&mut scratch);
            self.note_ended();
            for id in ready {
                self.serve(id, &mut scratch);
            }
            self.accept();
            self.expire();
            self.flush();
        }
    }

    /// Sleeps until there is something to do, and says which connections have input.
    fn wait(&mut self) -> Vec<u64> {
        let now = Instant::now();
        self.accept_again = self.accept_again.filter(|at| *at > now);
        let dues = self.connections.values().filter_map(Connection::hello_due);
        let due = dues.chain(self.round.deadline()).chain(self.accept_again).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Rounded up, so that waking means that the time has come.
            let millis = due.saturating_duration_since(now).as_millis() + 1;
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let listen = if self.accept_again.is_some() { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds =
            vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN), PollFd::new(self.listener.as_fd(), listen)];
        for connection in self.connections.values() {
            let write = if connection.has_output() { PollFlags::POLLOUT } else { PollFlags::empty() };
            fds.push(PollFd::new(connection.stream().as_fd(), PollFlags::POLLIN | write));
        }
        if poll(&mut fds, timeout).is_err() {
            return Vec::new();
        }
        let quiet = PollFlags::POLLOUT;
        let ready = fds[2..].iter().map(|fd| fd.revents().is_some_and(|events| !(events - quiet).is_empty()));
        self.connections.keys().zip(ready).filter(|(_, ready)| *ready).map(|(id, _)| *id).collect()
    }

    fn accept(&mut self) {
        if self.accept_again.is_some() {
            return;
        }
        for _ in 0..TURN {
            match self.listener.accept() {
                Ok((stream, from)) => self.welcome_stranger(stream, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    self.accept_again = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    fn welcome_stranger(&mut self, stream: TcpStream, from: SocketAddr) {
        let unauthenticated = self.connections.values().filter(|connection| connection.pe().is_none());
        if unauthenticated.count() >= self.unauthenticated + self.members.len() {
            let oldest = self.connections.iter().find(|(_, connection)| connection.pe().is_none()).map(|(id, _)| *id);
            oldest.into_iter().for_each(|id| self.refuse(id, "too many connections that have not said hello"));
        }
        let due = Instant::now() + self.options.hello_timeout;
        let Ok(nonce) = random() else { return };
        if let Ok(mut connection) = Connection::new(stream, from, nonce, due)
            && connection.flush().is_ok()
        {
            self.connections.insert(self.next_id, connection);
            self.next_id += 1;
        }
    }

    /// Drops a connection that does not belong to the job.
    fn refuse(&mut self, id: u64, why: &str) {
        self.refuse_with(id, why, |_| ());
    }

    /// The same after a last word. The connection is counted first, so that whoever hears the word finds it counted.
    fn refuse_with(&mut self, id: u64, why: &str, last_word: impl FnOnce(&mut Connection)) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        last_word(&mut connection);
        if self.logged.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            self.unlogged += 1;
            return;
        }
        let (from, others) = (connection.from, std::mem::take(&mut self.unlogged));
        tracing::warn!(%from, others_not_logged = others, "rendezvous: dropped a connection: {why}");
        self.logged = Some(Instant::now());
    }

    /// Takes what a connection sent.
    fn serve(&mut self, id: u64, scratch: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let open = connection.receive(scratch).unwrap_or(false);
        match connection.greeted(&self.secret) {
            Ok(Some(hello)) => self.join(id, &hello),
            Ok(None) => {}
            Err(why) => return self.refuse_with(id, why, Connection::turn_down),
        }
        while let Some(connection) = self.connections.get_mut(&id) {
            match connection.next_frame() {
                Ok(Some((kind, payload))) => self.take(id, kind, &payload),
                Ok(None) => break,
                Err(why) => return self.distrust(id, why),
            }
        }
        if !open {
            match self.connections.get(&id).and_then(Connection::pe) {
                Some(_) => self.lose(id, "its connection closed"),
                None => self.refuse(id, "it closed without saying hello"),
            }
        }
    }

    fn resize(&mut self, n_pes: u32) {
        self.members = vec![Member::Absent; n_pes as usize];
        self.round = Round::first(n_pes);
    }

    /// A connection proved that it knows the secret.
    fn join(&mut self, id: u64, hello: &Hello) {
        let Hello { pe, n_pes, .. } = *hello;
        if self.members.is_empty() && n_pes <= MAX_PES {
            self.resize(n_pes);
            self.sized_by = Some(pe);
        }
        let known = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        if n_pes != known {
            // The job can never be whole, so everybody hears of it and not only the PE that differs.
            let fault = Fault::Size { peer: pe, n_pes, other: self.sized_by, other_n_pes: known };
            self.turn_away(id, &fault);
            return self.fail(&fault);
        }
        if let Some(fault) = self.failure.clone() {
            return self.send_last(id, &fault);
        }
        match self.members.get(pe as usize) {
            None => self.turn_away(id, &Fault::NoSuchPe { peer: pe, n_pes }),
            Some(Member::Absent) => self.admit(id, pe),
            Some(Member::Left) if !self.early.iter().any(|(_, early)| *early == pe) => self.early.push((id, pe)),
            Some(_) => self.turn_away(id, &Fault::Duplicate { peer: pe }),
        }
    }

    fn admit(&mut self, id: u64, pe: Pe) {
        self.members[pe as usize] = Member::Here(id);
        (self.options.on_event)(Event::Joined(pe));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.send(Kind::Welcome, &Arc::from([]));
        }
    }

    fn send_to_members(&mut self, kind: Kind, payload: &Arc<[u8]>) {
        for member in &self.members {
            if let Member::Here(id) = member
                && let Some(connection) = self.connections.get_mut(id)
            {
                connection.send(kind, payload);
            }
        }
    }

    fn turn_away(&mut self, id: u64, fault: &Fault) {
        self.send_last(id, &Arc::from(fault.encode()));
    }

    /// Sends a fault and then closes the connection.
    fn send_last(&mut self, id: u64, fault: &Arc<[u8]>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.send(Kind::Fault, fault);
            connection.closing = true;
        }
    }

    /// A PE sent a frame.
    fn take(&mut self, id: u64, kind: Kind, payload: &[u8]) {
        let Some(pe) = self.member(id) else { return };
        match kind {
            Kind::Contribute => {
                let Some(contribution) = Contribution::decode(payload) else {
                    return self.lose(id, "a malformed contribution");
                };
                if self.failure.is_some() {
                    return;
                }
                match self.round.add(pe, &contribution, Instant::now()) {
                    // Complete, so everybody is here.
                    Ok(Some(result)) => result.iter().for_each(|payload| self.send_to_members(Kind::Result, payload)),
                    Ok(None) => self.check_departed(),
                    Err(fault) => self.fail(&fault),
                }
            }
            Kind::Bye => self.leave(pe, payload == FINISHED),
            Kind::Abort => {
                let (code, why) = payload.split_at(payload.len().min(4));
                let code = <[u8; 4]>::try_from(code).map_or(1, i32::from_le_bytes);
                let why = String::from_utf8_lossy(why).into_owned();
                self.fail(&Fault::Aborted { peer: pe, code, why: why.clone() });
                (self.options.on_event)(Event::Aborted { pe, code, why });
            }
            Kind::Welcome | Kind::Result | Kind::Fault | Kind::Late | Kind::Gone => {
                self.lose(id, "a frame that only the service sends");
            }
        }
    }

    /// The PE behind a connection, while it takes part.
    fn member(&self, id: u64) -> Option<Pe> {
        let pe = self.connections.get(&id)?.pe()?;
        (self.members.get(pe as usize) == Some(&Member::Here(id))).then_some(pe)
    }

    fn leave(&mut self, pe: Pe, finished: bool) {
        self.members[pe as usize] = Member::Left;
        (self.options.on_event)(Event::Left(pe));
        if !finished && self.members.iter().any(|member| matches!(member, Member::Here(_))) {
            self.send_to_members(Kind::Gone, &Arc::from(Fault::Left { peer: pe }.encode()));
            (self.options.on_event)(Event::LeftEarly(pe));
        }
        self.after_departure();
    }

    fn after_departure(&mut self) {
        self.check_departed();
        if self.members.iter().all(|member| matches!(member, Member::Left | Member::Ended)) {
            self.start_over();
        }
    }

    /// Everybody has finalized. The same processes may initialize again, as the same PEs.
    fn start_over(&mut self) {
        self.round = Round::first(u32::try_from(self.members.len()).unwrap_or(u32::MAX));
        self.members.fill(Member::Absent);
        for pe in &self.ended {
            self.members[*pe as usize] = Member::Ended;
        }
        for (id, pe) in std::mem::take(&mut self.early) {
            if self.connections.contains_key(&id) {
                self.admit(id, pe);
            }
        }
    }

    /// A round that somebody has left can never complete.
    fn check_departed(&mut self) {
        if self.round.waiting()
            && let Some(fault) = (0..).zip(&self.members).find_map(|(pe, member)| member.fault(pe))
        {
            self.fail(&fault);
        }
    }

    /// A connection is of no more use. That is a loss only if its PE was not done.
    fn lose(&mut self, id: u64, why: &str) {
        if let Some(pe) = self.member(id) {
            self.lose_member(pe, &Fault::Lost { peer: pe }, why);
        }
        self.early.retain(|(early, _)| *early != id);
        self.connections.remove(&id);
    }

    /// Somebody changes what a PE sends. The PE hears of that, and is lost to the others.
    fn distrust(&mut self, id: u64, why: &str) {
        let Some(pe) = self.member(id) else { return self.lose(id, why) };
        let fault = Fault::Untrusted { peer: pe, why: why.to_owned() };
        self.lose_member(pe, &fault, why);
        self.turn_away(id, &fault);
    }

    fn lose_member(&mut self, pe: Pe, fault: &Fault, why: &str) {
        tracing::debug!(pe, why, "rendezvous: lost a PE");
        self.members[pe as usize] = Member::Lost;
        if self.failure.is_some() {
            self.send_to_members(Kind::Gone, &Arc::from(fault.encode()));
        }
        self.fail(fault);
        (self.options.on_event)(Event::Lost(pe));
    }

    /// Whoever started the PEs says which processes have ended. Those that had joined are known by their connections.
    fn note_ended(&mut self) {
        let ended = std::mem::take(&mut *lock(&self.shared.ended));
        for pe in ended {
            let Some(member) = self.members.get(pe as usize) else { continue };
            self.ended.push(pe);
            if *member == Member::Absent {
                self.members[pe as usize] = Member::Ended;
                (self.options.on_event)(Event::Left(pe));
                self.after_departure();
            }
        }
    }

    /// Breaks the job, and tells every PE.
    fn fail(&mut self, fault: &Fault) {
        if self.failure.is_some() {
            return;
        }
        let payload: Arc<[u8]> = Arc::from(fault.encode());
        self.send_to_members(Kind::Fault, &payload);
        // Those who wait to come again have nothing to wait for now.
        for (id, _) in std::mem::take(&mut self.early) {
            self.send_last(id, &payload);
        }
        self.failure = Some(payload);
        self.round = Round::first(u32::try_from(self.members.len()).unwrap_or(u32::MAX));
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let late = |connection: &Connection| connection.hello_due().is_some_and(|due| due <= now);
        let late: Vec<u64> = self.connections.iter().filter(|(_, it)| late(it)).map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.refuse(id, "it did not say hello in time"));
        if self.round.deadline().is_some_and(|due| due <= now) {
            let fault = self.round.timed_out();
            if self.options.watched && self.round.extend(now) {
                self.tell_of_late(&fault);
            } else {
                self.fail(&fault);
            }
        }
    }

    /// Tells those who wait for whom they do. All of these live: of who had ended or left, the round would have been
    /// told.
    fn tell_of_late(&mut self, late: &Fault) {
        let payload = Arc::from(late.encode());
        for pe in self.round.arrived() {
            if let Some(Member::Here(id)) = self.members.get(pe as usize)
                && let Some(connection) = self.connections.get_mut(id)
            {
                connection.send(Kind::Late, &payload);
            }
        }
    }

    fn flush(&mut self) {
        let mut broken = Vec::new();
        for (id, connection) in &mut self.connections {
            if connection.flush().is_err() || (connection.closing && !connection.has_output()) {
                broken.push(*id);
            }
        }
        broken.into_iter().for_each(|id| self.lose(id, "it could not be written to"));
        let here = self.members.iter().filter(|member| matches!(member, Member::Here(_))).count();
        let leaving = |connection: &&Connection| connection.has_output() && connection.pe().is_some();
        self.shared.set_present(here.max(self.connections.values().filter(leaving).count()));
    }
}
