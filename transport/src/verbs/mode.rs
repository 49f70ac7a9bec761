//! The IB mode: the NIC or the target agent performs atomics at the target.
//!
//! All PEs must be in the same mode, because a NIC's atomic and a CPU's atomic on the same word can overwrite each
//! other. So the mode is compared when PEs join, and again when rails connect; a mismatch is refused. All rails of a PE
//! have the same mode.

use std::fmt;

use super::discover::{Atomicity, Nic};
use crate::env::{AmoPath, HeapKind, IbMode, Settings};
use crate::error::{Error, Result};

/// The IB mode of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum Mode {
    /// The NIC's fetch-add and compare-swap perform every atomic and signal, including those on this PE's and this
    /// host's memory.
    RdmaAtomics = 1,
    /// The target agent performs them on request by message. There are no atomics on the wire.
    WriteWithImm = 2,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::RdmaAtomics => "rdma-atomics",
            Mode::WriteWithImm => "write-with-imm",
        })
    }
}

/// The mode for all these NICs together, and the reason. Auto means the NIC's atomics where those are atomic with the
/// CPU's, and the target agent elsewhere: it performs every type and operation in one round trip, and local and
/// same-host AMOs stay loads and stores.
///
/// # Errors
/// [`Error::Unsupported`] when the settings demand atomics of a device that has none, or when `IB_MODE` and `AMO_PATH`
/// contradict each other.
pub fn decide(nics: &[Nic], settings: &Settings) -> Result<(Mode, String)> {
    let without = nics.iter().find(|nic| nic.atomicity == Atomicity::None);
    let contradiction = |mode, path| {
        Err(Error::Unsupported {
            what: format!("SYMRAIL_AMO_PATH={path}"),
            by: format!("SYMRAIL_IB_MODE={mode}"),
            remedy: "unset one of them on all PEs".into(),
        })
    };
    match (settings.ib_mode, settings.amo_path) {
        (IbMode::WriteWithImm, AmoPath::Native) => contradiction("write-with-imm", "native"),
        (IbMode::RdmaAtomics, AmoPath::Agent) => contradiction("rdma-atomics", "agent"),
        (IbMode::WriteWithImm, _) => Ok((Mode::WriteWithImm, "as SYMRAIL_IB_MODE says".into())),
        (IbMode::Auto, AmoPath::Agent) => Ok((Mode::WriteWithImm, "as SYMRAIL_AMO_PATH says".into())),
        (IbMode::RdmaAtomics, _) | (IbMode::Auto, AmoPath::Native) => {
            let variable = if settings.ib_mode == IbMode::Auto { "SYMRAIL_AMO_PATH" } else { "SYMRAIL_IB_MODE" };
            match without {
                None => Ok((Mode::RdmaAtomics, format!("as {variable} says"))),
                Some(nic) => Err(Error::Unsupported {
                    what: format!("what {variable} says (rdma-atomics)"),
                    by: format!("{}, which has no atomics", nic.device),
                    remedy: "use auto on all PEs, or leave the device out by SYMRAIL_NIC_LIST".into(),
                }),
            }
        }
        (IbMode::Auto, AmoPath::Auto) if matches!(settings.heap_kind, HeapKind::Device | HeapKind::Guarded) => {
            Ok((Mode::WriteWithImm, "the heap is in memory whose words the target agent changes".into()))
        }
        (IbMode::Auto, AmoPath::Auto) => match nics.iter().find(|nic| nic.atomicity != Atomicity::System) {
            Some(nic) => Ok((Mode::WriteWithImm, format!("{} has {}", nic.device, nic.atomicity))),
            None => Ok((Mode::RdmaAtomics, format!("all devices have {}", Atomicity::System))),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn nic(atomicity: Atomicity) -> Nic {
        let (name, device) = ("mlx5_0".to_owned(), "mlx5_0".to_owned());
        Nic { name, device, port: 1, active: true, infiniband: true, mtu: 4096, atomicity, pci: None, gids: vec![] }
    }

    fn asked(ib_mode: IbMode, amo_path: AmoPath, atomicities: &[Atomicity]) -> Result<(Mode, String)> {
        let mut settings = Settings::default();
        (settings.ib_mode, settings.amo_path) = (ib_mode, amo_path);
        decide(&atomicities.iter().map(|a| nic(*a)).collect::<Vec<_>>(), &settings)
    }

    #[test]
    fn auto_takes_atomics_that_are_atomic_with_the_cpu_only() {
        let auto = |atomicities: &[Atomicity]| asked(IbMode::Auto, AmoPath::Auto, atomicities).unwrap();
        assert_eq!(auto(&[Atomicity::Device]).0, Mode::WriteWithImm);
        assert_eq!(auto(&[Atomicity::System; 2]).0, Mode::RdmaAtomics);
        assert_eq!(auto(&[Atomicity::System, Atomicity::Device]).0, Mode::WriteWithImm, "one mode for all rails");
        let (mode, reason) = auto(&[Atomicity::System, Atomicity::None]);
        assert_eq!((mode, reason.as_str()), (Mode::WriteWithImm, "mlx5_0 has no atomics"));
        let settings = Settings { heap_kind: HeapKind::Device, ..Settings::default() };
        assert_eq!(decide(&[nic(Atomicity::System)], &settings).unwrap().0, Mode::WriteWithImm);
    }

    #[test]
    fn demands_are_kept_or_refused() {
        use {AmoPath as P, Atomicity as A, IbMode as M};
        let mode = |ib_mode, path, atomicity| asked(ib_mode, path, &[A::System, atomicity]).map(|(mode, _)| mode);
        assert_eq!(mode(M::WriteWithImm, P::Auto, A::System).unwrap(), Mode::WriteWithImm);
        assert_eq!(mode(M::RdmaAtomics, P::Auto, A::Device).unwrap(), Mode::RdmaAtomics);
        assert_eq!(mode(M::Auto, P::Native, A::Device).unwrap(), Mode::RdmaAtomics);
        assert_eq!(mode(M::Auto, P::Agent, A::System).unwrap(), Mode::WriteWithImm);
        for (ib_mode, path) in [(M::RdmaAtomics, P::Auto), (M::Auto, P::Native)] {
            let error = mode(ib_mode, path, A::None).unwrap_err().to_string();
            assert!(error.contains("mlx5_0") && error.contains("auto"), "{error}");
        }
        for (ib_mode, path) in [(M::RdmaAtomics, P::Agent), (M::WriteWithImm, P::Native)] {
            let error = mode(ib_mode, path, A::System).unwrap_err().to_string();
            assert!(error.contains("SYMRAIL_AMO_PATH") && error.contains("SYMRAIL_IB_MODE"), "{error}");
        }
    }
}
