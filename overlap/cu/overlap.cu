// Rounds of a product on a GPU, for overlap/src/cuda: words that hold numbers of rounds, and sums.
//
// The round is counted here, so that a graph of a round can be replayed: stream memory operations would wait for the
// same number in each replay, and without a limit. One thread waits, at most for the device's time-out.
#include "symrail_channels.cuh"
#include "symrail/number.cuh"

// As plan.rs has it.
struct overlap_plan {
    // The plan's words, by the address that kernels use for all PEs; the number of the round, in this device's memory.
    symrail_u64 words, round;
    // It stops at a word that others tell when they give up: so their waits end this PE's, too.
    symrail_alarm alarm;
    // That word's place; how many PEs there are, whose numbers stand behind this.
    symrail_u64 gone, pes;
};
// Where these numbers are.
#define OVERLAP_PES 64

extern "C" __global__ void overlap_begin(const overlap_plan* plan) { *(symrail_u64*)plan->round += 1; }

// Waits until a PE has told this one's word, in a round that is so many before this.
extern "C" __global__ void overlap_wait(const overlap_plan* plan, symrail_u64 word, symrail_u64 before,
                                        symrail_u64 pe) {
    const symrail_u64* at = (const symrail_u64*)plan->words + word;
    symrail_u64 round = *(const symrail_u64*)plan->round - before;
    auto told = [at, round]() { return symrail_ld_acquire(at) >= round; };
    if (symrail_await(plan->alarm, told, pe, word)) return;
    // What follows in the streams goes on without what was waited for. No results of this plan are to be believed.
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

// Tells a PE's word, behind all that this PE has put there before.
extern "C" __global__ void overlap_tell(const overlap_plan* plan, symrail_u64 word, symrail_u64 pe) {
    // Whose wait has failed has nothing to tell: others shall not take what is not there.
    if (symrail_ld_sys(plan->alarm.stop) != 0) return;
    symrail_fence();
    symrailx_signal_op((symrail_u64*)plan->words + word, *(const symrail_u64*)plan->round, SYMRAIL_SIGNAL_SET, (int)pe);
}

// Does nothing for so long: tests are late on purpose.
extern "C" __global__ void overlap_delay(symrail_u64 nanoseconds) {
    symrail_u64 end = symrail_now() + nanoseconds;
    while (symrail_now() < end) {
    }
}

// Sums summands in their order, as 32-bit floats, and the bias: `places` are `n` offsets from `base`, in numbers.
// `shared`: where others get them, too; or 0.
template <class N>
SYMRAIL_DEVICE void overlap_sum(symrail_u64 base, const symrail_u64* places, symrail_u64 n, symrail_u64 bias,
                                symrail_u64 rows, symrail_u64 width, symrail_u64 out, symrail_u64 shared) {
    typedef typename N::stored T;
    symrail_u64 count = rows * width, step = (symrail_u64)gridDim.x * blockDim.x;
    for (symrail_u64 i = (symrail_u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float sum = N::load(((const T*)base)[places[0] + i]);
        for (symrail_u64 s = 1; s < n; s++) sum += N::load(((const T*)base)[places[s] + i]);
        if (bias != 0) sum += N::load(((const T*)bias)[i % width]);
        T rounded = N::store(sum);
        ((T*)out)[i] = rounded;
        if (shared != 0) ((T*)shared)[i] = rounded;
    }
}
#define OVERLAP_SUM(NAME, NUMBER)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        overlap_sum_##NAME(symrail_u64 base, const symrail_u64* places, symrail_u64 n, symrail_u64 bias,             \
                           symrail_u64 rows, symrail_u64 width, symrail_u64 out, symrail_u64 shared) {               \
        overlap_sum<NUMBER>(base, places, n, bias, rows, width, out, shared);                                        \
    }
OVERLAP_SUM(f32, symrail_plain<float>)
OVERLAP_SUM(f16, symrail_f16)
OVERLAP_SUM(bf16, symrail_bf16)
