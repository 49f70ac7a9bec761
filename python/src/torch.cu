// Flags of PyTorch's symmetric memory, for python/src/torch.rs. A flag is 0 or 1: a rank that signals waits until it is
// 0 and sets it, a rank that waits for a signal waits until it is 1 and clears it. After `timeout_ms`, unless that is 0,
// a wait ends the CUDA context, as with PyTorch's own back end: later kernels would use what has not come.
#include "symrail_device.cuh"

// `pads` are the pads of all ranks of a group, and behind them the numbers of the ranks' PEs.
static __device__ void flip(unsigned* flag, unsigned from, unsigned to, symrail_u64 timeout_ms, symrail_u64 what,
                            const symrail_u64* pe) {
    symrail_u64 began = 0, now;
    while (atomicCAS_system(flag, from, to) != from) {
        now = symrail_now();
        if (began == 0) began = now;
        if (timeout_ms == 0 || (now - began) / 1000000 < timeout_ms) continue;
        symrail_fail(SYMRAIL_ERROR_CALLERS_LIMIT, what, *pe, timeout_ms);
        printf("symrail: PE %d: PE %llu has not %s a signal of PyTorch's symmetric memory within %llu ms\n", symrail_state.me,
               *pe, to == 1 ? "taken" : "sent", timeout_ms);
        __threadfence_system();
        __trap();
    }
}

static __device__ void signal(unsigned** pads, symrail_u64 to, symrail_u64 channel, symrail_u64 rank, symrail_u64 size,
                              symrail_u64 timeout_ms) {
    __threadfence_system();
    flip(pads[to] + size * channel + rank, 0, 1, timeout_ms, SYMRAIL_WHAT_SIGNAL, (symrail_u64*)pads + size + to);
}
static __device__ void await(unsigned** pads, symrail_u64 from, symrail_u64 channel, symrail_u64 rank, symrail_u64 size,
                             symrail_u64 timeout_ms) {
    flip(pads[rank] + size * channel + from, 1, 0, timeout_ms, SYMRAIL_WHAT_WAIT, (symrail_u64*)pads + size + from);
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
