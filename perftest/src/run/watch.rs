//! The launcher's loop: starts the PEs and polls signals, deaths and the rendezvous' events, until every PE is gone.

use std::io::{self, ErrorKind, IsTerminal};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use symrail::bootstrap::rendezvous::{Event, Options, Secret, Server, Shape, nearby};

use super::cause::{CAUSE, Trouble, Troubles};
use super::children::{Unprompted, on_event};
use super::ending::Ending;
use super::guard::Guard;
use super::inbox::Inbox;
use super::job::{Job, LaunchError};
use super::job_id::JobId;
use super::local::{Carry, Local};
use super::pes::{Pes, Process};
use super::remote::Remote;
use super::signals::{Signals, asks_for_the_end};
use super::spawn::{Files, Inheritance, Input, Streams};
use crate::print;

/// The time from SIGTERM to SIGKILL; also how long the others may continue after a PE left without finalizing.
const GRACE: Duration = Duration::from_secs(2);
/// How long a job has to end by itself after a signal from outside has requested that.
const ASKED: Duration = Duration::from_secs(2);
/// How long a failure waits for processes that are ending, unless a cause is known. Freeing what they have takes time.
const ENDING: Duration = Duration::from_secs(5);
/// The exit code of a job that took too long, as `timeout` uses it.
const TIMED_OUT: i32 = 124;

/// Starts the job's PEs and waits for all of them. Returns the job's exit code: 0 if all succeeded; 128 plus the number
/// of a signal that ended the job from outside; otherwise that of the PE that failed first. Prints on standard error
/// which PE failed and why.
///
/// The PEs die with the calling thread. Meanwhile the launcher takes the signals that it passes on; call it before
/// starting threads, or they may get these signals.
///
/// # Errors
/// A job that makes no sense here, or a program that cannot be started. No PE is left behind.
pub fn launch(job: &Job) -> Result<i32, LaunchError> {
    job.check()?;
    // Errors in the environment are reported once, not by every PE.
    let settings = job.settings()?;
    let reported = settings.report_unknown();
    let signals = Signals::take()?;
    let job_id = JobId::new();
    let inheritance = Inheritance { signals: signals.before, files: Files::raise(), reported, jobs: job_id.value() };
    let (inbox, poster) = Inbox::new()?;
    let input = !io::stdin().is_terminal();
    let (pes, watched, interface, shape): (Box<dyn Pes>, _, _, _) = match &job.on {
        None => {
            // While this process has one thread.
            let guard = Guard::start(&job_id)?;
            let input = if input { Input::Inherited } else { Input::Nothing };
            let streams = (Streams { input, piped: job.prefix }, print_lines());
            let local = Local::new(job.clone(), 0..job.n, streams, (job_id, guard), inheritance)?;
            let watched = local.watched();
            (Box::new(local), watched, nearby(), Shape::STAR)
        }
        Some(hosts) => {
            let patience = Duration::from_secs(settings.timeout_s).min(job.timeout.unwrap_or(Duration::MAX));
            let remote = Remote::open((job, hosts), (&inheritance, input), (&signals, &inbox, &poster), patience)?;
            let (interface, shape) = (remote.address()?, remote.shape());
            // The agents watch.
            (Box::new(remote), Unprompted::default(), interface, shape)
        }
    };
    let on_event = on_event(watched, poster);
    let options = Options { n_pes: Some(job.n), watched: true, shape, on_event, ..Options::default() };
    let server = Server::start(interface, &Secret::generate()?, options)?;
    let watch = Watch {
        signals,
        inbox,
        server,
        troubles: Troubles::default(),
        asked: None,
        failed_at: None,
        left_at: None,
        give_up_at: None,
        time_out_at: job.timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
        end: None,
        pes,
    };
    watch.run()
}

/// Writes PEs' piped output to this process's output, in lines with their numbers.
fn print_lines() -> Carry {
    Box::new(|carriers, pe, child| {
        child.stdout.take().into_iter().for_each(|out| carriers.carry(pe, true, out, io::stdout));
        child.stderr.take().into_iter().for_each(|err| carriers.carry(pe, true, err, io::stderr));
    })
}

