// The kernels of cu/pencils.cu as a library for tests on the CPU: a thread for each thread of a block.
#include "device.hpp"

#include <thread>
#include <vector>

// A place in memory for each name that the kernels use, by its first letter.
#define DECOMP_SHARED(TYPE, NAME) TYPE& NAME = *(TYPE*)(shared_of + (#NAME[0] - 'a') * SHARED_BYTES)
#define SYMRAIL_SIGNAL_SET 9

// The shared memory of a block.
static const size_t SHARED_BYTES = 20480;
static thread_local char* shared_of;
// How PEs are reached: by the proxy, by loads and stores, or by loads and stores up to an address.
static thread_local const unsigned char* mapped_of;
static thread_local symrail_u64 hidden_from;

SYMRAIL_DEVICE void* symrail_ptr(const void* at, int pe) {
    if (mapped_of[pe] == 2 && (symrail_u64)at >= hidden_from) return nullptr;
    return mapped_of[pe] ? (void*)((symrail_u64)at + apart_of[pe]) : nullptr;
}
SYMRAIL_DEVICE void symrailx_signal_op(symrail_u64* word, symrail_u64 value, int, int pe) {
    symrail_st_sys((symrail_u64)word + apart_of[pe], value);
}
SYMRAIL_DEVICE void symrail_putmem_signal_nbi(void* to, const void* from, size_t bytes, symrail_u64* word,
                                              symrail_u64 value, int op, int pe) {
    memcpy((void*)((symrail_u64)to + apart_of[pe]), from, bytes);
    symrailx_signal_op(word, value, op, pe);
}

#include "symrail_channels.cuh"
#include "layout.cuh"
#undef DECOMP_THREADS
#define DECOMP_THREADS 32
#include "pencils.cu"

// The layout matches `Call` in emulated.rs.
struct Call {
    const decomp_plan* plan;
    const decomp_leg* legs;
    symrail_u64 n;
    decomp_landing* landings;
    struct {
        const decomp_copy* at;
        symrail_u64 count;
    } copies[3];
    struct {
        const decomp_fetched* at;
        symrail_u64 count;
    } fetches;
    symrail_u64 unit, pe, timeout_ns;
    const symrail_u64* apart;
    const unsigned char* mapped;
    symrail_u64 hidden_from;
    // 3: the PEs meet, copy, and signal the others in a launch each; 2: the last two in one launch; 1: all in one
    // launch.
    symrail_u64 launches;
    // Whether copy engines may run first: no kernel reads what they write.
    symrail_u64 fetch_first;
};

// Blocks run one after the other.
template <class F>
static void launch(const Call& call, unsigned blocks, unsigned threads, const F& kernel) {
    for (unsigned b = 0; b < blocks; b++) {
        Threads all_threads;
        std::vector<symrail_wide> shared(26 * SHARED_BYTES / sizeof(symrail_wide));
        pthread_barrier_init(&all_threads.barrier, nullptr, threads);
        all_threads.votes[0] = 0;
        std::vector<std::thread> all;
        for (unsigned t = 0; t < threads; t++)
            all.emplace_back([&, t] {
                symrail_state = State{(int)call.pe, call.timeout_ns, 0};
                block = &all_threads, thread_rank = t, block_size = threads;
                apart_of = call.apart, mapped_of = call.mapped, hidden_from = call.hidden_from;
                shared_of = (char*)shared.data();
                threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = blocks;
                kernel();
            });
        for (std::thread& one : all) one.join();
        pthread_barrier_destroy(&all_threads.barrier);
    }
}

static void copy(const Call& call, int which) {
    symrail_u64 count = call.copies[which].count;
    const decomp_copy* at = call.copies[which].at;
    if (count == 0) return;
    launch(call, 2 * (unsigned)count, DECOMP_THREADS, [&] {
        switch (call.unit) {
            case 1: return decomp_copy_1(at, count, call.landings);
            case 2: return decomp_copy_2(at, count, call.landings);
            case 4: return decomp_copy_4(at, count, call.landings);
            case 8: return decomp_copy_8(at, count, call.landings);
            default: return decomp_copy_16(at, count, call.landings);
        }
    });
}

static void copy_and_tell(const Call& call) {
    symrail_u64 count = call.copies[1].count, meets = call.launches == 1;
    const decomp_copy* at = call.copies[1].at;
    launch(call, 3 * (unsigned)count, DECOMP_THREADS, [&] {
        switch (call.unit) {
            case 1: return decomp_round_1(call.plan, call.legs, call.n, call.landings, at, count, meets);
            case 2: return decomp_round_2(call.plan, call.legs, call.n, call.landings, at, count, meets);
            case 4: return decomp_round_4(call.plan, call.legs, call.n, call.landings, at, count, meets);
            case 8: return decomp_round_8(call.plan, call.legs, call.n, call.landings, at, count, meets);
            default: return decomp_round_16(call.plan, call.legs, call.n, call.landings, at, count, meets);
        }
    });
}

// A round of a PE.
extern "C" void pencils_round(const Call* given) {
    const Call& call = *given;
    copy(call, 0);
    if (call.n != 0 && call.launches != 1)
        launch(call, 1, 2, [&] { decomp_meet(call.plan, call.legs, call.n, call.landings); });
    if (call.launches != 3) {
        copy_and_tell(call);
        copy(call, 2);
        return;
    }
    if (!call.fetch_first) copy(call, 1);
    for (symrail_u64 i = 0; i < call.fetches.count; i++) {
        const auto& fetch = call.fetches.at[i];
        memcpy(fetch.to, fetch.from, fetch.bytes);
    }
    if (call.fetch_first) copy(call, 1);
    if (call.n != 0) launch(call, 1, 2, [&] { decomp_arrive(call.plan, call.legs, call.n, call.landings); });
    copy(call, 2);
}
