//! Memory of `ncclMemAlloc`, which peers' GPUs can map.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use symrail::kernels::cuda::{CudaError, DeviceBuffer, DeviceHeap, Gpu};
use symrail_core::lock;

use crate::guard::Failure;

enum Memory {
    Shared(Arc<DeviceHeap>),
    /// Where the driver refuses memory that others can map, for example without virtual memory management.
    Private {
        _owned: DeviceBuffer,
    },
}

/// All such memory, by its address.
static ALLOCATED: Mutex<BTreeMap<u64, Memory>> = Mutex::new(BTreeMap::new());

/// Allocates zeroed memory of the current GPU, which the process's other GPUs access, too. Returns its address.
///
/// # Errors
/// The driver's.
pub fn alloc(bytes: usize) -> Result<usize, Failure> {
    let gpu = Gpu::open(Gpu::current().unwrap_or(0))?;
    let (at, memory) = match shared(&gpu, bytes) {
        Ok(heap) => (heap.base(), Memory::Shared(Arc::new(heap))),
        Err(_) => {
            let buffer = gpu.alloc(bytes)?;
            (buffer.at(), Memory::Private { _owned: buffer })
        }
    };
    lock(&ALLOCATED).insert(at.get(), memory);
    Ok(at.get() as usize)
}

fn shared(gpu: &Arc<Gpu>, bytes: usize) -> Result<DeviceHeap, CudaError> {
    let mut heap = DeviceHeap::reserve(gpu, bytes as u64)?;
    heap.grow(bytes.max(1) as u64)?;
    heap.open_to_gpus()?;
    Ok(heap)
}

/// Frees memory by its address, behind all work of its GPU; windows keep theirs. Whether there is any.
///
/// # Errors
/// The driver's, also for earlier launches.
pub fn free(at: usize) -> Result<bool, Failure> {
    let memory = lock(&ALLOCATED).remove(&(at as u64));
    if let Some(Memory::Shared(heap)) = &memory {
        // Unmapping does not wait, unlike the driver's own functions that free memory.
        heap.gpu().synchronize()?;
    }
    Ok(memory.is_some())
}

/// The memory with these bytes, if others can map it, and their offset in it.
pub fn find(at: usize, bytes: usize) -> Option<(Arc<DeviceHeap>, u64)> {
    let at = at as u64;
    let all = lock(&ALLOCATED);
    let (base, Memory::Shared(memory)) = all.range(..=at).next_back()? else { return None };
    let offset = at - base;
    let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= memory.committed());
    inside.then(|| (Arc::clone(memory), offset))
}
