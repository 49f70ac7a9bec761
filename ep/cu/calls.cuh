// High throughput: the start and the end of a call, also of one in which a rank does not arrive.
//
// Every rank announces each call to all ranks by a header: the kind of the call and its number of tokens for each rank.
// From the headers every rank computes the position of each rank's rows at each other rank. Before its header, a rank
// stores the positions of its tokens at the ranks of its host. A rank announces a call when it has ended the previous
// one, and so has read all rows of it. So a rank that has all headers may write to any rank, and may overwrite the rows
// that it has offered in the previous call. Words are set to the number of the call, and nothing is cleared.
//
// The first thread whose wait times out raises an alarm. The alarm ends all other waits: those of this call, and those
// of all calls that are launched behind it.
#ifndef SYMRAIL_EP_CALLS_CUH
#define SYMRAIL_EP_CALLS_CUH

#include "routes.cuh"

enum { NOT_MADE, REFUSED, GOES };

// State in host memory, which the host may read at any time.
struct record : record_fields {
    // For each rank the last call that it has announced here; behind these words, for each rank whether it was late.
    __device__ volatile symrail_u64* announced() const { return (volatile symrail_u64*)(this + 1); }
    // The counts: for each rank the number of its tokens for each rank, and the slots of each expert here.
    __device__ volatile symrail_u32* counts(symrail_u64 ranks) const { return (volatile symrail_u32*)(announced() + 2 * ranks); }
};
// The positions that a thread loads ahead.
#define PLACES_AHEAD 8

struct header : header_fields {
    // The number of tokens for each rank, then for each host, and then the number of slots of each of the reader's
    // experts.
    __device__ symrail_u32* counts() const { return (symrail_u32*)(this + 1); }
};

static __device__ symrail_u64 header_bytes(const parameters& p) {
    return up16(sizeof(header) + 4 * (p.ranks + p.hosts + p.share));
}
static __device__ const header& header_of(const parameters& p, symrail_u64 call, symrail_u64 rank) {
    return *(const header*)(p.heap.headers + (call % 2 * p.ranks + rank) * header_bytes(p));
}
static __device__ volatile progress& progress_of(const parameters& p) { return *(volatile progress*)p.progress; }
static __device__ volatile record& record_of(const parameters& p) { return *(volatile record*)p.record; }
static __device__ symrail_u64 call_of(const parameters& p) { return progress_of(p).calls + 1; }
static __device__ bool is_over(const parameters& p) { return progress_of(p).alarm != 0; }
// Numbers that the warps of a kernel take one after the other: dynamic shares keep all warps equally busy. A warp
// requests its next number while it works on the current one.
struct tickets {
    symrail_u64 *at, ahead;
    __device__ explicit tickets(symrail_u64* at) : at(at), ahead(0) { ask(); }
    __device__ explicit tickets(const parameters& p) : tickets(&((progress*)p.progress)->tickets) {}
    __device__ void ask() {
        if (threadIdx.x % 32 == 0) ahead = atomicAdd(at, 1ull);
    }
    __device__ symrail_u64 take() {
        symrail_u64 mine = __shfl_sync(~0u, ahead, 0);
        ask();
        return mine;
    }
};
// All blocks of a kernel call this at their end. Returns whether this block is the last. The writes of the other blocks
// are visible to all its threads, each of which may notify other ranks.
static __device__ bool is_last_block(const parameters& p) {
    progress* now = (progress*)p.progress;
    bool last = false;
    __syncthreads();
    if (threadIdx.x == 0) {
        symrail_fence_sys();
        last = atomicAdd(&now->blocks, 1ull) + 1 == gridDim.x;
        if (last) {
            now->blocks = now->begun = now->tickets = now->returns = 0;
            // The other blocks' fences come before this one, and it comes before those of this block's threads.
            symrail_fence_sys();
        }
    }
    last = __syncthreads_or(last);
    if (last) symrail_fence_sys();
    return last;
}

