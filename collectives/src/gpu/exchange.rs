//! Sends and receives on streams (`cu/exchange.cuh`): any number of them in one call, between any PEs.

use std::sync::Arc;

use symrail::Pe;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Kernel, Module, PinnedBuffer, Shape, Stream};
use symrail::kernels::layout::{Alarm, Semaphore};
use symrail::rounds::Report;
use symrail_core::layout::{bytes, words};

use super::abort::AbortHandle;
use super::encode::Reached;
use super::layout::{
    self, EXCHANGE_BLOCKS, EXCHANGE_ROWS, EXCHANGE_TRANSFERS, ExchangeCall, ExchangeFew, ExchangeHead, ExchangeRow,
    ExchangeSome, FEW_ROWS, FEW_TRANSFERS, IN_PACKETS, LANE_SLOTS as SLOTS, ROW_OWN, ROW_RECEIVES, Rank, SIZE_SHIFT,
    SIZES, SLOT_HEAD, SOME_ROWS, SOME_TRANSFERS,
};
use super::memory::SymmetricMemory;
use super::plan::{Memory, reached};
use crate::error::{Error, Result};
use crate::transfer::{Row, Transfer, arrange};

/// Threads of a block that moves bytes, and the most of one that moves packets.
const THREADS: u64 = 256;
const PACKET_THREADS: u64 = 512;
/// Lanes to all other PEs together, of which each has at least one; and the most to one.
const ALL_LANES: u64 = 96;
const MOST_LANES: u64 = 64;
/// The most lanes of a transfer in packets.
const PACKET_LANES: u64 = 32;
/// Bytes of all slots together, if each has [`SLOT`]. Two GPUs reach the bandwidth of NVLink with 64 lanes and slots of
/// 128 KiB: docs/benchmarks/2026-11-28-collectives.md.
const ALL_SLOTS: u64 = 48 << 20;
const SLOT: std::ops::RangeInclusive<u64> = 1 << 10..=128 << 10;
/// The number of chunks of a lane's share, if that gives chunks of at least this many bytes: each chunk needs a signal,
/// which takes as long as some KiB of data.
const CHUNKS: u64 = 4;
const LEAST_CHUNK: u64 = 16 << 10;
/// Bytes of a PE's transfer to itself for each block that copies it, and the most of these blocks.
const OWN_SHARE: u64 = 64 << 10;
const MOST_OWN_BLOCKS: u64 = 32;

/// The PEs that one of `n` PEs has lanes to.
fn others_of(n: u64) -> u64 {
    n.saturating_sub(1).max(1)
}

/// The place of `rank` among the PEs that `of` has lanes to.
fn place_at(of: u64, rank: u64) -> u64 {
    if rank > of { rank - 1 } else { rank }
}

/// Lanes in each direction between two of `n` PEs.
fn lanes_of(n: u64) -> u64 {
    (ALL_LANES / others_of(n)).clamp(1, MOST_LANES)
}

/// Bytes of a slot among `n` PEs: a power of two.
fn slot_of(n: u64) -> u64 {
    let bytes = (ALL_SLOTS / (others_of(n) * lanes_of(n) * SLOTS)).clamp(*SLOT.start(), *SLOT.end());
    1 << bytes.ilog2()
}

/// Bytes that a slot's packets carry.
fn carried_of(n: u64) -> u64 {
    slot_of(n) / 32
}

/// Bytes of a slot's packets, one of which has the transfer's size.
fn packets_of(n: u64) -> u64 {
    2 * carried_of(n) + 16
}

/// How a transfer among `n` PEs is divided, equally at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    lanes: u64,
    /// The bytes of a slot that it uses.
    chunk: u64,
    packets: bool,
}

impl Division {
    /// `near`: the sender's stores reach the receiver. Otherwise each chunk is a put of the proxy, so they are large.
    fn of(n: u64, near: bool, bytes: u64) -> Division {
        let (most, carried, slot) = (lanes_of(n), carried_of(n), slot_of(n));
        if bytes <= if near { most.min(PACKET_LANES) * carried } else { carried } {
            return Division { lanes: bytes.div_ceil(carried).max(1), chunk: carried, packets: true };
        }
        let share = bytes.div_ceil(most).next_multiple_of(16);
        let chunk = (share / CHUNKS).max(LEAST_CHUNK).next_multiple_of(16).min(share).min(slot);
        let chunk = if near { chunk } else { slot };
        Division { lanes: bytes.div_ceil(chunk).min(most), chunk, packets: false }
    }

