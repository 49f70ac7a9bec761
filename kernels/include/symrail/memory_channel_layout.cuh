/* Generated from kernels/src/layout.rs, which explains every constant. Do not edit. */
#ifndef SYMRAIL_MEMORY_CHANNEL_LAYOUT_CUH
#define SYMRAIL_MEMORY_CHANNEL_LAYOUT_CUH
/* NVRTC has neither offsetof nor the built-in function of other compilers. */
#ifndef SYMRAIL_OFFSETOF
#ifdef __CUDACC_RTC__
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __INTADDR__(&((TYPE*)0)->MEMBER)
#else
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)
#endif
#endif


/* A buffer of a peer, and a semaphore with that peer: `symrail_memory_channel`. */
struct symrail_memory_channel_fields {
    /* The semaphore. */
    symrail_semaphore semaphore;
    /* Where failed waits report. */
    symrail_alarm alarm;
    /* The address of the peer's copy of the buffer on this device. */
    symrail_u64 remote;
    /* The address of this PE's copy. */
    symrail_u64 local;
};
static_assert(sizeof(symrail_memory_channel_fields) == 72, "symrail_memory_channel_fields");
static_assert(SYMRAIL_OFFSETOF(symrail_memory_channel_fields, semaphore) == 0, "symrail_memory_channel_fields.semaphore");
static_assert(SYMRAIL_OFFSETOF(symrail_memory_channel_fields, alarm) == 40, "symrail_memory_channel_fields.alarm");
static_assert(SYMRAIL_OFFSETOF(symrail_memory_channel_fields, remote) == 56, "symrail_memory_channel_fields.remote");
static_assert(SYMRAIL_OFFSETOF(symrail_memory_channel_fields, local) == 64, "symrail_memory_channel_fields.local");

#endif
