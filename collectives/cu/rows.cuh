/* Parts of rows in registers. */
#ifndef SYMRAIL_ROWS_CUH
#define SYMRAIL_ROWS_CUH

#include "symrail_channels.cuh"

/* As symrail_load_some and symrail_store_some. Called, since many copies of them take the compiler half a minute, and
 * more room than there is for instructions near the threads. */
static __device__ __noinline__ symrail_u64 symrail_load_any(symrail_u64 from, symrail_u64 bytes) {
    return symrail_load_some((const char*)from, bytes);
}
static __device__ __noinline__ void symrail_store_any(symrail_u64 to, symrail_u64 data, symrail_u64 bytes) {
    symrail_store_some((char*)to, data, bytes);
}

/* 16 bytes of a row, of which `left` exist; the others are 0. Where they are not ALIGNED, they are loaded and stored by
 * halves. Or 8 bytes, at any address. */
template <int BYTES, bool ALIGNED>
struct symrail_row_vector {
    template <class FROM>
    SYMRAIL_SCOPE_FN void load(symrail_u64 from, symrail_u64 left, symrail_u64* raw) {
        if (BYTES == 8) {
            raw[0] = left >= 8 && from % 8 == 0 ? *(const symrail_u64*)from : symrail_load_any(from, left);
        } else if (ALIGNED) {
            symrail_wide both = FROM::load((const symrail_wide*)from);
            raw[0] = both.a, raw[BYTES / 8 - 1] = both.b;
        } else {
            raw[0] = symrail_load_any(from, left);
            if (left > 8) raw[BYTES / 8 - 1] = symrail_load_any(from + 8, left - 8);
        }
    }
    SYMRAIL_SCOPE_FN void store(symrail_u64 to, symrail_u64 left, const symrail_u64* raw) {
        if (BYTES == 8) {
            if (left >= 8 && to % 8 == 0) *(symrail_u64*)to = raw[0];
            else symrail_store_any(to, raw[0], left);
        } else if (ALIGNED) {
            symrail_wide both = {raw[0], raw[BYTES / 8 - 1]};
            symrail_store((symrail_wide*)to, both);
        } else {
            symrail_store_any(to, raw[0], left);
            if (left > 8) symrail_store_any(to + 8, raw[BYTES / 8 - 1], left - 8);
        }
    }
};

/* MANY vectors of a row, which a thread of a scope has at a time. A lap of the scope begins at byte `first` of the row;
 * the thread's k-th vector is at byte `at(first, k)`. A thread has the same vectors in the same order for any MANY. */
template <class S, int BYTES, int MANY>
struct symrail_row_lap {
    symrail_u64 raw[MANY][BYTES / 8];

    /* The bytes of a lap. */
    SYMRAIL_SCOPE_FN symrail_u64 size() { return (symrail_u64)(MANY * BYTES) * S::size(); }
    SYMRAIL_SCOPE_FN symrail_u64 at(symrail_u64 first, int k) {
        return first + (k * S::size() + S::rank()) * (symrail_u64)BYTES;
    }
    /* All loads are under way at the same time. Vectors behind the row's `bytes` are 0. */
    template <class FROM, bool ALIGNED>
    SYMRAIL_WAITER_FN void load(symrail_u64 from, symrail_u64 first, symrail_u64 bytes) {
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            raw[k][0] = 0, raw[k][BYTES / 8 - 1] = 0;
            symrail_u64 here = at(first, k);
            if (here < bytes)
                symrail_row_vector<BYTES, ALIGNED>::template load<FROM>(from + here, bytes - here, raw[k]);
        }
    }
    template <bool ALIGNED>
    SYMRAIL_WAITER_FN void store(symrail_u64 to, symrail_u64 first, symrail_u64 bytes) const {
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            symrail_u64 here = at(first, k);
            if (here < bytes) symrail_row_vector<BYTES, ALIGNED>::store(to + here, bytes - here, raw[k]);
        }
    }
};

#endif
