//! Listening, connecting and accepting. Nothing here blocks: what is not ready is asked for again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use symrail_proxy::session::Words;
use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::rendezvous::{Answered, Dial, Handle, Listener};
use symrail_transport::Pe;

use crate::abi::HANDLE_SIZE;
use crate::channel::Channel;
use crate::network::Network;
use crate::receive::Receiver;
use crate::report::{Failure, Result};
use crate::ring;
use crate::send::Sender;

/// The bytes of a handle behind those of [`Handle::encode`], in which `connect` keeps the number of an attempt between
/// NCCL's calls.
const ATTEMPT: usize = HANDLE_SIZE - 8;

/// A place where others connect, and the connection that is being made.
pub struct Listening {
    network: Arc<Network>,
    state: Mutex<(Listener, Option<Half>)>,
}

/// A dialer that was answered and is not ready yet.
struct Half {
    answered: Answered,
    ring: Words,
    /// The dialer's ring.
    theirs: Memory,
}

impl Listening {
    /// Listens, and fills the handle that NCCL carries to the dialer.
    pub fn new(network: Arc<Network>, handle: &mut [u8; HANDLE_SIZE]) -> Result<Listening> {
        let listener = Listener::new(&network.session)?;
        *handle = listener.handle().encode();
        Ok(Listening { network, state: Mutex::new((listener, None)) })
    }

    /// The next connection, if one is ready.
    pub fn accept(&self) -> Result<Option<Receiver>> {
        let mut state = symrail_core::lock(&self.state);
        let (listener, half) = &mut *state;
        let session = &self.network.session;
        if half.is_none() {
            let Some(arrival) = listener.poll(session)? else { return Ok(None) };
            let theirs = ring_of_peer(arrival.pe(), arrival.payload(), ring::sender::WORDS)?;
            let ring = Receiver::ring(&self.network)?;
            let answered = arrival.answer(session, &ring.memory().encode_short())?;
            *half = Some(Half { answered, ring, theirs });
        }
        let link = match half.as_mut().map(|half| half.answered.poll()) {
            Some(Err(error)) => {
                *half = None;
                return Err(error.into());
            }
            Some(Ok(Some(link))) => link,
            _ => return Ok(None),
        };
        let receiver =
            |Half { ring, theirs, .. }| Receiver::new(Channel::new(Arc::clone(&self.network), link, theirs), ring);
        Ok(half.take().map(receiver))
    }
}

/// The ring at the other end, which has so many words if both ends lay it out in the same way.
fn ring_of_peer(pe: Pe, payload: &[u8], words: usize) -> Result<Memory> {
    let ring = Memory::of_peer(pe, payload)?;
    let (expected, len) = (8 * words as u64, ring.len());
    if len == expected {
        return Ok(ring);
    }
    let why = format!("peer {pe} has a ring of {len} bytes instead of {expected}: use one version of the plugin");
    Err(Failure::remote(why))
}

/// An attempt to connect.
struct Attempt {
    network: Arc<Network>,
    dial: Dial,
    ring: Words,
    handle: [u8; ATTEMPT],
}

#[derive(Default)]
struct Attempts {
    next: u64,
    all: HashMap<u64, Attempt>,
}

static ATTEMPTS: Mutex<Option<Attempts>> = Mutex::new(None);

/// Ends the attempts that NCCL has given up: it says so only by finalizing everything. `is_last` counts what is
/// finalized, under the lock, so that an attempt of a later context stays.
pub fn abandon(is_last: impl FnOnce() -> bool) {
    let mut attempts = symrail_core::lock(&ATTEMPTS);
    let ended = if is_last() { attempts.take() } else { None };
    drop(attempts);
    drop(ended);
}

/// The connection to the listener of a handle, once it is ready. NCCL repeats the call with the same handle, in whose
/// unused bytes the attempt's number is kept meanwhile. A number that a peer has written there belongs to no attempt
/// with its handle.
pub fn connect(handle: &mut [u8; HANDLE_SIZE]) -> Result<Option<Sender>> {
    let [.., a, b, c, d, e, f, g, h] = *handle;
    let mut number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let mut front = [0; ATTEMPT];
    front.copy_from_slice(&handle[..ATTEMPT]);
    let mut attempts = symrail_core::lock(&ATTEMPTS);
    let attempts = attempts.get_or_insert_default();
    let known = attempts.all.get(&number).is_some_and(|attempt| attempt.handle == front);
    let found = known.then(|| attempts.all.remove(&number)).flatten();
    let mut attempt = match found {
        Some(attempt) => attempt,
        None => {
            attempts.next += 1;
            number = attempts.next;
            let network = Network::next()?;
            let ring = Sender::ring(&network)?;
            let dial = Dial::new(&network.session, &Handle::decode(handle)?, &ring.memory().encode_short())?;
            Attempt { network, dial, ring, handle: front }
        }
    };
    let Some((link, payload)) = attempt.dial.poll(&attempt.network.session)? else {
        attempts.all.insert(number, attempt);
        handle[ATTEMPT..].copy_from_slice(&number.to_le_bytes());
        return Ok(None);
    };
    handle[ATTEMPT..].fill(0);
    let theirs = ring_of_peer(link.pe(), &payload, ring::receiver::WORDS)?;
    Ok(Some(Sender::new(Channel::new(attempt.network, link, theirs), attempt.ring)))
}
