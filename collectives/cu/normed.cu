// All-reduces with a residual and an RMS norm, for collectives/src/gpu/normed.rs. SYMRAIL_NUMBER is the type of elements.
#include "normed.cuh"

extern "C" __global__ void __launch_bounds__(512) normed_packets(const __grid_constant__ symrail_norm norm) {
    __shared__ float sums[16];
    symrail_normed<SYMRAIL_NUMBER> normed(norm, nullptr, sums, blockIdx.x);
    normed.template packets<true>();
}

// Rows at any address, here and below.
extern "C" __global__ void __launch_bounds__(512) normed_packets_anywhere(const __grid_constant__ symrail_norm norm) {
    __shared__ float sums[16];
    symrail_normed<SYMRAIL_NUMBER> normed(norm, nullptr, sums, blockIdx.x);
    normed.template packets<false>();
}

extern "C" __global__ void __launch_bounds__(512) normed_pushed(const __grid_constant__ symrail_norm norm) {
    __shared__ float sums[16];
    symrail_normed<SYMRAIL_NUMBER> normed(norm, nullptr, sums, blockIdx.x);
    normed.template pushes<true>();
}

extern "C" __global__ void __launch_bounds__(512) normed_pushed_anywhere(const __grid_constant__ symrail_norm norm) {
    __shared__ float sums[16];
    symrail_normed<SYMRAIL_NUMBER> normed(norm, nullptr, sums, blockIdx.x);
    normed.template pushes<false>();
}
