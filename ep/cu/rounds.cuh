// Low latency: what rounds have in memory, how parts and rows are waited for, and ranks that are left behind.
//
// A dispatch has a part of tokens for each rank and each block that sends there: a header and then rows, written into
// the peer's memory where that is mapped, else into this PE's and put from there by one request. A word for each part
// is set to the number of the round and of the rows. By a combine rows come back as they went, by rank and part, and
// their numbers go along with the tokens. From a mapped rank each row has a word; from others (far ones) the rows of a
// part are one request. Rounds alternate between two sets of all, and nothing is cleared: every rank sends all parts of
// each round, after it has ended the one before, and so nobody writes to what another one still reads.
//
// All that a rank writes to another one has a place of its own there. So what a masked rank writes that runs again
// after a while harms nobody: it is not looked at. That rank learns who has left it behind, and masks those itself.
#ifndef SYMRAIL_EP_ROUNDS_CUH
#define SYMRAIL_EP_ROUNDS_CUH

#include "rows.cuh"

struct parameters {
    symrail_u64 ranks, me, share, k, most, hidden, fp8, parts;
    // Symmetric memory: parts that come and that go, and their words; rows that come back, their words (of rows, and
    // then of far ranks' parts), and rows that go back to far ranks; for each rank the round in which it left this one
    // behind.
    symrail_u64 in, out, words, back, back_words, back_out, left;
    // This PE's own: which ranks are masked, in which round each was late since that was asked last, and which are far;
    // for each slot the number of its row; for each received row its number there, and its part in the upper half; how
    // many rows of each part of each far rank are ready to go back; which ranks are lost; the parts and the rows that come
    // from this PE itself; what words of far ranks' parts were lately, of both
    // ways, and how many rows come back by each part that went to a rank.
    symrail_u64 masks, late, far, back_numbers, numbers, ready, lost, own_in, own_back, notes;
    // Rounds that are over, and blocks that have ended in the last kernel of this one. They lie here so that a kernel
    // has read them with all the rest.
    symrail_u64 over, ended;
    // Ranks that are late are masked.
    symrail_u64 mask_late;
};

// Of a rank: it was late once, it has been told so, it has left this one behind. Each is the end for both.
enum { WAS_LATE = 1, IS_TOLD, HAS_LEFT };

#define FP8_GROUP 128
// Bits of a part's word that have the number of its rows; the round is above.
#define COUNT_BITS 21

static __device__ symrail_u64 groups(const parameters& p) { return p.fp8 ? (p.hidden + FP8_GROUP - 1) / FP8_GROUP : 0; }
static __device__ symrail_u64 token_bytes(const parameters& p) { return p.hidden * (p.fp8 ? 1 : 2); }
static __device__ symrail_u64 scales_at(const parameters& p) { return up16(token_bytes(p)); }
static __device__ symrail_u64 slots_at(const parameters& p) { return up16(scales_at(p) + 4 * groups(p)); }
static __device__ symrail_u64 row_bytes(const parameters& p) { return up16(slots_at(p) + 4 * (p.k + 2)); }
static __device__ symrail_u64 part_rows(const parameters& p) { return (p.most + p.parts - 1) / p.parts; }
static __device__ symrail_u64 part_bytes(const parameters& p) { return 16 + part_rows(p) * row_bytes(p); }
static __device__ symrail_u64 part_number(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    return (rank * 2 + round % 2) * p.parts + part;
}
// Rows that come back from a rank, at most.
static __device__ symrail_u64 back_rows(const parameters& p) { return p.most * (p.k < p.share ? p.k : p.share); }
static __device__ symrail_u64 back_number(const parameters& p, symrail_u64 round, symrail_u64 rank, symrail_u64 number) {
    return (round % 2 * p.ranks + rank) * back_rows(p) + number;
}
static __device__ symrail_u64 back_at(const parameters& p, symrail_u64 round, symrail_u64 rank, symrail_u64 number) {
    return p.back + back_number(p, round, rank, number) * 2 * p.hidden;
}
static __device__ symrail_u64* row_word(const parameters& p, symrail_u64 round, symrail_u64 rank, symrail_u64 number) {
    return (symrail_u64*)p.back_words + back_number(p, round, rank, number);
}
static __device__ symrail_u64* part_word(const parameters& p, symrail_u64 rank, symrail_u64 part) {
    return (symrail_u64*)p.back_words + 2 * p.ranks * back_rows(p) + rank * p.parts + part;
}
static __device__ bool is_far(const parameters& p, symrail_u64 rank) { return ((const symrail_u32*)p.far)[rank] != 0; }
static __device__ bool is_masked(const parameters& p, symrail_u64 rank) {
    return ((const volatile symrail_u32*)p.masks)[rank] != 0;
}
static __device__ symrail_u64 round_of(const parameters& p) { return p.over + 1; }

