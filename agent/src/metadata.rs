//! Metadata: the bytes that one agent exports and another one loads.
//!
//! They hold the agent's name and identity, the handle of its listener unless it was left out, and handles of memory.
//! A tag at the end covers them. Its key follows from the secret in the listener's handle, so metadata without the
//! handle is accepted only if it comes from the agent whose handle is known already, unchanged. Metadata with the handle
//! carries the secret: whoever reads it can connect to the agent and access the memory.

use hmac::Mac;
use serde::{Deserialize, Serialize};
use symrail_core::encoding;
use symrail_proxy::session::Identity;
use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::rendezvous::{HANDLE_SIZE, Handle};
use symrail_transport::Pe;
use symrail_transport::frames::{TAG, hmac};

use crate::error::{Error, Result};

const MAGIC: [u8; 4] = *b"SyA1";
const PURPOSE: &[u8] = b"an agent's metadata";
/// The longest name in bytes.
pub const LONGEST_NAME: usize = 1024;

/// What the bytes hold.
#[derive(Debug, Serialize, Deserialize)]
pub struct Metadata {
    magic: [u8; 4],
    pub name: String,
    pub identity: Identity,
    /// The listener's handle.
    handle: Option<Vec<u8>>,
    /// Whether these are all registrations of the agent.
    pub complete: bool,
    /// The handles of memory, without the zeros at their ends.
    memories: Vec<Vec<u8>>,
}

impl Metadata {
    /// The bytes of an agent's metadata.
    pub fn encode<'a>(
        name: &str,
        (handle, with_handle): (&Handle, bool),
        complete: bool,
        memories: impl Iterator<Item = &'a Memory>,
    ) -> Vec<u8> {
        let metadata = Metadata {
            magic: MAGIC,
            name: name.to_owned(),
            identity: *handle.identity(),
            handle: with_handle.then(|| handle.encode().to_vec()),
            complete,
            memories: memories.map(Memory::encode_short).collect(),
        };
        let mut bytes = encoding::encode(&metadata);
        let tag = hmac(&handle.key(PURPOSE)).chain_update(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&tag);
        bytes
    }

    /// Reads metadata. `known` returns the handle of the agent with this name and identity, if it is known.
    pub fn decode(bytes: &[u8], known: impl FnOnce(&Metadata) -> Option<Handle>) -> Result<(Metadata, Handle)> {
        let refused = |why: &str| Error::Metadata { why: why.into() };
        let Some((front, tag)) = bytes.len().checked_sub(TAG).map(|at| bytes.split_at(at)) else {
            return Err(refused("it is too short"));
        };
        // The decoder's error names a PE of a job, which is none of an agent's words.
        let metadata: Metadata = encoding::decode(front, "metadata", 0)
            .map_err(|_| refused("it is incomplete, or not what an agent of this version has exported"))?;
        if metadata.magic != MAGIC {
            return Err(refused("it is not that of an agent of this version"));
        }
        must_be_a_name(&metadata.name)?;
        let handle = match &metadata.handle {
            Some(handle) => {
                let handle: &[u8; HANDLE_SIZE] =
                    handle.as_slice().try_into().map_err(|_| refused("the listener's handle has another size"))?;
                Handle::decode(handle).map_err(|error| refused(&error.to_string()))?
            }
            None => known(&metadata).ok_or_else(|| Error::Unknown { agent: metadata.name.clone() })?,
        };
        if *handle.identity() != metadata.identity {
            return Err(refused("the listener's handle is another agent's"));
        }
        let computed = hmac(&handle.key(PURPOSE)).chain_update(front);
        computed.verify_slice(tag).map_err(|_| refused("it was changed, or is not from this agent"))?;
        Ok((metadata, handle))
    }

    /// The memory, as that of the peer `pe`.
    pub fn memories(&self, pe: Pe) -> Result<Vec<Memory>> {
        let refused = |error: symrail_transport::Error| Error::Metadata { why: error.to_string() };
        self.memories.iter().map(|bytes| Memory::of_peer(pe, bytes).map_err(refused)).collect()
    }
}

/// Checks an agent's name.
pub fn must_be_a_name(name: &str) -> Result<()> {
    if (1..=LONGEST_NAME).contains(&name.len()) && !name.contains('\0') {
        return Ok(());
    }
    let why = format!("{} bytes; use 1 to {LONGEST_NAME}, without a zero byte", name.len());
    Err(Error::Argument { what: "name of an agent", why })
}
