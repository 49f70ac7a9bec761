// Low-latency dispatch and combine by kernels, for ep/src/cuda.rs.
//
// A dispatch has a part of tokens for each rank and each block that sends there: a count and then rows, written into
// the peer's memory where that is mapped, else into this PE's and put from there by one request. A word for each part
// is set to the number of the round. A combine has a row and a word for each slot of each token. Rounds alternate
// between two sets of both, and nothing is cleared: every rank sends all parts of each round, after it has ended the one
// before, and so nobody writes to what another one still reads.
#include "symrail_device.cuh"

struct parameters {
    symrail_u64 ranks, me, share, k, most, hidden, fp8, parts;
    // Symmetric memory: parts that come and that go, and their words; rows that come back, and their words.
    symrail_u64 in, out, words, back, back_words;
    // This PE's own: the number of rounds that are over, and which ranks are masked.
    symrail_u64 rounds, masks;
};

#define FP8_LARGEST 448.0f
#define FP8_GROUP 128

static __device__ symrail_u64 groups(const parameters& p) { return p.fp8 ? (p.hidden + FP8_GROUP - 1) / FP8_GROUP : 0; }
static __device__ symrail_u64 token_bytes(const parameters& p) { return p.hidden * (p.fp8 ? 1 : 2); }
static __device__ symrail_u64 up16(symrail_u64 bytes) { return (bytes + 15) & ~15ull; }
static __device__ symrail_u64 scales_at(const parameters& p) { return up16(token_bytes(p)); }
static __device__ symrail_u64 slots_at(const parameters& p) { return up16(scales_at(p) + 4 * groups(p)); }
static __device__ symrail_u64 row_bytes(const parameters& p) { return up16(slots_at(p) + 4 * (p.k + 1)); }
static __device__ symrail_u64 part_rows(const parameters& p) { return (p.most + p.parts - 1) / p.parts; }
static __device__ symrail_u64 part_bytes(const parameters& p) { return 16 + part_rows(p) * row_bytes(p); }
static __device__ symrail_u64 part_number(const parameters& p, symrail_u64 rank, symrail_u64 round, symrail_u64 part) {
    return (rank * 2 + round % 2) * p.parts + part;
}
static __device__ symrail_u64 back_number(const parameters& p, symrail_u64 round, symrail_u64 slot) {
    return round % 2 * p.most * p.k + slot;
}
static __device__ bool is_masked(const parameters& p, symrail_u64 rank) {
    return ((const volatile symrail_u32*)p.masks)[rank] != 0;
}
static __device__ symrail_u64 round_of(const parameters& p) { return *(const volatile symrail_u64*)p.rounds + 1; }

static __device__ float low(symrail_u32 two) { return __uint_as_float(two << 16); }
static __device__ float high(symrail_u32 two) { return __uint_as_float(two & 0xffff0000u); }
// To the nearest bfloat16, ties to even.
static __device__ symrail_u32 to_bf16(float value) {
    symrail_u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40;
    return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}

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

