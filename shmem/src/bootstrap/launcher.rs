//! The job that `symrail run` started: its variables and its secret.
//!
//! The job's size, this PE and the service's address travel as environment variables. The secret does not: every
//! process that a PE starts inherits the environment, `env` prints it, and crash reports keep it. The secret arrives
//! through a pipe that only this PE inherits. The process reads it once, closes the pipe, and keeps the secret for a
//! later [`open`].

use std::fs::File;
use std::io::Read;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Mutex;
use std::time::Duration;

use super::error::{Error, Result};
use super::rendezvous::{Client, Membership, Secret};
use super::variables;

/// Holds this PE's number.
pub const PE: &str = "SYMRAIL_LAUNCHER_PE";
/// Holds the number of PEs.
pub const N_PES: &str = "SYMRAIL_LAUNCHER_N_PES";
/// Holds the rendezvous service's address and port.
pub const ADDRESS: &str = "SYMRAIL_LAUNCHER_ADDRESS";
/// Holds the number of the descriptor that the secret is read from.
pub const SECRET_FD: &str = "SYMRAIL_LAUNCHER_SECRET_FD";

const KIND: &str = "launcher";
const REMEDY: &str = "start the program with symrail run -n N -- PROGRAM";

/// The descriptor that was read, and its secret. A process has one launcher in its life.
static SECRET: Mutex<Option<(RawFd, Secret)>> = Mutex::new(None);

/// Joins the launcher's job.
///
/// # Errors
/// Variables that are missing or unreadable, a secret that another process has read already, or an error of joining.
pub fn open(timeout: Duration) -> Result<Client> {
    let pe = variables::number(KIND, PE, REMEDY)?;
    let n_pes = variables::number(KIND, N_PES, REMEDY)?;
    let address = variables::text(KIND, ADDRESS, REMEDY)?;
    let address = address.parse().map_err(|()| Error::Variable {
        name: ADDRESS,
        value: address,
        accepted: "an address and a port, as in 127.0.0.1:40000",
    })?;
    let fd = variables::number(KIND, SECRET_FD, REMEDY)?;
    let secret = secret(RawFd::try_from(fd).unwrap_or(RawFd::MAX))?;
    Client::join(&Membership { address, secret, pe, n_pes, timeout }, KIND)
}

fn secret(fd: RawFd) -> Result<Secret> {
    let mut known = SECRET.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*known {
        Some((known_fd, secret)) if *known_fd == fd => Ok(secret.clone()),
        _ => {
            let secret = read_secret(fd)?;
            *known = Some((fd, secret.clone()));
            Ok(secret)
        }
    }
}

fn read_secret(fd: RawFd) -> Result<Secret> {
    let missing = |what: String| Error::Missing {
        kind: KIND,
        what,
        remedy: "start PEs with symrail run directly, not through a program that closes descriptors or runs several",
    };
    // Opened by name instead of taken over: the variable may be stale, and then the descriptor belongs to other code.
    let path = format!("/proc/self/fd/{fd}");
    let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let mut pipe = open.map_err(|error| {
        let no_proc = !std::path::Path::new("/proc/self").exists();
        if no_proc {
            let what = format!("descriptor {fd} ({SECRET_FD}) is read through /proc, which is not mounted");
            return Error::Missing { kind: KIND, what, remedy: "mount it (mount -t proc proc /proc)" };
        }
        missing(format!("descriptor {fd} ({SECRET_FD}) cannot be read: {error}"))
    })?;
    if !pipe.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Err(missing(format!("descriptor {fd} ({SECRET_FD}) is not the launcher's pipe")));
    }
    let mut bytes = [0; Secret::LEN];
    pipe.read_exact(&mut bytes)
        .map_err(|error| missing(format!("the secret was read from descriptor {fd} before ({error})")))?;
    let _ = nix::unistd::close(fd);
    Ok(Secret(bytes))
}
