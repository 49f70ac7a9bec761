// One-sided calls of windows, for src/one_sided.rs.
#include "symrail_device.cuh"

// As in src/one_sided.rs.
#define WAITS 64
struct wait_list {
    // For each signal, how often it has arrived, which only its sender writes; and for how many of these calls wait or
    // have waited.
    symrail_u64 *arrived, *claimed;
    // Not 0 once waits must end. The word behind it is for the host: the rank whose failure has ended a call, plus 1.
    volatile symrail_u64* ended;
    // Not 0 once a wait has ended without its signals, or another rank has failed: that rank, plus 1.
    volatile symrail_u64* stopped;
    symrail_u64 n;
    struct {
        symrail_u64 signal, count;
    } waits[WAITS];
};

// A thread for each wait. What a wait claims is counted on the device, so that replays of a graph claim anew. After a
// wait that ends without its signals, calls behind it do nothing: they would use memory that ranks still access.
extern "C" __global__ void __launch_bounds__(WAITS) wait_for_signals(const wait_list list) {
    if (threadIdx.x >= list.n) return;
    symrail_u64 signal = list.waits[threadIdx.x].signal, count = list.waits[threadIdx.x].count;
    symrail_u64 due = atomicAdd((unsigned long long*)(list.claimed + signal), (unsigned long long)count) + count;
    symrail_u32 rounds = 0;
    symrail_u64 last = symrail_wait_for(list.arrived + signal, [&](symrail_u64 now) {
        return (long long)(now - due) >= 0 || ((++rounds & 255u) == 0 && (*list.ended != 0 || *list.stopped != 0));
    });
    if ((long long)(last - due) >= 0) return;
    symrail_u64 by = *list.stopped, me = symrail_state.me + 1;
    if (by == 0) *list.stopped = me;
    else if (by != me) list.ended[1] = by;
}

// Whether calls still do something. Otherwise another rank's failure, if that is the reason, is left for the host. All
// threads of a block call it.
static __device__ bool goes_on(const volatile symrail_u64* stopped, volatile symrail_u64* ended) {
    symrail_u64 by = threadIdx.x == 0 ? *stopped : 0;
    if (!__syncthreads_or(by != 0)) return true;
    if (by != 0 && by != (symrail_u64)symrail_state.me + 1) ended[1] = by;
    return false;
}

// One more signal, behind all that this stream has done before.
extern "C" __global__ void send_signal(symrail_u64* signal, symrail_u64 pe, const volatile symrail_u64* stopped,
                                       volatile symrail_u64* ended) {
    if (!goes_on(stopped, ended)) return;
    symrail_fence();
    symrailx_signal_op(signal, 1, SYMRAIL_SIGNAL_ADD, (int)pe);
}

// Bytes to memory that stores reach, and then a signal. One block.
extern "C" __global__ void __launch_bounds__(1024)
    put_and_signal(char* to, const char* from, symrail_u64 bytes, symrail_u64* signal, symrail_u64 pe,
                   const volatile symrail_u64* stopped, volatile symrail_u64* ended) {
    if (!goes_on(stopped, ended)) return;
    symrail_copy<symrail_block_scope>(to, from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
        symrail_fence();
        symrailx_signal_op(signal, 1, SYMRAIL_SIGNAL_ADD, (int)pe);
    }
}

// Bytes that a block copies until it looks again whether calls still do something.
#define LOOK 0x40000ull
// Bytes to memory that stores reach, by any number of blocks: no copy engine, which could not be kept from it. The
// signal, of the next launch, is not sent either if a block has ended early.
extern "C" __global__ void __launch_bounds__(1024)
    put_by_blocks(char* to, const char* from, symrail_u64 bytes, const volatile symrail_u64* stopped,
                  volatile symrail_u64* ended) {
    symrail_u64 part = ((bytes + gridDim.x - 1) / gridDim.x + 127) & ~127ull, step = part < LOOK ? part : LOOK;
    for (symrail_u64 at = step * blockIdx.x; at < bytes; at += step * gridDim.x) {
        if (!goes_on(stopped, ended)) return;
        symrail_copy<symrail_block_scope>(to + at, from + at, bytes - at < step ? bytes - at : step);
    }
}
