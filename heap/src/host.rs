//! The identity of a process's host, for the decision whether two PEs can share memory.

use std::fmt;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use symrail_transport::Error;

/// The longest host name, in bytes (what the kernel allows too).
pub const HOST_NAME_MAX: usize = 64;

/// The identity of a host with respect to sharing memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// The kernel's boot id. It differs for hosts with equal names, and for one host before and after a reboot. Zero if
    /// it cannot be read.
    pub boot_id: u128,
    /// The inode of the process's PID namespace. In another namespace its PID is meaningless. Zero if it cannot be
    /// read.
    pub pid_namespace: u64,
    /// The host's name, or `SYMRAIL_FAKE_HOST`; at most [`HOST_NAME_MAX`] bytes.
    pub name: String,
}

impl HostIdentity {
    /// The identity of this process's host. `fake_name` replaces the host's name.
    ///
    /// # Errors
    /// [`Error::Setting`] for a fake name that is empty or too long.
    pub fn of_this_process(fake_name: Option<&str>) -> Result<Self, Error> {
        let name = match fake_name {
            Some(name) if name.is_empty() || name.len() > HOST_NAME_MAX => {
                return Err(Error::Setting {
                    name: "SYMRAIL_FAKE_HOST".into(),
                    value: name.into(),
                    accepted: format!("a name of 1 to {HOST_NAME_MAX} bytes"),
                });
            }
            Some(name) => name.to_owned(),
            None => nix::unistd::gethostname()
                .ok()
                .map(|name| name.to_string_lossy().into_owned())
                .filter(|name| !name.is_empty() && name.len() <= HOST_NAME_MAX)
                .unwrap_or_else(|| "localhost".to_owned()),
        };
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|id| u128::from_str_radix(&id.trim().replace('-', ""), 16).ok())
            .unwrap_or(0);
        let pid_namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
        Ok(HostIdentity { name, boot_id, pid_namespace })
    }

    /// Whether both names are equal and both processes run on one booted kernel. An unknown boot id equals nothing.
    #[must_use]
    pub fn same_host(&self, other: &HostIdentity) -> bool {
        self.name == other.name && self.same_machine(other)
    }

    /// Whether both processes run on one booted kernel, whatever the names of their hosts. An unknown boot id equals
    /// nothing.
    #[must_use]
    pub fn same_machine(&self, other: &HostIdentity) -> bool {
        self.boot_id == other.boot_id && self.boot_id != 0
    }
}

impl fmt::Display for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (boot {:08x})", self.name, self.boot_id >> 96)
    }
}
