//! All-reduces, all-gathers, reduce-scatters, all-to-alls, broadcasts, reductions to one rank, gathers and scatters of PEs
//! that access one another's memory, by kernels without a plan (`cu/straight.cuh`): small messages in packets, all others
//! through slots in the receivers' heaps. Buffers may be any memory of the GPU.

use std::sync::Arc;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Kernel, PinnedBuffer, Shape, Stream};
use symrail::kernels::layout::Alarm;
use symrail::rounds::Report;
use symrail_core::layout::words;

use super::abort::AbortHandle;
use super::encode::{Reached, op_number};
use super::layout::{
    self, ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, AVERAGE, BROADCAST, REDUCE_SCATTER, REDUCE_TO, ROUNDED, STRAIGHT_SLOTS,
    StraightRank,
};
pub use super::layout::{STRAIGHT_BLOCKS as MOST_BLOCKS, STRAIGHT_RANKS as MOST_RANKS};
use super::memory::SymmetricMemory;
use super::normed::{self, RmsNorm};
use super::plan::{Memory, reached};
use super::program::{Which, load};
use crate::buffers::Buffers;
use crate::error::{Error, Result};
use crate::number::{Accumulate, DataType, ReduceOp};
use crate::plan::Collective;

/// The number of a gather in kernels: no plan has it.
pub const GATHER: u64 = layout::GATHER;
/// The number of a scatter in kernels: no plan has it.
pub const SCATTER: u64 = layout::SCATTER;

const RINGS: u64 = 2;
/// Threads of a block.
pub const THREADS: u64 = 512;
/// Bytes of data in a packet, and of a packet.
const PACKET_DATA: u64 = 8;
const PACKET: u64 = 16;
/// Bytes that a rank can send to all others as packets, and of a block's slots for all others. A chunk has at most two
/// slots.
const PACKETS: u64 = 1 << 20;
const SLOTS_OF_CHUNK: u64 = 2;
const SLOT: u64 = 64 << 10;
const LEAST_SLOT: u64 = 4 << 10;

/// The two algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// All data at once, with flags in the data.
    Packets,
    /// Chunk by chunk through slots.
    Pushed,
}

/// A kernel of the two algorithms, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum StraightKernel {
    /// [`Way::Packets`].
    Packets = layout::STRAIGHT_PACKETS,
    /// [`Way::Pushed`], all-reduces.
    AllReduce = layout::STRAIGHT_ALL_REDUCE,
    /// [`Way::Pushed`], ranks that only send or only receive.
    OneWay = layout::STRAIGHT_ONE_WAY,
    /// [`Way::Pushed`], all others.
    BothWays = layout::STRAIGHT_BOTH_WAYS,
}

impl StraightKernel {
    /// All of them, in the order of their numbers.
    pub const ALL: [StraightKernel; 4] =
        [StraightKernel::Packets, StraightKernel::AllReduce, StraightKernel::OneWay, StraightKernel::BothWays];

    /// The kernel's name in its program.
    #[must_use]
    pub fn name(self) -> &'static str {
        if self == StraightKernel::Packets { "straight_packets" } else { "straight_pushed" }
    }
}

/// The kernels for a type of elements, by their numbers.
pub(super) struct Kernels([Kernel; 4]);

impl Kernels {
    /// Their programs.
    pub fn programs(ty: DataType) -> [Which; 4] {
        StraightKernel::ALL.map(|kernel| Which::Straight(kernel, ty))
    }

    /// Loads them.
    ///
    /// # Errors
    /// The compiler's, or the driver's.
    pub fn load(device: &GpuDevice, nvrtc: &Nvrtc, ty: DataType) -> Result<Kernels> {
        let load = |kernel: StraightKernel| -> Result<Kernel> {
            Ok(load(device, nvrtc, Which::Straight(kernel, ty))?.kernel(kernel.name())?)
        };
        let [packets, all_reduce, one_way, both_ways] = StraightKernel::ALL.map(load);
        Ok(Kernels([packets?, all_reduce?, one_way?, both_ways?]))
    }

    fn of(&self, kernel: StraightKernel) -> &Kernel {
        &self.0[kernel as usize]
    }
}

/// The largest part that packets can carry among `n` ranks.
#[must_use]
pub fn most_in_packets(n: u64) -> u64 {
    PACKETS / n.saturating_sub(1).max(1) / PACKET * PACKET
}

