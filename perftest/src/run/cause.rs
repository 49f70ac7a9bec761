//! Why a job fails: what was first, among what followed from it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::ending::Ending;
use super::pes::{Pes, Process};

/// How long a failure waits for the end of a PE of which only a closed connection is known: behind a shell, the process
/// that died is none of the launcher's.
pub(super) const CAUSE: Duration = Duration::from_millis(300);

/// What the rendezvous reports of a PE in trouble.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// Its connection closed before it had finalized.
    Lost,
    /// It left without finalizing, while others were still in the job.
    LeftEarly,
    /// It requested the end of the job, with an exit code and a reason.
    Aborted(i32, String),
}

/// The reports on PEs in trouble, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    reports: Vec<(u32, Trouble)>,
    /// PEs that have joined, and of whose end the rendezvous has reported nothing.
    connected: BTreeSet<u32>,
}

/// A message for the user, and the exit code that goes with it.
pub(super) type Message = (String, i32);

impl Troubles {
    pub(super) fn note(&mut self, pe: u32, trouble: Trouble) {
        self.left(pe);
        self.reports.push((pe, trouble));
    }

    pub(super) fn joined(&mut self, pe: u32) {
        self.connected.insert(pe);
    }

    pub(super) fn left(&mut self, pe: u32) {
        self.connected.remove(&pe);
    }

    /// Whether the PE's connection closed before it had finalized.
    pub(super) fn is_lost(&self, pe: u32) -> bool {
        self.reports.iter().any(|(other, trouble)| *other == pe && matches!(trouble, Trouble::Lost))
    }

    /// Whether the cause of what happened at that time may yet show: a PE still runs whose connection closed although it
    /// had not requested the end of the job, or one has ended, and what it said last is not read yet.
    pub(super) fn may_be_explained(&self, since: Instant, pes: &dyn Pes) -> bool {
        since.elapsed() < CAUSE && self.is_unexplained(|pe| pes.get(pe).map(|process| process.ending.is_some()))
    }

    /// As [`Troubles::may_be_explained`], by whether PEs of this machine have ended.
    fn is_unexplained(&self, has_ended: impl Fn(u32) -> Option<bool>) -> bool {
        let is_lost = |(pe, trouble): &(u32, Trouble)| matches!(trouble, Trouble::Lost) && !self.aborted(*pe);
        self.reports.iter().any(|it| is_lost(it) && has_ended(it.0) == Some(false))
            || self.connected.iter().any(|&pe| has_ended(pe) == Some(true))
    }

    fn aborted(&self, pe: u32) -> bool {
        self.reports.iter().any(|(other, trouble)| *other == pe && matches!(trouble, Trouble::Aborted(..)))
    }

    /// The messages of PEs that have left early. They are forgotten.
    pub(super) fn take_left(&mut self) -> Vec<String> {
        let left = self.reports.extract_if(.., |(_, trouble)| matches!(trouble, Trouble::LeftEarly));
        left.map(|(pe, _)| left_early(pe)).collect()
    }

    /// What to tell of a failed job, the likely first cause in front. `failed` are the PEs that have failed.
    ///
    /// A death by signal, or the loss of a host, is a cause: errors, exit codes and requests to end the job may be
    /// consequences of another PE's death, and so may SIGABRT, by which programs end themselves. Among equals those in
    /// front were ending before the PEs were told that the job is broken; then the PE whose report came first: the
    /// others learn of its loss before they can fail from it.
    pub(super) fn messages(&self, failed: &[Process]) -> Vec<Message> {
        let follows = |ending| match ending {
            Ending::Signal { number: libc::SIGABRT, .. } => 1,
            Ending::Signal { .. } | Ending::HostLost { .. } => 0,
            Ending::Code(_) | Ending::Unknown => 2,
        };
        let rank = |pe: u32| self.reports.iter().position(|(other, _)| *other == pe).unwrap_or(usize::MAX);
        let ends = failed.iter().filter(|process| !self.aborted(process.pe)).map(|process| {
            let ending = process.ending.unwrap_or(Ending::Unknown);
            let order = (follows(ending), !process.unprompted, rank(process.pe), process.pe);
            (order, (ended(process, ending), ending.exit_code()))
        });
        let reports = self.reports.iter().filter_map(|(pe, trouble)| {
            let message = match trouble {
                Trouble::Lost => return None,
                Trouble::LeftEarly if self.aborted(*pe) => return None,
                Trouble::LeftEarly => (left_early(*pe), 1),
                Trouble::Aborted(code, why) => (format!("PE {pe} aborted the job with code {code}: {why}"), *code),
            };
            Some(((2, true, rank(*pe), *pe), message))
        });
        let mut all: Vec<_> = ends.chain(reports).collect();
        all.sort_by_key(|(order, _)| *order);
        all.into_iter().map(|(_, message)| message).collect()
    }
}

