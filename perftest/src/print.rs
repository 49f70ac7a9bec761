//! Output of a command. Standard output may be closed or full: a result that cannot be printed is a failure of the
//! command, never a panic and never an exit code of 0.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints all of `text` to standard output.
pub fn out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints an error in one write, so that messages of several processes do not mix.
pub fn error(command: &str, error: impl Display) {
    // A failure is ignored: no other output is left for it.
    let _ = io::stderr().write_all(format!("{command}: {error}\n").as_bytes());
}

/// The exit code of a command whose output failed. A reader that has closed the pipe (`| head`) wants no more output.
pub fn failed(command: &str, reason: &io::Error) -> i32 {
    if reason.kind() != ErrorKind::BrokenPipe {
        error(command, format_args!("standard output: {reason}"));
    }
    1
}
