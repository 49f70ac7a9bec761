//! Sends and receives on streams (`cu/exchange.cuh`): any number of them in one call, between any PEs.

use std::sync::Arc;

use symrail::Pe;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Kernel, PinnedBuffer, Shape, Stream};
use symrail::kernels::layout::{Alarm, Semaphore};
use symrail::rounds::Report;
use symrail_core::layout::{bytes, words};

use super::abort::AbortHandle;
use super::encode::Reached;
use super::layout::{
    self, EXCHANGE_BLOCKS, EXCHANGE_TRANSFERS, ExchangeCall, LANE_SLOTS as SLOTS, Lane, SIZE_SHIFT, SIZES, SLOT_HEAD,
};
use super::memory::SymmetricMemory;
use super::plan::{Memory, reached};
use crate::error::{Error, Result};
use crate::members::Members;
use crate::transfer::{Row, Transfer, arrange};

const THREADS: u32 = 512;
/// Lanes to all PEs together; each PE has at least one and at most [`MOST_LANES`].
const ALL_LANES: u64 = 64;
const MOST_LANES: u64 = 32;
/// Bytes of all slots together, if each has [`SLOT`].
const ALL_SLOTS: u64 = 16 << 20;
const SLOT: std::ops::RangeInclusive<u64> = 1 << 10..=64 << 10;
/// Bytes of a PE's transfer to itself for each block that copies it, and the most of these blocks.
const OWN_SHARE: u64 = 64 << 10;
const MOST_OWN_BLOCKS: u64 = 32;

/// Lanes in each direction between two of `n` PEs.
fn lanes_of(n: u64) -> u64 {
    (ALL_LANES / n).clamp(1, MOST_LANES)
}

/// Bytes of a slot among `n` PEs: a power of two.
fn slot_of(n: u64) -> u64 {
    let bytes = (ALL_SLOTS / (n * lanes_of(n) * SLOTS)).clamp(*SLOT.start(), *SLOT.end());
    1 << bytes.ilog2()
}

/// Bytes of a slot's packets: they carry a sixteenth of its bytes.
fn packets_of(n: u64) -> u64 {
    slot_of(n) / 8
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
    /// The kernels' parameters and counters, of [`Places::image_bytes`].
    pub image: u64,
    /// Symmetric words, of [`Places::word_bytes`].
    pub words: u64,
    /// Symmetric slots in which bytes arrive, of [`Places::slot_bytes`].
    pub inbox: u64,
    /// As many slots, from which the proxy puts; 0 if the proxy carries nothing.
    pub outgoing: u64,
    /// Four words of pinned memory.
    pub report: u64,
    /// All ranks, in their order.
    pub pes: Vec<Reached>,
}

impl Places {
    /// Bytes of the image among `n` PEs.
    #[must_use]
    pub fn image_bytes(n: u64) -> u64 {
        size_of::<layout::Exchange>() as u64 + 2 * n * lanes_of(n) * (size_of::<Lane>() as u64 + 8)
    }

    /// Bytes of the symmetric words among `n` PEs: one word for giving up, and for each lane one for full slots and one
    /// for empty ones.
    #[must_use]
    pub fn word_bytes(n: u64) -> u64 {
        8 * (1 + 2 * n * lanes_of(n))
    }

    /// Bytes of the slots among `n` PEs.
    #[must_use]
    pub fn slot_bytes(n: u64) -> u64 {
        n * lanes_of(n) * SLOTS * stride_of(n)
    }

    /// The initial values of the symmetric words: all slots are empty.
    #[must_use]
    pub fn first_words(&self) -> Vec<u64> {
        let all = self.pes.len() * lanes_of(self.pes.len() as u64) as usize;
        [vec![0; 1 + all], vec![SLOTS; all]].concat()
    }

    /// The image: the head, the lanes, and the awaited count of each.
    #[must_use]
    pub fn image(&self) -> Vec<u64> {
        let n = self.pes.len() as u64;
        let lanes_at = self.image + size_of::<layout::Exchange>() as u64;
        let alarm = Alarm { report: self.report, stop: self.words };
        let (lanes_of_row, slot_bytes, packet_bytes) = (lanes_of(n), slot_of(n), packets_of(n));
        let head = layout::Exchange { alarm, lanes: lanes_at, lanes_of_row, slot_bytes, packet_bytes, ranks: n };
        let lanes = self.lanes(lanes_at);
        [words(&[head]), words(&lanes), vec![0; lanes.len()]].concat()
    }

