//! Another agent: its connection, its state, and the notifications to it and from it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use symrail_core::{encoding, lock};
use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::rendezvous::{Link, State as LinkState};
use symrail_proxy::session::{Registered, Session};
use symrail_transport::Pe;

use crate::error::{Error, Result};
use crate::inbox::Inbox;
use crate::mappings::{Mappings, Reach};
use crate::memory::MemoryId;
use crate::outbox::{Delivery, Incoming, Outbox};
use crate::ring::Ring;
use crate::sharing::{Message, Sharing};

/// A connection, and the rings at both of its ends.
pub struct Connection {
    link: Link,
    ours: Ring,
    theirs: Registered,
    incoming: Incoming,
}

impl Connection {
    pub fn new(link: Link, ours: Ring, theirs: Registered) -> Connection {
        Connection { link, ours, theirs, incoming: Incoming::default() }
    }
}

#[derive(Default)]
struct State {
    /// Mostly one. There are two when both agents have connected at the same time.
    connections: Vec<Connection>,
    /// It uses the first connection.
    outbox: Outbox,
    /// Its memory that is mapped here.
    mappings: Mappings,
}

/// A peer of the session.
pub struct Peer {
    /// The name that it has told, or that its metadata has.
    pub name: String,
    pub pe: Pe,
    /// Whether somebody tries to connect to it.
    pub dialed: AtomicBool,
    open: AtomicBool,
    closed: AtomicBool,
    lost: OnceLock<Error>,
    state: Mutex<State>,
    /// Its memory that is in use here, by the numbers of its registrations.
    memories: Mutex<HashMap<MemoryId, Weak<Registered>>>,
}

impl Peer {
    pub fn new(name: &str, pe: Pe, me: Pe) -> Peer {
        Peer {
            name: name.to_owned(),
            pe,
            dialed: AtomicBool::new(pe == me),
            open: AtomicBool::new(pe == me),
            closed: AtomicBool::new(false),
            lost: OnceLock::new(),
            state: Mutex::default(),
            memories: Mutex::default(),
        }
    }

    /// Whether operations can be started to it; `false` while the connection is being made.
    ///
    /// # Errors
    /// It is lost.
    pub fn is_open(&self) -> Result<bool> {
        self.lost.get().map_or_else(|| Ok(self.open.load(Ordering::Acquire)), |error| Err(error.clone()))
    }

    /// Adds a connection to it.
    pub fn add(&self, connection: Connection) {
        let mut state = lock(&self.state);
        // Of a peer that was lost meanwhile, the other end of the connection must know.
        if self.lost.get().is_none() {
            state.connections.push(connection);
            self.open.store(true, Ordering::Release);
        }
    }

