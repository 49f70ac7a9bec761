//! Another agent: its connection, its state, and the notifications to it and from it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use symrail_core::{encoding, lock};
use symrail_heap::HostIdentity;
use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::rendezvous::{Link, State as LinkState};
use symrail_proxy::session::{Registered, Session};
use symrail_transport::Pe;

use crate::error::{Error, Result};
use crate::inbox::Inbox;
use crate::mappings::{Mappings, Reach};
use crate::memory::MemoryId;
use crate::outbox::{Delivery, Incoming, Outbox};
use crate::ring::{Ring, Stream};
use crate::sharing::{Message, Sharing};

/// A connection, and the rings at both of its ends.
pub struct Connection {
    link: Link,
    ours: Ring,
    theirs: Registered,
    notifications: Incoming,
    messages: Incoming,
}

impl Connection {
    pub fn new(link: Link, ours: Ring, theirs: Registered) -> Connection {
        let [notifications, messages] = Stream::ALL.map(Incoming::new);
        Connection { link, ours, theirs, notifications, messages }
    }
}

struct State {
    /// Mostly one. There are two when both agents have connected at the same time.
    connections: Vec<Connection>,
    /// Notifications, and messages to the agent itself. They use the first connection.
    outbox: Outbox,
    messages: Outbox,
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
            state: Mutex::new(State::new()),
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
            state.messages.tell(message);
            let _ = state.send(session);
        }
    }

    /// How copies of a device get to its memory.
    pub fn reach(&self, session: &Session, sharing: &Sharing, device: i32, memory: &Registered) -> Reach {
        let Some(host) = &sharing.host else { return Reach::No };
        let id = memory.offset();
        let mut state = lock(&self.state);
        let found = self.find(&mut state, session, (sharing, host), device, id);
        let shared = if let Reach::Unknown = found { state.mappings.begin(device, id) } else { None };
        drop(state);
        let Some(shared) = shared else { return found };
        // Without the lock: the driver may take long, and everything else that concerns the peer goes on.
        let why = |why: &String| tracing::info!(device, why, "memory of another agent is not mapped");
        let mapped = sharing.devices.map(device, &shared, memory.len()).inspect_err(why).ok().map(Arc::from);
        lock(&self.state).mappings.made(id, device, mapped)
    }

    fn find(
        &self,
        state: &mut State,
        session: &Session,
        (sharing, host): (&Sharing, &HostIdentity),
        device: i32,
        id: MemoryId,
    ) -> Reach {
        let State { messages, mappings, .. } = &mut *state;
        if self.pe != session.me() {
            let ask = |question| messages.tell(&Message::Map(id, question, host.clone()));
            let found = mappings.find(device, id, ask);
            let _ = state.send(session);
            return found;
        }
        let mut asked = None;
        let found = mappings.find(device, id, |question| asked = Some(question));
        let Some(question) = asked else { return found };
        // Nobody else has to know of the end of its own mappings.
        mappings.sweep(|id| self.knows(id));
        mappings.told(id, question, sharing.own(id));
        mappings.find(device, id, |_| {})
    }

    /// Whether memory of it is in use here.
    fn knows(&self, id: MemoryId) -> bool {
        lock(&self.memories).get(&id).is_some_and(|known| known.strong_count() > 0)
    }

    /// Sends and receives notifications. `looks` also asks whether the other end is there.
    ///
    /// # Errors
    /// The reason for which the peer is lost. What has arrived is left to [`Peer::receive_last`].
    pub fn advance(&self, session: &Session, inbox: &Inbox, sharing: &Sharing, looks: bool) -> Result<(), String> {
        let mut state = lock(&self.state);
        if self.lost.get().is_some() {
            return Ok(());
        }
        let mut ended = Ok(());
        for connection in state.connections.iter_mut().filter(|_| looks) {
            let (has_closed, why) = match connection.link.poll(session) {
                LinkState::Open => continue,
                LinkState::Closed | LinkState::Left => (true, "it has left".to_owned()),
                LinkState::Lost(why) => (true, why.clone()),
                LinkState::Failed(why) => (false, why.clone()),
            };
            ended = ended.and(Err(why));
            self.closed.fetch_or(has_closed, Ordering::Relaxed);
        }
        for message in state.mappings.sweep(|id| self.knows(id)) {
            state.messages.tell(&message);
        }
        ended.and_then(|()| state.send(session).map_err(|error| error.to_string()))?;
        self.receive(&mut state, session, (inbox, sharing), false)
    }

    /// Receives messages to the agent itself, and notifications while there is room; the last ones, of an end that has
    /// left, in any case.
    fn receive(
        &self,
        state: &mut State,
        session: &Session,
        (inbox, sharing): (&Inbox, &Sharing),
        last: bool,
    ) -> Result<(), String> {
        let State { connections, messages, mappings, .. } = state;
        for Connection { ours, theirs, notifications, messages: incoming, .. } in connections {
            // A confirmation fails for a peer that is lost, which a look or an operation finds.
            while let Some(message) = incoming.next(ours, last)? {
                self.handle(&message, (&mut *messages, &mut *mappings), sharing)?;
                if incoming.confirm(session, theirs).is_err() && !last {
                    break;
                }
            }
            let _ = incoming.confirm(session, theirs);
            while (last || inbox.has_room())
                && let Some(message) = notifications.next(ours, last)?
            {
                inbox.add(&self.name, message);
                if notifications.confirm(session, theirs).is_err() && !last {
                    break;
                }
            }
            let _ = notifications.confirm(session, theirs);
        }
        Ok(())
    }

    /// Receives all that has arrived, before the connections are closed: the other end may have been told so.
    pub fn receive_last(&self, session: &Session, inbox: &Inbox, sharing: &Sharing) {
        // A message that is not whole was not acknowledged.
        let _ = self.receive(&mut lock(&self.state), session, (inbox, sharing), true);
    }

    /// Handles a message to the agent itself.
    fn handle(
        &self,
        message: &[u8],
        (messages, mappings): (&mut Outbox, &mut Mappings),
        sharing: &Sharing,
    ) -> Result<(), String> {
        match encoding::decode(message, "a message about memory", self.pe).map_err(|error| error.to_string())? {
            Message::Map(..) if messages.is_full() => return Err("it asks and takes no answers".into()),
            Message::Map(id, question, host) => {
                messages.tell(&Message::Shared(id, question, sharing.share(self.pe, id, &host)));
            }
            Message::Shared(id, question, shared) => mappings.told(id, question, shared),
            Message::Withdrawn(id) => mappings.end(id),
            Message::Unmapped(id) => sharing.unmapped(self.pe, id),
        }
        Ok(())
    }

    /// Warns of notifications for which it has had no room for so long. Returns whether it has done so now.
    pub fn warns(&self, limit: Duration) -> bool {
        let Some(waiting) = lock(&self.state).outbox.overdue(limit) else { return false };
        let (agent, seconds) = (&self.name, limit.as_secs());
        tracing::warn!(
            agent,
            waiting,
            "the program of this agent has taken no notification for {seconds} s (SYMRAIL_TIMEOUT_S), and too many wait \
             there; those to it, and their transfers, wait until it takes some or ends"
        );
        true
    }

    /// Whether all its notifications, and all messages to it, have ended.
    pub fn is_idle(&self) -> bool {
        lock(&self.state).is_idle()
    }

    /// Fails everything that is not under way, now and later, and closes the connection.
    pub fn lose(&self, why: &str) {
        let error = self.lost.get_or_init(|| Error::Lost { agent: self.name.clone(), why: why.to_owned() });
        let mut state = lock(&self.state);
        state.outboxes().for_each(|outbox| outbox.fail_waiting(error));
        state.close_if_unused();
    }

    /// Whether the other end has closed the connection, which agents do when none of their copies is under way, or its
    /// process has ended.
    pub fn has_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether it is lost and nothing is under way to it. Operations to a lost peer end within seconds.
    pub fn has_settled(&self) -> bool {
        let Some(error) = self.lost.get() else { return false };
        let mut state = lock(&self.state);
        state.outboxes().for_each(|outbox| outbox.settle(error));
        state.close_if_unused() && state.is_idle()
    }

    /// Fails everything, now and later, and closes the connection.
    pub fn fail(&self, why: &str) {
        self.lose(why);
        if let Some(error) = self.lost.get() {
            lock(&self.state).outboxes().for_each(|outbox| outbox.fail(error));
        }
    }
}

impl State {
    fn new() -> State {
        let [outbox, messages] = Stream::ALL.map(Outbox::new);
        State { connections: Vec::new(), outbox, messages, mappings: Mappings::default() }
    }

    fn outboxes(&mut self) -> impl Iterator<Item = &mut Outbox> {
        [&mut self.outbox, &mut self.messages].into_iter()
    }

    fn is_idle(&self) -> bool {
        self.outbox.is_idle() && self.messages.is_idle()
    }

    /// Closes the connection to a lost peer when no copy of its memory is under way. Returns whether that is so.
    fn close_if_unused(&mut self) -> bool {
        let unused = self.mappings.end_all();
        if unused {
            self.connections.clear();
        }
        unused
    }

    fn send(&mut self, session: &Session) -> symrail_transport::Result<()> {
        let State { connections, outbox, messages, .. } = self;
        let Some(Connection { ours, theirs, .. }) = connections.first() else { return Ok(()) };
        messages.advance(session, (ours, theirs))?;
        outbox.advance(session, (ours, theirs))
    }
}
