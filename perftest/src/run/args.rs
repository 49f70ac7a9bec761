//! The command line of `symrail run`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use symrail::bootstrap::MAX_PES;

use super::hosts::{self, Hosts, HostsOption};
use super::job::{Job, LaunchError};

/// The arguments of `symrail run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many PEs to start; with --hostfile or hosts by name, as many as they may have unless this is given
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_PES.into()))]
    #[arg(required_unless_present_any = ["hosts", "hostfile"])]
    n: Option<u32>,
    /// Start PEs on these hosts by ssh: NAME or NAME:PES with commas between them, one PE unless said otherwise. NAME is
    /// as ssh takes it, also USER@NAME; this host's own name and localhost need no ssh. A number H: let the PEs believe
    /// that they are on H hosts, in blocks: those of different hosts reach each other over the wire
    #[arg(long, value_name = "HOSTS")]
    hosts: Option<HostsOption>,
    /// Start PEs by ssh on the hosts that a file names, one a line: NAME, NAME slots=PES or NAME:PES; # begins a
    /// comment
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,
    /// The command that reaches another host, in words without quotes, such as `ssh -p 2222 -F file`. It is followed by
    /// the host's name and one word for a shell there, and has to pass standard input and output on unchanged, which
    /// pdsh does not
    #[arg(long, value_name = "COMMAND", default_value = "ssh -T", value_parser = words)]
    ssh: Arc<[OsString]>,
    /// The program symrail on other hosts; else the path that it has here
    #[arg(long, value_name = "PATH")]
    symrail: Option<OsString>,
    /// This host's address for PEs on others; else the one from which ssh comes to them. Needed behind a jump host, or
    /// where they see this host by several
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Set a variable for all PEs, or give those on other hosts one that is set here, besides SYMRAIL_*, which they
    /// have
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Give every PE R rails: the addresses 127.0.0.2 and following, unless SYMRAIL_NIC_LIST names some
    #[arg(long, value_name = "R")]
    rails: Option<u32>,
    /// Put `[PE] ` before every line that the PEs print. A PE whose output nobody reads any more is ended by SIGPIPE, as
    /// it would be without
    #[arg(long)]
    prefix: bool,
    /// Give every PE cores of its own
    #[arg(long)]
    bind: bool,
    /// End the job after S seconds, with exit code 124
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// The program and its arguments
    // The first word that is no option is the program; what follows it is the program's.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn words(text: &str) -> Result<Arc<[OsString]>, String> {
    let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
    if words.is_empty() { Err("it is empty".into()) } else { Ok(words.into()) }
}

impl Args {
    /// The job of these arguments; `program` is the command that starts this program.
    pub(super) fn job(&self, program: &[OsString]) -> Result<Job, LaunchError> {
        let on = self.on(program)?;
        let n = self.n.or_else(|| on.as_ref().map(Hosts::slots)).ok_or_else(|| LaunchError::Job {
            what: "-n",
            why: "PEs that pretend to be on hosts have to be counted; add -n N, or name the hosts".into(),
        })?;
        let pretended = match self.hosts {
            Some(HostsOption::Pretended(hosts)) => Some(hosts),
            _ => None,
        };
        let (program, args) = self.program.split_first().map_or_else(Default::default, |(it, args)| (it.clone(), args));
        let env = self.env.iter().map(|text| variable(text)).collect::<Result<_, _>>()?;
        let timeout = self.timeout.map(Duration::from_secs);
        let (rails, prefix, bind) = (self.rails, self.prefix, self.bind);
        Ok(Job { program, args: args.to_vec(), n, hosts: pretended, on, rails, prefix, bind, env, timeout })
    }

    /// The hosts on which PEs are started, if any are named.
    fn on(&self, program: &[OsString]) -> Result<Option<Hosts>, LaunchError> {
        let list = match (&self.hostfile, &self.hosts) {
            (Some(file), _) => hosts::read(file)?,
            (None, Some(HostsOption::Named(list))) => list.clone(),
            (None, _) => return Ok(None),
        };
        let symrail = self.symrail.as_ref().map_or_else(|| program.to_vec(), |path| vec![path.clone()]);
        Ok(Some(Hosts { list, ssh: self.ssh.to_vec(), symrail, address: self.address }))
    }
}

/// `NAME=VALUE`, or `NAME` for its value here.
fn variable(text: &str) -> Result<(String, String), LaunchError> {
    if let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) {
        return Ok((name.to_owned(), value.to_owned()));
    }
    let refuse = |reason| LaunchError::Job { what: "-x", why: format!("{text}: {reason}; write -x NAME=VALUE") };
    std::env::var(text).map(|value| (text.to_owned(), value)).map_err(refuse)
}
