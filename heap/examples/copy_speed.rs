//! Compares routines for copying between two shared mappings, at several sizes and relative alignments.
//!
//! ```text
//! cargo run --release -p symrail-heap --example copy_speed [own|read] [max MiB]
//! ```
//! `own` (default): one core copies again and again, as for a put that is not read. `read`: another core reads the
//! destination after each copy, and the time covers both copying and reading, as for a put and its receiver. Prints
//! GB/s, the median of several rounds. `copy` is the crate's routine.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symrail_heap::SymmetricHeap;
use symrail_transport::env::Settings;

type Routine = unsafe fn(*mut u8, *const u8, usize);

unsafe fn glibc(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Routines of one processor.
#[cfg(target_arch = "x86_64")]
mod processor {
    use std::arch::x86_64 as x86;

    use super::Routine;

    unsafe fn rep_movsb(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise; the direction flag is clear, as the ABI says.
        unsafe {
            std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _, options(nostack, preserves_flags));
        }
    }

    macro_rules! vector_loop {
        ($name:ident, $feature:literal, $width:literal, $load:ident, $store:ident, $fence:expr) => {
            /// Aligns the destination, then moves four vectors at a time.
            #[target_feature(enable = $feature)]
            unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
                // SAFETY: the caller's promise, and each access below stays inside of `len`.
                unsafe {
                    let head = dst.align_offset($width).min(len);
                    std::ptr::copy_nonoverlapping(src, dst, head);
                    let mut at = head;
                    while at + 4 * $width <= len {
                        let (from, to) = (src.add(at), dst.add(at));
                        let a = x86::$load(from.cast());
                        let b = x86::$load(from.add($width).cast());
                        let c = x86::$load(from.add(2 * $width).cast());
                        let d = x86::$load(from.add(3 * $width).cast());
                        x86::$store(to.cast(), a);
                        x86::$store(to.add($width).cast(), b);
                        x86::$store(to.add(2 * $width).cast(), c);
                        x86::$store(to.add(3 * $width).cast(), d);
                        at += 4 * $width;
                    }
                    $fence
                    std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), len - at);
                }
            }
        };
    }
    vector_loop!(avx, "avx", 32, _mm256_loadu_si256, _mm256_store_si256, {});
    vector_loop!(avx_nt, "avx", 32, _mm256_loadu_si256, _mm256_stream_si256, {
        x86::_mm_sfence();
    });
    vector_loop!(avx512, "avx512f", 64, _mm512_loadu_si512, _mm512_store_si512, {});
    vector_loop!(avx512_nt, "avx512f", 64, _mm512_loadu_si512, _mm512_stream_si512, {
        x86::_mm_sfence();
    });

    pub fn routines() -> Vec<(&'static str, Routine)> {
        let mut routines: Vec<(&str, Routine)> = vec![("rep movsb", rep_movsb)];
        if std::is_x86_feature_detected!("avx") {
            routines.extend([("avx", avx as Routine), ("avx nt", avx_nt)]);
        }
        if std::is_x86_feature_detected!("avx512f") {
            routines.extend([("avx512", avx512 as Routine), ("avx512 nt", avx512_nt)]);
        }
        routines
    }
}

/// Routines of one processor: none.
#[cfg(not(target_arch = "x86_64"))]
mod processor {
    pub fn routines() -> Vec<(&'static str, super::Routine)> {
        Vec::new()
    }
}

#[inline(never)]
unsafe fn chosen(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { symrail_heap::copy::copy(dst, src, len) }
}

#[derive(Clone, Copy)]
struct Range(*mut u8, usize);
// SAFETY: points into a mapping that outlives the threads that get it.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

/// Reads the data as a receiver does.
fn sum(range: &Range) -> u64 {
    let mut total = 0u64;
    for at in (0..range.1 & !7).step_by(64) {
        // SAFETY: inside of the destination, which no thread writes while it is being read.
        total = total.wrapping_add(unsafe { range.0.add(at).cast::<u64>().read_unaligned() });
    }
    total
}

/// GB/s of one routine: the median of the rounds.
fn measure(routine: Routine, dst: *mut u8, src: *const u8, len: usize, read: bool) -> f64 {
    let per_round = (Duration::from_millis(3).as_nanos() as usize / (len / 20 + 20)).clamp(1, 100_000);
    let mut rounds: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            if read {
                read_by_another(routine, dst, src, len, per_round);
            } else {
                for _ in 0..per_round {
                    // SAFETY: both ranges are mapped and do not overlap.
                    unsafe { routine(dst, src, len) };
                }
            }
            (len * per_round) as f64 / start.elapsed().as_nanos() as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// Copies, lets another thread read, and waits for it, `times` times.
fn read_by_another(routine: Routine, dst: *mut u8, src: *const u8, len: usize, times: usize) {
    let (written, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    let range = Range(dst, len);
    std::thread::scope(|scope| {
        let range = &range;
        scope.spawn(|| {
            for turn in 1..=times as u64 {
                while written.load(Ordering::Acquire) < turn {
                    std::hint::spin_loop();
                }
                std::hint::black_box(sum(range));
                seen.store(turn, Ordering::Release);
            }
        });
        for turn in 1..=times as u64 {
            // SAFETY: as in `measure`.
            unsafe { routine(dst, src, len) };
            written.store(turn, Ordering::Release);
            while seen.load(Ordering::Acquire) < turn {
                std::hint::spin_loop();
            }
        }
    });
}

fn main() {
    let mut args = std::env::args().skip(1);
    let read = args.next().as_deref() == Some("read");
    let max = args.next().and_then(|mib| mib.parse::<usize>().ok()).unwrap_or(64) << 20;
    let mut settings = Settings::default();
    settings.heap_size = 2 * max + (4 << 20);
    let heaps = [0, 1].map(|pe| {
        let mut heap = SymmetricHeap::new(pe, &settings).unwrap();
        let block = heap.calloc(1, (max + 8192) as u64).unwrap().unwrap();
        (heap, block.ptr.as_ptr())
    });
    let (src, dst) = (heaps[0].1, heaps[1].1);
    let mut routines: Vec<(&str, Routine)> = vec![("glibc", glibc)];
    routines.extend(processor::routines());
    routines.push(("copy", chosen));
    print!("{:>10} {:>6}", "bytes", "ahead");
    for (name, _) in &routines {
        print!(" {name:>10}");
    }
    println!();
    let mut len = 8;
    while len <= max {
        for ahead in [0, 16, 40, 4096 - 16] {
            print!("{len:>10} {ahead:>6}");
            for &(_, routine) in &routines {
                // SAFETY: the blocks are 8 KiB longer than the largest copy.
                let gbs = measure(routine, unsafe { dst.add(ahead) }, src, len, read);
                print!(" {gbs:>10.1}");
            }
            println!();
        }
        len *= if len < 4096 { 2 } else { 4 };
    }
}
