//! The IB mode: whether the NIC performs atomics, or writes with an immediate tell the target's CPU to.
//!
//! Both ends of a connection must be in the same mode (a PE that sends immediates to one that waits for atomics waits
//! for ever), so the mode travels in the rail's address and a mismatch is refused.

use std::fmt;

use verbs_sys as sys;

use crate::env::IbMode;
use crate::error::{Error, Result};

/// The IB mode of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// The NIC's fetch-add and compare-swap.
    RdmaAtomics = 1,
    /// Writes with an immediate, which the target agent applies.
    WriteWithImm = 2,
}

impl Mode {
    pub(super) fn from_wire(value: u8) -> Option<Self> {
        [Mode::RdmaAtomics, Mode::WriteWithImm].into_iter().find(|mode| *mode as u8 == value)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::RdmaAtomics => "rdma-atomics",
            Mode::WriteWithImm => "write-with-imm",
        })
    }
}

/// With what a device's atomics are atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomicity {
    /// The device has no atomics.
    None,
    /// With other atomics through the same device only.
    Device,
    /// With the CPU's atomics as well.
    System,
}

impl Atomicity {
    pub(super) fn from_device(cap: sys::ibv_atomic_cap) -> Self {
        match cap {
            sys::IBV_ATOMIC_GLOB => Atomicity::System,
            sys::IBV_ATOMIC_HCA => Atomicity::Device,
            _ => Atomicity::None,
        }
    }
}

impl fmt::Display for Atomicity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Atomicity::None => "no atomics",
            Atomicity::Device => "atomics that are atomic with one another",
            Atomicity::System => "atomics that are atomic with the CPU's",
        })
    }
}

/// The mode for a device, and the reason in words.
///
/// # Errors
/// [`Error::Unsupported`] when atomics are demanded of a device that has none.
pub(super) fn decide(wanted: IbMode, atomicity: Atomicity, device: &str) -> Result<(Mode, String)> {
    match wanted {
        IbMode::WriteWithImm => Ok((Mode::WriteWithImm, "as SYMRAIL_IB_MODE says".into())),
        IbMode::RdmaAtomics if atomicity == Atomicity::None => Err(Error::Unsupported {
            what: "SYMRAIL_IB_MODE=rdma-atomics".into(),
            by: format!("{device}, which has no atomics"),
            remedy: "use auto or write-with-imm on all PEs".into(),
        }),
        IbMode::RdmaAtomics => Ok((Mode::RdmaAtomics, "as SYMRAIL_IB_MODE says".into())),
        IbMode::Auto if atomicity == Atomicity::None => Ok((Mode::WriteWithImm, format!("{device} has {atomicity}"))),
        IbMode::Auto => Ok((Mode::RdmaAtomics, format!("{device} has {atomicity}"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn auto_follows_the_device_and_demands_are_kept_or_refused() {
        let mode = |wanted, atomicity| decide(wanted, atomicity, "mlx5_0").map(|(mode, _)| mode);
        assert_eq!(mode(IbMode::Auto, Atomicity::Device).unwrap(), Mode::RdmaAtomics);
        assert_eq!(mode(IbMode::Auto, Atomicity::System).unwrap(), Mode::RdmaAtomics);
        assert_eq!(mode(IbMode::Auto, Atomicity::None).unwrap(), Mode::WriteWithImm);
        assert_eq!(mode(IbMode::WriteWithImm, Atomicity::System).unwrap(), Mode::WriteWithImm);
        assert_eq!(mode(IbMode::RdmaAtomics, Atomicity::Device).unwrap(), Mode::RdmaAtomics);
        let error = mode(IbMode::RdmaAtomics, Atomicity::None).unwrap_err().to_string();
        assert!(error.contains("mlx5_0") && error.contains("write-with-imm"), "{error}");
        let (_, reason) = decide(IbMode::Auto, Atomicity::None, "mlx5_0").unwrap();
        assert_eq!(reason, "mlx5_0 has no atomics");
    }
}
