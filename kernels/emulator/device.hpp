// A GPU made of threads of a CPU: this header is included first, in place of the device API.
#pragma once
#define SYMRAIL_STATE_CUH
#define SYMRAIL_MEMORY_CUH
#define SYMRAIL_ORDER_CUH
#define SYMRAIL_DEVICE_CUH
#define SYMRAIL_ROLES_CUH
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#define __global__
#define __launch_bounds__(...)
#define __device__
#define __noinline__ __attribute__((noinline, unused))
#define __align__(n) alignas(n)
#define SYMRAIL_DEVICE static inline __attribute__((unused))
#define SYMRAIL_WAITER_FN inline
#define SYMRAIL_SCOPE_FN static inline

typedef unsigned long long symrail_u64;
typedef unsigned int symrail_u32;

#define SYMRAIL_OP_PUT 2ull
#define SYMRAIL_OP_GET 4ull
#define SYMRAIL_WHAT_RMA 1ull
#define SYMRAIL_WHAT_AMO 2ull
#define SYMRAIL_SIGNAL_ADD 10

// Threads that synchronise without the others of their block; FIRST is the first of them.
struct Role {
    symrail_u32 arrived = 0, round = 0;
    int votes[2] = {0, 0};
};
// A put request to a proxy.
struct Put {
    void* to;
    std::vector<char> data;
};
// A thread of a block of a PE.
struct Threads {
    std::mutex lock;
    std::vector<Put> puts;
    pthread_barrier_t barrier;
    int votes[2];
    Role roles[4];
};
struct State {
    int me;
    symrail_u64 timeout_ns;
    symrail_u64 mailbox;
};
inline thread_local State symrail_state;
inline thread_local Threads* block;
inline thread_local symrail_u32 thread_rank, block_size;
struct Dim {
    unsigned x;
};
inline thread_local Dim threadIdx, blockIdx, blockDim, gridDim;
// The distance of each PE's memory from this one's: what a proxy would know.
inline thread_local const symrail_u64* apart_of;

static inline void breathe() {
    static thread_local unsigned count = 0;
    if (++count % 16 == 0) sched_yield();
}

static inline void __syncthreads() { pthread_barrier_wait(&block->barrier); }
static inline int __syncthreads_or(int vote) {
    if (vote) __atomic_store_n(&block->votes[0], 1, __ATOMIC_SEQ_CST);
    __syncthreads();
    int result = __atomic_load_n(&block->votes[0], __ATOMIC_SEQ_CST);
    __syncthreads();
    if (thread_rank == 0) block->votes[0] = 0;
    __syncthreads();
    return result;
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __threadfence(); }
static inline symrail_u64 atomicCAS(symrail_u64* at, symrail_u64 old, symrail_u64 value) {
    __atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return old;
}

