/* Requests to the proxy: a thread reserves a position, writes its chunks, and waits for the completion.
 * proxy/src/channel/mod.rs explains the protocol; this is a GPU's side of it. */
#ifndef SYMRAIL_CHANNEL_CUH
#define SYMRAIL_CHANNEL_CUH

#include "failure.cuh"
#include "shared_poll.cuh"

/* The words of a request; chunks outside of the mask are not written. */
struct symrail_request {
    symrail_u32 mask;
    symrail_u64 w[8];
};

/* The operations of one thread stay in order because a block uses one channel. */
SYMRAIL_DEVICE const symrail_channel_view& symrail_my_channel() {
    symrail_u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    return symrail_state.channels[block % symrail_state.n_channels];
}

SYMRAIL_DEVICE bool symrail_has_channel(symrail_u64 what, int pe) {
    if (symrail_state.n_channels != 0) return true;
    symrail_fail(SYMRAIL_ERROR_NO_CHANNEL, what, pe, 0);
    return false;
}

static __device__ __noinline__ bool symrail_wait_for_room(const symrail_channel_view& c, symrail_u64 position) {
    symrail_waiter waiter;
    symrail_shared_poll shared(c.ring + SYMRAIL_TAIL, c.own + SYMRAIL_OWN_TAIL);
    bool room, late = false;
    while (!(room = position < shared.poll() + c.slots) && !(late = waiter.over())) {}
    shared.leave();
    if (late) symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_PUSH, 0, position);
    return room;
}

/* Reserves a position for each thread that arrives here together, with one atomic for all of them. */
SYMRAIL_DEVICE symrail_u64 symrail_reserve(const symrail_channel_view& c) {
    symrail_u32 active = __activemask(), lane, below;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    int leader = __ffs(active) - 1;
    symrail_u64 first = 0;
    if ((int)lane == leader) first = symrail_add_gpu(c.own + SYMRAIL_OWN_HEAD, __popc(active));
    return __shfl_sync(active, first, leader) + __popc(active & below);
}

/* Writes the request into its slot. No fence between the chunks: each carries the lap's parity. */
SYMRAIL_DEVICE void symrail_write(const symrail_channel_view& c, symrail_u64 position, const symrail_request& r) {
    /* The slots are a power of two, so the lap is the bits above them. */
    symrail_u64 parity = ((position & c.slots) == 0 ? 1ull : 0ull) << SYMRAIL_PARITY_SHIFT;
    symrail_u64 slot = c.ring + SYMRAIL_HEADER_BYTES + (position & (c.slots - 1)) * SYMRAIL_SLOT_BYTES;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (r.mask & (1u << i)) symrail_st_pair(slot + i * SYMRAIL_CHUNK_BYTES, r.w[2 * i] | parity, r.w[2 * i + 1]);
}

/* Pushes a request and returns its position. The caller has made memory that the request names visible
 * (symrail_fence_sys). The stores depend on the tail that was read, so they come after the consumer has left the
 * slot. */
SYMRAIL_DEVICE symrail_u64 symrail_push(const symrail_channel_view& c, const symrail_request& r) {
    symrail_u64 room = symrail_ld_gpu(c.own + SYMRAIL_OWN_TAIL) + c.slots;
    symrail_u64 position = symrail_reserve(c);
    if (position >= room && !symrail_wait_for_room(c, position)) return position;
    symrail_write(c, position, r);
    return position;
}

SYMRAIL_DEVICE symrail_u64 symrail_head(symrail_u64 opcode, symrail_u64 kind, symrail_u64 op, symrail_u32 mask, int pe) {
    return opcode << SYMRAIL_OPCODE_SHIFT | op << SYMRAIL_AMO_OP_SHIFT | kind << SYMRAIL_TYPE_SHIFT |
           (symrail_u64)mask << SYMRAIL_MASK_SHIFT | (symrail_u64)(symrail_u32)pe << SYMRAIL_PE_SHIFT;
}

