//! Sessions whose peers are not known when they open: peers are added one by one, and removed, while others
//! communicate.
//!
//! There is no job that numbers them. Each session numbers its peers by itself, from 2 on, and is PE 0 of its own
//! numbering. Two sessions tell each other the numbers that they have chosen, and messages to a peer name as their
//! source the number that the *peer* has chosen.
//!
//! A number is never used twice, so a handle or a late message of a peer that was removed is refused, whoever has joined
//! since. What is kept for the number, such as a queue pair, is used again: see [`Endpoint::remove`].
//!
//! [`Endpoint::remove`]: symrail_transport::endpoint::Endpoint::remove

use std::collections::HashMap;

use symrail_core::encoding;
use symrail_heap::CopyEngine;
use symrail_transport::backend::{self, HostPes};
use symrail_transport::endpoint::Addresses;
use symrail_transport::env::Settings;
use symrail_transport::topology::allowed_cpus;
use symrail_transport::{Error, Operation, Pe, Result, token};

use super::connection_info::ConnectionInfo;
use super::{Progress, Session};
use crate::Engine;
use crate::stage::{STAGING_BUFFER_BYTES, STAGING_BUFFER_OFFSET};

/// The number of a session for itself.
const ME: Pe = 0;
/// The numbers of a session, so many that [`MAX_ORIGINS`] endpoints of each have numbers, too.
///
/// [`MAX_ORIGINS`]: symrail_transport::wire::MAX_ORIGINS
const NUMBERS: u32 = 1 << 26;
/// The number of peers for which descriptors are kept free, and queues are long enough.
const EXPECTED: u32 = 64;

/// A random number by which a session is known to others.
pub type Identity = [u8; 16];

/// The numbers that a session has given to its peers.
#[derive(Default)]
pub(super) struct Peers {
    numbers: HashMap<Identity, Pe>,
    /// How many even and how many odd numbers were given.
    given: [u32; 2],
}

impl Session {
    /// Opens the rails of a session whose peers are added one by one. `copy_engine` is as for [`Session::open`]: all
    /// peers have one, or none.
    ///
    /// # Errors
    /// The error of choosing or opening rails.
    pub fn open_without_peers(
        settings: &Settings,
        progress: Progress,
        copy_engine: Option<Box<dyn CopyEngine>>,
    ) -> Result<Session> {
        let host = HostPes::alone(allowed_cpus());
        let choice = backend::choose(settings, &host)?;
        choice.log(&host);
        let stages = copy_engine.is_some();
        let rails = choice.open_for_any(EXPECTED, settings)?;
        let session = Session::open_over(&choice, (ME, NUMBERS), rails, settings, progress, copy_engine)?;
        session.driver.engine().know_only_connected();
        if stages {
            // Its operations on its own staged memory are messages to itself.
            let mut engine = session.driver.engine();
            let own = session.connection_info_of(&mut engine, ME)?;
            Session::join(&mut engine, (ME, ME), own)?;
        }
        Ok(session)
    }

    /// Connects to the peer `pe`, which has the number `me` for this session, and learns its staging buffer.
    fn join(engine: &mut Engine, (pe, me): (Pe, Pe), theirs: ConnectionInfo) -> Result<()> {
        let endpoint = engine.endpoint();
        endpoint.connect_as(me, pe, &Addresses { host: Vec::new(), proxy: theirs.rails })?;
        if theirs.window.is_empty() {
            return Ok(());
        }
        endpoint.learn_separate(pe, STAGING_BUFFER_OFFSET, STAGING_BUFFER_BYTES as u64, &theirs.window)
    }