    /// The lanes at an address, which the awaited counts follow.
    fn lanes(&self, at: u64) -> Vec<Lane> {
        let n = self.pes.len() as u64;
        let lanes = lanes_of(n);
        let all = n * lanes;
        let expected = at + 2 * all * size_of::<Lane>() as u64;
        let lane_of = |rank: u32, lane: u64| u64::from(rank) * lanes + lane;
        let full = |rank, lane| self.words + 8 * (1 + lane_of(rank, lane));
        let empty = |rank, lane| full(rank, lane) + 8 * all;
        let slots = |base: u64, rank, lane| base + lane_of(rank, lane) * SLOTS * stride_of(n);
        let mut list = Vec::new();
        for (rank, to) in (0..).zip(&self.pes) {
            for receives in [false, true] {
                for lane in 0..lanes {
                    let (arrived, there) = match receives {
                        true => (full(rank, lane), empty(self.me, lane)),
                        false => (empty(rank, lane), full(self.me, lane)),
                    };
                    let signals = to.distance.filter(|_| to.atomics).map_or(0, |distance| there.wrapping_add(distance));
                    let there_too = slots(self.inbox, self.me, lane);
                    let (at, mapped) = match receives {
                        true => (slots(self.inbox, rank, lane), 0),
                        false => (there_too, to.distance.map_or(0, |distance| there_too.wrapping_add(distance))),
                    };
                    let waited = expected + 8 * ((2 * u64::from(rank) + u64::from(receives)) * lanes + lane);
                    let own = slots(self.outgoing, rank, lane);
                    let pe = to.pe.into();
                    let semaphore = Semaphore { arrived, expected: waited, there, mapped: signals, pe };
                    list.push(Lane { semaphore, slots: at, mapped, outgoing: own });
                }
            }
        }
        list
    }
}

/// The memory of sends and receives between this PE and all other members.
pub(super) struct Exchange {
    image: DeviceBuffer,
    report: Arc<PinnedBuffer>,
    members: Members,
    device: GpuDevice,
}

impl Exchange {
    /// Allocates the memory, for PEs of which some need the proxy if `wired`, on all PEs alike; `abort` ends its waits.
    /// All PEs do so at the same point in the order of their allocations.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(device: &GpuDevice, memory: &mut SymmetricMemory, abort: &AbortHandle, wired: bool) -> Result<Self> {
        let members = memory.members().clone();
        let n = u64::from(members.n());
        let words = memory.take_behind_stop(Places::word_bytes(n) as usize)?;
        let slots = Places::slot_bytes(n) as usize;
        let inbox = memory.take(slots)?;
        let outgoing = if wired { memory.take(slots)? } else { 0 };
        let report = abort.report(device.gpu())?;
        let image = device.gpu().alloc(Places::image_bytes(n) as usize)?;
        let (me, pes) = (members.me(), reached(device, &members, words));
        let report_at = report.device().get();
        let places = Places { me, image: image.at().get(), words, inbox, outgoing, report: report_at, pes };
        image.write(0, &bytes(&places.image()))?;
        // Other PEs may have sent already: their signals are in the words of full slots, which are initially 0.
        let first = places.first_words();
        let before = first.iter().take_while(|&&word| word == 0).count();
        let of_empty = DevicePtr::new(words + 8 * before as u64);
        // SAFETY: words of this PE, which no other PE writes before this PE has sent.
        unsafe { device.gpu().write(of_empty, &bytes(&first[before..])) }?;
        Ok(Exchange { device: device.clone(), members, image, report })
    }

    /// Puts transfers on a stream.
    ///
    /// # Errors
    /// An error of the driver.
    ///
    /// # Safety
    /// The memory stays valid and unchanged by others until the stream has passed the transfers.
    pub unsafe fn run(&self, stream: &Stream, kernel: &Kernel, launches: &Launches) -> Result<()> {
        for &(from, to) in &launches.own {
            // SAFETY: the caller's promise.
            unsafe { stream.copy(DevicePtr::new(to.at), DevicePtr::new(from.at), from.len) }?;
        }
        for (call, blocks) in &launches.calls {
            // SAFETY: the kernel's argument; the memory is the caller's promise.
            unsafe { stream.launch_struct(kernel, Shape { blocks: *blocks, threads: THREADS }, call) }?;
        }
        Ok(())
    }

    /// The launches of some transfers.
    ///
    /// # Errors
    /// As for [`launches`].
    pub fn launches(&self, transfers: &[Transfer<Memory>]) -> Result<Launches> {
        launches(self.image.at().get(), self.members.me(), self.members.n(), transfers)
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
    /// The argument of each launch, and its blocks.
    pub calls: Vec<(Vec<u64>, u32)>,
}

