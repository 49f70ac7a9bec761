//! Gathers to one PE and scatters from one: by the kernels without a plan, or as sends and receives where there are
//! none.

use symrail::kernels::cuda::Stream;

use super::GpuCommunicator;
use crate::buffers::Buffers;
use crate::error::{Error, Result};
use crate::gpu::plan::Memory;
use crate::gpu::straight::{GATHER, MOST_BLOCKS, SCATTER, StraightCall, Way, most_in_packets};
use crate::number::{DataType, ReduceOp};
use crate::selection::{Algorithm, Choice};
use crate::transfer::Transfer;

impl GpuCommunicator {
    /// Gives PE `root` all PEs' inputs, in the order of PEs. Its input may be its own part of the output; the others'
    /// output is not used.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or there is no such PE.
    pub unsafe fn gather(&mut self, stream: &Stream, input: Memory, output: Memory, root: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.in_parts(stream, GATHER, Buffers { input, output, part: input.len }, root) }
    }

    /// Gives every PE its part of PE `root`'s input. The root's output may be that part; the others' input is not used.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or there is no such PE.
    pub unsafe fn scatter(&mut self, stream: &Stream, input: Memory, output: Memory, root: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.in_parts(stream, SCATTER, Buffers { input, output, part: output.len }, root) }
    }

    /// Whether a gather or scatter of parts of so many bytes only launches kernels, as [`GpuCommunicator::is_prepared`].
    #[must_use]
    pub fn is_prepared_in_parts(&self, part: u64) -> bool {
        match &self.straight {
            Some(straight) if self.selection.is_straight() => {
                straight.has(self.way_in_parts(part)) && self.kernels.contains_key(&DataType::Uint8)
            }
            _ => !self.selection.is_straight() && self.is_exchange_prepared(),
        }
    }

    fn way_in_parts(&self, part: u64) -> Way {
        if part <= most_in_packets(self.members.n().into()) { Way::Packets } else { Way::Pushed }
    }

    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    unsafe fn in_parts(&mut self, stream: &Stream, number: u64, buffers: Buffers<Memory>, root: u32) -> Result<()> {
        let Buffers { input, output, part } = buffers;
        let (me, n) = (self.members.me(), u64::from(self.members.n()));
        self.selection.check_root(if number == GATHER { "gather" } else { "scatter" }, root)?;
        // The memory that has a part for each PE, at the root.
        let (whole, what) = if number == GATHER { (output, "output") } else { (input, "input") };
        if let Some(why) = whole.other_than(n, part).filter(|_| me == root) {
            return Err(Error::Call(format!("the {what} {why}")));
        }
        if part == 0 {
            return Ok(());
        }
        if !self.selection.is_straight() {
            // SAFETY: the caller's promise.
            return unsafe { self.exchange(stream, &transfers(number, &buffers, me, root, n)) };
        }
        let way = self.way_in_parts(part);
        let algorithm = if way == Way::Packets { Algorithm::Packets } else { Algorithm::Pushed };
        let choice = Choice::Own(algorithm, MOST_BLOCKS as usize);
        // Kernels take other memory in place of what is not used.
        let (input, output) = match (me == root, number) {
            (true, _) => (input, output),
            (false, GATHER) => (input, input),
            _ => (output, output),
        };
        let call = StraightCall {
            collective: number,
            root: root.into(),
            input: input.at,
            output: output.at,
            part,
            op: ReduceOp::Sum,
            average: false,
            accumulate: self.accumulate,
            most_blocks: MOST_BLOCKS,
            chunk: None,
        };
        self.in_order(stream, |all, captured| {
            all.prepare(&choice, part, DataType::Uint8, captured)?;
            let (Some(straight), Some(kernels)) = (&all.straight, all.kernels.get(&DataType::Uint8)) else {
                return Err(choice.unknown());
            };
            // SAFETY: the caller's promise.
            unsafe { straight.launch(stream, &kernels.straight, way, &call) }
        })
    }
}

/// A gather or scatter as this PE's sends and receives.
fn transfers(number: u64, buffers: &Buffers<Memory>, me: u32, root: u32, n: u64) -> Vec<Transfer<Memory>> {
    let &Buffers { input, output, part } = buffers;
    let part_of = |whole: Memory, rank: u64| Memory { at: whole.at + rank * part, len: part };
    let ranks = || (0..).take(n as usize);
    let mut transfers = Vec::new();
    if number == GATHER {
        transfers.push(Transfer::Send { to: root, memory: input });
        if me == root {
            transfers.extend(ranks().map(|from| Transfer::Receive { from, memory: part_of(output, from.into()) }));
        }
    } else {
        transfers.push(Transfer::Receive { from: root, memory: output });
        if me == root {
            transfers.extend(ranks().map(|to| Transfer::Send { to, memory: part_of(input, to.into()) }));
        }
    }
    transfers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_a_transfer_with_each_rank() {
        let (part, whole) = (Memory { at: 7, len: 10 }, Memory { at: 100, len: 30 });
        let memory = |at| Memory { at, len: 10 };
        let transfers = |number, input, output, me| transfers(number, &Buffers { input, output, part: 10 }, me, 1, 3);
        let receives = (0..3).map(|from| Transfer::Receive { from, memory: memory(100 + 10 * u64::from(from)) });
        let send = Transfer::Send { to: 1, memory: part };
        assert_eq!(transfers(GATHER, part, part, 2), [send]);
        assert_eq!(transfers(GATHER, part, whole, 1), [vec![send], receives.collect()].concat());
        let sends = (0..3).map(|to| Transfer::Send { to, memory: memory(100 + 10 * u64::from(to)) });
        let receive = Transfer::Receive { from: 1, memory: part };
        assert_eq!(transfers(SCATTER, part, part, 0), [receive]);
        assert_eq!(transfers(SCATTER, whole, part, 1), [vec![receive], sends.collect()].concat());
    }
}
