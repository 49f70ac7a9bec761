/* Failures of device code, and what they keep from starting.
 *
 * The host enqueues operations on streams in eras, which it counts from 1: one ends when it has read a failure. What
 * was enqueued until then does nothing behind the failure, though it may begin later; what the program enqueues in the
 * next era, when it has been told, is its own decision. So a wait whose time is over is not followed by copies of what
 * has not come, nor by signals. */
#ifndef SYMRAIL_FAILURE_CUH
#define SYMRAIL_FAILURE_CUH

#include "memory.cuh"

/* Errors of device code, for the host's error record. The first one stays until the host has read it. */
#define SYMRAIL_ERROR_TIMEOUT 1ull
#define SYMRAIL_ERROR_NOT_SYMMETRIC 2ull
#define SYMRAIL_ERROR_NO_SUCH_PE 3ull
#define SYMRAIL_ERROR_NO_CHANNEL 4ull
#define SYMRAIL_ERROR_NO_REPLY 5ull
#define SYMRAIL_ERROR_NO_ROOM 6ull
/* The limit is that of the call, in milliseconds, in place of the state's. The record has it as the place. */
#define SYMRAIL_ERROR_CALLERS_LIMIT 7ull
/* Not started, because of an earlier failure. */
#define SYMRAIL_ERROR_LEFT_OUT 8ull

/* The operations of errors. */
#define SYMRAIL_WHAT_RMA 1ull
#define SYMRAIL_WHAT_AMO 2ull
#define SYMRAIL_WHAT_PUSH 3ull
#define SYMRAIL_WHAT_REPLY 4ull
#define SYMRAIL_WHAT_QUIET 5ull
#define SYMRAIL_WHAT_WAIT 6ull
#define SYMRAIL_WHAT_COLLECT 7ull
#define SYMRAIL_WHAT_SIGNAL 8ull
#define SYMRAIL_WHAT_BARRIER 9ull

/* The words of the record. */
#define SYMRAIL_RECORD_CODE 0
#define SYMRAIL_RECORD_WHAT 1
#define SYMRAIL_RECORD_PE 2
#define SYMRAIL_RECORD_PLACE 3
#define SYMRAIL_RECORD_ERA 4

/* Records an error for the host. */
static __device__ __noinline__ void symrail_record(symrail_u64 code, symrail_u64 what, symrail_u64 pe,
                                                   symrail_u64 place) {
    volatile symrail_u64* record = (volatile symrail_u64*)symrail_state.error;
    /* Two threads may fail at the same time and mix their details, but the code that stays is that of a real error. */
    if (record[SYMRAIL_RECORD_CODE] != 0) return;
    record[SYMRAIL_RECORD_WHAT] = what;
    record[SYMRAIL_RECORD_PE] = pe;
    record[SYMRAIL_RECORD_PLACE] = place;
    __threadfence_system();
    record[SYMRAIL_RECORD_CODE] = code;
}

/* Keeps from starting what was enqueued in an era or before. */
SYMRAIL_DEVICE void symrail_stop(symrail_u64 era) { symrail_max_gpu(symrail_state.stopped, era); }

/* A failure of the present era. */
static __device__ __noinline__ void symrail_fail(symrail_u64 code, symrail_u64 what, symrail_u64 pe,
                                                 symrail_u64 place) {
    const volatile symrail_u64* record = (const volatile symrail_u64*)symrail_state.error;
    /* Kernels of a program without a state have no record: their operations do nothing. */
    if (record == nullptr) return;
    /* First, so that what is left out because of it does not take its place. If the host reads it at once, the era that
     * it begins then is stopped, too: rather that than none. */
    symrail_record(code, what, pe, place);
    __threadfence_system();
    symrail_stop(record[SYMRAIL_RECORD_ERA]);
}

/* Whether something has failed in an era or a later one. */
SYMRAIL_DEVICE bool symrail_has_stopped(symrail_u64 era) { return symrail_ld_gpu(symrail_state.stopped) >= era; }

#endif
