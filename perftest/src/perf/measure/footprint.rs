//! The footprint of a PE: memory, and processor time while it is idle.

use std::time::{Duration, Instant};

use crate::perf::error::{Error, Result};

/// How long a sleeping PE is measured.
pub const ASLEEP: Duration = Duration::from_secs(5);

/// Resident memory of this process besides symmetric heaps (its own and those it has mapped), in MiB.
pub fn resident_besides_heaps() -> Result<f64> {
    let path = "/proc/self/smaps";
    let text = std::fs::read_to_string(path)
        .map_err(|reason| Error::System { what: format!("reading {path}"), reason: reason.to_string() })?;
    Ok(besides_heaps(&text) as f64 / 1024.0)
}

/// From the text of a memory map, in KiB.
fn besides_heaps(smaps: &str) -> u64 {
    let (mut total, mut of_heap) = (0, false);
    for line in smaps.lines() {
        let mut fields = line.split_ascii_whitespace();
        match fields.next() {
            Some("Rss:") if !of_heap => total += fields.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0),
            // A line `address-address permissions offset device inode name` starts a mapping.
            Some(first) if first.contains('-') && !first.ends_with(':') => {
                of_heap = line.contains("memfd:symrail-heap");
            }
            _ => {}
        }
    }
    total
}

/// Sleeps, and returns the share of a core that the process used meanwhile, in percent.
pub fn processor_time_asleep() -> Result<f64> {
    let (begun, before) = (Instant::now(), processor_time()?);
    std::thread::sleep(ASLEEP);
    Ok((processor_time()? - before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
}

fn processor_time() -> Result<Duration> {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_SELF)
        .map_err(|reason| Error::System { what: "getrusage".into(), reason: reason.to_string() })?;
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs()) + Duration::from_micros(time.tv_usec().unsigned_abs())
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn heaps_are_not_counted() {
        let text = "7f00-7f10 rw-s 00000000 00:01 5 /memfd:symrail-heap (deleted)\nSize: 64 kB\nRss: 64 kB\n\
                    7f20-7f30 rw-p 00000000 00:00 0 \nRss:                 12 kB\nPss: 9 kB\n\
                    7f40-7f50 r-xp 00000000 00:00 7 /usr/lib/x-y.so\nRss: 8 kB\nVmFlags: rd ex\n";
        assert_eq!(besides_heaps(text), 20);
        assert!(resident_besides_heaps().unwrap() > 0.5);
    }

    #[test]
    fn work_is_processor_time() {
        let before = processor_time().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        assert!(processor_time().unwrap() > before);
    }
}
