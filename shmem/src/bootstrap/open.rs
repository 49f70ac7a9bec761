//! Chooses a process's bootstrap.

use std::time::Duration;

use symrail_transport::env::{BootstrapKind, Settings};

use super::error::Result;
use super::origin::{self, Origin};
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
    let origin = match settings.bootstrap {
        BootstrapKind::Auto => origin::find()?,
        BootstrapKind::Launcher => Some(Origin::Launcher),
        BootstrapKind::Uid => Some(Origin::Uid),
        BootstrapKind::Pmix => Some(Origin::Pmix),
    };
    let bootstrap: Box<dyn Bootstrap> = match origin {
        Some(Origin::Launcher) => Box::new(launcher::open(timeout)?),
        Some(Origin::Uid) => Box::new(uid::open_from_env(timeout)?),
        Some(Origin::Pmix) => Box::new(pmix::open(timeout, go_on)?),
        Some(other) => {
            origin::check_alone(other)?;
            Box::new(Single::default())
        }
        None => Box::new(Single::default()),
    };
    tracing::debug!("bootstrap: {}", bootstrap.describe());
    Ok(bootstrap)
}
