// High throughput: how a call begins and ends, and how it ends when a rank does not come.
//
// Every rank announces each call to all ranks by a header: what it is, and how many tokens it has for whom. So all know
// where the rows of each rank come to lie at each other one. A rank announces a call when it has ended the one before:
// who has all headers may write anywhere. Words are set to the number of the call, and nothing is cleared.
//
// The first thread whose wait is over raises an alarm, and all other waits end with it: of this call, and of all that
// are launched behind it.
#ifndef SYMRAIL_EP_CALLS_CUH
#define SYMRAIL_EP_CALLS_CUH

#include "routes.cuh"

// In this GPU's memory.
struct progress {
    // Calls that are over; what becomes of the present one; the call in which ranks were late, or 0.
    symrail_u64 calls, state, alarm;
    // Of the kernel that runs: what its warps have taken, and blocks that have come to their end.
    symrail_u64 tickets, blocks;
};
enum { NOT_MADE, REFUSED, GOES };

// In memory of the host, which reads it at any time.
struct record {
    // The first thing that went wrong: what, of which rank, what it is here, and what there. Calls that are over.
    symrail_u64 wrong, other, here, there, calls;
    // For each rank the last call that it has announced here, and then whether it was late.
    __device__ volatile symrail_u64* announced() const { return (volatile symrail_u64*)(this + 1); }
};
enum { NOTHING, NO_EXPERT, DIFFERENT, NO_ROOM = 8, LATE };

// What ranks compare: the kind of the call, bytes of a row, words of scales, slots, and the routes of an earlier call.
#define COMPARED 5

struct header {
    symrail_u64 compared[COMPARED];
    // Tokens for each rank, then those for each host, and then slots of each of the reader's experts.
    __device__ symrail_u32* counts() const { return (symrail_u32*)(this + 1); }
};

static __device__ symrail_u64 header_bytes(const parameters& p) {
    return up16(sizeof(header) + 4 * (p.ranks + p.hosts + p.share));
}
static __device__ const header& header_of(const parameters& p, symrail_u64 call, symrail_u64 rank) {
    return *(const header*)(p.headers + (call % 2 * p.ranks + rank) * header_bytes(p));
}
static __device__ volatile progress& progress_of(const parameters& p) { return *(volatile progress*)p.progress; }
static __device__ volatile record& record_of(const parameters& p) { return *(volatile record*)p.record; }
static __device__ symrail_u64 call_of(const parameters& p) { return progress_of(p).calls + 1; }
static __device__ bool is_over(const parameters& p) { return progress_of(p).alarm != 0; }
// Numbers that the warps of a kernel take one after the other, so that none of them is late because of its share. The
// next one is asked for while the present one is worked on.
struct tickets {
    symrail_u64 *at, ahead;
    __device__ explicit tickets(const parameters& p) : at(&((progress*)p.progress)->tickets), ahead(0) { ask(); }
    __device__ void ask() {
        if (threadIdx.x % 32 == 0) ahead = atomicAdd(at, 1ull);
    }
    __device__ symrail_u64 take() {
        symrail_u64 mine = __shfl_sync(~0u, ahead, 0);
        ask();
        return mine;
    }
};
// By all blocks of a kernel, when they have done what they do: whether this one is the last. What the others have
// written is visible to it, and behind its next fence also to other ranks.
static __device__ bool is_last_block(const parameters& p) {
    progress* now = (progress*)p.progress;
    bool last = false;
    __syncthreads();
    if (threadIdx.x == 0) {
        symrail_fence_sys();
        last = atomicAdd(&now->blocks, 1ull) + 1 == gridDim.x;
        if (last) now->blocks = now->tickets = 0;
    }
    last = __syncthreads_or(last);
    if (last) symrail_fence_sys();
    return last;
}

// Asked by all threads of a block, which get one answer: another block may raise the alarm meanwhile.
static __device__ bool goes(const parameters& p) {
    return !__syncthreads_or(progress_of(p).state != GOES || is_over(p));
}

