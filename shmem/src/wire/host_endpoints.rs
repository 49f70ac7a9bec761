//! A PE's host endpoints: the first one, and those of contexts. A context's first operation opens its endpoint.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use symrail_core::lock;
use symrail_proxy::{HOST, IdleWork};
use symrail_transport::Pe;
use symrail_transport::backend::Choice;
use symrail_transport::endpoint::command::Issuer;
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::region::Segment;
use symrail_transport::wire::FROM_CONTEXT;

use super::host::Host;
use crate::directory::{Directory, OfThread};

/// The parameters for opening a further host endpoint.
pub(crate) struct EndpointOpener {
    pub choice: Choice,
    pub settings: Settings,
    pub policy: Policy,
    pub me: Pe,
    pub n_pes: u32,
    /// The directory of peers' addresses.
    pub directory: Arc<Directory>,
    /// The heap's segments.
    pub segments: Vec<Segment>,
}

/// A host endpoint, and the issuer for operations that its user hands to the engine instead.
#[derive(Clone)]
pub(super) struct HostEndpoint {
    pub host: Arc<Host>,
    pub issuer: Issuer,
}

/// All host endpoints.
pub(super) struct HostEndpoints {
    first: Arc<Host>,
    /// The endpoints of contexts, in the order in which they were opened.
    more: Box<[OnceLock<Arc<Host>>]>,
    opened: AtomicUsize,
    recording: AtomicBool,
    opener: Mutex<EndpointOpener>,
}

impl HostEndpoints {
    pub fn new(first: Endpoint, opener: EndpointOpener) -> HostEndpoints {
        let most = if opener.choice.opens_more() { opener.settings.context_endpoints } else { 0 };
        HostEndpoints {
            first: Arc::new(Host::new(first)),
            more: (0..most).map(|_| OnceLock::new()).collect(),
            opened: AtomicUsize::new(0),
            recording: AtomicBool::new(false),
            opener: Mutex::new(opener),
        }
    }

    /// The chosen NICs, by their rails' names, and the reason.
    pub fn described(&self) -> (Vec<(String, String)>, Vec<String>) {
        let choice = &lock(&self.opener).choice;
        let nics = choice.names().into_iter().zip(choice.details()).collect();
        (nics, choice.why())
    }

    /// The default context's endpoint.
    pub fn first(&self) -> HostEndpoint {
        HostEndpoint { host: Arc::clone(&self.first), issuer: HOST }
    }

    /// An endpoint for a context: its own, or the first one if the limit is reached.
    pub fn take(&self) -> HostEndpoint {
        let opener = lock(&self.opener);
        let number = self.opened.load(Ordering::Relaxed);
        let Some(place) = self.more.get(number) else { return self.first() };
        // The setting's limit is below the largest origin.
        match opener.open(FROM_CONTEXT + number as u8) {
            Ok(endpoint) => {
                let host = Arc::clone(place.get_or_init(|| Arc::new(Host::new(endpoint))));
                if self.recording.load(Ordering::Relaxed) {
                    host.lock().endpoint.record();
                }
                self.opened.store(number + 1, Ordering::Release);
                HostEndpoint { host, issuer: HOST + 1 + number as Issuer }
            }
            Err(error) => {
                tracing::warn!(%error, "a context shares the host endpoint: it cannot have one of its own");
                self.first()
            }
        }
    }

    /// The open endpoints of contexts.
    pub fn of_contexts(&self) -> impl Iterator<Item = &Host> {
        self.more.iter().take(self.opened.load(Ordering::Acquire)).filter_map(|host| host.get().map(Arc::as_ref))
    }

    /// All open endpoints.
    pub fn all(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(self.first.as_ref()).chain(self.of_contexts())
    }

    /// Polls endpoints that can make progress and that no other thread uses. Returns whether polling still can.
    pub fn poll_if_unused(&self) -> bool {
        self.all().filter(|host| host.poll_if_unused()).count() > 0
    }

    /// As [`Host::idle_work`], for all of them.
    pub fn idle_work(&self) -> IdleWork {
        self.all().map(Host::idle_work).max().unwrap_or(IdleWork::Nothing)
    }

    /// Records every work request from now on.
    pub fn record(&self) {
        let _opener = lock(&self.opener); // no endpoint is opened in between
        self.recording.store(true, Ordering::Relaxed);
        self.all().for_each(|host| host.lock().endpoint.record());
    }

    /// Registers a segment of the heap with all open endpoints, and with those to come.
    ///
    /// # Safety
    /// The segment stays mapped as long as the endpoints live.
    ///
    /// # Errors
    /// An error of the provider.
    pub unsafe fn register(&self, segment: Segment) -> Result<(), symrail_transport::Error> {
        let mut opener = lock(&self.opener);
        for host in self.all() {
            // SAFETY: the caller's promise.
            unsafe { host.lock().endpoint.register(segment) }?;
        }
        opener.segments.push(segment);
        Ok(())
    }

    /// Lets all of them read the directory's keys of a segment.
    ///
    /// # Errors
    /// As for [`Endpoint::learn_segment`].
    pub fn learn_segment(&self, id: u32) -> Result<(), symrail_transport::Error> {
        let _opener = lock(&self.opener); // endpoints opened later find it in the directory
        self.all().try_for_each(|host| host.lock().endpoint.learn_segment(id))
    }
}

impl EndpointOpener {
    fn open(&self, origin: u8) -> Result<Endpoint, symrail_transport::Error> {
        let rails = self.choice.open_first(Role::Host, self.n_pes, &self.settings)?;
        let mut endpoint = Endpoint::new(Role::Host, self.me, self.n_pes, rails, self.policy)?;
        endpoint.introduce_as(origin);
        endpoint.set_directory(Arc::new(OfThread { directory: Arc::clone(&self.directory), thread: 0 }));
        for &segment in &self.segments {
            // SAFETY: the caller that passed the segment vouched for it (`HostEndpoints::register`, or where the opener
            // was made).
            unsafe { endpoint.register(segment) }?;
        }
        Ok(endpoint)
    }
}
