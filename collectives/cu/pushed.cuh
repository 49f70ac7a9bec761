/* Through slots in the receivers' heaps: data is stored there, never loaded from a peer, so that nobody waits for a link
 * to answer. Each block has rings of slots of its own with the same block of the other ranks, and works on some chunks at
 * a time, one after the other in each stage:
 *
 *     all-reduce       push(i): what is each rank's part of my input goes to it.   reduce(i - 2): what came, and mine, into
 *                      my output, and the result to all others.                    take(i - 3): their results
 *     all-gather       push(i): my input to all others.                            take(i - 2): theirs
 *     reduce-scatter   push(i): what is each rank's part of my input goes to it.   reduce(i - 2): what came, and mine
 *     all-to-all       push(i): what is each rank's part of my input goes to it.   take(i - 2): what came
 *
 * Within a step the later stages come first. That is why a slot is free when its turn comes, and nobody has to say so:
 * chunk i - 2 of a peer was sent behind its stage of chunk i - 4, and rings have four slots. Results go to a second ring;
 * a peer that has sent chunk i has taken its results up to i - 3. Slots are counted on from call to call. A peer's first
 * chunk of a call comes when its last call has ended; before it, a peer has emptied all slots but the last two. */
#ifndef SYMRAIL_PUSHED_CUH
#define SYMRAIL_PUSHED_CUH

#include "straight.cuh"

#define SYMRAIL_PUSHED_SLOTS 4ull
#define SYMRAIL_PUSHED_AHEAD 4

template <class N>
struct symrail_pushed {
    const symrail_straight& call;
    symrail_u64 block;
    /* The number of the call's first slot. */
    symrail_u64 first;

    SYMRAIL_WAITER_FN symrail_pushed(const symrail_straight& call, symrail_u32 block) : call(call), block(block), first(0) {}

    SYMRAIL_WAITER_FN bool reduces_all() const { return call.collective == SYMRAIL_ALL_REDUCE; }

    /* Bytes of a rank's part, and of a block's share of it. */
    SYMRAIL_WAITER_FN symrail_u64 piece() const {
        return reduces_all() ? ((call.part + 16 * call.n - 1) / (16 * call.n)) * 16 : call.part;
    }
    SYMRAIL_WAITER_FN symrail_u64 share() const {
        return (piece() + 16 * call.blocks - 1) / (16 * call.blocks) * 16;
    }
    /* Where chunk `i` of this block begins in the part of a rank, and its bytes. */
    SYMRAIL_WAITER_FN symrail_u64 start(symrail_u64 i) const { return block * share() + i * call.chunk; }
    SYMRAIL_WAITER_FN symrail_u64 bytes(symrail_u64 rank, symrail_u64 i) const {
        symrail_u64 from = start(i), end = (block + 1) * share(), most = piece();
        if (reduces_all()) {
            symrail_u64 left = call.part > rank * piece() ? call.part - rank * piece() : 0;
            if (left < most) most = left;
        }
        if (most < end) end = most;
        if (end <= from) return 0;
        return end - from < call.chunk ? end - from : call.chunk;
    }

    /* Slot `i` of a ring for what `source` sends to `to`, as this device reaches it. */
    SYMRAIL_WAITER_FN symrail_u64 slot(symrail_u64 ring, symrail_u64 i, symrail_u64 source, symrail_u64 to) const {
        symrail_u64 at = (ring * SYMRAIL_STRAIGHT_BLOCKS + block) * SYMRAIL_PUSHED_SLOTS + (first + i) % SYMRAIL_PUSHED_SLOTS;
        at = at * (call.n - 1) + symrail_place_at(source, to);
        return call.rings + call.ranks[to].distance + at * call.slot_bytes;
    }
    /* The word that says how many slots `source` has filled. */
    SYMRAIL_WAITER_FN symrail_u64 filled(symrail_u64 ring, symrail_u64 source) const {
        return call.filled + 8 * ((ring * SYMRAIL_STRAIGHT_BLOCKS + block) * SYMRAIL_STRAIGHT_RANKS + source);
    }