    /// The word of [`layout::Transfer`].
    fn word(self) -> u64 {
        self.chunk | self.lanes << 32 | if self.packets { IN_PACKETS } else { 0 }
    }
}

/// The distance of slots.
fn stride_of(n: u64) -> u64 {
    SLOT_HEAD + slot_of(n) + packets_of(n)
}

/// The addresses of the memory of sends and receives, for this PE's device.
#[derive(Debug, Clone)]
pub struct Places {
    /// This PE's rank.
    pub me: u32,
    /// The ranks and counters of kernels, of [`Places::image_bytes`].
    pub image: u64,
    /// Symmetric words, of [`Places::word_bytes`].
    pub words: u64,
    /// The communicator's word for giving up.
    pub stop: u64,
    /// Symmetric slots in which bytes arrive, of [`Places::slot_bytes`].
    pub inbox: u64,
    /// As many slots, from which the proxy puts; 0 if the proxy carries nothing.
    pub outgoing: u64,
    /// Four words of pinned memory.
    pub report: u64,
    /// All ranks, in their order.
    pub pes: Vec<Reached>,
    /// Whether each rank's stores reach this PE, which may be so in one direction only.
    pub reached_by: Vec<bool>,
}

impl Places {
    /// How a transfer is divided: both ends go by whether the sender reaches the receiver.
    fn division(&self, row: Row, memory: &Memory) -> Division {
        let peer = row.peer as usize;
        let near = match row.receives {
            true => self.reached_by.get(peer).is_some_and(|&reached| reached),
            false => self.pes.get(peer).is_some_and(|to| to.distance.is_some()),
        };
        Division::of(self.pes.len() as u64, near, memory.len)
    }

    /// Bytes of the image among `n` PEs.
    #[must_use]
    pub fn image_bytes(n: u64) -> u64 {
        n * size_of::<Rank>() as u64 + 2 * others_of(n) * lanes_of(n) * 8
    }

    /// Bytes of the symmetric words among `n` PEs: for each lane one for full slots and one for empty ones.
    #[must_use]
    pub fn word_bytes(n: u64) -> u64 {
        8 * 2 * others_of(n) * lanes_of(n)
    }

    /// Bytes of the slots among `n` PEs.
    #[must_use]
    pub fn slot_bytes(n: u64) -> u64 {
        others_of(n) * lanes_of(n) * SLOTS * stride_of(n)
    }

    /// Lanes to all other PEs.
    fn lanes(&self) -> usize {
        let n = self.pes.len() as u64;
        (others_of(n) * lanes_of(n)) as usize
    }

    /// The initial values of the symmetric words: all slots are empty.
    #[must_use]
    pub fn first_words(&self) -> Vec<u64> {
        let all = self.lanes();
        [vec![0; all], vec![SLOTS; all]].concat()
    }

    /// The image: the ranks, and the awaited count of each lane.
    #[must_use]
    pub fn image(&self) -> Vec<u64> {
        let rank = |to: &Reached| {
            let distance = to.distance.filter(|_| to.atomics);
            Rank { pe: to.pe.into(), distance: distance.unwrap_or(0), mapped: distance.is_some().into() }
        };
        let ranks: Vec<Rank> = self.pes.iter().map(rank).collect();
        [words(&ranks), vec![0; 2 * self.lanes()]].concat()
    }

    /// What all rows of a launch share.
    fn head(&self, rows: usize) -> ExchangeHead {
        let n = self.pes.len() as u64;
        ExchangeHead {
            alarm: Alarm { report: self.report, stop: self.stop },
            ranks: self.image,
            n_ranks: n,
            slot_bytes: slot_of(n),
            packet_bytes: packets_of(n),
            rows: rows as u64,
        }
    }

