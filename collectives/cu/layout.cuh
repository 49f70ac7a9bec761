/* Generated from collectives/src/gpu/layout.rs, which explains every constant. Do not edit. */
#ifndef SYMRAIL_COLLECTIVES_LAYOUT_CUH
#define SYMRAIL_COLLECTIVES_LAYOUT_CUH
/* NVRTC has neither offsetof nor the built-in function of other compilers. */
#ifndef SYMRAIL_OFFSETOF
#ifdef __CUDACC_RTC__
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __INTADDR__(&((TYPE*)0)->MEMBER)
#else
#define SYMRAIL_OFFSETOF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)
#endif
#endif

/* The kinds of steps. */
#define SYMRAIL_STEP_NOP 0
#define SYMRAIL_STEP_BARRIER 1
#define SYMRAIL_STEP_ACQUIRE 2
#define SYMRAIL_STEP_RELEASE 3
#define SYMRAIL_STEP_SIGNAL 4
#define SYMRAIL_STEP_WAIT 5
#define SYMRAIL_STEP_FLUSH 6
#define SYMRAIL_STEP_COPY 7
#define SYMRAIL_STEP_REDUCE 8
#define SYMRAIL_STEP_PACK 9
#define SYMRAIL_STEP_FORWARD 10
#define SYMRAIL_STEP_UNPACK 11
#define SYMRAIL_STEP_REDUCE_PACKETS 12
#define SYMRAIL_STEP_PIPELINE 13
/* Flags of a step: an unordered signal; a flush at the end; the plan fixes the reduction. */
#define SYMRAIL_STEP_RELAXED 1
#define SYMRAIL_STEP_FLUSHES 2
#define SYMRAIL_STEP_OWN_OP 4
/* Flags of a plan: the ranks have a barrier before a call, and after it; only the proxy reaches some ranks;
 * packets and plain chunks of other ranks order one another; puts may be under way when a call ends. */
#define SYMRAIL_PLAN_MEETS_BEFORE 1ull
#define SYMRAIL_PLAN_MEETS_AFTER 2ull
#define SYMRAIL_PLAN_WIRED 4ull
#define SYMRAIL_PLAN_MIXED 8ull
#define SYMRAIL_PLAN_LEAVES_PUTS 16ull
/* Buffers of a span. */
#define SYMRAIL_BUFFER_INPUT 0
#define SYMRAIL_BUFFER_OUTPUT 1
#define SYMRAIL_BUFFER_SCRATCH 2
/* The most spans of one step. */
#define SYMRAIL_STEP_SPANS 160
/* Slots of a lane of sends and receives. */
#define SYMRAIL_LANE_SLOTS 4ull
/* Two words precede the bytes of a slot: the size of the whole transfer, which the receiver compares with its
 * own, and the complement of the number of the slot's signal. */
#define SYMRAIL_SLOT_HEAD 16ull
/* A reason for giving up, besides those of semaphore.cuh: the send's size differs. The bits above these hold
 * that size. */
#define SYMRAIL_GIVEN_UP_SIZES 4ull
#define SYMRAIL_GIVEN_UP_SIZE_SHIFT 8
/* Limits of one launch of sends and receives; of one with a smaller argument, which an all-to-all among 8 ranks
 * needs; and of a small one. */
