//! Names of endpoints in shared memory, and removal of those that killed processes left behind.
//!
//! Such an endpoint is a file in `/dev/shm`, which the provider removes when the endpoint is closed. A killed process
//! closes nothing, so the next process that opens an endpoint removes the files of dead ones.

use std::hash::{BuildHasher, Hasher};
use std::os::linux::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd;

use crate::error::Error;

const DIRECTORY: &str = "/dev/shm";
/// Bytes of an endpoint's file with the sizes of queues that rails have. Before it offers an endpoint, libfabric's
/// provider `shm` (1.17) wants so many to be free for each processing unit of the machine.
const ENDPOINT_BYTES: u64 = 16 << 20;

/// The likely reason why the provider offers no endpoint: shared memory that is missing, read-only or too small.
#[must_use]
pub fn shortage() -> Option<Error> {
    let units = unistd::sysconf(unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or(1).max(1);
    let space = statvfs(DIRECTORY).map(|it| (it.blocks_available() * it.fragment_size(), it.flags()));
    let reason = lack(space, ENDPOINT_BYTES * units.unsigned_abs())?;
    Some(Error::System { what: "opening an endpoint in shared memory", reason })
}

/// What is wrong with the directory's free bytes and flags, where so many bytes are needed.
fn lack(space: Result<(u64, FsFlags), Errno>, needed: u64) -> Option<String> {
    match space {
        Err(errno) => Some(format!("{DIRECTORY}: {}; mount a tmpfs there", errno.desc())),
        Ok((_, flags)) if flags.contains(FsFlags::ST_RDONLY) => {
            Some(format!("{DIRECTORY} is read-only; mount it writable"))
        }
        Ok((free, _)) if free < needed => Some(format!(
            "libfabric's provider wants {needed} bytes to be free in {DIRECTORY}, and {free} are; enlarge it (mount -o \
             remount,size=…, or docker's --shm-size), or choose another SYMRAIL_LIBFABRIC_PROVIDER"
        )),
        Ok(_) => None,
    }
}

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
    fn a_lack_names_the_directory_and_the_bytes() {
        let text = |space, needed| lack(space, needed).unwrap_or_default();
        let small = text(Ok((65536, FsFlags::empty())), 1 << 25);
        let parts = ["33554432 bytes", "/dev/shm, and 65536 are", "--shm-size"];
        assert!(parts.iter().all(|part| small.contains(part)), "{small}");
        assert_eq!(text(Ok((1 << 30, FsFlags::ST_RDONLY)), 1), "/dev/shm is read-only; mount it writable");
        assert!(text(Err(Errno::ENOENT), 1).starts_with("/dev/shm: "));
        assert_eq!(lack(Ok((5, FsFlags::empty())), 5), None);
    }

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
