//! The service's thread: waits for its sockets, and drives a node of the tree with the frames that arrive.
//!
//! Unauthenticated connections never disturb the job. Before its hello is proven, a connection is not read beyond a
//! hello, not held longer than the hello's time-out, and not counted as a PE. The service holds at most [`STRANGERS`]
//! more connections than the job has PEs; the oldest is dropped for a new one. However many such connections arrive,
//! those that have sent bytes are served before any is dropped, and a PE whose connection was dropped tries again.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};

use super::connection::Connection;
use super::node::{Link, Newcomer, Node, Output, PARENT};
use super::server::{Options, Shared, lock};
use super::socket::{Address, Listener};
use super::wire::{Secret, random};

/// Connections without a hello, beyond one for every PE. So many may arrive while a PE is answering its challenge.
const STRANGERS: usize = 512;
/// Unauthenticated connections use at most one in so many of this process's descriptors.
const SHARE: u64 = 8;
/// The number of connections accepted before the others are served.
const TURN: usize = 32;
/// How long the listener is ignored when the system has no descriptor for another connection.
const PAUSE: Duration = Duration::from_millis(50);
/// Refused connections are logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// How many unauthenticated connections a process with few descriptors can hold without harm to its other parts.
fn unauthenticated() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(files / SHARE).unwrap_or(usize::MAX).min(STRANGERS)
}

pub(super) struct Service {
    listener: Listener,
    woken: UnixStream,
    secret: Secret,
    options: Options,
    shared: Arc<Shared>,
    node: Node,
    /// Ordered by age: the first one that is not the parent's is the oldest.
    connections: BTreeMap<Link, Connection>,
    next_id: Link,
    /// How many unauthenticated connections are held, beyond one for every PE.
    unauthenticated: usize,
    accept_again: Option<Instant>,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Service {
    /// A service for the PEs of a node, with its connection to the node above.
    pub(super) fn new(
        listener: Listener,
        woken: UnixStream,
        secret: Secret,
        options: Options,
        shared: Arc<Shared>,
        node: Node,
        parent: Option<Connection>,
    ) -> Service {
        Service {
            listener,
            woken,
            secret,
            options,
            shared,
            node,
            connections: parent.map(|parent| (PARENT, parent)).into_iter().collect(),
            next_id: PARENT + 1,
            unauthenticated: unauthenticated(),
            accept_again: None,
            logged: None,
            unlogged: 0,
        }
    }

    /// Serves until the handle is dropped.
    pub(super) fn run(mut self) {
        let mut scratch = vec![0; 64 << 10];
        // Frames that came with the welcome of the node above are here already.
        self.serve(PARENT, &mut scratch);
        while !self.shared.stop.load(Ordering::Acquire) {
            let ready = self.wait();
            let _ = (&self.woken).read(&mut scratch);
            self.note_ended();
            for id in ready {
                self.serve(id, &mut scratch);
            }
            self.accept();
            self.expire();
            self.flush(&mut scratch);
        }
    }

    /// Sleeps until there is something to do, and returns the connections that have input.
    fn wait(&mut self) -> Vec<Link> {
        let now = Instant::now();
        self.accept_again = self.accept_again.filter(|at| *at > now);
        let dues = self.connections.values().filter_map(Connection::hello_due);
        let due = dues.chain(self.node.due()).chain(self.accept_again).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Rounded up, so that the time has come when the thread wakes.
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

    fn welcome_stranger(&mut self, stream: TcpStream, from: Address) {
        let unauthenticated = self.connections.values().filter(|connection| connection.pe().is_none());
        if unauthenticated.count() >= self.unauthenticated + self.node.expected() {
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
    fn refuse(&mut self, id: Link, why: &str) {
        self.refuse_with(id, why, |_| ());
    }

    /// Drops a connection after a last message. The connection is counted first, so that its peer finds it counted when
    /// the message arrives.
    fn refuse_with(&mut self, id: Link, why: &str, last_word: impl FnOnce(&mut Connection)) {
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

    /// Receives and handles a connection's frames.
    fn serve(&mut self, id: Link, scratch: &mut [u8]) {
        let now = Instant::now();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let open = connection.receive(scratch).unwrap_or(false);
        match connection.greeted(&self.secret) {
            Ok(Some(hello)) => {
                self.node.joined(id, Newcomer { pe: hello.pe, n_pes: hello.n_pes, relay: hello.relay }, now);
            }
            Ok(None) => {}
            Err(why) => return self.refuse_with(id, why, Connection::turn_down),
        }
        while let Some(connection) = self.connections.get_mut(&id) {
            match connection.next_frame() {
                Ok(Some((kind, payload))) => self.node.frame(id, kind, &payload, now),
                Ok(None) => break,
                Err(why) => {
                    self.node.distrusted(id, why, now);
                    // Later frames of this connection are ignored.
                    self.carry_out();
                    return self.connections.get_mut(&id).into_iter().for_each(|it| it.closing = true);
                }
            }
            self.carry_out();
        }
        self.carry_out();
        if !open {
            match self.connections.get(&id).and_then(Connection::pe) {
                Some(_) => self.lose(id),
                None => self.refuse(id, "it closed without saying hello"),
            }
        }
    }

    /// Carries out the node's outputs.
    fn carry_out(&mut self) {
        for output in self.node.outputs() {
            match output {
                Output::Send(link, kind, payload) => {
                    self.connections.get_mut(&link).into_iter().for_each(|it| it.send(kind, &payload));
                }
                Output::Close(link) => self.connections.get_mut(&link).into_iter().for_each(|it| it.closing = true),
                Output::Tell(event) => (self.options.on_event)(event),
            }
        }
    }

    /// Drops a connection.
    fn lose(&mut self, id: Link) {
        self.connections.remove(&id);
        self.node.lost(id, Instant::now());
        self.carry_out();
    }

    /// Records the ended processes that the launcher reported.
    fn note_ended(&mut self) {
        let ended = std::mem::take(&mut *lock(&self.shared.ended));
        ended.into_iter().for_each(|pe| self.node.ended(pe, Instant::now()));
        self.carry_out();
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let late = |connection: &Connection| connection.hello_due().is_some_and(|due| due <= now);
        let late: Vec<Link> = self.connections.iter().filter(|(_, it)| late(it)).map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.refuse(id, "it did not say hello in time"));
        self.node.tick(now);
        self.carry_out();
    }

    fn flush(&mut self, scratch: &mut [u8]) {
        // Set before sending, so that a receiver in this process finds that more is pending.
        if self.connections.values().any(Connection::has_output) {
            self.shared.set_unsent();
        }
        let mut over = Vec::new();
        for (id, connection) in &mut self.connections {
            let is_broken = connection.flush().is_err();
            if is_broken || (connection.closing && !connection.has_output()) {
                over.push((*id, is_broken));
            }
        }
        for (id, is_broken) in over {
            // What the other end sent before it closed says why it did.
            if is_broken {
                self.serve(id, scratch);
            }
            if self.connections.contains_key(&id) {
                self.lose(id);
            }
        }
        let leaving = |connection: &&Connection| connection.has_output() && connection.pe().is_some();
        let leaving = self.connections.values().filter(leaving).count();
        self.shared.set_left(self.node.present().max(leaving), leaving > 0);
    }
}
