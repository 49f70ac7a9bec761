/* Sums and maxima over threads of a block. */
#ifndef SYMRAIL_LANES_CUH
#define SYMRAIL_LANES_CUH

#include "symrail_channels.cuh"

/* The sum over all threads of a scope of whole warps, the same at all of them; `shared` has a word for each warp of the
 * block. All threads of the scope call it together. */
template <class S>
SYMRAIL_DEVICE float symrail_sum_over(float value, float* shared) {
    for (int apart = 16; apart != 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    symrail_u32 first = (threadIdx.x - S::rank()) / 32, warps = S::size() / 32;
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = value;
    S::sync();
    float sum = 0;
    for (symrail_u32 warp = 0; warp < warps; warp++) sum += shared[first + warp];
    S::sync();
    return sum;
}

/* The largest value of each `lanes` consecutive threads of a scope, a power of two of at most 32. All threads of the
 * scope call it together. */
template <class S>
SYMRAIL_DEVICE float symrail_lanes_max(float value, symrail_u32 lanes, float*) {
    for (symrail_u32 apart = lanes / 2; apart != 0; apart /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, value, apart);
        value = other > value ? other : value;
    }
    return value;
}

#endif