    /// Its memory behind a handle. There is one owner for each registration.
    pub fn memory(&self, session: &Arc<Session>, memory: Memory) -> Arc<Registered> {
        let mut all = lock(&self.memories);
        let known = all.get(&memory.offset()).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| ***known == memory) {
            return known;
        }
        if all.len() == all.capacity() {
            all.retain(|_, known| known.strong_count() > 0);
        }
        let id = memory.offset();
        let new = Arc::new(Registered::of_peer(session, memory));
        all.insert(id, Arc::downgrade(&new));
        new
    }

    /// Sends a notification, now or later.
    ///
    /// # Errors
    /// It is lost, or [`Outbox::add`]'s.
    pub fn notify(&self, session: &Session, message: &[u8]) -> Result<Arc<Delivery>> {
        let mut state = lock(&self.state);
        self.is_open()?;
        let delivery = state.outbox.add(message)?;
        // A failure is that of the next look.
        let _ = state.send(session);
        Ok(delivery)
    }

    /// Notes notifications that have arrived there, and sends others, as far as there is room. A failure is that of the
    /// next look.
    pub fn send(&self, session: &Session) {
        let _ = lock(&self.state).send(session);
    }

    /// Sends a message to the agent itself, now or later.
    pub fn tell(&self, session: &Session, message: &Message) {
        let mut state = lock(&self.state);
        if self.lost.get().is_none() {
            state.outbox.tell(message);
            let _ = state.send(session);
        }
    }

    /// How copies of a device get to its memory.
    pub fn reach(&self, session: &Session, sharing: &Sharing, device: i32, memory: &Registered) -> Reach {
        let Some(host) = &sharing.host else { return Reach::No };
        let mut state = lock(&self.state);
        let State { outbox, mappings, .. } = &mut *state;
        let id = memory.offset();
        if self.pe != session.me() {
            let ask = |question| outbox.tell(&Message::Map(id, question, host.clone()));
            let reach = mappings.find(&*sharing.devices, device, memory, ask);
            let _ = state.send(session);
            return reach;
        }
        let mut asked = None;
        let reach = mappings.find(&*sharing.devices, device, memory, |question| asked = Some(question));
        let Some(question) = asked else { return reach };
        // Nobody else has to know of the end of its own mappings.
        mappings.sweep(|id| self.knows(id));
        mappings.told(id, question, sharing.own(id));
        mappings.find(&*sharing.devices, device, memory, |_| {})
    }

    /// Whether memory of it is in use here.
    fn knows(&self, id: MemoryId) -> bool {
        lock(&self.memories).get(&id).is_some_and(|known| known.strong_count() > 0)
    }

    /// Sends and receives notifications. `looks` also asks whether the other end is there.
    ///
    /// # Errors
    /// The reason for which the peer is lost.
    pub fn advance(&self, session: &Session, inbox: &Inbox, sharing: &Sharing, looks: bool) -> Result<(), String> {
        let mut state = lock(&self.state);
        if self.lost.get().is_some() {
            return Ok(());
        }
        let mut ended = Ok(());
        for connection in state.connections.iter_mut().filter(|_| looks) {
            ended = match connection.link.poll() {
                LinkState::Open => ended,
                LinkState::Closed | LinkState::Left => ended.and(Err("it has left".to_owned())),
                LinkState::Lost(why) => ended.and(Err(why.clone())),
            };
            self.closed.fetch_or(ended.is_err(), Ordering::Relaxed);
        }
        for message in state.mappings.sweep(|id| self.knows(id)) {
            state.outbox.tell(&message);
        }
        let sent = ended.and_then(|()| state.send(session).map_err(|error| error.to_string()));
        // Behind the looks at all of them: an end that has left has sent everything before, on whichever connection.
        self.receive(&mut state, session, (inbox, sharing), sent.is_err())?;
        sent
    }

    /// Receives notifications; the last ones, of an end that has left, whether there is room or not.
    fn receive(
        &self,
        state: &mut State,
        session: &Session,
        (inbox, sharing): (&Inbox, &Sharing),
        last: bool,
    ) -> Result<(), String> {
        let State { connections, outbox, mappings } = state;
        for connection in connections {
            while (last || inbox.has_room())
                && let Some((message, internal)) = connection.incoming.next(&connection.ours, last)?
            {
                if internal {
                    self.handle(&message, (&mut *outbox, &mut *mappings), sharing)?;
                } else {
                    inbox.add(&self.name, message);
                }
                if connection.incoming.confirm(session, &connection.theirs).is_err() && !last {
                    break;
                }
            }
            // It fails for a peer that is lost, which a look or an operation finds.
            let _ = connection.incoming.confirm(session, &connection.theirs);
        }
        Ok(())
    }

    /// Handles a message to the agent itself.
    fn handle(
        &self,
        message: &[u8],
        (outbox, mappings): (&mut Outbox, &mut Mappings),
        sharing: &Sharing,
    ) -> Result<(), String> {
        match encoding::decode(message, "a message about memory", self.pe).map_err(|error| error.to_string())? {
            Message::Map(..) if outbox.is_full() => return Err("it asks and takes no answers".into()),
            Message::Map(id, question, host) => {
                outbox.tell(&Message::Shared(id, question, sharing.share(self.pe, id, &host)));
            }
            Message::Shared(id, question, shared) => mappings.told(id, question, shared),
            Message::Withdrawn(id) => mappings.end(id),
            Message::Unmapped(id) => sharing.unmapped(self.pe, id),
        }
        Ok(())
    }

    /// Whether all its notifications have ended.
    pub fn is_idle(&self) -> bool {
        lock(&self.state).outbox.is_idle()
    }

    /// Fails everything that is not under way, now and later, and closes the connection.
    pub fn lose(&self, why: &str) {
        let error = self.lost.get_or_init(|| Error::Lost { agent: self.name.clone(), why: why.to_owned() });
        let mut state = lock(&self.state);
        state.outbox.fail_waiting(error);
        state.close_if_unused();
    }

    /// Whether the other end has closed the connection, which agents do when none of their copies is under way.
    pub fn has_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether it is lost and nothing is under way to it. Operations to a lost peer end within seconds.
    pub fn has_settled(&self) -> bool {
        let Some(error) = self.lost.get() else { return false };
        let mut state = lock(&self.state);
        state.outbox.settle(error);
        state.close_if_unused() && state.outbox.is_idle()
    }

    /// Fails everything, now and later, and closes the connection.
    pub fn fail(&self, why: &str) {
        self.lose(why);
        if let Some(error) = self.lost.get() {
            lock(&self.state).outbox.fail(error);
        }
    }
}

impl State {
    /// Closes the connection to a lost peer when no copy of its memory is under way. Returns whether that is so.
    fn close_if_unused(&mut self) -> bool {
        let unused = self.mappings.end_all();
        if unused {
            self.connections.clear();
        }
        unused
    }

    fn send(&mut self, session: &Session) -> symrail_transport::Result<()> {
        let State { connections, outbox, .. } = self;
        connections.first().map_or(Ok(()), |connection| outbox.advance(session, (&connection.ours, &connection.theirs)))
    }
}