    /// A row, by the words and slots of its first lane.
    fn row(&self, row: Row, work: u64) -> Result<ExchangeRow> {
        let n = self.pes.len() as u64;
        let (rank, me, lanes) = (u64::from(row.peer), u64::from(self.me), lanes_of(n));
        let to = self.pes.get(row.peer as usize).filter(|_| rank != me);
        let to = to.ok_or_else(|| Error::Call(format!("a transfer of PE {me} with PE {rank} of {n}")))?;
        let expected = self.image + n * size_of::<Rank>() as u64;
        let full = |place: u64| self.words + 8 * place * lanes;
        let empty = |place: u64| full(place) + 8 * self.lanes() as u64;
        let slots = |base: u64, place: u64| base + place * lanes * SLOTS * stride_of(n);
        // The peer's lanes here, and this PE's there.
        let (theirs, mine) = (place_at(me, rank), place_at(rank, me));
        let (arrived, there) = match row.receives {
            true => (full(theirs), empty(mine)),
            false => (empty(theirs), full(mine)),
        };
        let signals = to.distance.filter(|_| to.atomics).map_or(0, |distance| there.wrapping_add(distance));
        let there_too = slots(self.inbox, mine);
        let (at, mapped, bit) = match row.receives {
            true => (slots(self.inbox, theirs), 0, ROW_RECEIVES),
            false => (there_too, to.distance.map_or(0, |distance| there_too.wrapping_add(distance)), 0),
        };
        let waited = expected + 8 * (2 * theirs + u64::from(row.receives)) * lanes;
        let semaphore = Semaphore { arrived, expected: waited, there, mapped: signals, pe: to.pe.into() };
        Ok(ExchangeRow { semaphore, slots: at, mapped, outgoing: slots(self.outgoing, theirs), work: work | bit })
    }
}

/// The memory of sends and receives between this PE and all other members.
pub(super) struct Exchange {
    places: Places,
    report: Arc<PinnedBuffer>,
    device: GpuDevice,
    /// Kept as long as kernels may use it.
    _image: DeviceBuffer,
}

/// The kernels, by the sizes of their arguments.
pub(super) struct Kernels([Kernel; 3]);

impl Kernels {
    /// Takes them from their module.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(module: &Arc<Module>) -> Result<Kernels> {
        let [any, some, few] = ["exchange", "exchange_some", "exchange_few"].map(|name| module.kernel(name));
        Ok(Kernels([any?, some?, few?]))
    }

    fn of(&self, size: Size) -> &Kernel {
        &self.0[size as usize]
    }
}

impl Exchange {
    /// Allocates the memory; `abort` ends its waits. Collective: all PEs do so at the same point in the order of their
    /// allocations.
    ///
    /// # Errors
    /// There is no memory; or a PE does not answer.
    pub fn new(device: &GpuDevice, memory: &mut SymmetricMemory, abort: &AbortHandle) -> Result<Self> {
        let members = memory.members().clone();
        let n = u64::from(members.n());
        let words = memory.take(Places::word_bytes(n) as usize)?;
        let slots = Places::slot_bytes(n) as usize;
        let inbox = memory.take(slots)?;
        let (me, pes) = (members.me(), reached(device, &members, words));
        // A bit for each rank that this one reaches.
        let bit = |(rank, to): (usize, &Reached)| u64::from(to.distance.is_some()) << rank;
        let bits = |chunk: &[Reached]| chunk.iter().enumerate().map(bit).sum();
        let mine: Vec<u64> = pes.chunks(64).map(bits).collect();
        let all = members.gather(&mine)?;
        let reaches = |from: usize, to: usize| all[from * mine.len() + to / 64] >> (to % 64) & 1 != 0;
        let ranks = 0..pes.len();
        let reached_by = ranks.clone().map(|from| reaches(from, me as usize)).collect();
        let wired = ranks.clone().any(|from| ranks.clone().any(|to| !reaches(from, to)));
        let outgoing = if wired { memory.take(slots)? } else { 0 };
        let report = abort.report(device.gpu())?;
        let image = device.gpu().alloc(Places::image_bytes(n) as usize)?;
        let report_at = report.device().get();
        let (image_at, stop) = (image.at().get(), memory.stop());
        let places = Places { me, image: image_at, words, stop, inbox, outgoing, report: report_at, pes, reached_by };
        image.write(0, &bytes(&places.image()))?;
        // Other PEs may have sent already: their signals are in the words of full slots, which are initially 0.
        let first = places.first_words();
        let before = first.iter().take_while(|&&word| word == 0).count();
        let of_empty = DevicePtr::new(words + 8 * before as u64);
        // SAFETY: words of this PE, which no other PE writes before this PE has sent.
        unsafe { device.gpu().write(of_empty, &bytes(&first[before..])) }?;
        Ok(Exchange { places, device: device.clone(), report, _image: image })
    }

