//! The launcher's loop: signals, deaths and the rendezvous' events, until every PE is gone.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use symrail::bootstrap::star::{Event, Options, Secret, Server};

use super::ending::{Ending, Failure, sort_by_cause};
use super::job::{Job, LaunchError};
use super::output::Carriers;
use super::spawn::spawn;

/// From SIGTERM to SIGKILL; also how long the others may go on after a PE left without finalizing.
const GRACE: Duration = Duration::from_secs(2);
/// How long a failure waits for the death that may have caused it to be known too.
const CAUSE: Duration = Duration::from_millis(300);
/// How long the last output may take.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The exit code of a job that took too long, as `timeout` has it.
const TIMED_OUT: i32 = 124;
const PASSED_ON: [Signal; 5] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// Starts the job's PEs and waits for all of them. Returns the job's exit code: 0 if all succeeded, else that of the PE
/// that failed first. Says on standard error which PE failed and why.
///
/// The PEs die with the calling thread. While it runs, the signals that are passed on do not reach this thread otherwise;
/// call it before starting threads, or they may take the signals.
///
/// # Errors
/// A job that makes no sense here, or a program that cannot be started. No PE is left behind.
pub fn launch(job: &Job) -> Result<i32, LaunchError> {
    job.check()?;
    let cores = job.cores()?;
    let signals = Signals::take()?;
    let (events, woken, on_event) = events()?;
    let options = Options { n_pes: Some(job.n), on_event, ..Options::default() };
    let server = Server::start(IpAddr::V4(Ipv4Addr::LOCALHOST), &Secret::generate()?, options)?;
    let mut watch = Watch {
        signals,
        events,
        woken,
        server,
        pes: Vec::new(),
        carriers: Carriers::new(),
        lost: Vec::new(),
        interrupted: None,
        failed_at: None,
        give_up_at: None,
        time_out_at: job.timeout.map(|timeout| Instant::now() + timeout),
        end: None,
    };
    for pe in 0..job.n {
        let cores = cores.get(pe as usize).copied();
        let before = watch.signals.before;
        let mut child = spawn(job, pe, watch.server.address(), watch.server.secret(), cores, before)?;
        child.stdout.take().into_iter().for_each(|out| watch.carriers.carry(pe, out, std::io::stdout));
        child.stderr.take().into_iter().for_each(|err| watch.carriers.carry(pe, err, std::io::stderr));
        watch.pes.push(Process { pid: pid_of(&child), child, ending: None });
    }
    Ok(watch.run())
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

/// The rendezvous' events, and a socket that becomes readable when there is one.
type Events = (Receiver<Event>, UnixStream, Box<dyn FnMut(Event) + Send>);

fn events() -> Result<Events, LaunchError> {
    let system = |error: std::io::Error| {
        let reason = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
        LaunchError::System { what: "making a socket pair", reason }
    };
    let (mut wake, woken) = UnixStream::pair().map_err(system)?;
    wake.set_nonblocking(true).map_err(system)?;
    woken.set_nonblocking(true).map_err(system)?;
    let (sender, events) = channel();
    let on_event = move |event| {
        let _ = sender.send(event);
        // A full socket wakes as well as a byte more would.
        let _ = wake.write(&[1]);
    };
    Ok((events, woken, Box::new(on_event)))
}

/// The signals that the loop reads as events. Dropping it lets them act as before.
struct Signals {
    fd: SignalFd,
    before: SigSet,
}

impl Signals {
    fn take() -> Result<Signals, LaunchError> {
        let system = |reason| LaunchError::System { what: "taking over signals", reason };
        let mut set: SigSet = PASSED_ON.into_iter().collect();
        set.add(Signal::SIGCHLD);
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(system)?;
        let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(system)?;
        Ok(Signals { fd, before })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // What came while the job was ending was meant for the job.
        while let Ok(Some(_)) = self.fd.read_signal() {}
        let _ = self.before.thread_set_mask();
    }
}

/// One PE. It is reaped when the job is over: until then its number cannot become another's.
struct Process {
    pid: Pid,
    child: Child,
    ending: Option<Ending>,
}

/// The job is ending, and with which exit code.
struct End {
    code: i32,
    kill_at: Option<Instant>,
}

struct Watch {
    signals: Signals,
    events: Receiver<Event>,
    woken: UnixStream,
    server: Server,
    pes: Vec<Process>,
    carriers: Carriers,
    /// PEs whose connection closed before they had finalized, in the order in which that happened.
    lost: Vec<u32>,
    /// The last signal that asked for an end, from outside.
    interrupted: Option<Signal>,
    /// When the first failure was seen.
    failed_at: Option<Instant>,
    /// When the others must have ended, after one left without finalizing.
    give_up_at: Option<Instant>,
    time_out_at: Option<Instant>,
    end: Option<End>,
}

impl Watch {
    fn run(mut self) -> i32 {
        while self.running().next().is_some() {
            self.wait();
            self.pass_signals_on();
            let ended = self.note_endings();
            // After the endings: what led to one was told before it.
            self.note_events();
            for pe in ended {
                self.judge(pe);
            }
            self.decide();
        }
        // All have ended, so nothing more can be learnt about the cause.
        if self.end.is_none() && self.failed_at.is_some() {
            self.blame();
        }
        self.end.as_ref().map_or(0, |end| end.code)
    }

    fn running(&self) -> impl Iterator<Item = &Process> {
        self.pes.iter().filter(|process| process.ending.is_none())
    }

    /// Sleeps until something happens or is due.
    fn wait(&self) {
        let kill_at = self.end.as_ref().and_then(|end| end.kill_at);
        let cause_at = self.failed_at.filter(|_| self.end.is_none()).map(|at| at + CAUSE);
        let others = [self.give_up_at, self.time_out_at].into_iter().flatten().filter(|_| self.end.is_none());
        let due = others.chain(kill_at).chain(cause_at).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            let millis = due.saturating_duration_since(Instant::now()).as_millis() + 1;
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [
            PollFd::new(self.signals.fd.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
        ];
        let _ = poll(&mut fds, timeout);
        let _ = (&self.woken).read(&mut [0; 256]);
    }

    fn pass_signals_on(&mut self) {
        while let Ok(Some(info)) = self.signals.fd.read_signal() {
            let number = i32::try_from(info.ssi_signo).unwrap_or(0);
            let Ok(signal) = Signal::try_from(number) else { continue };
            match signal {
                Signal::SIGCHLD => {}
                Signal::SIGINT | Signal::SIGTERM if self.interrupted.is_some() => {
                    say(&format!("{signal} again: killing the PEs"));
                    self.finish_with(128 + number, Some(Instant::now()));
                }
                Signal::SIGINT | Signal::SIGTERM => {
                    self.interrupted = Some(signal);
                    say(&format!("passing {signal} on to the PEs; once more kills them"));
                    self.signal_all(signal);
                }
                other => self.signal_all(other),
            }
        }
    }

    /// To the groups of all PEs that run.
    fn signal_all(&self, signal: Signal) {
        for process in self.running() {
            let _ = killpg(process.pid, signal);
        }
    }

    /// Looks which PEs have ended.
    fn note_endings(&mut self) -> Vec<u32> {
        let mut ended = Vec::new();
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        for (pe, process) in (0..).zip(&mut self.pes).filter(|(_, process)| process.ending.is_none()) {
            process.ending = match waitid(Id::Pid(process.pid), flags) {
                Ok(status) => Ending::from_wait(status),
                Err(Errno::EINTR) => None,
                // A signal without a name, or a status that somebody else took.
                Err(_) => Some(process.child.wait().map_or(Ending::Unknown, Ending::from_status)),
            };
            if process.ending.is_some() {
                self.server.process_ended(pe);
                ended.push(pe);
            }
        }
        ended
    }

    fn note_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Joined(_) | Event::Left(_) => {}
                Event::Lost(pe) => {
                    self.lost.push(pe);
                    self.judge(pe);
                }
                Event::Aborted { pe, code, why } if self.end.is_none() => {
                    if code != 0 {
                        say(&format!("PE {pe} aborted the job with code {code}: {why}"));
                    }
                    self.finish_with(code, None);
                }
                Event::Aborted { .. } => {}
            }
        }
    }

    /// Whether what is known of a PE now is a failure.
    fn judge(&mut self, pe: u32) {
        let Some(process) = self.pes.get(pe as usize) else { return };
        let Some(ending) = process.ending.filter(|_| self.end.is_none()) else { return };
        if ending.failed() {
            self.failed_at.get_or_insert_with(Instant::now);
        } else if self.lost.contains(&pe) && self.give_up_at.is_none() && self.running().next().is_some() {
            let seconds = GRACE.as_secs();
            say(&format!("PE {pe} (pid {}) {ending} without finalizing; ending the job in {seconds} s", process.pid));
            self.give_up_at = Some(Instant::now() + GRACE);
        }
    }

    /// Ends the job when there is a reason to, and kills what does not go.
    fn decide(&mut self) {
        let now = Instant::now();
        if let Some(end) = &mut self.end {
            if end.kill_at.is_some_and(|at| at <= now) {
                end.kill_at = None;
                self.signal_all(Signal::SIGKILL);
            }
        } else if let Some(failed_at) = self.failed_at {
            // A PE that noticed another's death may be seen to end first; the death is what the user must hear of.
            let is_running = |pe: &u32| self.pes.get(*pe as usize).is_some_and(|process| process.ending.is_none());
            if now >= failed_at + CAUSE || !self.lost.iter().any(is_running) {
                self.blame();
            }
        } else if self.time_out_at.is_some_and(|at| at <= now) {
            say("the job took longer than its time-out");
            self.finish_with(TIMED_OUT, None);
        } else if self.give_up_at.is_some_and(|at| at <= now) {
            self.finish_with(1, None);
        }
    }

    /// Says who failed; the first cause decides the exit code.
    fn blame(&mut self) {
        let failed = |(pe, process): (u32, &Process)| {
            Some(Failure { pe, pid: process.pid, ending: process.ending.filter(|ending| ending.failed())? })
        };
        let mut failed: Vec<Failure> = (0..).zip(&self.pes).filter_map(failed).collect();
        sort_by_cause(&mut failed, &self.lost);
        let asked_for = self.interrupted.map(|signal| signal as i32);
        for Failure { pe, pid, ending } in &failed {
            if !matches!(ending, Ending::Signal { number, .. } if Some(*number) == asked_for) {
                say(&format!("PE {pe} (pid {pid}) {ending}"));
            }
        }
        let code = failed.first().map_or(1, |failure| failure.ending.exit_code());
        self.finish_with(code, None);
    }

    /// Ends the job: SIGTERM now, and SIGKILL at `kill_at` or after the grace.
    fn finish_with(&mut self, code: i32, kill_at: Option<Instant>) {
        let kill_at = kill_at.unwrap_or_else(|| Instant::now() + GRACE);
        self.signal_all(Signal::SIGTERM);
        let code = self.end.as_ref().map_or(code, |end| end.code);
        self.end = Some(End { code, kill_at: Some(kill_at) });
    }
}

impl Drop for Watch {
    /// Leaves nothing behind, on every way out.
    fn drop(&mut self) {
        for process in &mut self.pes {
            // The PE itself, or what it has left in its group. Not reaped yet, so the number is still its own.
            let _ = killpg(process.pid, Signal::SIGKILL);
            let _ = process.child.wait();
        }
        std::mem::replace(&mut self.carriers, Carriers::new()).finish(LAST_WORDS);
    }
}

/// Tells the user. One write, so that it does not mix with what the PEs say.
fn say(what: &str) {
    let _ = std::io::stderr().write_all(format!("symrail run: {what}\n").as_bytes());
}
