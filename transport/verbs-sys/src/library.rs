//! Loading of the library and its functions.

use std::ffi::{CStr, OsStr, OsString};
use std::path::Path;

use libc::{c_char, c_int, c_uint, c_void, size_t};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::*;

/// The library that is loaded when no path is given.
pub const DEFAULT_LIBRARY: &str = "libibverbs.so.1";

/// Why the library cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// The loader did not find or accept it.
    #[error("{0}")]
    Open(String),
    /// It lacks a function that is needed.
    #[error("it has no function {0}")]
    Missing(&'static str),
}

/// Declares [`Verbs`] and its loading: required functions, and optional ones of newer versions.
macro_rules! functions {
    (
        needed { $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?,)* }
        newer { $($new:ident = $symbol:literal: fn($($new_arg:ty),*) $(-> $new_ret:ty)?,)* }
    ) => {
        /// The functions of a loaded libibverbs, under their C names. `None`: the library is too old for the function.
        #[allow(missing_docs)]
        pub struct Verbs {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub $new: Option<unsafe extern "C" fn($($new_arg),*) $(-> $new_ret)?>,)*
            path: OsString,
            _library: Library,
        }

        impl Verbs {
            fn find(library: Library, path: OsString) -> Result<Self, LoadError> {
                // SAFETY: each symbol is a function of libibverbs' stable C interface, whose signature in
                // infiniband/verbs.h is the one declared here; `Verbs` keeps the library loaded as long as it has them.
                unsafe {
                    Ok(Verbs {
                        $($name: *library
                            .get(concat!(stringify!($name), "\0").as_bytes())
                            .map_err(|_| LoadError::Missing(stringify!($name)))?,)*
                        $($new: library.get(concat!($symbol, "\0").as_bytes()).ok().map(|symbol| *symbol),)*
                        path,
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    needed {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device,
        ibv_free_device_list: fn(*mut *mut ibv_device),
        ibv_get_device_name: fn(*mut ibv_device) -> *const c_char,
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context,
        ibv_close_device: fn(*mut ibv_context) -> c_int,
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
        ibv_query_port: fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int,
        ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int,
        ibv_query_pkey: fn(*mut ibv_context, u8, c_int, *mut __be16) -> c_int,
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int,
        ibv_ack_async_event: fn(*mut ibv_async_event),
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd,
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int,
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr,
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int,
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel,
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int,
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int,
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint),
        ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq,
        ibv_destroy_srq: fn(*mut ibv_srq) -> c_int,
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
        ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int,
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int,
        ibv_wc_status_str: fn(ibv_wc_status) -> *const c_char,
        ibv_event_type_str: fn(ibv_event_type) -> *const c_char,
    }
    newer {
        reg_mr_iova2 = "ibv_reg_mr_iova2": fn(*mut ibv_pd, *mut c_void, size_t, u64, c_uint) -> *mut ibv_mr,
        reg_dmabuf_mr = "ibv_reg_dmabuf_mr": fn(*mut ibv_pd, u64, size_t, u64, c_int, c_int) -> *mut ibv_mr,
    }
}

impl Verbs {
    /// Loads `path`, or [`DEFAULT_LIBRARY`].
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(path: Option<&Path>) -> Result<Self, LoadError> {
        let path = path.map_or(OsStr::new(DEFAULT_LIBRARY), Path::as_os_str);
        // SAFETY: loading runs the library's initialisers. Those of libibverbs only set up its state, and a user who
        // points the setting at another file asks for that file's.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| {
            // The error itself only reports that loading failed; its source has the reason.
            LoadError::Open(std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        Self::find(library, path.into())
    }

    /// The path of the loaded library.
    #[must_use]
    pub fn path(&self) -> &OsStr {
        &self.path
    }

    /// The library's text for a completion's status.
    #[must_use]
    pub fn status_text(&self, status: ibv_wc_status) -> String {
        // SAFETY: the function accepts any number and returns a static string.
        text(unsafe { (self.ibv_wc_status_str)(status) })
    }

    /// The library's text for an asynchronous event.
    #[must_use]
    pub fn event_text(&self, event: ibv_event_type) -> String {
        // SAFETY: the function accepts any number and returns a static string.
        text(unsafe { (self.ibv_event_type_str)(event) })
    }

    /// A device's name.
    ///
    /// # Safety
    /// `device` comes from a device list that was not freed, or belongs to an open context.
    #[must_use]
    pub unsafe fn device_name(&self, device: *mut ibv_device) -> String {
        // SAFETY: the caller vouches for `device`; the name lives in it.
        text(unsafe { (self.ibv_get_device_name)(device) })
    }
}

fn text(words: *const c_char) -> String {
    if words.is_null() {
        return "unknown".into();
    }
    // SAFETY: not null, and every caller passes a string that the library keeps.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_a_value() {
        let error = Verbs::load(Some(Path::new("/nowhere/libibverbs.so.1"))).err().map(|error| error.to_string());
        assert!(error.as_deref().is_some_and(|why| why.contains("/nowhere/libibverbs.so.1")), "{error:?}");
    }

    #[test]
    fn another_library_lacks_the_functions() {
        // The C library is always there and is not libibverbs.
        let error = Verbs::load(Some(Path::new("libc.so.6"))).err();
        assert!(matches!(error, Some(LoadError::Missing("ibv_get_device_list"))), "{error:?}");
    }

    #[test]
    fn status_words_come_from_the_library() {
        match Verbs::load(None) {
            Ok(verbs) => assert!(verbs.status_text(IBV_WC_REM_ACCESS_ERR).contains("remote access")),
            Err(error) => println!("SKIPPED: {error}"),
        }
    }
}