// All threads of a block call this and get one answer, because another block may raise the alarm meanwhile.
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

// Whether a word has reached the call's number, or the alarm is raised. Only every 16th poll loads the alarm.
struct come_or_over {
    symrail_u64 call;
    const volatile symrail_u64* alarm;
    mutable symrail_u32 polls;
    // Results for the waiting thread: the approximate start of the wait, and whether the alarm has ended it.
    symrail_u64& since;
    bool& over;
    __device__ bool operator()(symrail_u64 now) const {
        if (now >= call) return true;
        if ((++polls & 15u) != 0) return false;
        if (since == 0) since = symrail_now();
        return over = *alarm != 0;
    }
};
// Waits for a word that a rank sets in this call, possibly through another rank. If the word is not set in time, both
// ranks are late. A wait that the alarm ends marks its ranks as late only after 7/8 of the time limit.
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

// The values of a call that all ranks compare; the number of this PE's tokens, and of the rows that its caller's memory
// holds. `first`: the routes are new. `ticket`: a number by which the host knows the call for whose counts it waits, or 0.
struct call_made {
    symrail_u64 first, kind, bytes, scales, k, types, tokens, room, ticket;
};
// Whether a slot of this PE's tokens has an index without an expert. Then it does not make the call.
static __device__ bool is_wrong(const routes& r, const call_made& c) {
    return c.first && *(const symrail_u64*)r.wrong_slot != ~0ull;
}

// A block tells a rank of this host the positions of this PE's tokens among the rows there.
static __device__ void tell_places(const parameters& p, const routes& r, symrail_u64 rank, symrail_u64 tokens) {
    int* to = (int*)symrail_ptr(near_places(p, call_of(p), p.me), (int)rank);
    const int* from = (const int*)r.places + rank;
    for (symrail_u64 base = threadIdx.x; base < tokens; base += (symrail_u64)blockDim.x * PLACES_AHEAD) {
        int found[PLACES_AHEAD];
#pragma unroll
        for (int n = 0; n < PLACES_AHEAD; n++)
            if (base + n * blockDim.x < tokens) found[n] = from[(base + n * blockDim.x) * p.ranks];
#pragma unroll
        for (int n = 0; n < PLACES_AHEAD; n++)
            if (base + n * blockDim.x < tokens) to[base + n * blockDim.x] = found[n];
    }
}
// A block announces the call to a rank.
static __device__ void announce(const parameters& p, const routes& r, symrail_u64 rank, const call_made& c, symrail_u64 common) {
    symrail_u64 call = call_of(p);
    char* there = (char*)&header_of(p, call, p.me);
    char* mapped = (char*)symrail_ptr(there, (int)rank);
    char* to = mapped != nullptr ? mapped : (char*)p.heap.headers_out + (call % 2 * p.ranks + rank) * header_bytes(p);
    header& made = *(header*)to;
    const symrail_u64 compared[COMPARED] = {c.kind, c.bytes, c.scales, c.k, common, c.types};
    if (threadIdx.x < COMPARED) made.compared[threadIdx.x] = compared[threadIdx.x];
    if (threadIdx.x == COMPARED) made.tokens = c.tokens, made.room = c.room;
    const symrail_u32* slots = (const symrail_u32*)r.per_expert + rank * p.share;
    symrail_u32* counts = made.counts();
    for (symrail_u64 i = threadIdx.x; i < p.ranks; i += blockDim.x) counts[i] = tokens_of(p, r, p.me, i);
    for (symrail_u64 i = threadIdx.x; i < p.hosts; i += blockDim.x) counts[p.ranks + i] = crossings_of(p, r, p.me, i);
    for (symrail_u64 i = threadIdx.x; i < p.share; i += blockDim.x) counts[p.ranks + p.hosts + i] = slots[i];
    if (c.kind != COMBINE && rank != p.me && is_near(p, rank, p.me)) tell_places(p, r, rank, c.tokens);
    deliver(there, to, header_bytes(p), (symrail_u64*)p.heap.header_words + p.me, call, rank, mapped != nullptr);
}
// A block waits for a rank's header, compares it, and adds it to new routes.
static __device__ void hear(const parameters& p, const routes& r, symrail_u64 rank, const call_made& c, symrail_u64 common) {
    symrail_u64 call = call_of(p);
    bool late = false;
    if (threadIdx.x == 0) {
        late = !has_set(p, (symrail_u64*)p.heap.header_words + rank, call, rank, rank);
        if (!late) ((const record*)p.record)->announced()[rank] = call;
    }
    if (__syncthreads_or(late)) return;
    const header& heard = header_of(p, call, rank);
    const symrail_u64 compared[COMPARED] = {c.kind, c.bytes, c.scales, c.k, common, c.types};
    if (threadIdx.x < COMPARED && heard.compared[threadIdx.x] != compared[threadIdx.x])
        atomicMax((symrail_u64*)&((progress*)p.progress)->differs, ~(rank * COMPARED + threadIdx.x));
    if (!c.first) return;
    symrail_u32 *matrix = (symrail_u32*)r.matrix + rank * p.ranks, *crossings = (symrail_u32*)r.crossings + rank * p.hosts;
    for (symrail_u64 i = threadIdx.x; rank != p.me && i < p.ranks; i += blockDim.x) matrix[i] = heard.counts()[i];
    for (symrail_u64 i = threadIdx.x; rank != p.me && i < p.hosts; i += blockDim.x) crossings[i] = heard.counts()[p.ranks + i];
}

