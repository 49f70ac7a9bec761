//! Reaches all hosts, before anything is started there.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use symrail::bootstrap::rendezvous::{Event, nearby};

use super::super::ending::Ending;
use super::super::hosts::{Block, Hosts};
use super::super::inbox::{Inbox, Poster};
use super::super::job::{Job, LaunchError};
use super::super::signals::{Signals, asks_for_the_end};
use super::super::spawn::Inheritance;
use super::connection::Connection;
use super::message::Greeting;
use super::{Agent, Remote};

impl Remote {
    /// Starts an agent on each host, and waits for all of them, at most for `timeout`.
    pub(in super::super) fn open(
        (job, hosts): (&Job, &Hosts),
        (inheritance, input): (&Inheritance, bool),
        (signals, inbox, poster): (&Signals, &Inbox<Event>, &Poster<Event>),
        timeout: Duration,
    ) -> Result<Remote, LaunchError> {
        let (said, poster) = poster.beside();
        let open = |(block, index): (Block, usize)| {
            let opened = Connection::open(&block.host, hosts, inheritance, index, poster.clone());
            let why = |reason: io::Error| {
                let command = hosts.ssh[0].to_string_lossy();
                LaunchError::Host { host: block.host.clone(), why: format!("{command} cannot be started: {reason}") }
            };
            let connection = opened.map_err(why)?;
            Ok(Agent { block, connection, greeting: None, ready: false, done: false, asked: false, over: false })
        };
        let agents = hosts.blocks(job.n).into_iter().zip(0..).map(open).collect::<Result<_, LaunchError>>()?;
        let mut remote = Remote {
            job: job.clone(),
            reported: inheritance.reported.clone(),
            timeout,
            agents,
            said,
            processes: vec![None; job.n as usize],
            unprompted: BTreeSet::new(),
            ended: Vec::new(),
            ordered: false,
            going: false,
            ending: false,
            asking: false,
            stopped: false,
            input,
            taken: None,
            error: None,
            lost_output: None,
            cut_at: None,
        };
        let deadline = Instant::now() + timeout;
        while let Some(silent) = remote.agents.iter().find(|agent| agent.greeting.is_none()) {
            if Instant::now() >= deadline {
                let why = format!("symrail there has not answered within {} s", timeout.as_secs());
                return Err(LaunchError::Host { host: silent.block.host.clone(), why });
            }
            inbox.sleep(signals, Some(deadline));
            while let Ok(Some(info)) = signals.fd.read_signal() {
                let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
                if let Some(signal) = signal.filter(|signal| asks_for_the_end(*signal)) {
                    return Err(LaunchError::Interrupted(signal));
                }
            }
            remote.listen();
            remote.error.take().map_or(Ok(()), Err)?;
        }
        Ok(remote)
    }

    /// The address of this host for the PEs of all hosts, unless all are here and need none.
    pub(in super::super) fn address(&self) -> Result<Option<IpAddr>, LaunchError> {
        let hosts = self.job.on.as_ref();
        if let Some(address) = hosts.and_then(|hosts| hosts.address) {
            return Ok(Some(address));
        }
        let refuse = |why| Err(LaunchError::Job { what: "--address", why });
        let mut chosen = None;
        // A host for which the launcher has a loopback address is this one.
        for agent in self.agents.iter().filter(|agent| !agent.connection.is_here()) {
            let host = &agent.block.host;
            match agent.greeting.as_ref().and_then(|greeting| greeting.launcher) {
                None => {
                    return refuse(format!("{host} does not know where the launcher is; name an address of its own"));
                }
                Some(address) if address.is_loopback() => {}
                Some(address) if chosen.is_none_or(|(other, _)| other == address) => chosen = Some((address, host)),
                Some(address) => {
                    let (other, first) = chosen.unwrap_or((address, host));
                    let why = format!("{first} sees this host as {other} and {host} as {address}; name one for both");
                    return refuse(why);
                }
            }
        }
        Ok(chosen.map(|(address, _)| address).or_else(nearby))
    }

    pub(super) fn greet(&mut self, index: usize, greeting: Greeting) {
        let own = Greeting::own();
        if (&greeting.version, greeting.protocol) != (&own.version, own.protocol) {
            let why = format!(
                "symrail there is version {} (messages {}), and here {} ({}); install the same on all hosts",
                greeting.version, greeting.protocol, own.version, own.protocol
            );
            self.refuse(index, why);
        }
        self.agents[index].greeting = Some(greeting);
    }

    /// Why an agent has ended before its greeting.
    pub(super) fn why_silent(&self, index: usize, ending: Ending) -> String {
        let host = &self.agents[index].block.host;
        let Some(hosts) = &self.job.on else { return ending.to_string() };
        let words = |words: &[OsString]| words.join(OsStr::new(" ")).to_string_lossy().into_owned();
        let (ssh, symrail) = (words(&hosts.ssh), words(&hosts.symrail));
        match ending {
            Ending::Code(255) => format!("cannot log in; `{ssh} {host} true` must work without a question"),
            Ending::Code(126 | 127) => {
                format!("{symrail} cannot be run there; install Symrail in the same place, or name it by --symrail")
            }
            Ending::Code(2) => format!("{symrail} there knows no agents; install the same version on all hosts"),
            other => format!("`{ssh} {host} {symrail} agent` {other} before it answered"),
        }
    }
}