SYMRAIL_DEVICE symrail_u64 symrail_ld_acquire(const symrail_u64* at) {
    breathe();
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
SYMRAIL_DEVICE symrail_u64 symrail_ld_sys(symrail_u64 at) { return symrail_ld_acquire((const symrail_u64*)at); }
SYMRAIL_DEVICE symrail_u64 symrail_ld_gpu(symrail_u64 at) { return symrail_ld_sys(at); }
SYMRAIL_DEVICE symrail_u64 symrail_ld_noted(symrail_u64 at) { return symrail_ld_sys(at); }
SYMRAIL_DEVICE void symrail_st_sys(symrail_u64 at, symrail_u64 v) {
    __atomic_store_n((symrail_u64*)at, v, __ATOMIC_RELEASE);
}
SYMRAIL_DEVICE void symrail_st_release_sys(symrail_u64 at, symrail_u64 v) { symrail_st_sys(at, v); }
SYMRAIL_DEVICE void symrail_st_gpu(symrail_u64 at, symrail_u64 v) { symrail_st_sys(at, v); }
SYMRAIL_DEVICE symrail_u64 symrail_add_gpu(symrail_u64 at, symrail_u64 n) {
    return __atomic_fetch_add((symrail_u64*)at, n, __ATOMIC_ACQ_REL);
}
SYMRAIL_DEVICE void symrail_max_gpu(symrail_u64 at, symrail_u64 n) { symrail_st_sys(at, n); }
SYMRAIL_DEVICE void symrail_add_release_sys(symrail_u64 at, symrail_u64 n) { symrail_add_gpu(at, n); }
SYMRAIL_DEVICE void symrail_add_relaxed_sys(symrail_u64 at, symrail_u64 n) { symrail_add_gpu(at, n); }
SYMRAIL_DEVICE void symrail_ld_pair(symrail_u64 at, symrail_u64& a, symrail_u64& b) {
    // Emulates an atomic pair: writes before the second word are observed with it.
    b = symrail_ld_sys(at + 8);
    a = symrail_ld_sys(at);
}
SYMRAIL_DEVICE void symrail_st_pair(symrail_u64 at, symrail_u64 a, symrail_u64 b) {
    symrail_st_sys(at, a);
    symrail_st_sys(at + 8, b);
}
SYMRAIL_DEVICE void symrail_fence_sys() { __threadfence(); }
SYMRAIL_DEVICE symrail_u64 symrail_now() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

struct symrail_block_scope {
    static const bool one = false;
    static symrail_u32 rank() { return thread_rank; }
    static symrail_u32 size() { return block_size; }
    static void sync() { __syncthreads(); }
};
struct alignas(16) symrail_wide {
    symrail_u64 a, b;
};
struct symrail_own_source {
    static symrail_wide load(const symrail_wide* p) { return *p; }
    template <class T>
    static T value(const T* p) {
        return *p;
    }
};
typedef symrail_own_source symrail_peer_source;
// A barrier of some of a block's threads; returns whether any of them passed true.
static inline bool meet(Role& role, symrail_u32 size, bool yes) {
    symrail_u32 round = __atomic_load_n(&role.round, __ATOMIC_SEQ_CST);
    int* vote = &role.votes[round % 2];
    if (yes) __atomic_store_n(vote, 1, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&role.arrived, 1, __ATOMIC_SEQ_CST) == size) {
        role.arrived = 0;
        // The vote of the round before: all threads have read it.
        role.votes[(round + 1) % 2] = 0;
        __atomic_store_n(&role.round, round + 1, __ATOMIC_SEQ_CST);
    }
    while (__atomic_load_n(&role.round, __ATOMIC_SEQ_CST) == round) sched_yield();
    return __atomic_load_n(vote, __ATOMIC_SEQ_CST) != 0;
}
template <int FIRST, int QUARTERS>
struct symrail_role {
    static const bool one = false;
    static symrail_u32 rank() { return thread_rank - FIRST * (block_size / 4); }
    static symrail_u32 size() { return QUARTERS * (block_size / 4); }
    static void sync() { any(false); }
    static bool any(bool yes) { return meet(block->roles[FIRST], size(), yes); }
};
struct symrail_quarter {
    static const bool one = false;
    static symrail_u32 number() { return 4 * thread_rank / block_size; }
    static symrail_u32 rank() { return thread_rank - number() * size(); }
    static symrail_u32 size() { return block_size / 4; }
    static void sync() { any(false); }
    static bool any(bool yes) { return meet(block->roles[number()], size(), yes); }
};
SYMRAIL_DEVICE void symrail_st_shared(symrail_u64* at, symrail_u64 v) { symrail_st_sys((symrail_u64)at, v); }
SYMRAIL_DEVICE symrail_u64 symrail_ld_shared(const symrail_u64* at) { return symrail_ld_acquire(at); }
SYMRAIL_DEVICE void symrail_store(symrail_wide* p, symrail_wide v) { *p = v; }
template <class T>
SYMRAIL_DEVICE void symrail_store_value(T* p, T value) {
    *p = value;
}
template <class S, class FROM = symrail_own_source>
SYMRAIL_DEVICE void symrail_copy(void* to, const void* from, size_t bytes) {
    for (size_t i = S::rank(); i < bytes; i += S::size()) ((char*)to)[i] = ((const char*)from)[i];
}

// The proxy: it performs requests at once, except puts, which stay pending until a fence needs them.
struct symrail_mail {
    void once() {}
    void leave() {}
};
struct symrail_place {
    bool ok;
    symrail_u64 offset;
};
SYMRAIL_DEVICE symrail_place symrail_find(const void* at, size_t, int, symrail_u64) {
    return symrail_place{true, (symrail_u64)at};
}
SYMRAIL_DEVICE bool symrail_rma_proxied(symrail_u64 opcode, symrail_u64 offset, const void* local, size_t bytes, int pe,
                                        bool, bool) {
    void* there = (void*)(offset + apart_of[pe]);
    if (opcode != SYMRAIL_OP_PUT) {
        memcpy((void*)local, there, bytes);
        return true;
    }
    std::lock_guard<std::mutex> all(block->lock);
    block->puts.push_back(Put{there, std::vector<char>((const char*)local, (const char*)local + bytes)});
    return true;
}
SYMRAIL_DEVICE void symrail_put_signal_proxied(symrail_u64 offset, const void* local, size_t bytes, symrail_u64 signal,
                                               symrail_u64 value, int, int pe, bool) {
    memcpy((void*)(offset + apart_of[pe]), local, bytes);
    symrail_add_gpu(signal + apart_of[pe], value);
}
SYMRAIL_DEVICE void symrail_signal(symrail_u64* word, symrail_u64 value, int, int pe) {
    symrail_add_gpu((symrail_u64)word + apart_of[pe], value);
}
SYMRAIL_DEVICE void symrail_put_value(symrail_u64* word, symrail_u64 value, int pe) {
    symrail_st_sys((symrail_u64)word + apart_of[pe], value);
}
SYMRAIL_DEVICE void symrail_fence() {
    std::lock_guard<std::mutex> all(block->lock);
    for (const Put& put : block->puts) memcpy(put.to, put.data.data(), put.data.size());
    block->puts.clear();
    __threadfence();
}
SYMRAIL_DEVICE void symrail_quiet() { symrail_fence(); }
