//! System resources that a process uses.

/// Resources of a process.
#[derive(Debug, Clone, Copy)]
pub struct Used {
    /// Resident memory in KiB, without pages of files, which the system loads and drops at will.
    pub kib: i64,
    /// Open descriptors.
    pub fds: usize,
    /// Threads.
    pub threads: usize,
}

impl Used {
    /// This process, now.
    ///
    /// # Panics
    /// There is no `/proc`.
    #[must_use]
    pub fn now() -> Used {
        let count = |path| std::fs::read_dir(path).unwrap().count();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = |kind: &str| -> i64 {
            let line = status.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let kib = resident("RssAnon:") + resident("RssShmem:");
        Used { kib, fds: count("/proc/self/fd"), threads: count("/proc/self/task") }
    }
}
