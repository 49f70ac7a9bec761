// Measures the device API. The same source runs on NVSHMEM (compile with -DBENCH_ON_NVSHMEM), for a comparison.
#ifdef BENCH_ON_NVSHMEM
#include <nvshmem.h>
#include <nvshmemx.h>
typedef unsigned long long symrail_u64;
#define SIGNAL(p) ((uint64_t*)(p))
#else
#include "symrail_nvshmem.cuh"
#define SIGNAL(p) ((symrail_u64*)(p))
#endif

__device__ __forceinline__ symrail_u64 nanoseconds() {
    symrail_u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// One thread on each of two PEs: a put with a signal there, and one back. `out[0]` is the time of all rounds.
extern "C" __global__ void ping_pong(char* data, symrail_u64* signal, symrail_u64 bytes, symrail_u64 rounds,
                                     symrail_u64* out) {
    int me = nvshmem_my_pe(), peer = 1 - me;
    symrail_u64 started = 0;
    for (symrail_u64 r = 1; r <= rounds + 20; r++) {
        if (r == 21) started = nanoseconds();
        if (me == 0) {
            nvshmem_putmem_signal_nbi(data, data + 8192, bytes, SIGNAL(signal), r, NVSHMEM_SIGNAL_SET, peer);
            nvshmem_signal_wait_until(SIGNAL(signal), NVSHMEM_CMP_GE, r);
        } else {
            nvshmem_signal_wait_until(SIGNAL(signal), NVSHMEM_CMP_GE, r);
            nvshmem_putmem_signal_nbi(data, data + 8192, bytes, SIGNAL(signal), r, NVSHMEM_SIGNAL_SET, peer);
        }
    }
    nvshmem_quiet();
    out[0] = nanoseconds() - started;
}
// The same with signals only.
extern "C" __global__ void signal_ping_pong(symrail_u64* signal, symrail_u64 rounds, symrail_u64* out) {
    int me = nvshmem_my_pe(), peer = 1 - me;
    symrail_u64 started = 0;
    for (symrail_u64 r = 1; r <= rounds + 20; r++) {
        if (r == 21) started = nanoseconds();
        if (me != 0) nvshmem_signal_wait_until(SIGNAL(signal), NVSHMEM_CMP_GE, r);
        nvshmemx_signal_op(SIGNAL(signal), r, NVSHMEM_SIGNAL_SET, peer);
        if (me == 0) nvshmem_signal_wait_until(SIGNAL(signal), NVSHMEM_CMP_GE, r);
    }
    out[0] = nanoseconds() - started;
}
// One thread: a put and a quiet.
extern "C" __global__ void put_quiet(char* data, symrail_u64 bytes, symrail_u64 rounds, symrail_u64* out) {
    int peer = 1 - nvshmem_my_pe();
    symrail_u64 started = 0;
    for (symrail_u64 r = 0; r < rounds + 20; r++) {
        if (r == 20) started = nanoseconds();
        nvshmem_putmem_nbi(data, data + 8192, bytes, peer);
        nvshmem_quiet();
    }
    out[0] = nanoseconds() - started;
}
// Every block puts its part of a buffer.
extern "C" __global__ void __launch_bounds__(1024) block_put(char* to, char* from, symrail_u64 bytes, symrail_u64 rounds) {
    int peer = 1 - nvshmem_my_pe();
    symrail_u64 part = bytes / gridDim.x, at = part * blockIdx.x;
    for (symrail_u64 r = 0; r < rounds; r++) nvshmemx_putmem_nbi_block(to + at, from + at, part, peer);
    nvshmem_quiet();
}
// The same, but each put is delivered before the next begins.
extern "C" __global__ void __launch_bounds__(1024)
    block_put_quiet(char* to, char* from, symrail_u64 bytes, symrail_u64 rounds) {
    int peer = 1 - nvshmem_my_pe();
    symrail_u64 part = bytes / gridDim.x, at = part * blockIdx.x;
    for (symrail_u64 r = 0; r < rounds; r++) {
        nvshmemx_putmem_nbi_block(to + at, from + at, part, peer);
        __syncthreads();
        if (threadIdx.x == 0) nvshmem_quiet();
        __syncthreads();
    }
}
// Every thread writes single values.
extern "C" __global__ void __launch_bounds__(1024) p_rate(int* to, symrail_u64 rounds, symrail_u64* out) {
    int peer = 1 - nvshmem_my_pe();
    symrail_u64 thread = blockIdx.x * blockDim.x + threadIdx.x;
    symrail_u64 started = nanoseconds();
    for (symrail_u64 r = 0; r < rounds; r++) nvshmem_int_p(to + thread, (int)r, peer);
    nvshmem_quiet();
    if (thread == 0) out[0] = nanoseconds() - started;
}
extern "C" __global__ void g_latency(int* from, symrail_u64 rounds, symrail_u64* out) {
    int peer = 1 - nvshmem_my_pe(), sum = 0;
    symrail_u64 started = nanoseconds();
    for (symrail_u64 r = 0; r < rounds; r++) sum += nvshmem_int_g(from + (sum & 1), peer);
    out[0] = nanoseconds() - started;
    out[1] = sum;
}
extern "C" __global__ void __launch_bounds__(1024)
signal_add_rate(symrail_u64* words, symrail_u64 apart, symrail_u64 rounds, symrail_u64* out) {
    int peer = 1 - nvshmem_my_pe();
    symrail_u64 thread = blockIdx.x * blockDim.x + threadIdx.x;
    symrail_u64 started = nanoseconds();
    for (symrail_u64 r = 0; r < rounds; r++) nvshmemx_signal_op(SIGNAL(words + apart * thread), 1, NVSHMEM_SIGNAL_ADD, peer);
    nvshmem_quiet();
    if (thread == 0) out[0] = nanoseconds() - started;
}
// The first block starts the time; the last thread with its value ends it.
extern "C" __global__ void __launch_bounds__(1024) g_many(int* from, symrail_u64* out) {
    int peer = 1 - nvshmem_my_pe();
    symrail_u64 thread = blockIdx.x * blockDim.x + threadIdx.x;
    symrail_u64 started = nanoseconds();
    int value = nvshmem_int_g(from + thread, peer);
    symrail_u64 took = nanoseconds() - started;
    if (value == -1) out[1] = value;
    atomicMax((unsigned long long*)out, (unsigned long long)took);
}
extern "C" __global__ void fetch_add_latency(int* word, symrail_u64 rounds, symrail_u64* out) {
    int peer = 1 - nvshmem_my_pe(), sum = 0;
    symrail_u64 started = nanoseconds();
    for (symrail_u64 r = 0; r < rounds; r++) sum += nvshmem_int_atomic_fetch_add(word + (sum & 1), 2, peer);
    out[0] = nanoseconds() - started;
    out[1] = sum;
}

#ifndef BENCH_ON_NVSHMEM
// The costs of the parts of a wait, a quiet and a p. They show which variants are best.
extern "C" __global__ void wait_variants(symrail_u64* signal, symrail_u64 rounds, symrail_u64 variant, symrail_u64* out) {
    int me = symrail_my_pe(), peer = 1 - me;
    volatile symrail_u64* there = (volatile symrail_u64*)symrail_ptr(signal, peer);
    symrail_u64 started = 0;
    for (symrail_u64 r = 1; r <= rounds + 20; r++) {
        if (r == 21) started = nanoseconds();
        if (me == 0) *there = r;
        if (variant == 1) {
            while (symrail_ld_acquire(signal) < r) {}
        } else {
            while (symrail_ld_sys((symrail_u64)signal) < r) {}
        }
        if (variant == 2) symrail_ld_acquire(signal);
        if (variant == 3) asm volatile("fence.acq_rel.gpu;" ::: "memory");
        if (variant == 4) symrail_fence_sys();
        if (variant == 5) asm volatile("fence.acq_rel.cta;" ::: "memory");
        if (me == 1) *there = r;
    }
    out[0] = nanoseconds() - started;
}
extern "C" __global__ void put_variants(symrail_u64* data, symrail_u64 rounds, symrail_u64 variant, symrail_u64* out) {
    int peer = 1 - symrail_my_pe();
    symrail_u64* there = (symrail_u64*)symrail_ptr(data, peer);
    symrail_u64 started = 0;
    for (symrail_u64 r = 0; r < rounds + 20; r++) {
        if (r == 20) started = nanoseconds();
        if (variant == 0) *(volatile symrail_u64*)there = r;
        if (variant == 1) symrail_store_value(there, r);
        if (variant == 2) symrail_store_value(there, r), symrail_fence_sys();
        if (variant == 3) symrail_store_value(there, r), __threadfence_system();
        if (variant == 4) *(volatile symrail_u64*)there = r, symrail_fence_sys();
        if (variant == 5) symrail_put_value(data, r, peer);
        if (variant == 6) asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(there), "l"(r) : "memory");
        if (variant == 7) symrail_fence_sys();
        if (variant == 8) symrail_store_value(there, r), __threadfence();
        if (variant == 9) {
            *(volatile symrail_u64*)there = r;
            if (*(volatile symrail_u64*)there == ~0ull) return;
        }
        if (variant >= 10) {
            symrail_u64 old = atomicExch_system(there, r);
            if (old == ~0ull) return;
            if (variant == 11) symrail_fence_sys();
            if (variant == 12) __threadfence();
        }
    }
    out[0] = nanoseconds() - started;
}
// Requests that do nothing: the cost of a channel without a fabric.
SYMRAIL_DEVICE void nothing(symrail_u64 opcode) {
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD;
    r.w[0] = symrail_head(opcode, 0, 0, r.mask, 0);
    r.w[1] = 0;
    symrail_push(symrail_my_channel(), r);
}
extern "C" __global__ void flush(symrail_u64 rounds, symrail_u64* out) {
    symrail_u64 started = 0;
    for (symrail_u64 r = 0; r < rounds + 20; r++) {
        if (r == 20) started = nanoseconds();
        nothing(SYMRAIL_OP_NOP);
        symrail_quiet();
    }
    out[0] = nanoseconds() - started;
}
// One thread, requests in batches.
extern "C" __global__ void batch_rate(symrail_u64 rounds, symrail_u64 batch, symrail_u64* out) {
    symrail_u64 started = nanoseconds();
    for (symrail_u64 r = 0; r < rounds; r += batch) {
        symrailx_batch requests((int)batch);
        requests.end();
    }
    symrail_quiet();
    out[0] = nanoseconds() - started;
}
extern "C" __global__ void __launch_bounds__(1024) request_rate(symrail_u64 rounds, symrail_u64* out) {
    symrail_u64 started = nanoseconds();
    for (symrail_u64 r = 0; r < rounds; r++) nothing(SYMRAIL_OP_NOP);
    __syncthreads();
    if (threadIdx.x == 0) {
        symrail_quiet();
        out[blockIdx.x] = nanoseconds() - started;
    }
}
#endif
