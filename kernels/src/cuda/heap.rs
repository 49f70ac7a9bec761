//! A symmetric heap in a GPU's address space: this PE's and peers' copies of it.

use std::sync::Arc;

use symrail_cuda::DevicePtr;

/// One symmetric heap in this GPU's address space.
#[derive(Debug, Clone)]
pub struct HeapView {
    /// This PE's copy in the GPU's address space.
    pub base: DevicePtr,
    /// Its size.
    pub bytes: u64,
    /// The symmetric offset of its first byte, as in the proxy.
    pub offset: u64,
    /// Whether the GPU's atomics on it are atomic with those of all others: true for device memory, false for host
    /// memory over PCIe.
    pub atomics: bool,
    /// Whether it is in GPU memory instead of host memory.
    pub in_gpus: bool,
    /// The address of every PE's copy in the GPU's address space; 0 where only the proxy can access it.
    pub peers: Vec<DevicePtr>,
}

/// The part of a heap that a GPU can access by loads and stores.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    base: DevicePtr,
    bytes: u64,
    in_gpus: bool,
    peers: Arc<[DevicePtr]>,
}

impl Reach {
    pub(super) fn of(heap: &HeapView) -> Reach {
        Reach { base: heap.base, bytes: heap.bytes, in_gpus: heap.in_gpus, peers: heap.peers.as_slice().into() }
    }

    /// Whether the GPU can access `pe`'s copy of the heap.
    #[must_use]
    pub fn has(&self, pe: u32) -> bool {
        self.peers.get(pe as usize).is_some_and(|base| !base.is_null())
    }

    /// Whether the heap is in GPU memory instead of host memory.
    #[must_use]
    pub fn in_gpus(&self) -> bool {
        self.in_gpus
    }

    /// The address of `bytes` at a symmetric address on `pe`; `None` where they are not in the heap, or only the proxy
    /// can access them.
    #[must_use]
    pub fn find(&self, address: u64, bytes: u64, pe: u32) -> Option<u64> {
        let at = address.checked_sub(self.base.get())?;
        let inside = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let base = self.peers.get(pe as usize).copied().filter(|base| !base.is_null() && inside)?;
        Some((base + at).get())
    }
}

#[cfg(test)]
mod tests {
    use super::{DevicePtr, HeapView, Reach};

    #[test]
    fn only_what_lies_in_a_mapped_heap_is_reached() {
        let peers = [1 << 20, 0, 1 << 30].map(DevicePtr::new).to_vec();
        let base = DevicePtr::new(1 << 20);
        let view = HeapView { base, bytes: 4096, offset: 0, atomics: true, in_gpus: true, peers };
        let reach = Reach::of(&view);
        assert_eq!(reach.find((1 << 20) + 64, 4032, 2), Some((1 << 30) + 64));
        for (address, bytes, pe) in
            [((1 << 20) + 64, 4033, 2), ((1 << 20) - 1, 1, 2), (1 << 20, u64::MAX, 2), (1 << 20, 8, 1), (1 << 20, 8, 3)]
        {
            assert_eq!(reach.find(address, bytes, pe), None, "{address:#x} {bytes} {pe}");
        }
        assert!(reach.has(0) && !reach.has(1) && !reach.has(3));
    }
}
