// One-sided calls of windows, for src/one_sided.rs.
#include "symrail_device.cuh"

// As in src/one_sided.rs.
#define WAITS 64
struct wait_list {
    // For each signal, how often it has arrived, which only its sender writes; and for how many of these calls wait or
    // have waited.
    symrail_u64 *arrived, *claimed;
    // Not 0 once waits must end.
    const volatile symrail_u64* ended;
    symrail_u64 n;
    struct {
        symrail_u64 signal, count;
    } waits[WAITS];
};

// A thread for each wait. What a wait claims is counted on the device, so that replays of a graph claim anew.
extern "C" __global__ void __launch_bounds__(WAITS) wait_for_signals(const wait_list list) {
    if (threadIdx.x >= list.n) return;
    symrail_u64 signal = list.waits[threadIdx.x].signal, count = list.waits[threadIdx.x].count;
    symrail_u64 due = atomicAdd((unsigned long long*)(list.claimed + signal), (unsigned long long)count) + count;
    symrail_u32 rounds = 0;
    symrail_wait_for(list.arrived + signal, [&](symrail_u64 now) {
        return (long long)(now - due) >= 0 || ((++rounds & 255u) == 0 && *list.ended != 0);
    });
}

// One more signal, behind all that this stream has done before.
extern "C" __global__ void send_signal(symrail_u64* signal, symrail_u64 pe) {
    symrail_fence();
    symrailx_signal_op(signal, 1, SYMRAIL_SIGNAL_ADD, (int)pe);
}

// Bytes to memory that stores reach, and then a signal. One block.
extern "C" __global__ void __launch_bounds__(1024)
    put_and_signal(char* to, const char* from, symrail_u64 bytes, symrail_u64* signal, symrail_u64 pe) {
    symrail_copy<symrail_block_scope>(to, from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
        symrail_fence();
        symrailx_signal_op(signal, 1, SYMRAIL_SIGNAL_ADD, (int)pe);
    }
}
