/* Data moves through slots in the receivers' heaps: senders store it there, and no rank loads from a peer, so none
 * waits for a link's response. Each block has its own rings of slots with the same block of the other ranks. Its
 * threads have roles, which process the block's chunks concurrently:
 *
 *     all-reduce       push: each rank's part of my input to that rank.   reduce: received chunks and mine, into my
 *                      output, and the result to all others.              take: the others' results
 *     all-gather       push: my input to all others.                      take: theirs
 *     reduce-scatter   push: each rank's part of my input to that rank.   reduce: received chunks and mine
 *     all-to-all       push: each rank's part of my input to that rank.   take: received chunks; in place, behind the
 *                      push of the same chunk, whose source it overwrites
 *     broadcast        push: the root's input to all others.              take: the root's
 *     scatter          push: each rank's part of the root's input.        take: the root's
 *     gather           push: my input to the root.                        take: the root, the others'
 *     reduce           push: my input to the root.                        reduce: the root, received chunks and its own
 *
 * A rank that has nothing to push, or nothing to process, signals all chunks of the call at once instead.
 *
 * The word of the second ring counts the chunks of the first ring that a rank has processed; in an all-reduce it
 * arrives with the result. A slot is free before it is filled again:
 *   - in the first ring, because the push waits for that word, and in an all-reduce until the results have been
 *     taken;
 *   - in the second ring, because a peer has taken my result of the chunk that was in the slot before it pushes
 *     chunk i, without which there is no result of chunk i. A peer's first chunk of a call arrives after its last
 *     call has ended.
 *
 * A chunk has one slot, or two that adjoin: each chunk ends with a barrier and a signal, during which the block moves
 * nothing, so large calls have large chunks. Slot numbers continue from call to call. A role that waits for a peer to process this rank's data first waits for
 * the previous role here to do the same: otherwise an error would name a peer that only waits for a third one. */
#ifndef SYMRAIL_PUSHED_CUH
#define SYMRAIL_PUSHED_CUH

#include "roles.cuh"
#include "straight.cuh"
#include "wide.cuh"

/* Loads in flight in each thread for every source of a reduction. */
#define SYMRAIL_PUSHED_AHEAD 4

template <class N>
struct symrail_pushed {
    const symrail_straight& call;
    /* The number of chunks that roles have processed, which the block's threads share: that of the last role, and of
     * the one before if there are three, or of the push in an all-to-all in place. ~0: the role has given up. */
    symrail_u64* done;
    symrail_u64 block;
    /* The number of the call's first slot, and the slots of a chunk. */
    symrail_u64 first;
    symrail_u64 slots;
    /* Bytes of a rank's part, and of a block's share of it; the chunks of that share. */
    symrail_u64 piece;
    symrail_u64 share;
    symrail_u64 chunks;

    SYMRAIL_WAITER_FN symrail_pushed(const symrail_straight& call, symrail_u64* done, symrail_u32 block)
        : call(call), done(done), block(block), first(0), slots(call.chunk > call.slot_bytes ? 2 : 1) {
        piece = reduces_all() ? ((call.part + 16 * call.n - 1) / (16 * call.n)) * 16 : call.part;
        share = (piece + 16 * call.blocks - 1) / (16 * call.blocks) * 16;
        chunks = (share + call.chunk - 1) / call.chunk;
    }

    SYMRAIL_WAITER_FN bool reduces_all() const { return call.collective == SYMRAIL_ALL_REDUCE; }
    /* Whether a rank sends the same data to all others. */
    SYMRAIL_WAITER_FN bool gives_all_the_same() const {
        return call.collective == SYMRAIL_ALL_GATHER || call.collective == SYMRAIL_BROADCAST;
    }
    /* The k-th rank behind this one. */
    SYMRAIL_WAITER_FN symrail_u64 other(symrail_u64 k) const {
        return call.me + k < call.n ? call.me + k : call.me + k - call.n;
    }