// Whether a word has come to a value, or another thread has waited for that rank for the whole time, which is looked at
// now and then.
struct set_or_late {
    symrail_u64 least, round;
    const volatile symrail_u32* late;
    mutable symrail_u32 polls;
    __device__ bool operator()(symrail_u64 now) const {
        return now >= least || ((++polls & 15u) == 0 && *late == (symrail_u32)round);
    }
};
// Waits for a word that a rank sets to `least` or more; what it is then, or 0. If it is not in time, or was late in this
// round before, the rank is late.
static __device__ symrail_u64 word_from(const parameters& p, symrail_u64* word, symrail_u64 least, symrail_u64 round,
                                        symrail_u64 rank) {
    set_or_late holds = {least, round, (const volatile symrail_u32*)p.late + rank, 0};
    symrail_u64 now = symrail_wait_for(word, holds);
    if (now >= least) return now;
    ((volatile symrail_u32*)p.late)[rank] = (symrail_u32)round;
    ((volatile symrail_u32*)p.lost)[rank] = WAS_LATE;
    if (p.mask_late) ((volatile symrail_u32*)p.masks)[rank] = 1;
    return 0;
}

// Far ranks' words may be in memory of the host: polls of many threads would keep the link from what they wait for. So
// the first block waits for them, and notes what it finds for the others, in this GPU's memory.
static __device__ symrail_u64* note_of(const parameters& p, bool back, symrail_u64 rank, symrail_u64 part) {
    return (symrail_u64*)p.notes + ((back ? p.ranks : 0) + rank) * p.parts + part;
}
static __device__ symrail_u64* far_word(const parameters& p, bool back, symrail_u64 rank, symrail_u64 round,
                                        symrail_u64 part) {
    return back ? part_word(p, rank, part) : (symrail_u64*)p.words + part_number(p, rank, round, part);
}
static __device__ symrail_u64& rows_of_note(const parameters& p, symrail_u64 rank, symrail_u64 part) {
    return ((symrail_u64*)p.notes)[(2 * p.ranks + rank) * p.parts + part];
}
// By the first block, before it waits for anything else. A part without rows that come back has no word.
static __device__ void note_far_words(const parameters& p, bool back, symrail_u64 round) {
    for (symrail_u64 i = threadIdx.x; i < p.ranks * p.parts; i += blockDim.x) {
        symrail_u64 rank = i / p.parts, part = i % p.parts;
        if (!is_far(p, rank) || is_masked(p, rank) || (back && rows_of_note(p, rank, part) == 0)) continue;
        symrail_u64 now = word_from(p, far_word(p, back, rank, round, part), back ? round : round << COUNT_BITS, round, rank);
        if (now != 0) symrail_note((symrail_u64)note_of(p, back, rank, part), now);
    }
}

// A part that has come from a rank. What comes from this PE itself does not go through symmetric memory, which may be the
// host's, and was written by an earlier kernel.
static __device__ symrail_u64 part_at(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    if (rank == p.me) return p.own_in + part * part_bytes(p);
    return p.in + part_number(p, rank, round, part) * part_bytes(p);
}
// Waits for a part; how many rows it has.
static __device__ symrail_u64 rows_of_part(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    if (rank == p.me) return *(const symrail_u64*)part_at(p, rank, round, part);
    symrail_u64* word = is_far(p, rank) ? note_of(p, false, rank, part) : far_word(p, false, rank, round, part);
    symrail_u64 now = word_from(p, word, round << COUNT_BITS, round, rank);
    symrail_u64 count = now & ((1ull << COUNT_BITS) - 1);
    return count < part_rows(p) ? count : part_rows(p);
}

// Tells a rank that was late, and is masked for that, that this one goes on without it. Once.
static __device__ void leave_behind(const parameters& p, symrail_u64 rank, symrail_u64 round) {
    symrail_u32* lost = (symrail_u32*)p.lost + rank;
    if (*lost != WAS_LATE) return;
    *lost = IS_TOLD;
    symrailx_signal_op((symrail_u64*)p.left + p.me, round, SYMRAIL_SIGNAL_SET, (int)rank);
}
// By a block: what this PE has put by requests is delivered, so that its memory may be written again. Who has left this
// PE behind sends nothing any more: it is masked, and told of as late.
static __device__ void end_round(parameters* given, const parameters& p) {
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) {
        symrail_u32* lost = (symrail_u32*)p.lost + rank;
        if (*lost == HAS_LEFT || symrail_ld_acquire((symrail_u64*)p.left + rank) == 0) continue;
        *lost = HAS_LEFT;
        ((symrail_u32*)p.masks)[rank] = 1;
        symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, rank, p.left);
    }
    if (threadIdx.x != 0) return;
    symrail_quiet();
    given->ended = 0;
    given->over = p.over + 1;
}

#endif
