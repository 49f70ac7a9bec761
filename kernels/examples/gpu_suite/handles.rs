//! Heaps of GPU memory besides the runtime's, mapped by peers: growth, caching, and replacement.

use std::time::{Duration, Instant};

use symrail::Runtime;
use symrail_heap::HostIdentity;
use symrail_heap::cuda::peers::CARD_LEN;
use symrail_kernels::cuda::{DeviceHeap, DevicePeers};

use crate::job::{Failure, Job};

const FIRST: u64 = 4 << 20;
const ALL: u64 = 16 << 20;
/// The time limit for opening again.
const QUICK: Duration = Duration::from_micros(5);
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Runs all checks; returns `false` when one failed.
pub fn run(job: &Job<'_>) -> Result<bool, Failure> {
    let (me, n) = (job.me(), job.runtime.n_pes());
    let host = HostIdentity::of_this_process(job.runtime.settings().fake_host.as_deref())?;
    let connection_infos = Cards::new(job.runtime)?;
    let mut good = true;
    let mut heap = DeviceHeap::reserve(&job.gpu, ALL)?;
    let mut peers = DevicePeers::new(me, n, &heap, &host, false);
    for to in [FIRST, ALL] {
        heap.grow(to)?;
        share(&heap, &mut peers, &connection_infos)?;
    }
    good &= check(job, &heap, &peers, 1)?;
    // Opens again, with the same connection infos.
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        for segment in heap.segments() {
            let offer = peers.offer(segment)?;
            let all = connection_infos.exchange(&offer.connection_info())?;
            let begun = Instant::now();
            peers.open(offer, segment, &all, TIME_LIMIT, &mut || false)?;
            quickest = quickest.min(begun.elapsed());
        }
    }
    println!("PE {me}: opening a peer's segment again: {:.2} us", quickest.as_secs_f64() * 1e6);
    if quickest > QUICK {
        println!("FAILED on PE {me}: opening again takes {quickest:?}, more than {QUICK:?}");
        good = false;
    }
    good &= check(job, &heap, &peers, 2)?;
    // The heap is freed and made anew: the old mapping must not be used for the new memory.
    drop(heap);
    job.runtime.barrier_all()?;
    let mut heap = DeviceHeap::reserve(&job.gpu, ALL)?;
    heap.grow(ALL)?;
    share(&heap, &mut peers, &connection_infos)?;
    good &= check_first(job, &heap, &peers, 3)?;
    job.runtime.barrier_all()?;
    job.runtime.free(connection_infos.at)?;
    Ok(good)
}

/// Offers the last segment to all PEs and maps theirs.
fn share(heap: &DeviceHeap, peers: &mut DevicePeers, connection_infos: &Cards<'_>) -> Result<(), Failure> {
    let segment = heap.segments().last().ok_or("no segment")?;
    let offer = peers.offer(segment)?;
    let all = connection_infos.exchange(&offer.connection_info())?;
    Ok(peers.open(offer, segment, &all, TIME_LIMIT, &mut || false)?)
}

/// Writes to both segments of the right neighbour, and checks the writes of the left one here.
fn check(job: &Job<'_>, heap: &DeviceHeap, peers: &DevicePeers, round: u64) -> Result<bool, Failure> {
    Ok(check_first(job, heap, peers, round)? & check_at(job, heap, peers, FIRST + 64, round)?)
}

fn check_first(job: &Job<'_>, heap: &DeviceHeap, peers: &DevicePeers, round: u64) -> Result<bool, Failure> {
    check_at(job, heap, peers, 64, round)
}

fn check_at(job: &Job<'_>, heap: &DeviceHeap, peers: &DevicePeers, offset: u64, round: u64) -> Result<bool, Failure> {
    let (me, n) = (u64::from(job.me()), u64::from(job.runtime.n_pes()));
    let right = peers.bases().get(((me + 1) % n) as usize).copied().unwrap_or_default();
    if right.is_null() {
        println!("FAILED on PE {me}: its neighbour's memory is not mapped: {:?}", peers.why(((me + 1) % n) as u32));
        return Ok(false);
    }
    // SAFETY: inside of the segments that were mapped above.
    unsafe { job.gpu.write(right + offset, &(round * 1000 + me).to_le_bytes()) }?;
    job.gpu.synchronize()?;
    job.runtime.barrier_all()?;
    let mut word = [0; 8];
    // SAFETY: inside of the segments that were mapped above.
    unsafe { job.gpu.read(heap.base() + offset, &mut word) }?;
    job.runtime.barrier_all()?;
    let (found, expected) = (u64::from_le_bytes(word), round * 1000 + (me + n - 1) % n);
    if found != expected {
        println!("FAILED on PE {me}: round {round}, offset {offset}: found {found}, expected {expected}");
    }
    Ok(found == expected)
}

/// A block of the symmetric heap through which PEs exchange connection infos.
struct Cards<'a> {
    runtime: &'a Runtime,
    at: *mut u8,
}

impl<'a> Cards<'a> {
    fn new(runtime: &'a Runtime) -> Result<Self, Failure> {
        Ok(Cards { runtime, at: runtime.calloc(runtime.n_pes() as usize, CARD_LEN)? })
    }

    /// Sends connection info to all PEs and returns all PEs'.
    fn exchange(&self, mine: &[u8; CARD_LEN]) -> Result<Vec<u8>, Failure> {
        let runtime = self.runtime;
        let own = self.at.wrapping_add(runtime.my_pe() as usize * CARD_LEN);
        for pe in 0..runtime.n_pes() {
            // SAFETY: the block has room for the connection info of each PE, which is copied before the call returns.
            unsafe { runtime.put(own, mine.as_ptr(), CARD_LEN, pe) }?;
        }
        runtime.barrier_all()?;
        let mut all = vec![0; runtime.n_pes() as usize * CARD_LEN];
        // SAFETY: room for the whole block, to which no PE writes between the barriers.
        unsafe { runtime.get(all.as_mut_ptr(), self.at, all.len(), runtime.my_pe()) }?;
        runtime.barrier_all()?;
        Ok(all)
    }
}
