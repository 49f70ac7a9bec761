// Collectives through slots, for collectives/src/gpu/straight.rs. SYMRAIL_NUMBER is the type of the elements,
// SYMRAIL_PUSHED the kernel: a program for each, because compilers take seconds, and compile programs at the same time.
#include "pushed.cuh"

extern "C" __global__ void __launch_bounds__(512) straight_pushed(const __grid_constant__ symrail_straight call) {
    __shared__ symrail_u64 done[2];
    symrail_pushed<SYMRAIL_NUMBER>(call, done, blockIdx.x).SYMRAIL_PUSHED();
}
