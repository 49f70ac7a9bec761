//! The choice of the progress model.
//!
//! With automatic progress a target answers while its program sleeps. Some providers grant it and then hang, so it is
//! probed before it is trusted: one endpoint of this process writes to another that nobody polls. Whatever the outcome,
//! the proxy keeps polling. The outcome matters only for the time between two polls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys::Info;

use super::discover::Nic;
use super::library::Library;
use super::open::OfiRail;
use super::provider;
use crate::env::{ProgressModel, Settings};
use crate::error::{Error, Fault, Result};
use crate::rail::{LocalBuf, Notify, OpId, Piece, PostError, Rail, RailSink, RemoteBuf, WriteOptions};

/// The time limit for a sleeping target. A progress thread needs microseconds, but on a busy machine it also needs a
/// core, and the first write sets up the connection.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// The info for opening `nic`, and a description of the progress model.
pub(super) fn choose(library: &Arc<Library>, nic: &Nic, settings: &Settings) -> Result<(Info, String)> {
    let manual = |why: &str| {
        let info = nic.info_to_open(&library.fabric, false)?.ok_or_else(|| Error::NoRail {
            wanted: nic.to_string(),
            found: "nothing of that name any more".to_owned(),
        })?;
        Ok((info, format!("manual ({why})")))
    };
    match settings.progress {
        ProgressModel::Manual => return manual("asked for"),
        ProgressModel::Auto if provider::traits(&nic.provider).helper_thread => {
            return manual("automatic would need a helper thread");
        }
        ProgressModel::Auto | ProgressModel::Automatic => {}
    }
    let Some(info) = nic.info_to_open(&library.fabric, true)? else {
        return manual("automatic is not offered");
    };
    if is_proved(library, nic) {
        Ok((info, "automatic (granted, and a probe of a sleeping target succeeded)".to_owned()))
    } else {
        manual("automatic was granted, but a sleeping target did not progress")
    }
}

/// The outcome of the probe, which the process caches.
fn is_proved(library: &Arc<Library>, nic: &Nic) -> bool {
    let key = format!("{}/{}", nic.provider, nic.name);
    // The lock is held during the probe, so that two threads do not probe the same NIC. A poisoned lock still guards a
    // valid list.
    let mut probed = symrail_core::lock(&library.probed);
    if let Some((_, proved)) = probed.iter().find(|(known, _)| *known == key) {
        return *proved;
    }
    let proved = sleeping_target_progresses(library, nic);
    if let Err(error) = &proved {
        tracing::warn!(nic = nic.name, %error, "automatic progress is granted but does not work; progress is manual");
    }
    probed.push((key, proved.is_ok()));
    proved.is_ok()
}

fn sleeping_target_progresses(library: &Arc<Library>, nic: &Nic) -> Result<()> {
    let open = || {
        let info = nic.info_to_open(&library.fabric, true)?.ok_or_else(|| broken(nic, "it is not offered"))?;
        OfiRail::open(&library.fabric, info, &nic.name, false, String::new())
    };
    // The memory is declared before the rails, so it is unmapped last.
    let mut source = Box::new(0x5ca1_ab1e_u64);
    let mut word = Box::new(0_u64);
    let (source_at, word_at) = (&raw mut *source, &raw mut *word);
    let (mut initiator, mut target) = (open()?, open()?);
    // SAFETY: both words outlive both rails.
    let (local, remote) = unsafe {
        let local = initiator.register(source_at.cast(), 8, 1)?;
        (local, target.register(word_at.cast(), 8, 2)?)
    };
    initiator.connect(0, &target.address(), 0)?;
    target.connect(0, &initiator.address(), 0)?;

    let buffer = LocalBuf { ptr: source_at.cast(), len: 8, key: local.local };
    let remote = RemoteBuf { address: remote.remote_base, key: remote.remote_key };
    let options = WriteOptions { id: Some(0), notify: Notify::Delivered, immediate: None, more: false };
    let deadline = Instant::now() + TIME_LIMIT;
    let mut outcome = Outcome::default();
    let mut posted = false;
    while Instant::now() < deadline {
        if !posted {
            // SAFETY: the buffers stay, and `remote` is the target's registration.
            match unsafe { initiator.write(0, Piece { local: buffer, remote }, options) } {
                Ok(()) => posted = true,
                Err(PostError::Again) => {}
                Err(PostError::Failed(fault)) => return Err(broken(nic, &fault.text)),
            }
        }
        initiator.poll(&mut outcome);
        if let Some(fault) = outcome.fault.take() {
            return Err(broken(nic, &fault.text));
        }
        // SAFETY: our own aligned word, read as memory that changes concurrently.
        if outcome.done && unsafe { word_at.read_volatile() } == 0x5ca1_ab1e {
            return Ok(());
        }
        // The helper thread under test may share this core.
        std::thread::yield_now();
    }
    Err(broken(nic, "a write to a sleeping target did not become visible within 1 s"))
}

fn broken(nic: &Nic, why: &str) -> Error {
    let fault = Fault { code: libfabric_sys::FI_ETIMEDOUT, text: why.to_owned(), retryable: false };
    Error::Fabric { call: "the probe of automatic progress", rail: nic.name.clone(), fault }
}

#[derive(Default)]
struct Outcome {
    done: bool,
    fault: Option<Fault>,
}

impl RailSink for Outcome {
    fn done(&mut self, _: OpId) {
        self.done = true;
    }
    fn failed(&mut self, _: OpId, fault: Fault) {
        self.fault = Some(fault);
    }
    fn message(&mut self, _: &[u8]) {}
    fn immediate(&mut self, _: u64) {}
    fn broken(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }
}
