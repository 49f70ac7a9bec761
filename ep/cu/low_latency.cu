// Low-latency dispatch and combine by kernels, for ep/src/cuda/low_latency.rs.
//
// A dispatch has a part of tokens for each rank and each block that sends there: a count and then rows, written into
// the peer's memory where that is mapped, else into this PE's and put from there by one request. A word for each part
// is set to the number of the round. By a combine rows come back as they went, by rank and part, and their numbers go
// along with the tokens. From a mapped rank each row has a word; from others (far ones) the rows of a part are one
// request. Rounds alternate between two sets of all, and nothing is cleared: every rank sends all parts of each round,
// after it has ended the one before, and so nobody writes to what another one still reads.
//
// All that a rank writes to another one has a place of its own there. So what a masked rank writes that runs again
// after a while harms nobody: it is not looked at. That rank learns who has left it behind, and masks those itself.
#include "rows.cuh"

struct parameters {
    symrail_u64 ranks, me, share, k, most, hidden, fp8, parts;
    // Symmetric memory: parts that come and that go, and their words; rows that come back, their words (of rows, and
    // then of far ranks' parts), and rows that go back to far ranks; for each rank the round in which it left this one
    // behind.
    symrail_u64 in, out, words, back, back_words, back_out, left;
    // This PE's own: the number of rounds that are over; which ranks are masked, in which round each was late since
    // that was asked last, and which are far; for each slot the number of its row; for each received row its number
    // there, and its part in the upper half; how many rows of each part of each far rank are ready to go back; which
    // ranks are lost.
    symrail_u64 rounds, masks, late, far, back_numbers, numbers, ready, lost;
    // Ranks that are late are masked.
    symrail_u64 mask_late;
};

// Of a rank: it was late once, it has been told so, it has left this one behind. Each is the end for both.
enum { WAS_LATE = 1, IS_TOLD, HAS_LEFT };

#define FP8_LARGEST 448.0f
#define FP8_GROUP 128

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
// A token that names an expert twice has one row, of the first slot.
static __device__ bool is_first(const long long* topk, symrail_u64 slot, symrail_u64 k) {
    symrail_u64 before = slot / k * k;
    while (topk[before] != topk[slot]) before++;
    return before == slot;
}
static __device__ bool is_masked(const parameters& p, symrail_u64 rank) {
    return ((const volatile symrail_u32*)p.masks)[rank] != 0;
}
// Whether a word has come to the round's number, or another thread has waited for that rank for the whole time, which
// is looked at now and then.
struct set_or_late {
    symrail_u64 round;
    const volatile symrail_u32* late;
    mutable symrail_u32 polls;
    __device__ bool operator()(symrail_u64 now) const {
        return now >= round || ((++polls & 15u) == 0 && *late == (symrail_u32)round);
    }
};
// Waits for a word that a rank sets. If it does not in time, or was late in this round before, the rank is late.
static __device__ bool has_set(const parameters& p, symrail_u64* word, symrail_u64 round, symrail_u64 rank) {
    set_or_late holds = {round, (const volatile symrail_u32*)p.late + rank, 0};
    if (symrail_wait_for(word, holds) >= round) return true;
    ((volatile symrail_u32*)p.late)[rank] = (symrail_u32)round;
    ((volatile symrail_u32*)p.lost)[rank] = WAS_LATE;
    if (p.mask_late) ((volatile symrail_u32*)p.masks)[rank] = 1;
    return false;
}
static __device__ symrail_u64 round_of(const parameters& p) { return *(const volatile symrail_u64*)p.rounds + 1; }

// To the nearest e4m3, ties to even; what is larger than the largest becomes that.
static __device__ symrail_u32 to_e4m3(float value) {
#if __CUDA_ARCH__ >= 890
    unsigned short two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(value));
    return two & 0xffu;
#else
    symrail_u32 sign = __float_as_uint(value) >> 24 & 0x80u;
    float size = fabsf(value);
    if (size >= 464.0f) return sign | 0x7e;
    // Below 2^-6 all values are 2^-9 apart; else 2^-3 of their power of two.
    if (size < 0.015625f) return sign | (symrail_u32)rintf(size * 512.0f);
    symrail_u32 bits = __float_as_uint(size);
    bits += 0x7ffffu + ((bits >> 20) & 1);
    symrail_u32 found = (bits >> 20) - ((127 - 7) << 3);
    return sign | (found > 0x7e ? 0x7e : found);
#endif
}

