// Common parts of the kernels of both ways: rows, their elements, and their delivery.
#ifndef SYMRAIL_EP_ROWS_CUH
#define SYMRAIL_EP_ROWS_CUH

#include "symrail_device.cuh"

static __device__ symrail_u64 up16(symrail_u64 bytes) { return (bytes + 15) & ~15ull; }

static __device__ float low(symrail_u32 two) { return __uint_as_float(two << 16); }
static __device__ float high(symrail_u32 two) { return __uint_as_float(two & 0xffff0000u); }
// Rounds to the nearest bfloat16, ties to even.
static __device__ symrail_u32 to_bf16(float value) {
    symrail_u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40;
    return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}

// Rounds two values, neither of which is NaN: the GPU's conversion does not keep what a NaN tells. The first one goes to
// the lower half.
static __device__ symrail_u32 two_to_bf16(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    symrail_u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
#else
    return to_bf16(first) | to_bf16(second) << 16;
#endif
}

// Returns the number of preceding threads of the block whose `yes` is set; `all` is the number of all such threads.
// `in_warp` is shared memory, a number for each warp. Ends with a block barrier.
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

// Loads a piece that is not loaded again. It takes no place in the first-level cache, where it would displace the
// threads' stacks.
static __device__ symrail_wide load_once(const symrail_wide* at) {
#ifdef __CUDA_ARCH__
    symrail_wide v;
    asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];" : "=l"(v.a), "=l"(v.b) : "l"(at) : "memory");
    return v;
#else
    return symrail_own_source::load(at);
#endif
}

// `AHEAD` pieces of a row that a thread of a warp has in flight. It loads all of them before it stores the first. Not
// `WHOLE`: those from the row's end on are left out.
template <int AHEAD, bool WHOLE = false>
struct pieces_of_row {
    symrail_wide piece[AHEAD];
    symrail_u64 base, all;
    __device__ pieces_of_row(const char* from, symrail_u64 base, symrail_u64 all) : base(base), all(all) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (WHOLE || base + 32 * i < all) piece[i] = load_once((const symrail_wide*)from + base + 32 * i);
    }
    __device__ void store(char* to) const {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (WHOLE || base + 32 * i < all) symrail_store((symrail_wide*)to + base + 32 * i, piece[i]);
    }
};
// The pieces in flight for rows of high throughput: a warp copies 7,168 bytes in one pass.
#define ROW_AHEAD 14
// A warp copies a row, a multiple of 16 bytes. Only the last lap needs conditions, which cost registers.
static __device__ void copy_row(char* to, const char* from, symrail_u64 bytes) {
    const symrail_u32 lap = 32 * ROW_AHEAD;
    symrail_u32 all = (symrail_u32)(bytes / sizeof(symrail_wide)), base = 0, mine = threadIdx.x % 32;
    auto at = [&](symrail_u32 piece) { return (symrail_u64)piece * sizeof(symrail_wide); };
    for (; base + lap <= all; base += lap)
        pieces_of_row<ROW_AHEAD, true>(from + at(base + mine), 0, 0).store(to + at(base + mine));
    for (base += mine; base < all; base += 32 * 4) pieces_of_row<4>(from + at(base), 0, all - base).store(to + at(base));
}
// A warp copies a row to a place among the rows of each of several ranks. Ranks whose place has all bits set do not get
// it.
static __device__ void copy_row_to(char* const* to, const symrail_u32* places, symrail_u64 many, const char* from,
                                   symrail_u64 bytes) {
    symrail_u64 all = bytes / sizeof(symrail_wide);
    for (symrail_u64 base = threadIdx.x % 32; base < all; base += 32 * ROW_AHEAD) {
        pieces_of_row<ROW_AHEAD> pieces(from, base, all);
        for (symrail_u64 i = 0; i < many; i++)
            if (places[i] != ~0u) pieces.store(to[i] + places[i] * bytes);
    }
}

// Delivers what this block has written for a rank, and then sets a word there. In a mapped rank's memory the data is in
// place. Otherwise the data is at `from`, and one request puts it to `there`. The barrier lets one thread's fence cover
// the writes of the whole block.
static __device__ void deliver(char* there, const char* from, symrail_u64 bytes, symrail_u64* word, symrail_u64 value,
                               symrail_u64 rank, bool mapped) {
    __syncthreads();
    if (!mapped) {
        symrailx_putmem_signal_nbi_block(there, from, bytes, word, value, SYMRAIL_SIGNAL_SET, (int)rank);
    } else if (threadIdx.x == 0) {
        symrail_fence_sys();
        symrailx_signal_op(word, value, SYMRAIL_SIGNAL_SET, (int)rank);
    }
}

#endif
