//! Loading of the library and its exported functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use crate::signals;
use crate::{fi_fabric_attr, fi_info, fi_type, fi_version_of, fid_fabric};

/// The name under which every libfabric since 1.0 is installed.
const SONAME: &str = "libfabric.so.1";

/// The latest API that the bound structs know.
const NEWEST_API: u32 = fi_version_of(1, 17);

/// The earliest API with everything that this crate uses.
const OLDEST_API: u32 = fi_version_of(1, 14);

/// Why libfabric cannot be used, and the remedy.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{library}: {reason}; {remedy}")]
pub struct LoadError {
    /// The file name or path that was tried.
    pub library: String,
    /// The reason that the loader or the version check reported.
    pub reason: String,
    /// The remedy.
    pub remedy: String,
}

type GetInfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type Fabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> u32;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
type ToStr = unsafe extern "C" fn(*const c_void, fi_type) -> *mut c_char;

/// The loaded library.
///
/// It stays loaded until the process ends: providers start threads and install exit handlers that outlive their
/// objects, so unloading would remove their code.
pub struct Libfabric {
    getinfo: GetInfo,
    dupinfo: DupInfo,
    freeinfo: FreeInfo,
    fabric: Fabric,
    strerror: StrError,
    tostr: ToStr,
    version: u32,
    name: String,
    /// Set once the providers are loaded, or being loaded.
    begun: OnceLock<()>,
}

impl std::fmt::Debug for Libfabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}.{}", self.name, self.version >> 16, self.version & 0xffff)
    }
}

