//! What all parts of an agent share, and its thread: it answers those that connect, connects, notices lost peers, and
//! advances transfers that no caller advances.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use symrail_core::{Backoff, encoding, lock};
use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::rendezvous::{Answered, Arrival, Dial, Handle, Link, Listener};
use symrail_proxy::session::{Registered, Session};
use symrail_transport::{Error as TransportError, Pe};

use crate::error::{Error, Result};
use crate::inbox::Inbox;
use crate::memory::MemoryId;
use crate::metadata::must_be_a_name;
use crate::outbox::{Delivery, Outbox};
use crate::peer::{Connection, Peer};
use crate::ring::Ring;
use crate::sharing::{Message, Sharing};
use crate::transfer::Running;

/// Pauses of the thread: while devices copy, whose ends wake no thread, while something else is under way, and otherwise.
const COPYING: Duration = Duration::from_micros(50);
const BUSY: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(10);
/// Rounds between two looks at each peer's connection, which cost a system call each.
const ROUNDS_PER_LOOK: u64 = 8;
/// The longest time for which an agent that ends sends the notifications that wait.
const LAST_NOTIFICATIONS: Duration = Duration::from_secs(2);

/// What both ends of a connection tell each other: the name, and the handle of the ring.
type Hello = (String, Vec<u8>);

/// A connection that is being made.
struct Attempt {
    way: Way,
    peer: Arc<Peer>,
    ours: Ring,
    since: Instant,
}

enum Way {
    /// The peer has dialed and was answered; its ring.
    Answered(Answered, Memory),
    Dialed(Dial),
}

impl Way {
    /// The connection and the peer's ring, once the connection is there.
    fn poll(&mut self, session: &Session) -> symrail_transport::Result<Option<(Link, Memory)>> {
        match self {
            Way::Answered(answered, ring) => Ok(answered.poll()?.map(|link| (link, ring.clone()))),
            Way::Dialed(dial) => {
                let Some((link, payload)) = dial.poll(session)? else { return Ok(None) };
                let (_, ring): Hello = encoding::decode(&payload, "the answer of an agent", link.pe())?;
                let ring = Memory::of_peer(link.pe(), &ring)?;
                Ok(Some((link, ring)))
            }
        }
    }

    fn last_failure(&self) -> Option<&str> {
        if let Way::Dialed(dial) = self { dial.last_failure() } else { None }
    }
}

/// Transfers under way, and whether there can be no more, because the agent ends.
#[derive(Default)]
struct UnderWay {
    transfers: Vec<Arc<Running>>,
    closed: bool,
}

struct Connecting {
    listener: Listener,
    attempts: Vec<Attempt>,
}

/// What an agent, its transfers and its thread share.
pub struct Shared {
    pub name: String,
    pub session: Arc<Session>,
    pub handle: Handle,
    pub inbox: Inbox,
    pub sharing: Sharing,
    timeout: Duration,
    connecting: Mutex<Connecting>,
    peers: Mutex<BTreeMap<Pe, Arc<Peer>>>,
    running: Mutex<UnderWay>,
    woken: Mutex<bool>,
    bell: Condvar,
    stop: AtomicBool,
}

impl Shared {
    pub fn new(name: &str, session: Session, sharing: Sharing, timeout: Duration) -> Result<Shared> {
        let listener = Listener::new(&session)?;
        Ok(Shared {
            name: name.to_owned(),
            handle: listener.handle().clone(),
            inbox: Inbox::default(),
            sharing,
            timeout,
            connecting: Mutex::new(Connecting { listener, attempts: Vec::new() }),
            peers: Mutex::default(),
            running: Mutex::default(),
            woken: Mutex::new(false),
            bell: Condvar::new(),
            stop: AtomicBool::new(false),
            session: Arc::new(session),
        })
    }

    /// The peer with this number. A new one gets the name.
    pub fn peer(&self, pe: Pe, name: &str) -> Arc<Peer> {
        let new = || Arc::new(Peer::new(name, pe, self.session.me()));
        Arc::clone(lock(&self.peers).entry(pe).or_insert_with(new))
    }

    /// Starts to connect to a peer, unless somebody has.
    pub fn connect(&self, peer: &Arc<Peer>, handle: &Handle) -> Result<()> {
        // Whoever finds that another thread has dialed finds its attempt, too.
        let mut connecting = lock(&self.connecting);
        if peer.is_open()? || peer.dialed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let number = self.session.number_for(handle.identity());
        if number.is_ok_and(|number| number != peer.pe) {
            // A connection from it was refused, which has removed it from the session.
            let why = "connecting to it has failed before; load its metadata again";
            self.lose(peer, why);
            return Err(Error::Lost { agent: peer.name.clone(), why: why.into() });
        }
        let attempt = Ring::new(&self.session).and_then(|ours| {
            let hello: Hello = (self.name.clone(), ours.handle());
            let dial = Dial::new(&self.session, handle, &encoding::encode(&hello))?;
            Ok(Attempt { way: Way::Dialed(dial), peer: Arc::clone(peer), ours, since: Instant::now() })
        });
        match attempt {
            Ok(attempt) => connecting.attempts.push(attempt),
            Err(error) => {
                peer.dialed.store(false, Ordering::Release);
                return Err(Error::of(&peer.name, error));
            }
        }
        drop(connecting);
        self.wake();
        Ok(())
    }

