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
