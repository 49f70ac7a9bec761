// What operations in the order of a stream share. The host passes the era in which it enqueues an operation, and how
// many failed requests of the proxy the program had been told of by then (failure.cuh). Behind a failure in that era or
// later, such as a wait whose time is over, and behind a failed request that the program had not been told of, nothing
// is copied or signalled.
#pragma once

struct enqueued {
    symrail_u64 era, told;

    // Whether nothing has failed since then. One thread calls it.
    __device__ bool is_well() const {
        if (symrail_has_stopped(era)) return false;
        if (symrail_state.n_channels == 0 || symrail_failed_requests() <= told) return true;
        symrail_stop(era);
        return false;
    }
};

// The part of a copy for this block.
static __device__ symrail_u64 part_of(symrail_u64 bytes, symrail_u64& at) {
    symrail_u64 part = ((bytes + gridDim.x - 1) / gridDim.x + 127) & ~127ull;
    at = part * blockIdx.x;
    return at >= bytes ? 0 : at + part < bytes ? part : bytes - at;
}

// Whether an operation goes on. Otherwise it is an error, too: the host may have read that of the failure. `ended`, if
// it is not null, is the word of a chain: FAILED once a wait of the chain has failed, LEFT_OUT once another failure has
// kept one of its operations from starting. Then none goes on, in whatever era. All threads of a block call it.
#define FAILED 1ull
#define LEFT_OUT 2ull
static __device__ bool goes_on(const enqueued& since, symrail_u64 what, symrail_u64 pe,
                               volatile symrail_u64* ended = nullptr) {
    bool stops = false;
    if (threadIdx.x == 0) {
        stops = !since.is_well();
        if (stops && ended != nullptr && *ended == 0) *ended = LEFT_OUT;
        stops = stops || (ended != nullptr && *ended != 0);
        if (stops) symrail_record(SYMRAIL_ERROR_LEFT_OUT, what, pe, (symrail_u64)ended);
    }
    return !__syncthreads_or(stops);
}

// A barrier of a team, and before it a quiet if one is wanted. One that is left out is counted. `false`: what stands
// behind it must not go on. All threads of a block call it.
static __device__ bool meet(symrail_team_t team, bool quiet, const enqueued& since) {
    bool on = goes_on(since, SYMRAIL_WHAT_BARRIER, symrail_state.me);
    if (threadIdx.x == 0) {
        // A PE that comes has delivered.
        if (on && quiet) on = symrail_all_delivered() && since.is_well();
        else symrail_fence_sys();
        symrail_meet(team, on);
        on = on && !symrail_has_stopped(since.era);
    }
    return __syncthreads_or(threadIdx.x == 0 && on);
}