#define SYMRAIL_MOST_BLOCKS 192
#define SYMRAIL_MOST_ROWS 31
#define SYMRAIL_MOST_TRANSFERS 72
#define SYMRAIL_SOME_ROWS 15
#define SYMRAIL_SOME_TRANSFERS 16
#define SYMRAIL_FEW_ROWS 4
#define SYMRAIL_FEW_TRANSFERS 6
/* The kernels for these arguments, the largest first. */
#define SYMRAIL_EXCHANGE_ANY 0ull
#define SYMRAIL_EXCHANGE_SOME 1ull
#define SYMRAIL_EXCHANGE_FEW 2ull
/* Bits of a row's work: it receives; it is a copy of the PE's own, from the first transfer to the next. */
#define SYMRAIL_ROW_RECEIVES 4611686018427387904ull
#define SYMRAIL_ROW_OWN 9223372036854775808ull
/* A bit of a transfer's division: it is packets, if its sender can store to its receiver's memory. */
#define SYMRAIL_TRANSFER_PACKETS 9223372036854775808ull
/* Limits of calls without a plan, and the slots of one of their rings. */
#define SYMRAIL_STRAIGHT_RANKS 16
/* See above. */
#define SYMRAIL_STRAIGHT_BLOCKS 64ull
#define SYMRAIL_PUSHED_SLOTS 4ull
/* Their collectives. */
#define SYMRAIL_ALL_REDUCE 0ull
#define SYMRAIL_ALL_GATHER 1ull
#define SYMRAIL_REDUCE_SCATTER 2ull
#define SYMRAIL_ALL_TO_ALL 3ull
#define SYMRAIL_BROADCAST 4ull
#define SYMRAIL_REDUCE_TO 5ull
#define SYMRAIL_GATHER 6ull
#define SYMRAIL_SCATTER 7ull
/* Their kernels. */
#define SYMRAIL_STRAIGHT_PACKETS 0ull
#define SYMRAIL_STRAIGHT_ALL_REDUCE 1ull
#define SYMRAIL_STRAIGHT_ONE_WAY 2ull
#define SYMRAIL_STRAIGHT_BOTH_WAYS 3ull
/* Flags beside a reduction: elements are rounded after every step of it; the result is an average. */
#define SYMRAIL_STRAIGHT_ROUNDED 256ull
#define SYMRAIL_STRAIGHT_AVERAGE 512ull
/* The output of an RMS norm: its elements; or FP8 with a scale that is given, or with one for each group. */
#define SYMRAIL_NORM_PLAIN 0ull
#define SYMRAIL_NORM_BY_TENSOR 1ull
#define SYMRAIL_NORM_BY_GROUPS 2ull
/* Kernels of RMS norms. */
#define SYMRAIL_NORM_PACKETS 0ull
#define SYMRAIL_NORM_PACKETS_ANYWHERE 1ull
#define SYMRAIL_NORM_PUSHED 2ull
#define SYMRAIL_NORM_PUSHED_ANYWHERE 3ull

/* Chunks of a buffer of a rank. */
struct symrail_span {
    symrail_u32 rank;
    symrail_u32 buffer;
    symrail_u32 index;
    symrail_u32 size;
};
static_assert(sizeof(symrail_span) == 16, "symrail_span");
static_assert(SYMRAIL_OFFSETOF(symrail_span, rank) == 0, "symrail_span.rank");
static_assert(SYMRAIL_OFFSETOF(symrail_span, buffer) == 4, "symrail_span.buffer");
static_assert(SYMRAIL_OFFSETOF(symrail_span, index) == 8, "symrail_span.index");
static_assert(SYMRAIL_OFFSETOF(symrail_span, size) == 12, "symrail_span.size");

/* A step of a plan. */
struct symrail_plan_step {
    /* For a pipeline: bytes of an iteration, and chunks in all; its steps follow. */
    symrail_u64 unit;
    symrail_u64 chunks;
    symrail_u32 kind;
    symrail_u32 flags;
    /* This block's share of the data. */
    symrail_u32 share;
    symrail_u32 shares;
    symrail_u32 op;
    /* Its spans in the plan's list: sources, then destinations. */
    symrail_u32 spans;
    symrail_u32 sources;
    symrail_u32 dests;
    /* Its indexes in the plan's list: semaphores of channels, or between blocks. */
    symrail_u32 ids;
    symrail_u32 count;
    /* A barrier, and the number of its blocks; for a pipeline, its steps. */
    symrail_u32 barrier;
    symrail_u32 blocks;
};
static_assert(sizeof(symrail_plan_step) == 64, "symrail_plan_step");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, unit) == 0, "symrail_plan_step.unit");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, chunks) == 8, "symrail_plan_step.chunks");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, kind) == 16, "symrail_plan_step.kind");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, flags) == 20, "symrail_plan_step.flags");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, share) == 24, "symrail_plan_step.share");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, shares) == 28, "symrail_plan_step.shares");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, op) == 32, "symrail_plan_step.op");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, spans) == 36, "symrail_plan_step.spans");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, sources) == 40, "symrail_plan_step.sources");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, dests) == 44, "symrail_plan_step.dests");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, ids) == 48, "symrail_plan_step.ids");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, count) == 52, "symrail_plan_step.count");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, barrier) == 56, "symrail_plan_step.barrier");
static_assert(SYMRAIL_OFFSETOF(symrail_plan_step, blocks) == 60, "symrail_plan_step.blocks");