fn left_early(pe: u32) -> String {
    format!("PE {pe} left the job without finalizing; what waits for it on other PEs fails. Call finalize on every PE")
}

fn ended(process: &Process, ending: Ending) -> String {
    let hint = match ending {
        Ending::Signal { number: libc::SIGKILL, .. } => {
            "; not by symrail run: if its host ran out of memory, the kernel log there says so (dmesg)"
        }
        _ => "",
    };
    format!("{process} {ending}{hint}")
}

#[cfg(test)]
mod tests {
    use nix::unistd::Pid;

    use super::*;

    fn failure(pe: u32, ending: Ending) -> Process {
        Process { pe, pid: Pid::from_raw(1), host: None, ending: Some(ending), unprompted: false }
    }

    fn killed(number: i32) -> Ending {
        Ending::Signal { number, core: false }
    }

    fn in_order(troubles: Vec<(u32, Trouble)>, failed: &[Process]) -> Vec<(String, i32)> {
        let first_words = |(text, code): Message| (text.split(' ').take(2).collect::<Vec<_>>().join(" "), code);
        Troubles { reports: troubles, ..Troubles::default() }.messages(failed).into_iter().map(first_words).collect()
    }

    fn named(all: &[(u32, i32)]) -> Vec<(String, i32)> {
        all.iter().map(|(pe, code)| (format!("PE {pe}"), *code)).collect()
    }

    #[test]
    fn a_cause_may_show_while_a_report_or_an_ending_is_not_there() {
        let mut troubles = Troubles::default();
        let ended = |pe| Some(pe == 1);
        (0..3).for_each(|pe| troubles.joined(pe));
        assert!(troubles.is_unexplained(ended), "PE 1 may have requested the end of the job");
        troubles.note(1, Trouble::Aborted(7, "out of heap".into()));
        assert!(!troubles.is_unexplained(ended));
        troubles.note(2, Trouble::Lost);
        assert!(troubles.is_unexplained(ended), "PE 2 has not ended yet");
        assert!(!troubles.is_unexplained(|_| None), "it is on another machine");
        troubles.left(0);
        assert!(!troubles.is_unexplained(|_| Some(true)));
    }

    #[test]
    fn the_first_cause_is_blamed() {
        let code = Ending::Code(1);
        let failed = [
            failure(0, code),
            failure(1, code),
            failure(2, code),
            failure(3, killed(11)),
            failure(4, killed(11)),
            failure(5, killed(6)),
        ];
        let lost = [5, 4, 2, 0].map(|pe| (pe, Trouble::Lost)).into_iter().collect();
        let expected = [(4, 139), (3, 139), (5, 134), (2, 1), (0, 1), (1, 1)];
        assert_eq!(in_order(lost, &failed), named(&expected));
    }

    #[test]
    fn an_abort_is_told_once_and_after_the_death_that_it_follows_from() {
        let aborted = |pe, code| (pe, Trouble::Aborted(code, "put to PE 1 failed".into()));
        let followed = vec![aborted(0, 7), (1, Trouble::Lost), (0, Trouble::LeftEarly)];
        let failed = [failure(0, Ending::Code(7)), failure(1, killed(9))];
        assert_eq!(in_order(followed, &failed), named(&[(1, 137), (0, 7)]));
        // The report of the consequence came first, or the only one.
        let gone = Process { unprompted: true, ..failure(1, Ending::Code(3)) };
        for late in [vec![], vec![(1, Trouble::Lost)]] {
            let troubles = [vec![aborted(0, 7)], late].concat();
            assert_eq!(in_order(troubles, &[failure(0, Ending::Code(7)), gone.clone()]), named(&[(1, 3), (0, 7)]));
        }
        let first = vec![aborted(1, 7), (0, Trouble::LeftEarly), (1, Trouble::Lost)];
        let failed = [failure(1, Ending::Code(7)), failure(2, Ending::Code(1))];
        assert_eq!(in_order(first, &failed), named(&[(1, 7), (0, 1), (2, 1)]));
    }
}
