//! An inbox in which threads leave events for a loop that sleeps in `poll`.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::job::LaunchError;
use super::signals::Signals;

/// The loop's end.
pub(super) struct Inbox<T> {
    events: Receiver<T>,
    woken: UnixStream,
}

/// A thread's end.
pub(super) struct Poster<T> {
    sender: Sender<T>,
    wake: Arc<UnixStream>,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Result<(Inbox<T>, Poster<T>), LaunchError> {
        let sockets = || {
            let (wake, woken) = UnixStream::pair()?;
            wake.set_nonblocking(true)?;
            woken.set_nonblocking(true)?;
            Ok((wake, woken))
        };
        let (wake, woken) = sockets().map_err(|error: std::io::Error| {
            let reason = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
            LaunchError::System { what: "making a socket pair", reason }
        })?;
        let (sender, events) = channel();
        Ok((Inbox { events, woken }, Poster { sender, wake: Arc::new(wake) }))
    }

    /// The next event. Does not wait.
    pub(super) fn next(&self) -> Option<T> {
        self.events.try_recv().ok()
    }

    /// Sleeps until an event or a signal may have arrived, or until `due`.
    pub(super) fn sleep(&self, signals: &Signals, due: Option<Instant>) {
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Rounded up, so that the time has come when the loop wakes.
            let millis = due.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let mut fds =
            [PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN), PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, timeout);
        let _ = (&self.woken).read(&mut [0; 256]);
    }
}

impl<T> Poster<T> {
    pub(super) fn post(&self, event: T) {
        let _ = self.sender.send(event);
        // A full socket wakes the loop as well.
        let _ = (&*self.wake).write(&[1]);
    }

    /// An inbox for events of another kind, which wake the same loop.
    pub(super) fn beside<U>(&self) -> (Receiver<U>, Poster<U>) {
        let (sender, events) = channel();
        (events, Poster { sender, wake: Arc::clone(&self.wake) })
    }
}

impl<T> Clone for Poster<T> {
    fn clone(&self) -> Self {
        Poster { sender: self.sender.clone(), wake: Arc::clone(&self.wake) }
    }
}