    /// The identity of this session.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The number of the peer with this identity; a new one for a new peer. That of this session is its own. Peers whose
    /// sessions have ended are removed before.
    ///
    /// # Errors
    /// There are as many peers as the session has numbers.
    pub fn number_for(&self, identity: &Identity) -> Result<Pe> {
        if *identity == self.identity {
            return Ok(self.me);
        }
        for pe in self.links.take_ended() {
            self.remove_peer(pe, "its session has ended");
        }
        let mut peers = symrail_core::lock(&self.peers);
        if let Some(&number) = peers.numbers.get(identity) {
            return Ok(number);
        }
        // One of two sessions chooses even numbers for the other, and that one odd numbers, so that they differ.
        let odd = u32::from(self.identity < *identity);
        let given = &mut peers.given[odd as usize];
        let number = 2 * (*given + 1) + odd;
        if number >= self.n_pes {
            return Err(Error::NoSuchPe { pe: number.into(), last: self.n_pes - 1 });
        }
        *given += 1;
        peers.numbers.insert(*identity, number);
        Ok(number)
    }

    /// As [`Session::connection_info`], for the peer `pe` only.
    ///
    /// # Errors
    /// The error of the backend; [`Error::PeerLost`] for a peer that was removed.
    pub fn connection_info_for(&self, pe: Pe) -> Result<Vec<u8>> {
        let mut engine = self.driver.engine();
        self.must_know(pe)?;
        self.connection_info_of(&mut engine, pe).map(|info| info.encode())
    }

    fn connection_info_of(&self, engine: &mut Engine, pe: Pe) -> Result<ConnectionInfo> {
        Ok(ConnectionInfo { rails: engine.endpoint().addresses_to(pe)?, ..self.connection_info.clone() })
    }

    /// Refuses a peer that was removed. The caller has the engine, so that none is removed meanwhile.
    fn must_know(&self, pe: Pe) -> Result<()> {
        let known = pe == self.me || symrail_core::lock(&self.peers).numbers.values().any(|&number| number == pe);
        let why = || "it was removed from the peers meanwhile".into();
        known.then_some(()).ok_or_else(|| Error::PeerLost { operation: Operation::Put, pe, why: why() })
    }

    /// Makes the peer `pe` reachable, which has the number `me` for this session and this
    /// [`Session::connection_info_for`].
    /// A peer that is reachable stays as it is.
    ///
    /// # Errors
    /// Malformed connection info, settings that do not agree, or the error of the backend about an address;
    /// [`Error::PeerLost`] for a peer that was lost or removed at one of both ends.
    pub fn add_peer(&self, pe: Pe, me: Pe, connection_info: &[u8]) -> Result<()> {
        if pe == self.me {
            return Ok(());
        }
        let theirs: ConnectionInfo = encoding::decode(connection_info, "connection info", pe)?;
        ConnectionInfo::must_agree([(self.me, &self.connection_info), (pe, &theirs)])?;
        let mut engine = self.driver.engine();
        self.must_know(pe)?;
        let endpoint = engine.endpoint();
        if !endpoint.is_connected(pe) {
            return Session::join(&mut engine, (pe, me), theirs);
        }
        if endpoint.source_at(pe) != me {
            let why = "it has removed this session from its peers; open a new one".into();
            return Err(Error::PeerLost { operation: Operation::Put, pe, why });
        }
        endpoint.accepts(Operation::Put, pe)
    }

    /// Removes a peer. Its operations fail within seconds for the reason `why`, and new ones at once; for this reason as
    /// long as operations may be under way. A session with its identity that is added later is another peer.
    pub fn remove_peer(&self, pe: Pe, why: &str) {
        let mut engine = self.driver.engine();
        symrail_core::lock(&self.peers).numbers.retain(|_, &mut number| number != pe);
        self.links.forget(pe);
        engine.endpoint().remove(pe, why);
    }

    /// Removes a peer that could not be added.
    pub(super) fn keep_out(&self, pe: Pe, error: &Error) {
        if !self.driver.engine().endpoint().is_connected(pe) {
            self.remove_peer(pe, &error.to_string());
        }
    }

    /// A fresh identity.
    pub(super) fn new_identity() -> Result<Identity> {
        token::random_bytes()
    }
}