// A block completes the routes, if they are new, when all headers have been heard. Returns whether the rows have room at
// each rank. It checks that in every call: routes of a dispatch that was refused may return.
static __device__ bool complete(const parameters& p, const routes& r, bool first) {
    // For each rank the number of rows that it receives, and of those that it gathers for sums.
    __shared__ symrail_u64 sums[MOST_RANKS], gathered[MOST_RANKS];
    symrail_u64 call = call_of(p);
    for (symrail_u64 i = threadIdx.x; first && i < p.share; i += blockDim.x) {
        symrail_u32 slots = 0;
        for (symrail_u64 rank = 0; rank < p.ranks; rank++)
            slots += header_of(p, call, rank).counts()[p.ranks + p.hosts + i];
        ((symrail_u32*)r.come)[i] = slots;
    }
    bool full = false;
    for (symrail_u64 to = threadIdx.x; to < p.ranks; to += blockDim.x) {
        sums[to] = gathered[to] = 0;
        for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
            sums[to] += tokens_of(p, r, rank, to);
            if (p.hosts > 1 && comes_through(p, rank, to)) gathered[to] += rows_gathered(p, r, rank, host_of(p, to));
        }
        full |= sums[to] > header_of(p, call, to).room || gathered[to] > p.staged;
    }
    if (!__syncthreads_or(full)) return true;
    for (symrail_u64 rank = 0; threadIdx.x == 0 && rank < p.ranks; rank++) {
        symrail_u64 room = header_of(p, call, rank).room;
        if (sums[rank] > room) return refuse(p, REFUSED, NO_ROOM, rank, room, sums[rank]), false;
        if (gathered[rank] > p.staged) return refuse(p, REFUSED, NO_ROOM, rank, p.staged, gathered[rank]), false;
    }
    return false;
}
// A block decides whether the call goes on, after all headers.
static __device__ void decide(const parameters& p, const routes& r, const call_made& c) {
    __shared__ symrail_u64 differs;
    volatile progress& now = progress_of(p);
    if (threadIdx.x == 0) {
        differs = ~now.differs;
        now.differs = 0;
        now.state = NOT_MADE;
    }
    __syncthreads();
    if (is_over(p)) {
        // The host may not have seen the alarm, because the record held an earlier error.
        if (threadIdx.x == 0) tell_host(p, LATE, p.me, 0, 0);
    } else if (is_wrong(r, c)) {
        const symrail_u64* wrong = (const symrail_u64*)r.wrong_slot;
        if (threadIdx.x == 0) refuse(p, NOT_MADE, NO_EXPERT, p.me, wrong[0], wrong[1]);
    } else if (differs != ~0ull) {
        symrail_u64 call = call_of(p), rank = differs / COMPARED, i = differs % COMPARED;
        symrail_u64 here = header_of(p, call, p.me).compared[i], there = header_of(p, call, rank).compared[i];
        if (threadIdx.x == 0) refuse(p, REFUSED, DIFFERENT + i, rank, here, there);
    } else if (complete(p, r, c.first)) {
        if (threadIdx.x == 0) now.state = GOES;
    }
}

