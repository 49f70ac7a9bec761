//! The figures of a PE, in a memory file.
//!
//! The file has no name in any file system: it is found through `/proc/PID/fd` by whoever the kernel lets look into the
//! process (its user, and root), and goes away with the process. It is written anew as a whole, between two equal
//! stamps; a reader that finds different stamps has looked in the middle of that, and looks again.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use symrail_transport::endpoint::LaneCounters;

/// The memory file's name, as `/proc/PID/fd` shows it.
const NAME: &str = "symrail-figures";
/// What is in it; another number for every change of [`Figures`].
const VERSION: u32 = 1;
/// Bytes before the figures: stamp, version and length.
const HEAD: usize = 16;
/// The most bytes of figures that a reader believes in.
const MOST: usize = 1 << 20;

/// What a PE tells about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The PE.
    pub pe: u32,
    /// How many PEs its job has.
    pub n_pes: u32,
    /// The provider or backend under its rails; empty where all PEs are mapped and there is no wire.
    pub fabric: String,
    /// Bytes of its symmetric heap.
    pub heap: u64,
    /// Microseconds since it joined the job.
    pub age_us: u64,
    /// Its lanes: the host endpoint's, then the proxy endpoint's.
    pub lanes: Vec<Lane>,
}

/// A lane's figures since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// Whether it is the host endpoint's.
    pub host: bool,
    /// The rail, as `NIC_LIST` names it.
    pub rail: String,
    /// Writes, reads and messages posted.
    pub writes: u64,
    /// See `writes`.
    pub reads: u64,
    /// See `writes`.
    pub messages: u64,
    /// Bytes of all of these.
    pub bytes: u64,
    /// Posts that had to wait for room in a queue.
    pub delayed: u64,
    /// Work requests that failed.
    pub failed: u64,
    /// How many of the work requests that were timed took 2^i to 2^(i+1) ns.
    pub latency: Vec<u32>,
}

impl Lane {
    pub(crate) fn new(host: bool, rail: &str, counters: &LaneCounters) -> Lane {
        Lane {
            host,
            rail: rail.to_owned(),
            writes: counters.writes,
            reads: counters.reads,
            messages: counters.messages,
            bytes: counters.bytes,
            delayed: counters.delayed,
            failed: counters.failed,
            latency: counters.latency.0.to_vec(),
        }
    }

    /// The upper bound, in nanoseconds, of the bucket that holds this part (0 to 1) of the timed work requests;
    /// `None` when none was timed.
    #[must_use]
    pub fn latency_ns(&self, part: f64) -> Option<u64> {
        let all: u64 = self.latency.iter().map(|&n| u64::from(n)).sum();
        let wanted = (part * all as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.latency.iter().position(|&n| {
            seen += u64::from(n);
            seen >= wanted
        })?;
        (all > 0).then(|| 1 << (bucket as u64 + 1).min(63))
    }
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
        // Serialising plain values into memory has no way to fail.
        self.buffer = postcard::to_extend(figures, std::mem::take(&mut self.buffer)).unwrap_or_default();
        let Some(length) = self.buffer.len().checked_sub(HEAD) else { return Ok(()) };
        self.buffer[8..12].copy_from_slice(&(length as u32).to_le_bytes());
        self.buffer.extend(self.stamp.to_le_bytes());
        self.file.write_all_at(&self.buffer, 0)
    }
}

/// Reads the figures in an opened memory file.
///
/// # Errors
/// What the system says; `InvalidData` for what is not figures of this version.
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

/// The memory files of all PEs on this host that this user may look into, with their processes.
#[must_use]
pub fn find() -> Vec<(u32, File)> {
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for process in entries("/proc".into()) {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let is_figures = |link: &PathBuf| {
            std::fs::read_link(link).is_ok_and(|to| to.to_string_lossy().starts_with(&format!("/memfd:{NAME}")))
        };
        let links = entries(process.path().join("fd")).map(|entry| entry.path());
        found.extend(links.filter(is_figures).filter_map(|link| File::open(link).ok()).map(|file| (pid, file)));
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn some() -> Figures {
        let lane = Lane { rail: "127.0.0.2".into(), bytes: 7, latency: vec![0, 5, 4, 1], ..Lane::default() };
        Figures { pe: 3, n_pes: 4, fabric: "tcp".into(), heap: 2, age_us: 9, lanes: vec![lane] }
    }

    #[test]
    fn figures_are_found_and_read() {
        let mut page = Page::create().unwrap();
        page.write(&Figures::default()).unwrap();
        page.write(&some()).unwrap();
        let mine = find().into_iter().filter(|(pid, _)| *pid == std::process::id());
        assert!(mine.map(|(_, file)| read(&file).unwrap()).any(|figures| figures == some()));
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

    #[test]
    fn latencies_are_told_by_their_bucket() {
        let lane = &some().lanes[0];
        assert_eq!((lane.latency_ns(0.5), lane.latency_ns(0.9), lane.latency_ns(1.0)), (Some(4), Some(8), Some(16)));
        assert_eq!(Lane::default().latency_ns(0.5), None);
    }
}
