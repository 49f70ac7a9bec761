//! Many workers of all PEs change the same words of PE 0 at once: host threads over the wire and over mappings, the PE
//! itself, and CPU devices. Every single update must count. The argument is the number of updates per worker.
use std::sync::Barrier;

use symrail::{AmoInteger, AmoValue, Result, Runtime, SymSlice};
use symrail_kernels::cpu::{DeviceError, DeviceView, Grid, LaunchError, Symmetric, Thread};
use symrail_tests::pattern::{Value, mix};
use symrail_tests::{device, pe};

const HOST_THREADS: usize = 2;
const DEVICE_THREADS: usize = 2;
/// The words: a counter and a sum of bits.
const COUNTER: usize = 0;
const BITS: usize = 1;

pub fn main() -> std::process::ExitCode {
    let updates = pe::arg(0, 300);
    pe::run(|rt| {
        hammer::<u64>(rt, updates)?;
        hammer::<u32>(rt, updates)?;
        hammer::<i64>(rt, updates)
    })
}

/// The bits that worker `worker` exclusive-ors in its step `i`.
fn bits(worker: u64, i: u64) -> u64 {
    mix(worker + 1, i)
}

fn hammer<T: Value + AmoInteger + symrail_kernels::cpu::AmoInteger>(rt: &Runtime, updates: u64) -> Result<()> {
    let words = rt.alloc_slice::<T>(2)?;
    let (view, start) = (device::view(rt), Barrier::new(HOST_THREADS + 1));
    let named = device::name::<T, T>(&view, rt, &words).unwrap();
    let per_pe = (HOST_THREADS + DEVICE_THREADS) as u64;
    let first = u64::from(rt.my_pe()) * per_pe;
    rt.barrier_all()?;
    std::thread::scope(|scope| {
        let host = |thread: usize| {
            let (words, start) = (&words, &start);
            move || {
                start.wait();
                on_host(words, first + thread as u64, updates)
            }
        };
        let threads: Vec<_> = (0..HOST_THREADS).map(|thread| scope.spawn(host(thread))).collect();
        start.wait();
        let device = run_device(&view, named, first + HOST_THREADS as u64, updates);
        for thread in threads {
            thread.join().unwrap()?;
        }
        device.unwrap_or_else(|e| panic!("PE {}: device: {e}", rt.my_pe()));
        Ok::<(), symrail::Error>(())
    })?;
    rt.barrier_all()?;

    let workers = u64::from(rt.n_pes()) * per_pe;
    let expected = (0..workers).flat_map(|w| (0..updates).map(move |i| bits(w, i))).fold(0, |a, b| a ^ b);
    let name = std::any::type_name::<T>();
    let (counter, sum) = (words.g(COUNTER, 0)?, words.g(BITS, 0)?);
    // Three updates of the counter in each step: add, inc, and one by compare-swap.
    assert_eq!(counter, T::of(3 * workers * updates), "PE {}: additions to a {name} were lost", rt.my_pe());
    assert_eq!(sum, T::of(expected), "PE {}: exclusive-ors of a {name} were lost", rt.my_pe());
    rt.barrier_all()?;
    words.free()
}

/// The work of a host thread.
fn on_host<T: Value + AmoInteger>(words: &SymSlice<T>, worker: u64, updates: u64) -> Result<()> {
    let mut last = None;
    for i in 0..updates {
        words.atomic_inc(COUNTER, 0)?;
        let old = words.atomic_fetch_add(COUNTER, T::of(1), 0)?.bits();
        assert!(last.is_none_or(|last| last < old), "a counter went back from {last:?} to {old}");
        last = Some(old);
        let mut seen = words.atomic_fetch(COUNTER, 0)?;
        loop {
            let next = T::from_bits(seen.bits().wrapping_add(1));
            let found = words.atomic_compare_swap(COUNTER, seen, next, 0)?;
            if found == seen {
                break;
            }
            seen = found;
        }
        if i % 2 == 0 {
            words.atomic_xor(BITS, T::of(bits(worker, i)), 0)?;
        } else {
            words.atomic_fetch_xor(BITS, T::of(bits(worker, i)), 0)?;
        }
    }
    words.runtime().quiet()
}

fn run_device<T>(
    view: &DeviceView,
    words: Symmetric<T>,
    first: u64,
    updates: u64,
) -> std::result::Result<(), LaunchError<DeviceError>>
where
    T: Value + AmoValue + symrail_kernels::cpu::AmoInteger,
{
    let grid = Grid { blocks: DEVICE_THREADS, threads_per_block: 1 };
    let kernel = |thread: &Thread<'_>| on_device(thread, words, first + thread.thread_id() as u64, updates);
    grid.launch(view, kernel).map(drop)
}

/// The same work, by a thread of a device.
fn on_device<T>(
    thread: &Thread<'_>,
    words: Symmetric<T>,
    worker: u64,
    updates: u64,
) -> std::result::Result<(), DeviceError>
where
    T: Value + AmoValue + symrail_kernels::cpu::AmoInteger,
{
    let (counter, sum, one) = (words.at(COUNTER as u64)?, words.at(BITS as u64)?, T::of(1));
    for i in 0..updates {
        thread.atomic_add(counter, one, 0)?;
        thread.atomic_fetch_add(counter, one, 0)?;
        let mut seen = thread.atomic_fetch(counter, 0)?;
        loop {
            let next = T::from_bits(AmoValue::bits(seen).wrapping_add(1));
            let found = thread.atomic_compare_swap(counter, seen, next, 0)?;
            if found == seen {
                break;
            }
            seen = found;
        }
        if i % 2 == 0 {
            thread.atomic_xor(sum, T::of(bits(worker, i)), 0)?;
        } else {
            thread.atomic_fetch_xor(sum, T::of(bits(worker, i)), 0)?;
        }
    }
    thread.quiet()
}
