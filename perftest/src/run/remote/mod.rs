//! PEs on several hosts: the launcher starts an agent on each by ssh, and the agents start the PEs.
//!
//! | file | concept |
//! |---|---|
//! | `reach` | reaching all hosts, before anything is started there |
//! | `connection` | the process that connects to an agent, and the agent's reports |
//! | `message` | messages between launcher and agent |
//! | `agent` | the agent |
//!
//! All data for a host, including the job's secret, goes through ssh's standard input, because command lines and
//! environments are readable by others there, or kept. When that input ends, the PEs on that host end.

pub mod agent;
mod connection;
mod message;
mod reach;

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use symrail::bootstrap::rendezvous::{Server, Shape};

use self::connection::{Connection, Orders, Said};
use self::message::{Greeting, Order, Report, Start, send};
use super::ending::Ending;
use super::hosts::Block;
use super::job::{Job, LaunchError};
use super::pes::{Pes, Process};

/// How long agents have to report PEs that they have killed.
const GRACE: Duration = Duration::from_secs(2);
/// The most bytes of standard input on their way to PE 0 at a time.
const INPUT: usize = 32 << 10;

/// One host's PEs.
struct Agent {
    block: Block,
    connection: Connection,
    /// The launcher's address, from the view of its host; unknown before its greeting.
    greeting: Option<Greeting>,
    /// It can start PEs.
    ready: bool,
    /// All PEs that it started have ended.
    done: bool,
    /// It has not answered [`Order::Ask`] yet.
    asked: bool,
    /// It sends nothing more.
    over: bool,
}

/// The PEs of all hosts.
pub(super) struct Remote {
    job: Job,
    reported: String,
    /// The limit for reaching a host, and for joining.
    timeout: Duration,
    agents: Vec<Agent>,
    said: Receiver<(usize, Said)>,
    /// By PE: the started process, and how it ended.
    processes: Vec<Option<(Pid, Option<Ending>)>>,
    /// PEs that were ending before they could know that the job is broken.
    unprompted: BTreeSet<u32>,
    /// PEs whose end [`Pes::take_ended`] has not returned yet.
    ended: Vec<u32>,
    /// The agents have got their orders to start, or will get none.
    ordered: bool,
    /// They have got the order to begin, and the one that all is over.
    going: bool,
    ending: bool,
    /// The agents were asked for the ends of PEs that have begun.
    asking: bool,
    /// No more PEs are started.
    stopped: bool,
    /// Whether standard input goes to PE 0.
    input: bool,
    /// To the thread that reads standard input: PE 0 has read its last input.
    taken: Option<Sender<bool>>,
    /// Why no PEs, or not all, can be started.
    error: Option<LaunchError>,
    /// Why output was lost.
    lost_output: Option<io::Error>,
    /// When the launcher stops waiting for agents that have not reported the end of PEs.
    cut_at: Option<Instant>,
}

impl Remote {
    /// Each agent runs the relay of its PEs.
    pub(super) fn shape(&self) -> Shape {
        Shape::Hosts(self.agents.iter().map(|agent| agent.block.pes.end - agent.block.pes.start).collect())
    }

    /// Handles the agents' reports.
    fn listen(&mut self) {
        while let Ok((index, said)) = self.said.try_recv() {
            match said {
                Said::Greeting(greeting) => self.greet(index, greeting),
                Said::Report(report) => self.note(index, report),
                Said::OutputLost(reason) => {
                    // As if the PEs had written there themselves.
                    self.agents[index].connection.order(&Order::Signal(Signal::SIGPIPE as i32));
                    self.lost_output.get_or_insert(reason);
                }
                Said::Over(ending) => self.lose(index, ending),
            }
        }
        if !self.going && self.agents.iter().all(|agent| agent.ready || agent.over) {
            self.going = true;
            self.order(&Order::Go);
        }
        if !self.ending && self.agents.iter().all(|agent| agent.done || agent.over) {
            self.ending = true;
            self.order(&Order::End);
        }
    }

    /// Sends an order to all connected agents.
    fn order(&self, order: &Order) {
        self.agents.iter().filter(|agent| !agent.over).for_each(|agent| agent.connection.order(order));
    }

    fn refuse(&mut self, index: usize, why: String) {
        let host = self.agents[index].block.host.clone();
        self.error.get_or_insert(LaunchError::Host { host, why });
    }

    fn note(&mut self, index: usize, report: Report) {
        let block = &self.agents[index].block;
        match report {
            Report::Started { pe, pid } if block.pes.contains(&pe) => {
                self.processes[pe as usize] = Some((Pid::from_raw(pid), None));
            }
            Report::Ended { pe, ending } if block.pes.contains(&pe) => self.end(pe, ending),
            Report::CannotStart { pe, errno } => {
                let (host, program) = (block.host.clone(), self.job.program.to_string_lossy().into_owned());
                let reason = io::Error::from_raw_os_error(errno);
                self.error.get_or_insert(LaunchError::Start { pe, host: Some(host), program, reason });
            }
            Report::Refused(why) => self.refuse(index, why),
            Report::Ready => self.agents[index].ready = true,
            Report::Settled { unprompted } => {
                let agent = &mut self.agents[index];
                agent.asked = false;
                self.unprompted.extend(unprompted.iter().filter(|pe| agent.block.pes.contains(pe)));
            }
            Report::Over => self.agents[index].done = true,
            Report::Input { open } => {
                self.taken.as_ref().map(|taken| taken.send(open));
            }
            Report::Output { .. } | Report::Started { .. } | Report::Ended { .. } => {}
        }
    }

