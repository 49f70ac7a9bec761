// Rounds of a plan on a GPU, for decomp/src/cuda: kernels one behind the other on a stream.
//
// Words between pairs of PEs hold numbers of rounds, which only grow, as those of host plans do
// (decomp/src/exchange.rs). Only kernels of one block wait, and those of a few blocks for which the host has found room
// (decomp/src/cuda/room.rs), so that those of other streams always find room.
#include "symrail_channels.cuh"
#include "copy.cuh"

// What a landing is, in its lowest two bits; and what only this side knows: nothing is exchanged in this round.
#define DECOMP_IN_PLACE 1ull
#define DECOMP_REFUSED 2ull
#define DECOMP_VOID 3ull
// ... because this GPU does not reach the landing.
#define DECOMP_UNREACHED 4ull
// Words of a round hold twice its number, and an arrived word one more when there is no block: exchange.rs.
#define DECOMP_NEXT 2ull
#define DECOMP_NOTHING 1ull
// The number of `Refusal::Unreached`: error.rs.
#define DECOMP_REFUSAL_UNREACHED 8ull
// Of which word a wait was: for the report.
#define DECOMP_WAITS_LANDING 0ull
#define DECOMP_WAITS_BLOCK 1ull

// As table.rs has them.
struct decomp_plan {
    // For each slot where this PE's block may go, and the round; behind these, by slot, the round whose block has come.
    // Rounds are numbers of which each is DECOMP_NEXT more than the one before.
    symrail_u64 words, slots;
    // The round, in this device's memory.
    symrail_u64 round;
    symrail_alarm alarm;
    // For the host: what the last refusal was, plus one, and whose.
    symrail_u64 refusal;
    // Blocks of a launch of `decomp_round` that have done their copies.
    symrail_u64 done;
};
struct decomp_leg {
    symrail_u64 pe, here, there;
    // Where the other end's block may go here.
    symrail_u64 offer;
    // What is put by the proxy, if anything is.
    symrail_u64 source, bytes;
};
// Where a block of this round may go, by an address of this GPU, and what that is; and whether the other end's has
// come; and blocks of a launch that have copied theirs.
struct decomp_landing {
    symrail_u64 at, kind, came, copied;
};

SYMRAIL_DEVICE symrail_u64* decomp_pair(const decomp_plan& plan, symrail_u64 slot) {
    return (symrail_u64*)plan.words + 2 * slot;
}
SYMRAIL_DEVICE symrail_u64* decomp_arrived(const decomp_plan& plan, symrail_u64 slot) {
    return (symrail_u64*)plan.words + 2 * plan.slots + slot;
}
// The symmetric address of an offer.
SYMRAIL_DEVICE void* decomp_place(const decomp_plan& plan, symrail_u64 offered) {
    return (void*)(plan.words + ((long long)offered >> 2));
}
SYMRAIL_DEVICE bool decomp_await(const decomp_plan& plan, const symrail_u64* word, symrail_u64 round, symrail_u64 pe,
                                 symrail_u64 place) {
    auto set = [word, round]() { return symrail_ld_acquire(word) >= round; };
    return symrail_await(plan.alarm, set, pe, place);
}

// Leaves for the host why nothing is exchanged with a PE.
static __device__ void decomp_note_refusal(const decomp_plan& plan, symrail_u64 refusal, symrail_u64 pe) {
    volatile symrail_u64* words = (volatile symrail_u64*)plan.refusal;
    words[1] = pe;
    __threadfence_system();
    words[0] = refusal + 1;
}

// What an offer means, once it has come.
static __device__ decomp_landing decomp_understand(const decomp_plan& plan, const decomp_leg& leg, symrail_u64 offered) {
    decomp_landing landing = {0, offered & 3, 0, 0};
    if (landing.kind == DECOMP_REFUSED) decomp_note_refusal(plan, offered >> 2, leg.pe);
    if ((leg.offer & 3) == DECOMP_REFUSED) landing.kind = DECOMP_REFUSED;
    if (landing.kind == DECOMP_REFUSED || leg.source != 0 || leg.bytes == 0) return landing;
    landing.at = (symrail_u64)symrail_ptr(decomp_place(plan, offered), (int)leg.pe);
    if (landing.at == 0) {
        decomp_note_refusal(plan, DECOMP_REFUSAL_UNREACHED, leg.pe);
        landing.kind = DECOMP_UNREACHED;
    }
    return landing;
}

// What the other end has offered: where this PE's block may go. What the proxy has to bring is asked for at once.
static __device__ decomp_landing decomp_take_offer(const decomp_plan& plan, const decomp_leg& leg, symrail_u64 round) {
    const symrail_u64* pair = decomp_pair(plan, leg.here);
    decomp_landing landing = {0, DECOMP_VOID, 0, 0};
    if (!decomp_await(plan, pair + 1, round, leg.pe, DECOMP_WAITS_LANDING)) return landing;
    symrail_u64 offered = symrail_ld_sys((symrail_u64)pair);
    landing = decomp_understand(plan, leg, offered);
    if (landing.kind <= DECOMP_IN_PLACE && leg.source != 0 && leg.bytes != 0)
        symrail_putmem_signal_nbi(decomp_place(plan, offered), (const void*)leg.source, leg.bytes,
                                  decomp_arrived(plan, leg.there), round, SYMRAIL_SIGNAL_SET, (int)leg.pe);
    return landing;
}

