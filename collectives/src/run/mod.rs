//! Runs plans on the CPU device: a thread for each block, with loads and stores or over rails.
//!
//! | file | concept |
//! |---|---|
//! | here | a plan with its memory; a call |
//! | `shared` | the state that the blocks of a PE share in a call: semaphores, waits, giving up |
//! | `block` | one block's steps |
//! | `packet` | data with flags inside |
//! | `exchange` | sends and receives, which need no plan |
//! | `wait` | what ends waits: time-out, interrupt, a dead member |
//!
//! # Promises
//! - Every wait ends within `SYMRAIL_TIMEOUT_S`, with an error that names the PE; sooner when a member has died or the
//!   program interrupts it. Then all PEs give up, and the plan's memory is not used again, because late data may still
//!   arrive there.
//! - Signals are counted in 64 bits, by words of this plan alone. Packets carry a flag that is different in each
//!   call.
//! - Data over a wire is in the target's memory before the signal that follows it.

mod block;
pub(crate) mod exchange;
mod packet;
mod shared;
mod wait;

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use symrail::kernels::cpu::Grid;
use symrail::rounds::Poison;
use symrail::{Runtime, SymSlice, Symmetric};

use crate::error::{Error, Result};
use crate::members::{Members, Taken};
use crate::number::{Accumulate, DataType, ReduceOp, divide};
use crate::plan::{BufferType, Plan};
use block::{Block, STAGE};
use shared::{CALL, Memory, Shared};
use wait::launch;

/// Bytes of the symmetric heap, at the same offset on every PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    offset: u64,
    len: u64,
}

impl Buffer {
    /// The bytes of a slice.
    ///
    /// # Errors
    /// The slice is not in the heap any more.
    pub fn of<T: Symmetric>(slice: &SymSlice<T>) -> Result<Buffer> {
        Buffer::at(slice.runtime(), slice.as_ptr().cast(), slice.len() * size_of::<T>())
    }

    /// `bytes` bytes from an address of this PE's heap on.
    ///
    /// # Errors
    /// They are not all in the heap.
    pub fn at(runtime: &Runtime, start: *const u8, bytes: usize) -> Result<Buffer> {
        // An array without elements may be anywhere: PyTorch's is at null.
        let offset = if bytes == 0 { 0 } else { runtime.symmetric_offset(start, bytes)? };
        Ok(Buffer { offset, len: bytes as u64 })
    }

    /// `len` bytes from byte `start` on.
    ///
    /// # Errors
    /// They are not all within this buffer.
    pub fn part(self, start: u64, len: u64) -> Result<Buffer> {
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::Call(format!("bytes {start}..{start}+{len} are not within the buffer's {}", self.len)));
        }
        Ok(Buffer { offset: self.offset + start, len })
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    pub(crate) fn span(self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    /// Whether the two overlap.
    #[must_use]
    pub fn overlaps(self, other: Buffer) -> bool {
        self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }
}

/// The parameters of a call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The data to send.
    pub input: Buffer,
    /// The memory for the result; for a plan in place the same memory, or in an all-gather and a reduce-scatter, a part
    /// of it that the plan knows.
    pub output: Buffer,
    /// Bytes of a part: of the whole in an all-reduce and a broadcast, of the data between each two PEs in other
    /// collectives.
    pub part: u64,
    /// The elements' type.
    pub data_type: DataType,
    /// The reduction.
    pub op: ReduceOp,
    /// The type in which narrow elements are reduced.
    pub accumulate: Accumulate,
}