    /// Puts transfers on a stream.
    ///
    /// # Errors
    /// An error of the driver.
    ///
    /// # Safety
    /// The memory stays valid and unchanged by others until the stream has passed the transfers.
    pub unsafe fn run(&self, stream: &Stream, kernels: &Kernels, launches: &Launches) -> Result<()> {
        for &(from, to) in &launches.own {
            // SAFETY: the caller's promise.
            unsafe { stream.copy(DevicePtr::new(to.at), DevicePtr::new(from.at), from.len) }?;
        }
        for launch in &launches.calls {
            // SAFETY: the kernel's argument; the memory is the caller's promise.
            unsafe { stream.launch_struct(kernels.of(launch.size), launch.shape, &launch.argument) }?;
        }
        Ok(())
    }

    /// The launches of some transfers.
    ///
    /// # Errors
    /// As for [`launches`].
    pub fn launches(&self, transfers: &[Transfer<Memory>]) -> Result<Launches> {
        launches(&self.places, transfers)
    }

    /// Fails if a transfer has failed so far.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self) -> Result<()> {
        let Some(report) = Report::of(&self.report) else { return Ok(()) };
        let runtime = self.device.runtime();
        Err(error_of(&report, runtime.my_pe(), runtime.settings().timeout_s))
    }
}

/// The error of a report of sends and receives: its place is the transfer's size times two, plus one for a receive.
fn error_of(report: &Report, me: Pe, seconds: u64) -> Error {
    let (bytes, receives) = (report.place >> 1, report.place & 1 != 0);
    // A receiver gives up for that: see `cu/exchange.cuh`.
    if report.reason & ((1 << SIZE_SHIFT) - 1) == SIZES {
        let sent = report.reason >> SIZE_SHIFT;
        return Error::Sizes { from: report.who as Pe, to: me, sent, received: bytes };
    }
    let waiting = format!("a {} of {bytes} bytes", if receives { "receive" } else { "send" });
    report.error(me, "sends and receives", waiting, None, seconds).into()
}

/// The work of a call.
#[derive(Debug)]
pub struct Launches {
    /// Transfers of the PE to itself, from and to, that no launch performs.
    pub own: Vec<(Memory, Memory)>,
    /// The launches.
    pub calls: Vec<Launch>,
}

/// A launch.
#[derive(Debug)]
pub struct Launch {
    /// The kernel's argument.
    pub argument: Vec<u64>,
    /// Its blocks and threads.
    pub shape: Shape,
    /// The size of the argument.
    pub size: Size,
}

/// The arguments' sizes, by the kernels' numbers: a larger argument takes longer to encode and to launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Size {
    /// 4,016 bytes.
    Any = layout::EXCHANGE_ANY,
    /// 1,520 bytes: an all-to-all among 8.
    Some = layout::EXCHANGE_SOME,
    /// 488 bytes: two sends, two receives, and one transfer to this PE itself.
    Few = layout::EXCHANGE_FEW,
}

impl Size {
    fn of(rows: usize, transfers: usize) -> Size {
        let fits = |most: (usize, usize)| rows <= most.0 && transfers <= most.1;
        if fits((FEW_ROWS, FEW_TRANSFERS)) {
            Size::Few
        } else if fits((SOME_ROWS, SOME_TRANSFERS)) {
            Size::Some
        } else {
            Size::Any
        }
    }
}

/// The launches for some transfers.
///
/// # Errors
/// There is no such PE, or sends to itself and receives from itself do not match.
pub fn launches(places: &Places, transfers: &[Transfer<Memory>]) -> Result<Launches> {
    let arranged = arrange(places.me, places.pes.len() as u32, transfers, |memory| memory.len)?;
    let (mut calls, mut own) = (Vec::new(), arranged.own);
    let (mut left, mut launch) = (&arranged.others[..], Rows::default());
    for &turn in &arranged.turns {
        let transfers;
        (transfers, left) = left.split_at(turn);
        if !launch.has_room(places, transfers) {
            calls.push(encode(places, std::mem::take(&mut launch), &mut own)?);
        }
        launch.add(places, transfers);
    }
    if launch.transfers > 0 {
        calls.push(encode(places, launch, &mut own)?);
    }
    Ok(Launches { own, calls })
}

