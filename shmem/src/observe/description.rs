//! A description of a PE and its paths to the others: for `symrail.info()` in Python, and for programs that prefer to
//! end instead of running over a slower path than they require.

use std::str::FromStr;

use serde::Serialize;
use symrail_heap::Reach;
use symrail_transport::Pe;
use symrail_transport::endpoint::LaneSpeed;
use symrail_transport::env::HeapKind;

use crate::error::Error;
use crate::operations::Communicator;
use crate::staged::Staged;

/// A PE, its rails, and its path to each PE.
#[derive(Debug, Clone, Serialize)]
pub struct Description {
    /// The PE.
    pub pe: Pe,
    /// How many PEs the job has.
    pub n_pes: u32,
    /// The kind of the heap's memory, as in `SYMRAIL_HEAP_KIND`.
    pub heap_kind: String,
    /// Bytes of the heap, including the runtime's own.
    pub heap_bytes: usize,
    /// How many proxy threads drive the rails.
    pub proxy_threads: usize,
    /// The rails, in the order in which they are used; none without a wire.
    pub rails: Vec<Rail>,
    /// Why these rails and threads, one sentence each; or why there is no wire.
    pub why: Vec<String>,
    /// The path to each PE, this one's own too.
    pub paths: Vec<Path>,
}

/// A rail.
#[derive(Debug, Clone, Serialize)]
pub struct Rail {
    /// Its name, as in `SYMRAIL_NIC_LIST`.
    pub name: String,
    /// libfabric's provider, or `verbs`.
    pub provider: String,
    /// The NIC, in words.
    pub nic: String,
    /// Whether a NIC reads and writes the target's memory; otherwise the target's CPU does.
    pub rdma: bool,
    /// Its measured speed, which only the policy `adaptive` needs; none before the first large operation.
    pub speed: Option<LaneSpeed>,
}

/// The path of this PE's operations to a PE's heap.
#[derive(Debug, Clone, Serialize)]
pub struct Path {
    /// That PE.
    pub pe: Pe,
    /// The kind of path.
    pub path: PathKind,
    /// The bytes pass through a buffer in host memory: over the wire, or because the CPU cannot access the memory.
    pub staged: bool,
    /// The reason.
    pub why: String,
}

/// The kinds of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// The PE itself.
    #[serde(rename = "self")]
    Own,
    /// Its memory is mapped: by this process, or by its GPU if the heaps are in GPUs.
    Mapped,
    /// Over the rails.
    Wire,
}

/// A program's requirement on its paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// All PEs are mapped.
    Mapped,
    /// There are rails, even if all PEs are mapped.
    Wire,
    /// NICs read and write the memory of PEs that are reached over rails; no CPU does it for them.
    Rdma,
    /// The heap is in a GPU, and NICs read and write it: no transfer is staged in host memory.
    GpuDirect,
}

impl Requirement {
    /// Every requirement with its name.
    pub const NAMES: [(&'static str, Requirement); 4] = [
        ("mapped", Requirement::Mapped),
        ("wire", Requirement::Wire),
        ("rdma", Requirement::Rdma),
        ("gpudirect", Requirement::GpuDirect),
    ];
}

impl FromStr for Requirement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, it)| *it).ok_or_else(|| format!("{text:?} is no requirement; there are {}", names()))
    }
}

impl Description {
    pub(crate) fn of(comm: &Communicator) -> Description {
        let (rails, mut why) = match &comm.wire {
            Ok(wire) => {
                let (nics, why) = wire.described();
                let nic = |rail: &str| nics.iter().find(|(name, _)| name == rail).map(|(_, nic)| nic.clone());
                let rail = |caps: &symrail_transport::rail::RailCaps| Rail {
                    name: caps.name.clone(),
                    provider: caps.provider.clone(),
                    nic: nic(&caps.name).unwrap_or_default(),
                    rdma: !caps.software,
                    speed: wire.speed(&caps.name),
                };
                (wire.rails().iter().map(rail).collect(), why)
            }
            Err(error) => (Vec::new(), vec![format!("no wire: {error}")]),
        };
        let staged = comm.space.staged.as_ref();
        if staged.is_some_and(|staged| !staged.direct) {
            why.push("what goes over the wire is staged: not all rails of all PEs reach the heaps".into());
        }
        Description {
            pe: comm.job.me,
            n_pes: comm.job.n_pes,
            heap_kind: comm.job.settings.heap_kind.to_string(),
            heap_bytes: comm.job.settings.heap_size,
            proxy_threads: comm.wire.as_ref().map_or(0, |wire| wire.drivers().len()),
            rails,
            why,
            paths: (0..comm.job.n_pes).map(|pe| path(comm, pe)).collect(),
        }
    }