// A block gives the host the counts of a dispatch. The ticket is marked if the call does not go on.
static __device__ void tell_counts(const parameters& p, const routes& r, const call_made& c) {
    __syncthreads();
    const record& told = *(const record*)p.record;
    volatile symrail_u32 *matrix = told.counts(p.ranks), *come = matrix + p.ranks * p.ranks;
    bool goes = progress_of(p).state == GOES;
    for (symrail_u64 i = threadIdx.x; goes && i < p.ranks * p.ranks; i += blockDim.x)
        matrix[i] = tokens_of(p, r, i / p.ranks, i % p.ranks);
    for (symrail_u64 i = threadIdx.x; goes && i < p.share; i += blockDim.x) come[i] = ((const symrail_u32*)r.come)[i];
    // The barrier lets one thread's fence cover the writes of the whole block.
    __syncthreads();
    if (threadIdx.x != 0) return;
    symrail_fence_sys();
    record_of(p).told = goes ? c.ticket : c.ticket | TICKET_REFUSED;
}

// One block for each rank announces the call to it, and waits for its header. No block waits for another one of its
// kernel: in whatever order they run, the blocks of two ranks for each other are preceded by such blocks only.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_begin(const parameters* given, const routes* of, symrail_u64 first, symrail_u64 kind, symrail_u64 bytes,
             symrail_u64 scales, symrail_u64 k, symrail_u64 types, symrail_u64 tokens, symrail_u64 room, symrail_u64 ticket) {
    __shared__ symrail_u64 common;
    const parameters p = *given;
    const routes r = *of;
    const call_made c = {first, kind, bytes, scales, k, types, tokens, room, ticket};
    // A checksum of the routes, which must be equal on all ranks.
    if (threadIdx.x == 0) common = 0;
    __syncthreads();
    for (symrail_u64 i = threadIdx.x; !first && i < p.ranks * p.ranks; i += blockDim.x)
        atomicAdd(&common, ((i + 1) * 0x9e3779b97f4a7c15ull) * (tokens_of(p, r, i / p.ranks, i % p.ranks) + 1));
    bool skips = is_over(p) || is_wrong(r, c);
    if (!__syncthreads_or(skips)) {
        announce(p, r, blockIdx.x, c, common);
        hear(p, r, blockIdx.x, c, common);
    }
    if (!is_last_block(p)) return;
    decide(p, r, c);
    if (c.ticket != 0) tell_counts(p, r, c);
}

// One thread ends the call. It waits until this PE's requests are delivered, so that the memory may be written again.
static __device__ void end_call(const parameters& p) {
    symrail_quiet();
    volatile progress& now = progress_of(p);
    if (now.state != NOT_MADE) now.calls = now.calls + 1;
    now.state = NOT_MADE;
    now.tickets = 0;
    now.returns = 0;
    now.begun = 0;
    now.blocks = 0;
    record_of(p).calls = now.calls;
}
extern "C" __global__ void __launch_bounds__(32) ep_end_call(const parameters* given) { end_call(*given); }

#endif