// A token as bytes of FP8 with a scale for each 128 elements; a warp does a group at a time.
static __device__ void cast_row(const parameters& p, const unsigned short* from, char* row) {
    symrail_u32 lane = threadIdx.x % 32;
    for (symrail_u64 group = threadIdx.x / 32; group < groups(p); group += blockDim.x / 32) {
        float values[4], most = 1e-4f;
        for (int i = 0; i < 4; i++) {
            symrail_u64 at = group * FP8_GROUP + lane * 4 + i;
            values[i] = at < p.hidden ? low(from[at]) : 0.0f;
            most = fmaxf(most, fabsf(values[i]));
        }
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        float inverse = __fdiv_rn(FP8_LARGEST, most);
        symrail_u32 four = 0;
        for (int i = 0; i < 4; i++) four |= to_e4m3(__fmul_rn(values[i], inverse)) << (8 * i);
        symrail_u64 at = group * FP8_GROUP + lane * 4;
        if (at + 4 <= p.hidden) {
            *(symrail_u32*)(row + at) = four;
        } else {
            for (int i = 0; at + i < p.hidden; i++) row[at + i] = (char)(four >> (8 * i));
        }
        if (lane == 0) ((float*)(row + scales_at(p)))[group] = __fdiv_rn(most, FP8_LARGEST);
    }
}

static __device__ void copy_block(char* to, const char* from, symrail_u64 bytes) {
    for (symrail_u64 at = threadIdx.x * 16; at < bytes; at += blockDim.x * 16)
        *(uint4*)(to + at) = *(const uint4*)(from + at);
}

// How many rows come back from a rank before those of a part's tokens. By the block.
static __device__ symrail_u32 rows_before(const parameters& p, const long long* topk, symrail_u64 first, symrail_u64 rank) {
    __shared__ symrail_u32 sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    symrail_u32 own = 0;
    for (symrail_u64 slot = threadIdx.x; slot < first * p.k; slot += blockDim.x)
        if (topk[slot] >= 0 && topk[slot] / p.share == rank && is_first(topk, slot, p.k)) own++;
    if (own != 0) atomicAdd(&sum, own);
    __syncthreads();
    return sum;
}
// Tells a rank that was late, and is masked for that, that this one goes on without it. Once.
static __device__ void leave_behind(const parameters& p, symrail_u64 rank, symrail_u64 round) {
    symrail_u32* lost = (symrail_u32*)p.lost + rank;
    if (*lost != WAS_LATE) return;
    *lost = IS_TOLD;
    symrailx_signal_op((symrail_u64*)p.left + p.me, round, SYMRAIL_SIGNAL_SET, (int)rank);
}

// Blocks: `parts` for each rank. `topk` are 64-bit indices, -1 for none.
extern "C" __global__ void __launch_bounds__(512)
    ep_send_dispatch(const parameters* given, const unsigned short* x, const long long* topk, symrail_u64 tokens) {
    const parameters p = *given;
    symrail_u64 rank = blockIdx.x / p.parts, part = blockIdx.x % p.parts, round = round_of(p);
    if (is_masked(p, rank)) {
        if (part == 0 && threadIdx.x == 0) leave_behind(p, rank, round);
        return;
    }
    char* there = (char*)p.in + part_number(p, p.me, round, part) * part_bytes(p);
    symrail_u64* word = (symrail_u64*)p.words + part_number(p, p.me, round, part);
    char* mapped = (char*)symrail_ptr(there, (int)rank);
    char* to = mapped != nullptr ? mapped : (char*)p.out + part_number(p, rank, round, part) * part_bytes(p);
    symrail_u64 each = (tokens + p.parts - 1) / p.parts, first = part * each;
    symrail_u64 end = first + each < tokens ? first + each : tokens, count = 0;
    symrail_u32 start = rows_before(p, topk, first < tokens ? first : tokens, rank), number = start;
    for (symrail_u64 token = first; token < end; token++) {
        int local = -1;
        if (threadIdx.x < p.k) {
            long long expert = topk[token * p.k + threadIdx.x];
            if (expert >= 0 && expert / (long long)p.share == (long long)rank) local = (int)(expert % (long long)p.share);
        }
        if (!__syncthreads_or(local >= 0)) continue;
        symrail_u32 of_row = number;
        if (threadIdx.x < 32) {
            symrail_u64 slot = token * p.k + threadIdx.x;
            symrail_u32 rows = __ballot_sync(~0u, local >= 0 && is_first(topk, slot, p.k));
            if (local >= 0)
                ((symrail_u32*)p.back_numbers)[slot] = number + __popc(rows & ((1u << threadIdx.x) - 1));
            number += __popc(rows);
        }
        char* row = to + 16 + count * row_bytes(p);
        int* slots = (int*)(row + slots_at(p));
        if (threadIdx.x < p.k) slots[threadIdx.x] = local;
        if (threadIdx.x == 0) slots[p.k] = (int)token, slots[p.k + 1] = (int)of_row;
        if (p.fp8) {
            cast_row(p, x + token * p.hidden, row);
        } else {
            copy_block(row, (const char*)(x + token * p.hidden), token_bytes(p));
        }
        count++;
    }
    // How many rows there are; which number the first one that comes back has, and how many those are.
    if (threadIdx.x == 0) ((symrail_u64*)to)[0] = count, ((symrail_u64*)to)[1] = (symrail_u64)(number - start) << 32 | start;
    deliver(there, to, 16 + count * row_bytes(p), word, round, rank, mapped != nullptr);
}

