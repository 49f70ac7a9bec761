/* Generated from decomp/src/cuda/layout.rs, which explains every constant. Do not edit. */
#ifndef SYMRAIL_DECOMP_LAYOUT_CUH
#define SYMRAIL_DECOMP_LAYOUT_CUH
/* NVRTC has neither offsetof nor the built-in function of other compilers. */
#ifndef SYMRAIL_OFFSETOF
#ifdef __CUDACC_RTC__
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __INTADDR__(&((TYPE*)0)->MEMBER)
#else
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)
#endif
#endif

/* The threads of a block that copies. */
#define DECOMP_THREADS 256
/* The number of blocks that are resident on a multiprocessor: the registers suffice for so many. */
#define DECOMP_AT_ONCE 4
/* The loops of a copy. */
#define DECOMP_LOOPS 5
/* The leg of a copy that always runs. */
#define DECOMP_NO_LEG 18446744073709551615ull

/* The last refusal for the host. */
struct decomp_refusal {
    /* Its code, plus one. */
    symrail_u64 refusal;
    symrail_u64 pe;
};
static_assert(sizeof(decomp_refusal) == 16, "decomp_refusal");
static_assert(SYMRAIL_OFFSETOF(decomp_refusal, refusal) == 0, "decomp_refusal.refusal");
static_assert(SYMRAIL_OFFSETOF(decomp_refusal, pe) == 8, "decomp_refusal.pe");

/* What kernels report, in pinned memory. */
struct decomp_report {
    symrail_report wait;
    decomp_refusal refusal;
};
static_assert(sizeof(decomp_report) == 48, "decomp_report");
static_assert(SYMRAIL_OFFSETOF(decomp_report, wait) == 0, "decomp_report.wait");
static_assert(SYMRAIL_OFFSETOF(decomp_report, refusal) == 32, "decomp_report.refusal");

/* A plan, with addresses of its words. */
struct decomp_plan {
    /* Words for each slot: where this PE's block may go, and the round; after all of these, by slot, the round
     * whose block has arrived. Each round's number is DECOMP_NEXT more than the one before. */
    symrail_u64 words;
    symrail_u64 slots;
    /* The round, in this device's memory. */
    symrail_u64 round;
    symrail_alarm alarm;
    /* The `decomp_refusal` of the report. */
    symrail_u64 refusal;
    /* The number of blocks of a launch of `decomp_round` that have done their copies. */
    symrail_u64 done;
};
static_assert(sizeof(decomp_plan) == 56, "decomp_plan");
static_assert(SYMRAIL_OFFSETOF(decomp_plan, words) == 0, "decomp_plan.words");
static_assert(SYMRAIL_OFFSETOF(decomp_plan, slots) == 8, "decomp_plan.slots");
static_assert(SYMRAIL_OFFSETOF(decomp_plan, round) == 16, "decomp_plan.round");
static_assert(SYMRAIL_OFFSETOF(decomp_plan, alarm) == 24, "decomp_plan.alarm");
static_assert(SYMRAIL_OFFSETOF(decomp_plan, refusal) == 40, "decomp_plan.refusal");
static_assert(SYMRAIL_OFFSETOF(decomp_plan, done) == 48, "decomp_plan.done");

/* A plan with the words in this device's memory that its kernels change. The landings follow it. */
struct decomp_plan_memory {
    decomp_plan plan;
    symrail_u64 round;
    symrail_u64 stop;
    symrail_u64 done;
};
static_assert(sizeof(decomp_plan_memory) == 80, "decomp_plan_memory");
static_assert(SYMRAIL_OFFSETOF(decomp_plan_memory, plan) == 0, "decomp_plan_memory.plan");
static_assert(SYMRAIL_OFFSETOF(decomp_plan_memory, round) == 56, "decomp_plan_memory.round");
static_assert(SYMRAIL_OFFSETOF(decomp_plan_memory, stop) == 64, "decomp_plan_memory.stop");
static_assert(SYMRAIL_OFFSETOF(decomp_plan_memory, done) == 72, "decomp_plan_memory.done");

