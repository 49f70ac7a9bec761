//! Copying between mappings, for puts to and gets from same-host peers.
//!
//! The best routine depends on the processor and on the next reader, so the choice was measured
//! (`examples/copy_speed.rs`; Zen 5, glibc 2.36, GB/s when another core reads each copy):
//!
//! | bytes | ahead | memcpy | `rep movsb` | AVX-512 loop | non-temporal |
//! |---|---|---|---|---|---|
//! | 64 KiB | 0 | 40 | 41 | 25 | 18 |
//! | 256 KiB | 16 | 35 | 35 | 27 | 22 |
//! | 1 MiB | 0 | 34 | 43 | 34 | 21 |
//! | 4 MiB | 0 | 33 | 39 | 33 | 23 |
//! | 64 MiB | 0 | 14 | 17 | 15 | 17 |
//! | 64 MiB | 40 | 14 | 13 | 15 | 18 |
//!
//! - `rep movsb` obtains destination lines without first reading them from the other core's cache, which is where a
//!   put's destination is. glibc stops using it somewhat below 1 MiB here.
//! - On AMD family 0x19 (Zen 3 and 4) `rep movsb` was seen to fall to 2 GB/s when the destination is 1 to 63 bytes
//!   ahead of the source modulo the page size, and glibc 2.36 uses it there. So both `rep movsb` and memcpy are avoided
//!   there.
//! - Non-temporal stores cost the receiver an access to memory, so they are for copies that no cache holds.

#[cfg(all(target_arch = "x86_64", not(symrail_portable)))]
#[path = "copy_x86.rs"]
mod large;

#[cfg(any(symrail_portable, not(target_arch = "x86_64")))]
mod large {
    pub use std::ptr::copy_nonoverlapping as forward;

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// As for [`super::copy`], and source and destination do not overlap.
    pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { forward(src, dst, len) }
    }
}

/// From this size on memcpy is not the best routine on every processor. Below it is, down to 17 bytes, where a call
/// costs more than two moves.
const LARGE: usize = 4096;

/// Copies `len` bytes from `src` to `dst`, which may overlap: `dst` gets what `src` was.
///
/// A copy of 1, 2, 4 or 8 bytes from or to an address aligned to its length reads or writes it at once: no thread
/// observes a part of it. For any length, later stores of the calling thread do not become visible before the copy.
///
/// # Safety
/// `src` is mapped for `len` bytes of loads and `dst` for `len` bytes of stores. Both may be shared with other
/// processes; concurrent writes of these may or may not be copied.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every branch accesses exactly the first `len` bytes. Where two moves overlap, both are inside of them,
    // and the values are read before either is written.
    unsafe {
        match len {
            0 => {}
            1 => store(dst, load::<u8>(src)),
            2 => store(dst, load::<u16>(src)),
            4 => store(dst, load::<u32>(src)),
            8 => store(dst, load::<u64>(src)),
            3 => ends::<u16>(dst, src, len),
            5..8 => ends::<u32>(dst, src, len),
            9..=16 => ends::<u64>(dst, src, len),
            17..LARGE => std::ptr::copy(src, dst, len),
            // A PE's put to itself may overlap, which most of the large routines do not allow.
            LARGE.. if dst.addr().abs_diff(src.addr()) < len => std::ptr::copy(src, dst, len),
            LARGE.. => large::copy(dst, src, len),
        }
    }
}

/// Copies the first and the last `T` of `len` bytes, which may overlap.
///
/// # Safety
/// As for [`copy`], and `len` is from one to two times the size of `T`.
#[inline(always)]
unsafe fn ends<T: Copy>(dst: *mut u8, src: *const u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: the caller's promise.
    unsafe {
        let (head, tail) = (load::<T>(src), load::<T>(src.add(last)));
        store(dst, head);
        store(dst.add(last), tail);
    }
}

/// Loads a `T`, at once if it is a word at an aligned address: volatile accesses are neither split nor repeated.
///
/// # Safety
/// `src` is mapped for loads of a `T`, of which any bytes are valid.
#[inline(always)]
unsafe fn load<T: Copy>(src: *const u8) -> T {
    let src = src.cast::<T>();
    // SAFETY: the caller's promise; the aligned access is behind the check.
    unsafe { if src.is_aligned() { src.read_volatile() } else { src.read_unaligned() } }
}