    /// Sends a notification to a peer, or to this agent itself.
    pub fn notify(&self, peer: &Peer, message: &[u8]) -> Result<Arc<Delivery>> {
        if peer.pe == self.session.me() {
            Outbox::check(message)?;
            self.inbox.add(&self.name, message.to_vec());
            return Ok(Arc::new(OnceLock::from(Ok(()))));
        }
        let delivery = peer.notify(&self.session, message)?;
        self.wake();
        Ok(delivery)
    }

    /// The time within which all operations under way end.
    pub fn settles_within(&self) -> Duration {
        2 * self.timeout + LAST_NOTIFICATIONS
    }

    /// Advances all transfers.
    pub fn advance(&self) {
        self.session.progress();
        let running = lock(&self.running).transfers.clone();
        running.iter().for_each(|one| one.advance(self));
        lock(&self.running).transfers.retain(|one| !one.has_ended());
    }

    /// Takes notifications out of the rings.
    pub fn receive(&self) {
        self.session.progress();
        for peer in lock(&self.peers).values() {
            // The thread finds lost peers.
            let _ = peer.advance(&self.session, &self.inbox, &self.sharing, false);
        }
    }

    /// Notes a transfer before it starts, so that the end of the agent waits for it.
    ///
    /// # Errors
    /// The agent has ended.
    pub fn add(&self, running: &Arc<Running>) -> Result<()> {
        let mut all = lock(&self.running);
        if all.closed {
            return Err(Error::Lost { agent: self.name.clone(), why: "this agent has ended".into() });
        }
        all.transfers.push(Arc::clone(running));
        Ok(())
    }

    pub fn remove(&self, running: &Arc<Running>) {
        lock(&self.running).transfers.retain(|one| !Arc::ptr_eq(one, running));
    }

    fn has_running(&self) -> bool {
        !lock(&self.running).transfers.is_empty()
    }

    fn has_copies(&self) -> bool {
        lock(&self.running).transfers.iter().any(|one| one.has_copies())
    }

    /// Lets the thread advance what was added.
    pub fn wake(&self) {
        let mut woken = lock(&self.woken);
        if !*woken {
            *woken = true;
            self.bell.notify_one();
        }
    }

    /// The body of the thread.
    pub fn run(&self) {
        let mut rounds: u64 = 0;
        while !self.stop.load(Ordering::Acquire) {
            rounds += 1;
            let busy = self.round(rounds.is_multiple_of(ROUNDS_PER_LOOK));
            let pause = if self.has_copies() {
                COPYING
            } else if busy {
                BUSY
            } else {
                IDLE
            };
            let woken = self.bell.wait_timeout_while(lock(&self.woken), pause, |woken| busy || !*woken);
            *woken.unwrap_or_else(PoisonError::into_inner).0 = false;
        }
    }

    /// Lets the thread end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// One round of the thread. Returns whether something is under way.
    fn round(&self, looks: bool) -> bool {
        self.session.progress();
        let mut busy = self.advance_connections();
        let peers: Vec<_> = lock(&self.peers).values().cloned().collect();
        for peer in peers.iter().filter(|peer| peer.pe != self.session.me()) {
            let waits = !peer.is_idle();
            busy |= waits;
            if peer.is_open().is_err() {
                if peer.has_settled() {
                    lock(&self.peers).retain(|_, known| !Arc::ptr_eq(known, peer));
                }
            } else if let Err(why) = peer.advance(&self.session, &self.inbox, &self.sharing, looks || waits) {
                self.lose(peer, &why);
            } else {
                peer.warns(self.timeout);
            }
        }
        self.advance();
        busy || self.has_running()
    }

    /// Notes that a peer is lost. It stays among the peers until it has settled.
    fn lose(&self, peer: &Peer, why: &str) {
        self.session.remove_peer(peer.pe, why);
        peer.receive_last(&self.session, &self.inbox, &self.sharing);
        peer.lose(why);
        self.sharing.lost(peer.pe, peer.has_closed(), self.timeout);
    }

    /// Loses a peer to which no connection was made or begun, so that nothing of it stays.
    pub fn forget(&self, peer: &Arc<Peer>) {
        let connecting = lock(&self.connecting);
        let answered = connecting.attempts.iter().any(|attempt| Arc::ptr_eq(&attempt.peer, peer));
        if !answered && !peer.dialed.load(Ordering::Acquire) && peer.is_open().is_ok_and(|open| !open) {
            self.lose(peer, "its metadata was forgotten before a connection was made; load it again");
        }
    }

