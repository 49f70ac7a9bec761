// The device API for processes on this machine, as far as the kernels of cu/ use it. A PE is a process, its heap is
// memory that all processes share, and the threads of a block are contexts that take turns. The test chooses which PEs
// are mapped.
#pragma once
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __noinline__
// Blocks of a PE run one after the other.
#define __shared__ static

typedef unsigned long long symrail_u64;
typedef unsigned int symrail_u32;
#define SYMRAIL_SIGNAL_SET 9
#define SYMRAIL_CMP_GE 5

struct dim { unsigned x; };
static dim threadIdx, blockIdx, blockDim, gridDim;

// State that the PEs of a test inherit, and this PE's rank.
static struct {
    int me, n_pes;
    std::vector<char*> heaps;
    symrail_u64 heap_bytes;
    std::function<bool(int, int)> is_mapped;
    symrail_u64 timeout_ns = 20000000000ull;
    // The requests of this PE, and the bytes that they have put.
    std::atomic<symrail_u64> puts{0}, put_bytes{0};
    // The errors that this PE has reported, and the number of its waits that timed out.
    std::atomic<symrail_u64> failures{0}, time_outs{0};
} job;

// A thread of a block. It runs until it waits, which costs a hundredth of what threads of this machine cost that wait
// for each other. Those that can go on do so in a new random order each time: what depends on an order without a barrier
// fails.
struct context {
    ucontext_t at;
    // It goes on when this word, if any, has changed.
    const symrail_u32* word = nullptr;
    symrail_u32 before = 0;
    bool polls = false, over = false;
};
static ucontext_t turns;
static context* running = nullptr;
// Others go on, until the word has changed; without a word until it is this one's turn again.
static void give_way(const symrail_u32* word) {
    running->word = word, running->before = word ? *word : 0, running->polls = !word;
    swapcontext(&running->at, &turns);
}

// A barrier of threads.
struct meeting {
    symrail_u32 n, arrived = 0, round = 0;
    explicit meeting(unsigned n) : n(n) {}
    void wait() {
        if (++arrived < n) return give_way(&round);
        arrived = 0, round++;
    }
};
// The threads of the running block.
struct block_threads {
    meeting all;
    std::vector<std::unique_ptr<meeting>> warps;
    std::vector<symrail_u64> values;
    std::atomic<int> votes{0};
    explicit block_threads(unsigned n) : all(n), values(n) {
        for (unsigned w = 0; w < n / 32; w++) warps.push_back(std::make_unique<meeting>(32));
    }
};
static block_threads* block;

