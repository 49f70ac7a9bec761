// Collectives by packets, for collectives/src/gpu/straight.rs. SYMRAIL_NUMBER is the type of the elements.
#include "packets.cuh"

extern "C" __global__ void __launch_bounds__(512) straight_packets(const __grid_constant__ symrail_straight call) {
    symrail_packets<SYMRAIL_NUMBER>(call, blockIdx.x);
}
