// What the kernels of both ways have in common: rows, their elements, and how they are delivered.
#ifndef SYMRAIL_EP_ROWS_CUH
#define SYMRAIL_EP_ROWS_CUH

#include "symrail_device.cuh"

static __device__ symrail_u64 up16(symrail_u64 bytes) { return (bytes + 15) & ~15ull; }

static __device__ float low(symrail_u32 two) { return __uint_as_float(two << 16); }
static __device__ float high(symrail_u32 two) { return __uint_as_float(two & 0xffff0000u); }
// To the nearest bfloat16, ties to even.
static __device__ symrail_u32 to_bf16(float value) {
    symrail_u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40;
    return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}

// How many threads of the block before this one say yes; `all` is how many do. `in_warp` is shared, a number for each
// warp. Ends with the block in step.
static __device__ symrail_u32 count_before(bool yes, symrail_u32* in_warp, symrail_u32& all) {
    symrail_u32 ballot = __ballot_sync(~0u, yes), warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) in_warp[warp] = __popc(ballot);
    __syncthreads();
    symrail_u32 before = __popc(ballot & ((1u << threadIdx.x % 32) - 1));
    all = 0;
    for (symrail_u32 w = 0; w < blockDim.x / 32; w++) {
        if (w < warp) before += in_warp[w];
        all += in_warp[w];
    }
    __syncthreads();
    return before;
}

// Copies a row, a multiple of 16 bytes, by a warp: many loads are under way before the first store, also at the end.
static __device__ void copy_row(char* to, const char* from, symrail_u64 bytes) {
    const int AHEAD = 8;
    symrail_u64 pieces = bytes / sizeof(symrail_wide);
    for (symrail_u64 base = threadIdx.x % 32; base < pieces; base += 32 * AHEAD) {
        symrail_wide piece[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (base + 32 * i < pieces) piece[i] = symrail_own_source::load((const symrail_wide*)from + base + 32 * i);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (base + 32 * i < pieces) symrail_store((symrail_wide*)to + base + 32 * i, piece[i]);
    }
}

// Tells a rank that this block has written to its memory, by a word there.
static __device__ void tell(symrail_u64* word, symrail_u64 value, symrail_u64 rank) {
    symrail_fence_sys();
    __syncthreads();
    if (threadIdx.x != 0) return;
    symrail_fence_sys();
    symrailx_signal_op(word, value, SYMRAIL_SIGNAL_SET, (int)rank);
}

// Delivers what this block has written for a rank, and then sets a word there: to the rank's own memory where that is
// mapped; else to `from`, which is put to `there` by one request.
static __device__ void deliver(char* there, const char* from, symrail_u64 bytes, symrail_u64* word, symrail_u64 value,
                               symrail_u64 rank, bool mapped) {
    if (mapped) return tell(word, value, rank);
    symrail_fence_sys();
    __syncthreads();
    symrailx_putmem_signal_nbi_block(there, from, bytes, word, value, SYMRAIL_SIGNAL_SET, (int)rank);
}

#endif
