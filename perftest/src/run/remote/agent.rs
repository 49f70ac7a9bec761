//! An agent: starts PEs on its host for a launcher on another one, and reports their outcome.
//!
//! ssh starts it, or the launcher itself on its own host. Orders arrive on standard input; when that ends, the launcher
//! is gone, and the agent kills the PEs. It also runs the relay through which its PEs join the job, so the launcher
//! serves one relay for each host. No PE is started before all relays have joined, and relays stay until all PEs of all
//! hosts have ended, so a connection that ends earlier means that a host was lost.

use std::io::{self, Write};
use std::ops::Range;
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use symrail::bootstrap::rendezvous::{Event, Membership, OnEvent, Options, Secret, Server, Shape};

use super::super::cause::{CAUSE, Trouble, Troubles};
use super::super::children::on_event;
use super::super::guard::Guard;
use super::super::inbox::{Inbox, Poster};
use super::super::job::{Job, LaunchError};
use super::super::job_id::JobId;
use super::super::local::{Carry, Local};
use super::super::pes::Pes;
use super::super::signals::{Signals, asks_for_the_end};
use super::super::spawn::{Files, Inheritance, Input, Streams};
use super::message::{Greeting, Order, Report, Start, receive, send};
use crate::print;

/// Runs `symrail agent` and returns its exit code.
pub fn main() -> i32 {
    match serve() {
        Ok(()) => 0,
        Err(error) => {
            print::error("symrail agent", &error);
            error.exit_code()
        }
    }
}

fn serve() -> Result<(), LaunchError> {
    // First, while this process has one thread.
    let job_id = JobId::new();
    let guard = Guard::start(&job_id)?;
    let signals = Signals::of_children()?;
    if Greeting::own().write(io::stdout().lock()).is_err() {
        return Ok(());
    }
    let Ok(Some(Order::Start(start))) = receive(&mut io::stdin().lock()) else { return Ok(()) };
    let (inbox, poster) = Inbox::new()?;
    let (events, reporter) = poster.beside();
    let (feed, fed) = channel();
    let place = Membership {
        address: start.service,
        secret: Secret::from_bytes(start.secret),
        pe: start.pes.start,
        n_pes: start.n,
        timeout: Duration::from_secs(start.timeout_s),
    };
    let pes = start.pes.clone();
    // If the launcher has gone, this fails, and what follows is the same.
    let _ = match own_pes(*start, fed, &signals, (job_id, guard)) {
        Ok(local) => match std::thread::Builder::new().name("orders".into()).spawn(move || take_orders(&poster)) {
            Ok(_) => match relay(&place, pes, on_event(local.watched(), reporter)) {
                Ok(relay) => {
                    let troubles = Troubles::default();
                    let (goes, over, asked) = (false, None, None);
                    Agent { local, relay, inbox, events, troubles, feed, signals, goes, over, asked }.supervise()
                }
                Err(why) => report(&Report::Refused(why)),
            },
            Err(reason) => report(&Report::Refused(format!("no thread can be started: {reason}"))),
        },
        Err(why) => report(&Report::Refused(why)),
    };
    Ok(())
}

/// The PEs of the agent's part of a job, or the reason why there can be none.
fn own_pes(start: Start, fed: Receiver<Vec<u8>>, signals: &Signals, watched: (JobId, Guard)) -> Result<Local, String> {
    let directory = start.directory.display();
    std::env::set_current_dir(&start.directory)
        .map_err(|reason| format!("{directory}: {reason}; start the job in a directory that all its hosts have"))?;
    let input = if start.input { Input::Piped } else { Input::Nothing };
    let (prefix, pes, jobs) = (start.prefix, start.pes.clone(), watched.0.value());
    let job = Job {
        program: start.program,
        args: start.args,
        n: start.n,
        prefix,
        bind: start.bind,
        env: start.env,
        ..Job::default()
    };
    let inheritance = Inheritance { signals: signals.before, files: Files::raise(), reported: start.reported, jobs };
    let streams = (Streams { input, piped: true }, carry(prefix, fed));
    Local::new(job, pes, streams, watched, inheritance).map_err(|error| error.to_string())
}

/// PEs' output goes to the launcher, and PE 0 reads the launcher's input.
fn carry(prefix: bool, fed: Receiver<Vec<u8>>) -> Carry {
    let mut fed = Some(fed);
    Box::new(move |carriers, pe, child| {
        let (out, err) = (child.stdout.take(), child.stderr.take());
        out.into_iter().for_each(|out| carriers.carry(pe, prefix, out, || Output { error: false }));
        err.into_iter().for_each(|err| carriers.carry(pe, prefix, err, || Output { error: true }));
        if let Some((stdin, fed)) = child.stdin.take().zip(fed.take()) {
            // Without a thread PE 0 has no input.
            let _ = std::thread::Builder::new().name("input".into()).spawn(move || feed_pe(stdin, &fed));
        }
    })
}

