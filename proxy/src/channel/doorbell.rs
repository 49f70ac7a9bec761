//! Doorbells: a CPU producer wakes a sleeping consumer by an event descriptor. Several channels may share one.

#[cfg(not(loom))]
mod real {
    use std::os::fd::{AsFd, BorrowedFd};

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use crate::channel::ChannelError;

    /// An event descriptor that is readable once rung.
    #[derive(Debug)]
    pub struct Doorbell(EventFd);

    impl Doorbell {
        /// Creates a doorbell.
        ///
        /// # Errors
        /// The system has no descriptor left.
        pub fn new() -> Result<Self, ChannelError> {
            let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
            EventFd::from_value_and_flags(0, flags).map(Self).map_err(|errno| ChannelError::Doorbell(errno.into()))
        }

        /// Makes the descriptor readable.
        pub fn ring(&self) {
            // The write only fails when the counter is at its limit, and then the descriptor is readable already.
            let _ = self.0.write(1);
        }

        /// Makes the descriptor unreadable until it is rung again.
        pub fn clear(&self) {
            // The read only fails when the doorbell was not rung.
            let _ = self.0.read();
        }

        /// The descriptor to poll for reading.
        #[must_use]
        pub fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(loom)]
mod modelled {
    use std::fs::File;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::OnceLock;

    use loom::sync::{Condvar, Mutex};

    use crate::channel::ChannelError;

    /// A model of the event descriptor: loom reports a sleeper that no thread wakes as a deadlock.
    #[derive(Debug)]
    pub struct Doorbell {
        rung: Mutex<bool>,
        changed: Condvar,
    }

    #[allow(missing_docs, clippy::missing_errors_doc, clippy::unwrap_used)]
    impl Doorbell {
        pub fn new() -> Result<Self, ChannelError> {
            Ok(Self { rung: Mutex::new(false), changed: Condvar::new() })
        }

        pub fn ring(&self) {
            *self.rung.lock().unwrap() = true;
            self.changed.notify_one();
        }

        pub fn clear(&self) {
            *self.rung.lock().unwrap() = false;
        }

        /// The descriptor is never readable in a model. It serves code that is compiled with the model but takes no
        /// part.
        pub fn fd(&self) -> BorrowedFd<'_> {
            static NOTHING: OnceLock<File> = OnceLock::new();
            NOTHING.get_or_init(|| File::open("/dev/null").unwrap()).as_fd()
        }

        pub fn wait(&self) {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.changed.wait(rung).unwrap();
            }
        }
    }
}

#[cfg(loom)]
pub use modelled::Doorbell;
#[cfg(not(loom))]
pub use real::Doorbell;