/// The launches of rank `me` of `n` for some transfers.
///
/// # Errors
/// There is no such PE, or sends to itself and receives from itself do not match.
pub fn launches(image: u64, me: u32, n: u32, transfers: &[Transfer<Memory>]) -> Result<Launches> {
    let arranged = arrange(me, n, transfers, |memory| memory.len)?;
    let (mut calls, mut left, mut own) = (Vec::new(), &arranged.others[..], arranged.own);
    while !left.is_empty() {
        let (call, blocks, taken) = encode(image, n.into(), left, &mut own);
        calls.push((call, blocks));
        left = &left[taken..];
    }
    Ok(Launches { own, calls })
}

/// The argument of one launch, its blocks, and the number of transfers in it. Takes transfers of the PE to itself from
/// `own` as far as there are blocks: a copy before the kernel would delay it.
fn encode(image: u64, n: u64, transfers: &[(Row, Memory)], own: &mut Vec<(Memory, Memory)>) -> (Vec<u64>, u32, usize) {
    let lanes_for = |memory: &Memory| memory.len.div_ceil(slot_of(n)).clamp(1, lanes_of(n));
    // The rows of this launch, with their transfers.
    let mut rows: Vec<(Row, Vec<Memory>)> = Vec::new();
    let (mut blocks, mut taken) = (0, 0);
    for &(row, memory) in transfers.iter().take(EXCHANGE_TRANSFERS) {
        let known = rows.iter().position(|(known, _)| *known == row);
        let before = known.and_then(|i| rows[i].1.iter().map(lanes_for).max()).unwrap_or(0);
        let more = lanes_for(&memory).saturating_sub(before);
        if blocks + more > EXCHANGE_BLOCKS as u64 {
            break;
        }
        blocks += more;
        taken += 1;
        match known {
            Some(i) => rows[i].1.push(memory),
            None => rows.push((row, vec![memory])),
        }
    }
    let none = layout::Transfer { at: 0, bytes: 0, row: 0 };
    let mut call =
        ExchangeCall { exchange: image, blocks: [0; EXCHANGE_BLOCKS], transfers: [none; EXCHANGE_TRANSFERS] };
    let (mut work, mut list) = (Vec::new(), Vec::new());
    for (row, of_row) in rows {
        let (first, count) = (list.len() as u64, of_row.len() as u64);
        let most = of_row.iter().map(lanes_for).max().unwrap_or(0);
        work.extend((0..most).map(|lane| first | count << 16 | lane << 32));
        let number = 2 * u64::from(row.peer) + u64::from(row.receives);
        list.extend(of_row.iter().map(|memory| layout::Transfer { at: memory.at, bytes: memory.len, row: number }));
    }
    while let Some(&(from, to)) = own.last() {
        let free = (EXCHANGE_BLOCKS - work.len()) as u64;
        if free == 0 || list.len() + 2 > EXCHANGE_TRANSFERS {
            break;
        }
        let shares = from.len.div_ceil(OWN_SHARE).clamp(1, MOST_OWN_BLOCKS).min(free);
        let first = list.len() as u64;
        work.extend((0..shares).map(|share| 1 << 63 | shares << 48 | share << 32 | first));
        list.extend([from, to].map(|memory| layout::Transfer { at: memory.at, bytes: memory.len, row: 0 }));
        own.pop();
    }
    call.blocks[..work.len()].copy_from_slice(&work);
    call.transfers[..list.len()].copy_from_slice(&list);
    (words(&[call]), work.len() as u32, taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_take_little_of_the_heap_among_many() {
        for n in [1, 2, 3, 8, 33, 72, 512, 2048] {
            let most = ALL_SLOTS + n * lanes_of(n) * SLOTS * (SLOT_HEAD + packets_of(n));
            assert!(Places::slot_bytes(n) <= most && Places::slot_bytes(n) >= ALL_SLOTS / 4, "{n}");
            assert!(slot_of(n).is_power_of_two() && SLOT.contains(&slot_of(n)));
        }
        assert_eq!((slot_of(2), slot_of(32), slot_of(512)), (64 << 10, 64 << 10, 8 << 10));
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
    fn lanes_lie_by_ranks_and_name_pes() {
        let (n, inbox) = (2, 1 << 30);
        // A team: its first rank is PE 7.
        let pes: Vec<_> = [7, 3].map(|pe| Reached { pe, distance: None, atomics: false }).into();
        let places = Places { me: 1, image: 0, words: 1 << 20, inbox, outgoing: 0, report: 0, pes };
        let rows = 2 * n * lanes_of(n);
        for (i, lane) in places.lanes(0).iter().enumerate() {
            let second = i as u64 >= rows / 2;
            assert_eq!(lane.semaphore.pe, if second { 3 } else { 7 });
            assert!((inbox..inbox + Places::slot_bytes(n)).contains(&lane.slots), "lane {i}");
            assert!((1 << 20..(1 << 20) + Places::word_bytes(n)).contains(&lane.semaphore.arrived), "lane {i}");
        }
    }
}