/// A plan with its memory on all PEs, which can be run many times.
pub struct Prepared {
    plan: Plan,
    /// The largest part.
    capacity: u64,
    /// The first word names a PE that has given up; signals arrive in the others.
    words: Taken,
    /// Plain chunks, then packets, each in one or two halves.
    scratch: Taken,
    /// A staging buffer for each block.
    stage: Taken,
    /// For each word, the number of signals that were awaited.
    expected: Vec<AtomicU64>,
    epoch: u64,
    poison: Poison,
    members: Members,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("plan", &self.plan.name()).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Prepared {
    /// Allocates memory for a plan and parts of up to `capacity` bytes. Collective over all PEs.
    ///
    /// # Errors
    /// The plan is for another number of PEs, or there is no memory.
    pub fn new(runtime: &Runtime, plan: &Plan, capacity: u64) -> Result<Prepared> {
        Prepared::of(&Members::all(runtime)?, plan, capacity)
    }

    /// As above, for a communicator's PEs. Collective over these.
    pub(crate) fn of(members: &Members, plan: &Plan, capacity: u64) -> Result<Prepared> {
        members.suit(plan)?;
        let most = |count: fn(&crate::plan::Rank) -> usize| plan.ranks.iter().map(count).max().unwrap_or(0);
        let words = members.take(8 * (1 + most(|rank| rank.inbound.len())))?;
        let scratch = members.take(plan.scratch_memory(capacity) as usize)?;
        let stage = members.take(most(|rank| rank.blocks.len()) * STAGE)?;
        let inbound = plan.ranks[members.me() as usize].inbound.len();
        let expected = (0..inbound).map(|_| AtomicU64::new(0)).collect();
        let plan = plan.clone();
        Ok(Prepared {
            members: members.clone(),
            plan,
            capacity,
            words,
            scratch,
            stage,
            expected,
            epoch: 0,
            poison: Poison::default(),
        })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The largest part, in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Frees the memory. Collective over all PEs.
    ///
    /// # Errors
    /// As for [`SymSlice::free`].
    pub fn free(self) -> Result<()> {
        self.stage.free()?;
        self.scratch.free()?;
        self.words.free()
    }

    /// Sets the number of the next call, counted from 0, on every PE alike: for tests of wraps after very many calls.
    #[doc(hidden)]
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Runs the plan. Collective over all PEs, which pass the same part, type and operation; returns when this PE's
    /// output is complete and its input may be changed.
    ///
    /// # Errors
    /// The call does not suit the plan; a PE is late or has given up ([`Error::Round`]); the device
    /// failed. After a late PE, an abort or a failure of the device the plan cannot be run any more.
    pub fn run(&mut self, call: &Call) -> Result<()> {
        self.members.runtime().check_joined()?;
        self.check(call)?;
        let runtime = self.members.runtime();
        let (device, seconds) = (runtime.cpu_device()?, runtime.settings().timeout_s);
        let me = self.members.me() as usize;
        let name = |buffer: Buffer| device.symmetric_at::<u8>(buffer.offset, buffer.len);
        let scratch = self.scratch.buffer()?;
        let plain = self.plan.scratch_bytes(self.capacity);
        let packets = match self.plan.packet_halves {
            0 => scratch.part(0, 0)?,
            halves => scratch.part(plain * (self.plan.scratch_halves + 2 * (self.epoch % halves)), 2 * plain)?,
        };
        let memory = Memory {
            input: name(call.input)?,
            output: name(call.output)?,
            plain: name(scratch.part(self.plan.scratch_start(self.capacity, self.epoch), plain)?)?,
            packets: device.symmetric_at(packets.offset, packets.len / 8)?,
            packet_bytes: name(packets)?,
            words: self.words.words(&device)?,
        };
        let stage = name(self.stage.buffer()?)?;
        let flag = self.next_flag()?;
        if self.plan.barriers.before {
            self.poison.poison_on_err(self.members.sync())?;
        }
        let rank = &self.plan.ranks[me];
        let shared = Shared::new(&self.plan, &self.members, call, memory, &self.expected, flag, seconds);
        let grid = Grid { blocks: rank.blocks.len(), threads_per_block: 1 };
        let run = launch(self.members.runtime(), &device, grid, CALL, &shared.ended, |thread| {
            let stage = stage.part((thread.block_id() * STAGE) as u64, STAGE as u64)?;
            let block = Block::new(&shared, thread, stage)?;
            block.run(&rank.blocks[thread.block_id()]).inspect_err(|_| shared.give_up(thread))
        });
        if let Err(error) = run {
            // The first block's error caused those of the others.
            let is_first = matches!(error, Error::Runtime(symrail::Error::Interrupted { .. }));
            let error = if is_first { error } else { shared.first_error().unwrap_or(error) };
            return self.poison.poison_on_err(Err(error));
        }
        if self.plan.barriers.after {
            self.poison.poison_on_err(self.members.sync())?;
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<()> {
        let refuse = |reason: String| Err(Error::Call(format!("plan {}: {reason}", self.plan.name())));
        let part = call.part;
        // What still arrives of an earlier call would be taken for this one's.
        self.poison.check(self.members.runtime().my_pe(), "a communicator")?;
        if part > self.capacity {
            return refuse(format!("parts of {part} bytes, but memory was taken for {}", self.capacity));
        }
        if !part.is_multiple_of(call.data_type.size() as u64) {
            return refuse(format!("parts of {part} bytes are not whole elements of {}", call.data_type));
        }
        call.op.suits(call.data_type)?;
        let message = self.plan.message(part);
        let sizes = &self.plan.sizes;
        if !sizes.contains(&message) {
            return refuse(format!("messages of {message} bytes, but it is for {} to {}", sizes.start(), sizes.end()));
        }
        if let Some((place, op)) = self.plan.other_op(call.op) {
            return refuse(format!("it is for {op}{place}, and the call for {}", call.op));
        }
        let (_, inputs, outputs) = self.plan.parts();
        for (what, buffer, parts) in [("input", call.input, inputs), ("output", call.output, outputs)] {
            if buffer.len != part * parts {
                let wanted = part * parts;
                return refuse(format!(
                    "the {what} has {} bytes, but {parts} parts of {part} are {wanted}",
                    buffer.len
                ));
            }
        }
        if self.plan.in_place {
            let me = u64::from(self.members.me()) * part;
            let starts = |inner: Buffer, outer: Buffer| inner.offset == outer.offset + me;
            let same = match inputs.cmp(&outputs) {
                std::cmp::Ordering::Less => starts(call.input, call.output),
                std::cmp::Ordering::Equal => call.input == call.output,
                std::cmp::Ordering::Greater => starts(call.output, call.input),
            };
            if !same {
                return refuse("it works in place, and input and output are not the same memory".into());
            }
        }
        Ok(())
    }

    /// The flag of this call's packets. Before flags repeat, after 2^32 - 1 calls, all packets are wiped: no old one is
    /// taken for a new one.
    fn next_flag(&mut self) -> Result<u32> {
        const FLAGS: u64 = u32::MAX as u64;
        let flag = (self.epoch % FLAGS) as u32 + 1;
        if flag == 1 && self.epoch > 0 {
            self.members.barrier()?;
            self.scratch.wipe()?;
            self.members.barrier()?;
        }
        self.epoch += 1;
        Ok(flag)
    }
}

/// Bytes that are divided at a time: a multiple of all types' sizes.
const AT_ONCE: usize = 8 << 10;

/// Divides all elements of this PE's buffer by a number.
pub(crate) fn divide_elements(runtime: &Runtime, buffer: Buffer, ty: DataType, by: u32) -> Result<()> {
    let device = runtime.cpu_device()?;
    let memory = device.symmetric_at::<u8>(buffer.offset, buffer.len)?;
    device.launch(Grid { blocks: 1, threads_per_block: 1 }, |thread| {
        let mut piece = [0; AT_ONCE];
        for start in (0..buffer.len).step_by(AT_ONCE) {
            let elements = &mut piece[..(buffer.len - start).min(AT_ONCE as u64) as usize];
            let memory = memory.part(start, elements.len() as u64)?;
            thread.load_local(elements, memory)?;
            divide(ty, elements, by);
            thread.store_local(memory, elements)?;
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}

/// The part that a plan's buffer is of the other one.
fn part_of(plan: &Plan, buffer: BufferType) -> u64 {
    let (_, inputs, outputs) = plan.parts();
    match buffer {
        BufferType::Input if plan.in_place && inputs < outputs => 1,
        BufferType::Output if plan.in_place && outputs < inputs => 1,
        _ => 0,
    }
}