fn feed_pe(mut stdin: ChildStdin, fed: &Receiver<Vec<u8>>) {
    while let Some(bytes) = fed.recv().ok().filter(|bytes| !bytes.is_empty()) {
        let open = stdin.write_all(&bytes).is_ok();
        if report(&Report::Input { open }).is_err() || !open {
            break;
        }
    }
}

/// A stream to the launcher.
struct Output {
    error: bool,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        report(&Report::Output { error: self.error, bytes: bytes.to_vec() })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn report(report: &Report) -> io::Result<()> {
    send(io::stdout().lock(), report)
}

/// Posts orders, and `None` at their end.
fn take_orders(poster: &Poster<Option<Order>>) {
    let mut stdin = io::stdin().lock();
    while let Ok(Some(order)) = receive(&mut stdin) {
        poster.post(Some(order));
    }
    poster.post(None);
}

/// The relay of this host's PEs: it joins the job for them.
fn relay(place: &Membership, pes: Range<u32>, on_event: OnEvent) -> Result<Server, String> {
    // The agent reports deaths to it, so it serves all PEs of the host itself.
    let options =
        Options { n_pes: Some(place.n_pes), watched: true, shape: Shape::STAR, on_event, ..Options::default() };
    Server::relay(place, pes, None, options)
        .map_err(|error| format!("{error}; if the launcher has another address for this host, name it by --address"))
}

struct Agent {
    local: Local,
    relay: Server,
    inbox: Inbox<Option<Order>>,
    events: Receiver<Event>,
    troubles: Troubles,
    feed: Sender<Vec<u8>>,
    signals: Signals,
    /// PEs may be started.
    goes: bool,
    /// Once all PEs have ended, those of them that ended unprompted.
    over: Option<Vec<u32>>,
    /// Since when the launcher waits for the ends that have begun.
    asked: Option<Instant>,
}

impl Agent {
    /// Runs until the launcher needs the agent no more. Returns an error if messages to the launcher fail.
    fn supervise(mut self) -> io::Result<()> {
        report(&Report::Ready)?;
        loop {
            if self.over.is_none() && self.local.over() {
                self.over = Some(self.local.unprompted());
                self.local.finish();
                report(&Report::Over)?;
            }
            if self.starts() {
                let begun = self.local.start((self.relay.address(), self.relay.secret()));
                match begun {
                    Ok(pes) => pes.filter_map(|pe| self.local.get(pe)).try_for_each(|process| {
                        report(&Report::Started { pe: process.pe, pid: process.pid.as_raw() })
                    })?,
                    Err(LaunchError::Start { pe, reason, .. }) => {
                        return report(&Report::CannotStart { pe, errno: reason.raw_os_error().unwrap_or(0) });
                    }
                    Err(error) => return report(&Report::Refused(error.to_string())),
                }
            }
            let settled = self.asked.map(|asked| asked + CAUSE).filter(|at| *at > Instant::now());
            let due = self.local.due().into_iter().chain(settled).min();
            let due = if self.starts() { Some(Instant::now()) } else { due };
            self.inbox.sleep(&self.signals, due);
            while let Ok(Some(info)) = self.signals.fd.read_signal() {
                self.local.note_end_of(Pid::from_raw(info.ssi_pid.cast_signed()));
            }
            for process in self.local.take_ended().into_iter().filter_map(|pe| self.local.get(pe)) {
                self.relay.process_ended(process.pe);
                process.ending.map_or(Ok(()), |ending| report(&Report::Ended { pe: process.pe, ending }))?;
            }
            while let Some(order) = self.inbox.next() {
                match order {
                    Some(Order::Ask) => self.asked = Some(Instant::now()),
                    Some(Order::Go) => self.goes = true,
                    Some(Order::Signal(number)) => self.signal(number),
                    Some(Order::Input(bytes)) => drop(self.feed.send(bytes)),
                    // No launcher is left that could start another job.
                    Some(Order::Start(_) | Order::End) | None => return Ok(()),
                }
            }
            while let Ok(event) = self.events.try_recv() {
                match event {
                    Event::Lost(pe) => self.troubles.note(pe, Trouble::Lost),
                    Event::Aborted { pe, code, why } => self.troubles.note(pe, Trouble::Aborted(code, why)),
                    Event::Joined(pe) => self.troubles.joined(pe),
                    Event::Left(pe) | Event::LeftEarly(pe) => self.troubles.left(pe),
                    Event::Broken => {}
                }
            }
            if let Some(asked) = self.asked
                && self.local.settles()
                && !self.troubles.may_be_explained(asked, &self.local)
            {
                self.asked = None;
                let unprompted = self.over.clone().unwrap_or_else(|| self.local.unprompted());
                report(&Report::Settled { unprompted })?;
            }
        }
    }

    /// Whether there are PEs to start now.
    fn starts(&self) -> bool {
        self.goes && self.over.is_none() && self.local.starts()
    }

    fn signal(&mut self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else { return };
        if signal == Signal::SIGKILL || asks_for_the_end(signal) {
            self.local.start_no_more();
        }
        self.local.signal_all(signal);
    }
}
