//! Names of endpoints in shared memory, and removal of those that killed processes left behind.
//!
//! Such an endpoint is a file in `/dev/shm`, which the provider removes when the endpoint is closed. A killed process
//! closes nothing, so the next process that opens an endpoint removes the files of dead ones.

use std::hash::{BuildHasher, Hasher};
use std::os::linux::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};

const DIRECTORY: &str = "/dev/shm";

/// The prefix of names in this process's PID namespace. In another namespace the same process numbers mean other
/// processes.
fn prefix() -> String {
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.st_ino());
    format!("symrail-{namespace:x}-")
}

/// A name that no other endpoint on this host has: the process and a counter for users and for [`remove_leftovers`],
/// and a random number for uniqueness.
pub(super) fn unique_name() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let random = std::hash::RandomState::new().build_hasher().finish();
    let (process, count) = (std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
    format!("{}{process}-{count}-{random:016x}", prefix())
}

/// Removes the files of endpoints whose process is gone.
pub(super) fn remove_leftovers() {
    let Ok(entries) = std::fs::read_dir(DIRECTORY) else { return };
    let prefix = prefix();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.split('-').next()?.parse().ok());
        if process.is_some_and(is_gone) {
            tracing::debug!(?name, "removing what a killed process left in shared memory");
            // Another process may have removed it first.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a process certainly does not exist. A process of another user exists.
fn is_gone(process: libc::pid_t) -> bool {
    // SAFETY: signal 0 only checks.
    process > 0
        && unsafe { libc::kill(process, 0) } == -1
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_begin_with_the_process() {
        let (one, two) = (unique_name(), unique_name());
        assert_ne!(one, two);
        assert!(one.starts_with(&format!("{}{}-", prefix(), std::process::id())), "{one}");
    }

    #[test]
    fn only_files_of_the_dead_are_removed() {
        // A child that was waited for is certainly gone, and its number is not reused this soon.
        let Ok(mut child) = std::process::Command::new("true").spawn() else { return };
        let dead = child.id();
        let _ = child.wait();
        let file = |process: u32| format!("{DIRECTORY}/{}{process}-test-{:x}", prefix(), std::process::id());
        let (theirs, ours) = (file(dead), file(std::process::id()));
        let strange = format!("{DIRECTORY}/{}x-{:x}", prefix(), std::process::id());
        for path in [&theirs, &ours, &strange] {
            assert!(std::fs::write(path, "").is_ok(), "{path}");
        }
        remove_leftovers();
        let exists = [&theirs, &ours, &strange].map(|path| std::path::Path::new(path).exists());
        for path in [&theirs, &ours, &strange] {
            let _ = std::fs::remove_file(path);
        }
        assert_eq!(exists, [false, true, true]);
    }
}