/// The job is ending: its exit code, and when to kill the PEs.
struct End {
    code: i32,
    kill_at: Option<Instant>,
}

struct Watch {
    signals: Signals,
    inbox: Inbox<Event>,
    server: Server,
    troubles: Troubles,
    /// The first signal from outside that requested the end.
    asked: Option<Signal>,
    /// When the first failure was detected.
    failed_at: Option<Instant>,
    /// When the first of the PEs left early of which the user has not been told.
    left_at: Option<Instant>,
    /// When the others must have ended, after one left without finalizing.
    give_up_at: Option<Instant>,
    time_out_at: Option<Instant>,
    end: Option<End>,
    pes: Box<dyn Pes>,
}

impl Watch {
    fn run(mut self) -> Result<i32, LaunchError> {
        while !self.pes.over() {
            self.pes.start_some(&self.server)?;
            self.sleep();
            self.take_signals();
            let ended = self.pes.take_ended();
            ended.iter().for_each(|pe| self.server.process_ended(*pe));
            // After the endings, whose causes it may have reported before.
            self.note_events();
            for pe in ended {
                self.judge(pe);
            }
            self.decide();
        }
        // All have ended, so nothing more can be learnt about the cause.
        if self.end.is_none() && self.failed_at.is_some() {
            self.blame();
        } else if self.end.is_none() {
            self.tell_who_left();
        }
        let code = self.end.as_ref().map_or(0, |end| end.code);
        Ok(if self.finish() { code } else { code.max(1) })
    }

    /// Sleeps until an event arrives or is due.
    fn sleep(&self) {
        let kill_at = self.end.as_ref().and_then(|end| end.kill_at);
        let since = self.failed_at.or(self.left_at).filter(|_| self.end.is_none());
        let cause_at = since.map(|at| at + if at.elapsed() < CAUSE { CAUSE } else { ENDING });
        let others = [self.give_up_at, self.time_out_at].into_iter().flatten().filter(|_| self.end.is_none());
        let due = others.chain(kill_at).chain(cause_at).chain(self.pes.due()).min();
        self.inbox.sleep(&self.signals, if self.pes.starts() { Some(Instant::now()) } else { due });
    }

