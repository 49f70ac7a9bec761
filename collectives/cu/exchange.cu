// Sends and receives, for collectives/src/gpu/exchange.rs: a larger argument takes longer to launch.
#include "exchange.cuh"

extern "C" __global__ void __launch_bounds__(512) exchange(const __grid_constant__ symrail_exchange_call call) {
    __shared__ symrail_u64 found[2];
    symrail_exchange_block(call, found, blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(512) exchange_some(const __grid_constant__ symrail_exchange_some call) {
    __shared__ symrail_u64 found[2];
    symrail_exchange_block(call, found, blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(512) exchange_few(const __grid_constant__ symrail_exchange_few call) {
    __shared__ symrail_u64 found[2];
    symrail_exchange_block(call, found, blockIdx.x);
}
