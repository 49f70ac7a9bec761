// The tests of `symrail perf --device cuda`. Each kernel makes `calls` calls of one test, as perftest/src/perf/measure
// does on a host. `out`: {start, end} in nanoseconds over all blocks, wrong results, a counter for the grid.
#include "symrail_device.cuh"

typedef symrail_u64 u64;

struct stopwatch {
    u64* out;
    __device__ stopwatch(u64* o) : out(o) {
        if (symrail_block_scope::rank() == 0) atomicMin(out, symrail_now());
    }
    __device__ void stop() {
        __syncthreads();
        if (symrail_block_scope::rank() == 0) atomicMax(out + 1, symrail_now());
    }
};

// A barrier of this PE's grid. Its blocks are few enough to run at the same time.
__device__ void grid_barrier(u64* out, u64& arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        arrived += gridDim.x;
        atomicAdd(out + 3, 1ull);
        symrail_waiter waiter;
        while (symrail_ld_gpu((u64)(out + 3)) < arrived && !waiter.over()) {}
        __threadfence();
    }
    __syncthreads();
}

__device__ void quiet_of_block() {
    __syncthreads();
    if (threadIdx.x == 0) symrail_quiet();
    __syncthreads();
}

// The operations of one thread where only one was launched, or else of a block.
__device__ void put(char* to, char* from, u64 size, int pe) {
    if (blockDim.x == 1) symrail_putmem_nbi(to, from, size, pe);
    else symrailx_putmem_nbi_block(to, from, size, pe);
}
__device__ void put_signal(char* to, char* from, u64 size, u64* signal, u64 value, int pe) {
    if (blockDim.x == 1) symrail_putmem_signal_nbi(to, from, size, signal, value, SYMRAIL_SIGNAL_SET, pe);
    else symrailx_putmem_signal_nbi_block(to, from, size, signal, value, SYMRAIL_SIGNAL_SET, pe);
}
__device__ void get(char* to, char* from, u64 size, int pe, bool wait) {
    if (blockDim.x == 1) wait ? symrail_getmem(to, from, size, pe) : symrail_getmem_nbi(to, from, size, pe);
    else wait ? symrailx_getmem_block(to, from, size, pe) : symrailx_getmem_nbi_block(to, from, size, pe);
}

#define ARGUMENTS char *dest, char *source, u64 stride, u64 slots, u64 size, u64 window, u64 peer, u64 word, u64 first, u64 calls, u64 *out
#define KERNEL extern "C" __global__ void __launch_bounds__(1024)

KERNEL put_latency(ARGUMENTS) {
    stopwatch time(out);
    for (u64 c = 0; c < calls; c++) {
        put(dest, source, size, (int)peer);
        quiet_of_block();
    }
    time.stop();
}
KERNEL get_latency(ARGUMENTS) {
    stopwatch time(out);
    for (u64 c = 0; c < calls; c++) get(dest, source, size, (int)peer, true);
    time.stop();
}
// Windows of operations with a quiet after each. Small operations are made by a thread each, others by a block each.
template <bool PUT>
__device__ void windows(ARGUMENTS) {
    stopwatch time(out);
    bool small = size <= 64;
    u64 begin = small ? blockIdx.x * blockDim.x + threadIdx.x : blockIdx.x, step = small ? gridDim.x * blockDim.x : gridDim.x;
    for (u64 c = 0; c < calls; c++) {
        for (u64 i = begin; i < window; i += step) {
            u64 at = i % slots * stride;
            if (PUT && small) symrail_putmem_nbi(dest + at, source + at, size, (int)peer);
            else if (PUT) symrailx_putmem_nbi_block(dest + at, source + at, size, (int)peer);
            else if (small) symrail_getmem_nbi(dest + at, source + at, size, (int)peer);
            else symrailx_getmem_nbi_block(dest + at, source + at, size, (int)peer);
        }
        quiet_of_block();
    }
    time.stop();
}
KERNEL put_windows(ARGUMENTS) { windows<true>(dest, source, stride, slots, size, window, peer, word, first, calls, out); }
KERNEL get_windows(ARGUMENTS) { windows<false>(dest, source, stride, slots, size, window, peer, word, first, calls, out); }

