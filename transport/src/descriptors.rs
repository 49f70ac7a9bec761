//! File descriptors: every connection over TCP takes one, and a process may have only so many.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that the connections of all endpoints of this process may take.
static NEEDED: AtomicU64 = AtomicU64::new(0);
/// The process may not have so many.
static TIGHT: AtomicBool = AtomicBool::new(false);
/// A shortage was logged.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Raises the soft limit of descriptors, as far as the hard one permits, so that `more` connections have room besides
/// all that this process has open.
pub(crate) fn make_room(more: u64) {
    let needed = NEEDED.fetch_add(more, Ordering::Relaxed) + more + open();
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft < needed {
        // If the system refuses, a shortage is reported when it happens.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard);
        TIGHT.store(hard < needed, Ordering::Relaxed);
    }
}

/// The number of descriptors that this process has; 0 if it cannot be read.
fn open() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}

/// Logs once if this process has no descriptor left, which makes it seem dead to peers that connect to it.
pub(crate) fn check() {
    if TIGHT.load(Ordering::Relaxed)
        && !TOLD.load(Ordering::Relaxed)
        && let Some(shortage) = shortage()
    {
        TOLD.store(true, Ordering::Relaxed);
        tracing::warn!("{shortage}; peers may not reach this PE");
    }
}

/// A shortage of descriptors that may be the reason why a peer was not reached, with its remedy: this process has none
/// left, or the limit is too low for connections to all peers, which have the same limit as a rule.
pub(crate) fn shortage() -> Option<String> {
    let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return None };
    let needed = NEEDED.load(Ordering::Relaxed) + open();
    let refused = std::fs::File::open("/dev/null").err().and_then(|error| error.raw_os_error());
    match refused {
        Some(libc::EMFILE) => Some(format!(
            "this process has no file descriptor left (EMFILE): it may have {limit}, and connections to all PEs take up \
             to {needed}; raise ulimit -n"
        )),
        Some(libc::ENFILE) => Some("the system has no file descriptor left (ENFILE); raise fs.file-max".into()),
        _ if TIGHT.load(Ordering::Relaxed) => Some(format!(
            "a process may have {limit} file descriptors (ulimit -n), and connections to all PEs take up to {needed}: \
             the peer may have none left"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;

    /// Runs a test again in a process of its own, since limits are those of a process. `None` outside.
    fn alone(name: &str) -> Option<()> {
        const INSIDE: &str = "SYMRAIL_TEST_ALONE";
        if std::env::var_os(INSIDE).is_some() {
            return Some(());
        }
        let mut copy = std::process::Command::new(std::env::current_exe().unwrap());
        let output = copy.args(["--exact", name]).env(INSIDE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        None
    }

    #[test]
    fn a_shortage_names_the_limit_and_what_is_needed() {
        if alone("descriptors::tests::a_shortage_names_the_limit_and_what_is_needed").is_none() {
            return;
        }
        let (before, limit) = (open(), open() + 20);
        setrlimit(Resource::RLIMIT_NOFILE, before + 2, limit).unwrap();
        make_room(10);
        assert!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0 >= before + 10, "the soft limit was raised");
        assert_eq!(shortage(), None);
        make_room(1000);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, limit, "but not beyond the hard one");
        let text = shortage().unwrap();
        assert!(text.contains(&format!("may have {limit} file")) && text.contains("ulimit -n"), "{text}");
        let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let text = shortage().unwrap();
        assert!(files.len() > 1 && text.contains("EMFILE") && text.contains("ulimit -n"), "{text}");
    }
}
