//! The launcher's end of the connection to one agent.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpid, setsid};
use symrail_transport::topology::own_addresses;

use super::super::ending::Ending;
use super::super::hosts::Hosts;
use super::super::inbox::Poster;
use super::super::spawn::{Inheritance, prepare};
use super::message::{Greeting, Order, Report, receive, send};

/// An event from an agent.
pub(in super::super) enum Said {
    Greeting(Greeting),
    Report(Report),
    /// Output of PEs could not be written here.
    OutputLost(io::Error),
    /// The connection has ended, so nothing more arrives. Holds how ssh ended.
    Over(Ending),
}

/// An agent, through the process that connects to it.
pub(super) struct Connection {
    child: Child,
    here: bool,
    orders: Orders,
    reader: Option<JoinHandle<()>>,
}

/// The stream of orders, for the loop and for the thread that reads standard input.
pub(super) type Orders = Arc<Mutex<ChildStdin>>;

impl Connection {
    /// Starts an agent on a host. Its events are posted as those of agent `index`.
    pub(super) fn open(
        host: &str,
        hosts: &Hosts,
        inheritance: &Inheritance,
        index: usize,
        poster: Poster<(usize, Said)>,
    ) -> io::Result<Connection> {
        let mut command = command(host, hosts);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let (launcher, signals, files) = (getpid(), inheritance.signals, inheritance.files);
        let in_child = move || {
            // Without a terminal ssh asks no questions, and Ctrl-C arrives through the launcher only.
            setsid()?;
            prepare(launcher, &signals, files)
        };
        // SAFETY: the closure runs in the forked child and makes system calls only: no allocation, no lock.
        unsafe { command.pre_exec(in_child) };
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(|| io::Error::other("it has no pipes"))?;
        let listen = move || poster.post((index, Said::Over(listen(stdout, pid, |said| poster.post((index, said))))));
        let reader = std::thread::Builder::new().name(format!("agent {index}")).spawn(listen)?;
        Ok(Connection { child, here: is_this(host), orders: Arc::new(Mutex::new(stdin)), reader: Some(reader) })
    }

    /// Whether its host is this one, which needs no ssh.
    pub(super) fn is_here(&self) -> bool {
        self.here
    }

    /// Sends the agent an order. [`Said::Over`] reports an agent that is gone.
    pub(super) fn order(&self, order: &Order) {
        let _ = send(&mut *symrail_core::lock(&self.orders), order);
    }

    pub(super) fn orders(&self) -> Orders {
        Arc::clone(&self.orders)
    }

    /// Ends the process that connects to the agent, whose standard input then ends.
    pub(super) fn cut(&mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Connection {
    /// No event is lost: the thread continues until the end of the stream.
    fn drop(&mut self) {
        self.cut();
        let _ = self.reader.take().map(JoinHandle::join);
        let _ = self.child.wait();
    }
}

/// The command that connects to an agent on a host; this host needs no ssh.
fn command(host: &str, hosts: &Hosts) -> Command {
    let words = hosts.symrail.iter().map(OsString::as_os_str).chain([OsStr::new("agent")]);
    if is_this(host) {
        let mut command = Command::new(&hosts.symrail[0]);
        command.args(words.skip(1)).env_remove("SSH_CONNECTION");
        return command;
    }
    let mut line = OsString::from("exec");
    words.for_each(|word| line.extend([OsStr::new(" "), &quoted(word)]));
    let mut command = Command::new(&hosts.ssh[0]);
    command.args(&hosts.ssh[1..]).arg(host).arg(line);
    command
}

/// Whether a name or an address is this host's.
fn is_this(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.is_loopback() || own_addresses().is_some_and(|own| own.contains(&address));
    }
    let own = nix::unistd::gethostname().unwrap_or_default();
    let own = own.to_string_lossy();
    let short = own.split('.').next().unwrap_or_default();
    ["localhost", &own, short].iter().any(|name| !name.is_empty() && name.eq_ignore_ascii_case(host))
}

/// Quotes a word for a shell.
fn quoted(word: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let inner = word.as_bytes().split(|byte| *byte == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
    OsString::from_vec([b"'", &inner[..], b"'"].concat())
}

/// Posts all events until the stream ends; then returns how the process ended.
fn listen(stdout: ChildStdout, pid: Pid, post: impl Fn(Said)) -> Ending {
    let mut forwards = true;
    let mut from = BufReader::new(stdout);
    // Output of a login shell is not the PEs' output.
    let noise = |line: &[u8]| drop(io::stderr().write_all(line));
    if let Ok(Some(greeting)) = Greeting::read(&mut from, noise) {
        post(Said::Greeting(greeting));
        while let Ok(Some(report)) = receive(&mut from) {
            match report {
                Report::Output { .. } if !forwards => {}
                Report::Output { error, bytes } => {
                    let written = if error { write(io::stderr(), &bytes) } else { write(io::stdout(), &bytes) };
                    forwards = written.map_err(|reason| post(Said::OutputLost(reason))).is_ok();
                }
                report => post(Said::Report(report)),
            }
        }
    }
    // It ends by itself, or is killed; only the loop reaps it, so that its process id is not reused.
    let status = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    status.ok().and_then(Ending::from_wait).unwrap_or(Ending::Unknown)
}

fn write(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_and_addresses_are_this_host() {
        let own = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let names =
            ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1", &own, &format!("{own}."), &own.to_uppercase()];
        assert!(names.iter().all(|name| is_this(name)), "{names:?}");
        let addresses: Vec<String> = own_addresses().unwrap_or_default().iter().map(IpAddr::to_string).collect();
        assert!(!addresses.is_empty() && addresses.iter().all(|address| is_this(address)), "{addresses:?}");
        assert!(!["elsewhere.invalid", "192.0.2.1", "2001:db8::1", ""].iter().any(|name| is_this(name)));
    }
}
