//! Messages between launcher and agent, through the standard streams of ssh.
//!
//! The agent begins with one line of text. It separates the output of a login shell from the messages, and detects
//! versions with other messages. Then both send messages: their length, 4 bytes, and their postcard encoding.

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use symrail::bootstrap::rendezvous::Address;

use super::super::ending::Ending;

/// The beginning of a greeting.
const GREETING: &str = "symrail-agent";
/// The messages' version; each change of the messages changes it.
const PROTOCOL: u32 = 5;
/// The longest line before a greeting, and the longest message.
const LONGEST: usize = 64 << 20;

/// Orders to an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) enum Order {
    /// The first order: what to start.
    Start(Box<Start>),
    /// All relays have joined the job: the agent may start the PEs.
    Go,
    /// All PEs of all hosts have ended, and the relay is not needed any more.
    End,
    /// The question whether PEs are ending whose end has not been reported: [`Report::Settled`] answers it.
    Ask,
    /// A signal for the groups of all its PEs. The signals that end a job also end starting.
    Signal(i32),
    /// Input of PE 0; empty at the end.
    Input(Vec<u8>),
}

/// An agent's part of a job.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct Start {
    pub(in super::super) program: OsString,
    pub(in super::super) args: Vec<OsString>,
    pub(in super::super) directory: PathBuf,
    pub(in super::super) env: Vec<(String, String)>,
    pub(in super::super) n: u32,
    pub(in super::super) pes: std::ops::Range<u32>,
    pub(in super::super) prefix: bool,
    pub(in super::super) bind: bool,
    /// How long joining may take.
    pub(in super::super) timeout_s: u64,
    /// Whether PE 0 reads the input of [`Order::Input`].
    pub(in super::super) input: bool,
    pub(in super::super) service: Address,
    pub(in super::super) secret: [u8; 32],
    /// The misspelt variables that the launcher has reported.
    pub(in super::super) reported: String,
}

/// Reports from an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) enum Report {
    /// The relay has joined the job.
    Ready,
    Started {
        pe: u32,
        pid: i32,
    },
    Ended {
        pe: u32,
        ending: Ending,
    },
    /// The ends of all PEs that had begun to end at [`Order::Ask`] have been reported.
    Settled {
        /// Those of its PEs that were ending before they could know that the job is broken.
        unprompted: Vec<u32>,
    },
    /// Output of PEs.
    Output {
        error: bool,
        bytes: Vec<u8>,
    },
    /// PE 0 has read the last [`Order::Input`], or will never read again.
    Input {
        open: bool,
    },
    /// The system's error for a PE's program.
    CannotStart {
        pe: u32,
        errno: i32,
    },
    /// All started PEs have ended, and all of their output has been sent.
    Over,
    /// Why no PE can be started.
    Refused(String),
}

/// An agent's first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) version: String,
    pub(super) protocol: u32,
    /// The launcher's address, from the view of this agent's host.
    pub(super) launcher: Option<IpAddr>,
}

impl Greeting {
    /// The greeting of this program.
    pub(super) fn own() -> Greeting {
        let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
        let launcher = connection.split(' ').next().and_then(|address| address.parse().ok());
        Greeting { version: env!("CARGO_PKG_VERSION").into(), protocol: PROTOCOL, launcher }
    }

    pub(super) fn write(&self, mut to: impl Write) -> io::Result<()> {
        let launcher = self.launcher.map_or_else(|| "-".into(), |address| address.to_string());
        to.write_all(format!("{GREETING} {} {} {launcher}\n", self.version, self.protocol).as_bytes())?;
        to.flush()
    }

    /// Reads a greeting; `noise` gets the lines before it. `None`: there is no greeting.
    pub(super) fn read(from: &mut impl BufRead, mut noise: impl FnMut(&[u8])) -> io::Result<Option<Greeting>> {
        loop {
            let mut line = Vec::new();
            if from.take(LONGEST as u64).read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            match std::str::from_utf8(&line).ok().and_then(Greeting::parse) {
                Some(greeting) => return Ok(Some(greeting)),
                None => noise(&line),
            }
        }
    }

    fn parse(line: &str) -> Option<Greeting> {
        let mut words = line.strip_prefix(GREETING)?.split_whitespace();
        let (version, protocol) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(Greeting { version, protocol, launcher: words.next().and_then(|address| address.parse().ok()) })
    }
}

/// Sends a message.
pub(super) fn send(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length as usize <= LONGEST);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    to.write_all(&[&length.to_le_bytes()[..], &body].concat())?;
    to.flush()
}

/// The next message; `None` at the end of the stream.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(io::Error::other("a message is too long"));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    postcard::from_bytes(&body).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_found_behind_what_a_shell_prints() {
        let greeting = Greeting { version: "0.1.0".into(), protocol: 7, launcher: Some("fd00::1".parse().unwrap()) };
        let mut bytes = b"Welcome!\n\xff\n".to_vec();
        greeting.write(&mut bytes).unwrap();
        let end = Report::Ended { pe: 3, ending: Ending::Code(4) };
        send(&mut bytes, &end).unwrap();
        let (mut from, mut noise) = (&bytes[..], Vec::new());
        let read = Greeting::read(&mut from, |line| noise.extend_from_slice(line)).unwrap();
        assert_eq!((read, noise.as_slice()), (Some(greeting), &b"Welcome!\n\xff\n"[..]));
        assert!(matches!(receive(&mut from), Ok(Some(Report::Ended { pe: 3, ending: Ending::Code(4) }))));
        assert!(matches!(receive::<Report>(&mut from), Ok(None)));
        assert!(receive::<Report>(&mut &[255; 8][..]).is_err());
        assert_eq!(Greeting::read(&mut &b"symrail-agent\n"[..], |_| ()).unwrap(), None);
    }
}
