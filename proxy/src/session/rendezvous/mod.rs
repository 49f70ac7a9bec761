//! Connecting two sessions by a handle of 128 bytes: a TCP address and a secret.
//!
//! | step | dialer | listener |
//! |---|---|---|
//! | 1 | [`Dial::new`] with the listener's [`Handle`] | [`Listener::new`], [`Listener::handle`] |
//! | 2 | shows that it has the secret, sends its card | [`Listener::poll`] returns an [`Arrival`]: the dialer is its peer |
//! | 3 | [`Dial::poll`] returns a [`Link`]: the listener is its peer | [`Arrival::answer`] |
//! | 4 | | [`Answered::poll`] returns a [`Link`]: the dialer can receive |
//!
//! No function here blocks; the caller repeats it. A card holds the sender's identity, the number that it has for the
//! other session, its connection info, and bytes of the caller. Two sessions may connect any number of times: they
//! become peers once, and each [`Link`] tells for itself when the other end has closed it or has died. A link's
//! connection stays until both ends have closed it, so its end after a goodbye is that of the session. A peer whose session
//! has ended is removed when no link to it is left.
//!
//! What strangers can make a listener allocate is bounded: it keeps [`MOST_STRANGERS`] connections that have not shown
//! the secret, each with less than 100 bytes, and drops the oldest of them for a new one.

mod handle;
mod stream;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use serde::{Deserialize, Serialize};
use symrail_core::encoding;
use symrail_transport::pairing::is_link_local;
use symrail_transport::{Error, Operation, Pe, Result, token};

use super::links::{Links, Other};
use super::{Identity, Request, Session};
pub use handle::{HANDLE_SIZE, Handle};
use stream::{Ended, Kind, Stream};

/// The most connections to a listener that have not shown the secret.
pub const MOST_STRANGERS: usize = 64;

/// How long a stranger may take to show the secret before it makes room for another one.
const HANDSHAKE: Duration = Duration::from_millis(200);
/// For so long a dialer that has sent its card dials again when the connection ends: its listener may have made room.
/// So does one that was refused, as a host may do when it has too many, or could not reach it.
const REDIALS: Duration = Duration::from_secs(1);
/// The time between two questions to the peer of a link whose path has failed.
const PROBES: Duration = Duration::from_secs(1);

/// What both ends tell each other.
#[derive(Serialize, Deserialize)]
struct Card {
    identity: Identity,
    /// The number that the sender has for the receiver.
    number: Pe,
    connection_info: Vec<u8>,
    payload: Vec<u8>,
    /// A dialer's: its connection stays until one of both sessions has ended.
    watches: bool,
}

impl Card {
    fn new(session: &Session, number: Pe, payload: &[u8]) -> Result<Card> {
        let connection_info = session.connection_info_for(number)?;
        Ok(Card { identity: *session.identity(), number, connection_info, payload: payload.to_vec(), watches: false })
    }
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::System { what, reason: error.to_string() }
}

fn lost(pe: Pe, why: String) -> Error {
    Error::PeerLost { operation: Operation::Put, pe, why }
}

/// A place where others can connect.
pub struct Listener {
    socket: TcpListener,
    handle: Handle,
    strangers: VecDeque<(Stream, Instant)>,
}

impl Listener {
    /// A listener on a random port of the address of the session's first rail. Where that has none, it is the first
    /// address of the host that others can reach, and else loopback.
    ///
    /// # Errors
    /// The system has no port or no random numbers left.
    pub fn new(session: &Session) -> Result<Listener> {
        let what = "listening for peers";
        let socket = TcpListener::bind(SocketAddr::new(session.interface(), 0)).map_err(system(what))?;
        socket.set_nonblocking(true).map_err(system(what))?;
        let address = socket.local_addr().map_err(system(what))?;
        let handle = Handle { address, identity: *session.identity(), secret: token::random_bytes()? };
        Ok(Listener { socket, handle, strangers: VecDeque::new() })
    }

    /// The handle for one dialer or many.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The next dialer that has shown the secret, if there is one. It is a peer from then on.
    ///
    /// # Errors
    /// The system's error; a dialer whose card is malformed or does not agree with this session.
    pub fn poll(&mut self, session: &Session) -> Result<Option<Arrival>> {
        // Those that wait come first: a lack of descriptors for others must not keep them.
        if let Some(arrival) = self.read(session)? {
            return Ok(Some(arrival));
        }
        let accepted = self.accept();
        match self.read(session)? {
            None => accepted.map(|()| None),
            arrival => Ok(arrival),
        }
    }

