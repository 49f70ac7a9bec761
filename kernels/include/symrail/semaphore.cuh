/* Semaphores between PEs, counted in 64 bits, and waits that end: after the time-out, or when a thread has given up. */
#ifndef SYMRAIL_SEMAPHORE_CUH
#define SYMRAIL_SEMAPHORE_CUH

#include "order.cuh"
#include "semaphore_layout.cuh"

/* Gives up: the host learns the reason of the first such thread, and every other thread of this PE stops. */
static __device__ __noinline__ void symrail_give_up(const symrail_alarm& alarm, symrail_u64 reason, symrail_u64 who,
                                                    symrail_u64 place) {
    volatile symrail_report* report = (volatile symrail_report*)alarm.report;
    symrail_u64 own = (symrail_u64)symrail_state.me + 1, earlier = atomicCAS((symrail_u64*)alarm.stop, 0ull, own);
    /* The first thread of this PE that gave up reports the PE for which it waited. */
    if (earlier == own || (earlier != 0 && reason != SYMRAIL_GIVEN_UP_BY_PEER)) return;
    if (report->reason != 0) return;
    report->pe = reason == SYMRAIL_GIVEN_UP_BY_PEER ? earlier - 1 : who;
    report->place = place;
    __threadfence_system();
    report->reason = reason;
}

/* A waiting thread's check at intervals: it takes deliveries, and returns the reason to give up, or 0. */
static __device__ __noinline__ symrail_u64 symrail_look_up(const symrail_alarm& alarm, symrail_u64 deadline) {
    if (symrail_state.mailbox != 0) {
        symrail_mail mail;
        mail.once();
        mail.leave();
    }
    if (symrail_ld_sys(alarm.stop) != 0) return SYMRAIL_GIVEN_UP_BY_PEER;
    if (symrail_ld_sys((symrail_u64)&((const symrail_report*)alarm.report)->end) != 0) return SYMRAIL_GIVEN_UP_HOST;
    return symrail_now() >= deadline ? SYMRAIL_GIVEN_UP_LATE : 0;
}

/* Waits until `holds` returns true. `false`: it gave up, and reported `who`, with its value at that time, to the host:
 * the late PE, or a number of the waiter. */
template <class F>
SYMRAIL_DEVICE bool symrail_await(const symrail_alarm& alarm, F& holds, const symrail_u64& who, symrail_u64 place) {
    if (holds()) return true;
    symrail_u64 deadline = symrail_now() + symrail_state.timeout_ns, reason = 0;
    symrail_u32 often = symrail_state.mailbox != 0 ? 1 : 256, rounds = often;
    while (!holds()) {
        if (--rounds != 0) continue;
        rounds = often;
        reason = symrail_look_up(alarm, deadline);
        if (reason != 0) break;
    }
    if (reason != 0) symrail_give_up(alarm, reason, who, place);
    return reason == 0;
}

/* Signals a word that this device's atomics cannot reach; `ordered`: behind everything that this thread has done. */
static __device__ __noinline__ void symrail_signal_elsewhere(symrail_u64 word, symrail_u64 pe, bool ordered) {
    if (ordered) symrail_fence();
    symrail_signal((symrail_u64*)word, 1, SYMRAIL_SIGNAL_ADD, (int)pe);
}

/* One end of a semaphore that two PEs share. */
struct symrail_semaphore : symrail_semaphore_fields {
    /* Adds one at the peer, behind everything that this thread has done and observed. */
    SYMRAIL_WAITER_FN void signal() const {
        if (mapped != 0) symrail_add_release_sys(mapped, 1);
        else symrail_signal_elsewhere(there, pe, true);
    }
    /* The same without order. */
    SYMRAIL_WAITER_FN void relaxed_signal() const {
        if (mapped != 0) symrail_add_relaxed_sys(mapped, 1);
        else symrail_signal_elsewhere(there, pe, false);
    }
    /* Waits for the next signal. The peer's earlier effects are visible afterwards. */
    SYMRAIL_WAITER_FN bool wait(const symrail_alarm& alarm, symrail_u64 place) const {
        symrail_u64 number = symrail_add_gpu(expected, 1) + 1, at = arrived;
        auto came = [at, number]() { return symrail_ld_acquire((const symrail_u64*)at) >= number; };
        return symrail_await(alarm, came, pe, place);
    }
    /* Consumes the next signal if it has arrived. Of several calling threads, one gets it. */
    SYMRAIL_WAITER_FN bool poll() const {
        symrail_u64 taken = symrail_ld_gpu(expected);
        if (symrail_ld_acquire((const symrail_u64*)arrived) <= taken) return false;
        return atomicCAS((symrail_u64*)expected, taken, taken + 1) == taken;
    }
};

#endif
