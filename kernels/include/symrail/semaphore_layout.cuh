/* Generated from kernels/src/layout.rs, which explains every constant. Do not edit. */
#ifndef SYMRAIL_SEMAPHORE_LAYOUT_CUH
#define SYMRAIL_SEMAPHORE_LAYOUT_CUH
/* NVRTC has neither offsetof nor the built-in function of other compilers. */
#ifndef SYMRAIL_OFFSETOF
#ifdef __CUDACC_RTC__
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __INTADDR__(&((TYPE*)0)->MEMBER)
#else
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)
#endif
#endif

/* The reasons why a wait failed: the time-out, a PE that has given up, or the host. */
#define SYMRAIL_GIVEN_UP_LATE 1ull
/* See above. */
#define SYMRAIL_GIVEN_UP_BY_PEER 2ull
/* See above. */
#define SYMRAIL_GIVEN_UP_HOST 3ull

/* A report of threads that give up, in pinned memory. */
struct symrail_report {
    /* The reason, or 0. */
    symrail_u64 reason;
    /* The PE, or a number of the waiter. */
    symrail_u64 pe;
    /* A number of the waiter. */
    symrail_u64 place;
    /* The host's word, which ends all waits unless it is 0. */
    symrail_u64 end;
};
static_assert(sizeof(symrail_report) == 32, "symrail_report");
static_assert(SYMRAIL_OFFSETOF(symrail_report, reason) == 0, "symrail_report.reason");
static_assert(SYMRAIL_OFFSETOF(symrail_report, pe) == 8, "symrail_report.pe");
static_assert(SYMRAIL_OFFSETOF(symrail_report, place) == 16, "symrail_report.place");
static_assert(SYMRAIL_OFFSETOF(symrail_report, end) == 24, "symrail_report.end");

/* Where threads that give up report it, and learn of others. */
struct symrail_alarm {
    /* The address of the `symrail_report` for the host. */
    symrail_u64 report;
    /* The address of a symmetric word: 0, or the number of a PE that has given up, plus one. */
    symrail_u64 stop;
};
static_assert(sizeof(symrail_alarm) == 16, "symrail_alarm");
static_assert(SYMRAIL_OFFSETOF(symrail_alarm, report) == 0, "symrail_alarm.report");
static_assert(SYMRAIL_OFFSETOF(symrail_alarm, stop) == 8, "symrail_alarm.stop");

/* One end of a semaphore that two PEs share: `symrail_semaphore`. */
struct symrail_semaphore_fields {
    /* The address of the word for arriving signals here, in a symmetric heap. */
    symrail_u64 arrived;
    /* The address of the number of awaited signals, in this device's memory. */
    symrail_u64 expected;
    /* The symmetric address of the word for signals at the peer. */
    symrail_u64 there;
    /* The address of that word for this device's atomics, or 0. */
    symrail_u64 mapped;
    /* The peer. */
    symrail_u64 pe;
};
static_assert(sizeof(symrail_semaphore_fields) == 40, "symrail_semaphore_fields");
static_assert(SYMRAIL_OFFSETOF(symrail_semaphore_fields, arrived) == 0, "symrail_semaphore_fields.arrived");
static_assert(SYMRAIL_OFFSETOF(symrail_semaphore_fields, expected) == 8, "symrail_semaphore_fields.expected");
static_assert(SYMRAIL_OFFSETOF(symrail_semaphore_fields, there) == 16, "symrail_semaphore_fields.there");
static_assert(SYMRAIL_OFFSETOF(symrail_semaphore_fields, mapped) == 24, "symrail_semaphore_fields.mapped");
static_assert(SYMRAIL_OFFSETOF(symrail_semaphore_fields, pe) == 32, "symrail_semaphore_fields.pe");

#endif
