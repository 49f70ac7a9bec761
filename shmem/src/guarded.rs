//! A heap in guarded memory, which tests use in place of a GPU's: peers on this host map it as GPUs map each other's.

use std::sync::Arc;

use symrail_heap::guarded::{GuardedCopyEngine, GuardedMemory, GuardedPeers};
use symrail_heap::mapping::MapError;
use symrail_heap::{HeapHandle, HostIdentity};
use symrail_proxy::stage::STAGING_BUFFER_BYTES;
use symrail_transport::Pe;
use symrail_transport::env::Settings;

use crate::error::{Error, Result};

/// This PE's heap and those of its peers.
pub(crate) struct Guarded {
    memory: Arc<GuardedMemory>,
    handle: HeapHandle,
    /// The addresses of peers' heaps, by PE; 0 for heaps that are not mapped.
    bases: Vec<usize>,
    peers: Arc<GuardedPeers>,
}

impl Guarded {
    /// Allocates all of its memory at the start.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(settings: &Settings) -> Result<Guarded> {
        let memory = GuardedMemory::new(settings.heap_size).map_err(failed("making guarded memory"))?;
        let host = HostIdentity::of_this_process(settings.fake_host.as_deref())?;
        let handle = memory.handle(host, settings.disable_p2p).map_err(failed("looking at guarded memory"))?;
        Ok(Guarded { memory, handle, bases: Vec::new(), peers: Arc::default() })
    }

    /// The information that peers need to map it.
    pub fn connection_info(&self) -> Vec<u8> {
        self.handle.encode()
    }

    /// Maps all heaps that can be mapped; `connection_infos` has all PEs', in order.
    ///
    /// # Errors
    /// Malformed connection infos.
    pub fn open(&mut self, me: Pe, connection_infos: &[Vec<u8>]) -> Result<()> {
        let mut peers = Vec::new();
        self.bases = vec![0; connection_infos.len()];
        for ((connection_info, pe), base) in
            connection_infos.iter().zip(0..).zip(&mut self.bases).filter(|((_, pe), _)| *pe != me)
        {
            match GuardedMemory::of_peer(&self.handle, &HeapHandle::decode(connection_info, pe)?) {
                Ok(peer) => {
                    *base = peer.base().addr().get();
                    peers.push(peer);
                }
                Err(why) => tracing::debug!(pe, %why, "guarded heap not mapped"),
            }
        }
        // It is opened once.
        let _ = self.peers.set(peers);
        Ok(())
    }

    pub fn memory(&self) -> &Arc<GuardedMemory> {
        &self.memory
    }

    pub fn bases(&self) -> &[usize] {
        &self.bases
    }

    /// # Errors
    /// The system's error.
    pub fn copy_engine(&self) -> Result<GuardedCopyEngine> {
        let seed = self.memory.base().addr().get() as u64 ^ u64::from(std::process::id());
        let copy_engine = GuardedCopyEngine::new(Arc::clone(&self.memory), STAGING_BUFFER_BYTES, seed);
        Ok(copy_engine.map_err(failed("making a window"))?.with_peers(Arc::clone(&self.peers)))
    }
}

fn failed(what: &'static str) -> impl Fn(MapError) -> Error {
    move |e| Error::System { what, reason: format!("{}: {}", e.call, e.errno.desc()) }
}