/// The numbers of parts of input and output; `None`: there is no such algorithm.
#[must_use]
pub fn parts(collective: &Collective, n: u64) -> Option<(u64, u64)> {
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => Some((1, 1)),
        Collective::AllGather => Some((1, n)),
        Collective::ReduceScatter => Some((n, 1)),
        Collective::AllToAll => Some((n, n)),
        _ => None,
    }
}

/// The addresses of the memory: all but `words` and `report` are symmetric.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// Four words of pinned memory.
    pub report: u64,
    /// The communicator's word for giving up.
    pub stop: u64,
    /// Packets: see [`Sizes`].
    pub packets: u64,
    /// Packets of rows that are normalised: see [`Sizes`].
    pub inbox: u64,
    /// Slots.
    pub rings: u64,
    /// Counters of filled slots.
    pub filled: u64,
    /// This device's counters.
    pub words: u64,
    /// All ranks, in their order.
    pub ranks: Vec<Reached>,
}

/// Sizes of the memory among so many ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The region for another rank's packets.
    pub region: u64,
    /// The region for another rank's packets of rows that are normalised.
    pub inbox: u64,
    /// A slot.
    pub slot: u64,
    n: u64,
}

impl Sizes {
    /// The sizes that communicators use.
    #[must_use]
    pub fn of(n: u64) -> Sizes {
        let others = n.saturating_sub(1).max(1);
        let slot = (SLOT / others / PACKET * PACKET).max(LEAST_SLOT);
        Sizes { inbox: normed::most_in_packets(n), ..Sizes::with(n, most_in_packets(n), slot) }
    }

    /// The sizes with these bytes of packets' data, and of a slot.
    #[must_use]
    pub fn with(n: u64, data: u64, slot: u64) -> Sizes {
        Sizes { region: data / PACKET_DATA * PACKET, inbox: data, slot, n }
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        self.n
    }

    /// Bytes of all packets.
    #[must_use]
    pub fn packets(&self) -> u64 {
        2 * (self.n - 1) * self.region
    }

    /// Bytes of all packets of rows that are normalised.
    #[must_use]
    pub fn inboxes(&self) -> u64 {
        2 * (self.n - 1) * self.inbox
    }

    /// Bytes of all slots.
    #[must_use]
    pub fn rings(&self) -> u64 {
        RINGS * MOST_BLOCKS * STRAIGHT_SLOTS * (self.n - 1) * self.slot
    }

    /// Bytes of the counters of filled slots.
    #[must_use]
    pub fn filled(&self) -> u64 {
        8 * RINGS * MOST_BLOCKS * MOST_RANKS as u64
    }

    /// Bytes of this device's counters.
    #[must_use]
    pub fn words(&self) -> u64 {
        8 * (2 + MOST_BLOCKS)
    }
}

/// A call.
#[derive(Debug, Clone, Copy)]
pub struct StraightCall {
    /// See [`StraightCall::number`].
    pub collective: u64,
    /// The root of a broadcast or of a reduction to one rank.
    pub root: u64,
    /// The address of the input.
    pub input: u64,
    /// See `input`.
    pub output: u64,
    /// Bytes of a part.
    pub part: u64,
    /// The reduction.
    pub op: ReduceOp,
    /// Whether the result is divided by the number of ranks.
    pub average: bool,
    /// The type in which narrow elements are reduced.
    pub accumulate: Accumulate,
    /// The most blocks that work on it.
    pub most_blocks: u64,
    /// The bytes that a block pushes at a time, if the table sets them.
    pub chunk: Option<u64>,
}

impl StraightCall {
    /// The number of a collective in kernels.
    #[must_use]
    pub fn number(collective: &Collective) -> u64 {
        match collective {
            Collective::AllReduce => ALL_REDUCE,
            Collective::AllGather => ALL_GATHER,
            Collective::ReduceScatter => REDUCE_SCATTER,
            Collective::Broadcast => BROADCAST,
            Collective::Reduce => REDUCE_TO,
            _ => ALL_TO_ALL,
        }
    }

