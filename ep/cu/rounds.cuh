// Low latency: the memory of rounds, the waits for parts and rows, and ranks that are left behind.
//
// A dispatch has a part of tokens for each rank and each block that sends there: a header and then rows. The block
// writes them into the peer's memory if that is mapped, else into this PE's, from which one request puts them. A word
// for each part is set to the number of the round and of the rows. A combine returns one row for each token and rank:
// the sum of what the rank's experts have made of the token, by the weights that the token's rank has sent before. These
// rows return by rank and part as the tokens came. Their numbers travel with the tokens. Each row to a mapped rank has
// its own word; the rows of a part to any other rank (a far one) are one request. Each weight travels in one word with
// the number of the combine, so that it needs no other word. Dispatches alternate between two sets of their memory, and
// combines between two sets of theirs; nothing is cleared. Dispatches and combines are numbered apart: a dispatch may
// have no combine, or several, and a combine may return the tokens of the last dispatch or of the one before.
// Every rank sends all parts of a dispatch, and does so after its earlier calls. So a rank that has received a dispatch
// of all ranks may overwrite what the others have read before they sent it: the set of the dispatch before. A rank sends
// the weights of a combine after it has read the rows of the one before, and gets rows only for weights.
//
// Each rank has its own memory at every other rank for all that it writes there. So a masked rank that runs again later
// does no harm: the others ignore what it writes. That rank learns which ranks have left it behind, and masks them
// itself.
#ifndef SYMRAIL_EP_ROUNDS_CUH
#define SYMRAIL_EP_ROUNDS_CUH

#include "rows.cuh"
#include "low_latency_layout.cuh"

// A block copies the parameters to shared memory. In registers they would displace the data in flight.
static __device__ void share_parameters(parameters& p, const parameters* given) {
    for (symrail_u32 i = threadIdx.x; i < sizeof(p) / 8; i += blockDim.x) ((symrail_u64*)&p)[i] = ((const symrail_u64*)given)[i];
    __syncthreads();
}

// Which of the things that this PE sends to itself have words: those of the running kernel. Others are complete.
enum { NO_WORDS, OF_PARTS, OF_ROWS };

// The lower bits of a part's word hold the number of its rows, and whether these are FP8; the bits above hold the round.
#define FP8_BIT 21
#define COUNT_BITS 22

static __device__ symrail_u64 groups(const parameters& p) { return p.fp8 ? (p.hidden + FP8_GROUP - 1) / FP8_GROUP : 0; }
static __device__ symrail_u64 token_bytes(const parameters& p) { return p.hidden * (p.fp8 ? 1 : 2); }
static __device__ symrail_u64 scales_at(const parameters& p) { return up16(token_bytes(p)); }
static __device__ symrail_u64 slots_at(const parameters& p) { return up16(scales_at(p) + 4 * groups(p)); }
static __device__ symrail_u64 row_bytes(const parameters& p) { return up16(slots_at(p) + 4 * (p.k + 2)); }
static __device__ symrail_u64 part_rows(const parameters& p) { return (p.most + p.parts - 1) / p.parts; }
static __device__ symrail_u64 part_number(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    return (rank * 2 + round % 2) * p.parts + part;
}
// The most rows that return from a rank.
static __device__ symrail_u64 back_rows(const parameters& p) { return p.most; }
static __device__ symrail_u64 back_number(const parameters& p, symrail_u64 round, symrail_u64 rank, symrail_u64 number) {
    return (round % 2 * p.ranks + rank) * back_rows(p) + number;
}
static __device__ symrail_u64 back_at(const parameters& p, symrail_u64 round, symrail_u64 rank, symrail_u64 number) {
    return p.heap.back + back_number(p, round, rank, number) * 2 * p.hidden;
}
static __device__ symrail_u64* row_word(const parameters& p, symrail_u64 round, symrail_u64 rank, symrail_u64 number) {
    return (symrail_u64*)p.heap.back_words + back_number(p, round, rank, number);
}
static __device__ symrail_u64* part_word(const parameters& p, symrail_u64 rank, symrail_u64 part) {
    return (symrail_u64*)p.heap.back_words + 2 * p.ranks * back_rows(p) + rank * p.parts + part;
}
static __device__ symrail_u64* weights_word(const parameters& p, symrail_u64 rank) {
    return part_word(p, p.ranks, 0) + rank;
}
// The weights of a rank's slots, each with the lower half of the round's number above it.
static __device__ symrail_u64* weights_from(const parameters& p, symrail_u64 rank, symrail_u64 round) {
    return (symrail_u64*)p.heap.weights + (round % 2 * p.ranks + rank) * p.most * p.k;
}
static __device__ symrail_u64& place_of_slot(const parameters& p, symrail_u64 rank, symrail_u64 token, symrail_u64 slot) {
    return ((symrail_u64*)p.places)[((p.round % 2 * p.ranks + rank) * p.most + token) * p.k + slot];
}
static __device__ symrail_u32& back_number_of_slot(const parameters& p, symrail_u64 slot) {
    return ((symrail_u32*)p.back_numbers)[p.round % 2 * p.most * p.k + slot];
}
static __device__ bool is_far(const parameters& p, symrail_u64 rank) {
    return p.has_far && ((const symrail_u32*)p.far)[rank] != 0;
}
static __device__ bool is_masked(const parameters& p, symrail_u64 rank) {
    return ((const volatile symrail_u32*)p.masks)[rank] != 0;
}

