// The waits of plans and of pairs of ranks. This file precedes each program of this
// folder.
#include "symrail_channels.cuh"
#include "symrail/number.cuh"
#include "layout.cuh"

// Handles a failed wait. Later work in the streams runs without the data that it waited for. The results of this plan
// are not valid, and copy engines set no new numbers.
static __device__ __noinline__ void overlap_gave_up(const overlap_plan* plan, symrail_u64 pe) {
    symrail_st_gpu((symrail_u64)&plan->signalled, 0);
    // A PE that gives up because of another PE's word sets none, since the other PE signals all.
    symrail_u64 own = (symrail_u64)symrail_state.me + 1;
    if (symrail_ld_sys(plan->alarm.stop) != own) return;
    const symrail_u64* pes = (const symrail_u64*)(plan + 1);
    // The value has the form of Error::if_given_up: the PE that gives up, and the PE that it waited for.
    for (symrail_u64 i = 0; i < plan->pes; i++)
        if (pes[i] + 1 != own)
            symrailx_signal_op((symrail_u64*)plan->words + plan->gone, own | (pe + 1) << 32, SYMRAIL_SIGNAL_SET,
                               (int)pes[i]);
}

// Waits until a condition holds that a PE makes true. Returns `false` if this PE has given up.
template <class F>
SYMRAIL_DEVICE bool overlap_until(const overlap_plan* plan, F& holds, symrail_u64 word, symrail_u64 pe) {
    if (symrail_await(plan->alarm, holds, pe, word)) return true;
    overlap_gave_up(plan, pe);
    return false;
}

// Waits until a PE has set this PE's word, in this round or a later one.
static __device__ __noinline__ void overlap_await(const overlap_plan* plan, symrail_u64 word, symrail_u64 round,
                                                  symrail_u64 pe) {
    const symrail_u64* at = (const symrail_u64*)plan->words + word;
    auto is_set = [at, round]() { return symrail_ld_acquire(at) >= round; };
    overlap_until(plan, is_set, word, pe);
}

// Whether this PE goes on, for all threads of a block. One that has given up changes no other PE's memory: it may still
// be read, and what would come may not have come here.
static __device__ bool overlap_goes_on(const overlap_plan* plan) {
    return !__syncthreads_or(threadIdx.x == 0 && symrail_ld_sys(plan->alarm.stop) != 0);
}

// Copies this block's part in steps, and looks before each whether this PE goes on; `false`: it does not.
#define OVERLAP_STEP 0x40000ull
template <class F>
SYMRAIL_DEVICE bool overlap_in_steps(const overlap_plan* plan, symrail_u64 bytes, F copy) {
    bool well = overlap_goes_on(plan);
    symrail_u64 part = ((bytes + gridDim.x - 1) / gridDim.x + 127) & ~127ull;
    symrail_u64 step = part < OVERLAP_STEP ? part : OVERLAP_STEP;
    for (symrail_u64 at = step * blockIdx.x; well && at < bytes; at += step * gridDim.x) {
        copy(at, bytes - at < step ? bytes - at : step);
        if (at + step * gridDim.x < bytes) well = overlap_goes_on(plan);
    }
    return well;
}

// Counts the blocks that have copied. Returns whether this is the last one, and in `well` whether all have copied all.
#define OVERLAP_LEFT_OUT (1ull << 32)
SYMRAIL_DEVICE bool overlap_is_last(symrail_u64* copied, bool& well) {
    if (gridDim.x == 1) return true;
    symrail_u64 before = atomicAdd(copied, well ? 1ull : 1ull + OVERLAP_LEFT_OUT);
    if ((symrail_u32)before + 1 != gridDim.x) return false;
    well = well && before < OVERLAP_LEFT_OUT;
    symrail_fence_sys();
    *(volatile symrail_u64*)copied = 0;
    return true;
}
