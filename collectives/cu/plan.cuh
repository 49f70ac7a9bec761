/* A resolved execution plan of one rank, as collectives/src/gpu/encode.rs lays it out, and where its chunks are in a
 * call's buffers (collectives/src/plan/geometry.rs). */
#ifndef SYMRAIL_PLAN_CUH
#define SYMRAIL_PLAN_CUH

#include "symrail_channels.cuh"

/* What a step does. */
#define SYMRAIL_STEP_NOP 0u
#define SYMRAIL_STEP_BARRIER 1u
#define SYMRAIL_STEP_ACQUIRE 2u
#define SYMRAIL_STEP_RELEASE 3u
#define SYMRAIL_STEP_SIGNAL 4u
#define SYMRAIL_STEP_WAIT 5u
#define SYMRAIL_STEP_FLUSH 6u
#define SYMRAIL_STEP_COPY 7u
#define SYMRAIL_STEP_REDUCE 8u
#define SYMRAIL_STEP_PACK 9u
#define SYMRAIL_STEP_FORWARD 10u
#define SYMRAIL_STEP_UNPACK 11u
#define SYMRAIL_STEP_REDUCE_PACKETS 12u
#define SYMRAIL_STEP_PIPELINE 13u

/* Flags of a step: a signal without an order; a flush at the end; the plan fixes the reduction. */
#define SYMRAIL_STEP_RELAXED 1u
#define SYMRAIL_STEP_FLUSHES 2u
#define SYMRAIL_STEP_OWN_OP 4u

/* Flags of a plan: there is a barrier of the ranks before a call, and after it; some are reached by the proxy; packets and plain chunks
 * of other ranks are ordered by one another. */
#define SYMRAIL_PLAN_MEETS_BEFORE 1u
#define SYMRAIL_PLAN_MEETS_AFTER 2u
#define SYMRAIL_PLAN_WIRED 4u
#define SYMRAIL_PLAN_MIXED 8u

#define SYMRAIL_BUFFER_INPUT 0u
#define SYMRAIL_BUFFER_OUTPUT 1u
#define SYMRAIL_BUFFER_SCRATCH 2u

/* At most so many spans are of one step. */
#define SYMRAIL_STEP_SPANS 160

/* Chunks of a buffer of a rank. */
struct symrail_span {
    symrail_u32 rank;
    symrail_u32 buffer;
    symrail_u32 index;
    symrail_u32 size;
};

struct symrail_plan_step {
    /* Of a pipeline: bytes of a turn, and chunks in all; its steps follow. */
    symrail_u64 unit;
    symrail_u64 chunks;
    symrail_u32 kind;
    symrail_u32 flags;
    /* The part of the data that is this block's. */
    symrail_u32 share;
    symrail_u32 shares;
    symrail_u32 op;
    /* Its spans in the plan's list: sources, then destinations. */
    symrail_u32 spans;
    symrail_u32 sources;
    symrail_u32 dests;
    /* Its numbers in the plan's list: semaphores of channels, or between blocks. */
    symrail_u32 ids;
    symrail_u32 count;
    /* A barrier, and how many blocks come to it; of a pipeline, its steps. */
    symrail_u32 barrier;
    symrail_u32 blocks;
};

/* A rank as this device reaches it: its PE, and how far its memory is from this PE's; `mapped` where stores do. */
struct symrail_rank {
    symrail_u64 pe;
    symrail_u64 distance;
    symrail_u64 mapped;
};

struct symrail_plan {
    symrail_alarm alarm;
    symrail_u64 me;
    symrail_u64 n_ranks;
    symrail_u64 n_blocks;
    symrail_u64 flags;
    /* Chunks of a part; and which buffer is each rank's part of the other one: 0 none, 1 the input, 2 the output. */
    symrail_u64 chunks;
    symrail_u64 inner;
    symrail_u64 alignment;
    /* Scratch chunks as they are; and as packets, in so many halves (or none) of so many bytes. */
    symrail_u64 scratch;
    symrail_u64 packets;
    symrail_u64 halves;
    symrail_u64 half_bytes;
    /* Lists. */
    const symrail_rank* ranks;
    const symrail_u64* first_steps; /* of each block, and the end */
    const symrail_plan_step* steps;
    const symrail_span* spans;
    const symrail_u32* ids;
    /* The rank's semaphores with others, of channels and then of barriers, one with each rank. */
    const symrail_semaphore* semaphores;
    symrail_u64 barriers;
    /* Of each block, the number of its next call. */
    symrail_u64* epochs;
    /* Semaphores between this rank's blocks, which a call leaves as it finds them; what has come to each barrier. */
    symrail_u64* local_semaphores;
    symrail_u64* arrivals;
    /* Calls that blocks may begin; and blocks that have ended, of all calls. */
    symrail_u64* begun;
    symrail_u64* ended;
};

/* Some bytes of a span: where they are on this device or on a peer as this device reaches it, and how many are there. */
struct symrail_operand {
    symrail_u64 at;
    symrail_u64 bytes;
    /* On this PE. */
    bool own;
};

/* The layout of a call's buffers. */
struct symrail_geometry {
    symrail_u64 part;
    symrail_u64 chunks;
    symrail_u64 chunk;
    symrail_u64 alignment;

    SYMRAIL_WAITER_FN symrail_u64 whole() const { return chunks * chunk; }

    /* Where block `share` of `shares` begins with `size` chunks. */
    SYMRAIL_WAITER_FN symrail_u64 share_start(symrail_u64 size, symrail_u64 share, symrail_u64 shares) const {
        symrail_u64 units = size * chunk / alignment, more = units % shares;
        return (share * (units / shares) + (share < more ? share : more)) * alignment;
    }
    /* The end of the piece that begins at a byte: each is within one chunk of every span, where chunks are cut. */
    SYMRAIL_WAITER_FN symrail_u64 piece_end(symrail_u64 at, symrail_u64 end) const {
        if (part == whole()) return end;
        symrail_u64 next = (at / chunk + 1) * chunk;
        return next < end ? next : end;
    }
    /* Where a piece of `bytes` of a span of input or output begins in it; `bytes` becomes what is there of it. */
    SYMRAIL_WAITER_FN symrail_u64 locate(const symrail_span& span, symrail_u64 start, symrail_u64& bytes) const {
        symrail_u64 at = span.index * chunk + start;
        if (span.buffer == SYMRAIL_BUFFER_SCRATCH || part == whole()) return at;
        symrail_u64 within = at % whole(), before = at / whole() * part;
        symrail_u64 left = within < part ? part - within : 0;
        if (bytes > left) bytes = left;
        return before + (within < part ? within : part);
    }
};

#endif
