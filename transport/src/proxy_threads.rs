//! How many proxy threads a PE has, and which rails each of them drives.
//!
//! Thread `t` of `T` drives the rails `t`, `t + T`, and so on, through an endpoint of its own. All PEs have as many
//! threads and rails, so threads with the same number have the same rails on all PEs, and talk only to each other. A
//! thread that would have one rail also opens the next one as a spare in case its own fails.

use crate::env::{RailPolicy, Settings};

/// The most proxy threads that a PE has.
pub const MAX_THREADS: usize = 8;
/// Cores of a PE per proxy thread, when the settings do not choose the number of threads.
const CORES_EACH: usize = 4;

/// The rails that one proxy thread opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The numbers of the rails, in lane order.
    pub rails: Vec<usize>,
    /// Whether the last rail is another thread's, and is used only while the first has failed.
    pub spare: bool,
}

impl Share {
    /// The share of thread `thread` of `threads` in so many rails.
    #[must_use]
    pub fn of(thread: usize, threads: usize, rails: usize) -> Share {
        let mut own: Vec<usize> = (thread..rails).step_by(threads.max(1)).collect();
        let spare = own.len() == 1 && rails > 1;
        if spare {
            own.push((thread + 1) % rails);
        }
        Share { rails: own, spare }
    }
}

/// The number of proxy threads of a PE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threads {
    /// The number, at least 1.
    pub number: usize,
    /// The reason for the number, in a sentence.
    pub reason: String,
    /// Whether the settings ask for more, so that the reason is a warning.
    pub fewer: bool,
}

impl Threads {
    /// The number that the settings ask for, as far as a PE with so many rails and cores has a use for them.
    /// `native_amo`: NICs perform its AMOs.
    #[must_use]
    pub fn choose(settings: &Settings, rails: usize, cores: usize, native_amo: bool) -> Threads {
        let channels = settings.proxy_channels;
        let (limit, why) = match rails {
            _ if native_amo => (1, "one NIC performs all AMOs".to_owned()),
            _ if channels < rails => (channels, format!("SYMRAIL_PROXY_CHANNELS is {channels}")),
            1 => (1, "there is 1 rail".to_owned()),
            _ => (rails, format!("there are {rails} rails")),
        };
        let by_cores = match settings.rail_policy {
            RailPolicy::Stripe => (1, "an operation is split over one thread's rails".to_owned()),
            RailPolicy::Adaptive => (1, "an operation takes one of its thread's rails".to_owned()),
            RailPolicy::RoundRobin => (cores / CORES_EACH, format!("{cores} cores for each PE")),
        };
        let wanted = settings.proxy_threads.unwrap_or(by_cores.0);
        let number = wanted.min(limit).max(1);
        let reason = match settings.proxy_threads {
            Some(asked) if asked > number => format!("{asked} were asked for, but {why}"),
            Some(_) => "as SYMRAIL_PROXY_THREADS asks".into(),
            None if wanted > limit => why,
            None => by_cores.1,
        };
        let threads = if number == 1 { "thread" } else { "threads" };
        Threads {
            number,
            reason: format!("{number} proxy {threads}: {reason}"),
            fewer: settings.proxy_threads.is_some_and(|asked| asked > number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rail_is_one_threads_and_every_thread_has_a_way_left() {
        for rails in 1..=8 {
            for threads in 1..=rails {
                let shares: Vec<Share> = (0..threads).map(|thread| Share::of(thread, threads, rails)).collect();
                let own = |share: &Share| share.rails[..share.rails.len() - usize::from(share.spare)].to_vec();
                let mut all: Vec<usize> = shares.iter().flat_map(own).collect();
                all.sort_unstable();
                assert_eq!(all, (0..rails).collect::<Vec<_>>(), "{threads} threads");
                for share in &shares {
                    assert!(rails == 1 || share.rails.len() > 1, "{share:?}");
                    assert_eq!(share.spare, threads > 1 && own(share).len() == 1, "{share:?}");
                    assert!(share.rails[1..].iter().all(|rail| *rail != share.rails[0]), "{share:?}");
                }
            }
        }
        assert_eq!(Share::of(1, 2, 4), Share { rails: vec![1, 3], spare: false });
        assert_eq!(Share::of(3, 4, 4), Share { rails: vec![3, 0], spare: true });
    }

    #[test]
    fn a_number_that_is_not_taken_has_its_reason() {
        let settings = |pairs: &[(&str, &str)]| Settings::from_iter(pairs.iter().copied()).unwrap_or_default();
        let asked = |number: &'static str| settings(&[("SYMRAIL_PROXY_THREADS", number)]);
        let cases = [
            (settings(&[]), 4, 2, false, 1, "2 cores for each PE"),
            (settings(&[]), 4, 16, false, 4, "16 cores for each PE"),
            (settings(&[]), 4, 12, false, 3, "12 cores for each PE"),
            (settings(&[]), 2, 64, false, 2, "there are 2 rails"),
            (settings(&[("SYMRAIL_PROXY_CHANNELS", "3")]), 4, 64, false, 3, "SYMRAIL_PROXY_CHANNELS is 3"),
            (settings(&[("SYMRAIL_RAIL_POLICY", "stripe")]), 4, 64, false, 1, "split"),
            (settings(&[("SYMRAIL_RAIL_POLICY", "adaptive")]), 4, 64, false, 1, "one of its thread's rails"),
            (asked("2"), 4, 2, false, 2, "as SYMRAIL_PROXY_THREADS asks"),
            (asked("8"), 1, 2, false, 1, "8 were asked for, but there is 1 rail"),
            (asked("8"), 8, 2, false, 4, "8 were asked for, but SYMRAIL_PROXY_CHANNELS is 4"),
            (asked("2"), 4, 64, true, 1, "2 were asked for, but one NIC performs all AMOs"),
            (settings(&[("SYMRAIL_HEAP_KIND", "guarded")]), 4, 64, false, 4, "there are 4 rails"),
        ];
        for (settings, rails, cores, native, number, reason) in cases {
            let threads = Threads::choose(&settings, rails, cores, native);
            assert_eq!(threads.number, number, "{threads:?}");
            assert!(threads.reason.contains(reason), "{threads:?}");
            assert_eq!(threads.fewer, settings.proxy_threads.is_some_and(|asked| asked > number), "{threads:?}");
        }
    }
}
