//! Loading libibverbs.

use std::sync::Arc;

use verbs_sys::Verbs;

use crate::env::Settings;
use crate::error::{Error, Result};

/// Loads libibverbs: `SYMRAIL_IBV_SO`, or the installed one.
///
/// # Errors
/// [`Error::Library`] when it is missing or too old, with what to install.
pub fn load(settings: &Settings) -> Result<Arc<Verbs>> {
    let path = settings.ibv_so.as_deref();
    Verbs::load(path).map(Arc::new).map_err(|error| Error::Library {
        library: path.map_or(verbs_sys::DEFAULT_LIBRARY.into(), |path| path.display().to_string()),
        reason: error.to_string(),
        remedy: match path {
            None => "install it (Debian: libibverbs1 and ibverbs-providers) or set SYMRAIL_IBV_SO".into(),
            Some(_) => "correct or unset SYMRAIL_IBV_SO".into(),
        },
    })
}
