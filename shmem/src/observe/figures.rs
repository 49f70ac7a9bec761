//! The figures of a PE, in a memory file.
//!
//! The file has no name in any file system. A reader finds it through `/proc/PID/fd`, if the kernel lets it inspect the
//! process (the same user, and root), and the file disappears with the process. Any process can make a file that looks
//! like it, so a reader opens nothing that could block, and accepts only figures that name the process that holds them.
//! The PE rewrites the whole file between two equal stamps; a reader that finds different stamps has read during a
//! write, and reads again.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use symrail_transport::endpoint::{LaneCounters, LaneSpeed};

/// The memory file's name, as `/proc/PID/fd` shows it.
const NAME: &str = "symrail-figures";
/// The format's version; every change of [`Figures`] changes it.
const VERSION: u32 = 7;
/// Bytes before the figures: stamp, version and length.
const HEAD: usize = 16;
/// The most bytes of figures that a reader accepts.
const MOST: usize = 1 << 20;

/// The figures of a PE.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The PE.
    pub pe: u32,
    /// The number of PEs in its job.
    pub n_pes: u32,
    /// Its process, in its own PID namespace. Another process may hold the file too: a child that the PE has forked.
    pub pid: u32,
    /// The number of other PEs whose heaps it has mapped; it reaches the rest over rails.
    pub mapped: u32,
    /// A number that all PEs of its job share.
    pub job: u64,
    /// The provider or backend under its rails; empty if all PEs are mapped and there is no wire.
    pub fabric: String,
    /// Bytes of its symmetric heap.
    pub heap: u64,
    /// Microseconds since it joined the job.
    pub age_us: u64,
    /// Its lanes: the host endpoint's, then the proxy threads'.
    pub lanes: Vec<Lane>,
}

/// A lane's figures since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The thread that drives it: `host`, `proxy`, or the name of one of several proxy threads.
    pub owner: String,
    /// The rail, as `NIC_LIST` names it.
    pub rail: String,
    /// Its counters.
    pub counters: LaneCounters,
    /// Its measured speed, as far as it is known.
    pub speed: Option<LaneSpeed>,
}

/// The memory file of this process.
pub(crate) struct Page {
    file: File,
    stamp: u32,
    buffer: Vec<u8>,
}

impl Page {
    pub fn create() -> Result<Page> {
        let file = File::from(memfd_create(NAME, MFdFlags::MFD_CLOEXEC)?);
        Ok(Page { file, stamp: 0, buffer: Vec::new() })
    }

    pub fn write(&mut self, figures: &Figures) -> Result<()> {
        self.stamp = self.stamp.wrapping_add(1);
        self.buffer.clear();
        for word in [self.stamp, VERSION, 0, 0] {
            self.buffer.extend(word.to_le_bytes());
        }
        // Serialising plain values into memory cannot fail.
        self.buffer = postcard::to_extend(figures, std::mem::take(&mut self.buffer)).unwrap_or_default();
        let Some(length) = self.buffer.len().checked_sub(HEAD) else { return Ok(()) };
        self.buffer[8..12].copy_from_slice(&(length as u32).to_le_bytes());
        self.buffer.extend(self.stamp.to_le_bytes());
        symrail_heap::mapping::may_have_size(self.buffer.len() as u64)?;
        self.file.write_all_at(&self.buffer, 0)
    }
}

/// Reads the figures in an opened memory file.
///
/// # Errors
/// An error of the system; `InvalidData` if the file has no figures of this version.
pub fn read(file: &File) -> Result<Figures> {
    let wrong = |why: &str| Error::new(ErrorKind::InvalidData, why.to_owned());
    for _ in 0..100 {
        let mut head = [0; HEAD];
        file.read_exact_at(&mut head, 0)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(4) != VERSION {
            return Err(wrong("figures of another version of Symrail"));
        }
        let length = word(8) as usize;
        if length > MOST {
            return Err(wrong("figures that are too long"));
        }
        let mut bytes = vec![0; length + 4];
        file.read_exact_at(&mut bytes, HEAD as u64)?;
        let stamp = bytes.split_off(length);
        if stamp == head[..4] {
            return postcard::from_bytes(&bytes).map_err(|_| wrong("figures that make no sense"));
        }
    }
    Err(wrong("figures that change all the time"))
}

