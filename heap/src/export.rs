//! Memory that the CPU does not touch, in a form that NICs may find it by.

use std::os::fd::{AsFd, OwnedFd};

use symrail_transport::rail::Export;

/// What is handed to rails, and has to live until they have registered it.
#[derive(Debug)]
pub enum Exported {
    /// A dmabuf of all of it.
    Dmabuf(OwnedFd),
    /// Nothing but its address.
    Address,
    /// The first byte of another mapping.
    Mapping(*mut u8),
}

impl Exported {
    /// As rails take it.
    #[must_use]
    pub fn as_export(&self) -> Export<'_> {
        match self {
            Exported::Dmabuf(fd) => Export::Dmabuf { fd: fd.as_fd(), offset: 0 },
            Exported::Address => Export::Address,
            Exported::Mapping(at) => Export::Mapping(*at),
        }
    }
}