    /// Accepts dialers. The oldest one that has not shown the secret within [`HANDSHAKE`] makes room for a new one. Where
    /// there is none, new ones wait in the socket.
    fn accept(&mut self) -> Result<()> {
        loop {
            let late = |(stranger, since): &(Stream, Instant)| !stranger.is_open() && since.elapsed() > HANDSHAKE;
            let leaves = self.strangers.iter().position(late);
            if self.strangers.len() >= MOST_STRANGERS && leaves.is_none() {
                return Ok(());
            }
            match self.socket.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(true).map_err(system("accepting a peer"))?;
                    if self.strangers.len() >= MOST_STRANGERS {
                        leaves.map(|at| self.strangers.remove(at));
                    }
                    self.strangers.push_back((Stream::new(socket, false, self.handle.secret)?, Instant::now()));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(system("accepting a peer")(error)),
            }
        }
    }

    /// The first dialer whose card has arrived.
    fn read(&mut self, session: &Session) -> Result<Option<Arrival>> {
        for _ in 0..self.strangers.len() {
            let Some((mut stream, since)) = self.strangers.pop_front() else { break };
            match stream.receive() {
                Ok(Some((Kind::Card, bytes))) => return Arrival::new(session, stream, &bytes).map(Some),
                Ok(Some((kind, _))) => tracing::debug!(?kind, "a dialer has sent another frame than its card"),
                Ok(None) => self.strangers.push_back((stream, since)),
                Err(why) => tracing::debug!(?why, "a connection to a listener has ended"),
            }
        }
        Ok(None)
    }
}

/// A dialer that waits for an answer.
pub struct Arrival {
    stream: Stream,
    pe: Pe,
    payload: Vec<u8>,
    watches: bool,
}

impl Arrival {
    fn new(session: &Session, mut stream: Stream, bytes: &[u8]) -> Result<Arrival> {
        let card: Card = encoding::decode(bytes, "a dialer's card", session.me())?;
        let pe = session.number_for(&card.identity)?;
        session.add_peer(pe, card.number, &card.connection_info).inspect_err(|error| {
            // So that the dialer's user, too, is told which setting differs.
            if let (Error::Mismatch { .. }, Ok(card)) = (error, Card::new(session, pe, &[])) {
                let _ = stream.send(Kind::Card, &encoding::encode(&card));
            }
            session.keep_out(pe, error);
        })?;
        Ok(Arrival { stream, pe, payload: card.payload, watches: card.watches && pe != session.me() })
    }

    /// The dialer's number in this session.
    #[must_use]
    pub fn pe(&self) -> Pe {
        self.pe
    }

    /// The bytes of the dialer's caller.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Answers with bytes for the dialer's caller.
    ///
    /// # Errors
    /// Too many bytes.
    pub fn answer(mut self, session: &Session, payload: &[u8]) -> Result<Answered> {
        self.stream.send(Kind::Card, &encoding::encode(&Card::new(session, self.pe, payload)?))?;
        if self.watches {
            session.links.watch(self.pe);
        }
        Ok(Answered { link: Some(Link::new(self.stream, self.pe, session, self.watches)) })
    }
}

/// A dialer that was answered.
pub struct Answered {
    /// None once it was handed over. The dialer may have its link already: dropping this one closes both.
    link: Option<Link>,
}

impl Answered {
    /// The connection, once the dialer has noticed the answer.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub fn poll(&mut self) -> Result<Option<Link>> {
        let Some(link) = &mut self.link else { return Ok(None) };
        let why = match link.stream.as_mut().map_or(Ok(None), Stream::receive) {
            Ok(Some((Kind::Ready, _))) => return Ok(self.link.take().map(Link::established)),
            Ok(None) => return Ok(None),
            Ok(Some(_)) => "it has sent something else than that it is ready".into(),
            Err(ended) => ended.why(),
        };
        Err(lost(link.pe, why))
    }
}

