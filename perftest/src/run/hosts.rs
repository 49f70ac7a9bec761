//! `--hosts` and `--hostfile`: the hosts of a job's PEs, and the number of PEs on each.

use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;

use super::job::LaunchError;

/// The hosts of a job, and how to reach them.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    /// In the order in which they get PEs.
    pub list: Vec<Host>,
    /// The command to put in front of a host's name and the command to run there.
    pub ssh: Vec<OsString>,
    /// The program `symrail` there, with arguments in front of its own.
    pub symrail: Vec<OsString>,
    /// The launcher's address for the PEs of these hosts; by default the address from which ssh reaches them.
    pub address: Option<IpAddr>,
}

/// A host and the number of PEs that it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name for ssh.
    pub name: String,
    /// The number of PEs that it may have.
    pub slots: u32,
}

/// The PEs of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) host: String,
    pub(super) pes: Range<u32>,
}

/// The value of `--hosts`.
#[derive(Debug, Clone)]
pub enum HostsOption {
    /// The number of hosts that the PEs pretend to be on.
    Pretended(u32),
    /// Hosts to start PEs on.
    Named(Vec<Host>),
}

impl std::str::FromStr for HostsOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) => Ok(HostsOption::Pretended(number)),
            Err(_) => text.split(',').map(host).collect::<Result<_, _>>().map(HostsOption::Named),
        }
    }
}

/// `NAME` or `NAME:SLOTS`; an IPv6 address with slots is in brackets.
fn host(text: &str) -> Result<Host, String> {
    let (name, slots) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, "1"),
        Some((name, rest)) => (name, rest.strip_prefix(':').unwrap_or("")),
        None if text.matches(':').count() > 1 => (text, "1"),
        None => text.split_once(':').unwrap_or((text, "1")),
    };
    Ok(Host { name: name_of(name)?, slots: slots_of(slots)? })
}

/// Refuses a name that ssh could take for an option, or a shell for several words.
fn name_of(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_alphanumeric() || "-_.:@%".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(plain) {
        return Err(format!("{text:?} is no host's name"));
    }
    Ok(text.to_owned())
}

fn slots_of(text: &str) -> Result<u32, String> {
    let slots = text.parse().ok().filter(|slots| *slots > 0);
    slots.ok_or_else(|| format!("{text:?} is no number of PEs; write host:4, or in a file: host slots=4"))
}

/// Reads a file with one host a line: `NAME`, `NAME slots=N` or `NAME:N`. `#` begins a comment.
pub(super) fn read(path: &Path) -> Result<Vec<Host>, LaunchError> {
    let refuse = |why| LaunchError::Job { what: "--hostfile", why: format!("{}: {why}", path.display()) };
    let text = std::fs::read_to_string(path).map_err(|reason| refuse(reason.to_string()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim()).zip(1..);
    let filled = lines.filter(|(line, _)| !line.is_empty());
    let all: Result<Vec<Host>, String> =
        filled.map(|(text, number)| line(text).map_err(|why| format!("line {number}: {why}"))).collect();
    match all {
        Ok(all) if all.is_empty() => Err(refuse("there is no host in it".into())),
        all => all.map_err(refuse),
    }
}

fn line(text: &str) -> Result<Host, String> {
    let mut words = text.split_whitespace();
    let mut host = host(words.next().unwrap_or(""))?;
    for word in words {
        let slots = word.strip_prefix("slots=").ok_or_else(|| format!("{word:?} is not known; use slots=N"))?;
        host.slots = slots_of(slots)?;
    }
    Ok(host)
}

impl Hosts {
    /// The number of PEs that they may have.
    pub(super) fn slots(&self) -> u32 {
        self.list.iter().fold(0, |sum, host| sum.saturating_add(host.slots))
    }

    /// The hosts of `n` PEs: blocks in order. A host that is named several times has one block for each, with a
    /// separate agent.
    pub(super) fn blocks(&self, n: u32) -> Vec<Block> {
        let mut first = 0;
        let block = |host: &Host| {
            let count = host.slots.min(n - first);
            first += count;
            Block { host: host.name.clone(), pes: first - count..first }
        };
        self.list.iter().map(block).filter(|block| !block.pes.is_empty()).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<(String, u32)> {
        match text.parse().unwrap() {
            HostsOption::Named(list) => list.into_iter().map(|host| (host.name, host.slots)).collect(),
            HostsOption::Pretended(_) => Vec::new(),
        }
    }

    #[test]
    fn a_number_pretends_and_names_are_hosts() {
        assert!(matches!("4".parse(), Ok(HostsOption::Pretended(4))));
        let pair = |name: &str, slots| (name.to_owned(), slots);
        assert_eq!(named("a,me@b.example:4,10.0.0.1"), [pair("a", 1), pair("me@b.example", 4), pair("10.0.0.1", 1)]);
        assert_eq!(named("fd00::7,[fd00::8]:2,[::1]"), [pair("fd00::7", 1), pair("fd00::8", 2), pair("::1", 1)]);
        for wrong in ["a,", "-oProxyCommand=x", "a:0", "a:b", "a b", "$(x)", "[::1]2"] {
            assert!(wrong.parse::<HostsOption>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_have_a_host_a_line() {
        let path = std::env::temp_dir().join(format!("symrail-hosts-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let read = read(&path);
            std::fs::remove_file(&path).unwrap();
            read.map_err(|error| error.to_string())
        };
        let list = read("# all\nnode1 slots=2\n\n  node2:3 # quick\nnode3\n").unwrap();
        let blocks = Hosts { list, ..Hosts::default() }.blocks(4);
        let block = |host: &str, pes| Block { host: host.into(), pes };
        assert_eq!(blocks, [block("node1", 0..2), block("node2", 2..4)]);
        assert!(read("a\nb slots=x\n").unwrap_err().contains("line 2: \"x\" is no number"));
        assert!(read("a max_slots=2\n").unwrap_err().contains("use slots=N"));
        assert!(read("# nobody\n").unwrap_err().contains("no host"));
    }
}