static void __syncthreads() { block->all.wait(); }
static bool __syncthreads_or(bool vote) {
    if (vote) block->votes = 1;
    __syncthreads();
    bool found = block->votes;
    __syncthreads();
    block->votes = 0;
    __syncthreads();
    return found;
}
// The result of `what` on the values of all lanes of the warp.
template <class F>
static auto with_lanes(symrail_u64 own, F what) {
    auto& warp = *block->warps[threadIdx.x / 32];
    symrail_u64* lanes = &block->values[threadIdx.x / 32 * 32];
    lanes[threadIdx.x % 32] = own;
    warp.wait();
    auto found = what(lanes);
    warp.wait();
    return found;
}
static symrail_u32 __ballot_sync(symrail_u32, bool vote) {
    return with_lanes(vote, [](symrail_u64* lanes) {
        symrail_u32 all = 0;
        for (int i = 0; i < 32; i++) all |= (symrail_u32)(lanes[i] != 0) << i;
        return all;
    });
}
[[maybe_unused]] static symrail_u32 __match_any_sync(symrail_u32, long long v) {
    return with_lanes((symrail_u64)v, [v](symrail_u64* lanes) {
        symrail_u32 all = 0;
        for (int i = 0; i < 32; i++) all |= (symrail_u32)(lanes[i] == (symrail_u64)v) << i;
        return all;
    });
}
[[maybe_unused]] static symrail_u64 __shfl_sync(symrail_u32, symrail_u64 v, int from) {
    return with_lanes(v, [from](symrail_u64* lanes) { return lanes[from]; });
}
[[maybe_unused]] static void __syncwarp() { block->warps[threadIdx.x / 32]->wait(); }
static symrail_u32 __float_as_uint(float v) { symrail_u32 bits; memcpy(&bits, &v, 4); return bits; }
static float __uint_as_float(symrail_u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
[[maybe_unused]] static float __shfl_xor_sync(symrail_u32, float v, int mask) {
    unsigned from = (threadIdx.x % 32) ^ mask;
    return with_lanes(__float_as_uint(v), [from](symrail_u64* lanes) { return __uint_as_float((symrail_u32)lanes[from]); });
}
[[maybe_unused]] static symrail_u32 __shfl_xor_sync(symrail_u32, symrail_u32 v, int mask) {
    unsigned from = (threadIdx.x % 32) ^ mask;
    return with_lanes(v, [from](symrail_u64* lanes) { return (symrail_u32)lanes[from]; });
}
static int __popc(symrail_u32 bits) { return __builtin_popcount(bits); }
[[maybe_unused]] static float __fadd_rn(float a, float b) { return a + b; }
[[maybe_unused]] static float __fmul_rn(float a, float b) { return a * b; }
[[maybe_unused]] static float __fdiv_rn(float a, float b) { return a / b; }
[[maybe_unused]] static symrail_u64 atomicCAS(symrail_u64* at, symrail_u64 old, symrail_u64 next) {
    __atomic_compare_exchange_n(at, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return old;
}
[[maybe_unused]] static symrail_u32 atomicOr(symrail_u32* at, symrail_u32 bits) { return __atomic_fetch_or(at, bits, __ATOMIC_SEQ_CST); }
template <class T>
static T atomicAdd(T* at, T n) { return __atomic_fetch_add(at, n, __ATOMIC_SEQ_CST); }
[[maybe_unused]] static symrail_u64 atomicMin(symrail_u64* at, symrail_u64 n) {
    symrail_u64 now = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (n < now && !__atomic_compare_exchange_n(at, &now, n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return now;
}
[[maybe_unused]] static symrail_u64 atomicMax(symrail_u64* at, symrail_u64 n) {
    symrail_u64 now = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (n > now && !__atomic_compare_exchange_n(at, &now, n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return now;
}
struct alignas(16) uint4 { symrail_u32 x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
[[maybe_unused]] static uint4 make_uint4(symrail_u32 x, symrail_u32 y, symrail_u32 z, symrail_u32 w) { return {x, y, z, w}; }
[[maybe_unused]] static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static void fail(const char* what) {
    printf("PE %d: %s\n", job.me, what);
    fflush(stdout);
    _exit(1);
}
static char* on_pe(const void* symmetric, symrail_u64 bytes, int pe) {
    symrail_u64 at = (const char*)symmetric - job.heaps[job.me];
    if (at > job.heap_bytes || bytes > job.heap_bytes - at) fail("an address outside of the heap");
    return job.heaps[pe] + at;
}
static void* symrail_ptr(const void* symmetric, int pe) {
    return pe == job.me || job.is_mapped(job.me, pe) ? on_pe(symmetric, 1, pe) : nullptr;
}
static void symrail_fence_sys() { std::atomic_thread_fence(std::memory_order_seq_cst); }
static void symrail_quiet() {}
template <class T>
static T symrail_ld_acquire(const T* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
[[maybe_unused]] static void symrail_note(symrail_u64 at, symrail_u64 n) {
    symrail_u64 now = __atomic_load_n((symrail_u64*)at, __ATOMIC_SEQ_CST);
    while (now < n && !__atomic_compare_exchange_n((symrail_u64*)at, &now, n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}
static void symrailx_signal_op(symrail_u64* word, symrail_u64 value, int, int pe) {
    __atomic_store_n((symrail_u64*)on_pe(word, 8, pe), value, __ATOMIC_RELEASE);
}
static void put_signal(void* dest, const void* source, size_t bytes, symrail_u64* word, symrail_u64 value, int op, int pe) {
    if (symrail_ptr(dest, pe) == nullptr) {
        on_pe(source, bytes, job.me);
        job.puts++;
        job.put_bytes += bytes;
    }
    memcpy(on_pe(dest, bytes, pe), source, bytes);
    symrailx_signal_op(word, value, op, pe);
}
static void symrailx_putmem_signal_nbi_block(void* dest, const void* source, size_t bytes, symrail_u64* word,
                                             symrail_u64 value, int op, int pe) {
    __syncthreads();
    if (threadIdx.x == 0) put_signal(dest, source, bytes, word, value, op, pe);
    __syncthreads();
}
[[maybe_unused]] static void symrailx_putmem_signal_nbi_warp(void* dest, const void* source, size_t bytes, symrail_u64* word,
                                                             symrail_u64 value, int op, int pe) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) put_signal(dest, source, bytes, word, value, op, pe);
    __syncwarp();
}
[[maybe_unused]] static struct { const symrail_u64& timeout_ns; } symrail_state = {job.timeout_ns};
static symrail_u64 symrail_now() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
template <class F>
static symrail_u64 symrail_wait_for(symrail_u64* word, F holds) {
    symrail_u64 end = symrail_now() + job.timeout_ns, now;
    while (!holds(now = symrail_ld_acquire(word))) {
        if (symrail_now() >= end) {
            job.time_outs++;
            break;
        }
        give_way(nullptr);
    }
    return now;
}
#define SYMRAIL_ERROR_TIMEOUT 1ull
#define SYMRAIL_WHAT_WAIT 6ull
[[maybe_unused]] static void symrail_fail(symrail_u64, symrail_u64, symrail_u64, symrail_u64) { job.failures++; }
struct alignas(16) symrail_wide { symrail_u64 a, b; };
static void aligned(const void* at) {
    if ((size_t)at % 16 != 0) fail("a piece that is not aligned");
}
struct symrail_own_source {
    static symrail_wide load(const symrail_wide* from) {
        aligned(from);
        return *from;
    }
};
static void symrail_store(symrail_wide* to, symrail_wide piece) {
    aligned(to);
    *to = piece;
}

static struct {
    const std::function<void()>* kernel;
    unsigned blocks;
} launched;
static void run_thread() {
    for (unsigned b = 0; b < launched.blocks; b++) {
        blockIdx.x = b;
        (*launched.kernel)();
        block->all.wait();
    }
    running->over = true;
}
// Launches a kernel on this PE. Its blocks run one after the other, and the threads of a block run at the same time.
static void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
    static std::minstd_rand random(job.me + 1);
    static std::vector<std::unique_ptr<char[]>> stacks;
    const size_t stack = 256 << 10;
    block_threads all(threads);
    block = &all, launched = {&kernel, blocks}, blockDim.x = threads, gridDim.x = blocks;
    while (stacks.size() < threads) stacks.emplace_back(new char[stack]);
    std::vector<context> contexts(threads);
    std::vector<unsigned> order;
    for (unsigned t = 0; t < threads; t++) {
        ucontext_t& at = contexts[t].at;
        getcontext(&at);
        at.uc_stack.ss_sp = stacks[t].get(), at.uc_stack.ss_size = stack, at.uc_link = &turns;
        makecontext(&at, run_thread, 0);
        order.push_back(t);
    }
    for (unsigned left = threads; left > 0;) {
        std::shuffle(order.begin(), order.end(), random);
        bool idle = true, stuck = true;
        for (unsigned t : order) {
            context& one = contexts[t];
            if (one.over || (one.word && *one.word == one.before)) continue;
            running = &one, one.polls = false, threadIdx.x = t;
            swapcontext(&turns, &one.at);
            idle &= one.polls, left -= one.over, stuck = false;
        }
        if (stuck) fail("threads of a block wait at different barriers");
        // All of them wait for other PEs.
        if (idle) sched_yield();
    }
}

// Memory that all processes share.
static char* shared_memory(size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("no memory");
    return (char*)at;
}

// Runs `work` on all PEs at the same time. Returns whether all of them succeeded.
static bool on_all(int n, size_t heap_bytes, std::function<bool(int, int)> is_mapped, const std::function<void(char*)>& work) {
    job.n_pes = n, job.heap_bytes = heap_bytes, job.is_mapped = is_mapped;
    job.heaps.clear();
    for (int pe = 0; pe < n; pe++) job.heaps.push_back(shared_memory(heap_bytes));
    std::vector<pid_t> running;
    fflush(stdout);
    for (int pe = 0; pe < n; pe++) {
        pid_t child = fork();
        if (child == 0) {
            job.me = pe;
            work(job.heaps[pe]);
            fflush(stdout);
            _exit(0);
        }
        running.push_back(child);
    }
    // The others may wait for one that has failed.
    bool well = true;
    for (size_t left = running.size(); left > 0; left--) {
        int status = 0;
        pid_t ended = wait(&status);
        for (pid_t& child : running) child = child == ended ? 0 : child;
        if (status == 0 || !well) continue;
        well = false;
        for (pid_t child : running)
            if (child != 0) kill(child, SIGKILL);
    }
    for (char* heap : job.heaps) munmap(heap, heap_bytes);
    return well;
}

// Pseudo-random numbers, the same in every run.
static symrail_u64 mix(std::initializer_list<symrail_u64> numbers) {
    symrail_u64 sum = 0x9e3779b97f4a7c15ull;
    for (symrail_u64 number : numbers) {
        sum = (sum ^ number) * 0xff51afd7ed558ccdull;
        sum ^= sum >> 29;
    }
    return sum;
}