    /* Tells all others that their slots are filled. */
    SYMRAIL_WAITER_FN void tell(symrail_u64 ring, symrail_u64 i) const {
        symrail_all::sync();
        for (symrail_u64 to = symrail_all::rank(); to < call.n; to += symrail_all::size())
            if (to != call.me) symrail_st_release_sys(filled(ring, call.me) + call.ranks[to].distance, first + i + 1);
    }
    /* Waits until all others have filled slot `i`. */
    SYMRAIL_WAITER_FN bool await(symrail_u64 ring, symrail_u64 i) const {
        bool good = true;
        symrail_u64 number = first + i + 1;
        for (symrail_u64 from = symrail_all::rank(); good && from < call.n; from += symrail_all::size()) {
            if (from == call.me) continue;
            symrail_u64 at = filled(ring, from);
            auto came = [at, number]() { return symrail_ld_acquire((const symrail_u64*)at) >= number; };
            good = symrail_straight_await(call, came, from, block);
        }
        return __syncthreads_or(good ? 0 : 1) == 0;
    }

    SYMRAIL_WAITER_FN void push(symrail_u64 i) const {
        for (symrail_u64 k = 1; k < call.n; k++) {
            symrail_u64 to = call.me + k < call.n ? call.me + k : call.me + k - call.n, whose = call.collective == SYMRAIL_ALL_GATHER ? 0 : to;
            symrail_u64 length = bytes(to, i);
            const char* from = (const char*)call.input + whose * piece() + start(i);
            if (length != 0) symrail_copy<symrail_all>((void*)slot(0, i, call.me, to), from, length);
        }
        tell(0, i);
    }

    /* What all others have sent, to their parts of the output. */
    SYMRAIL_WAITER_FN bool take(symrail_u64 ring, symrail_u64 i) const {
        if (!await(ring, i)) return false;
        for (symrail_u64 k = 0; k < call.n; k++) {
            symrail_u64 from = call.me + k < call.n ? call.me + k : call.me + k - call.n, length = bytes(from, i);
            if (length == 0 || (k == 0 && !symrail_moves(call))) continue;
            char* to = (char*)call.output + from * piece() + start(i);
            const char* own = (const char*)symrail_straight_source(call) + start(i);
            if (k != 0) symrail_copy<symrail_all, symrail_peer_source>(to, (const void*)slot(ring, i, from, call.me), length);
            else if (to != own) symrail_copy<symrail_all>(to, own, length);
        }
        return true;
    }

    /* Reduces what came and this rank's input, and sends the result on where everybody gets it. */
    SYMRAIL_WAITER_FN bool reduce(symrail_u64 i) const {
        if (!await(0, i)) return false;
        symrail_u64 length = bytes(call.me, i), own = call.input + call.me * piece() + start(i);
        symrail_u64 to = call.output + (reduces_all() ? call.me * piece() : 0) + start(i);
        symrail_u64 wide = ((own | to) & 15) == 0 ? length / 16 : 0;
        symrail_u64 threads = symrail_all::size(), at = symrail_all::rank();
        for (; at + (SYMRAIL_PUSHED_AHEAD - 1) * threads < wide; at += SYMRAIL_PUSHED_AHEAD * threads)
            reduce_wide<SYMRAIL_PUSHED_AHEAD>(i, own, to, at);
        for (; at < wide; at += threads) reduce_wide<1>(i, own, to, at);
        const symrail_u64 element = sizeof(typename N::stored);
        for (at = 16 * wide + symrail_all::rank() * element; at < length; at += threads * element)
            reduce_element(i, own + at, to + at, at);
        if (reduces_all()) tell(1, i);
        return true;
    }

