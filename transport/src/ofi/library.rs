//! The loaded library.

use std::sync::{Arc, Mutex};

use libfabric_sys::Libfabric;

use super::variables;
use crate::env::Settings;
use crate::error::{Error, Result};

/// The loaded library, and facts about its providers that this process has found out.
#[derive(Debug)]
pub struct Library {
    pub(super) fabric: Arc<Libfabric>,
    /// Results of `probe`, by provider and NIC.
    pub(super) probed: Mutex<Vec<(String, bool)>>,
}

impl Library {
    /// The library's version, as (major, minor).
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.fabric.version()
    }

    /// The path that was loaded, or the name that the loader searched for.
    #[must_use]
    pub fn path(&self) -> &str {
        self.fabric.name()
    }
}

/// Loads libfabric: `SYMRAIL_LIBFABRIC_SO`, or the installed one.
///
/// # Errors
/// [`Error::Library`] when it is missing or too old, with what to install.
pub fn load(settings: &Settings) -> Result<Arc<Library>> {
    variables::set_defaults();
    let fabric = Libfabric::load(settings.libfabric_so.as_deref()).map_err(|error| Error::Library {
        library: error.library,
        reason: error.reason,
        remedy: error.remedy,
    })?;
    Ok(Arc::new(Library { fabric, probed: Mutex::new(Vec::new()) }))
}