    /// Why a requirement is not met; `None` if it is met.
    #[must_use]
    pub fn unmet(&self, requirement: Requirement) -> Option<String> {
        let over_wire = || self.paths.iter().find(|path| path.path == PathKind::Wire);
        let line = |path: &Path| format!("PE {} reaches PE {} over the wire: {}", self.pe, path.pe, path.why);
        match requirement {
            Requirement::Mapped => over_wire().map(line),
            Requirement::Wire => {
                self.rails.is_empty().then(|| format!("PE {} has no rails: {}", self.pe, self.reasons()))
            }
            Requirement::Rdma => {
                let (path, rail) = (over_wire()?, self.rails.iter().find(|rail| !rail.rdma)?);
                let (name, provider) = (&rail.name, &rail.provider);
                Some(format!("{}; of rail {name} ({provider}) the target's CPU moves the bytes", line(path)))
            }
            Requirement::GpuDirect if self.heap_kind != HeapKind::Device.to_string() => Some(format!(
                "PE {}'s heap is of kind {}; SYMRAIL_HEAP_KIND=device puts it in a GPU",
                self.pe, self.heap_kind
            )),
            Requirement::GpuDirect => {
                let path = over_wire().filter(|path| path.staged)?;
                Some(format!("{}, staged in host memory; {}", line(path), self.reasons()))
            }
        }
    }

    fn reasons(&self) -> String {
        self.why.join("; ")
    }
}

fn path(comm: &Communicator, pe: Pe) -> Path {
    let reach = comm.space.peers.reach(pe);
    let on_gpu = |staged: &Staged| staged.shared().is_some_and(|shared| !shared.bases()[pe as usize].is_null());
    let (path, staged, why) = match (&comm.space.staged, reach) {
        (_, Ok(Reach::Own)) => (PathKind::Own, false, "this PE's own memory".into()),
        (None, Ok(Reach::Mapped)) => (PathKind::Mapped, false, "its heap is mapped into this process".into()),
        (None, Ok(Reach::Wire(refusal))) => (PathKind::Wire, false, refusal.to_string()),
        (Some(staged), Ok(_)) if on_gpu(staged) => {
            (PathKind::Mapped, false, "its GPU's memory is mapped by this PE's GPU".into())
        }
        (Some(staged), Ok(Reach::Wire(refusal))) => (PathKind::Wire, !staged.direct, refusal.to_string()),
        (Some(staged), Ok(Reach::Mapped)) => {
            (PathKind::Wire, !staged.direct, "its heap is in memory that the CPU cannot touch".into())
        }
        (_, Err(error)) => (PathKind::Wire, false, Error::from(error).to_string()),
    };
    Path { pe, path, staged, why }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn description(heap: &str, path: PathKind, staged: bool, rails: &[bool]) -> Description {
        let rail =
            |&rdma: &bool| Rail { name: "r".into(), provider: "p".into(), nic: String::new(), rdma, speed: None };
        let to = |pe, path, staged| Path { pe, path, staged, why: "because".into() };
        Description {
            pe: 0,
            n_pes: 2,
            heap_kind: heap.into(),
            heap_bytes: 1,
            proxy_threads: 1,
            rails: rails.iter().map(rail).collect(),
            why: vec!["reason".into()],
            paths: vec![to(0, PathKind::Own, false), to(1, path, staged)],
        }
    }

    #[test]
    fn what_is_not_met_is_named_with_what_there_is() {
        let met = |description: &Description| {
            Requirement::NAMES.map(|(name, requirement)| description.unmet(requirement).map(|why| (name, why)))
        };
        let [mapped, wire, rdma, gpu] = met(&description("host", PathKind::Wire, false, &[false]));
        assert_eq!(mapped.unwrap().1, "PE 0 reaches PE 1 over the wire: because");
        assert_eq!(wire, None);
        assert!(rdma.unwrap().1.ends_with("of rail r (p) the target's CPU moves the bytes"));
        assert!(gpu.unwrap().1.contains("SYMRAIL_HEAP_KIND=device"));
        let [mapped, wire, rdma, _] = met(&description("host", PathKind::Mapped, false, &[]));
        assert_eq!((mapped, rdma), (None, None));
        assert_eq!(wire.unwrap().1, "PE 0 has no rails: reason");
        // RDMA on one rail of two does not meet the requirement.
        assert!(description("host", PathKind::Wire, false, &[true, false]).unmet(Requirement::Rdma).is_some());
        assert_eq!(description("host", PathKind::Wire, false, &[true, true]).unmet(Requirement::Rdma), None);
        let staged = description("device", PathKind::Wire, true, &[true]);
        assert!(staged.unmet(Requirement::GpuDirect).unwrap().contains("staged in host memory; reason"));
        assert_eq!(description("device", PathKind::Wire, false, &[true]).unmet(Requirement::GpuDirect), None);
        assert_eq!(description("device", PathKind::Mapped, false, &[]).unmet(Requirement::GpuDirect), None);
    }

    #[test]
    fn requirements_have_names() {
        for (name, requirement) in Requirement::NAMES {
            assert_eq!(name.parse(), Ok(requirement));
        }
        assert!("Mapped".parse::<Requirement>().unwrap_err().contains("mapped, wire, rdma, gpudirect"));
    }
}
