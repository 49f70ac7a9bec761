/* The offsets of a plan's chunks in a call's buffers (collectives/src/plan/geometry.rs). */
#ifndef SYMRAIL_PLAN_CUH
#define SYMRAIL_PLAN_CUH

#include "symrail_channels.cuh"
#include "layout.cuh"

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