    /* Loads of the same places of a rank's chunk. */
    template <int MANY>
    SYMRAIL_WAITER_FN void load(symrail_wide* raw, symrail_u64 i, symrail_u64 own, symrail_u64 rank, symrail_u64 at) const {
        const symrail_wide* from = (const symrail_wide*)(rank == call.me ? own : slot(0, i, rank, call.me)) + at;
#pragma unroll
        for (int k = 0; k < MANY; k++) raw[k] = symrail_peer_source::load(from + k * symrail_all::size());
    }

    template <int MANY>
    SYMRAIL_WAITER_FN void reduce_wide(symrail_u64 i, symrail_u64 own, symrail_u64 to, symrail_u64 at) const {
        symrail_elements<N, 16> sum[MANY], more;
        symrail_wide raw[MANY], next[MANY];
        load<MANY>(raw, i, own, 0, at);
        load<MANY>(next, i, own, 1, at);
#pragma unroll
        for (int k = 0; k < MANY; k++) sum[k].unpack(&raw[k]);
        for (symrail_u64 rank = 1; rank < call.n; rank++) {
#pragma unroll
            for (int k = 0; k < MANY; k++) raw[k] = next[k];
            /* The next one's are on their way meanwhile. */
            if (rank + 1 < call.n) load<MANY>(next, i, own, rank + 1, at);
#pragma unroll
            for (int k = 0; k < MANY; k++) {
                more.unpack(&raw[k]);
                symrail_straight_take(call, sum[k], more);
            }
        }
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            symrail_straight_finish<N>(call, sum[k]);
            sum[k].pack(&raw[k]);
            symrail_store((symrail_wide*)to + at + k * symrail_all::size(), raw[k]);
        }
        if (!reduces_all()) return;
        for (symrail_u64 other = 0; other < call.n; other++) {
            if (other == call.me) continue;
            symrail_wide* there = (symrail_wide*)slot(1, i, call.me, other) + at;
#pragma unroll
            for (int k = 0; k < MANY; k++) symrail_store(there + k * symrail_all::size(), raw[k]);
        }
    }

    SYMRAIL_WAITER_FN void load_element(symrail_u64 i, symrail_u64 own, symrail_u64 rank, symrail_u64 at,
                                        typename N::stored& code) const {
        symrail_load_element<N>(rank == call.me ? own : slot(0, i, rank, call.me) + at, code);
    }

    SYMRAIL_WAITER_FN void reduce_element(symrail_u64 i, symrail_u64 own, symrail_u64 to, symrail_u64 at) const {
        symrail_elements<N, sizeof(typename N::stored)> sum, more;
        typename N::stored code;
        load_element(i, own, 0, at, code);
        sum.unpack(&code);
        for (symrail_u64 rank = 1; rank < call.n; rank++) {
            load_element(i, own, rank, at, code);
            more.unpack(&code);
            symrail_straight_take(call, sum, more);
        }
        symrail_straight_finish<N>(call, sum);
        sum.pack(&code);
        symrail_store_element<N>(to, code);
        for (symrail_u64 other = 0; reduces_all() && other < call.n; other++)
            if (other != call.me) symrail_store_element<N>(slot(1, i, call.me, other) + at, code);
    }

    SYMRAIL_WAITER_FN void run() {
        symrail_straight_launched();
        symrail_u64 word = call.words + 16 + 8 * block;
        first = symrail_ld_gpu(word);
        if (!symrail_straight_begin(call, first, block)) return;
        symrail_u64 chunks = (share() + call.chunk - 1) / call.chunk, steps = chunks + (reduces_all() ? 3 : 2);
        if (symrail_all::rank() == 0) symrail_st_gpu(word, first + chunks);
        for (symrail_u64 i = 0; i < steps; i++) {
            if (reduces_all() && i >= 3 && !take(1, i - 3)) return;
            if (i >= 2 && i - 2 < chunks && !(symrail_moves(call) ? take(0, i - 2) : reduce(i - 2))) return;
            if (i < chunks) push(i);
        }
    }
};

#endif