// Rows of a part that has come in this round; none of one that has not.
static __device__ symrail_u64 rows_of(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    symrail_u64 number = part_number(p, rank, round, part);
    if (is_masked(p, rank) || symrail_ld_acquire((symrail_u64*)p.words + number) < round) return 0;
    symrail_u64 count = *(const volatile symrail_u64*)((const char*)p.in + number * part_bytes(p));
    return count < part_rows(p) ? count : part_rows(p);
}

// A block for each of this rank's experts. Its rows come to lie by source and then by token; `sources` has for each the
// rank (upper half) and the slot among those of the rank's tokens; `places` is for this kernel's own use.
extern "C" __global__ void __launch_bounds__(512)
    ep_receive_dispatch(const parameters* given, char* rows, float* scales, int* counts, symrail_u64* sources,
                        symrail_u64* places) {
    __shared__ symrail_u32 in_warp[16];
    const parameters p = *given;
    symrail_u64 round = round_of(p), expert = blockIdx.x, room = p.ranks * p.most;
    // A part that came late to some of the blocks of an earlier round has left a number behind.
    for (symrail_u64 i = threadIdx.x; expert == 0 && i < p.ranks * p.parts; i += blockDim.x)
        ((symrail_u32*)p.ready)[i] = 0;
    for (symrail_u64 i = threadIdx.x; i < p.ranks * p.parts; i += blockDim.x)
        if (!is_masked(p, i / p.parts))
            has_set(p, (symrail_u64*)p.words + part_number(p, i / p.parts, round, i % p.parts), round, i / p.parts);
    __syncthreads();
    sources += expert * room;
    places += expert * room;
    symrail_u64 found = 0, candidates = p.parts * part_rows(p);
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        for (symrail_u64 base = 0; base < candidates; base += blockDim.x) {
            symrail_u64 i = base + threadIdx.x, part = i / part_rows(p), row = i % part_rows(p), slot = p.k;
            symrail_u64 at = p.in + part_number(p, rank, round, part) * part_bytes(p) + 16 + row * row_bytes(p);
            const int* slots = (const int*)(at + slots_at(p));
            if (i < candidates && row < rows_of(p, rank, round, part))
                for (slot = 0; slot < p.k && slots[slot] != (int)expert; slot++) {}
            symrail_u32 all, before = count_before(slot < p.k, in_warp, all);
            if (slot < p.k) {
                sources[found + before] = rank << 32 | ((symrail_u64)slots[p.k] * p.k + slot);
                places[found + before] = at;
                symrail_u64 number = (symrail_u32)slots[p.k + 1];
                for (symrail_u64 i = 0; i < slot; i++) {
                    symrail_u64 same = 0;
                    while (slots[same] != slots[i]) same++;
                    if (slots[i] >= 0 && same == i) number++;
                }
                ((symrail_u64*)p.numbers)[expert * room + found + before] = part << 32 | number;
            }
            found += all;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) counts[expert] = (int)found;
    for (symrail_u64 row = 0; row < found; row++) {
        const char* from = (const char*)places[row];
        copy_block(rows + (expert * room + row) * token_bytes(p), from, token_bytes(p));
        for (symrail_u64 i = threadIdx.x; i < groups(p); i += blockDim.x)
            scales[(expert * room + row) * groups(p) + i] = ((const float*)(from + scales_at(p)))[i];
    }
}

// A row that goes back to a far rank waits until all of its part are ready; the last one has them put by one request.
static __device__ void send_far(const parameters& p, symrail_u64 round, symrail_u64 rank, symrail_u64 number_and_part,
                                const char* row) {
    symrail_u64 number = (symrail_u32)number_and_part, part = number_and_part >> 32, bytes = 2 * p.hidden;
    symrail_u64 of_part = ((const symrail_u64*)(p.in + part_number(p, rank, round, part) * part_bytes(p)))[1];
    symrail_u32 first = (symrail_u32)of_part, rows = of_part >> 32;
    char* out = (char*)p.back_out + rank * back_rows(p) * bytes;
    copy_block(out + number * bytes, row, bytes);
    symrail_fence_sys();
    __syncthreads();
    symrail_u32* ready = (symrail_u32*)p.ready + rank * p.parts + part;
    if (!__syncthreads_or(threadIdx.x == 0 && atomicAdd(ready, 1u) + 1 == rows)) return;
    symrail_fence_sys();
    symrailx_putmem_signal_nbi_block((char*)back_at(p, round, p.me, first), out + first * bytes, rows * bytes,
                                     part_word(p, p.me, part), round, SYMRAIL_SIGNAL_SET, (int)rank);
}

