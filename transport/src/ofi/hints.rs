//! The capabilities requested of a provider, and those that it grants.
//!
//! Providers differ in the combinations that they grant, and libfabric answers only yes or no. So sets of wishes are
//! tried in order of their value, and the first that the provider accepts is used. The answer shows what the provider
//! really grants.

use std::ffi::CString;
use std::sync::Arc;

use libfabric_sys as ffi;
use libfabric_sys::{Info, Libfabric};

use super::fault::fault;
use crate::error::{Error, Result};
use crate::rail::Order;

/// Orderings worth requesting, best first.
///
/// Requesting them can change the grant: `shm` orders RMA only on request. Reads and atomics are not included, because
/// no higher layer waits for their order, and each requested guarantee may make a provider slower or unfit.
const ORDERS: [u64; 4] = [
    ffi::FI_ORDER_WAW | ffi::FI_ORDER_RMA_WAW | ffi::FI_ORDER_SAW | ffi::FI_ORDER_SAS,
    ffi::FI_ORDER_WAW | ffi::FI_ORDER_RMA_WAW | ffi::FI_ORDER_SAS,
    ffi::FI_ORDER_SAS,
    ffi::FI_ORDER_NONE,
];

/// Threading models that suit a rail, which one thread at a time drives and which shares nothing. The cheapest is
/// first.
const THREADING: [ffi::fi_threading; 3] = [ffi::FI_THREAD_COMPLETION, ffi::FI_THREAD_DOMAIN, ffi::FI_THREAD_SAFE];

/// The addressing and registration modes among which a provider may choose. `memory` supports all of them.
const MR_MODES: u64 =
    ffi::FI_MR_LOCAL | ffi::FI_MR_VIRT_ADDR | ffi::FI_MR_ALLOCATED | ffi::FI_MR_PROV_KEY | ffi::FI_MR_ENDPOINT;

/// A query to one provider.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    /// The provider's exact name.
    pub provider: &'a str,
    /// The local address or name to bind to.
    pub node: Option<&'a str>,
    /// Request the provider's own atomics. It is off unless they are used, because `tcp;ofi_rxm` then gives up write
    /// ordering.
    pub atomics: bool,
    /// Request access to GPU memory (`FI_HMEM`).
    pub gpus: bool,
    /// Request automatic progress.
    pub automatic: bool,
}

/// All offers of the provider for the best set of wishes that it accepts; empty if there is none.
pub(super) fn negotiate(library: &Arc<Libfabric>, ask: Ask<'_>) -> Result<Vec<Info>> {
    let offered =
        |order, threading, (gpus, atomics)| offers(library, Ask { gpus, atomics, ..ask }, order, threading, 0);
    if offered(ffi::FI_ORDER_NONE, ffi::FI_THREAD_UNSPEC, (false, false))?.is_empty() {
        return Ok(Vec::new());
    }
    // A provider without these is still usable. It reports each atomic, or GPU memory, as unsupported.
    let wishes = [(true, true), (true, false), (false, true), (false, false)];
    for wish in wishes.into_iter().filter(|wish| wish.0 <= ask.gpus && wish.1 <= ask.atomics) {
        for threading in THREADING {
            for order in ORDERS {
                let infos = offered(order, threading, wish)?;
                if !infos.is_empty() {
                    return Ok(infos);
                }
            }
        }
    }
    Ok(Vec::new())
}

/// Whether the provider can complete an operation once its data is visible at the target.
pub(super) fn delivers(library: &Arc<Libfabric>, ask: Ask<'_>) -> Result<bool> {
    let infos = offers(library, ask, ffi::FI_ORDER_NONE, ffi::FI_THREAD_UNSPEC, ffi::FI_DELIVERY_COMPLETE)?;
    Ok(!infos.is_empty())
}

/// The ordering that an offer guarantees.
pub(super) fn granted_order(info: &Info) -> Order {
    // SAFETY: every info from libfabric has its attribute structs.
    let (order, ordered_bytes, largest) = unsafe {
        let raw = &*info.as_ptr();
        // The receiver must not undo the sender's order, so both have to grant it.
        let order = (*raw.tx_attr).msg_order & (*raw.rx_attr).msg_order;
        (order, (*raw.ep_attr).max_order_waw_size, (*raw.ep_attr).max_msg_size)
    };
    // A size limit of 0 cancels the write ordering. A limit below the largest write leaves the ends of long writes
    // unordered, so no signal could rely on it.
    let whole = ordered_bytes != 0 && ordered_bytes >= largest;
    Order {
        write_after_write: order & (ffi::FI_ORDER_WAW | ffi::FI_ORDER_RMA_WAW) != 0 && whole,
        send_after_write: order & ffi::FI_ORDER_SAW != 0,
        send_after_send: order & ffi::FI_ORDER_SAS != 0,
        amo_after_write: order & ffi::FI_ORDER_WAW != 0 && whole,
    }
}

fn offers(
    library: &Arc<Libfabric>,
    ask: Ask<'_>,
    order: u64,
    threading: ffi::fi_threading,
    op_flags: u64,
) -> Result<Vec<Info>> {
    let text = |value: &str| {
        CString::new(value).map_err(|_| Error::NoRail {
            wanted: format!("{value:?} (it holds a zero byte)"),
            found: "names without zero bytes".to_owned(),
        })
    };
    let Some(mut hints) = library.allocinfo() else { return Ok(Vec::new()) };
    hints.set_provider(&text(ask.provider)?);
    let progress = if ask.automatic { ffi::FI_PROGRESS_AUTO } else { ffi::FI_PROGRESS_MANUAL };
    // SAFETY: the hints are ours alone and have all attribute structs.
    unsafe {
        let raw = &mut *hints.as_ptr();
        let wish = |wanted, what| if wanted { what } else { 0 };
        raw.caps = ffi::FI_RMA | ffi::FI_MSG | wish(ask.atomics, ffi::FI_ATOMIC) | wish(ask.gpus, ffi::FI_HMEM);
        raw.mode = ffi::FI_CONTEXT | ffi::FI_CONTEXT2;
        (*raw.ep_attr).type_ = ffi::FI_EP_RDM;
        (*raw.tx_attr).msg_order = order;
        (*raw.tx_attr).op_flags = op_flags;
        (*raw.rx_attr).msg_order = order;
        let domain = &mut *raw.domain_attr;
        domain.mode = u64::MAX;
        domain.mr_mode = (MR_MODES | wish(ask.gpus, ffi::FI_MR_HMEM)) as i32;
        domain.threading = threading;
        domain.control_progress = progress;
        domain.data_progress = progress;
    }
    let node = ask.node.map(text).transpose()?;
    let flags = if node.is_some() { ffi::FI_SOURCE } else { 0 };
    let mut infos = library.getinfo(node.as_deref(), flags, Some(&hints)).map_err(|code| Error::Fabric {
        call: "fi_getinfo",
        rail: ask.node.unwrap_or(ask.provider).to_owned(),
        fault: fault(library, code as isize),
    })?;
    // The name in hints is a filter that also passes layered providers.
    infos.retain(|info| {
        // SAFETY: as in `granted_order`.
        let offered = unsafe { (*(*info.as_ptr()).domain_attr).data_progress };
        info.provider() == ask.provider && (!ask.automatic || offered == ffi::FI_PROGRESS_AUTO)
    });
    Ok(infos)
}
