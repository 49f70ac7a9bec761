/* Words in host memory that the proxy increments, and threads that wait for them. Polls cross the link to the CPU, and
 * polls of one word are serialized. Polls of thousands of threads would block other traffic on the link, including the
 * copies for which they wait. So one thread at a time polls, and copies the value to device memory for the others. */
#ifndef SYMRAIL_SHARED_POLL_CUH
#define SYMRAIL_SHARED_POLL_CUH

#include "memory.cuh"

/* Behind the copy: the number of threads that poll the copy, and this bit while a thread polls the word itself. */
#define SYMRAIL_SHARED_POLL 64u
#define SYMRAIL_SHARED_POLL_TAKEN (1ull << 63)
/* The pause between two polls of the copy. */
#define SYMRAIL_SHARED_POLL_PAUSE_NS 200u

/* Whether a thread polls for others. */
SYMRAIL_DEVICE bool symrail_is_polled(symrail_u64 note) {
    return (symrail_ld_gpu(note + SYMRAIL_SHARED_POLL) & SYMRAIL_SHARED_POLL_TAKEN) != 0;
}

/* One thread's wait for a word. */
struct symrail_shared_poll {
    symrail_u64 word, note, seen, noted;
    enum { NEW, FOR_ALL, OF_NOTES } mode;

    /* `crowded`: another thread polls already. */
    SYMRAIL_WAITER_FN symrail_shared_poll(symrail_u64 word, symrail_u64 note, bool crowded = false)
        : word(word), note(note), seen(0), noted(0), mode(NEW) {
        if (crowded) poll_notes();
    }
    SYMRAIL_WAITER_FN symrail_u64* state() const { return (symrail_u64*)(note + SYMRAIL_SHARED_POLL); }
    SYMRAIL_WAITER_FN void poll_notes() {
        mode = OF_NOTES;
        atomicAdd(state(), 1ull);
    }
    SYMRAIL_WAITER_FN bool take() { return (atomicOr(state(), SYMRAIL_SHARED_POLL_TAKEN) & SYMRAIL_SHARED_POLL_TAKEN) == 0; }

    /* The current or a recent value of the word; the effects that it announces are visible. */
    SYMRAIL_WAITER_FN symrail_u64 poll() {
        if (mode == OF_NOTES) {
            symrail_u64 now = symrail_ld_noted(note);
            if (symrail_is_polled(note)) {
                __nanosleep(SYMRAIL_SHARED_POLL_PAUSE_NS);
            } else if (take()) {
                mode = FOR_ALL;
                atomicAdd(state(), ~0ull);
            }
            return now;
        }
        /* Both loads are under way at the same time. */
        bool others = mode == FOR_ALL ? symrail_ld_gpu((symrail_u64)state()) != SYMRAIL_SHARED_POLL_TAKEN : !take();
        seen = symrail_ld_acquire((const symrail_u64*)word);
        if (mode == NEW && others) poll_notes();
        else mode = FOR_ALL;
        if (mode == FOR_ALL && others && seen != noted) symrail_note(note, noted = seen);
        return seen;
    }
    /* Lets another thread poll. */
    SYMRAIL_WAITER_FN void leave() {
        if (seen != 0) symrail_max_gpu(note, seen);
        if (mode == FOR_ALL) atomicAnd(state(), ~SYMRAIL_SHARED_POLL_TAKEN);
        if (mode == OF_NOTES) atomicAdd(state(), ~0ull);
    }
};

#endif