// Whether a word has reached a value, or another thread has found the rank late in this round. Only every 16th poll
// loads the latter.
struct set_or_late {
    symrail_u64 least, round;
    const volatile symrail_u64* late;
    mutable symrail_u32 polls;
    __device__ bool operator()(symrail_u64 now) const {
        return now >= least || ((++polls & 15u) == 0 && *late == round);
    }
};
static __device__ void is_late(const parameters& p, symrail_u64 round, symrail_u64 rank) {
    ((volatile symrail_u64*)p.late)[rank] = round;
    ((volatile symrail_u32*)p.lost)[rank] = WAS_LATE;
    if (p.mask_late) ((volatile symrail_u32*)p.masks)[rank] = 1;
}
// Waits until a rank has set a word to `least` or more. Returns the word, or 0. On a time-out, or if another thread has
// found the rank late in this round, the rank is late.
static __device__ symrail_u64 word_from(const parameters& p, symrail_u64* word, symrail_u64 least, symrail_u64 round,
                                        symrail_u64 rank) {
    set_or_late holds = {least, round, (const volatile symrail_u64*)p.late + rank, 0};
    symrail_u64 now = symrail_wait_for(word, holds);
    if (now >= least) return now;
    is_late(p, round, rank);
    return 0;
}
// The same for a weight. Returns whether it has come.
struct weight_or_late {
    symrail_u32 combine;
    symrail_u64 round;
    const volatile symrail_u64* late;
    mutable symrail_u32 polls;
    __device__ bool operator()(symrail_u64 now) const {
        return now >> 32 == combine || ((++polls & 15u) == 0 && *late == round);
    }
};
static __device__ bool weight_from(const parameters& p, symrail_u64* word, symrail_u64 rank, float& weight) {
    weight_or_late holds = {(symrail_u32)p.combine, p.round, (const volatile symrail_u64*)p.late + rank, 0};
    symrail_u64 now = symrail_wait_for(word, holds);
    weight = __uint_as_float((symrail_u32)now);
    if (now >> 32 == (symrail_u32)p.combine) return true;
    is_late(p, p.round, rank);
    return false;
}

// The number of the next combine. Its lower half is not that of weights that no combine has written, 0; which set of
// memory it has still alternates.
static __device__ symrail_u64 next_combine(const parameters& p) {
    symrail_u64 next = p.combined + 1;
    return (symrail_u32)next == 0 ? next + 2 : next;
}
// Words of far ranks may lie in host memory, where polls of many threads would delay the awaited data on the link. So
// only one thread polls each of them. It notes the value in this GPU's memory for the others.
static __device__ symrail_u64* note_of_weights(const parameters& p, symrail_u64 rank) {
    return (symrail_u64*)p.notes + 5 * p.ranks * p.parts + rank;
}
static __device__ symrail_u64* note_of(const parameters& p, bool back, symrail_u64 rank, symrail_u64 part) {
    return (symrail_u64*)p.notes + ((back ? 4 : p.round % 2) * p.ranks + rank) * p.parts + part;
}
static __device__ symrail_u64& rows_of_note(const parameters& p, symrail_u64 rank, symrail_u64 part) {
    return ((symrail_u64*)p.notes)[((2 + p.round % 2) * p.ranks + rank) * p.parts + part];
}
// A call that differs: NOT_HELD, or the number of the rank, counted from 1, whose rows are of the other kind.
static __device__ symrail_u64* note_of_difference(const parameters& p) { return note_of_weights(p, p.ranks); }
// Whether all blocks of a dispatch take the tokens of a rank: the number of the dispatch, and a bit for that below it.
static __device__ symrail_u64* decision_on(const parameters& p, symrail_u64 rank) { return note_of_difference(p) + 1 + rank; }
// The first block calls this before any other wait of a combine. A part without returning rows has no word.
static __device__ void note_far_words(const parameters& p) {
    for (symrail_u64 i = threadIdx.x; p.has_far && i < p.ranks * p.parts; i += blockDim.x) {
        symrail_u64 rank = i / p.parts, part = i % p.parts;
        if (!is_far(p, rank) || is_masked(p, rank) || rows_of_note(p, rank, part) == 0) continue;
        symrail_u64 now = word_from(p, part_word(p, rank, part), p.combine, p.round, rank);
        if (now != 0) symrail_note((symrail_u64)note_of(p, true, rank, part), now);
    }
}

