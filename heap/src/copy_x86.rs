//! Large copies on x86-64. The parent module explains the choice of routines.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __m256i, _mm_sfence, _mm256_loadu_si256, _mm256_store_si256, _mm256_stream_si256};
use std::ptr::copy_nonoverlapping;
use std::sync::LazyLock;

/// A copy of at least this size does not stay in any cache that source and destination share, so it need not pass one.
const NON_TEMPORAL: usize = 32 << 20;

/// Properties of this processor.
#[derive(Clone, Copy)]
struct Processor {
    avx: bool,
    rep_movsb: bool,
}

static PROCESSOR: LazyLock<Processor> = LazyLock::new(|| Processor {
    avx: std::is_x86_feature_detected!("avx"),
    rep_movsb: std::is_x86_feature_detected!("ermsb") && !is_zen_3_or_4(),
});

/// AMD family 0x19 is exactly Zen 3 and Zen 4.
fn is_zen_3_or_4() -> bool {
    let vendor = __cpuid(0);
    let amd = [vendor.ebx, vendor.edx, vendor.ecx] == [*b"Auth", *b"enti", *b"cAMD"].map(u32::from_le_bytes);
    let signature = __cpuid(1).eax;
    let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
    amd && family == 0x19
}

/// Copies `len` bytes, which should be many.
///
/// # Safety
/// As for [`super::copy`], and source and destination do not overlap.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let processor = *PROCESSOR;
    // SAFETY: the caller's promise; AVX is only used where the processor has it.
    unsafe {
        if processor.avx && len >= NON_TEMPORAL {
            by_vectors::<true>(dst, src, len);
        } else if processor.rep_movsb {
            by_rep_movsb(dst, src, len);
        } else if processor.avx {
            by_vectors::<false>(dst, src, len);
        } else {
            copy_nonoverlapping(src, dst, len);
        }
    }
}

/// The processor's own copy loop. Its stores are ordered before later stores, though not among themselves.
///
/// # Safety
/// As for [`copy`].
unsafe fn by_rep_movsb(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise. The ABI keeps the direction flag clear, so the loop counts upwards.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags)
        );
    }
}

/// A loop over 128 bytes, with aligned stores: non-temporal ones if `STREAM`.
///
/// # Safety
/// As for [`copy`], and the processor has AVX.
#[target_feature(enable = "avx")]
unsafe fn by_vectors<const STREAM: bool>(dst: *mut u8, src: *const u8, len: usize) {
    const STEP: usize = 4 * size_of::<__m256i>();
    let head = dst.align_offset(size_of::<__m256i>()).min(len);
    let body = (len - head) / STEP * STEP;
    // SAFETY: the caller's promise. Head, body and tail are inside of `len`, and `dst + head` is aligned to a vector.
    unsafe {
        copy_nonoverlapping(src, dst, head);
        for at in (head..head + body).step_by(STEP) {
            let (from, to) = (src.add(at).cast::<__m256i>(), dst.add(at).cast::<__m256i>());
            let vectors = [0, 1, 2, 3].map(|i| _mm256_loadu_si256(from.add(i)));
            for (i, vector) in vectors.into_iter().enumerate() {
                if STREAM {
                    _mm256_stream_si256(to.add(i), vector);
                } else {
                    _mm256_store_si256(to.add(i), vector);
                }
            }
        }
        copy_nonoverlapping(src.add(head + body), dst.add(head + body), len - head - body);
    }
    if STREAM {
        // Without a fence, non-temporal stores may become visible after later stores, such as a signal.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_routines_copy_alike() {
        let source: Vec<u8> = (0..20_000usize).map(|at| (at * 7 + at / 255) as u8).collect();
        let processor = *PROCESSOR;
        for (from, to, len) in [(0, 0, 16_384), (1, 17, 10_001), (63, 31, 130), (5, 5, 8_192), (0, 40, 4_097)] {
            let mut targets = vec![vec![0u8; 20_100]; 4];
            let places: Vec<*mut u8> = targets.iter_mut().map(|target| target.as_mut_ptr().wrapping_add(to)).collect();
            let at = source.as_ptr().wrapping_add(from);
            // SAFETY: source and targets are long enough; AVX is only used where the processor has it.
            unsafe {
                by_rep_movsb(places[0], at, len);
                copy(places[1], at, len);
                if processor.avx {
                    by_vectors::<true>(places[2], at, len);
                    by_vectors::<false>(places[3], at, len);
                }
            }
            for target in targets.iter().take(if processor.avx { 4 } else { 2 }) {
                assert_eq!(target[to..to + len], source[from..from + len], "{len} bytes, {from} to {to}");
                assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0));
            }
        }
    }
}
