/* Copies with many loads in flight. */
#ifndef SYMRAIL_WIDE_CUH
#define SYMRAIL_WIDE_CUH

#include "symrail_channels.cuh"

/* Loads in flight in each thread of a copy. */
#define SYMRAIL_COPIED_AHEAD 8

/* Copies the same bytes to `count` destinations, the k-th of which is at `to(k)`; each byte is loaded once. */
template <class S, class FROM, class TO>
SYMRAIL_DEVICE void symrail_copy_to_each(const TO& to, symrail_u64 count, symrail_u64 from, symrail_u64 length) {
    symrail_u64 together = from, threads = S::size(), at = S::rank();
    for (symrail_u64 i = 0; i < count; i++) together |= to(i);
    symrail_u64 wide = (together & 15) == 0 ? length / 16 : 0;
    const symrail_wide* here = (const symrail_wide*)from;
    for (; at + (SYMRAIL_COPIED_AHEAD - 1) * threads < wide; at += SYMRAIL_COPIED_AHEAD * threads) {
        symrail_wide raw[SYMRAIL_COPIED_AHEAD];
#pragma unroll
        for (int k = 0; k < SYMRAIL_COPIED_AHEAD; k++) raw[k] = FROM::load(here + at + k * threads);
        for (symrail_u64 i = 0; i < count; i++) {
            symrail_wide* there = (symrail_wide*)to(i);
#pragma unroll
            for (int k = 0; k < SYMRAIL_COPIED_AHEAD; k++) symrail_store(there + at + k * threads, raw[k]);
        }
    }
    /* The rest is loaded at once, too. */
    if (at < wide) {
        symrail_wide raw[SYMRAIL_COPIED_AHEAD] = {};
#pragma unroll
        for (int k = 0; k < SYMRAIL_COPIED_AHEAD; k++)
            if (at + k * threads < wide) raw[k] = FROM::load(here + at + k * threads);
        for (symrail_u64 i = 0; i < count; i++) {
            symrail_wide* there = (symrail_wide*)to(i);
#pragma unroll
            for (int k = 0; k < SYMRAIL_COPIED_AHEAD; k++)
                if (at + k * threads < wide) symrail_store(there + at + k * threads, raw[k]);
        }
    }
    at = 16 * wide;
    for (symrail_u64 i = 0; i < count && at != length; i++)
        symrail_copy<S, FROM>((void*)(to(i) + at), (const void*)(from + at), length - at);
}

/* As symrail_copy. */
template <class S, class FROM>
SYMRAIL_DEVICE void symrail_copy_many(symrail_u64 to, symrail_u64 from, symrail_u64 length) {
    symrail_copy_to_each<S, FROM>([to](symrail_u64) { return to; }, 1, from, length);
}

#endif