/// Stores a `T`, at once if it is a word at an aligned address.
///
/// # Safety
/// `dst` is mapped for stores of a `T`.
#[inline(always)]
unsafe fn store<T: Copy>(dst: *mut u8, value: T) {
    let dst = dst.cast::<T>();
    // SAFETY: the caller's promise; the aligned access is behind the check.
    unsafe { if dst.is_aligned() { dst.write_volatile(value) } else { dst.write_unaligned(value) } }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    /// Copies `len` bytes at the given misalignments and checks every byte, and the neighbouring ones.
    fn check(len: usize, from: usize, to: usize) {
        let pattern = |at: usize| (at * 31 + at / 251) as u8 | 1;
        let source: Vec<u8> = (0..len + 64).map(pattern).collect();
        let mut target = vec![0u8; len + 128];
        // SAFETY: the vectors are long enough: from < 64, to < 64.
        unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
        assert_eq!(target[to..to + len], source[from..from + len], "{len} bytes, {from} to {to}");
        let around = target[..to].iter().chain(&target[to + len..]);
        assert!(around.into_iter().all(|&byte| byte == 0), "{len} bytes, {from} to {to}: wrote outside");
    }

    #[test]
    fn copies_every_byte_and_no_other() {
        for len in (0..300).chain([511, 4095, 4096, 4097, 5000, 8191, 65_537, 1 << 20]) {
            for (from, to) in [(0, 0), (0, 1), (1, 0), (3, 5), (8, 16), (16, 8), (17, 1), (33, 63), (63, 31)] {
                check(len, from, to);
            }
        }
    }

    #[test]
    fn copies_where_source_and_destination_overlap() {
        for len in (0..80).chain([4095, 4096, 4097, 70_000, 300_000]) {
            for (from, to) in [(0, 0), (0, 1), (1, 0), (0, 31), (40, 3), (0, 64), (64, 1)] {
                let mut bytes: Vec<u8> = (0..len + 64).map(|at: usize| (at * 31 + at / 251) as u8).collect();
                let before = bytes.clone();
                let at = bytes.as_mut_ptr();
                // SAFETY: the vector is long enough: from and to are at most 64.
                unsafe { copy(at.add(to), at.add(from), len) };
                assert!(bytes[to..to + len] == before[from..from + len], "{len} bytes, {from} to {to}");
                assert!(bytes[..to] == before[..to], "{len} bytes, {from} to {to}: wrote before");
                assert!(bytes[to + len..] == before[to + len..], "{len} bytes, {from} to {to}: wrote behind");
            }
        }
    }

    #[test]
    fn copies_what_no_cache_holds() {
        for (extra, from, to) in [(0, 0, 0), (1, 3, 0), (777, 0, 17), (4095, 5, 63)] {
            check((32 << 20) + extra, from, to);
        }
    }

    #[test]
    fn aligned_words_are_never_torn() {
        let (word, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let target = word.as_ptr() as usize;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The source is unaligned on purpose: the guarantee concerns the aligned side.
                let values = [0u64, u64::MAX].map(u64::to_ne_bytes);
                let mut bytes = [[0u8; 9]; 2];
                bytes[1][1..].copy_from_slice(&values[1]);
                while !stop.load(Ordering::Relaxed) {
                    for value in &bytes {
                        // SAFETY: the word outlives the scope; the other thread reads it atomically.
                        unsafe { copy(target as *mut u8, value.as_ptr().add(1), std::hint::black_box(8)) };
                    }
                }
            });
            // The number of changes that the reader observes counts, not the number of its reads.
            let (start, mut seen, mut changes, mut torn) = (Instant::now(), 0, 0, None);
            // A busy machine shows few changes in 3 s, perhaps none: then the first one is enough.
            let enough = || if start.elapsed() < Duration::from_secs(3) { 50_000 } else { 1 };
            while changes < enough() && torn.is_none() && start.elapsed() < Duration::from_secs(30) {
                for _ in 0..1000 {
                    let now = word.load(Ordering::Relaxed);
                    changes += u64::from(now != seen);
                    seen = now;
                    if seen != 0 && seen != u64::MAX {
                        torn = Some(seen);
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(changes > 0, "the reader never saw the writer");
            assert_eq!(torn, None);
        });
    }
}
