//! The kind of memory of a heap for GPUs' data, where no setting says it.
//!
//! If GPUs map one another's memory, or NICs can access it, the heap is in GPU memory. Otherwise the driver would copy
//! such a heap to host memory and back for every request while kernels wait. Kernels write to host memory by
//! themselves, as fast as the bus allows.

use symrail_heap::HostIdentity;
use symrail_heap::cuda::Gpu;
use symrail_transport::backend;
pub use symrail_transport::env::HeapKind;
use symrail_transport::env::Settings;

use crate::bootstrap::Bootstrap;
use crate::error::Result;

/// Bits of a PE's report: whether others may map its memory, whether its NICs can access GPU memory, whether it has a
/// GPU; and its host.
const MAPPED: u8 = 1;
const NICS_REACH: u8 = 2;
const GPU: u8 = 4;

/// The kind that suits all PEs: host memory if one has no GPU. All PEs get the same answer. Collective.
///
/// # Errors
/// Those of [`Bootstrap::allgather`]; the system does not tell which host this is.
pub fn agree(settings: &Settings, bootstrap: &mut dyn Bootstrap) -> Result<HeapKind> {
    let host = HostIdentity::of_this_process(settings.fake_host.as_deref())?;
    let flags = [
        (!settings.disable_p2p, MAPPED),
        (backend::reaches_gpus(settings), NICS_REACH),
        (Gpu::has_driver() && Gpu::count() > 0, GPU),
    ];
    let flags = flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum();
    Ok(kind(&bootstrap.allgather(&said(flags, &host))?))
}

fn said(flags: u8, host: &HostIdentity) -> Vec<u8> {
    [&[flags][..], &host.boot_id.to_le_bytes(), host.name.as_bytes()].concat()
}

fn kind(all: &[Vec<u8>]) -> HeapKind {
    let every = |flag: u8| all.iter().all(|one| one.first().is_some_and(|flags| flags & flag != 0));
    let one_host = all.iter().all(|one| one.get(1..) == all[0].get(1..));
    let near = all.len() == 1 || one_host && every(MAPPED);
    match () {
        () if !every(GPU) => HeapKind::Host,
        () if near || every(NICS_REACH) => HeapKind::Device,
        () => HeapKind::Pinned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_are_in_host_memory_where_neither_gpus_nor_nics_reach_all_of_them() {
        let host = |name: &str| HostIdentity { name: name.into(), boot_id: 7, pid_namespace: 1 };
        let (a, b) = (host("a"), host("b"));
        let said = |mapped, nics_reach, host| {
            said(GPU | if mapped { MAPPED } else { 0 } | if nics_reach { NICS_REACH } else { 0 }, host)
        };
        let of = |all: &[Vec<u8>]| kind(all);
        assert_eq!(of(&[said(false, false, &a)]), HeapKind::Device, "alone");
        assert_eq!(of(&[said(true, false, &a), said(true, false, &a)]), HeapKind::Device, "one host");
        assert_eq!(of(&[said(true, false, &a), said(false, false, &a)]), HeapKind::Pinned, "one may not be mapped");
        assert_eq!(of(&[said(true, false, &a), said(true, false, &b)]), HeapKind::Pinned, "two hosts");
        assert_eq!(of(&[said(true, true, &a), said(true, true, &b)]), HeapKind::Device, "NICs reach both");
        assert_eq!(of(&[said(true, true, &a), said(true, false, &b)]), HeapKind::Pinned, "and one only");
        assert_eq!(of(&[said(true, true, &a), super::said(MAPPED, &a)]), HeapKind::Host, "one has no GPU");
    }
}