/* A rank in this device's view: its PE, the distance of its memory from this PE's, and whether stores reach it. */
struct symrail_rank {
    symrail_u64 pe;
    symrail_u64 distance;
    symrail_u64 mapped;
};
static_assert(sizeof(symrail_rank) == 24, "symrail_rank");
static_assert(SYMRAIL_OFFSETOF(symrail_rank, pe) == 0, "symrail_rank.pe");
static_assert(SYMRAIL_OFFSETOF(symrail_rank, distance) == 8, "symrail_rank.distance");
static_assert(SYMRAIL_OFFSETOF(symrail_rank, mapped) == 16, "symrail_rank.mapped");

/* A resolved plan of one rank. */
struct symrail_plan {
    symrail_alarm alarm;
    symrail_u64 me;
    symrail_u64 n_ranks;
    symrail_u64 n_blocks;
    symrail_u64 flags;
    /* Chunks of a part; and the buffer that is each rank's part of the other one: 0 none, 1 the input, 2 the
     * output. */
    symrail_u64 chunks;
    symrail_u64 inner;
    symrail_u64 alignment;
    /* Plain scratch chunks, in `scratch_halves` halves; and packets, in `halves` halves (or none) of
     * `half_bytes` bytes, which is twice as many as a half of plain chunks has. */
    symrail_u64 scratch;
    symrail_u64 scratch_halves;
    symrail_u64 packets;
    symrail_u64 halves;
    symrail_u64 half_bytes;
    /* Lists. */
    const symrail_rank* ranks;
    /* The first step of each block, and the end. */
    const symrail_u64* first_steps;
    const symrail_plan_step* steps;
    const symrail_span* spans;
    const symrail_u32* ids;
    /* The rank's semaphores with others: those of channels, then those of barriers, one with each rank. */
    const symrail_semaphore* semaphores;
    symrail_u64 barriers;
    /* The number of each block's next call. */
    symrail_u64* epochs;
    /* Semaphores between this rank's blocks, which a call leaves as it found them; and the arrivals at each
     * barrier. */
    symrail_u64* local_semaphores;
    symrail_u64* arrivals;
    /* The number of calls that blocks may begin; and the number of blocks that have ended, over all calls. */
    symrail_u64* begun;
    symrail_u64* ended;
};
static_assert(sizeof(symrail_plan) == 208, "symrail_plan");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, alarm) == 0, "symrail_plan.alarm");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, me) == 16, "symrail_plan.me");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, n_ranks) == 24, "symrail_plan.n_ranks");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, n_blocks) == 32, "symrail_plan.n_blocks");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, flags) == 40, "symrail_plan.flags");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, chunks) == 48, "symrail_plan.chunks");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, inner) == 56, "symrail_plan.inner");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, alignment) == 64, "symrail_plan.alignment");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, scratch) == 72, "symrail_plan.scratch");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, scratch_halves) == 80, "symrail_plan.scratch_halves");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, packets) == 88, "symrail_plan.packets");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, halves) == 96, "symrail_plan.halves");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, half_bytes) == 104, "symrail_plan.half_bytes");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, ranks) == 112, "symrail_plan.ranks");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, first_steps) == 120, "symrail_plan.first_steps");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, steps) == 128, "symrail_plan.steps");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, spans) == 136, "symrail_plan.spans");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, ids) == 144, "symrail_plan.ids");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, semaphores) == 152, "symrail_plan.semaphores");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, barriers) == 160, "symrail_plan.barriers");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, epochs) == 168, "symrail_plan.epochs");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, local_semaphores) == 176, "symrail_plan.local_semaphores");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, arrivals) == 184, "symrail_plan.arrivals");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, begun) == 192, "symrail_plan.begun");
static_assert(SYMRAIL_OFFSETOF(symrail_plan, ended) == 200, "symrail_plan.ended");

/* One direction between two PEs, and the part of a launch in it. Several lanes share a large transfer: each
 * has a block, and words and slots behind those of the lane before. */