    /* The start of this block's chunk `i` in the part of a rank, and its bytes. */
    SYMRAIL_WAITER_FN symrail_u64 start(symrail_u64 i) const { return block * share + i * call.chunk; }
    SYMRAIL_WAITER_FN symrail_u64 bytes(symrail_u64 rank, symrail_u64 i) const {
        symrail_u64 from = start(i), end = (block + 1) * share, most = piece;
        if (reduces_all()) {
            symrail_u64 left = call.part > rank * piece ? call.part - rank * piece : 0;
            if (left < most) most = left;
        }
        if (most < end) end = most;
        if (end <= from) return 0;
        return end - from < call.chunk ? end - from : call.chunk;
    }

    /* The block's next slot, at which the call begins: a chunk's slots adjoin in a ring of an even number of slots. */
    SYMRAIL_WAITER_FN void begin_at(symrail_u64 number) { first = (number + slots - 1) / slots * slots; }
    /* The number of the slot behind those of chunk `i`. */
    SYMRAIL_WAITER_FN symrail_u64 end(symrail_u64 i) const { return first + (i + 1) * slots; }
    /* The slots of chunk `i` in the ring in which `source` sends to `to`, at this device's address. */
    SYMRAIL_WAITER_FN symrail_u64 slot(symrail_u64 ring, symrail_u64 i, symrail_u64 source, symrail_u64 to) const {
        symrail_u64 at = (ring * SYMRAIL_STRAIGHT_BLOCKS + block) * (call.n - 1) + symrail_place_at(source, to);
        at = at * SYMRAIL_PUSHED_SLOTS + (first + i * slots) % SYMRAIL_PUSHED_SLOTS;
        return call.rings + call.ranks[to].distance + at * call.slot_bytes;
    }
    /* The word that counts the slots that `source` has filled. */
    SYMRAIL_WAITER_FN symrail_u64 filled(symrail_u64 ring, symrail_u64 source) const {
        return call.filled + 8 * ((ring * SYMRAIL_STRAIGHT_BLOCKS + block) * SYMRAIL_STRAIGHT_RANKS + source);
    }

    /* Signals to all others, and to roles of this block that wait for `word`, that chunk `i` has arrived or been
     * processed. */
    template <class S>
    SYMRAIL_WAITER_FN void tell(symrail_u64 ring, symrail_u64 i, symrail_u64* word) const {
        S::sync();
        if (word != nullptr && S::rank() == 0) symrail_st_shared(word, i + 1);
        for (symrail_u64 to = S::rank(); to < call.n; to += S::size())
            if (to != call.me) symrail_st_release_sys(filled(ring, call.me) + call.ranks[to].distance, end(i));
    }
    /* Waits until the role of `word` has processed `count` chunks, and all others have signalled slots up to
     * `number`. */
    template <class S>
    SYMRAIL_WAITER_FN bool await(symrail_u64 ring, symrail_u64 number, const symrail_u64* word, symrail_u64 count) const {
        bool good = true;
        for (symrail_u64 from = S::rank(); good && from < call.n; from += S::size()) {
            if (from == call.me) continue;
            if (word != nullptr) {
                /* That role's waits are bounded. */
                symrail_u64 seen = symrail_ld_shared(word);
                while (seen < count) seen = symrail_ld_shared(word);
                if (seen == ~0ull) good = false;
            }
            symrail_u64 at = filled(ring, from);
            auto came = [at, number]() { return symrail_ld_acquire((const symrail_u64*)at) >= number; };
            if (good) good = symrail_straight_await(call, came, from, block);
        }
        return !S::any(!good);
    }
    template <class S>
    SYMRAIL_WAITER_FN void give_up(symrail_u64* word) const {
        if (S::rank() == 0) symrail_st_shared(word, ~0ull);
    }
    /* Signals all chunks at once, because this rank has nothing to do for them. */
    template <class S>
    SYMRAIL_WAITER_FN void skip(symrail_u64 ring, symrail_u64* word) const {
        if (chunks != 0) tell<S>(ring, chunks - 1, word);
    }
    /* Waits until the first ring has free slots for chunk `i`; `word` as for await. */
    template <class S>
    SYMRAIL_WAITER_FN bool room(symrail_u64 i, const symrail_u64* word) const {
        symrail_u64 before = SYMRAIL_PUSHED_SLOTS / slots;
        if (end(i) <= SYMRAIL_PUSHED_SLOTS) return true;
        return await<S>(1, end(i) - SYMRAIL_PUSHED_SLOTS, i >= before ? word : nullptr, i + 1 - before);
    }

