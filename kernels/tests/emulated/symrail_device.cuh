// The device API for threads of this process, as far as cu/collectives.cu, cu/stream.cu and python/src/torch.cu use it.
// PEs are groups of threads, and their heaps are memory of this process. The test chooses which heaps are mapped, and
// what fails.
#pragma once
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#define __global__
#define __device__
#define __noinline__
#define __launch_bounds__(threads)
#define SYMRAIL_DEVICE static inline
#define SYMRAIL_SIGNAL_SET 9
// The real one contains PTX.
#define SYMRAIL_MEMORY_CUH

typedef unsigned long long symrail_u64;
typedef unsigned int symrail_u32;
struct alignas(16) symrail_wide { symrail_u64 a, b; };

struct symrail_device_team { int me, n_pes, start, stride; };
typedef const symrail_device_team* symrail_team_t;

// A thread's index in its launch, and its block.
struct dim { unsigned x; };
struct threads {
    std::barrier<> all;
    std::atomic<int> votes = 0;
    threads(unsigned number) : all(number) {}
};
[[maybe_unused]] static thread_local dim threadIdx, blockIdx, blockDim, gridDim;
static thread_local threads* block;
static void __syncthreads() { block->all.arrive_and_wait(); }
static int __syncthreads_or(int vote) {
    if (vote) block->votes = 1;
    __syncthreads();
    int result = block->votes;
    __syncthreads();
    if (threadIdx.x == 0) block->votes = 0;
    __syncthreads();
    return result;
}
static void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// What a PE's device has, and what shall not happen there in time.
struct device {
    symrail_u64 record[5] = {0, 0, 0, 0, 1}, stopped = 0, failed_requests = 0;
    // Barriers that the PE has come to, and all that it has counted.
    symrail_u64 met = 0, counted = 0;
    bool late_barrier = false, late_quiet = false, late_fence = false, request_fails = false;
};
// The state that the PEs of a test share.
struct job {
    std::vector<char*> heaps;
    symrail_u64 heap_bytes = 0;
    std::vector<std::vector<bool>> mapped;
    std::unique_ptr<std::barrier<>> barrier;
    std::map<int, device> devices;
    // Set by an address outside of the heap, or one that a GPU would refuse.
    std::atomic<bool> wrong = false;
};
static job the_job;
static thread_local struct {
    int me;
    symrail_u64 error, stopped;
    symrail_u32 n_channels;
} symrail_state;
static device& here() { return the_job.devices.at(symrail_state.me); }
// Makes this thread one of a PE's device, which the test has made before.
static void be(int pe) {
    device& it = the_job.devices.at(pe);
    symrail_state = {pe, (symrail_u64)it.record, (symrail_u64)&it.stopped, 1};
}
// The host's check: the code of the failure, or 0. The next era begins behind one.
static symrail_u64 check(int pe) {
    device& it = the_job.devices.at(pe);
    symrail_u64 code = it.record[0];
    if (code != 0) it.record[4]++, it.record[0] = 0;
    return code;
}
static symrail_u64 symrail_ld_gpu(symrail_u64 at) { return __atomic_load_n((symrail_u64*)at, __ATOMIC_SEQ_CST); }
static void symrail_max_gpu(symrail_u64 at, symrail_u64 n) {
    static std::mutex one;
    std::lock_guard<std::mutex> all(one);
    symrail_u64* word = (symrail_u64*)at;
    // The host must find the failure because of which others are left out.
    if (here().record[0] == 0 && here().failed_requests == 0) the_job.wrong = true;
    if (n > *word) __atomic_store_n(word, n, __ATOMIC_SEQ_CST);
}
#include "symrail/failure.cuh"

static char* on_pe(const void* symmetric, symrail_u64 bytes, int pe) {
    symrail_u64 at = (const char*)symmetric - the_job.heaps[symrail_state.me];
    if (at > the_job.heap_bytes || bytes > the_job.heap_bytes - at) {
        the_job.wrong = true;
        at = 0;
    }
    return the_job.heaps[pe] + at;
}
static symrail_device_team symrail_team_of(symrail_team_t team) { return *team; }
static void* symrail_ptr(const void* symmetric, int pe) {
    return the_job.mapped[symrail_state.me][pe] ? on_pe(symmetric, 1, pe) : nullptr;
}
static void symrailx_putmem_nbi_block(void* dest, const void* source, size_t bytes, int pe) {
    if (threadIdx.x == 0) memmove(on_pe(dest, bytes, pe), source, bytes);
}
static void symrailx_getmem_nbi_block(void* dest, const void* source, size_t bytes, int pe) {
    on_pe(dest, bytes, symrail_state.me);
    if (threadIdx.x == 0) memcpy(dest, on_pe(source, bytes, pe), bytes);
}
static void symrail_ulonglong_p(symrail_u64* dest, symrail_u64 value, int pe) {
    memcpy(on_pe(dest, sizeof value, pe), &value, sizeof value);
}
static symrail_u64 symrail_failed_requests() { return here().failed_requests; }
static bool symrail_all_delivered() {
    here().failed_requests += here().request_fails;
    if (here().late_quiet) symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_QUIET, 0, 0);
    return !here().late_quiet;
}
static void symrail_quiet() { symrail_all_delivered(); }
static void symrail_fence_sys() {}
static void symrail_meet(symrail_team_t, bool comes = true) {
    here().counted++;
    if (!comes) return;
    here().met++;
    if (here().late_barrier) return symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, symrail_state.me, 0);
    the_job.barrier->arrive_and_wait();
}
static void symrail_fence() {
    if (here().late_fence) symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_QUIET, 0, 0);
}
static void symrailx_putmem_block(void* dest, const void* source, size_t bytes, int pe) {
    symrailx_putmem_nbi_block(dest, source, bytes, pe);
    __syncthreads();
}
static void symrailx_getmem_block(void* dest, const void* source, size_t bytes, int pe) {
    symrailx_getmem_nbi_block(dest, source, bytes, pe);
    __syncthreads();
}
static void symrailx_signal_op(symrail_u64* signal, symrail_u64 value, int, int pe) {
    symrail_ulonglong_p(signal, value, pe);
}
static void symrailx_putmem_signal_block(void* dest, const void* source, size_t bytes, symrail_u64* signal,
                                         symrail_u64 value, int op, int pe) {
    symrailx_putmem_block(dest, source, bytes, pe);
    if (threadIdx.x == 0) symrailx_signal_op(signal, value, op, pe);
}
// Nothing changes during a kernel of these tests: a wait for what does not hold is over at once.
template <class F>
static symrail_u64 symrail_wait_for(symrail_u64* word, F holds) {
    if (!holds(*word)) symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, symrail_state.me, 0);
    return *word;
}
// All comparisons are the same one here.
static void symrail_signal_wait_until(symrail_u64* word, int, symrail_u64 value) {
    symrail_wait_for(word, [value](symrail_u64 now) { return now == value; });
}

static symrail_u64 symrail_ld_acquire(const symrail_u64* at) { return *(const volatile symrail_u64*)at; }
static void aligned(const volatile void* at, size_t bytes) {
    if ((size_t)at % bytes != 0) the_job.wrong = true;
}
struct symrail_peer_source {
    static symrail_wide load(const symrail_wide* from) {
        aligned(from, sizeof *from);
        return *from;
    }
};
static void symrail_store(symrail_wide* to, symrail_wide value) {
    aligned(to, sizeof *to);
    *to = value;
}
template <class T>
static void symrail_store_value(T* to, T value) {
    aligned(to, sizeof *to);
    *to = value;
}
