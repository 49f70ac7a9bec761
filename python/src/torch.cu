// Flags of PyTorch's symmetric memory, for python/src/torch.rs. A flag is 0 or 1: a rank that signals waits until it is
// 0 and sets it, a rank that waits for a signal waits until it is 1 and clears it.
#include "symrail_device.cuh"

static __device__ void flip(unsigned* flag, unsigned from, unsigned to, symrail_u64 timeout_ms, int rank) {
    symrail_u64 began = 0, now;
    while (atomicCAS_system(flag, from, to) != from) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (began == 0) began = now;
        if (timeout_ms != 0 && now - began > timeout_ms * 1000000) {
            symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, rank, (symrail_u64)flag);
            return;
        }
    }
}

static __device__ void signal(unsigned** pads, symrail_u64 to, symrail_u64 channel, symrail_u64 rank, symrail_u64 size,
                              symrail_u64 timeout_ms) {
    __threadfence_system();
    flip(pads[to] + size * channel + rank, 0, 1, timeout_ms, (int)to);
}
static __device__ void await(unsigned** pads, symrail_u64 from, symrail_u64 channel, symrail_u64 rank, symrail_u64 size,
                             symrail_u64 timeout_ms) {
    flip(pads[rank] + size * channel + from, 1, 0, timeout_ms, (int)from);
    __threadfence_system();
}

extern "C" __global__ void put_signal(unsigned** pads, symrail_u64 other, symrail_u64 channel, symrail_u64 rank,
                                      symrail_u64 size, symrail_u64 timeout_ms) {
    signal(pads, other, channel, rank, size, timeout_ms);
}
extern "C" __global__ void wait_signal(unsigned** pads, symrail_u64 other, symrail_u64 channel, symrail_u64 rank,
                                       symrail_u64 size, symrail_u64 timeout_ms) {
    await(pads, other, channel, rank, size, timeout_ms);
}
// As many threads as ranks.
extern "C" __global__ void barrier(unsigned** pads, symrail_u64, symrail_u64 channel, symrail_u64 rank, symrail_u64 size,
                                   symrail_u64 timeout_ms) {
    if (threadIdx.x >= size || threadIdx.x == rank) return;
    signal(pads, threadIdx.x, channel, rank, size, timeout_ms);
    await(pads, threadIdx.x, channel, rank, size, timeout_ms);
}
