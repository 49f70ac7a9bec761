//! The rendezvous service: one thread, one socket, and the PEs of a job or of one relay.
//!
//! [`Server`] is the handle; the thread runs [`Service`](super::service). Dropping the handle stops the thread.

use std::io::{self, Write};
use std::net::{IpAddr, TcpStream};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::super::error::{Error, Result, Step};
use super::connection::Connection;
use super::dial::{Answer, enter};
use super::membership::Membership;
use super::node::{Config, Event, Node, Place};
use super::plan::{FAN_OUT, Shape};
use super::service::Service;
use super::socket::{Address, Listener, interface_of};
use super::wire::Secret;

/// The handler of every [`Event`], called on the service's thread; it must not block.
pub type OnEvent = Box<dyn FnMut(Event) + Send>;

/// A service's configuration.
pub struct Options {
    /// The job's size, if it is known; otherwise the first PE's claim counts, and the others must agree.
    pub n_pes: Option<u32>,
    /// The time limit for the proof that a connection belongs to the job.
    pub hello_timeout: Duration,
    /// The owner reports each PE whose process has ended ([`Server::process_ended`]). All other PEs are then known to
    /// be alive, and the service waits for them. Relays in PEs would not get these reports, so such a job has none.
    pub watched: bool,
    /// The shape of the tree, for a job that is too large for one service.
    pub shape: Shape,
    /// The handler of events.
    pub on_event: OnEvent,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            n_pes: None,
            hello_timeout: Duration::from_secs(5),
            watched: false,
            shape: Shape::FanOut(FAN_OUT),
            on_event: Box::new(drop),
        }
    }
}

impl Options {
    /// # Errors
    /// The job's processes are watched, but PEs would run relays.
    fn check(&self, address: &dyn std::fmt::Display) -> Result<()> {
        if !self.watched || self.shape == Shape::STAR || matches!(self.shape, Shape::Hosts(_)) {
            return Ok(());
        }
        let reason = "nobody would tell relays in PEs of processes that have ended".into();
        let remedy = "give it Shape::STAR or Shape::Hosts, or do not watch processes";
        Err(Error::Service { address: address.to_string(), reason, remedy })
    }
}

/// State that the handle and the thread share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    pub(super) refused: AtomicU64,
    /// PEs that ended without ever joining, as their launcher reported.
    pub(super) ended: Mutex<Vec<Pe>>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// The state of the thread's output.
#[derive(Default)]
struct Progress {
    /// The number of PEs that are connected or have unsent data.
    present: usize,
    /// There is unsent data.
    unsent: bool,
}

impl Shared {
    /// The thread begins to send.
    pub(super) fn set_unsent(&self) {
        lock(&self.progress).unsent = true;
    }

    /// Sets what remains after the thread has sent what it could.
    pub(super) fn set_left(&self, present: usize, unsent: bool) {
        *lock(&self.progress) = Progress { present, unsent };
        self.changed.notify_all();
    }
}

/// A lock that a panic elsewhere cannot poison: its data is valid after every statement.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(in super::super) const ONE_INTERFACE: &str = "pass the address or the name of one interface of this machine";

fn refused(at: &str, error: &io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE) => "allow this process more descriptors (ulimit -n)",
        Some(libc::ENFILE) => "this host has no descriptors left (fs.file-max)",
        Some(libc::EAGAIN) => "allow more processes (ulimit -u): no thread could be started",
        _ => ONE_INTERFACE,
    };
    Error::Service { address: at.into(), reason: error.to_string(), remedy }
}