// Blocks: `parts` for each rank. `topk` are 64-bit indices, -1 for none.
extern "C" __global__ void __launch_bounds__(512)
    ep_send_dispatch(const parameters* given, const unsigned short* x, const long long* topk, symrail_u64 tokens) {
    const parameters p = *given;
    symrail_u64 rank = blockIdx.x / p.parts, part = blockIdx.x % p.parts, round = round_of(p);
    if (is_masked(p, rank)) return;
    char* there = (char*)p.in + part_number(p, p.me, round, part) * part_bytes(p);
    symrail_u64* word = (symrail_u64*)p.words + part_number(p, p.me, round, part);
    char* mapped = (char*)symrail_ptr(there, (int)rank);
    char* to = mapped != nullptr ? mapped : (char*)p.out + part_number(p, rank, round, part) * part_bytes(p);
    symrail_u64 each = (tokens + p.parts - 1) / p.parts, first = part * each;
    symrail_u64 end = first + each < tokens ? first + each : tokens, count = 0;
    for (symrail_u64 token = first; token < end; token++) {
        int local = -1;
        if (threadIdx.x < p.k) {
            long long expert = topk[token * p.k + threadIdx.x];
            if (expert >= 0 && expert / (long long)p.share == (long long)rank) local = (int)(expert % (long long)p.share);
        }
        if (!__syncthreads_or(local >= 0)) continue;
        char* row = to + 16 + count * row_bytes(p);
        int* slots = (int*)(row + slots_at(p));
        if (threadIdx.x < p.k) slots[threadIdx.x] = local;
        if (threadIdx.x == 0) slots[p.k] = (int)token;
        if (p.fp8) {
            cast_row(p, x + token * p.hidden, row);
        } else {
            copy_block(row, (const char*)(x + token * p.hidden), token_bytes(p));
        }
        count++;
    }
    if (threadIdx.x == 0) *(symrail_u64*)to = count;
    symrail_fence_sys();
    __syncthreads();
    if (mapped == nullptr) {
        symrailx_putmem_signal_nbi_block(there, to, 16 + count * row_bytes(p), word, round, SYMRAIL_SIGNAL_SET, (int)rank);
    } else if (threadIdx.x == 0) {
        symrail_fence_sys();
        symrailx_signal_op(word, round, SYMRAIL_SIGNAL_SET, (int)rank);
    }
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
    for (symrail_u64 i = threadIdx.x; i < p.ranks * p.parts; i += blockDim.x)
        if (!is_masked(p, i / p.parts))
            symrail_signal_wait_until((symrail_u64*)p.words + part_number(p, i / p.parts, round, i % p.parts),
                                      SYMRAIL_CMP_GE, round);
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
            symrail_u32 ballot = __ballot_sync(~0u, slot < p.k), warp = threadIdx.x / 32;
            if (threadIdx.x % 32 == 0) in_warp[warp] = __popc(ballot);
            __syncthreads();
            symrail_u32 before = __popc(ballot & ((1u << threadIdx.x % 32) - 1)), all = 0;
            for (symrail_u32 w = 0; w < blockDim.x / 32; w++) {
                if (w < warp) before += in_warp[w];
                all += in_warp[w];
            }
            if (slot < p.k) {
                sources[found + before] = rank << 32 | ((symrail_u64)slots[p.k] * p.k + slot);
                places[found + before] = at;
            }
            found += all;
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) counts[expert] = (int)found;
    for (symrail_u64 row = 0; row < found; row++) {
        const char* from = (const char*)places[row];
        copy_block(rows + (expert * room + row) * token_bytes(p), from, token_bytes(p));
        for (symrail_u64 i = threadIdx.x; i < groups(p); i += blockDim.x)
            scales[(expert * room + row) * groups(p) + i] = ((const float*)(from + scales_at(p)))[i];
    }
}

// Any number of blocks for each expert. Rows are of bfloat16, laid out as they came.
extern "C" __global__ void __launch_bounds__(512)
    ep_send_combine(const parameters* given, const char* rows, const int* counts, const symrail_u64* sources,
                    symrail_u64 blocks) {
    const parameters p = *given;
    symrail_u64 round = round_of(p), expert = blockIdx.x / blocks, room = p.ranks * p.most, bytes = 2 * p.hidden;
    for (symrail_u64 row = blockIdx.x % blocks; row < (symrail_u64)counts[expert]; row += blocks) {
        symrail_u64 source = sources[expert * room + row], rank = source >> 32;
        symrail_u64 number = back_number(p, round, (symrail_u32)source);
        if (is_masked(p, rank)) continue;
        symrailx_putmem_signal_nbi_block((char*)p.back + number * bytes, rows + (expert * room + row) * bytes, bytes,
                                         (symrail_u64*)p.back_words + number, round, SYMRAIL_SIGNAL_SET, (int)rank);
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
        symrail_u64 slot = 0, at = token * p.k;
        long long expert = topk[at + threadIdx.x];
        rows[threadIdx.x] = 0;
        // A token that names an expert twice has one row, in the first slot.
        while (topk[at + slot] != expert) slot++;
        if (expert >= 0 && !is_masked(p, expert / (long long)p.share)) {
            symrail_u64 number = back_number(p, round, at + slot);
            if (symrail_signal_wait_until((symrail_u64*)p.back_words + number, SYMRAIL_CMP_GE, round) >= round)
                rows[threadIdx.x] = p.back + number * bytes;
        }
        factors[threadIdx.x] = weights[at + threadIdx.x];
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

// One thread: what this PE has put by requests is delivered, so that its memory may be written again.
extern "C" __global__ void ep_end_round(const parameters* given) {
    symrail_quiet();
    (*(symrail_u64*)given->rounds)++;
}
