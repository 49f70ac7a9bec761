//! The other library (`SYMRAIL_NCCL_LIBRARY`): NVIDIA's, for the communicators that this one cannot make. A
//! communicator belongs wholly to one of the two libraries, as its id does.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use symrail::Settings;
use symrail::kernels::cuda::Gpu;
use symrail::kernels::cuda::compile::Nvrtc;

use crate::guard::{Failure, guarded};

/// The other library's own symbols come first for it, before those of this library, which was loaded earlier.
const RTLD_DEEPBIND: c_int = 8;

/// The other library, loaded once; `None` if the setting names none.
fn other() -> Result<Option<&'static Library>, Failure> {
    static OTHER: OnceLock<Result<Option<Library>, Failure>> = OnceLock::new();
    OTHER.get_or_init(load).as_ref().map(Option::as_ref).map_err(Clone::clone)
}

fn load() -> Result<Option<Library>, Failure> {
    let settings = Settings::from_env().map_err(symrail::Error::from)?;
    let Some(path) = settings.nccl_library else { return Ok(None) };
    let shown = path.display();
    // SAFETY: the user names a library with NCCL's interface.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) }
        .map_err(|error| Failure::usage(format!("SYMRAIL_NCCL_LIBRARY={shown} cannot be loaded: {error}")))?;
    let version = at(&library, "ncclGetVersion\0")?;
    if version == crate::questions::ncclGetVersion as *const c_void {
        let remedy = "give the path of NVIDIA's";
        return Err(Failure::usage(format!("SYMRAIL_NCCL_LIBRARY={shown} is this library itself: {remedy}")));
    }
    Ok(Some(library))
}

/// The address of a function; `name` ends with a zero byte.
fn at(library: &Library, name: &str) -> Result<*const c_void, Failure> {
    // SAFETY: only the address is taken here.
    let found = unsafe { library.get::<*const c_void>(name.as_bytes()) };
    let name = name.trim_end_matches('\0');
    found
        .map(|symbol| symbol.as_raw_ptr().cast_const().cast())
        .map_err(|_| Failure::usage(format!("{name}: neither this library nor the one of SYMRAIL_NCCL_LIBRARY has it")))
}

/// Forwards a call ([`there!`](crate::export::there)) to the other library, if there is one and the call is `theirs`, and
/// returns its answer.
pub fn forwarded<R>(
    (name, call): (&str, impl FnOnce(*const c_void) -> R),
    theirs: impl FnOnce() -> bool,
) -> Result<Option<R>, Failure> {
    if !theirs() {
        return Ok(None);
    }
    other()?.map(|library| at(library, name).map(call)).transpose()
}

/// As [`forwarded`], for functions that return a result code.
pub fn elsewhere(there: (&str, impl FnOnce(*const c_void) -> c_int), theirs: impl FnOnce() -> bool) -> Option<c_int> {
    forwarded(there, theirs).unwrap_or_else(|failure| Some(guarded(|| Err(failure))))
}

/// Also makes a call in the other library, if there is one.
pub fn too(there: (&str, impl FnOnce(*const c_void) -> c_int)) -> c_int {
    elsewhere(there, || true).unwrap_or(0)
}

/// Whether this process cannot make communicators: there is no GPU, or no compiler of kernels.
pub fn is_needed() -> bool {
    !Gpu::has_driver() || Nvrtc::find().is_err()
}
