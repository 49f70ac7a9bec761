// What plans and pairs of ranks have in the memory of their GPU, and how they wait. It stands before each program of this
// folder.
#include "symrail_channels.cuh"
#include "symrail/number.cuh"

// As plan.rs and point_to_point.rs have it.
struct overlap_plan {
    // The plan's words, by the address that kernels use for all PEs; the number of the round, in this device's memory.
    symrail_u64 words, round;
    // It stops at a word that others tell when they give up: so their waits end this PE's, too.
    symrail_alarm alarm;
    // That word's place; how many PEs there are, whose numbers stand behind this.
    symrail_u64 gone, pes;
    // The round; the same for copy engines to tell others, or 0 when a wait has failed; blocks that have copied.
    symrail_u64 counted, telling, copied;
};
// Where these numbers are.
#define OVERLAP_PES 128

// What a wait that has failed leaves: what follows in the streams goes on without what was waited for. No results of this
// plan are to be believed, and copy engines tell nothing new.
static __device__ __noinline__ void overlap_gave_up(const overlap_plan* plan, symrail_u64 pe) {
    symrail_st_gpu((symrail_u64)&plan->telling, 0);
    // Who was told by another PE need not tell: that one tells all.
    symrail_u64 own = (symrail_u64)symrail_state.me + 1;
    if (symrail_ld_sys(plan->alarm.stop) != own) return;
    const symrail_u64* pes = (const symrail_u64*)((const char*)plan + OVERLAP_PES);
    // As Error::told has it: who gives up, and for which PE.
    for (symrail_u64 i = 0; i < plan->pes; i++)
        if (pes[i] + 1 != own)
            symrailx_signal_op((symrail_u64*)plan->words + plan->gone, own | (pe + 1) << 32, SYMRAIL_SIGNAL_SET,
                               (int)pes[i]);
}

// Waits until something holds that a PE brings about. `false`: it has given up.
template <class F>
SYMRAIL_DEVICE bool overlap_until(const overlap_plan* plan, F& holds, symrail_u64 word, symrail_u64 pe) {
    if (symrail_await(plan->alarm, holds, pe, word)) return true;
    overlap_gave_up(plan, pe);
    return false;
}

// Waits until a PE has told this one's word, in this round or a later one.
static __device__ __noinline__ void overlap_await(const overlap_plan* plan, symrail_u64 word, symrail_u64 round,
                                                  symrail_u64 pe) {
    const symrail_u64* at = (const symrail_u64*)plan->words + word;
    auto told = [at, round]() { return symrail_ld_acquire(at) >= round; };
    overlap_until(plan, told, word, pe);
}