static __device__ void note_far_weights(const parameters& p) {
    for (symrail_u64 rank = threadIdx.x; p.has_far && rank < p.ranks; rank += blockDim.x) {
        if (!is_far(p, rank) || is_masked(p, rank)) continue;
        symrail_u64 now = word_from(p, weights_word(p, rank), p.combine, p.round, rank);
        if (now != 0) symrail_note((symrail_u64)note_of_weights(p, rank), now);
    }
}

// The address of a part from a rank. Parts from this PE itself bypass symmetric memory, which may be the host's; an
// earlier kernel has written them. Those from far ranks are copies, because all blocks read them, many of them often.
static __device__ symrail_u64 part_at(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    bool far = is_far(p, rank);
    if (rank != p.me && !far) return p.heap.incoming + part_number(p, rank, round, part) * p.part;
    symrail_u64 copies = p.has_far ? 1 + p.ranks : 1, copy = round % 2 * copies + (far ? 1 + rank : 0);
    return p.own_in + (copy * p.parts + part) * p.part;
}
// The first blocks call this before any other wait of a dispatch: as few as have a multiprocessor, whatever else occupies
// the GPU. They copy the parts of far ranks, and note the words of the parts then.
#ifndef COPYING_BLOCKS
#define COPYING_BLOCKS 4
#endif
static __device__ void copy_far_parts(const parameters& p, symrail_u64 round) {
    __shared__ symrail_u64 word;
    symrail_u64 blocks = gridDim.x < COPYING_BLOCKS ? gridDim.x : COPYING_BLOCKS, mask = (1ull << FP8_BIT) - 1;
    for (symrail_u64 i = blockIdx.x; p.has_far && blockIdx.x < blocks && i < p.ranks * p.parts; i += blocks) {
        symrail_u64 rank = i / p.parts, part = i % p.parts, at = part_number(p, rank, round, part);
        if (!is_far(p, rank)) continue;
        if (threadIdx.x == 0)
            word = is_masked(p, rank) ? 0 : word_from(p, (symrail_u64*)p.heap.words + at, round << COUNT_BITS, round, rank);
        __syncthreads();
        symrail_u64 now = word, rows = now & mask;
        rows = rows < part_rows(p) ? rows : part_rows(p);
        symrail_u64 pieces = now == 0 ? 0 : 1 + rows * row_bytes(p) / 16;
        const char* from = (const char*)p.heap.incoming + at * p.part;
        for (symrail_u64 base = threadIdx.x / 32 * 32 * 8 + threadIdx.x % 32; base < pieces; base += blockDim.x * 8)
            pieces_of_row<8>(from, base, pieces).store((char*)part_at(p, rank, round, part));
        // The barrier lets one thread's note cover the writes of the whole block.
        __syncthreads();
        if (threadIdx.x == 0 && now != 0) symrail_note((symrail_u64)note_of(p, false, rank, part), now);
    }
}
// Reports a call that differs.
static __device__ void differ(const parameters& p, symrail_u64 what) {
    *(volatile symrail_u64*)note_of_difference(p) = what;
    symrail_fence_sys();
    symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, p.me, p.heap.words);
}
static __device__ symrail_u64* word_of_part(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    if (is_far(p, rank)) return note_of(p, false, rank, part);
    return (symrail_u64*)p.heap.words + part_number(p, rank, round, part);
}
// Waits for a part and returns the number of its rows. A part of a later dispatch has overwritten one without rows: a
// rank that waits for this one's rows sends no later dispatch. A rank whose rows are of the other kind contributes none.
static __device__ symrail_u64 rows_of_part(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    if (rank == p.me && p.own_words != OF_PARTS) return *(const symrail_u64*)part_at(p, rank, round, part);
    symrail_u64 now = word_from(p, word_of_part(p, rank, round, part), round << COUNT_BITS, round, rank);
    if (now >> COUNT_BITS != round) return 0;
    if ((now >> FP8_BIT & 1) != p.fp8) {
        differ(p, 1 + rank);
        return 0;
    }
    symrail_u64 count = now & ((1ull << FP8_BIT) - 1);
    return count < part_rows(p) ? count : part_rows(p);
}

