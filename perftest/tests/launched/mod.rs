//! A running launcher, in the view of tests.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::Pid;

/// The longest that a job may take.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A launcher whose output ends only when it and all its processes are gone.
pub struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    stderr: Option<std::thread::JoinHandle<Vec<u8>>>,
}

impl Drop for Running {
    /// A failing test leaves nothing behind: the PEs die with the launcher.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        // A launcher ignores signals that it was started to ignore, as background commands of a shell are.
        // SAFETY: the default action is no handler.
        unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) }.unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            stdout.split(b'\n').for_each(|line| {
                let _ = sender.send(String::from_utf8_lossy(&line.unwrap()).into_owned());
            });
        });
        let mut err = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut all = Vec::new();
            err.read_to_end(&mut all).unwrap();
            all
        });
        Running { child, lines, stderr: Some(stderr) }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    /// The next line of output, within [`LIMIT`].
    pub fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("no more lines")
    }

    /// Waits until all holders of the output are gone, at most for `limit`. Returns exit code, rest of output, errors.
    pub fn end(mut self, limit: Duration) -> (Option<i32>, Vec<String>, String) {
        let deadline = Instant::now() + limit;
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => rest.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("something still runs after {limit:?}; so far: {rest:?}");
                }
            }
        }
        let status = self.child.wait().unwrap();
        (status.code(), rest, String::from_utf8_lossy(&self.stderr.take().unwrap().join().unwrap()).into_owned())
    }
}

pub fn run(command: Command) -> (Option<i32>, Vec<String>, String) {
    Running::start(command).end(LIMIT)
}