/// An attempt to connect to a listener.
pub struct Dial {
    handle: Handle,
    payload: Vec<u8>,
    /// None once it was handed over.
    stream: Option<Stream>,
    pe: Pe,
    since: Instant,
    carded: bool,
    watches: bool,
    /// When a connection over which it had sent its card has ended, or one did not reach the listener.
    ended: Option<Instant>,
    /// Why the last connection has ended, while the next one is being made.
    failure: Option<String>,
}

impl Dial {
    /// Starts to connect. The listener's caller gets the `payload`.
    ///
    /// # Errors
    /// The system's error; no number is left for another peer.
    pub fn new(session: &Session, handle: &Handle, payload: &[u8]) -> Result<Dial> {
        Ok(Dial {
            stream: Some(dial(handle)?),
            pe: session.number_for(&handle.identity)?,
            handle: handle.clone(),
            payload: payload.to_vec(),
            since: Instant::now(),
            carded: false,
            watches: false,
            ended: None,
            failure: None,
        })
    }

    /// The connection and the bytes of the listener's caller, once it has answered.
    ///
    /// There is no limit of time for the listener's caller, only for reaching its process.
    ///
    /// # Errors
    /// [`Error::PeerLost`] for a listener that is not there, cannot be reached, or does not have the secret; a card that
    /// is malformed or does not agree with this session.
    pub fn poll(&mut self, session: &Session) -> Result<Option<(Link, Vec<u8>)>> {
        self.advance(session).inspect_err(|error| {
            if std::mem::take(&mut self.watches) {
                session.links.release(self.pe);
            }
            session.keep_out(self.pe, error);
        })
    }

    /// Why the last connection has ended, while the listener is dialed again: for a caller that waits no longer.
    #[must_use]
    pub fn last_failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn advance(&mut self, session: &Session) -> Result<Option<(Link, Vec<u8>)>> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        let received = stream.receive();
        if matches!((&received, self.carded), (Err(_), true) | (Err(Ended::Unreached(_)), _)) {
            self.ended.get_or_insert_with(Instant::now);
        }
        let redials = self.since.elapsed() < session.time_limit && self.ended.is_none_or(|at| at.elapsed() < REDIALS);
        if !self.carded && stream.is_open() {
            (self.carded, self.failure) = (true, None);
            let card = Card::new(session, self.pe, &self.payload)?;
            self.watches |= self.pe != session.me() && session.links.claim(self.pe);
            stream.send(Kind::Card, &encoding::encode(&Card { watches: self.watches, ..card }))?;
        }
        let at_listener = |why: &str| format!("its listener at {}: {why}", self.handle.address);
        let to = |why: &str| lost(self.pe, at_listener(why));
        let bytes = match received {
            Ok(Some((Kind::Card, bytes))) => bytes,
            Ok(Some(_)) => return Err(to("it has sent another frame than its card")),
            Ok(None) => return Ok(None),
            // A listener that is flooded by strangers may have dropped this connection, also when it has not read yet
            // that this end has the secret.
            Err(ended @ (Ended::ByPeer(_) | Ended::Unreached(_))) if redials => {
                self.failure = Some(at_listener(&ended.why()));
                (self.stream, self.carded) = (Some(dial(&self.handle)?), false);
                return Ok(None);
            }
            Err(ended) => return Err(to(&ended.why())),
        };
        let card: Card = encoding::decode(&bytes, "a listener's card", self.pe)?;
        if card.identity != self.handle.identity {
            return Err(to("it is another session's"));
        }
        session.add_peer(self.pe, card.number, &card.connection_info)?;
        stream.send(Kind::Ready, &[])?;
        let watches = std::mem::take(&mut self.watches);
        let link = self.stream.take().map(|stream| Link::new(stream, self.pe, session, watches).established());
        Ok(link.map(|link| (link, card.payload)))
    }
}

/// A socket that connects to the listener.
fn dial(handle: &Handle) -> Result<Stream> {
    let what = "connecting to a listener";
    let nix = |errno: Errno| system(what)(errno.into());
    let family = if handle.address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None).map_err(nix)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(handle.address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(errno) => return Err(nix(errno)),
    }
    Stream::new(TcpStream::from(socket), true, handle.secret)
}

/// Whether the other end of a [`Link`] is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is, as far as this end knows.
    Open,
    /// It has closed its link.
    Closed,
    /// It has closed its link, and its session has ended since.
    Left,
    /// Its process has ended without closing it.
    Lost(String),
    /// This end has given it up: it has not answered, or has sent what it must not. Its process may live.
    Failed(String),
}

