/* Words that the proxy counts up in host memory, and threads that wait for them. Polls cross the link to the CPU, those
 * at one word one behind the other; those of thousands of threads keep everything else from the link, the copies that
 * they wait for among it. So one thread at a time polls, and copies what it reads to device memory for the others. */
#ifndef SYMRAIL_LOOKOUT_CUH
#define SYMRAIL_LOOKOUT_CUH

#include "memory.cuh"

/* Behind the copy: how many threads poll that, and this bit while one polls the word itself. */
#define SYMRAIL_LOOKOUT 64u
#define SYMRAIL_LOOKOUT_TAKEN (1ull << 63)
/* Between two polls of the copy. */
#define SYMRAIL_LOOKOUT_PAUSE_NS 200u

/* Whether a thread polls for others. */
SYMRAIL_DEVICE bool symrail_has_lookout(symrail_u64 note) {
    return (symrail_ld_gpu(note + SYMRAIL_LOOKOUT) & SYMRAIL_LOOKOUT_TAKEN) != 0;
}

/* One thread's wait for a word. */
struct symrail_lookout {
    symrail_u64 word, note, seen, noted;
    enum { NEW, FOR_ALL, OF_NOTES } looks;

    /* `crowded`: another thread polls already. */
    SYMRAIL_WAITER_FN symrail_lookout(symrail_u64 word, symrail_u64 note, bool crowded = false)
        : word(word), note(note), seen(0), noted(0), looks(NEW) {
        if (crowded) look_at_notes();
    }
    SYMRAIL_WAITER_FN symrail_u64* state() const { return (symrail_u64*)(note + SYMRAIL_LOOKOUT); }
    SYMRAIL_WAITER_FN void look_at_notes() {
        looks = OF_NOTES;
        atomicAdd(state(), 1ull);
    }
    SYMRAIL_WAITER_FN bool take() { return (atomicOr(state(), SYMRAIL_LOOKOUT_TAKEN) & SYMRAIL_LOOKOUT_TAKEN) == 0; }

    /* The word, as it is or was lately; what came with it is visible. */
    SYMRAIL_WAITER_FN symrail_u64 look() {
        if (looks == OF_NOTES) {
            symrail_u64 now = symrail_ld_noted(note);
            if (symrail_has_lookout(note)) {
                __nanosleep(SYMRAIL_LOOKOUT_PAUSE_NS);
            } else if (take()) {
                looks = FOR_ALL;
                atomicAdd(state(), ~0ull);
            }
            return now;
        }
        /* Both are on their way at the same time. */
        bool others = looks == FOR_ALL ? symrail_ld_gpu((symrail_u64)state()) != SYMRAIL_LOOKOUT_TAKEN : !take();
        seen = symrail_ld_acquire((const symrail_u64*)word);
        if (looks == NEW && others) look_at_notes();
        else looks = FOR_ALL;
        if (looks == FOR_ALL && others && seen != noted) symrail_note(note, noted = seen);
        return seen;
    }
    /* Lets another thread poll. */
    SYMRAIL_WAITER_FN void leave() {
        if (seen != 0) symrail_max_gpu(note, seen);
        if (looks == FOR_ALL) atomicAnd(state(), ~SYMRAIL_LOOKOUT_TAKEN);
        if (looks == OF_NOTES) atomicAdd(state(), ~0ull);
    }
};

#endif