struct symrail_exchange_row {
    /* A sender waits for empty slots, a receiver for full ones; each signals the other. */
    symrail_semaphore semaphore;
    /* The receiver's slots: the symmetric address, and the address for this device, or 0 if it cannot access
     * them. */
    symrail_u64 slots;
    symrail_u64 mapped;
    /* A sender's own symmetric copy of the slots, from which the proxy puts. */
    symrail_u64 outgoing;
    /* The first block, the number of blocks, the first transfer: 16 bits each; the number of transfers, 12
     * bits; and bits. */
    symrail_u64 work;
};
static_assert(sizeof(symrail_exchange_row) == 72, "symrail_exchange_row");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_row, semaphore) == 0, "symrail_exchange_row.semaphore");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_row, slots) == 40, "symrail_exchange_row.slots");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_row, mapped) == 48, "symrail_exchange_row.mapped");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_row, outgoing) == 56, "symrail_exchange_row.outgoing");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_row, work) == 64, "symrail_exchange_row.work");

/* What all rows of a launch share. */
struct symrail_exchange_head {
    symrail_alarm alarm;
    const symrail_rank* ranks;
    symrail_u64 n_ranks;
    symrail_u64 slot_bytes;
    /* Bytes behind each slot for a small transfer as packets, the first of which has its size. */
    symrail_u64 packet_bytes;
    symrail_u64 rows;
};
static_assert(sizeof(symrail_exchange_head) == 56, "symrail_exchange_head");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_head, alarm) == 0, "symrail_exchange_head.alarm");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_head, ranks) == 16, "symrail_exchange_head.ranks");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_head, n_ranks) == 24, "symrail_exchange_head.n_ranks");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_head, slot_bytes) == 32, "symrail_exchange_head.slot_bytes");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_head, packet_bytes) == 40, "symrail_exchange_head.packet_bytes");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_head, rows) == 48, "symrail_exchange_head.rows");

/* A send or a receive. */
struct symrail_transfer {
    symrail_u64 at;
    symrail_u64 bytes;
    /* The bytes of a slot that it uses, 32 bits; its lanes, 16 bits; and a bit. */
    symrail_u64 division;
};
static_assert(sizeof(symrail_transfer) == 24, "symrail_transfer");
static_assert(SYMRAIL_OFFSETOF(symrail_transfer, at) == 0, "symrail_transfer.at");
static_assert(SYMRAIL_OFFSETOF(symrail_transfer, bytes) == 8, "symrail_transfer.bytes");
static_assert(SYMRAIL_OFFSETOF(symrail_transfer, division) == 16, "symrail_transfer.division");

/* A launch of sends and receives. Each block performs the transfers of one row, one after the other, on one
 * lane. */
struct symrail_exchange_call {
    symrail_exchange_head head;
    symrail_exchange_row rows[31];
    symrail_transfer transfers[72];
};
static_assert(sizeof(symrail_exchange_call) == 4016, "symrail_exchange_call");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_call, head) == 0, "symrail_exchange_call.head");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_call, rows) == 56, "symrail_exchange_call.rows");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_call, transfers) == 2288, "symrail_exchange_call.transfers");

/* One with fewer rows. */
struct symrail_exchange_some {
    symrail_exchange_head head;
    symrail_exchange_row rows[15];
    symrail_transfer transfers[16];
};
static_assert(sizeof(symrail_exchange_some) == 1520, "symrail_exchange_some");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_some, head) == 0, "symrail_exchange_some.head");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_some, rows) == 56, "symrail_exchange_some.rows");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_some, transfers) == 1136, "symrail_exchange_some.transfers");

/* A small one. */
struct symrail_exchange_few {
    symrail_exchange_head head;
    symrail_exchange_row rows[4];
    symrail_transfer transfers[6];
};
static_assert(sizeof(symrail_exchange_few) == 488, "symrail_exchange_few");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_few, head) == 0, "symrail_exchange_few.head");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_few, rows) == 56, "symrail_exchange_few.rows");
static_assert(SYMRAIL_OFFSETOF(symrail_exchange_few, transfers) == 344, "symrail_exchange_few.transfers");

/* A rank: the distance of its memory from this PE's, and its PE. */
struct symrail_straight_rank {
    symrail_u64 distance;
    symrail_u64 pe;
};
static_assert(sizeof(symrail_straight_rank) == 16, "symrail_straight_rank");
static_assert(SYMRAIL_OFFSETOF(symrail_straight_rank, distance) == 0, "symrail_straight_rank.distance");
static_assert(SYMRAIL_OFFSETOF(symrail_straight_rank, pe) == 8, "symrail_straight_rank.pe");

