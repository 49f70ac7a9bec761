//! Jobs of more PEs than other tests have: the cost of one more PE for the others. `scripts/scale.sh` runs larger ones.
#![allow(clippy::unwrap_used, clippy::panic, clippy::float_cmp)]

use std::process::Command;

use symrail_tests::job::{Job, built};

/// PEs over one rail, which use each kind of call, and the figures that each printed.
struct Measured {
    lines: Vec<String>,
    log: String,
}

impl Measured {
    fn by(pes: u32, hosts: u32, args: &[&str]) -> Measured {
        let job = Job::new("scale").pes(pes).hosts(hosts).rails(1).args(args).limit(120);
        let job = job.env("SYMRAIL_HEAP_SIZE", "16M").env("SYMRAIL_LOG", "warn,symrail::stages=info");
        let job = job.env("SYMRAIL_TRANSPORT", "libfabric").env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
        let outcome = job.succeed();
        let lines: Vec<String> = outcome.out.lines().filter(|l| l.starts_with("scale ")).map(str::to_owned).collect();
        assert_eq!(lines.len(), pes as usize, "{}", outcome.out);
        Measured { lines, log: outcome.err }
    }

    /// Each PE's figures with this name.
    fn of_each(&self, name: &str) -> Vec<f64> {
        let value =
            |line: &String| line.split_once(&format!(" {name} ")).unwrap().1.split(' ').next().unwrap().to_owned();
        self.lines.iter().map(|line| value(line).parse().unwrap()).collect()
    }

    /// A PE's cost of joining: messages and bytes.
    fn joining(&self) -> (f64, f64) {
        let line = self.log.lines().find(|line| line.contains("joined in")).unwrap_or_else(|| panic!("{}", self.log));
        let (_, cost) = line.rsplit_once("; ").unwrap();
        let words: Vec<&str> = cost.split(' ').collect();
        (words[0].parse().unwrap(), words[3].parse().unwrap())
    }
}

#[test]
fn joining_takes_as_many_messages_in_a_larger_job_and_few_bytes_more() {
    let (small, large) = (Measured::by(4, 2, &[]), Measured::by(24, 4, &[]));
    let ((messages, bytes), (more_messages, more_bytes)) = (small.joining(), large.joining());
    assert_eq!(messages, more_messages);
    assert!((more_bytes - bytes) / 20.0 < 160.0, "{bytes} bytes, and {more_bytes} with 20 more PEs");
    for stage in ["finding the job", "who is where", "rails", "addresses", "mapping", "connecting", "last words"] {
        assert!(large.log.contains(stage), "{stage}: {}", large.log);
    }
}

#[test]
fn peers_are_connected_when_they_are_addressed_or_all_at_once() {
    let (when_addressed, at_once) = (Measured::by(8, 8, &[]), Measured::by(8, 8, &["connect"]));
    let grown = |measured: &Measured| -> Vec<f64> {
        measured
            .of_each("all_fds")
            .iter()
            .zip(measured.of_each("ring_fds"))
            .map(|(after, before)| after - before)
            .collect()
    };
    // A barrier talks to PEs at a distance of 1, 2 and 4: there are others.
    assert!(grown(&when_addressed).iter().all(|&fds| fds > 0.0), "{:?}", grown(&when_addressed));
    assert_eq!(grown(&at_once), [0.0; 8], "who is connected is not connected again");
}

/// The figures of a simulation.
fn simulated(pes: u32) -> serde_json::Value {
    let file = std::env::temp_dir().join(format!("symrail-simulated-{}.json", std::process::id()));
    let pes = pes.to_string();
    let mut command = Command::new(built("symrail"));
    let done = command.args(["perf", "scale", "--pes", &pes, "--hosts", &pes, "--json"]).arg(&file).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// With a host for each PE, so that nothing uses mapped memory.
#[test]
fn real_pes_ask_of_their_rails_what_simulated_ones_do() {
    for pes in [2, 4, 8, 16] {
        let job = Job::new("scale").args(["works"]).pes(pes).hosts(pes).rails(1).limit(120);
        let job = job.env("SYMRAIL_HEAP_SIZE", "16M").env("SYMRAIL_LOG", "warn,symrail::stages=info");
        let job = job.env("SYMRAIL_TRANSPORT", "libfabric").env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
        let outcome = job.succeed();
        let simulated = simulated(pes);
        let rows = simulated["after"]["rows"].as_array().unwrap();
        for pe in 0..pes {
            let of_pe = |line: &&str| line.starts_with("work ") && line.contains(&format!(" pe {pe} "));
            let real: Vec<&str> = outcome.out.lines().filter(of_pe).collect();
            assert_eq!(real.len(), rows.len(), "{}", outcome.out);
            for (line, row) in real.into_iter().zip(rows) {
                let (work, posted) = (row["work"].as_str().unwrap(), &row["posted"][pe as usize]);
                let [writes, reads, requests] =
                    ["writes", "reads", "requests"].map(|what| posted[what].as_u64().unwrap());
                let begins = format!("work {work} pe {pe} writes {writes} reads {reads} requests ");
                let rest = line.strip_prefix(&begins).unwrap_or_else(|| panic!("{line}, and simulated {row}"));
                let asked: u64 = rest.split(' ').next().unwrap().parse().unwrap();
                // A slow PE finds some of many puts acknowledged, and requests fewer acknowledgements.
                let slow = work.starts_with("AllToAll") && asked < requests && asked >= requests / 2;
                assert!(asked == requests || slow, "{line}, and simulated {row}");
            }
        }
        let joined: Vec<Vec<f64>> = outcome
            .err
            .lines()
            .filter_map(|line| line.split_once("; "))
            .map(|(_, cost)| cost.split(' ').filter_map(|word| word.parse().ok()).collect())
            .collect();
        assert_eq!(joined.len(), pes as usize, "{}", outcome.err);
        for (real, frames) in joined.iter().zip(simulated["joining"]["frames"].as_array().unwrap()) {
            let (messages, bytes) = (frames[0].as_f64().unwrap(), frames[1].as_f64().unwrap());
            assert_eq!(real[0], messages, "{pes} PEs");
            // A simulated PE's contributions have the same length, but invented contents.
            assert!((0.9..1.1).contains(&(bytes / real[1])), "{pes} PEs: {bytes} bytes, and {} in earnest", real[1]);
        }
    }
}