/// The transfers of a launch with one PE in one direction, and the lanes that they need.
struct OfRow {
    row: Row,
    lanes: u64,
    transfers: Vec<(Memory, Division)>,
}

/// The rows of a launch. It takes whole turns, since the transfers of a turn wait for one another.
#[derive(Default)]
struct Rows {
    all: Vec<OfRow>,
    transfers: usize,
    lanes: u64,
}

impl Rows {
    fn find(&self, row: Row) -> Option<usize> {
        self.all.iter().position(|of| of.row == row)
    }

    /// Whether another turn fits. A turn is two rows of at most [`MOST_LANES`] lanes, so the first one does.
    fn has_room(&self, places: &Places, turn: &[(Row, Memory)]) -> bool {
        let (mut rows, mut lanes) = (self.all.len(), self.lanes);
        for (row, memory) in turn {
            let known = self.find(*row).map(|at| self.all[at].lanes);
            rows += usize::from(known.is_none());
            lanes += places.division(*row, memory).lanes.saturating_sub(known.unwrap_or(0));
        }
        let transfers = self.transfers + turn.len();
        transfers <= EXCHANGE_TRANSFERS && lanes <= EXCHANGE_BLOCKS as u64 && rows <= EXCHANGE_ROWS
    }

    fn add(&mut self, places: &Places, turn: &[(Row, Memory)]) {
        self.transfers += turn.len();
        for &(row, memory) in turn {
            let division = places.division(row, &memory);
            let at = self.find(row).unwrap_or_else(|| {
                self.all.push(OfRow { row, lanes: 0, transfers: Vec::new() });
                self.all.len() - 1
            });
            let of_row = &mut self.all[at];
            let more = division.lanes.saturating_sub(of_row.lanes);
            of_row.lanes += more;
            of_row.transfers.push((memory, division));
            self.lanes += more;
        }
    }
}

/// A launch of rows. Takes transfers of the PE to itself from `own` as far as there are blocks: a copy before the kernel
/// would delay it.
fn encode(places: &Places, of_rows: Rows, own: &mut Vec<(Memory, Memory)>) -> Result<Launch> {
    let (mut rows, mut list, mut blocks) = (Vec::new(), Vec::with_capacity(of_rows.transfers), 0);
    let mut threads = 0;
    let work = |first_block: u64, blocks: u64, first: usize, count: usize| {
        first_block | blocks << 16 | (first as u64) << 32 | (count as u64) << 48
    };
    let transfer = |(memory, division): (Memory, Division)| layout::Transfer {
        at: memory.at,
        bytes: memory.len,
        division: division.word(),
    };
    for OfRow { row, lanes, transfers } in of_rows.all {
        rows.push(places.row(row, work(blocks, lanes, list.len(), transfers.len()))?);
        for (memory, division) in transfers {
            // Everything that is not packets uses all threads.
            threads = threads.max(match division.packets {
                true => division.chunk.min(memory.len).div_ceil(8),
                false => THREADS,
            });
            list.push(transfer((memory, division)));
        }
        blocks += lanes;
    }
    while let Some(&(from, to)) = own.last() {
        let free = EXCHANGE_BLOCKS as u64 - blocks;
        if free == 0 || list.len() + 2 > EXCHANGE_TRANSFERS || rows.len() == EXCHANGE_ROWS {
            break;
        }
        let shares = from.len.div_ceil(OWN_SHARE).clamp(1, MOST_OWN_BLOCKS).min(free);
        rows.push(ExchangeRow { work: ROW_OWN | work(blocks, shares, list.len(), 2), ..NO_ROW });
        let row = Row { peer: places.me, receives: false };
        list.extend([from, to].map(|memory| transfer((memory, places.division(row, &memory)))));
        threads = threads.max(from.len.div_ceil(16).min(THREADS));
        blocks += shares;
        own.pop();
    }
    let (head, size) = (places.head(rows.len()), Size::of(rows.len(), list.len()));
    let none = layout::Transfer { at: 0, bytes: 0, division: 0 };
    macro_rules! argument {
        ($call:ident, $rows:ident, $transfers:ident) => {{
            let mut call = $call { head, rows: [NO_ROW; $rows], transfers: [none; $transfers] };
            call.rows[..rows.len()].copy_from_slice(&rows);
            call.transfers[..list.len()].copy_from_slice(&list);
            words(&[call])
        }};
    }
    let argument = match size {
        Size::Any => argument!(ExchangeCall, EXCHANGE_ROWS, EXCHANGE_TRANSFERS),
        Size::Some => argument!(ExchangeSome, SOME_ROWS, SOME_TRANSFERS),
        Size::Few => argument!(ExchangeFew, FEW_ROWS, FEW_TRANSFERS),
    };
    let threads = threads.next_multiple_of(32).clamp(32, PACKET_THREADS);
    Ok(Launch { argument, shape: Shape { blocks: blocks as u32, threads: threads as u32 }, size })
}

