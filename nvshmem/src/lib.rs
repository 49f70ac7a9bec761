//! The remote transport that NVSHMEM's host library loads: our sessions ([`symrail_proxy::session`]) behind its plugin
//! interface.
//!
//! NVSHMEM looks for a library `nvshmem_transport_<name>.so.<N>` and calls its `nvshmemt_init` with the version of the
//! interface. `scripts/nvshmem-install.sh` lays out one file for each version; the layout is chosen here, by the
//! version we are called with. An unknown version is refused, never guessed.
//!
//! | module | concept |
//! |---|---|
//! | `abi` | what both sides hand to each other: `layout` by version, `verbs` and their numbers |
//! | `plugin` | one transport: its session, its queue pairs |
//! | `ops` | the functions that the host library calls |
//! | `environment` | NVSHMEM's own settings as ours |
//! | `report` | where errors become codes and messages, and panics end |
//!
//! # What is promised
//! - Nothing here ends the process, unwinds into the caller, or waits for longer than about twice `SYMRAIL_TIMEOUT_S`.
//!   (The host library itself ends the job when an operation fails.)
//! - Operations are complete when visible at the target; fences order and do not drain; a repeated quiet costs next to
//!   nothing.
//! - Operations on the PE itself work, since with `NVSHMEM_DISABLE_P2P` the host library sends even those here.

mod abi;
mod environment;
mod ops;
mod plugin;
mod report;

use std::ffi::{c_int, c_void};

use abi::layout::{Layout, V3, V4, V6, V7};
use abi::status;
use plugin::Plugin;
use report::{Failure, guarded};

/// What the host library calls: `api_version` is 10000 times the version of the interface, which 3.4 to 3.8 count from
/// 3 to 7.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvshmemt_init(out: *mut *mut c_void, _cuda: *mut c_void, api_version: c_int) -> c_int {
    guarded("nvshmemt_init", || {
        if out.is_null() {
            return Err(Failure::argument("no place for the transport".into()));
        }
        // SAFETY: a place for a pointer, which every version of the host library passes.
        unsafe {
            match api_version / 10000 {
                3 => open::<V3>(out.cast(), api_version),
                4 | 5 => open::<V4>(out.cast(), api_version),
                6 => open::<V6>(out.cast(), api_version),
                7 => open::<V7>(out.cast(), api_version),
                other => Err(Failure::argument(format!(
                    "NVSHMEM asks for version {other} of the transport interface; this library knows 3 to 7, NVSHMEM 3.4 to 3.8"
                ))),
            }
        }
    })
}

/// Fills a transport of one version.
///
/// # Safety
/// `out` is valid for a write.
unsafe fn open<L: Layout>(out: *mut *mut L, api_version: c_int) -> Result<(), Failure> {
    let plugin = Box::new(Plugin::new()?);
    // SAFETY: our own block of the structure's size, from the allocator that the host library would use.
    unsafe {
        let transport = libc::malloc(size_of::<L>()).cast::<L>();
        if transport.is_null() {
            return Err(Failure { code: status::INTERNAL, why: format!("no memory for {} bytes", size_of::<L>()) });
        }
        transport.write(L::new(ops::table(), ops::put_signal_of()));
        (*L::head(transport)).api_version = api_version;
        let fields = &mut *L::fields(transport);
        fields.state = Box::into_raw(plugin).cast();
        fields.attr = abi::ATTR_CONNECTED;
        // Old values are where they belong once a quiet has returned, in the host's byte order.
        fields.atomics_complete_on_quiet = 1;
        fields.is_initialized = 1;
        out.write(transport);
    }
    Ok(())
}