impl Libfabric {
    /// Loads `path`, or the installed library.
    ///
    /// # Errors
    /// The library or one of its functions is missing, or the library is older than 1.14.
    pub fn load(path: Option<&Path>) -> Result<Arc<Libfabric>, LoadError> {
        let name = path.map_or_else(|| SONAME.to_owned(), |path| path.display().to_string());
        let error = |reason: String| LoadError {
            library: name.clone(),
            reason,
            remedy: "install libfabric 1.14 or later (Debian and Ubuntu: libfabric1, Fedora: libfabric) or set \
                     SYMRAIL_LIBFABRIC_SO to its path"
                .to_owned(),
        };
        let bytes = path.map_or(SONAME.as_bytes(), |path| path.as_os_str().as_bytes());
        let file = CString::new(bytes).map_err(|_| error("the path holds a zero byte".to_owned()))?;
        // SAFETY: a zero-terminated name. The library's own initialisers are meant to run. It is never closed.
        let handle = signals::kept(|| unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) });
        let handle = NonNull::new(handle).ok_or_else(|| error(loader_message()))?;
        let symbol = |name: &CStr, version: &CStr| {
            // SAFETY: a live handle and zero-terminated names.
            let found = unsafe { libc::dlvsym(handle.as_ptr(), name.as_ptr(), version.as_ptr()) };
            NonNull::new(found).ok_or_else(|| error(loader_message()))
        };
        // The version names the layout of `fi_info`: FABRIC_1.3 is the one of 1.7 to 1.17 and of `bindings`.
        let getinfo = symbol(c"fi_getinfo", c"FABRIC_1.3")?;
        let dupinfo = symbol(c"fi_dupinfo", c"FABRIC_1.3")?;
        let freeinfo = symbol(c"fi_freeinfo", c"FABRIC_1.3")?;
        let fabric = symbol(c"fi_fabric", c"FABRIC_1.1")?;
        let version = symbol(c"fi_version", c"FABRIC_1.0")?;
        let strerror = symbol(c"fi_strerror", c"FABRIC_1.0")?;
        let tostr = symbol(c"fi_tostr", c"FABRIC_1.0")?;
        // SAFETY: each symbol is the function of that name and symbol version, whose C prototype the type repeats.
        let mut this = unsafe {
            Libfabric {
                getinfo: std::mem::transmute::<NonNull<c_void>, GetInfo>(getinfo),
                dupinfo: std::mem::transmute::<NonNull<c_void>, DupInfo>(dupinfo),
                freeinfo: std::mem::transmute::<NonNull<c_void>, FreeInfo>(freeinfo),
                fabric: std::mem::transmute::<NonNull<c_void>, Fabric>(fabric),
                strerror: std::mem::transmute::<NonNull<c_void>, StrError>(strerror),
                tostr: std::mem::transmute::<NonNull<c_void>, ToStr>(tostr),
                version: std::mem::transmute::<NonNull<c_void>, Version>(version)(),
                name: String::new(),
                begun: OnceLock::new(),
            }
        };
        if this.version < OLDEST_API {
            return Err(error(format!("it is version {}.{}", this.version >> 16, this.version & 0xffff)));
        }
        this.name = name;
        Ok(Arc::new(this))
    }

    /// The library's version, as (major, minor).
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// The name of the loaded library: a path, or the name that the loader searched for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The API version to request: the library's, but none later than the bound structs.
    #[must_use]
    pub fn api(&self) -> u32 {
        self.version.min(NEWEST_API)
    }

    /// An empty `fi_info` with all its attribute structs, for hints.
    #[must_use]
    pub fn allocinfo(self: &Arc<Self>) -> Option<Info> {
        // SAFETY: a null argument asks for an empty struct.
        let raw = unsafe { (self.dupinfo)(ptr::null()) };
        NonNull::new(raw).map(|raw| Info { raw, library: self.clone() })
    }

    /// Every match for `hints`, in libfabric's order of preference.
    ///
    /// # Errors
    /// The negated `FI_E…` that libfabric returned; `FI_ENODATA` for no match is an empty list instead.
    pub fn getinfo(
        self: &Arc<Self>,
        node: Option<&CStr>,
        flags: u64,
        hints: Option<&Info>,
    ) -> Result<Vec<Info>, c_int> {
        let node = node.map_or(ptr::null(), CStr::as_ptr);
        let hints = hints.map_or(ptr::null(), |hints| hints.raw.as_ptr().cast_const());
        let mut list = ptr::null_mut();
        let mut call = || {
            // SAFETY: zero-terminated or null strings, a live `fi_info` or null, a place for the result.
            unsafe { (self.getinfo)(self.api(), node, ptr::null(), flags, hints, &raw mut list) }
        };
        // The first call loads the providers in files of their own.
        let first = self.begun.set(()).is_ok();
        match if first { signals::kept(call) } else { call() } {
            0 => {}
            code if -code == crate::FI_ENODATA => return Ok(Vec::new()),
            code => return Err(code),
        }
        let mut found = Vec::new();
        let mut next = list;
        while let Some(entry) = NonNull::new(next) {
            // SAFETY: a live entry of the list, duplicated before the list is freed.
            let (copy, after) = unsafe { ((self.dupinfo)(entry.as_ptr()), (*entry.as_ptr()).next) };
            found.extend(NonNull::new(copy).map(|raw| Info { raw, library: self.clone() }));
            next = after;
        }
        // SAFETY: the list came from fi_getinfo and is not used again.
        unsafe { (self.freeinfo)(list) };
        Ok(found)
    }

    /// Opens the fabric that `attr` describes.
    ///
    /// # Safety
    /// As `fi_fabric(3)`: `attr` is live, and `fabric` may be written.
    #[must_use]
    pub unsafe fn fabric(
        &self,
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.fabric)(attr, fabric, context) }
    }

    /// The text for an error number of either sign.
    #[must_use]
    pub fn strerror(&self, code: c_int) -> String {
        // SAFETY: the result is a static string.
        text(unsafe { (self.strerror)(code.abs()) })
    }

    /// libfabric's text for a value, for logs and `symrail info`. Not on the data path.
    ///
    /// # Safety
    /// `value` points to what `datatype` says. No other thread calls this at the same time (the text lies in a static
    /// buffer).
    #[must_use]
    pub unsafe fn tostr(&self, value: *const c_void, datatype: fi_type) -> String {
        // SAFETY: the caller's promise.
        text(unsafe { (self.tostr)(value, datatype) })
    }
}

