//! Jobs without a launcher, which would end them when a PE dies: PE 0 starts the others, and they find each other by a
//! unique id.

use std::process::{Child, Command};
use std::time::Duration;

use symrail::bootstrap::uid::{self, UniqueId};
use symrail::{Pe, Runtime, Settings};

/// How long PEs wait for each other until they have joined; a busy machine takes longer than the tests' own limits.
const JOINING: Duration = Duration::from_secs(30);

/// The job's id and this PE, if PE 0 has started this process. In that case it dies with PE 0.
#[must_use]
pub fn started() -> Option<(UniqueId, Pe)> {
    let id = std::env::var(uid::UID).ok()?;
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    Some((UniqueId::from_hex(&id).unwrap(), std::env::var(uid::PE).unwrap().parse().unwrap()))
}

/// Joins a job of `n_pes` PEs, and checks the path to them.
#[must_use]
pub fn join(id: UniqueId, pe: Pe, pes: u32) -> Runtime {
    let bootstrap = uid::open_within(id, pe, pes, JOINING).unwrap();
    let rt = Runtime::join(Settings::from_env().unwrap(), Box::new(bootstrap)).unwrap();
    crate::path::check(&rt);
    rt
}

/// This program with the same arguments.
#[must_use]
pub fn this_program() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(std::env::args_os().skip(1));
    command
}

/// A PE that PE 0 has started; killed when dropped.
pub struct Other(pub Child);

impl Other {
    /// Starts PE `pe` of `n_pes` by a command. PE 2 shares PE 0's simulated host; the others have separate hosts, named
    /// after `TEST_OTHER_HOST`, if that is another one.
    #[must_use]
    pub fn start(mut command: Command, id: UniqueId, pe: Pe, pes: u32) -> Other {
        let [here, there] =
            ["SYMRAIL_FAKE_HOST", "TEST_OTHER_HOST"].map(|name| std::env::var(name).unwrap_or_default());
        let host = if pe == 2 || here == there { here } else { format!("{there}-of-{pe}") };
        command.envs([(uid::UID, id.to_hex()), (uid::PE, pe.to_string()), (uid::N_PES, pes.to_string())]);
        Other(command.env("SYMRAIL_FAKE_HOST", host).spawn().unwrap())
    }

    /// Waits for the end of some PEs, which must succeed.
    ///
    /// # Panics
    /// One does not.
    pub fn end_well(others: impl IntoIterator<Item = Other>) {
        for mut other in others {
            let status = other.0.wait().unwrap();
            assert!(status.success(), "another PE ended with {status}");
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
