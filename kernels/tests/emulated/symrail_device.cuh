// The device API for threads of this process, as far as cu/collectives.cu, cu/stream.cu and python/src/torch.cu use it. PEs are groups of
// threads, and their heaps are memory of this process. The test chooses which heaps are mapped.
#pragma once
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __noinline__
#define __launch_bounds__(threads)
#define SYMRAIL_DEVICE static inline
#define SYMRAIL_ERROR_TIMEOUT 1ull
#define SYMRAIL_ERROR_NO_ROOM 6ull
#define SYMRAIL_ERROR_CALLERS_LIMIT 7ull
#define SYMRAIL_WHAT_WAIT 6ull
#define SYMRAIL_SIGNAL_SET 9
#define SYMRAIL_WHAT_COLLECT 7ull
#define SYMRAIL_WHAT_SIGNAL 8ull
// The real one contains PTX.
#define SYMRAIL_MEMORY_CUH

typedef unsigned long long symrail_u64;
typedef unsigned int symrail_u32;
struct alignas(16) symrail_wide { symrail_u64 a, b; };

struct symrail_device_team { int me, n_pes, start, stride; };
typedef const symrail_device_team* symrail_team_t;

// A thread's index in its launch.
struct dim { unsigned x; };
[[maybe_unused]] static thread_local dim threadIdx, blockIdx, blockDim, gridDim;
static thread_local struct { int me; } symrail_state;
static thread_local std::barrier<>* block;
static void __syncthreads() { block->arrive_and_wait(); }

// The state that the PEs of a test share.
struct job {
    std::vector<char*> heaps;
    symrail_u64 heap_bytes = 0;
    std::vector<std::vector<bool>> mapped;
    std::unique_ptr<std::barrier<>> barrier;
    symrail_u64 failed = 0, failed_with = 0, failed_at = 0;
    // Set by an address outside of the heap, or one that a GPU would refuse.
    std::atomic<bool> wrong = false;
};
static job the_job;

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
static void symrail_quiet() {}
static void symrail_fail(symrail_u64 code, symrail_u64, symrail_u64 pe, symrail_u64 place) {
    the_job.failed = code;
    the_job.failed_with = pe;
    the_job.failed_at = place;
}
static void symrailx_barrier_block(symrail_team_t) {
    __syncthreads();
    if (threadIdx.x == 0) the_job.barrier->arrive_and_wait();
    __syncthreads();
}
static void symrailx_team_sync_block(symrail_team_t team) { symrailx_barrier_block(team); }

static void symrail_fence() {}
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
// Nothing changes during a kernel of these tests: a condition that does not hold is over at once.
template <class F>
static symrail_u64 symrail_wait_for(symrail_u64* word, F holds) {
    if (!holds(*word)) symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, symrail_state.me, 0);
    return *word;
}
static void symrail_signal_wait_until(symrail_u64*, int, symrail_u64) {}

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
