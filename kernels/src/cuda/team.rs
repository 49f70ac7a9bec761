//! Barriers of kernels on several PEs: `symrail_device_team`, and the memory of the plans.

use std::sync::Arc;

use symrail_cuda::{DeviceBuffer, DevicePtr, Gpu};

use super::error::{Error, Result};
use crate::barrier_words::{SET, Step};

/// The offset of the steps behind the counter, as `SYMRAIL_PLAN_STEPS`.
pub(super) const STEPS: usize = 128;

/// Allocates a barrier's state: a counter, and the plan's steps.
///
/// # Errors
/// A flag out of range, or the error of the driver.
pub(super) fn plan_on_device(gpu: &Arc<Gpu>, steps: &[Step]) -> Result<DeviceBuffer> {
    let table = table(steps)?;
    let memory = gpu.alloc(STEPS + table.len())?;
    memory.write(STEPS, &table)?;
    Ok(memory)
}

/// The steps as `symrail_step`, with the terminating one.
fn table(steps: &[Step]) -> Result<Vec<u8>> {
    let raw = |&step: &Step| match step {
        Step::SignalPeer(pe, flag) => [pe as i32, flag as i32],
        Step::WaitFlag(flag) => [-1, flag as i32],
    };
    let steps: Vec<[i32; 2]> = steps.iter().map(raw).collect();
    if let Some([_, flag]) = steps.iter().find(|[_, flag]| !(0..SET as i32).contains(flag)) {
        return Err(Error::Parts(format!("flag {flag} of a barrier, which has {SET}")));
    }
    Ok(steps.into_iter().chain([[-1, -1]]).flatten().flat_map(i32::to_le_bytes).collect())
}

/// A team for kernels: `symrail_device_team`.
#[derive(Debug)]
pub struct DeviceTeam {
    memory: DeviceBuffer,
    // The memory that the team points to.
    _plan: DeviceBuffer,
}

impl DeviceTeam {
    /// The team of `n_pes` PEs from `start` on, at distances of `stride`, in which this PE has number `me`. `words` are
    /// zeroed as [`DeviceParts::barrier_words`](super::DeviceParts) and used only by this team; `steps` is this PE's
    /// barrier plan.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(
        gpu: &Arc<Gpu>,
        me: u32,
        n_pes: u32,
        start: u32,
        stride: i32,
        words: DevicePtr,
        steps: &[Step],
    ) -> Result<DeviceTeam> {
        let plan = plan_on_device(gpu, steps)?;
        let numbers = [me as i32, n_pes as i32, start as i32, stride].map(i32::to_le_bytes).concat();
        let places = [words, plan.at()].map(|at| at.get().to_le_bytes()).concat();
        let bytes = [numbers, places].concat();
        let memory = gpu.alloc(bytes.len())?;
        memory.write(0, &bytes)?;
        Ok(DeviceTeam { memory, _plan: plan })
    }

    /// The kernels' `symrail_team_t`, which is valid as long as this value.
    #[must_use]
    pub fn handle(&self) -> u64 {
        self.memory.at().get()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn steps_are_as_the_header_has_them() {
        let header = include_str!("../../include/symrail/state.cuh");
        for line in [format!("#define SYMRAIL_PLAN_STEPS {STEPS}u\n"), format!("#define SYMRAIL_PLAN_SET {SET}u\n")] {
            assert!(header.contains(&line), "{line}");
        }
        let bytes = table(&[Step::SignalPeer(3, 31), Step::WaitFlag(16)]).unwrap();
        let words: Vec<i32> = bytes.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [3, 31, -1, 16, -1, -1]);
        assert!(table(&[Step::WaitFlag(32)]).unwrap_err().to_string().contains("flag 32"));
        assert_eq!(table(&[]).unwrap(), [0xff; 8]);
    }
}
