/* Generated from overlap/src/cuda/layout.rs, which explains every constant. Do not edit. */
#ifndef SYMRAIL_OVERLAP_LAYOUT_CUH
#define SYMRAIL_OVERLAP_LAYOUT_CUH
/* NVRTC has neither offsetof nor the built-in function of other compilers. */
#ifndef SYMRAIL_OFFSETOF
#ifdef __CUDACC_RTC__
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __INTADDR__(&((TYPE*)0)->MEMBER)
#else
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)
#endif
#endif

/* The most blocks of a round that is not cut, each of which has a packet without data. */
#define OVERLAP_PACKET_HEADS 96
/* The slots of a pair for puts of few bytes, and the bytes of a slot. */
#define OVERLAP_SLOTS 4
#define OVERLAP_SLOT_BYTES 8320

/* A plan. The numbers of its PEs follow it. */
struct overlap_plan {
    /* The address of the plan's words, which kernels use for all PEs, and that of the round's number in this
     * device's memory. */
    symrail_u64 words;
    symrail_u64 round;
    /* The alarm stops waits at a word that other PEs set when they give up. So their failed waits end those of
     * this PE, too. */
    symrail_alarm alarm;
    /* The index of that word, and the number of PEs. */
    symrail_u64 gone;
    symrail_u64 pes;
    /* The number of the round; its copy for copy engines to set at others, or 0 after a failed wait; the
     * number of blocks that have copied. */
    symrail_u64 counted;
    symrail_u64 signalled;
    symrail_u64 copied;
    symrail_u64 unused[7];
};
static_assert(sizeof(overlap_plan) == 128, "overlap_plan");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, words) == 0, "overlap_plan.words");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, round) == 8, "overlap_plan.round");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, alarm) == 16, "overlap_plan.alarm");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, gone) == 32, "overlap_plan.gone");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, pes) == 40, "overlap_plan.pes");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, counted) == 48, "overlap_plan.counted");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, signalled) == 56, "overlap_plan.signalled");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, copied) == 64, "overlap_plan.copied");
static_assert(SYMRAIL_OFFSETOF(overlap_plan, unused) == 72, "overlap_plan.unused");

/* The data that move between two ranks in a round that is not cut, in one kernel. */
struct overlap_part {
    symrail_u64 pe;
    /* The first words of the blocks, one for each block. `ready`: the buffer of this rank is free. `arrived`:
     * bytes have arrived. The last two are those of the other rank, at addresses that this device reaches. */
    symrail_u64 ready;
    symrail_u64 arrived;
    symrail_u64 ready_there;
    symrail_u64 arrived_there;
    /* The bytes that go to the other rank: their offset from the kernel's `from`, and the address at which
     * this device reaches their destination. */
    symrail_u64 from;
    symrail_u64 to;
    symrail_u64 bytes;
};
static_assert(sizeof(overlap_part) == 64, "overlap_part");
static_assert(SYMRAIL_OFFSETOF(overlap_part, pe) == 0, "overlap_part.pe");
static_assert(SYMRAIL_OFFSETOF(overlap_part, ready) == 8, "overlap_part.ready");
static_assert(SYMRAIL_OFFSETOF(overlap_part, arrived) == 16, "overlap_part.arrived");
static_assert(SYMRAIL_OFFSETOF(overlap_part, ready_there) == 24, "overlap_part.ready_there");
static_assert(SYMRAIL_OFFSETOF(overlap_part, arrived_there) == 32, "overlap_part.arrived_there");
static_assert(SYMRAIL_OFFSETOF(overlap_part, from) == 40, "overlap_part.from");
static_assert(SYMRAIL_OFFSETOF(overlap_part, to) == 48, "overlap_part.to");
static_assert(SYMRAIL_OFFSETOF(overlap_part, bytes) == 56, "overlap_part.bytes");

/* The same for data that move as packets. */
struct overlap_packed {
    /* The address at which this device reaches the other rank's packets; the offset and the length of their
     * bytes in the kernel's `from`. */
    symrail_u64 to;
    symrail_u64 from;
    symrail_u64 bytes;
    /* The PE whose packets arrive at `here`. For an all-gather also the destination of their bytes. */
    symrail_u64 sender;
    symrail_u64 here;
    symrail_u64 keep;
    symrail_u64 coming;
    symrail_u64 unused;
};
static_assert(sizeof(overlap_packed) == 64, "overlap_packed");
static_assert(SYMRAIL_OFFSETOF(overlap_packed, to) == 0, "overlap_packed.to");
static_assert(SYMRAIL_OFFSETOF(overlap_packed, from) == 8, "overlap_packed.from");
static_assert(SYMRAIL_OFFSETOF(overlap_packed, bytes) == 16, "overlap_packed.bytes");
static_assert(SYMRAIL_OFFSETOF(overlap_packed, sender) == 24, "overlap_packed.sender");
static_assert(SYMRAIL_OFFSETOF(overlap_packed, here) == 32, "overlap_packed.here");
static_assert(SYMRAIL_OFFSETOF(overlap_packed, keep) == 40, "overlap_packed.keep");
static_assert(SYMRAIL_OFFSETOF(overlap_packed, coming) == 48, "overlap_packed.coming");
static_assert(SYMRAIL_OFFSETOF(overlap_packed, unused) == 56, "overlap_packed.unused");

/* A wait of a round's first kernel. */
struct overlap_first_wait {
    symrail_u64 word;
    symrail_u64 pe;
};
static_assert(sizeof(overlap_first_wait) == 16, "overlap_first_wait");
static_assert(SYMRAIL_OFFSETOF(overlap_first_wait, word) == 0, "overlap_first_wait.word");
static_assert(SYMRAIL_OFFSETOF(overlap_first_wait, pe) == 8, "overlap_first_wait.pe");

/* The counts of this rank for another rank and a tag, in this device's memory. */
struct overlap_pair {
    symrail_u64 sent;
    symrail_u64 received;
    symrail_u64 offered;
    symrail_u64 fetched;
    /* The blocks that have copied, for a put and for a get; the values that copy engines copy to words. */
    symrail_u64 put;
    symrail_u64 got;
    symrail_u64 counted_put;
    symrail_u64 counted_got;
};
static_assert(sizeof(overlap_pair) == 64, "overlap_pair");
static_assert(SYMRAIL_OFFSETOF(overlap_pair, sent) == 0, "overlap_pair.sent");
static_assert(SYMRAIL_OFFSETOF(overlap_pair, received) == 8, "overlap_pair.received");
static_assert(SYMRAIL_OFFSETOF(overlap_pair, offered) == 16, "overlap_pair.offered");
static_assert(SYMRAIL_OFFSETOF(overlap_pair, fetched) == 24, "overlap_pair.fetched");
static_assert(SYMRAIL_OFFSETOF(overlap_pair, put) == 32, "overlap_pair.put");
static_assert(SYMRAIL_OFFSETOF(overlap_pair, got) == 40, "overlap_pair.got");
static_assert(SYMRAIL_OFFSETOF(overlap_pair, counted_put) == 48, "overlap_pair.counted_put");
static_assert(SYMRAIL_OFFSETOF(overlap_pair, counted_got) == 56, "overlap_pair.counted_got");

#endif