    /// The kernel that rank `me` launches.
    #[must_use]
    pub fn kernel(&self, way: Way, me: u64) -> StraightKernel {
        let is_rooted = self.collective >= BROADCAST;
        match way {
            Way::Packets => StraightKernel::Packets,
            Way::Pushed if self.collective == ALL_REDUCE => StraightKernel::AllReduce,
            // The root of a gather has its own part to copy, besides those that it receives.
            Way::Pushed if is_rooted && !(self.collective == GATHER && me == self.root) => StraightKernel::OneWay,
            Way::Pushed => StraightKernel::BothWays,
        }
    }

    /// Blocks, threads of a block, and the bytes of a chunk.
    #[must_use]
    pub fn shape(&self, way: Way, sizes: &Sizes) -> (u64, u64, u64) {
        let most = self.most_blocks.clamp(1, MOST_BLOCKS);
        match way {
            Way::Packets => {
                let packets = self.part.div_ceil(PACKET_DATA);
                let threads = packets.next_multiple_of(32).clamp(32, THREADS);
                (packets.div_ceil(threads).clamp(1, most), threads, sizes.slot)
            }
            Way::Pushed => {
                let piece =
                    if self.collective == ALL_REDUCE { self.part.div_ceil(16 * sizes.n) * 16 } else { self.part };
                // Each thread has at least one vector of 16 bytes.
                let blocks = piece.div_ceil(16 * THREADS).clamp(1, most);
                let share = piece.div_ceil(16 * blocks) * 16;
                let most = SLOTS_OF_CHUNK * sizes.slot;
                let chunk = self.chunk.unwrap_or(share).clamp(16, most).next_multiple_of(16);
                (blocks, THREADS, chunk.min(share.max(16)))
            }
        }
    }

    /// The kernel's argument, `symrail_straight`.
    #[must_use]
    pub fn argument(&self, at: &Addresses, sizes: &Sizes, me: u64, blocks: u64, chunk: u64) -> Vec<u64> {
        words(&[self.layout(at, sizes, me, blocks, chunk)])
    }

    pub(super) fn layout(&self, at: &Addresses, sizes: &Sizes, me: u64, blocks: u64, chunk: u64) -> layout::Straight {
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let flags = flag(self.accumulate == Accumulate::Own, ROUNDED) | flag(self.average, AVERAGE);
        let mut ranks = [StraightRank { distance: 0, pe: 0 }; MOST_RANKS];
        for (rank, to) in ranks.iter_mut().zip(&at.ranks) {
            *rank = StraightRank { distance: to.distance.unwrap_or(0), pe: to.pe.into() };
        }
        layout::Straight {
            alarm: Alarm { report: at.report, stop: at.stop },
            me,
            n: sizes.n,
            blocks,
            collective: self.collective,
            root: self.root,
            how: u64::from(op_number(self.op)) | flags,
            input: self.input,
            output: self.output,
            part: self.part,
            packets: at.packets,
            region: sizes.region,
            rings: at.rings,
            slot_bytes: sizes.slot,
            filled: at.filled,
            chunk,
            words: at.words,
            ranks,
        }
    }
}

/// A communicator's memory for both algorithms.
pub(super) struct Straight {
    me: u64,
    sizes: Sizes,
    at: Addresses,
    report: Arc<PinnedBuffer>,
    /// Whether kernels may begin before earlier ones have ended.
    early: bool,
    /// Kept as long as kernels may use it.
    _words: DeviceBuffer,
    device: GpuDevice,
}

impl Straight {
    /// Allocates the memory that both algorithms need. All ranks do so at the same point in the order of their
    /// allocations.
    ///
    /// # Errors
    /// The runtime's, or the driver's.
    pub fn new(device: &GpuDevice, memory: &mut SymmetricMemory, abort: &AbortHandle) -> Result<Self> {
        let members = memory.members().clone();
        let sizes = Sizes::of(u64::from(members.n()));
        let filled = memory.take(sizes.filled() as usize)?;
        let report = abort.report(device.gpu())?;
        let words = device.gpu().alloc(sizes.words() as usize)?;
        words.write(0, &vec![0; sizes.words() as usize])?;
        let at = Addresses {
            report: report.device().get(),
            stop: memory.stop(),
            filled,
            words: words.at().get(),
            ranks: reached(device, &members, filled),
            ..Addresses::default()
        };
        let early = device.runtime().settings().early_launch && device.gpu().compute_capability().0 >= 9;
        Ok(Straight { device: device.clone(), me: u64::from(members.me()), sizes, at, report, early, _words: words })
    }

