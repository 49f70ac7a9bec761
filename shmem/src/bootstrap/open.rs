//! Chooses a process's bootstrap.

use std::time::Duration;

use symrail_transport::env::{BootstrapKind, Settings};

use super::error::Result;
use super::single::Single;
use super::{Bootstrap, launcher, pmix, uid};
use crate::interrupt::GoOn;

/// Joins the job that this process was started in.
///
/// # Errors
/// The environment has no trace of the bootstrap that was asked for by name, variables are unreadable, or joining
/// fails.
pub fn open(settings: &Settings) -> Result<Box<dyn Bootstrap>> {
    open_until(settings, None)
}

/// As [`open`], where `go_on` may end waits for the process manager: see [`Bootstrap::set_interrupt`].
///
/// # Errors
/// As for [`open`], and [`Error::Interrupted`](super::Error::Interrupted).
pub fn open_until(settings: &Settings, go_on: Option<GoOn>) -> Result<Box<dyn Bootstrap>> {
    // Some bootstraps start threads; setting variables is unsafe after that.
    symrail_transport::ofi::variables::set_defaults();
    let timeout = Duration::from_secs(settings.timeout_s);
    let kind = match settings.bootstrap {
        BootstrapKind::Auto if launcher::present() => BootstrapKind::Launcher,
        BootstrapKind::Auto if uid::present() => BootstrapKind::Uid,
        BootstrapKind::Auto if pmix::present() => BootstrapKind::Pmix,
        named => named,
    };
    let bootstrap: Box<dyn Bootstrap> = match kind {
        BootstrapKind::Launcher => Box::new(launcher::open(timeout)?),
        BootstrapKind::Uid => Box::new(uid::open_from_env(timeout)?),
        BootstrapKind::Pmix => Box::new(pmix::open(timeout, go_on)?),
        BootstrapKind::Auto => Box::new(Single::default()),
    };
    tracing::debug!("bootstrap: {}", bootstrap.describe());
    Ok(bootstrap)
}