/// The figures of the PEs on this host whose processes are `wanted`, by process: those of this user, or all that this
/// user may inspect.
#[must_use]
pub fn find(of_all_users: bool, wanted: impl Fn(u32) -> bool) -> BTreeMap<u32, Figures> {
    let me = std::fs::metadata("/proc/self").map_or(u32::MAX, |about| about.uid());
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let of_process = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        if !wanted(pid) || !of_all_users && process.metadata().ok()?.uid() != me {
            return None;
        }
        let own = pid_inside(&process.path()).unwrap_or(pid);
        let files = entries(process.path().join("fd")).map(|link| link.path()).filter(|link| is_named(link));
        let files = files.filter_map(|link| open(&link));
        let figures = files.filter_map(|file| read(&file).ok()).find(|figures| figures.pid == own)?;
        Some((pid, figures))
    };
    entries("/proc".into()).filter_map(of_process).collect()
}

/// A process's own id, in the innermost PID namespace that it is in.
fn pid_inside(process: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Whether a link in `/proc/PID/fd` has the name of figures.
fn is_named(link: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|to| to.to_string_lossy().starts_with(&format!("/memfd:{NAME}")))
}

/// Opens a memory file. A name proves nothing, and a FIFO or a device would block a process that opens or reads it.
fn open(link: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(link).ok()?;
    // Only memory files have seals.
    (file.metadata().ok()?.is_file() && fcntl(&file, FcntlArg::F_GET_SEALS).is_ok()).then_some(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn some() -> Figures {
        let counters = LaneCounters { bytes: 7, ..LaneCounters::default() };
        let lane = Lane {
            owner: "host".into(),
            rail: "127.0.0.2".into(),
            counters,
            speed: Some(LaneSpeed { bandwidth: 8, latency: 9 }),
        };
        let pid = std::process::id();
        Figures { pe: 3, n_pes: 4, pid, mapped: 1, job: 5, fabric: "tcp".into(), heap: 2, age_us: 9, lanes: vec![lane] }
    }

    /// A zero counter takes one byte, so a further counter changes the length.
    #[test]
    fn another_form_of_figures_has_another_version() {
        let figures = Figures { lanes: vec![Lane::default()], ..Figures::default() };
        assert_eq!((VERSION, postcard::to_allocvec(&figures).unwrap().len()), (7, 55));
    }

    #[test]
    fn figures_are_found_and_read() {
        let mut page = Page::create().unwrap();
        page.write(&Figures::default()).unwrap();
        page.write(&some()).unwrap();
        let found = find(false, |pid| pid == std::process::id());
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(std::process::id(), some())]);
        assert!(find(false, |pid| pid == 1).is_empty());
    }

    #[test]
    fn figures_of_another_process_are_not_those_of_who_holds_them() {
        let mut page = Page::create().unwrap();
        // A forked child, or a reader, holds a PE's file in the same way.
        page.write(&Figures { pid: std::process::id() + 1, pe: 77, ..some() }).unwrap();
        assert!(find(false, |pid| pid == std::process::id()).values().all(|figures| figures.pe != 77));
    }

    #[test]
    fn what_would_block_or_is_no_memory_file_is_not_read() {
        let folder = std::env::temp_dir().join(format!("symrail-figures-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (fifo, file) = (folder.join("fifo"), folder.join("file"));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(&file, "figures").unwrap();
        let opened = [&fifo, &folder, Path::new("/dev/zero")].map(|path| open(path).is_some());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(opened, [false; 3]);
        let page = Page::create().unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&page.file));
        assert!(open(Path::new(&link)).is_some());
    }

    #[test]
    fn what_is_not_figures_is_refused() {
        let mut page = Page::create().unwrap();
        assert!(read(&page.file).is_err(), "empty");
        page.write(&some()).unwrap();
        for (at, bytes, why) in [(4, [9, 0, 0, 0], "version"), (8, [255; 4], "too long"), (0, [9; 4], "all the time")] {
            let mut was = [0; 4];
            page.file.read_exact_at(&mut was, at).unwrap();
            page.file.write_all_at(&bytes, at).unwrap();
            let error = read(&page.file).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            page.file.write_all_at(&was, at).unwrap();
        }
        page.file.write_all_at(&[255; 6], HEAD as u64).unwrap();
        assert!(read(&page.file).unwrap_err().to_string().contains("no sense"));
    }
}
