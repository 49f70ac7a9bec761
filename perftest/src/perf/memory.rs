//! Checks that a machine has the memory that its PEs will fill: otherwise the kernel would kill them without a message.

use std::path::Path;

use super::error::{Error, Result};

/// Bytes that this machine can still use without swapping, if the kernel reports them.
#[must_use]
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// As above, for this process and its children together, whose control groups may allow less. PEs that another process
/// started may be in other groups.
#[must_use]
pub fn available_to_children() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok();
    let group = groups.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("0::/")));
    let of_groups = group.and_then(|group| left_in_groups(Path::new("/sys/fs/cgroup"), group));
    available().into_iter().chain(of_groups).min()
}

/// The bytes that the limits of a control group (version 2) and of those around it leave, if there are any. Cached
/// files count against a limit, but the kernel drops them when it is reached.
fn left_in_groups(root: &Path, group: &str) -> Option<u64> {
    let left = |group: &Path| {
        let number = |name: &str| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        let (limit, used) = (number("memory.max")?, number("memory.current")?);
        let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let files = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            if matches!(name, "active_file" | "inactive_file") { bytes.parse::<u64>().ok() } else { None }
        };
        Some(limit.saturating_sub(used.saturating_sub(stat.lines().filter_map(files).sum())))
    };
    root.join(group).ancestors().take_while(|around| around.starts_with(root)).filter_map(left).min()
}

/// Refuses `pes` PEs of one machine that fill `bytes` bytes each, if that is more than is available.
pub fn check(pes: usize, bytes: usize, available: Option<u64>) -> Result<()> {
    let all = (bytes as u64).saturating_mul(pes as u64);
    let Some(there) = available.filter(|there| all > *there) else { return Ok(()) };
    let said = indicatif::BinaryBytes;
    Err(Error::Arguments(format!(
        "{pes} PEs with {} each need {}, and this machine has {} free; use smaller sizes (-e), a smaller window (-W), or \
         fewer PEs",
        said(bytes as u64),
        said(all),
        said(there)
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn more_than_there_is_is_refused_in_words() {
        assert!(available().unwrap() > 1 << 20);
        assert!(available_to_children() <= available());
        assert!(check(2, 1 << 30, Some(2 << 30)).is_ok());
        assert!(check(2, 1 << 30, None).is_ok());
        let reason = check(3, 1 << 30, Some(2 << 30)).unwrap_err().to_string();
        assert!(
            reason.contains("3 PEs with 1.00 GiB each need 3.00 GiB, and this machine has 2.00 GiB free"),
            "{reason}"
        );
        assert!(check(usize::MAX, usize::MAX, Some(1 << 40)).is_err());
    }

    #[test]
    fn a_control_group_may_leave_less() {
        let root = std::env::temp_dir().join(format!("symrail-groups-{}", std::process::id()));
        let job = root.join("jobs/one");
        std::fs::create_dir_all(&job).unwrap();
        let write = |group: &Path, limit: &str, used: &str| {
            std::fs::write(group.join("memory.max"), limit).unwrap();
            std::fs::write(group.join("memory.current"), used).unwrap();
        };
        assert_eq!(left_in_groups(&root, "jobs/one"), None);
        write(&job, "max\n", "500\n");
        assert_eq!(left_in_groups(&root, "jobs/one"), None, "no limit");
        write(&root.join("jobs"), "1000\n", "600\n");
        assert_eq!(left_in_groups(&root, "jobs/one"), Some(400), "the limit of a group around it");
        write(&job, "700\n", "500\n");
        assert_eq!(left_in_groups(&root, "jobs/one"), Some(200));
        std::fs::write(job.join("memory.stat"), "anon 100\ninactive_file 90\nactive_file 60\nshmem 7\n").unwrap();
        assert_eq!(left_in_groups(&root, "jobs/one"), Some(350), "cached files are given back");
        write(&job, "100\n", "500\n");
        assert_eq!(left_in_groups(&root, "jobs/one"), Some(0), "a limit that was lowered");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