/// A connection between two sessions that are peers. Dropping it closes it.
pub struct Link {
    /// None once it has closed.
    stream: Option<Stream>,
    pe: Pe,
    state: State,
    /// While the path has failed: the last question to the peer, over its rails, and when it was asked.
    probe: Option<(Option<Request>, Instant)>,
    /// Its connection stays until one of both sessions has ended.
    watches: bool,
    all: Arc<Links>,
}

impl Link {
    fn new(stream: Stream, pe: Pe, session: &Session, watches: bool) -> Link {
        let all = Arc::clone(&session.links);
        all.open(pe);
        Link { stream: Some(stream), pe, state: State::Open, probe: None, watches, all }
    }

    /// Both ends have it.
    fn established(mut self) -> Link {
        self.stream.iter_mut().for_each(Stream::outlives_path);
        self
    }

    /// The peer's number in this session.
    #[must_use]
    pub fn pe(&self) -> Pe {
        self.pe
    }

    /// What the last [`Link::poll`] has found.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether its path has failed: then it does not tell of another end that closes, but of one whose process has ended.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_broken)
    }

    /// Whether the other end is there. A path that has failed says nothing about that: then the peer is asked over its
    /// rails, which ends within the limit of operations.
    pub fn poll(&mut self, session: &Session) -> &State {
        while let (State::Open | State::Closed, Some(stream)) = (&self.state, &mut self.stream) {
            self.state = match (stream.receive(), &self.state) {
                (Ok(None), _) => break,
                (Ok(Some((Kind::Goodbye, _))), State::Open) => State::Closed,
                (Ok(Some(_)), _) => State::Failed("it has sent another frame than a goodbye".into()),
                (Err(Ended::ByPeer(_)), State::Closed) => State::Left,
                (Err(Ended::ByPeer(why)), _) => State::Lost(format!("its process has ended ({why})")),
                (Err(ended), _) => State::Failed(ended.why()),
            };
        }
        if matches!(self.state, State::Open | State::Closed) && self.is_broken() {
            self.ask(session).unwrap_or_else(|why| self.state = State::Failed(why.to_string()));
        }
        &self.state
    }

    /// Asks the peer for a sign of life, again and again.
    fn ask(&mut self, session: &Session) -> Result<()> {
        let answered = match &self.probe {
            Some((Some(probe), _)) => session.test(probe)?,
            _ => true,
        };
        if answered && self.probe.as_ref().is_none_or(|(_, asked)| asked.elapsed() > PROBES) {
            self.probe = Some((session.start_probe(self.pe)?, Instant::now()));
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        // A frame of this size is never too large.
        let _ = stream.send(Kind::Goodbye, &[]);
        let is = [self.watches, stream.is_established(), self.state == State::Closed];
        self.all.close(self.pe, is, Box::new(move || look(&mut stream)));
    }
}

/// Looks at the other end of a link that this one has closed.
fn look(stream: &mut Stream) -> Other {
    loop {
        match stream.receive() {
            Ok(None) if stream.is_broken() => return Other::Unknown,
            Ok(None) => return Other::Open,
            // It is on the way when an answer is given up.
            Ok(Some((Kind::Ready, _))) => {}
            Ok(Some((Kind::Goodbye, _))) => return Other::Closed,
            Err(Ended::ByPeer(_)) => return Other::Ended,
            Ok(Some(_)) | Err(_) => return Other::Unknown,
        }
    }
}

impl Session {
    /// An address of this host at which peers are likely to reach it.
    fn interface(&self) -> IpAddr {
        let mut engine = self.driver.engine();
        let of_rails =
            engine.endpoint().interfaces().iter().flatten().map(|found| found.ip).find(|ip| !is_link_local(*ip));
        of_rails.or_else(of_host).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

/// The first IPv4 address of this host that is not loopback's.
fn of_host() -> Option<IpAddr> {
    let v4 = |found: nix::ifaddrs::InterfaceAddress| Some(IpAddr::V4(found.address?.as_sockaddr_in()?.ip()));
    nix::ifaddrs::getifaddrs().ok()?.filter_map(v4).find(|ip| !ip.is_loopback())
}
