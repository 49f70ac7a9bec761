//! Starting a job and reading its outcome.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[path = "../support/libraries.rs"]
#[allow(dead_code, reason = "jobs have no libraries to build")]
mod libraries;

/// How long the launcher may take to end a job that has exceeded its limit.
const LAUNCHER_GRACE: Duration = Duration::from_secs(10);

/// A job to be started by `symrail run`.
#[derive(Debug, Clone)]
pub struct Job {
    args: Vec<String>,
    pes: u32,
    hosts: u32,
    rails: u32,
    env: Vec<(String, String)>,
    /// Variables of single PEs.
    env_of: Vec<(u32, String, String)>,
    limit: Duration,
}

/// The outcome of a job.
#[derive(Debug)]
pub struct Outcome {
    /// The launcher's exit code.
    pub code: Option<i32>,
    /// The PEs' output.
    pub out: String,
    /// The errors of the PEs and the launcher.
    pub err: String,
    /// From start to end.
    pub elapsed: Duration,
}

impl Job {
    /// Two PEs of a program of `tests/src/bin/pe`, on one host, with up to 60 s.
    #[must_use]
    pub fn new(program: &str) -> Job {
        let args = vec![program.into()];
        let limit = Duration::from_secs(60);
        Job { args, pes: 2, hosts: 1, rails: 0, env: Vec::new(), env_of: Vec::new(), limit }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: ToString>(mut self, args: impl IntoIterator<Item = A>) -> Job {
        self.args.extend(args.into_iter().map(|a| a.to_string()));
        self
    }

    /// This many PEs.
    #[must_use]
    pub fn pes(self, pes: u32) -> Job {
        Job { pes, ..self }
    }

    /// On this many simulated hosts.
    #[must_use]
    pub fn hosts(self, hosts: u32) -> Job {
        Job { hosts, ..self }
    }

    /// With this many rails; 0 means the defaults.
    #[must_use]
    pub fn rails(self, rails: u32) -> Job {
        Job { rails, ..self }
    }

    /// Adds a variable to the PEs' environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Job {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Adds a variable to the environment of one PE.
    #[must_use]
    pub fn env_of(mut self, pe: u32, name: &str, value: &str) -> Job {
        self.env_of.push((pe, name.into(), value.into()));
        self
    }

    /// Ends the job after this long.
    #[must_use]
    pub fn limit(self, seconds: u64) -> Job {
        Job { limit: Duration::from_secs(seconds), ..self }
    }

    /// Runs it, once few enough other jobs run.
    #[must_use]
    pub fn run(&self) -> Outcome {
        self.start().end()
    }

    /// Runs it and checks that it succeeded.
    ///
    /// # Panics
    /// It did not.
    pub fn succeed(&self) -> Outcome {
        let outcome = self.run();
        assert!(outcome.code == Some(0), "{self:?}\n{outcome:#?}");
        outcome
    }

    /// Starts it, once few enough other jobs run.
    #[must_use]
    pub fn start(&self) -> Running {
        let slot = libraries::job_slot(&target());
        let mut command = Command::new(built("symrail"));
        command.args(["run", "-n", &self.pes.to_string(), "--timeout", &self.limit.as_secs().to_string()]);
        if self.hosts > 1 {
            command.args(["--hosts", &self.hosts.to_string()]);
        }
        if self.rails > 0 {
            command.args(["--rails", &self.rails.to_string()]);
        }
        command.arg("--");
        if !self.env_of.is_empty() {
            let set = |(pe, name, value): &(u32, String, String)| {
                format!(r#"[ "$SYMRAIL_LAUNCHER_PE" = {pe} ] && export {name}='{value}'; "#)
            };
            let line: String = self.env_of.iter().map(set).collect();
            command.args(["sh", "-c", &format!(r#"{line}exec "$0" "$@""#)]);
        }
        command.arg(built("pe")).args(&self.args);
        Running::start(command, self.env.clone(), self.limit, slot)
    }
}

/// Runs a command with its own environment, such as `mpirun`, once few enough other jobs run.
#[must_use]
pub fn run_command(command: Command, env: &[(&str, &str)], limit: Duration) -> Outcome {
    let slot = libraries::job_slot(&target());
    let env = env.iter().map(|&(name, value)| (name.into(), value.into())).collect();
    Running::start(command, env, limit, slot).end()
}

/// A job that runs. Dropping it kills it.
pub struct Running {
    child: Child,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
    started: Instant,
    limit: Duration,
    _slot: File,
}

impl Running {
    fn start(mut command: Command, env: Vec<(String, String)>, limit: Duration, slot: File) -> Running {
        libraries::remove_settings(&mut command, &["SYMRAIL_"]);
        command.envs(env).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let out = child.stdout.take().map(read_all);
        let err = child.stderr.take().map(read_all);
        Running { child, out, err, started: Instant::now(), limit, _slot: slot }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end, although its limit has passed.
    #[must_use]
    pub fn end(mut self) -> Outcome {
        // The readers end when all PEs have.
        let deadline = self.started + self.limit + LAUNCHER_GRACE;
        let readers = [self.out.take(), self.err.take()].map(Option::unwrap);
        while !readers.iter().all(JoinHandle::is_finished) {
            assert!(Instant::now() < deadline, "the job did not end {LAUNCHER_GRACE:?} after its limit");
            std::thread::park_timeout(Duration::from_millis(2));
        }
        let elapsed = self.started.elapsed();
        let [out, err] = readers.map(|r| r.join().unwrap());
        let status = self.child.wait().unwrap();
        Outcome { code: status.code(), out, err, elapsed }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The PEs die with the launcher. Both calls fail if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    })
}

/// The folder of this test's binary: `target/debug` or `target/release`.
fn target() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let dir = exe.parent().unwrap();
    if dir.ends_with("deps") { dir.parent().unwrap().into() } else { dir.into() }
}

/// A program that was built beside this test.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    let path = target().join(name);
    if !path.exists() {
        build_launcher(&path);
    }
    path
}

/// A program of `tests/src/bin/pe`, as it is without the launcher.
#[must_use]
pub fn pe(program: &str) -> Command {
    let mut command = Command::new(built("pe"));
    command.arg(program);
    command
}

fn build_launcher(path: &Path) {
    let built = libraries::cargo_build().status().is_ok_and(|status| status.success());
    assert!(built && path.exists(), "{} is not there and cannot be built", path.display());
}
