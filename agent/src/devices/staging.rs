//! The copy engine of a session whose memory is that of any number of GPUs, which are opened one by one.

use std::ptr::NonNull;
use std::sync::Arc;

use symrail_cuda::{DevicePtr, Gpu};
use symrail_heap::copy_engine::{Between, Copy, CopyCompletion, CopyEngine};

use super::cuda::Gpus;

/// Copies by the engines of the GPUs that are open, through a staging buffer that they share. Writes have an order
/// within each GPU's memory.
pub(super) struct Staging {
    gpus: Arc<Gpus>,
    pending: usize,
}

impl Staging {
    pub fn new(gpus: Arc<Gpus>) -> Staging {
        Staging { gpus, pending: 0 }
    }
}

// SAFETY: the staging buffer is a mapping that `gpus` keeps; the engines report their copies once.
unsafe impl CopyEngine for Staging {
    fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        self.gpus.staging_buffer()
    }

    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String> {
        let none = || format!("no open GPU has the {} bytes at {:#x}", copy.len, copy.memory);
        let device = Gpu::holding(DevicePtr::new(copy.memory as u64)).ok_or_else(none)?;
        let mut gpus = self.gpus.open();
        let gpu = gpus.get_mut(device).ok_or_else(none)?;
        // SAFETY: the caller's promise.
        unsafe { gpu.engine.start(copy, ticket) }?;
        self.pending += 1;
        Ok(())
    }

    fn prepare_peer(&mut self, peer: usize) -> Result<(), String> {
        Err(format!("agents' devices map memory by themselves, and not that at {peer:#x}"))
    }

    unsafe fn start_between(&mut self, copy: Between, _: u64) -> Result<(), String> {
        self.prepare_peer(copy.to)
    }

    fn flush_nic_writes(&mut self) {
        self.gpus.open().all().for_each(|gpu| gpu.engine.flush_nic_writes());
    }

    fn flush(&mut self) {
        if self.pending > 0 {
            self.gpus.open().all().for_each(|gpu| gpu.engine.flush());
        }
    }

    fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize {
        if self.pending == 0 {
            return 0;
        }
        let count = self.gpus.open().all().map(|gpu| gpu.engine.poll(ended)).sum();
        self.pending -= count;
        count
    }

    fn pending(&self) -> usize {
        self.pending
    }

    fn writing(&self) -> usize {
        if self.pending == 0 { 0 } else { self.gpus.open().all().map(|gpu| gpu.engine.writing()).sum() }
    }
}
