/* Sums and maxima over threads of a block. */
#ifndef SYMRAIL_LANES_CUH
#define SYMRAIL_LANES_CUH

#include "symrail_channels.cuh"

/* The sum over all threads of the block, the same at all of them; `shared` has a word for each warp. All threads call it
 * together. */
SYMRAIL_DEVICE float symrail_block_sum(float value, float* shared) {
    for (int apart = 16; apart != 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (symrail_u32 warp = 0; warp < blockDim.x / 32; warp++) sum += shared[warp];
    __syncthreads();
    return sum;
}

/* The largest value of each `lanes` consecutive threads, a power of two of at most 32. All threads call it together. */
SYMRAIL_DEVICE float symrail_lanes_max(float value, symrail_u32 lanes, float*) {
    for (symrail_u32 apart = lanes / 2; apart != 0; apart /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, value, apart);
        value = other > value ? other : value;
    }
    return value;
}

#endif