    /// Whether an algorithm can be used.
    pub fn has(&self, way: Way) -> bool {
        0 != match way {
            Way::Packets => self.at.packets,
            Way::Pushed => self.at.rings,
        }
    }

    /// Allocates the memory for an algorithm, unless it exists. All ranks do so at the same point in the order of their
    /// allocations.
    ///
    /// # Errors
    /// The runtime's: the heap is exhausted.
    pub fn prepare(&mut self, way: Way, memory: &mut SymmetricMemory) -> Result<()> {
        let (at, bytes) = match way {
            Way::Packets => (&mut self.at.packets, self.sizes.packets()),
            Way::Pushed => (&mut self.at.rings, self.sizes.rings()),
        };
        if *at == 0 {
            *at = memory.take(bytes as usize)?;
        }
        Ok(())
    }

    /// As [`Straight::has`], for norms, whose packets are others.
    pub fn has_for_norms(&self, way: Way) -> bool {
        if way == Way::Packets { self.at.inbox != 0 } else { self.has(way) }
    }

    /// As [`Straight::prepare`], for norms.
    ///
    /// # Errors
    /// As there; or the driver's.
    pub fn prepare_for_norms(&mut self, way: Way, memory: &mut SymmetricMemory) -> Result<()> {
        if way != Way::Packets {
            return self.prepare(way, memory);
        }
        if self.at.inbox == 0 {
            let (bytes, members) = (self.sizes.inboxes() as usize, memory.members().clone());
            let inbox = memory.take(bytes)?;
            // No word has arrived (`missing` of cu/normed.cuh).
            // SAFETY: memory of this PE, to which no other PE writes before the barrier.
            unsafe { self.device.gpu().write(DevicePtr::new(inbox), &vec![0xff; bytes]) }?;
            members.barrier()?;
            self.at.inbox = inbox;
        }
        Ok(())
    }

    /// Refuses buffers of a collective that have other sizes than its parts of `part` bytes.
    ///
    /// # Errors
    /// They have.
    pub fn check_sizes(&self, collective: &Collective, buffers: &Buffers<Memory>) -> Result<()> {
        let Some((inputs, outputs)) = parts(collective, self.sizes.n) else {
            return Err(Error::Call(format!("{collective} needs a plan")));
        };
        for (what, memory, parts) in [("input", buffers.input, inputs), ("output", buffers.output, outputs)] {
            if let Some(why) = memory.other_than(parts, buffers.part) {
                return Err(Error::Call(format!("the {what} {why}")));
            }
        }
        Ok(())
    }

    /// Launches a call.
    ///
    /// # Safety
    /// The memory has the call's sizes, and stays valid and unchanged by others until the stream has passed the call.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn launch(&self, stream: &Stream, kernels: &Kernels, way: Way, call: &StraightCall) -> Result<()> {
        let kernel = kernels.of(call.kernel(way, self.me));
        let (blocks, threads, chunk) = call.shape(way, &self.sizes);
        let argument = call.argument(&self.at, &self.sizes, self.me, blocks, chunk);
        let shape = Shape { blocks: blocks as u32, threads: threads as u32 };
        // SAFETY: the kernel's argument; the memory is freed after the streams, the caller vouches for the rest.
        Ok(unsafe {
            if self.early {
                stream.launch_early(kernel, shape, &argument)
            } else {
                stream.launch_struct(kernel, shape, &argument)
            }
        }?)
    }

    /// Launches an all-reduce with an RMS norm, whose sizes were checked.
    ///
    /// # Safety
    /// As for [`Straight::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn launch_normed(&self, stream: &Stream, kernel: &Kernel, way: Way, call: &RmsNorm) -> Result<()> {
        let cut = call.cut(way, &self.sizes, MOST_BLOCKS);
        let argument = call.argument(&self.at, &self.sizes, self.me, &cut);
        // SAFETY: the kernel's argument, and the caller's promise.
        Ok(unsafe { stream.launch_struct(kernel, cut.shape(), &argument) }?)
    }

    /// Fails if a call has failed so far.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self) -> Result<()> {
        let Some(report) = Report::of(&self.report) else { return Ok(()) };
        let runtime = self.device.runtime();
        let waiting = "packets or flags, without a plan".into();
        Err(report.error(runtime.my_pe(), "a collective", waiting, None, runtime.settings().timeout_s).into())
    }
}