static __device__ void tell_host(const parameters& p, symrail_u64 wrong, symrail_u64 other, symrail_u64 here,
                                 symrail_u64 there) {
    volatile record& told = record_of(p);
    if (told.wrong != NOTHING) return;
    told.other = other;
    told.here = here;
    told.there = there;
    symrail_fence_sys();
    told.wrong = wrong;
}
static __device__ void refuse(const parameters& p, symrail_u64 state, symrail_u64 wrong, symrail_u64 other,
                              symrail_u64 here, symrail_u64 there) {
    progress_of(p).state = state;
    tell_host(p, wrong, other, here, there);
}

// Whether a word has come to the call's number, or there is an alarm, which is looked at now and then.
struct come_or_over {
    symrail_u64 call;
    const volatile symrail_u64* alarm;
    mutable symrail_u32 polls;
    // For who waits: when that began, about, and whether the alarm has ended it.
    symrail_u64& since;
    bool& over;
    __device__ bool operator()(symrail_u64 now) const {
        if (now >= call) return true;
        if ((++polls & 15u) != 0) return false;
        if (since == 0) since = symrail_now();
        return over = *alarm != 0;
    }
};
// Waits for a word that a rank sets in this call, maybe by way of another one. If it is not set in time, both are late.
// An alarm ends waits for others, too: of those only ranks for which about the whole time was waited are late.
static __device__ bool has_set(const parameters& p, symrail_u64* word, symrail_u64 call, symrail_u64 rank,
                               symrail_u64 by_way_of) {
    symrail_u64 since = 0;
    bool over = false;
    come_or_over holds = {call, &progress_of(p).alarm, 0, since, over};
    if (symrail_wait_for(word, holds) >= call) return true;
    if (over && symrail_now() - since < symrail_state.timeout_ns / 8 * 7) return false;
    volatile symrail_u64* late = ((const record*)p.record)->announced() + p.ranks;
    late[rank] = 1;
    late[by_way_of] = 1;
    symrail_fence_sys();
    if (atomicCAS((symrail_u64*)&((progress*)p.progress)->alarm, 0ull, call) == 0) tell_host(p, LATE, rank, 0, 0);
    return false;
}

// A block says to a rank what is called.
static __device__ void announce(const parameters& p, const routes& r, symrail_u64 rank, symrail_u64 first, symrail_u64 kind,
                                symrail_u64 bytes, symrail_u64 scales, symrail_u64 k) {
    __shared__ symrail_u64 common;
    symrail_u64 call = call_of(p);
    if (is_over(p) || (first && *(const symrail_u64*)r.wrong_slot != ~0ull)) return;
    char* there = (char*)&header_of(p, call, p.me);
    char* mapped = (char*)symrail_ptr(there, (int)rank);
    char* to = mapped != nullptr ? mapped : (char*)p.headers_out + (call % 2 * p.ranks + rank) * header_bytes(p);
    header& made = *(header*)to;
    // A number that the routes of all ranks have in common.
    if (threadIdx.x == 0) common = 0;
    __syncthreads();
    for (symrail_u64 i = threadIdx.x; !first && i < p.ranks * p.ranks; i += blockDim.x)
        atomicAdd(&common, ((i + 1) * 0x9e3779b97f4a7c15ull) * (tokens_of(p, r, i / p.ranks, i % p.ranks) + 1));
    __syncthreads();
    symrail_u64 compared[COMPARED] = {kind, bytes, scales, k, common};
    if (threadIdx.x < COMPARED) made.compared[threadIdx.x] = compared[threadIdx.x];
    const symrail_u32* slots = (const symrail_u32*)r.per_expert + rank * p.share;
    symrail_u32* counts = made.counts();
    for (symrail_u64 i = threadIdx.x; i < p.ranks; i += blockDim.x) counts[i] = tokens_of(p, r, p.me, i);
    for (symrail_u64 i = threadIdx.x; i < p.hosts; i += blockDim.x) counts[p.ranks + i] = crossings_of(p, r, p.me, i);
    for (symrail_u64 i = threadIdx.x; i < p.share; i += blockDim.x) counts[p.ranks + p.hosts + i] = slots[i];
    deliver(there, to, header_bytes(p), (symrail_u64*)p.header_words + p.me, call, rank, mapped != nullptr);
}