/// An owned `fi_info`, allocated by libfabric and freed by it.
///
/// Strings that are put into it must come from `malloc` (see [`Info::set_provider`]), because libfabric frees them.
pub struct Info {
    raw: NonNull<fi_info>,
    library: Arc<Libfabric>,
}

// SAFETY: a `fi_info` is a tree of plain data that belongs to its owner alone; libfabric ties it to no thread.
unsafe impl Send for Info {}
// SAFETY: a shared `Info` is only read.
unsafe impl Sync for Info {}

impl Info {
    /// The struct; valid as long as `self`.
    #[must_use]
    pub fn as_ptr(&self) -> *mut fi_info {
        self.raw.as_ptr()
    }

    /// Restricts hints to one provider.
    pub fn set_provider(&mut self, provider: &CStr) {
        // SAFETY: `dupinfo` allocated the attribute struct, and the old name came from malloc (or is null).
        unsafe {
            let attr = (*self.raw.as_ptr()).fabric_attr;
            libc::free((*attr).prov_name.cast());
            (*attr).prov_name = libc::strdup(provider.as_ptr());
        }
    }

    /// The provider's full name, e.g. `tcp;ofi_rxm`.
    #[must_use]
    pub fn provider(&self) -> String {
        // SAFETY: `fabric_attr` is present in whatever libfabric returns; the name is a string or null.
        text(unsafe { (*(*self.raw.as_ptr()).fabric_attr).prov_name })
    }

    /// The fabric's name.
    #[must_use]
    pub fn fabric(&self) -> String {
        // SAFETY: as for the provider.
        text(unsafe { (*(*self.raw.as_ptr()).fabric_attr).name })
    }

    /// The domain's name.
    #[must_use]
    pub fn domain(&self) -> String {
        // SAFETY: as for the provider.
        text(unsafe { (*(*self.raw.as_ptr()).domain_attr).name })
    }

    /// The source address's bytes, in the form that `addr_format` says.
    #[must_use]
    pub fn source(&self) -> &[u8] {
        // SAFETY: a live struct; the address is `src_addrlen` bytes or null, and is not written while shared.
        unsafe {
            let raw = self.raw.as_ref();
            if raw.src_addr.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(raw.src_addr.cast(), raw.src_addrlen)
        }
    }
}

impl Clone for Info {
    fn clone(&self) -> Self {
        // SAFETY: a live struct.
        let copy = unsafe { (self.library.dupinfo)(self.raw.as_ptr()) };
        let raw =
            NonNull::new(copy).unwrap_or_else(|| std::alloc::handle_alloc_error(std::alloc::Layout::new::<fi_info>()));
        Info { raw, library: self.library.clone() }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: owned, not used again.
        unsafe { (self.library.freeinfo)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Info {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.provider(), self.fabric(), self.domain())
    }
}

fn loader_message() -> String {
    // SAFETY: dlerror returns a string or null; it is copied before anything else is loaded by this thread.
    let message = text(unsafe { libc::dlerror() });
    if message.is_empty() { "not found".to_owned() } else { message }
}

fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: callers pass zero-terminated strings of libfabric or the loader.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_what_to_install() {
        let error = Libfabric::load(Some(Path::new("/nowhere/libfabric.so.1"))).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("/nowhere/libfabric.so.1") && text.contains("install libfabric"), "{text}");
    }

    #[test]
    fn another_library_is_refused() {
        let error = Libfabric::load(Some(Path::new("libc.so.6"))).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("fi_getinfo"), "{text}");
    }

    #[test]
    fn hints_are_copied_whole() {
        let Ok(library) = Libfabric::load(None) else {
            eprintln!("SKIPPED: libfabric is not installed");
            return;
        };
        let Some(mut hints) = library.allocinfo() else { return };
        hints.set_provider(c"one");
        hints.set_provider(c"sockets");
        assert_eq!(hints.clone().provider(), "sockets");
        assert!(library.strerror(-crate::FI_ENODATA).contains("data"));
        // Nothing of that name: an empty list, not an error.
        hints.set_provider(c"no-such-provider");
        assert_eq!(library.getinfo(None, 0, Some(&hints)).map(|list| list.len()), Ok(0));
    }
}