    /* The word in which the push counts its chunks, if the take overwrites their sources. */
    SYMRAIL_WAITER_FN symrail_u64* pushed() const {
        return call.collective == SYMRAIL_ALL_TO_ALL && call.input == call.output ? done + 1 : nullptr;
    }

    template <class S>
    SYMRAIL_WAITER_FN void push() const {
        if (!symrail_gives(call, call.me)) return skip<S>(0, nullptr);
        symrail_u64 own = symrail_straight_source(call), kept = call.output + symrail_part_of(call, call.me, piece);
        for (symrail_u64 i = 0; i < chunks; i++) {
            if (!room<S>(i, done)) {
                if (pushed() != nullptr) give_up<S>(pushed());
                return;
            }
            /* The same data goes to all others at once. */
            symrail_u64 at_once = gives_all_the_same() ? call.n - 1 : 1;
            for (symrail_u64 k = 1; k < call.n; k += at_once) {
                symrail_u64 first_to = other(k), whose = symrail_spreads(call) || reduces_all() ? first_to : 0;
                if (!symrail_gets(call, first_to)) continue;
                auto to = [this, i, k](symrail_u64 more) { return slot(0, i, call.me, other(k + more)); };
                symrail_copy_to_each<S, symrail_own_source>(to, at_once, call.input + whose * piece + start(i), bytes(first_to, i));
            }
            tell<S>(0, i, pushed());
            /* Copies the part that this rank keeps, while the signal travels. */
            if (symrail_moves(call) && symrail_gets(call, call.me) && kept != own)
                symrail_copy_many<S, symrail_own_source>(kept + start(i), own + start(i), bytes(call.me, i));
        }
    }

    /* Copies the data of all others to their parts of the output. */
    template <class S>
    SYMRAIL_WAITER_FN void take(symrail_u64 ring) const {
        bool gives_alone = symrail_is_rooted(call) && call.collective != SYMRAIL_GATHER && call.me == call.root;
        if (gives_alone || !symrail_gets(call, call.me)) return skip<S>(1, done);
        for (symrail_u64 i = 0; i < chunks; i++) {
            if (!await<S>(ring, end(i), ring == 1 ? done + 1 : pushed(), i + 1)) return give_up<S>(done);
            for (symrail_u64 k = 1; k < call.n; k++) {
                symrail_u64 from = other(k);
                if (!symrail_gives(call, from)) continue;
                symrail_u64 to = call.output + symrail_part_of(call, from, piece) + start(i);
                symrail_copy_many<S, symrail_peer_source>(to, slot(ring, i, from, call.me), bytes(from, i));
            }
            if (ring == 0) {
                tell<S>(1, i, done);
                continue;
            }
            S::sync();
            if (S::rank() == 0) symrail_st_shared(done, i + 1);
        }
    }

    /* Reduces the received chunks and this rank's input, and in an all-reduce sends the result to all others. */
    template <class S>
    SYMRAIL_WAITER_FN void reduce(symrail_u64* word) const {
        if (!symrail_gets(call, call.me)) return skip<S>(1, word);
        for (symrail_u64 i = 0; i < chunks; i++) {
            if (!await<S>(0, end(i), nullptr, 0)) return give_up<S>(word);
            symrail_u64 length = bytes(call.me, i), own = call.input + symrail_part_of(call, call.me, piece) + start(i);
            symrail_u64 to = call.output + (reduces_all() ? call.me * piece : 0) + start(i);
            symrail_u64 wide = ((own | to) & 15) == 0 ? length / 16 : 0;
            symrail_u64 threads = S::size(), at = S::rank();
            for (; at + (SYMRAIL_PUSHED_AHEAD - 1) * threads < wide; at += SYMRAIL_PUSHED_AHEAD * threads)
                reduce_wide<S, SYMRAIL_PUSHED_AHEAD>(i, own, to, at);
            for (; at < wide; at += threads) reduce_wide<S, 1>(i, own, to, at);
            const symrail_u64 element = sizeof(typename N::stored);
            for (at = 16 * wide + S::rank() * element; at < length; at += threads * element)
                reduce_element(i, own + at, to + at, at);
            tell<S>(1, i, word);
        }
    }

