//! Jobs without a launcher, which would end them when a PE dies: PE 0 starts the others, and they find each other by a
//! unique id.

use std::process::{Child, Command};

use symrail::bootstrap::uid::{self, UniqueId};

/// Whether PE 0 has started this process. If so, it dies with PE 0.
#[must_use]
pub fn is_other() -> bool {
    let other = std::env::var_os(uid::UID).is_some();
    if other {
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    }
    other
}

/// Starts PE 1 of two: the same program with the same arguments, on the host that `TEST_OTHER_HOST` names.
#[must_use]
pub fn start_other(id: UniqueId) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .envs([(uid::UID, id.to_hex()), (uid::PE, "1".into()), (uid::N_PES, "2".into())])
        .env("SYMRAIL_FAKE_HOST", std::env::var("TEST_OTHER_HOST").unwrap_or_default())
        .spawn()
        .unwrap()
}