const NO_ROW: ExchangeRow = ExchangeRow {
    semaphore: Semaphore { arrived: 0, expected: 0, there: 0, mapped: 0, pe: 0 },
    slots: 0,
    mapped: 0,
    outgoing: 0,
    work: 0,
};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn slots_take_little_of_the_heap_among_many() {
        for n in [1, 2, 3, 8, 33, 72, 512, 2048] {
            let most = ALL_SLOTS + others_of(n) * lanes_of(n) * SLOTS * (SLOT_HEAD + packets_of(n));
            assert!(Places::slot_bytes(n) <= most && Places::slot_bytes(n) >= ALL_SLOTS / 8, "{n}");
            assert!(slot_of(n).is_power_of_two() && SLOT.contains(&slot_of(n)));
        }
        assert_eq!((slot_of(2), slot_of(32), slot_of(512)), (128 << 10, 128 << 10, 16 << 10));
    }

    #[test]
    fn errors_say_sizes() {
        let said = |reason, bytes: u64, receives: u64| {
            error_of(&Report { reason, who: 3, place: bytes << 1 | receives }, 5, 7).to_string()
        };
        let late = said(1, 4096, 1);
        assert!(late.contains("a receive of 4096 bytes") && late.contains("PE 3 is late"), "{late}");
        assert!(said(1, 70_000, 0).contains("a send of 70000 bytes"));
        let sizes = said(4 | 1000 << 8, 600, 1);
        assert!(sizes.contains("PE 3 sends 1000 bytes to PE 5, which receives them as 600"), "{sizes}");
        assert!(said(2, 1, 0).contains("PE 3 has given up"));
    }

    #[test]
    fn both_ends_divide_a_transfer_into_whole_lanes_and_chunks() {
        for n in [2, 3, 8, 33, 512] {
            for bytes in [0, 1, 4096, 4097, 131_072, 131_073, 1 << 20, (1 << 20) + 1, 200 << 20] {
                let division = Division::of(n, true, bytes);
                assert!(
                    (1..=lanes_of(n)).contains(&division.lanes) && division.chunk.is_multiple_of(16),
                    "{n} {bytes} {division:?}"
                );
                assert!(
                    division.chunk <= slot_of(n) && (division.lanes - 1) * division.chunk <= bytes,
                    "{n} {bytes} {division:?}"
                );
                assert!(
                    !division.packets
                        || division.lanes * division.chunk >= bytes && 2 * division.chunk + 16 == packets_of(n)
                );
            }
        }
        let division = |bytes| Division::of(2, true, bytes);
        assert_eq!(division(8), Division { lanes: 1, chunk: 4096, packets: true });
        assert_eq!(division(128 << 10), Division { lanes: 32, chunk: 4096, packets: true });
        assert_eq!(division(1 << 20), Division { lanes: 64, chunk: 16 << 10, packets: false });
        // Two puts, and not 32.
        assert_eq!(Division::of(2, false, 256 << 10), Division { lanes: 2, chunk: 128 << 10, packets: false });
    }

    /// Of 32 rows one launch holds 31: the last one is not cut off from the other direction of its round.
    #[test]
    fn a_launch_has_both_directions_of_a_round() {
        let n = 17;
        let pes = (0..n).map(|pe| Reached { pe, distance: None, atomics: false }).collect();
        let reached_by = vec![false; n as usize];
        let places = Places { me: 3, image: 0, words: 0, stop: 0, inbox: 0, outgoing: 0, report: 0, pes, reached_by };
        let memory = Memory { at: 0, len: 1 << 20 };
        let with = |peer| [Transfer::Send { to: peer, memory }, Transfer::Receive { from: peer, memory }];
        let transfers: Vec<_> = (0..n).filter(|&peer| peer != 3).flat_map(with).collect();
        let rows = |launch: &Launch| launch.argument[size_of::<ExchangeHead>() / 8 - 1];
        let calls = launches(&places, &transfers).unwrap().calls;
        assert_eq!(calls.iter().map(rows).collect::<Vec<_>>(), [30, 2]);
    }

    /// An all-to-all with parts of different sizes: its argument is not longer than it needs to be.
    #[test]
    fn an_all_to_all_is_one_launch_with_a_short_argument() {
        let memory = Memory { at: 0, len: 16 << 10 };
        for (n, size) in [(2, Size::Few), (3, Size::Some), (8, Size::Some), (9, Size::Any)] {
            let pes = (0..n).map(|pe| Reached { pe, distance: Some(0), atomics: true }).collect();
            let reached_by = vec![true; n as usize];
            let places =
                Places { me: 1, image: 0, words: 0, stop: 0, inbox: 0, outgoing: 0, report: 0, pes, reached_by };
            let with = |peer| [Transfer::Send { to: peer, memory }, Transfer::Receive { from: peer, memory }];
            let Launches { own, calls } = launches(&places, &(0..n).flat_map(with).collect::<Vec<_>>()).unwrap();
            assert!(own.is_empty(), "the kernel copies the part of the PE itself");
            assert_eq!(calls.iter().map(|launch| launch.size).collect::<Vec<_>>(), [size], "{n}");
        }
        let bytes = [Size::Any, Size::Some, Size::Few].map(|size| match size {
            Size::Any => size_of::<ExchangeCall>(),
            Size::Some => size_of::<ExchangeSome>(),
            Size::Few => size_of::<ExchangeFew>(),
        });
        assert_eq!(bytes, [4016, 1520, 488]);
    }

    #[test]
    fn lanes_lie_by_ranks_and_name_pes() {
        let (n, inbox) = (3, 1 << 30);
        // A team: its first rank is PE 7.
        let pes: Vec<_> = [7, 3, 5].map(|pe| Reached { pe, distance: None, atomics: false }).into();
        let reached_by = vec![false; 3];
        let of = |me| {
            let (pes, reached_by) = (pes.clone(), reached_by.clone());
            Places { me, image: 0, words: 1 << 20, stop: 0, inbox, outgoing: 0, report: 0, pes, reached_by }
        };
        let places = of(1);
        assert!(places.row(Row { peer: 1, receives: true }, 0).is_err());
        for (peer, receives) in [(0, false), (0, true), (2, false), (2, true)] {
            let row = places.row(Row { peer, receives }, 0).unwrap();
            assert_eq!(row.semaphore.pe, if peer == 0 { 7 } else { 5 });
            // Where this PE stores and signals, the peer receives; and the other way round.
            let there = of(peer).row(Row { peer: 1, receives: !receives }, 0).unwrap();
            assert_eq!((row.slots, row.semaphore.there), (there.slots, there.semaphore.arrived));
            assert_eq!(row.semaphore.arrived, there.semaphore.there);
            let (slots, words) = (lanes_of(n) * SLOTS * stride_of(n), 8 * lanes_of(n));
            assert!((inbox..=inbox + Places::slot_bytes(n) - slots).contains(&row.slots));
            let all = 1 << 20..=(1 << 20) + Places::word_bytes(n) - words;
            assert!(all.contains(&row.semaphore.arrived) && all.contains(&row.semaphore.there));
            assert!((size_of::<Rank>() as u64 * n..=Places::image_bytes(n) - words).contains(&row.semaphore.expected));
        }
    }
}
