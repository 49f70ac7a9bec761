// The kernels of cu/ on threads of this machine: a thread for each thread of each block of each rank. Ranks start late
// at random, before each round and each wait. So does the proxy.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "device.hpp"

static symrail_u64 atomicAdd(symrail_u64* at, symrail_u64 n) { return symrail_add_gpu((symrail_u64)at, n); }

static symrail_u64 mix(symrail_u64 a, symrail_u64 b, symrail_u64 c) {
    symrail_u64 sum = (a * 0x9e3779b97f4a7c15ull ^ b) * 0xff51afd7ed558ccdull ^ c;
    sum = (sum ^ sum >> 33) * 0xc4ceb9fe1a85ec53ull;
    return sum ^ sum >> 29;
}
static void be_late(symrail_u64 seed) {
    timespec some = {0, (long)(seed % 4 == 0 ? seed / 4 % 2000000 : 0)};
    nanosleep(&some, nullptr);
}
static symrail_u64 chance() {
    static std::atomic<symrail_u64> count;
    return mix(count.fetch_add(1), 11, 13);
}

// A rank's proxy: puts followed by a word, and direct word updates. A put completes before a quiet ends, or earlier;
// the proxy reads its bytes then. Puts without a fence between them complete in any order.
struct Asked {
    void* to;
    const void* from;
    size_t bytes;
    symrail_u64 word, value;
    unsigned fence;
};
struct Proxy {
    std::mutex lock;
    std::vector<Asked> asked;
    unsigned fences = 0;
    // A lazy proxy completes no put before a fence or a quiet requires it.
    bool lazy = false;
    // A proxy that fails performs no put that is awaited.
    bool fails = false;
    symrail_u64 failed = 0;

    void put_one() {
        // The last of the puts that may complete next.
        size_t next = 0;
        for (size_t i = 0; i < asked.size(); i++)
            if (asked[i].fence == asked[0].fence) next = i;
        Asked one = asked[next];
        memcpy(one.to, one.from, one.bytes);
        if (one.word != 0) symrail_st_sys(one.word, one.value);
        asked.erase(asked.begin() + next);
    }
    void put(Asked one) {
        std::lock_guard<std::mutex> all(lock);
        one.fence = fences;
        asked.push_back(one);
        while (!lazy && !asked.empty() && chance() % 2 == 0) put_one();
    }
    void fence() {
        std::lock_guard<std::mutex> all(lock);
        fences++;
    }
    void quiet() {
        std::lock_guard<std::mutex> all(lock);
        while (!asked.empty()) put_one();
    }
};
static thread_local Proxy* proxy;
#define SYMRAIL_SIGNAL_SET 9
// A word without data waits only for the puts that a fence has ordered before it.
static void symrailx_signal_op(symrail_u64* word, symrail_u64 value, int, int pe) {
    symrail_u64 there = (symrail_u64)word + apart_of[pe];
    std::lock_guard<std::mutex> all(proxy->lock);
    while (!proxy->asked.empty() && proxy->asked[0].fence != proxy->fences) proxy->put_one();
    symrail_st_sys(there, value);
}
static void symrail_putmem_signal_nbi(void* to, const void* from, size_t bytes, symrail_u64* word, symrail_u64 value,
                                      int, int pe) {
    symrail_u64 apart = apart_of[pe];
    proxy->put({(char*)to + apart, from, bytes, (symrail_u64)word + apart, value, 0});
}
// A put that is awaited. The proxy may fail to perform it.
static symrail_u64 symrail_failed_requests() { return proxy->failed; }
static void symrail_putmem(void* to, const void* from, size_t bytes, int pe) {
    if (proxy->fails) proxy->failed++;
    else memcpy((char*)to + apart_of[pe], from, bytes);
}
static void symrailx_putmem_block(void* to, const void* from, size_t bytes, int pe) {
    symrail_copy<symrail_block_scope>((char*)to + apart_of[pe], from, bytes);
    __syncthreads();
}
static void proxy_fence() {
    __threadfence();
    proxy->fence();
}
static void proxy_quiet() { proxy->quiet(); }
#define symrail_fence proxy_fence
#define symrail_quiet proxy_quiet

#include "symrail_channels.cuh"
// Each wait begins late.
template <class F>
static bool await_late(const symrail_alarm& alarm, F& holds, const symrail_u64& who, symrail_u64 place) {
    if (chance() % 16 == 0) be_late(chance());
    return symrail_await(alarm, holds, who, place);
}
#define symrail_await await_late

#include "plan.cuh"

#include "overlap.cu"
#include "point_to_point.cu"

// The longest time that a rank that is alive may take.
static const symrail_u64 LATE = 60000000000ull;
// The time limit of a wait for a rank that never arrives.
static const symrail_u64 SOON = 50000000;

static void expect(bool well, const char* what, symrail_u64 rank, symrail_u64 round) {
    if (well) return;
    printf("%s: rank %llu, round %llu\n", what, rank, round);
    fflush(stdout);
    _Exit(1);
}

// A rank: its symmetric heap, which begins with the words, and its plan.
struct Rank {
    symrail_u64 me;
    std::vector<symrail_u64> heap, image, report, apart;
    symrail_u64 timeout = LATE;
    std::unique_ptr<Proxy> asked = std::make_unique<Proxy>();
    overlap_plan* plan() { return (overlap_plan*)image.data(); }
    symrail_u64 base() { return (symrail_u64)heap.data(); }

    void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
        std::vector<std::thread> all;
        std::vector<Threads> each(blocks);
        for (unsigned b = 0; b < blocks; b++) {
            pthread_barrier_init(&each[b].barrier, nullptr, threads);
            for (unsigned t = 0; t < threads; t++)
                all.emplace_back([&, b, t] {
                    symrail_state = State{(int)me, timeout, 0};
                    block = &each[b], thread_rank = t, block_size = threads, apart_of = apart.data();
                    proxy = asked.get();
                    threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = blocks;
                    kernel();
                });
        }
        for (std::thread& one : all) one.join();
        for (Threads& one : each) pthread_barrier_destroy(&one.barrier);
    }
};
static std::vector<Rank> ranks_of(unsigned n, size_t heap_words, size_t plan_words) {
    std::vector<Rank> ranks(n);
    for (unsigned me = 0; me < n; me++) {
        Rank& it = ranks[me];
        it.me = me, it.heap.resize(heap_words), it.image.resize(sizeof(overlap_plan) / 8 + n + 64 * n), it.report.resize(8);
        overlap_plan& plan = *it.plan();
        plan.words = it.base(), plan.round = (symrail_u64)&plan.counted;
        plan.alarm = {(symrail_u64)it.report.data(), it.base() + 8 * plan_words};
        plan.gone = plan_words, plan.pes = n;
        for (unsigned pe = 0; pe < n; pe++) it.image[sizeof(overlap_plan) / 8 + pe] = pe;
    }
    for (Rank& it : ranks)
        for (Rank& other : ranks) it.apart.push_back(other.base() - it.base());
    return ranks;
}
static void on_all(std::vector<Rank>& ranks, const std::function<void(Rank&)>& work) {
    std::vector<std::thread> all;
    for (Rank& it : ranks) all.emplace_back([&] { work(it); });
    for (std::thread& one : all) one.join();
}

static const unsigned BLOCKS = 3, THREADS = 4, MOST_BLOCKS = 5;
static symrail_u64 block_word(unsigned n, unsigned kind, unsigned rank) { return 1 + MOST_BLOCKS * (kind * n + rank); }
static const size_t HEADS = 16 * OVERLAP_PACKET_HEADS;
