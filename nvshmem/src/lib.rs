//! The remote transport for NVSHMEM's host library: sessions ([`symrail_proxy::session`]) behind its plugin interface.
//!
//! NVSHMEM loads a library `nvshmem_transport_<name>.so.<N>` and calls its `nvshmemt_init` with the version of the
//! interface. `scripts/nvshmem-install.sh` installs one file for each version. This library chooses the layout by the
//! version in that call. It refuses an unknown version and never guesses.
//!
//! | module | concept |
//! |---|---|
//! | `abi` | the interface between both sides: `layout` by version, `verbs` and their numbers |
//! | `plugin` | one transport: its session, its queue pairs |
//! | `ops` | the functions that the host library calls |
//! | `environment` | conversion of NVSHMEM's own settings |
//! | `report` | conversion of errors to codes and messages, and containment of panics |
//!
//! # Guarantees
//! - Nothing here ends the process, unwinds into the caller, or waits for longer than about twice `SYMRAIL_TIMEOUT_S`.
//!   (The host library itself ends the job when an operation fails.)
//! - A complete operation is visible at the target. Fences order and do not drain. A repeated quiet costs next to
//!   nothing.
//! - Operations on the PE itself work, since with `NVSHMEM_DISABLE_P2P` the host library passes even those to the
//!   transport.

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

/// The entry point of the host library. `api_version` is 10000 times the version of the interface: 3 for NVSHMEM 3.4,
/// up to 7 for 3.8.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvshmemt_init(out: *mut *mut c_void, _cuda: *mut c_void, api_version: c_int) -> c_int {
    guarded("nvshmemt_init", || {
        if out.is_null() {
            return Err(Failure::argument("no place for the transport".into()));
        }
        // SAFETY: every version of the host library passes a place for a pointer.
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

/// Allocates and fills a transport of one version.
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
        // Old values are at their destinations once a quiet has returned, in the host's byte order.
        fields.atomics_complete_on_quiet = 1;
        fields.is_initialized = 1;
        out.write(transport);
    }
    Ok(())
}
