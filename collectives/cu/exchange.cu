// Sends and receives, for collectives/src/gpu/exchange.rs.
#include "exchange.cuh"

extern "C" __global__ void __launch_bounds__(512) exchange(const __grid_constant__ symrail_exchange_call call) {
    symrail_exchange_block(call, blockIdx.x);
}