// Any number of blocks for each expert. Rows are of bfloat16, laid out as they came.
extern "C" __global__ void __launch_bounds__(512)
    ep_send_combine(const parameters* given, const char* rows, const int* counts, const symrail_u64* sources,
                    symrail_u64 blocks) {
    const parameters p = *given;
    symrail_u64 round = round_of(p), expert = blockIdx.x / blocks, room = p.ranks * p.most, bytes = 2 * p.hidden;
    for (symrail_u64 i = blockIdx.x % blocks; i < (symrail_u64)counts[expert]; i += blocks) {
        symrail_u64 at = expert * room + i, rank = sources[at] >> 32, number = ((const symrail_u64*)p.numbers)[at];
        if (is_masked(p, rank)) continue;
        if (is_far(p, rank)) {
            send_far(p, round, rank, number, rows + at * bytes);
        } else {
            number = (symrail_u32)number;
            symrailx_putmem_signal_nbi_block((char*)back_at(p, round, p.me, number), rows + at * bytes, bytes,
                                             row_word(p, round, p.me, number), round, SYMRAIL_SIGNAL_SET, (int)rank);
        }
    }
}

// A block for each token. Adds in the order of the slots, without fused operations, so that hosts get the same bits.
extern "C" __global__ void __launch_bounds__(512)
    ep_receive_combine(const parameters* given, const long long* topk, const float* weights, char* out) {
    __shared__ symrail_u64 rows[32];
    __shared__ float factors[32];
    const parameters p = *given;
    symrail_u64 round = round_of(p), token = blockIdx.x, bytes = 2 * p.hidden;
    if (threadIdx.x < p.k) {
        symrail_u64 slot = token * p.k, at = slot + threadIdx.x, each = (gridDim.x + p.parts - 1) / p.parts;
        long long expert = topk[at];
        rows[threadIdx.x] = 0;
        while (topk[slot] != expert) slot++;
        symrail_u64 rank = expert < 0 ? p.ranks : expert / p.share;
        if (rank < p.ranks && !is_masked(p, rank)) {
            symrail_u64 number = ((const symrail_u32*)p.back_numbers)[slot];
            symrail_u64* word = is_far(p, rank) ? part_word(p, rank, token / each) : row_word(p, round, rank, number);
            if (has_set(p, word, round, rank)) rows[threadIdx.x] = back_at(p, round, rank, number);
        }
        factors[threadIdx.x] = weights[at];
    }
    __syncthreads();
    for (symrail_u64 at = threadIdx.x * 16; at < bytes; at += blockDim.x * 16) {
        float sums[8] = {};
        for (symrail_u64 slot = 0; slot < p.k; slot++) {
            if (rows[slot] == 0) continue;
            uint4 v = *(const uint4*)(rows[slot] + at);
            symrail_u32 parts[4] = {v.x, v.y, v.z, v.w};
            for (int i = 0; i < 4; i++) {
                sums[2 * i] = __fadd_rn(sums[2 * i], __fmul_rn(low(parts[i]), factors[slot]));
                sums[2 * i + 1] = __fadd_rn(sums[2 * i + 1], __fmul_rn(high(parts[i]), factors[slot]));
            }
        }
        symrail_u32 two[4];
        for (int i = 0; i < 4; i++) two[i] = to_bf16(sums[2 * i]) | to_bf16(sums[2 * i + 1]) << 16;
        *(uint4*)(out + token * bytes + at) = make_uint4(two[0], two[1], two[2], two[3]);
    }
}

// One thread: what this PE has put by requests is delivered, so that its memory may be written again. Who has left this
// PE behind sends nothing any more: it is masked, and told of as late.
extern "C" __global__ void ep_end_round(const parameters* given) {
    const parameters p = *given;
    symrail_quiet();
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        symrail_u32* lost = (symrail_u32*)p.lost + rank;
        if (*lost == HAS_LEFT || symrail_ld_acquire((symrail_u64*)p.left + rank) == 0) continue;
        *lost = HAS_LEFT;
        ((symrail_u32*)p.masks)[rank] = 1;
        symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, rank, p.left);
    }
    (*(symrail_u64*)p.rounds)++;
}
