// Rounds of a plan on a GPU, for decomp/src/cuda: kernels one after the other on a stream.
//
// Words between pairs of PEs hold numbers of rounds, which only grow, like those of host plans
// (decomp/src/exchange.rs). Waits are in kernels of one block, or of a few blocks for which the host has reserved room
// (decomp/src/cuda/room.rs), so that kernels of other streams can always run.
#include "symrail_channels.cuh"
#include "copy.cuh"

// The kind of a landing, in its lowest two bits. Only this side knows DECOMP_VOID: nothing is exchanged in this round.
#define DECOMP_IN_PLACE 1ull
#define DECOMP_REFUSED 2ull
#define DECOMP_VOID 3ull
// Only this side knows this kind, too: this GPU does not reach the landing.
#define DECOMP_UNREACHED 4ull
// The words of a round hold twice its number. An arrived word holds one more when there is no block: exchange.rs.
#define DECOMP_NEXT 2ull
#define DECOMP_NOTHING 1ull
// The number of `Refusal::Unreached`: error.rs.
#define DECOMP_REFUSAL_UNREACHED 8ull
// The word that a wait was for, in the report.
#define DECOMP_WAITS_LANDING 0ull
#define DECOMP_WAITS_BLOCK 1ull

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

// Records for the host why nothing is exchanged with a PE.
static __device__ void decomp_note_refusal(const decomp_plan& plan, symrail_u64 refusal, symrail_u64 pe) {
    volatile decomp_refusal* report = (volatile decomp_refusal*)plan.refusal;
    report->pe = pe;
    __threadfence_system();
    report->refusal = refusal + 1;
}

// The landing for an offer that has arrived.
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

// Reads the other end's offer: where this PE's block may go. Requests the put at once if the proxy sends the block.
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

// With one block: begins the next round, signals to the others where their blocks may go, and reads where this PE's may
// go.
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

// With one block: waits for the others' blocks.
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

// With one block: signals to the others that their blocks have arrived, and waits for this PE's.
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
    // Later kernels may overwrite the memory that the proxy reads, so the kernel waits for its puts.
    proxied = __syncthreads_or(proxied);
    if (proxied && threadIdx.x == 0) symrail_quiet();
}

// Copies, with a group of blocks for each copy. A copy to a landing is listed twice, for both kinds of landing.
template <class T>
SYMRAIL_DEVICE void decomp_copy_all(const decomp_copy* copies, symrail_u64 n, const decomp_landing* landings) {
    symrail_u64 which = blockIdx.x % n;
    const decomp_copy* copy = copies + 2 * which;
    symrail_u64 to = copy->to;
    if (copy->leg != DECOMP_NO_LEG) {
        decomp_landing landing = landings[copy->leg];
        if (copy->at_landing ? landing.kind > DECOMP_IN_PLACE : !landing.came) return;
        if (copy->at_landing) {
            copy += landing.kind;
            to = landing.at + copy->to;
        }
    }
    decomp_copy_part<T>(*copy, to, blockIdx.x / n, gridDim.x / n);
}

// A thread's part of the meeting, where all peers are mapped. No data precede the words of an offer, so that each offer
// is one store.
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
// With one thread, after its block has copied its part of a leg's block: the last one signals the other end.
static __device__ __noinline__ void decomp_count_copied(const decomp_plan& plan, const decomp_leg& leg,
                                                        decomp_landing* landing, symrail_u64 kind, symrail_u64 blocks,
                                                        symrail_u64 round) {
    if (kind == DECOMP_VOID || symrail_add_gpu((symrail_u64)&landing->copied, 1) + 1 != blocks) return;
    symrail_fence_sys();
    symrail_st_gpu((symrail_u64)&landing->copied, 0);
    symrail_u64 arrived = (symrail_u64)symrail_ptr(decomp_arrived(plan, leg.there), (int)leg.pe);
    symrail_st_sys(arrived, kind == DECOMP_UNREACHED ? round + DECOMP_NOTHING : round);
}

// A round whose peers are all mapped, in which each leg has one copy, and the legs' copies are the first ones. With
// `meets` it is the whole round: the first block makes the offers, and each block waits for the one that it needs.
// Otherwise `decomp_meet` ran before it. The last block of a leg signals the other end, and the last of all blocks
// waits for the arrivals.
template <class T>
SYMRAIL_DEVICE void decomp_round_all(const decomp_plan* given, const decomp_leg* legs, symrail_u64 n,
                                     decomp_landing* landings, const decomp_copy* copies, symrail_u64 n_copies,
                                     symrail_u64 meets) {
    const decomp_plan& plan = *given;
    DECOMP_SHARED(decomp_landing, found);
    DECOMP_SHARED(symrail_u64, last);
    // A plain load is enough: the last block changes it after all blocks have read it.
    symrail_u64 round = *(const volatile symrail_u64*)plan.round + (meets ? DECOMP_NEXT : 0);
    symrail_u64 which = blockIdx.x % n_copies, blocks = gridDim.x / n_copies;
    const decomp_copy* copy = copies + 2 * which;
    symrail_u64 leg = copy->leg, to = copy->to;
    if (meets && blockIdx.x == 0) decomp_offer_all(plan, legs, n, round);
    if (leg != DECOMP_NO_LEG) {
        if (threadIdx.x == 0) {
            found = meets ? decomp_await_offer(plan, legs[leg], round) : landings[leg];
            // The last block and the kernel that unpacks read this.
            if (meets && blockIdx.x < n_copies) symrail_st_gpu((symrail_u64)&landings[leg].kind, found.kind);
        }
        __syncthreads();
        if (found.kind <= DECOMP_IN_PLACE) {
            copy += found.kind;
            to = found.at + copy->to;
        }
    }
    if (leg == DECOMP_NO_LEG || found.kind <= DECOMP_IN_PLACE) decomp_copy_part<T>(*copy, to, blockIdx.x / n_copies, blocks);
    __syncthreads();
    if (threadIdx.x == 0) {
        symrail_fence_sys();
        if (leg != DECOMP_NO_LEG) decomp_count_copied(plan, legs[leg], &landings[leg], found.kind, blocks, round);
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