    fn take_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.fd.read_signal() {
            let Some(signal) = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())
            else {
                continue;
            };
            match signal {
                Signal::SIGCHLD => self.pes.note_end_of(Pid::from_raw(info.ssi_pid.cast_signed())),
                Signal::SIGTSTP => {
                    self.pes.signal_all(signal);
                    // This process stops here too, until SIGCONT.
                    let _ = kill(getpid(), Signal::SIGSTOP);
                }
                _ if asks_for_the_end(signal) => self.end_as_asked(signal),
                other => self.pes.signal_all(other),
            }
        }
    }

    /// A signal from outside requests the end of the job. The PEs get the same signal, and SIGKILL if they have not
    /// ended in time.
    fn end_as_asked(&mut self, signal: Signal) {
        let now = Instant::now();
        let (kill_at, what) = if self.asked.is_some() {
            (now, format!("{signal} again: killing the PEs"))
        } else {
            let seconds = ASKED.as_secs();
            (now + ASKED, format!("passing {signal} on to the PEs; in {seconds} s, or at the next, they are killed"))
        };
        say(&what);
        self.asked.get_or_insert(signal);
        self.ask_for_the_end(signal, 128 + signal as i32, kill_at);
    }

    fn note_events(&mut self) {
        while let Some(event) = self.inbox.next() {
            match event {
                Event::Joined(pe) => self.troubles.joined(pe),
                Event::Left(pe) => self.troubles.left(pe),
                Event::Broken => {}
                Event::LeftEarly(pe) => {
                    self.troubles.note(pe, Trouble::LeftEarly);
                    self.left_at.get_or_insert_with(Instant::now);
                }
                Event::Lost(pe) => {
                    self.troubles.note(pe, Trouble::Lost);
                    self.judge(pe);
                }
                // No failure: the job's work is done.
                Event::Aborted { code: 0, .. } if self.failed_at.is_none() && self.end.is_none() => self.finish_with(0),
                Event::Aborted { pe, code, why } => {
                    self.troubles.note(pe, Trouble::Aborted(code, why));
                    self.failed_at.get_or_insert_with(Instant::now);
                }
            }
        }
    }

    /// Decides whether a PE has failed, from what is known now.
    fn judge(&mut self, pe: u32) {
        let Some(process) = self.pes.get(pe) else { return };
        let Some(ending) = process.ending.filter(|_| self.end.is_none()) else { return };
        if ending.failed() {
            self.failed_at.get_or_insert_with(Instant::now);
        } else if self.troubles.is_lost(pe) && self.give_up_at.is_none() && self.pes.running() > 0 {
            let seconds = GRACE.as_secs();
            say(&format!("{process} {ending} without finalizing; ending the job in {seconds} s"));
            self.give_up_at = Some(Instant::now() + GRACE);
        }
    }

    /// Ends the job if there is a reason, and kills PEs that do not end.
    fn decide(&mut self) {
        let now = Instant::now();
        if let Some(end) = &mut self.end {
            if end.kill_at.is_some_and(|at| at <= now) {
                end.kill_at = None;
                let left = self.pes.running();
                if left > 0 && self.asked.is_some() {
                    say(&format!("killing {left} PEs that have not ended"));
                }
                self.pes.signal_all(Signal::SIGKILL);
            }
        } else if let Some(failed_at) = self.failed_at {
            if self.knows_the_cause(failed_at) {
                self.blame();
            }
        } else if self.time_out_at.is_some_and(|at| at <= now) {
            say("the job took longer than its time-out");
            self.finish_with(TIMED_OUT);
        } else if self.give_up_at.is_some_and(|at| at <= now) {
            self.finish_with(1);
        } else if self.left_at.is_some_and(|left_at| self.knows_the_cause(left_at)) {
            // Nothing fails so far.
            self.tell_who_left();
        }
    }

    fn tell_who_left(&mut self) {
        self.left_at = None;
        self.troubles.take_left().iter().for_each(|text| say(text));
    }

    /// Whether nothing more can be learnt about the cause of what happened at that time. What a PE reports may follow
    /// from another's death: the system then knows that the other is ending, though perhaps not yet how.
    fn knows_the_cause(&mut self, since: Instant) -> bool {
        let killed =
            |process: &Process| matches!(process.ending, Some(Ending::Signal { .. } | Ending::HostLost { .. }));
        let limit = if self.pes.failed().iter().any(killed) { CAUSE } else { ENDING };
        if since.elapsed() >= limit {
            return true;
        }
        self.pes.settles() && !self.troubles.may_be_explained(since, &*self.pes)
    }

    /// Prints which PEs failed; the first cause decides the exit code.
    fn blame(&mut self) {
        let messages = self.troubles.messages(&self.pes.failed());
        messages.iter().for_each(|(text, _)| say(text));
        self.finish_with(messages.first().map_or(1, |(_, code)| *code));
    }

    /// Ends the job for an internal reason: SIGTERM now, and SIGKILL after the grace period.
    fn finish_with(&mut self, code: i32) {
        self.ask_for_the_end(Signal::SIGTERM, code, Instant::now() + GRACE);
    }

    /// The first reason decides the exit code, and the earliest time counts.
    fn ask_for_the_end(&mut self, signal: Signal, code: i32, kill_at: Instant) {
        self.pes.start_no_more();
        self.pes.signal_all(signal);
        // A stopped process would not handle the signal.
        self.pes.signal_all(Signal::SIGCONT);
        let end = self.end.get_or_insert(End { code, kill_at: Some(kill_at) });
        end.kill_at = end.kill_at.map(|at| at.min(kill_at));
    }
}

impl Watch {
    /// Leaves nothing behind, and waits until the output is written. Returns whether all of it could be written.
    fn finish(mut self) -> bool {
        let lost = self.pes.finish();
        // A reader that has closed the pipe wants no more output.
        if let Some(reason) = lost.as_ref().filter(|reason| reason.kind() != ErrorKind::BrokenPipe) {
            say(&format!("output of the PEs could not be written: {reason}"));
        }
        lost.is_none()
    }
}

/// Prints a message for the user.
fn say(what: &str) {
    print::error("symrail run", what);
}
