// The kernels of cu/pencils.cu as a library for tests on the CPU: a thread for each thread of a block.
#include "device.hpp"

#include <algorithm>
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

struct Copies {
    const decomp_copy* at;
    symrail_u64 count;
};

// The layout matches `Part` in emulated.rs.
struct Group {
    symrail_u64 first, legs;
    Copies send;
    struct {
        const decomp_fetched* at;
        symrail_u64 count;
    } fetches;
    Copies unpack_fetched, unpack;
};

// The layout matches `Call` in emulated.rs.
struct Call {
    const decomp_plan* plan;
    const decomp_leg* legs;
    symrail_u64 n;
    decomp_landing* landings;
    Copies pack;
    struct {
        const Group* at;
        symrail_u64 count;
    } groups;
    symrail_u64 unit, pe, timeout_ns;
    const symrail_u64* apart;
    const unsigned char* mapped;
    symrail_u64 hidden_from;
    // 3: the PEs meet, copy, and signal the others in a launch each; 2: the last two in one launch for each group; 1: all
    // in one launch.
    symrail_u64 launches;
    // Whether copy engines may run first: no kernel reads what they write.
    symrail_u64 fetch_first;
    // Whether a group is unpacked before the next one is exchanged.
    symrail_u64 in_turn;
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

static void copy(const Call& call, const Copies& copies, symrail_u64 first) {
    symrail_u64 count = copies.count;
    const decomp_copy* at = copies.at;
    const decomp_landing* landings = call.landings + first;
    if (count == 0) return;
    launch(call, 2 * (unsigned)count, DECOMP_THREADS, [&] {
        switch (call.unit) {
            case 1: return decomp_copy_1(at, count, landings);
            case 2: return decomp_copy_2(at, count, landings);
            case 4: return decomp_copy_4(at, count, landings);
            case 8: return decomp_copy_8(at, count, landings);
            default: return decomp_copy_16(at, count, landings);
        }
    });
}

static void copy_and_tell(const Call& call, const Group& group) {
    symrail_u64 count = group.send.count, meets = call.launches == 1, n = group.legs;
    const decomp_copy* at = group.send.at;
    const decomp_leg* legs = call.legs + group.first;
    decomp_landing* landings = call.landings + group.first;
    launch(call, 3 * (unsigned)count, DECOMP_THREADS, [&] {
        switch (call.unit) {
            case 1: return decomp_round_1(call.plan, legs, n, landings, at, count, meets);
            case 2: return decomp_round_2(call.plan, legs, n, landings, at, count, meets);
            case 4: return decomp_round_4(call.plan, legs, n, landings, at, count, meets);
            case 8: return decomp_round_8(call.plan, legs, n, landings, at, count, meets);
            default: return decomp_round_16(call.plan, legs, n, landings, at, count, meets);
        }
    });
}

// A round of a PE.
extern "C" void pencils_round(const Call* given) {
    const Call& call = *given;
    const Group *groups = call.groups.at, *end = groups + call.groups.count;
    copy(call, call.pack, 0);
    if (call.n != 0 && call.launches != 1)
        launch(call, 1, 2, [&] { decomp_meet(call.plan, call.legs, call.n, call.landings); });
    auto unpack = [&](const Group& group) { copy(call, group.unpack, group.first); };
    auto send_all = [&] { for (const Group* group = groups; group < end; group++) copy(call, group->send, group->first); };
    if (call.launches != 3) {
        for (const Group* group = groups; group < end; group++) {
            copy_and_tell(call, *group);
            if (call.in_turn) unpack(*group);
        }
        if (!call.in_turn) std::for_each(groups, end, unpack);
        return;
    }
    if (!call.fetch_first) send_all();
    for (const Group* group = groups; group < end; group++) {
        for (symrail_u64 i = 0; i < group->fetches.count; i++) {
            const auto& fetch = group->fetches.at[i];
            memcpy(fetch.to, fetch.from, fetch.bytes);
        }
        if (call.fetch_first && group == groups) send_all();
        copy(call, group->unpack_fetched, group->first);
    }
    if (call.n != 0) launch(call, 1, 2, [&] { decomp_arrive(call.plan, call.legs, call.n, call.landings); });
    std::for_each(groups, end, unpack);
}