// By one block: begins the next round, tells the others where their blocks may go, and learns where this PE's may.
extern "C" __global__ void __launch_bounds__(256)
    decomp_meet(const decomp_plan* given, const decomp_leg* legs, symrail_u64 n, decomp_landing* landings) {
    const decomp_plan plan = *given;
    symrail_u64 round = *(const symrail_u64*)plan.round + DECOMP_NEXT;
    __syncthreads();
    if (threadIdx.x == 0) *(symrail_u64*)plan.round = round;
    for (symrail_u64 i = threadIdx.x; i < n; i += blockDim.x) {
        symrail_u64* pair = decomp_pair(plan, legs[i].there);
        symrail_putmem_signal_nbi(pair, &legs[i].offer, sizeof(symrail_u64), pair + 1, round, SYMRAIL_SIGNAL_SET,
                                  (int)legs[i].pe);
    }
    for (symrail_u64 i = threadIdx.x; i < n; i += blockDim.x) landings[i] = decomp_take_offer(plan, legs[i], round);
}

// By one block: waits for the others' blocks.
SYMRAIL_DEVICE void decomp_await_blocks(const decomp_plan& plan, const decomp_leg* legs, symrail_u64 n,
                                        decomp_landing* landings, symrail_u64 round) {
    for (symrail_u64 i = threadIdx.x; i < n; i += blockDim.x) {
        const symrail_u64* arrived = decomp_arrived(plan, legs[i].here);
        bool came = decomp_await(plan, arrived, round, legs[i].pe, DECOMP_WAITS_BLOCK);
        if (came && symrail_ld_sys((symrail_u64)arrived) == round + DECOMP_NOTHING) {
            decomp_note_refusal(plan, DECOMP_REFUSAL_UNREACHED, legs[i].pe);
            came = false;
        }
        landings[i].came = came && symrail_ld_gpu((symrail_u64)&landings[i].kind) != DECOMP_REFUSED;
    }
}

// By one block: tells the others that their blocks have come, and waits for this PE's.
extern "C" __global__ void __launch_bounds__(256)
    decomp_arrive(const decomp_plan* given, const decomp_leg* legs, symrail_u64 n, decomp_landing* landings) {
    const decomp_plan plan = *given;
    symrail_u64 round = *(const symrail_u64*)plan.round;
    int proxied = 0;
    for (symrail_u64 i = threadIdx.x; i < n; i += blockDim.x) {
        const decomp_leg leg = legs[i];
        symrail_u64 kind = landings[i].kind;
        bool was_put = leg.source != 0 && leg.bytes != 0 && kind <= DECOMP_IN_PLACE;
        proxied |= was_put;
        if (kind == DECOMP_VOID || was_put) continue;
        symrail_fence_sys();
        symrail_u64 told = kind == DECOMP_UNREACHED ? round + DECOMP_NOTHING : round;
        symrailx_signal_op(decomp_arrived(plan, leg.there), told, SYMRAIL_SIGNAL_SET, (int)leg.pe);
    }
    decomp_await_blocks(plan, legs, n, landings, round);
    // What the proxy reads from may be written again by what follows.
    proxied = __syncthreads_or(proxied);
    if (proxied && threadIdx.x == 0) symrail_quiet();
}

// Copies, with a group of blocks for each. A copy to a landing is there twice, for both kinds of it.
template <class T>
SYMRAIL_DEVICE void decomp_copy_all(const decomp_copy* copies, symrail_u64 n, const decomp_landing* landings) {
    symrail_u64 which = blockIdx.x % n;
    const decomp_copy* copy = copies + 2 * which;
    symrail_u64 to = copy->to;
    if (copy->leg != ~0ull) {
        decomp_landing landing = landings[copy->leg];
        if (copy->at_landing ? landing.kind > DECOMP_IN_PLACE : !landing.came) return;
        if (copy->at_landing) {
            copy += landing.kind;
            to = landing.at + copy->to;
        }
    }
    decomp_copy_part<T>(*copy, to, blockIdx.x / n, gridDim.x / n);
}