    /// Asks the agents that have mapped memory of a device to end that.
    pub fn withdraw(&self, id: MemoryId) {
        for pe in self.sharing.withdraw(id) {
            let peer = lock(&self.peers).get(&pe).cloned();
            match peer {
                Some(peer) => peer.tell(&self.session, &Message::Withdrawn(id)),
                None => self.sharing.unmapped(pe, id),
            }
        }
        self.wake();
    }

    /// The error of an operation on a peer's memory. One that says that the peer is lost is true from then on: metadata
    /// that is loaded later is a new peer's.
    pub fn failed(&self, peer: &Peer, error: TransportError) -> Error {
        let error = Error::of(&peer.name, error);
        if let Error::Lost { why, .. } = &error
            && peer.pe != self.session.me()
        {
            self.lose(peer, why);
        }
        error
    }

    /// Takes the next steps of all connections that are being made. Returns whether there are any.
    fn advance_connections(&self) -> bool {
        let mut connecting = lock(&self.connecting);
        let Connecting { listener, attempts } = &mut *connecting;
        match self.answer(listener) {
            Ok(attempt) => attempts.extend(attempt),
            Err(error) => tracing::warn!(agent = self.name, %error, "an agent that connects was refused"),
        }
        for mut attempt in std::mem::take(attempts) {
            let ended = attempt.way.poll(&self.session);
            let Attempt { way, peer, ours, since } = attempt;
            let why = match ended {
                Ok(Some((link, ring))) => {
                    peer.add(Connection::new(link, ours, Registered::of_peer(&self.session, ring)));
                    continue;
                }
                Ok(None) if since.elapsed() <= self.timeout => {
                    attempts.push(Attempt { way, peer, ours, since });
                    continue;
                }
                // The attempt that this agent has made itself ends by itself.
                Ok(None) if matches!(way, Way::Answered(..)) && peer.dialed.load(Ordering::Acquire) => continue,
                Ok(None) => {
                    let last = way.last_failure().map_or_else(String::new, |why| format!("; {why}"));
                    format!("it has not answered for {} s (SYMRAIL_TIMEOUT_S){last}", self.timeout.as_secs())
                }
                Err(TransportError::PeerLost { why, .. }) => why,
                Err(error) => error.to_string(),
            };
            // It may have connected in another way.
            if peer.is_open().is_ok_and(|open| !open) {
                self.lose(&peer, &why);
            }
        }
        !attempts.is_empty()
    }

    /// Answers the next agent that connects.
    fn answer(&self, listener: &mut Listener) -> symrail_transport::Result<Option<Attempt>> {
        let Some(arrival) = listener.poll(&self.session)? else { return Ok(None) };
        let pe = arrival.pe();
        if pe == self.session.me() {
            let why = "it has this agent's own identity".into();
            return Err(TransportError::Malformed { what: "the greeting of an agent", pe, why });
        }
        self.welcome(arrival).map(Some).inspect_err(|error| self.keep_out(pe, &error.to_string()))
    }

    /// Removes a peer of the session that this agent does not know.
    pub fn keep_out(&self, pe: Pe, why: &str) {
        if !lock(&self.peers).contains_key(&pe) {
            self.session.remove_peer(pe, why);
        }
    }

    fn welcome(&self, arrival: Arrival) -> symrail_transport::Result<Attempt> {
        let pe = arrival.pe();
        let malformed = |why| TransportError::Malformed { what: "the greeting of an agent", pe, why };
        let (name, ring): Hello = encoding::decode(arrival.payload(), "the greeting of an agent", pe)?;
        must_be_a_name(&name).map_err(|error| malformed(error.to_string()))?;
        let ring = Memory::of_peer(arrival.pe(), &ring)?;
        let ours = Ring::new(&self.session)?;
        let peer = self.peer(arrival.pe(), &name);
        let hello: Hello = (self.name.clone(), ours.handle());
        let answered = arrival.answer(&self.session, &encoding::encode(&hello))?;
        Ok(Attempt { way: Way::Answered(answered, ring), peer, ours, since: Instant::now() })
    }

    /// Cancels all transfers, waits for what is under way, and sends the notifications that wait, for a limited time.
    /// The thread has ended.
    pub fn finish(&self) {
        let begun = Instant::now();
        let mut backoff = Backoff::new(64, 256, BUSY);
        let mut running = lock(&self.running);
        running.closed = true;
        running.transfers.iter().for_each(|one| one.cancel());
        drop(running);
        let shared = self.sharing.all();
        shared.iter().for_each(|id| self.withdraw(*id));
        let is_used = || self.has_running() || shared.iter().any(|id| self.sharing.is_in_use(*id));
        // Operations end by themselves after the time-out at the latest.
        while (self.round(true) || is_used()) && begun.elapsed() < self.settles_within() {
            if !is_used() && begun.elapsed() > LAST_NOTIFICATIONS {
                break;
            }
            backoff.pause();
        }
        let mut connecting = lock(&self.connecting);
        connecting.attempts.clear();
        drop(connecting);
        let peers = std::mem::take(&mut *lock(&self.peers));
        peers.values().for_each(|peer| peer.fail("this agent has ended"));
    }
}

#[cfg(test)]
mod tests;