/* A call without a plan, and the addresses of its memory. Symmetric memory has the same offset in all heaps. */
struct symrail_straight {
    symrail_alarm alarm;
    symrail_u64 me;
    symrail_u64 n;
    symrail_u64 blocks;
    symrail_u64 collective;
    /* The rank that a broadcast or a reduction to one rank has. */
    symrail_u64 root;
    /* The reduction, and flags. */
    symrail_u64 how;
    symrail_u64 input;
    symrail_u64 output;
    /* Bytes of a part: of the whole in an all-reduce, a broadcast and a reduction to one rank, otherwise of
     * each rank's share. */
    symrail_u64 part;
    /* Symmetric: packets in two halves, with `region` bytes for each other rank. */
    symrail_u64 packets;
    symrail_u64 region;
    /* Symmetric: two rings of slots for each block, of `slot_bytes` bytes, and words that count the filled
     * slots. */
    symrail_u64 rings;
    symrail_u64 slot_bytes;
    symrail_u64 filled;
    /* The bytes of this call's chunks, at most those of two slots, of an RMS norm those of four. */
    symrail_u64 chunk;
    /* This device's words: the number of the next call by packets; the number of that call's blocks that have
     * read it; and the number of each block's next slot. */
    symrail_u64 words;
    symrail_straight_rank ranks[16];
};
static_assert(sizeof(symrail_straight) == 400, "symrail_straight");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, alarm) == 0, "symrail_straight.alarm");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, me) == 16, "symrail_straight.me");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, n) == 24, "symrail_straight.n");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, blocks) == 32, "symrail_straight.blocks");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, collective) == 40, "symrail_straight.collective");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, root) == 48, "symrail_straight.root");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, how) == 56, "symrail_straight.how");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, input) == 64, "symrail_straight.input");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, output) == 72, "symrail_straight.output");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, part) == 80, "symrail_straight.part");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, packets) == 88, "symrail_straight.packets");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, region) == 96, "symrail_straight.region");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, rings) == 104, "symrail_straight.rings");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, slot_bytes) == 112, "symrail_straight.slot_bytes");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, filled) == 120, "symrail_straight.filled");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, chunk) == 128, "symrail_straight.chunk");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, words) == 136, "symrail_straight.words");
static_assert(SYMRAIL_OFFSETOF(symrail_straight, ranks) == 144, "symrail_straight.ranks");

/* An all-reduce of rows with a residual, whose output is their RMS norm. */
struct symrail_norm {
    symrail_straight straight;
    /* The residual or 0, its sum with the rows, and the weight of each element of a row. */
    symrail_u64 residual;
    symrail_u64 sum;
    symrail_u64 weight;
    symrail_u64 rows;
    symrail_u64 hidden;
    /* The bits of a float. */
    symrail_u64 epsilon;
    /* How the output is scaled, and the scale or the scales' place. */
    symrail_u64 scaled;
    symrail_u64 scales;
    /* In packets: their place, and the bytes of another rank's. */
    symrail_u64 inbox;
    symrail_u64 inbox_bytes;
    /* Pushed: the rows that a rank adds up, those of them that a block has, and those of a chunk; the parts of
     * a row, each of which is a chunk, or 1; and a block's chunks. */
    symrail_u64 rows_of_rank;
    symrail_u64 rows_of_block;
    symrail_u64 rows_of_chunk;
    symrail_u64 parts;
    symrail_u64 chunks;
};
static_assert(sizeof(symrail_norm) == 520, "symrail_norm");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, straight) == 0, "symrail_norm.straight");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, residual) == 400, "symrail_norm.residual");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, sum) == 408, "symrail_norm.sum");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, weight) == 416, "symrail_norm.weight");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, rows) == 424, "symrail_norm.rows");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, hidden) == 432, "symrail_norm.hidden");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, epsilon) == 440, "symrail_norm.epsilon");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, scaled) == 448, "symrail_norm.scaled");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, scales) == 456, "symrail_norm.scales");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, inbox) == 464, "symrail_norm.inbox");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, inbox_bytes) == 472, "symrail_norm.inbox_bytes");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, rows_of_rank) == 480, "symrail_norm.rows_of_rank");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, rows_of_block) == 488, "symrail_norm.rows_of_block");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, rows_of_chunk) == 496, "symrail_norm.rows_of_chunk");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, parts) == 504, "symrail_norm.parts");
static_assert(SYMRAIL_OFFSETOF(symrail_norm, chunks) == 512, "symrail_norm.chunks");

#endif