    /* Loads the same elements of a rank's chunk. */
    template <class S, int MANY>
    SYMRAIL_WAITER_FN void load(symrail_wide* raw, symrail_u64 i, symrail_u64 own, symrail_u64 rank, symrail_u64 at) const {
        const symrail_wide* from = (const symrail_wide*)(rank == call.me ? own : slot(0, i, rank, call.me)) + at;
#pragma unroll
        for (int k = 0; k < MANY; k++) raw[k] = symrail_peer_source::load(from + k * S::size());
    }

    template <class S, int MANY>
    SYMRAIL_WAITER_FN void reduce_wide(symrail_u64 i, symrail_u64 own, symrail_u64 to, symrail_u64 at) const {
        symrail_elements<N, 16> sum[MANY], more;
        symrail_wide raw[MANY], next[MANY];
        load<S, MANY>(raw, i, own, 0, at);
        load<S, MANY>(next, i, own, 1, at);
#pragma unroll
        for (int k = 0; k < MANY; k++) sum[k].unpack(&raw[k]);
        for (symrail_u64 rank = 1; rank < call.n; rank++) {
#pragma unroll
            for (int k = 0; k < MANY; k++) raw[k] = next[k];
            /* The loads of the next rank's elements overlap. */
            if (rank + 1 < call.n) load<S, MANY>(next, i, own, rank + 1, at);
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
            symrail_store((symrail_wide*)to + at + k * S::size(), raw[k]);
        }
        if (!reduces_all()) return;
        for (symrail_u64 k = 1; k < call.n; k++) {
            symrail_wide* there = (symrail_wide*)slot(1, i, call.me, other(k)) + at;
#pragma unroll
            for (int j = 0; j < MANY; j++) symrail_store(there + j * S::size(), raw[j]);
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
        for (symrail_u64 k = 1; reduces_all() && k < call.n; k++)
            symrail_store_element<N>(slot(1, i, call.me, other(k)) + at, code);
    }

    /* Every kernel begins with this. `false`: a rank has given up. */
    SYMRAIL_WAITER_FN bool begins() {
        symrail_straight_launched();
        symrail_u64 word = call.words + 16 + 8 * block;
        begin_at(symrail_ld_gpu(word));
        if (symrail_all::rank() < 2) symrail_st_shared(done + symrail_all::rank(), 0);
        if (!symrail_straight_begin(call, first, block)) return false;
        if (symrail_all::rank() == 0) symrail_st_gpu(word, first + chunks * slots);
        return true;
    }
    SYMRAIL_WAITER_FN symrail_u32 quarter() const { return symrail_all::rank() / (symrail_all::size() / 4); }

    /* The kernels: collectives/src/gpu/straight.rs chooses among them (`StraightCall::kernel`). */
    SYMRAIL_WAITER_FN void all_reduce() {
        if (!begins()) return;
        if (quarter() < 1) push<symrail_role<0, 1>>();
        else if (quarter() < 3) reduce<symrail_role<1, 2>>(done + 1);
        else take<symrail_role<3, 1>>(1);
    }
    /* Ranks that send or receive: all threads do so, and say for the other role that it has nothing to do. */
    SYMRAIL_WAITER_FN void one_way() {
        if (!begins()) return;
        typedef symrail_role<0, 4> all;
        bool pushes = call.collective == SYMRAIL_GATHER || symrail_gives(call, call.me);
        if (!pushes) push<all>();
        if (symrail_moves(call)) take<all>(0);
        else reduce<all>(done);
        if (pushes) push<all>();
    }
    /* Ranks that send and receive. */
    SYMRAIL_WAITER_FN void both_ways() {
        if (!begins()) return;
        if (quarter() < 2) push<symrail_role<0, 2>>();
        else if (symrail_moves(call)) take<symrail_role<2, 2>>(0);
        else reduce<symrail_role<2, 2>>(done);
    }
};

#endif