/// A running rendezvous service.
pub struct Server {
    address: Address,
    secret: Secret,
    shared: Arc<Shared>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a service on a random port of one interface of this machine, or without one on a Unix-domain socket for
    /// the processes of this network namespace.
    ///
    /// # Errors
    /// An address that belongs to no interface, options that contradict each other, or an error of the system.
    pub fn start(interface: impl Into<Option<IpAddr>>, secret: &Secret, options: Options) -> Result<Server> {
        let interface = interface.into();
        let at = interface.map_or_else(|| "this machine".into(), |ip| ip.to_string());
        if interface.is_some_and(|ip| ip.is_unspecified() || ip.is_multicast()) {
            let reason = "it stands for many interfaces, and the service listens on one only".into();
            return Err(Error::Service { address: at, reason, remedy: ONE_INTERFACE });
        }
        options.check(&at)?;
        let config =
            Config { n_pes: options.n_pes, relay: None, shape: options.shape.clone(), watched: options.watched };
        Listener::bind(interface)
            .and_then(|listener| Server::run(listener, secret, options, Node::new(config), None))
            .map_err(|error| refused(&at, &error))
    }

    /// Starts a relay: a service for consecutive PEs of a larger job, which it joins on their behalf. It listens on the
    /// interface through which it reaches the node above it: the node at `job.address`, or one below that. `job.pe` is
    /// the first of its PEs; `run_by` is the PE whose process this is, if it is a PE's.
    ///
    /// # Errors
    /// As for [`Client::join`](super::Client::join) and [`Server::start`].
    pub fn relay(job: &Membership, pes: Range<Pe>, run_by: Option<Pe>, options: Options) -> Result<Server> {
        options.check(&job.address)?;
        let mut listener = None;
        let mut begin = |stream: &TcpStream, to: Address| {
            let bound = Listener::bind(interface_of(stream, to)?)?;
            let address = bound.address();
            listener = Some(bound);
            address
        };
        let (dialed, answer) = enter(job, job.address, Some(&mut begin))?;
        let address = dialed.address;
        let (Answer::Welcome(parent_run_by), Some(listener)) = (answer, listener) else {
            let why = "it has another place for a relay".into();
            return Err(Error::Untrusted { pe: job.pe, step: Step::Join, address: address.to_string(), why });
        };
        let config = Config {
            n_pes: Some(job.n_pes),
            relay: Some(Place { pes, run_by, parent_run_by }),
            shape: options.shape.clone(),
            watched: options.watched,
        };
        let connection = Connection::to_parent(dialed, job.pe);
        connection
            .and_then(|parent_end| Server::run(listener, &job.secret, options, Node::new(config), Some(parent_end)))
            .map_err(|error| refused(&address.to_string(), &error))
    }

    fn run(
        listener: Listener,
        secret: &Secret,
        options: Options,
        node: Node,
        parent: Option<Connection>,
    ) -> io::Result<Server> {
        let address = listener.address()?;
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let shared = Arc::new(Shared::default());
        let service = Service::new(listener, woken, secret.clone(), options, Arc::clone(&shared), node, parent);
        let thread = std::thread::Builder::new().name("rendezvous".into()).spawn(|| service.run())?;
        Ok(Server { address, secret: secret.clone(), shared, wake, thread: Some(thread) })
    }

    /// The address that the service listens on.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The job's key.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// How many connections were dropped because they did not belong to the job.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Reports that a PE's process has ended, so that no PE waits for one that never joined.
    pub fn process_ended(&self, pe: Pe) {
        lock(&self.shared.ended).push(pe);
        self.wake();
    }

    /// Waits until every PE that joined is gone and was sent everything, at most for `timeout`. Returns whether that is
    /// so.
    pub fn wait_until_empty(&self, timeout: Duration) -> bool {
        self.wait(Instant::now() + timeout, |progress| progress.present == 0)
    }

    /// Waits until the node's output is sent to all, at most until `deadline`.
    pub(super) fn wait_until_sent(&self, deadline: Instant) {
        self.wait(deadline, |progress| !progress.unsent);
    }

    fn wait(&self, deadline: Instant, done: impl Fn(&Progress) -> bool) -> bool {
        let mut progress = lock(&self.shared.progress);
        while !done(&progress) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            progress = self.shared.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn wake(&self) {
        // A full pipe wakes the thread as well.
        let _ = (&self.wake).write(&[1]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