/* Waits until every position before `target` is delivered. The effects of those requests are visible then. Returns
 * `false` when time is over. */
SYMRAIL_DEVICE bool symrail_wait_delivered(const symrail_channel_view& c, symrail_u64 target, bool crowded = false) {
    symrail_waiter waiter;
    symrail_shared_poll shared(c.ring + SYMRAIL_COMPLETED, c.own + SYMRAIL_OWN_COMPLETED, crowded);
    symrail_u64 completed;
    bool late = false;
    while ((completed = shared.poll()) < target && !(late = waiter.over())) {}
    shared.leave();
    if (late) symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_QUIET, 0, target - completed);
    return !late;
}

/* Waits for all requests that were pushed to a channel so far. If there are none, it costs only loads of device
 * memory. Returns `false` when time is over. */
SYMRAIL_DEVICE bool symrail_drain(const symrail_channel_view& c) {
    bool crowded = symrail_is_polled(c.own + SYMRAIL_OWN_COMPLETED);
    symrail_u64 done = symrail_ld_gpu(c.own + SYMRAIL_OWN_COMPLETED);
    symrail_u64 target = symrail_ld_gpu(c.own + SYMRAIL_OWN_HEAD);
    return done >= target || symrail_wait_delivered(c, target, crowded);
}

/* The number of requests that the proxy could not complete so far. */
SYMRAIL_DEVICE symrail_u64 symrail_failed_requests() {
    symrail_u64 all = 0;
    for (symrail_u32 i = 0; i < symrail_state.n_channels; i++)
        all += symrail_ld_sys(symrail_state.channels[i].ring + SYMRAIL_ERRORS);
    return all;
}

/* Notes that the proxy changes memory that stores also reach directly: a fence has to wait for that. */
SYMRAIL_DEVICE void symrail_mixed(const symrail_channel_view& c, symrail_u64 position) {
    symrail_max_gpu(c.own + SYMRAIL_OWN_MIXED, position + 1);
}

/* A reply entry's word in device memory: bit 31 is set while a thread owns it, and the last generation is below. */
#define SYMRAIL_REPLY_OWNED 0x80000000u

/* Pushes a request with a reply, and waits for the reply's value. */
static __device__ __noinline__ symrail_u64 symrail_ask(const symrail_channel_view& c, symrail_request& r, int pe) {
    symrail_u32 thread = symrail_block_scope::rank();
    symrail_u32 index = (blockIdx.x * 67u + thread) % (symrail_u32)c.replies, *word;
    symrail_waiter waiter;
    for (;;) {
        word = (symrail_u32*)(c.own + SYMRAIL_OWN_REPLIES) + index;
        if ((atomicOr(word, SYMRAIL_REPLY_OWNED) & SYMRAIL_REPLY_OWNED) == 0) break;
        index = index + 1 == c.replies ? 0 : index + 1;
        if (waiter.over()) {
            symrail_fail(SYMRAIL_ERROR_NO_REPLY, SYMRAIL_WHAT_REPLY, pe, c.replies);
            return 0;
        }
    }
    symrail_u32 generation = (*(volatile symrail_u32*)word + 1u) & ~SYMRAIL_REPLY_OWNED;
    r.w[6] = (symrail_u64)generation << SYMRAIL_GENERATION_SHIFT | index;
    symrail_push(c, r);
    symrail_u64 at = c.ring + SYMRAIL_HEADER_BYTES + c.slots * SYMRAIL_SLOT_BYTES + index * SYMRAIL_REPLY_BYTES;
    symrail_u64 value, state;
    symrail_waiter patience;
    for (;;) {
        symrail_ld_pair_acquire(at, value, state);
        if ((state & ((1ull << SYMRAIL_GENERATION_BITS) - 1)) == generation) break;
        if (patience.over()) {
            /* The entry stays owned, so that a late reply reaches no other request. */
            symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_REPLY, pe, index);
            return 0;
        }
    }
    atomicExch(word, generation);
    return value;
}

#endif
