/* A resolved execution plan of one rank, in the layout of collectives/src/gpu/encode.rs, and the offsets of its
 * chunks in a call's buffers (collectives/src/plan/geometry.rs). */
#ifndef SYMRAIL_PLAN_CUH
#define SYMRAIL_PLAN_CUH

#include "symrail_channels.cuh"

/* Kinds of steps. */
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

/* Flags of a step: an unordered signal; a flush at the end; the plan fixes the reduction. */
#define SYMRAIL_STEP_RELAXED 1u
#define SYMRAIL_STEP_FLUSHES 2u
#define SYMRAIL_STEP_OWN_OP 4u

/* Flags of a plan: the ranks have a barrier before a call, and after it; only the proxy reaches some ranks; packets
 * and plain chunks of other ranks order one another; puts may be under way when a call ends. */
#define SYMRAIL_PLAN_MEETS_BEFORE 1u
#define SYMRAIL_PLAN_MEETS_AFTER 2u
#define SYMRAIL_PLAN_WIRED 4u
#define SYMRAIL_PLAN_MIXED 8u
#define SYMRAIL_PLAN_LEAVES_PUTS 16u

#define SYMRAIL_BUFFER_INPUT 0u
#define SYMRAIL_BUFFER_OUTPUT 1u
#define SYMRAIL_BUFFER_SCRATCH 2u

/* The most spans of one step. */
#define SYMRAIL_STEP_SPANS 160

/* Chunks of a buffer of a rank. */
struct symrail_span {
    symrail_u32 rank;
    symrail_u32 buffer;
    symrail_u32 index;
    symrail_u32 size;
};

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

/* A rank in this device's view: its PE, the distance of its memory from this PE's, and whether stores reach it
 * (`mapped`). */
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
    /* Chunks of a part; and the buffer that is each rank's part of the other one: 0 none, 1 the input, 2 the output. */
    symrail_u64 chunks;
    symrail_u64 inner;
    symrail_u64 alignment;
    /* Plain scratch chunks, in `scratch_halves` halves; and packets, in `halves` halves (or none) of `half_bytes` bytes,
     * which is twice as many as a half of plain chunks has. */
    symrail_u64 scratch;
    symrail_u64 scratch_halves;
    symrail_u64 packets;
    symrail_u64 halves;
    symrail_u64 half_bytes;
    /* Lists. */
    const symrail_rank* ranks;
    const symrail_u64* first_steps; /* of each block, and the end */
    const symrail_plan_step* steps;
    const symrail_span* spans;
    const symrail_u32* ids;
    /* The rank's semaphores with others: those of channels, then those of barriers, one with each rank. */
    const symrail_semaphore* semaphores;
    symrail_u64 barriers;
    /* The number of each block's next call. */
    symrail_u64* epochs;
    /* Semaphores between this rank's blocks, which a call leaves as it found them; and the arrivals at each barrier. */
    symrail_u64* local_semaphores;
    symrail_u64* arrivals;
    /* The number of calls that blocks may begin; and the number of blocks that have ended, over all calls. */
    symrail_u64* begun;
    symrail_u64* ended;
};

/* Some bytes of a span: their address for this device, locally or at a peer, and their number. */
struct symrail_operand {
    symrail_u64 at;
    symrail_u64 bytes;
    /* Whether they are on this PE. */
    bool own;
};

/* The layout of a call's buffers. */
struct symrail_geometry {
    symrail_u64 part;
    symrail_u64 chunks;
    symrail_u64 chunk;
    symrail_u64 alignment;

    SYMRAIL_WAITER_FN symrail_u64 whole() const { return chunks * chunk; }

    /* The start of block `share` of `shares` in `size` chunks. */
    SYMRAIL_WAITER_FN symrail_u64 share_start(symrail_u64 size, symrail_u64 share, symrail_u64 shares) const {
        symrail_u64 units = size * chunk / alignment, more = units % shares;
        return (share * (units / shares) + (share < more ? share : more)) * alignment;
    }
    /* The end of the piece that begins at a byte: if chunks are cut short, each piece is within one chunk of every
     * span. */
    SYMRAIL_WAITER_FN symrail_u64 piece_end(symrail_u64 at, symrail_u64 end) const {
        if (part == whole()) return end;
        symrail_u64 next = (at / chunk + 1) * chunk;
        return next < end ? next : end;
    }
    /* The offset of a piece of `bytes` of a span in input or output; `bytes` becomes the number of existing bytes. */
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