/* Another PE of a round. */
struct decomp_leg {
    symrail_u64 pe;
    /* The slots here and there. */
    symrail_u64 here;
    symrail_u64 there;
    /* The offer to the other end: where its block may go here. */
    symrail_u64 offer;
    /* The source and the length of the proxy's put, if there is one. */
    symrail_u64 source;
    symrail_u64 bytes;
};
static_assert(sizeof(decomp_leg) == 48, "decomp_leg");
static_assert(SYMRAIL_OFFSETOF(decomp_leg, pe) == 0, "decomp_leg.pe");
static_assert(SYMRAIL_OFFSETOF(decomp_leg, here) == 8, "decomp_leg.here");
static_assert(SYMRAIL_OFFSETOF(decomp_leg, there) == 16, "decomp_leg.there");
static_assert(SYMRAIL_OFFSETOF(decomp_leg, offer) == 24, "decomp_leg.offer");
static_assert(SYMRAIL_OFFSETOF(decomp_leg, source) == 32, "decomp_leg.source");
static_assert(SYMRAIL_OFFSETOF(decomp_leg, bytes) == 40, "decomp_leg.bytes");

/* What is known of a leg's other end. */
struct decomp_landing {
    /* Where a block of this round may go, as an address of this GPU, and its kind. */
    symrail_u64 at;
    symrail_u64 kind;
    /* Whether the other end's block has arrived. */
    symrail_u64 came;
    /* The number of blocks of a launch that have copied theirs. */
    symrail_u64 copied;
};
static_assert(sizeof(decomp_landing) == 32, "decomp_landing");
static_assert(SYMRAIL_OFFSETOF(decomp_landing, at) == 0, "decomp_landing.at");
static_assert(SYMRAIL_OFFSETOF(decomp_landing, kind) == 8, "decomp_landing.kind");
static_assert(SYMRAIL_OFFSETOF(decomp_landing, came) == 16, "decomp_landing.came");
static_assert(SYMRAIL_OFFSETOF(decomp_landing, copied) == 24, "decomp_landing.copied");

/* A block that a copy engine fetches. */
struct decomp_fetched {
    void* to;
    const void* from;
    symrail_u64 bytes;
};
static_assert(sizeof(decomp_fetched) == 24, "decomp_fetched");
static_assert(SYMRAIL_OFFSETOF(decomp_fetched, to) == 0, "decomp_fetched.to");
static_assert(SYMRAIL_OFFSETOF(decomp_fetched, from) == 8, "decomp_fetched.from");
static_assert(SYMRAIL_OFFSETOF(decomp_fetched, bytes) == 16, "decomp_fetched.bytes");

/* A loop over one dimension; strides are of elements. */
struct decomp_loop {
    symrail_u64 count;
    symrail_u64 from;
    symrail_u64 to;
};
static_assert(sizeof(decomp_loop) == 24, "decomp_loop");
static_assert(SYMRAIL_OFFSETOF(decomp_loop, count) == 0, "decomp_loop.count");
static_assert(SYMRAIL_OFFSETOF(decomp_loop, from) == 8, "decomp_loop.from");
static_assert(SYMRAIL_OFFSETOF(decomp_loop, to) == 16, "decomp_loop.to");

/* A copy. The first loop is the fastest of the destination. The second is that of the source, or else the next
 * one. */
struct decomp_copy {
    symrail_u64 from;
    symrail_u64 to;
    /* The leg of the copy, or DECOMP_NO_LEG; whether `to` is an offset from that leg's landing. */
    symrail_u64 leg;
    symrail_u64 at_landing;
    /* Whether the fastest dimensions differ. */
    symrail_u64 tiled;
    /* Whether all strides and sizes, except the addresses, are multiples of 16 bytes. */
    symrail_u64 wide;
    decomp_loop loops[5];
};
static_assert(sizeof(decomp_copy) == 168, "decomp_copy");
static_assert(SYMRAIL_OFFSETOF(decomp_copy, from) == 0, "decomp_copy.from");
static_assert(SYMRAIL_OFFSETOF(decomp_copy, to) == 8, "decomp_copy.to");
static_assert(SYMRAIL_OFFSETOF(decomp_copy, leg) == 16, "decomp_copy.leg");
static_assert(SYMRAIL_OFFSETOF(decomp_copy, at_landing) == 24, "decomp_copy.at_landing");
static_assert(SYMRAIL_OFFSETOF(decomp_copy, tiled) == 32, "decomp_copy.tiled");
static_assert(SYMRAIL_OFFSETOF(decomp_copy, wide) == 40, "decomp_copy.wide");
static_assert(SYMRAIL_OFFSETOF(decomp_copy, loops) == 48, "decomp_copy.loops");

#endif