// A thread's part of the meeting, where all peers are mapped: what their words are told has no other data before it, so
// that each offer is one store.
SYMRAIL_DEVICE void decomp_offer_all(const decomp_plan& plan, const decomp_leg* legs, symrail_u64 n, symrail_u64 round) {
    for (symrail_u64 i = threadIdx.x; i < n; i += blockDim.x) {
        symrail_u64 pair = (symrail_u64)symrail_ptr(decomp_pair(plan, legs[i].there), (int)legs[i].pe);
        symrail_st_pair(pair, legs[i].offer, round);
    }
}
static __device__ __noinline__ decomp_landing decomp_await_offer(const decomp_plan& plan, const decomp_leg& leg,
                                                                 symrail_u64 round) {
    symrail_u64 pair = (symrail_u64)decomp_pair(plan, leg.here), offered = 0;
    auto came = [pair, round, &offered]() {
        symrail_u64 number;
        symrail_ld_pair(pair, offered, number);
        return number >= round;
    };
    if (!symrail_await(plan.alarm, came, leg.pe, DECOMP_WAITS_LANDING)) return decomp_landing{0, DECOMP_VOID, 0, 0};
    return decomp_understand(plan, leg, offered);
}
// By one thread, when its block has copied its part of a leg's block: the last one tells the other end.
static __device__ __noinline__ void decomp_count_copied(const decomp_plan& plan, const decomp_leg& leg,
                                                        decomp_landing* landing, symrail_u64 kind, symrail_u64 blocks,
                                                        symrail_u64 round) {
    if (kind == DECOMP_VOID || symrail_add_gpu((symrail_u64)&landing->copied, 1) + 1 != blocks) return;
    symrail_fence_sys();
    symrail_st_gpu((symrail_u64)&landing->copied, 0);
    symrail_u64 arrived = (symrail_u64)symrail_ptr(decomp_arrived(plan, leg.there), (int)leg.pe);
    symrail_st_sys(arrived, kind == DECOMP_UNREACHED ? round + DECOMP_NOTHING : round);
}

// A round of which all peers are mapped, and each leg has one copy, the first of all. With `meets` all of it: the first
// block makes the offers, and each waits for the one that it needs. Else `decomp_meet` was before it. The last block of
// a leg tells the other end, and the last of all waits for what comes.
template <class T>
SYMRAIL_DEVICE void decomp_round_all(const decomp_plan* given, const decomp_leg* legs, symrail_u64 n,
                                     decomp_landing* landings, const decomp_copy* copies, symrail_u64 n_copies,
                                     symrail_u64 meets) {
    const decomp_plan& plan = *given;
    DECOMP_SHARED(decomp_landing, found);
    DECOMP_SHARED(symrail_u64, last);
    // A plain load: the last block changes it when all have read it.
    symrail_u64 round = *(const volatile symrail_u64*)plan.round + (meets ? DECOMP_NEXT : 0);
    symrail_u64 which = blockIdx.x % n_copies, blocks = gridDim.x / n_copies;
    const decomp_copy* copy = copies + 2 * which;
    symrail_u64 leg = copy->leg, to = copy->to;
    if (meets && blockIdx.x == 0) decomp_offer_all(plan, legs, n, round);
    if (leg != ~0ull) {
        if (threadIdx.x == 0) {
            found = meets ? decomp_await_offer(plan, legs[leg], round) : landings[leg];
            // For the last block, and for what unpacks.
            if (meets && blockIdx.x < n_copies) symrail_st_gpu((symrail_u64)&landings[leg].kind, found.kind);
        }
        __syncthreads();
        if (found.kind <= DECOMP_IN_PLACE) {
            copy += found.kind;
            to = found.at + copy->to;
        }
    }
    if (leg == ~0ull || found.kind <= DECOMP_IN_PLACE) decomp_copy_part<T>(*copy, to, blockIdx.x / n_copies, blocks);
    __syncthreads();
    if (threadIdx.x == 0) {
        symrail_fence_sys();
        if (leg != ~0ull) decomp_count_copied(plan, legs[leg], &landings[leg], found.kind, blocks, round);
        last = symrail_add_gpu(plan.done, 1) + 1 == gridDim.x;
    }
    __syncthreads();
    if (!last) return;
    if (threadIdx.x == 0) {
        symrail_st_gpu(plan.done, 0);
        if (meets) symrail_st_gpu(plan.round, round);
    }
    decomp_await_blocks(plan, legs, n, landings, round);
}

#define DECOMP_KERNELS(BYTES, TYPE)                                                                               \
    extern "C" __global__ void __launch_bounds__(DECOMP_THREADS, DECOMP_AT_ONCE)                                  \
        decomp_copy_##BYTES(const decomp_copy* copies, symrail_u64 n, const decomp_landing* landings) {           \
        decomp_copy_all<TYPE>(copies, n, landings);                                                               \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(DECOMP_THREADS, DECOMP_AT_ONCE)                                  \
        decomp_round_##BYTES(const decomp_plan* plan, const decomp_leg* legs, symrail_u64 n,                      \
                             decomp_landing* landings, const decomp_copy* copies, symrail_u64 n_copies,           \
                             symrail_u64 meets) {                                                                 \
        decomp_round_all<TYPE>(plan, legs, n, landings, copies, n_copies, meets);                                 \
    }
DECOMP_KERNELS(1, unsigned char)
DECOMP_KERNELS(2, unsigned short)
DECOMP_KERNELS(4, symrail_u32)
DECOMP_KERNELS(8, symrail_u64)
DECOMP_KERNELS(16, symrail_wide)