KERNEL fetch_add(ARGUMENTS) {
    stopwatch time(out);
    for (u64 c = 0; c < calls; c++)
        if (symrail_ulonglong_atomic_fetch_add((u64*)word, 1, (int)peer) != first + c) atomicAdd(out + 2, 1ull);
    time.stop();
}
KERNEL add_windows(ARGUMENTS) {
    stopwatch time(out);
    u64 begin = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (u64 c = 0; c < calls; c++) {
        for (u64 i = begin; i < window; i += step) symrail_ulonglong_atomic_add((u64*)word, 1, (int)peer);
        quiet_of_block();
    }
    time.stop();
}
KERNEL signal_windows(ARGUMENTS) {
    stopwatch time(out);
    u64 begin = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (u64 c = 0; c < calls; c++) {
        for (u64 i = begin; i < window; i += step) symrailx_signal_op((u64*)word, 1, SYMRAIL_SIGNAL_ADD, (int)peer);
        quiet_of_block();
    }
    time.stop();
}
// Each thread makes its own, one after the other.
KERNEL gets(ARGUMENTS) {
    stopwatch time(out);
    u64 at = threadIdx.x % slots * stride;
    for (u64 c = 0; c < calls; c++) {
        if (size == 8) *(u64*)(dest + at) = symrail_ulonglong_g((u64*)(source + at), (int)peer);
        else symrail_getmem(dest + at, source + at, size, (int)peer);
    }
    time.stop();
}
KERNEL fetch_adds(ARGUMENTS) {
    stopwatch time(out);
    for (u64 c = 0; c < calls; c++) symrail_ulonglong_atomic_fetch_add((u64*)word, 1, (int)peer);
    time.stop();
}
KERNEL fenced_puts(ARGUMENTS) {
    stopwatch time(out);
    for (u64 c = 0; c < calls; c++) {
        put(dest, source, size, (int)peer);
        __syncthreads();
        symrail_fence();
        __syncthreads();
        put(dest + stride, source + stride, size, (int)peer);
        quiet_of_block();
    }
    time.stop();
}

// Two PEs take turns: the data holds the number of the round.
template <class F>
__device__ void ping_pong(u64* word, u64 first, u64 calls, u64* out, F send) {
    stopwatch time(out);
    bool begins = symrail_my_pe() == 0;
    for (u64 r = first + 1; r <= first + calls; r++) {
        if (begins) send(r);
        if (threadIdx.x == 0) symrail_signal_wait_until(word, SYMRAIL_CMP_GE, r);
        __syncthreads();
        if (!begins) send(r);
    }
    quiet_of_block();
    time.stop();
}
KERNEL signal_ping_pong(ARGUMENTS) {
    ping_pong((u64*)word, first, calls, out, [=](u64 r) { symrailx_signal_op((u64*)word, r, SYMRAIL_SIGNAL_SET, (int)peer); });
}
KERNEL put_ping_pong(ARGUMENTS) {
    ping_pong((u64*)word, first, calls, out, [=](u64 r) { symrail_ulonglong_p((u64*)word, r, (int)peer); });
}
KERNEL put_signal_ping_pong(ARGUMENTS) {
    ping_pong((u64*)word, first, calls, out, [=](u64 r) { put_signal(dest, source, size, (u64*)word, r, (int)peer); });
}

// Each PE puts to all others, a part by each block. Then all PEs wait for each other.
KERNEL all_to_all(ARGUMENTS) {
    stopwatch time(out);
    u64 me = symrail_my_pe(), n = symrail_n_pes(), arrived = 0;
    u64 part = ((size + gridDim.x - 1) / gridDim.x + 127) & ~127ull, at = part * blockIdx.x;
    for (u64 c = 0; c < calls; c++) {
        for (u64 step = 1; step < n && at < size; step++) {
            u64 to = (me + step) % n;
            symrailx_putmem_nbi_block(dest + me * stride + at, source + to * stride + at, at + part < size ? part : size - at, (int)to);
        }
        quiet_of_block();
        grid_barrier(out, arrived);
        if (blockIdx.x == 0) symrailx_barrier_all_block();
        grid_barrier(out, arrived);
    }
    time.stop();
}
KERNEL barrier(ARGUMENTS) {
    stopwatch time(out);
    for (u64 c = 0; c < calls; c++) symrailx_barrier_all_block();
    time.stop();
}