// A block waits for all ranks' headers, and sees whether they go together.
static __device__ void collect(const parameters& p, const routes& r, symrail_u64 first) {
    // For each rank the rows that come there, and those that are gathered there for sums.
    __shared__ symrail_u64 sums[MOST_RANKS], gathered[MOST_RANKS];
    symrail_u64 call = call_of(p);
    if (threadIdx.x == 0) progress_of(p).state = NOT_MADE;
    if (is_over(p)) {
        // Something else may have been wrong before, in whose place the alarm was not told.
        if (threadIdx.x == 0) tell_host(p, LATE, p.me, 0, 0);
        return;
    }
    if (first && *(const symrail_u64*)r.wrong_slot != ~0ull) {
        const symrail_u64* wrong = (const symrail_u64*)r.wrong_slot;
        if (threadIdx.x == 0) refuse(p, NOT_MADE, NO_EXPERT, p.me, wrong[0], wrong[1]);
        return;
    }
    bool late = false;
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) {
        bool come = has_set(p, (symrail_u64*)p.header_words + rank, call, rank, rank);
        if (come) ((const record*)p.record)->announced()[rank] = call;
        late |= !come;
    }
    if (__syncthreads_or(late)) return;
    symrail_u32 *matrix = (symrail_u32*)r.matrix, *crossings = (symrail_u32*)r.crossings;
    for (symrail_u64 i = threadIdx.x; first && i < p.ranks * p.ranks; i += blockDim.x)
        matrix[i] = header_of(p, call, i / p.ranks).counts()[i % p.ranks];
    for (symrail_u64 i = threadIdx.x; first && i < p.ranks * p.hosts; i += blockDim.x)
        crossings[i] = header_of(p, call, i / p.hosts).counts()[p.ranks + i % p.hosts];
    for (symrail_u64 i = threadIdx.x; first && i < p.share; i += blockDim.x) {
        symrail_u32 slots = 0;
        for (symrail_u64 rank = 0; rank < p.ranks; rank++)
            slots += header_of(p, call, rank).counts()[p.ranks + p.hosts + i];
        ((symrail_u32*)r.come)[i] = slots;
    }
    __syncthreads();
    for (symrail_u64 to = threadIdx.x; to < p.ranks; to += blockDim.x) {
        sums[to] = gathered[to] = 0;
        for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
            sums[to] += tokens_of(p, r, rank, to);
            if (comes_through(p, rank, to)) gathered[to] += rows_gathered(p, r, rank, host_of(p, to));
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    progress_of(p).state = GOES;
    const header& own = header_of(p, call, p.me);
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        const header& its = header_of(p, call, rank);
        for (symrail_u64 i = 0; i < COMPARED; i++)
            if (its.compared[i] != own.compared[i])
                return refuse(p, REFUSED, DIFFERENT + i, rank, own.compared[i], its.compared[i]);
    }
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        if (sums[rank] > p.room) return refuse(p, REFUSED, NO_ROOM, rank, p.room, sums[rank]);
        if (gathered[rank] > p.staged) return refuse(p, REFUSED, NO_ROOM, rank, p.staged, gathered[rank]);
    }
}

// A block for each rank, the last of which waits for the others' headers. `first`: on new routes.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_begin(const parameters* given, const routes* of, symrail_u64 first, symrail_u64 kind, symrail_u64 bytes,
             symrail_u64 scales, symrail_u64 k) {
    const parameters p = *given;
    const routes r = *of;
    announce(p, r, blockIdx.x, first, kind, bytes, scales, k);
    if (is_last_block(p)) collect(p, r, first);
}

// One thread: the call is over. What this PE has put by requests is delivered, so that its memory may be written again.
static __device__ void end_call(const parameters& p) {
    symrail_quiet();
    volatile progress& now = progress_of(p);
    if (now.state != NOT_MADE) now.calls = now.calls + 1;
    now.state = NOT_MADE;
    now.tickets = 0;
    now.blocks = 0;
    record_of(p).calls = now.calls;
}
extern "C" __global__ void __launch_bounds__(32) ep_end_call(const parameters* given) { end_call(*given); }

#endif
