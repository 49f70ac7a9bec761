//! Memory channels for users' kernels (`symrail_channels.cuh`).

use std::collections::HashMap;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::{DeviceBuffer, PinnedBuffer};
use symrail::kernels::layout::memory_channel::MemoryChannel;
use symrail::kernels::layout::{Alarm, Semaphore};
use symrail::rounds::Report;
use symrail::{Pe, SymSlice};
use symrail_core::layout;

use super::plan::Memory;
use crate::error::{Error, Result};

/// Makes memory channels, without the peers' help: their memory exists on all PEs from the start.
pub struct MemoryChannels {
    tags: u32,
    /// The first word names a PE that has given up; the others hold, for each PE and tag, the signals from that PE.
    words: SymSlice<u64>,
    /// For each of these words, the number of signals that were awaited.
    expected: DeviceBuffer,
    report: PinnedBuffer,
    made: HashMap<(Pe, u64, u32), DeviceBuffer>,
    device: GpuDevice,
}

impl MemoryChannels {
    /// Has semaphores for channels with `tags` different tags to each PE. Collective.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(device: &GpuDevice, tags: u32) -> Result<Self> {
        let runtime = device.runtime();
        let semaphores = runtime.n_pes() as usize * tags as usize;
        let words = runtime.alloc_slice::<u64>(1 + semaphores)?;
        let expected = device.gpu().alloc(8 * semaphores)?;
        let report = PinnedBuffer::new(device.gpu(), Report::BYTES)?;
        runtime.barrier_all()?;
        Ok(MemoryChannels { device: device.clone(), tags, words, expected, report, made: HashMap::new() })
    }

    /// The channel between a buffer of this PE and the copy of `pe`: the address that kernels take as `const
    /// symrail_memory_channel*`. The peer names its own copy and the same tag. Channels to a PE with the same tag share
    /// their semaphore.
    ///
    /// # Errors
    /// There is no such tag or PE, the buffer is not in the symmetric heap, this GPU cannot access the peer's memory,
    /// or the driver reports an error.
    pub fn channel(&mut self, pe: Pe, buffer: Memory, tag: u32) -> Result<u64> {
        if tag >= self.tags {
            return Err(Error::Call(format!("a memory channel with tag {tag} of {}", self.tags)));
        }
        if let Some(made) = self.made.get(&(pe, buffer.at, tag)) {
            return Ok(made.at().get());
        }
        let reach = self.device.state().reach();
        let Some(remote) = reach.find(buffer.at, buffer.len, pe) else {
            let (at, len) = (buffer.at, buffer.len);
            let remedy = "take memory of the symmetric heap, and puts and gets where the peer is not mapped";
            return Err(Error::Call(format!("a memory channel for {len} bytes at {at:#x} of PE {pe}: {remedy}")));
        };
        let words = self.device.address(self.words.as_ptr().cast());
        let word = |with: Pe| words + 8 * (1 + u64::from(with) * u64::from(self.tags) + u64::from(tag));
        let there = word(self.device.runtime().my_pe());
        let mapped = reach.find(there, 8, pe).filter(|_| self.device.is_direct()).unwrap_or(0);
        let expected = self.expected.at().get() + (word(pe) - words - 8);
        let channel = MemoryChannel {
            semaphore: Semaphore { arrived: word(pe), expected, there, mapped, pe: pe.into() },
            alarm: Alarm { report: self.report.device().get(), stop: words },
            remote,
            local: buffer.at,
        };
        let memory = self.device.gpu().alloc(size_of::<MemoryChannel>())?;
        memory.write(0, &layout::bytes(&[channel]))?;
        let handle = memory.at().get();
        self.made.insert((pe, buffer.at, tag), memory);
        Ok(handle)
    }

    /// Fails if a wait has failed so far.
    ///
    /// # Errors
    /// A PE was late ([`Error::Round`]), or the waits were [ended](Self::abort).
    pub fn check(&self) -> Result<()> {
        match Report::of(&self.report) {
            None => Ok(()),
            Some(report) => {
                let runtime = self.device.runtime();
                let (pe, seconds) = (runtime.my_pe(), runtime.settings().timeout_s);
                Err(report.error(pe, "a memory channel", "a signal or packets".into(), None, seconds).into())
            }
        }
    }

    /// Ends all waits for signals and packets of this PE's channels. They must not be used again.
    pub fn abort(&self) {
        Report::end_waits(&self.report);
    }

    /// Frees the memory. Kernels that use channels have ended, on all PEs. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn free(self) -> Result<()> {
        Ok(self.words.free()?)
    }
}