    fn end(&mut self, pe: u32, ending: Ending) {
        let (_, known) = self.processes[pe as usize].get_or_insert((Pid::from_raw(0), None));
        if known.is_none() {
            *known = Some(ending);
            self.ended.push(pe);
        }
    }

    /// The connection to an agent has ended, and so have the PEs whose end it has not reported.
    fn lose(&mut self, index: usize, ending: Ending) {
        let agent = &mut self.agents[index];
        agent.over = true;
        let (greeted, pes) = (agent.greeting.is_some(), agent.block.pes.clone());
        if !greeted {
            let why = self.why_silent(index, ending);
            return self.refuse(index, why);
        }
        for pe in pes {
            // A PE that was never started, because the job was ending by then, is not lost.
            if self.stopped && self.processes[pe as usize].is_none() {
                continue;
            }
            self.end(pe, Ending::HostLost { ssh: ending.exit_code() });
        }
    }

    /// Orders the agents to start their PEs.
    fn give_orders(&mut self, server: &Server) -> Result<(), LaunchError> {
        let directory = std::env::current_dir().map_err(|reason| LaunchError::Job {
            what: "the current directory",
            why: format!("{reason}; start the job in one that is there, on all hosts"),
        })?;
        for agent in &self.agents {
            let input = self.input && agent.block.pes.start == 0;
            let start = Start {
                program: self.job.program.clone(),
                args: self.job.args.clone(),
                directory: directory.clone(),
                env: self.job.forwarded(),
                n: self.job.n,
                pes: agent.block.pes.clone(),
                prefix: self.job.prefix,
                bind: self.job.bind,
                timeout_s: self.timeout.as_secs(),
                input,
                service: server.address(),
                secret: *server.secret().bytes(),
                reported: self.reported.clone(),
            };
            agent.connection.order(&Order::Start(Box::new(start)));
            if input {
                let (orders, (taken, wait)) = (agent.connection.orders(), channel());
                self.taken = Some(taken);
                // Without a thread PE 0 reads nothing.
                let _ = std::thread::Builder::new().name("input".into()).spawn(move || feed(&orders, &wait));
            }
        }
        Ok(())
    }
}

/// Sends standard input on, no faster than PE 0 reads it.
fn feed(orders: &Orders, taken: &Receiver<bool>) {
    let mut buffer = vec![0; INPUT];
    loop {
        let read = io::stdin().read(&mut buffer).unwrap_or(0);
        let sent = send(&mut *symrail_core::lock(orders), &Order::Input(buffer[..read].to_vec()));
        if sent.is_err() || read == 0 || taken.recv() != Ok(true) {
            break;
        }
    }
}

impl Pes for Remote {
    fn start_some(&mut self, server: &Server) -> Result<(), LaunchError> {
        self.error.take().map_or(Ok(()), Err)?;
        if self.ordered {
            return Ok(());
        }
        self.ordered = true;
        self.give_orders(server)
    }

    fn starts(&self) -> bool {
        !self.ordered
    }

    fn start_no_more(&mut self) {
        self.stopped = true;
        if !self.ordered {
            self.ordered = true;
            self.agents.iter_mut().for_each(|agent| agent.connection.cut());
        }
    }

    fn over(&self) -> bool {
        self.error.is_none() && self.agents.iter().all(|agent| agent.over)
    }

    fn running(&self) -> usize {
        self.processes.iter().filter(|process| matches!(process, Some((_, None)))).count()
    }

    fn get(&self, pe: u32) -> Option<Process> {
        let (pid, ending) = (*self.processes.get(pe as usize)?)?;
        let agent = self.agents.iter().find(|agent| agent.block.pes.contains(&pe))?;
        let unprompted = self.unprompted.contains(&pe);
        Some(Process { pe, pid, host: Some(agent.block.host.clone()), ending, unprompted })
    }

    /// Includes only the first of the PEs that were lost with a host.
    fn failed(&self) -> Vec<Process> {
        let all = (0..self.job.n).filter_map(|pe| self.get(pe));
        let mut failed: Vec<Process> = all.filter(|process| process.ending.is_some_and(Ending::failed)).collect();
        let lost = |process: &Process| matches!(process.ending, Some(Ending::HostLost { .. }));
        failed.dedup_by(|next, one| lost(next) && lost(one) && next.host == one.host);
        failed
    }

    fn signal_all(&mut self, signal: Signal) {
        if signal == Signal::SIGKILL {
            self.cut_at = Some(Instant::now() + GRACE);
        }
        self.order(&Order::Signal(signal as i32));
    }

    fn settles(&mut self) -> bool {
        if !std::mem::replace(&mut self.asking, true) {
            self.agents.iter_mut().for_each(|agent| agent.asked = true);
            self.order(&Order::Ask);
        }
        self.asking = self.agents.iter().any(|agent| agent.asked && !agent.over);
        !self.asking
    }

    /// This process's children only connect to agents; their ends are detected in another way.
    fn note_end_of(&mut self, _: Pid) {}

    fn due(&self) -> Option<Instant> {
        self.cut_at
    }

    fn take_ended(&mut self) -> Vec<u32> {
        if self.cut_at.is_some_and(|at| at <= Instant::now()) {
            self.cut_at = None;
            self.agents.iter_mut().for_each(|agent| agent.connection.cut());
        }
        self.listen();
        std::mem::take(&mut self.ended)
    }

    fn finish(&mut self) -> Option<io::Error> {
        self.agents.clear();
        self.lost_output.take()
    }
}
