//! A job to start, and every PE's environment.

use std::ffi::OsString;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use symrail::Settings;
use symrail::bootstrap::rendezvous::Address;
use symrail::bootstrap::{self, MAX_PES, launcher};
use symrail_transport::ofi::variables;

use super::hosts::Hosts;

/// The most that `SYMRAIL_LIBFABRIC_MAX_NIC_PER_PE` accepts. Rails get addresses of 127.0.0.0/24 from .2 on.
const MAX_RAILS: u32 = 64;
const FAKE_HOST: &str = "SYMRAIL_FAKE_HOST";
const NIC_LIST: &str = "SYMRAIL_NIC_LIST";
const MAX_NIC_PER_PE: &str = "SYMRAIL_LIBFABRIC_MAX_NIC_PER_PE";

/// A job: the same program, N times.
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// A path, or a name that is looked up in `PATH`.
    pub program: OsString,
    /// Its arguments, the same for all PEs.
    pub args: Vec<OsString>,
    /// The number of PEs.
    pub n: u32,
    /// Fake hosts; the PEs are spread over them in blocks.
    pub hosts: Option<u32>,
    /// The hosts of the PEs; by default all are on this one.
    pub on: Option<Hosts>,
    /// Rails for every PE, unless the user chose some with `SYMRAIL_NIC_LIST`.
    pub rails: Option<u32>,
    /// Put the PE's number before every line of output.
    pub prefix: bool,
    /// Give every PE its share of the cores that this process may use.
    pub bind: bool,
    /// Added to every PE's environment; overrides this process's own variables.
    pub env: Vec<(String, String)>,
    /// The longest that the job may take.
    pub timeout: Option<Duration>,
}

/// Why a job was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The job makes no sense on this machine.
    #[error("{what}: {why}")]
    Job {
        /// The option.
        what: &'static str,
        /// What is wrong with it, and the accepted values.
        why: String,
    },
    /// The program of a PE could not be started.
    #[error("PE {pe}{}: {program} cannot be started: {reason}", on(.host.as_deref()))]
    Start {
        /// The PE.
        pe: u32,
        /// Its host, unless it is this one.
        host: Option<String>,
        /// The program.
        program: String,
        /// The system's error.
        reason: std::io::Error,
    },
    /// A host on which no PEs can be started.
    #[error("host {host}: {why}")]
    Host {
        /// Its name, as given.
        host: String,
        /// What is wrong with it, and the remedy.
        why: String,
    },
    /// A signal requested the end of the job while the launcher was reaching its hosts.
    #[error("{} before any PE was started", .0.as_str())]
    Interrupted(Signal),
    /// The PEs would refuse a setting; here it is reported once.
    #[error(transparent)]
    Setting(#[from] symrail_transport::Error),
    /// The rendezvous service could not be started.
    #[error(transparent)]
    Bootstrap(#[from] bootstrap::Error),
    /// The system refused a resource that every launch needs.
    #[error("{what} failed: {reason}")]
    System {
        /// The requested resource.
        what: &'static str,
        /// The error.
        reason: nix::Error,
    },
}

fn on(host: Option<&str>) -> String {
    host.map_or_else(String::new, |host| format!(" on {host}"))
}

impl LaunchError {
    /// The exit code that a shell would use: 127 for a program that does not exist, 126 for one that cannot be run, 2
    /// for a wrong call.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            LaunchError::Job { .. } | LaunchError::Setting(_) => 2,
            LaunchError::Start { reason, .. } if reason.kind() == std::io::ErrorKind::NotFound => 127,
            LaunchError::Start { .. } => 126,
            LaunchError::Interrupted(signal) => 128 + *signal as i32,
            LaunchError::Host { .. } | LaunchError::Bootstrap(_) | LaunchError::System { .. } => 1,
        }
    }
}

impl Job {
    /// Refuses jobs that cannot work.
    pub(super) fn check(&self) -> Result<(), LaunchError> {
        let refuse = |what, why| Err(LaunchError::Job { what, why });
        if self.n == 0 || self.n > MAX_PES {
            return refuse("-n", format!("{} PEs cannot be started; use 1 to {MAX_PES}", self.n));
        }
        if let Some(hosts) = self.hosts.filter(|hosts| *hosts == 0 || *hosts > self.n) {
            return refuse(
                "--hosts",
                format!("{} PEs cannot be spread over {hosts} hosts; use 1 to {}", self.n, self.n),
            );
        }
        if let Some(hosts) = &self.on {
            let slots = hosts.slots();
            if self.n > slots {
                let why =
                    format!("{} PEs are more than the {slots} that the hosts may have; write host:4 for 4", self.n);
                return refuse("--hosts", why);
            }
            if self.rails.is_some() {
                let why = "addresses of the loopback interface reach no other host; set SYMRAIL_NIC_LIST and forget it";
                return refuse("--rails", why.into());
            }
        }
        if let Some(rails) = self.rails.filter(|rails| *rails == 0 || *rails > MAX_RAILS) {
            return refuse("--rails", format!("there cannot be {rails} rails; use 1 to {MAX_RAILS}"));
        }
        Ok(())
    }

    /// The settings of the PEs.
    pub(super) fn settings(&self) -> Result<Settings, LaunchError> {
        let own = self.env.iter().map(|(name, value)| (name.into(), value.into()));
        Ok(Settings::from_iter(std::env::vars_os().chain(own))?)
    }