// Where late ranks are masked, the call goes on without them. So its blocks must agree on a rank whose parts arrive when
// its time is over, or of which only some have arrived: they number the rows of all ranks. A block waits for all parts of
// all ranks, and the first block that has done so for a rank decides on it.
static __device__ void decide_on_ranks(const parameters& p) {
    symrail_u64 round = p.round;
    auto decide = [&](symrail_u64 rank, bool takes) {
        symrail_u64 old = symrail_ld_acquire(decision_on(p, rank));
        if (old >> 1 != round) atomicCAS(decision_on(p, rank), old, round << 1 | takes);
    };
    for (symrail_u64 i = threadIdx.x; i < p.ranks * p.parts; i += blockDim.x) {
        symrail_u64 rank = i / p.parts, part = i % p.parts;
        if (symrail_ld_acquire(decision_on(p, rank)) >> 1 == round) continue;
        bool come = !is_masked(p, rank) &&
                    ((rank == p.me && p.own_words != OF_PARTS) ||
                     word_from(p, word_of_part(p, rank, round, part), round << COUNT_BITS, round, rank) != 0);
        if (!come) decide(rank, false);
    }
    // The fence lets other blocks see the parts that this block has seen.
    symrail_fence_sys();
    __syncthreads();
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) decide(rank, true);
    symrail_fence_sys();
    __syncthreads();
}
static __device__ bool takes(const parameters& p, symrail_u64 rank) {
    return p.mask_late ? *(const volatile symrail_u64*)decision_on(p, rank) & 1 : !is_masked(p, rank);
}

// Notifies a rank that was late, and is masked for that, once: this rank goes on without it.
static __device__ void leave_behind(const parameters& p, symrail_u64 rank, symrail_u64 round) {
    symrail_u32* lost = (symrail_u32*)p.lost + rank;
    if (*lost != WAS_LATE) return;
    *lost = IS_TOLD;
    symrailx_signal_op((symrail_u64*)p.heap.left + p.me, round, SYMRAIL_SIGNAL_SET, (int)rank);
}
// A rank that has left this PE behind sends no more data: it is masked and reported as late.
static __device__ void note_departed(const parameters& p) {
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) {
        symrail_u32* lost = (symrail_u32*)p.lost + rank;
        bool has_left = symrail_ld_acquire((symrail_u64*)p.heap.left + rank) != 0;
        if (*lost == HAS_LEFT || !has_left) continue;
        *lost = HAS_LEFT;
        ((symrail_u32*)p.masks)[rank] = 1;
        symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, rank, p.heap.left);
    }
}
// A block adds the time since `since`, in nanoseconds, until all data of each rank has come (`of`: waits for all of it)
// to a number for each rank. A warp waits for a rank.
template <class OF>
static __device__ void add_waits(const parameters& p, symrail_u64* waits, symrail_u64 since, OF of) {
    for (symrail_u64 rank = threadIdx.x / 32; rank < p.ranks; rank += blockDim.x / 32) {
        if (rank == p.me || is_masked(p, rank)) continue;
        of(rank);
        __syncwarp();
        if (threadIdx.x % 32 == 0) waits[rank] += symrail_now() - since;
    }
}
// Numbers that the blocks of a kernel that sends and receives take one after the other. Each takes parts of what is sent
// until it gets a number behind the last one. Only then it receives. So no block waits for another one of its kernel: if
// few blocks have a multiprocessor, these send everything. `ask` requests the next number ahead.
struct block_tickets {
    symrail_u64 *at, ahead;
    bool asked;
    __device__ explicit block_tickets(parameters* given) : at(&given->tickets), ahead(0), asked(false) { ask(); }
    __device__ void ask() {
        if (!asked && threadIdx.x == 0) ahead = atomicAdd(at, 1ull);
        asked = true;
    }
    __device__ symrail_u64 take() {
        __shared__ symrail_u64 taken;
        ask();
        // All threads have read the number before.
        __syncthreads();
        if (threadIdx.x == 0) taken = ahead;
        __syncthreads();
        asked = false;
        return taken;
    }
};
// Numbers are read and written by different kernels of a call: the one that sends reads that of the calls that are over,
// and writes its own one, which the one that receives reads. So no block waits for the others. In a kernel that does both
// the block that takes the last ticket writes them: all blocks have read them then.
static __device__ void begin_dispatch(parameters* given, parameters& p, symrail_u64 fp8) {
    p.round = p.received + 1, p.fp8 = fp8;
    if (blockIdx.x == 0 && threadIdx.x == 0) given->sent = p.round, given->formats[p.round % 2] = fp8;
}
// A thread ends a dispatch, or a combine. It waits until this PE's requests are delivered, so that their memory may be
// written again.
static __device__ void end_dispatch(parameters* given, const parameters& p) {
    if (p.has_far) symrail_quiet();
    given->received = p.round;
}
static __device__ void end_combine(parameters* given, const parameters& p) {
    if (p.has_far) symrail_quiet();
    given->combined = p.combining;
}

#endif
