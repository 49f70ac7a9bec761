//! Heaps that NICs can access and the CPU cannot (GPUDirect): large transfers go directly from one heap to the other.
//!
//! Each PE registers its heap with its rails when it opens them. Its connection info has the keys, or none if one rail
//! refused. PEs use direct transfers only if all rails of all PEs registered their heaps: the whole job uses one path.
//! Small transfers and single words are always [staged](symrail_proxy::stage).

use symrail_proxy::Engine;
use symrail_transport::env::{GpuDirect, Settings};

use crate::connection_info::ConnectionInfo;
use crate::error::Result;
use crate::staged::{STAGED_ID, Staged};

/// Registers this PE's heap with its rails. Returns the keys for peers' rails; empty if one of our rails refuses it.
///
/// # Errors
/// The reason for a refusal, if the settings demand direct transfers.
pub(crate) fn offer(engine: &mut Engine, staged: &Staged, settings: &Settings) -> Result<Vec<u8>> {
    if settings.gpudirect == GpuDirect::Off {
        return Ok(Vec::new());
    }
    let offered = staged.export().and_then(|exported| {
        // SAFETY: the heap outlives the endpoints (see the order of `Communicator`'s fields) and never unmaps.
        Ok(unsafe { engine.register_direct(staged.segment(), exported.as_export()) }?)
    });
    match offered {
        Err(error) if settings.gpudirect == GpuDirect::Auto => {
            tracing::info!(%error, "all that concerns the heap is staged");
            Ok(Vec::new())
        }
        offered => offered,
    }
}

/// Evaluates the connection infos of all PEs: whether rails reach all heaps.
///
/// # Errors
/// A malformed connection info; a PE whose rails do not reach its heap, if the settings demand that.
pub(crate) fn agree<'a>(
    engines: impl Iterator<Item = &'a mut Engine>,
    connection_infos: &[ConnectionInfo],
    settings: &Settings,
) -> Result<()> {
    let without = connection_infos.iter().position(|info| !info.is_direct());
    if let (Some(pe), GpuDirect::On) = (without, settings.gpudirect) {
        return Err(symrail_transport::Error::Unsupported {
            what: "SYMRAIL_GPUDIRECT=on".into(),
            by: format!("PE {pe}, whose rails do not all reach its heap or were not asked to"),
            remedy: "set it to auto on all PEs, and SYMRAIL_LOG=info tells the reason there".into(),
        }
        .into());
    }
    for (engine, thread) in engines.zip(0..) {
        let keys = match without {
            None => ConnectionInfo::keys(connection_infos, thread, |keys| &keys.direct),
            Some(_) => vec![Vec::new(); connection_infos.len()],
        };
        engine.learn_direct(STAGED_ID, &keys)?;
    }
    if without.is_none() {
        tracing::info!("NICs read and write the heaps themselves");
    }
    Ok(())
}