    /// Variables that PEs on other hosts get, as PEs here would: Symrail's, and those that the user asked for.
    /// Variables by which one launcher or PE informs another are excluded.
    pub(super) fn forwarded(&self) -> Vec<(String, String)> {
        let plain =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let ours = |name: &str| {
            name.starts_with("SYMRAIL_") && !name.starts_with("SYMRAIL_LAUNCHER_") && name != Settings::REPORTED
        };
        plain.filter(|(name, _)| ours(name)).chain(self.env.iter().cloned()).collect()
    }

    /// The host that PE `pe` pretends to be on.
    fn host(&self, pe: u32) -> Option<u64> {
        self.hosts.map(|hosts| u64::from(pe) * u64::from(hosts) / u64::from(self.n.max(1)))
    }

    /// The variables of PE `pe` besides this process's environment. `is_set` returns whether the user has set a
    /// variable there.
    pub(super) fn variables(
        &self,
        pe: u32,
        service: Address,
        secret_fd: i32,
        is_set: impl Fn(&str) -> bool,
    ) -> Vec<(String, String)> {
        let mut all = vec![
            (launcher::PE.to_owned(), pe.to_string()),
            (launcher::N_PES.to_owned(), self.n.to_string()),
            (launcher::ADDRESS.to_owned(), service.to_string()),
            (launcher::SECRET_FD.to_owned(), secret_fd.to_string()),
        ];
        all.extend(self.host(pe).map(|host| (FAKE_HOST.to_owned(), format!("host{host}"))));
        if let Some(rails) = self.rails {
            let addresses = (2..2 + rails).map(|last| format!("127.0.0.{last}")).collect::<Vec<_>>().join(",");
            let chosen = [(NIC_LIST, addresses), (MAX_NIC_PER_PE, rails.to_string())];
            let free = chosen.into_iter().filter(|(name, _)| !is_set(name));
            all.extend(free.map(|(name, value)| (name.to_owned(), value)));
        }
        all.extend(variables::defaults().map(|(name, value)| (name.to_owned(), value.to_owned())));
        all.extend(self.env.iter().cloned());
        all
    }

    /// The cores of each of the `n` PEs of this host, or nothing if they are not to be bound.
    pub(super) fn cores(&self, n: u32) -> Result<Vec<CpuSet>, LaunchError> {
        if !self.bind {
            return Ok(Vec::new());
        }
        let system = |what| move |reason| LaunchError::System { what, reason };
        let allowed = sched_getaffinity(Pid::from_raw(0)).map_err(system("asking for this process's cores"))?;
        let cores: Vec<usize> = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).collect();
        let n = n as usize;
        if n > cores.len() {
            let why = format!("{n} PEs cannot have cores of their own: this process may use {}", cores.len());
            return Err(LaunchError::Job { what: "--bind", why });
        }
        let share = |pe: usize| {
            let mut set = CpuSet::new();
            cores[pe * cores.len() / n..(pe + 1) * cores.len() / n].iter().try_for_each(|core| set.set(*core))?;
            Ok(set)
        };
        (0..n).map(share).collect::<Result<_, _>>().map_err(system("choosing cores"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn value(job: &Job, pe: u32, name: &str, is_set: bool) -> Option<String> {
        let variables = job.variables(pe, "127.0.0.1:7".parse().unwrap(), 5, |_| is_set);
        variables.into_iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    #[test]
    fn pes_are_spread_over_hosts_in_blocks() {
        let job = Job { n: 5, hosts: Some(2), ..Job::default() };
        let hosts: Vec<String> = (0..5).map(|pe| value(&job, pe, FAKE_HOST, false).unwrap()).collect();
        assert_eq!(hosts, ["host0", "host0", "host0", "host1", "host1"]);
        assert_eq!(value(&Job { n: 5, ..Job::default() }, 0, FAKE_HOST, false), None);
    }

    #[test]
    fn rails_are_loopback_addresses_unless_the_user_chose() {
        let job = Job { n: 2, rails: Some(3), ..Job::default() };
        assert_eq!(value(&job, 0, NIC_LIST, false).unwrap(), "127.0.0.2,127.0.0.3,127.0.0.4");
        assert_eq!(value(&job, 0, MAX_NIC_PER_PE, false).unwrap(), "3");
        assert_eq!(value(&job, 0, NIC_LIST, true), None);
        let job = Job { env: vec![(NIC_LIST.into(), "eth1".into())], ..job };
        assert_eq!(value(&job, 0, NIC_LIST, false).unwrap(), "eth1");
    }

    #[test]
    fn jobs_that_make_no_sense_are_refused() {
        let job = Job { n: 2, ..Job::default() };
        assert!(job.check().is_ok());
        assert!(Job { n: 0, ..job.clone() }.check().is_err());
        assert!(Job { hosts: Some(3), ..job.clone() }.check().is_err());
        assert!(Job { hosts: Some(0), ..job.clone() }.check().is_err());
        assert!(Job { rails: Some(64), ..job.clone() }.check().is_ok());
        assert!(Job { rails: Some(65), ..job.clone() }.check().is_err());
        assert!(Job { n: 1 << 16, bind: true, ..job }.cores(1 << 16).is_err());
    }

    #[test]
    fn bound_pes_share_the_cores_without_overlap() {
        let one = Job { n: 1, bind: true, ..Job::default() }.cores(1).unwrap();
        let all: Vec<usize> = (0..CpuSet::count()).filter(|core| one[0].is_set(*core).unwrap()).collect();
        let n = u32::try_from(all.len()).unwrap();
        let each = Job { n, bind: true, ..Job::default() }.cores(n).unwrap();
        for (set, core) in each.iter().zip(&all) {
            let cores: Vec<usize> = (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap()).collect();
            assert_eq!(cores, [*core]);
        }
    }
}
