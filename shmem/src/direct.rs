//! Heaps that the CPU cannot touch and NICs can (GPUDirect): what is large goes straight from one to the other.
//!
//! Each PE offers its heap to its rails when it opens them. Its connection info says by which keys they reach it, or
//! nothing where one of them does not, and only if all PEs' rails took theirs does anybody use it: there is one way for
//! the whole job. What stays [staged](symrail_proxy::stage) in any case is what is small, and all words.

use symrail_proxy::Engine;
use symrail_transport::env::{GpuDirect, Settings};

use crate::connection_info::ConnectionInfo;
use crate::error::Result;
use crate::staged::{STAGED_ID, Staged};

/// Offers this PE's heap to its rails. Gives what peers' rails need; nothing where one of ours does not take it.
///
/// # Errors
/// Why one does not, where the settings demand it.
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

/// Takes in what all PEs said: whether all heaps are reached.
///
/// # Errors
/// connection info that is none; a PE whose rails do not reach its heap, where the settings demand it.
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
