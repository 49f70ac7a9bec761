// Rows that return by a combine in 10 bits for each element (LogFMT-10), with the bits of ep/src/logfmt.rs, which
// describes the format. All operations are rounded one by one, so that every processor gets the same codes and values.
//
// A row has the place of a plain one, and each group of elements its own place there: the bytes are those of the group in
// logfmt.rs, or its elements. Which groups are encoded is told apart, by a bit each, behind the number of the combine. A
// rank encodes rows for ranks that have asked for it, by the number of the combine, before they sent their weights.
#ifndef SYMRAIL_EP_LOGFMT_CUH
#define SYMRAIL_EP_LOGFMT_CUH

#include "rounds.cuh"

// The 16-byte pieces of a group, its elements, and the longest form in which it travels, in pieces.
#define GROUP_PIECES 16u
#define GROUP_ELEMENTS 128u
#define ENCODED_PIECES 11u
// The largest code of a magnitude; 0 is the code of 0.
#define LARGEST_CODE 511u
// The most groups of a row that is encoded.
#define MOST_GROUP_WORDS 16u
// The words of these bits that a warp keeps for its block.
#define KEPT_WORDS 3u
#define NO_NUMBER 0x7fc0u
#define INFINITE 0x7f80u

// The logarithm (of base 2) of a number from 1 to 2, by the series of its inverse hyperbolic tangent.
static __device__ float log2_of_mantissa(float number) {
    float part = __fdiv_rn(__fadd_rn(number, -1.0f), __fadd_rn(number, 1.0f)), square = __fmul_rn(part, part), sum = 1.0f / 15.0f;
    const float of[7] = {1.0f / 13.0f, 1.0f / 11.0f, 1.0f / 9.0f, 1.0f / 7.0f, 1.0f / 5.0f, 1.0f / 3.0f, 1.0f};
    for (int i = 0; i < 7; i++) sum = __fadd_rn(__fmul_rn(sum, square), of[i]);
    return __fmul_rn(__fmul_rn(part, sum), 2.88539f);
}
// A block fills a table of the logarithms of bfloat16's mantissas.
static __device__ const float* share_logs() {
    __shared__ float logs[128];
    for (symrail_u32 i = threadIdx.x; i < 128; i += blockDim.x) logs[i] = log2_of_mantissa(__uint_as_float(0x3f800000u | i << 16));
    __syncthreads();
    return logs;
}
// The logarithm of a magnitude of bfloat16, which is given by its bits.
static __device__ float log2_of(const float* logs, symrail_u32 bits) {
    if (bits == 0) return __uint_as_float(0xff800000u);
    if (bits >= 0x80) return __fadd_rn((float)((int)(bits >> 7 & 0xff) - 127), logs[bits & 127]);
    // Below the least exponent: the bits are a whole number of the least magnitudes.
    symrail_u32 whole = __float_as_uint((float)bits);
    return __fadd_rn((float)((int)(whole >> 23) - 127 - 133), logs[whole >> 16 & 127]);
}
static __device__ float power_of_two(int to) { return __uint_as_float((symrail_u32)(to + 127) << 23); }
// 2 to a power that is at most 0.
static __device__ float exp2_of(float power) {
    float whole = rintf(power), part = __fadd_rn(power, -whole), sum = 1.540353e-4f;
    const float of[6] = {1.3333558e-3f, 9.618129e-3f, 5.550411e-2f, 0.2402265f, 0.6931472f, 1.0f};
#pragma unroll
    for (int i = 0; i < 6; i++) sum = __fadd_rn(__fmul_rn(sum, part), of[i]);
    int all = (int)whole, some = all < -100 ? -100 : all;
    return __fmul_rn(__fmul_rn(sum, power_of_two(some)), power_of_two(all - some));
}

// The magnitudes of an encoded group: 0, and the smallest one times powers of 2 to the `step`.
struct log_scale {
    float log_of_smallest, step;
};
// The scale of a group, from its largest and its smallest magnitude. Returns whether the group is encoded.
static __device__ bool scale_of(const float* logs, symrail_u32 largest, symrail_u32 smallest, log_scale& scale) {
    float log = log2_of(logs, largest);
    scale.log_of_smallest = fmaxf(log2_of(logs, smallest), __fadd_rn(log, -32.0f));
    scale.step = __fdiv_rn(__fadd_rn(log, -scale.log_of_smallest), (float)(LARGEST_CODE - 1));
    return log < 0.0f && scale.log_of_smallest < log;
}
// The codes of eight elements of bfloat16: ten bytes, of which `last` are the last two.
static __device__ symrail_u64 codes_of(const float* logs, const log_scale& scale, const symrail_u32* two, symrail_u32& last) {
    // Of two neighbours the nearer one, by magnitude and not by logarithm.
    float inverse = __fdiv_rn(1.0f, scale.step), nearer = __fadd_rn(1.5f, -__fmul_rn(0.0866434f, scale.step));
    symrail_u64 codes = 0;
    last = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        symrail_u32 bits = two[i / 2] >> (i % 2 * 16) & 0xffff;
        float at = __fadd_rn(__fmul_rn(__fadd_rn(log2_of(logs, bits & 0x7fff), -scale.log_of_smallest), inverse), nearer);
        symrail_u32 code = (symrail_u32)fmaxf(at, 0.0f);
        // A zero has no sign.
        code = (code < LARGEST_CODE ? code : LARGEST_CODE) << 1 | ((bits & 0x7fff) != 0 ? bits >> 15 : 0);
        if (i < 7) codes |= (symrail_u64)code << (10 * i);
        if (i >= 6) last |= i == 6 ? code >> 4 : code << 6;
    }
    return codes;
}
// The value of a code, rounded to bfloat16.
static __device__ float value_of(const log_scale& scale, symrail_u32 code) {
    symrail_u32 number = code >> 1 & LARGEST_CODE;
    if (number == 0) return code & 1 ? -0.0f : 0.0f;
    float size = exp2_of(__fadd_rn(__fmul_rn((float)(number - 1), scale.step), scale.log_of_smallest));
    return low(to_bf16(code & 1 ? -size : size));
}

static __device__ symrail_u32 groups_of_row(const parameters& p) {
    return ((symrail_u32)p.hidden + GROUP_ELEMENTS - 1) / GROUP_ELEMENTS;
}
static __device__ symrail_u32 group_words(const parameters& p) { return (groups_of_row(p) + 31) / 32; }
// The number of the last combine for which a rank asked for encoded rows.
static __device__ symrail_u64* asks_at(const parameters& p, symrail_u64 rank) { return (symrail_u64*)p.heap.formats + rank; }
// The number of the combine that has encoded a row, and a bit for each of its groups.
static __device__ symrail_u32* format_at(const parameters& p, symrail_u64 rank, symrail_u64 number) {
    symrail_u64 bytes = up16(4 + 4 * group_words(p));
    return (symrail_u32*)(p.heap.formats + up16(8 * p.ranks) + back_number(p, p.combine, rank, number) * bytes);
}
// A block asks all ranks whose memory this GPU reaches. It does so before it sends them its weights.
static __device__ void ask_for_encoded_rows(const parameters& p) {
    for (symrail_u64 rank = threadIdx.x; group_words(p) <= MOST_GROUP_WORDS && rank < p.ranks; rank += blockDim.x) {
        if (rank == p.me || is_far(p, rank) || is_masked(p, rank)) continue;
        *(volatile symrail_u64*)symrail_ptr(asks_at(p, p.me), (int)rank) = p.combine;
    }
    // Every thread sends weights behind this.
    __syncthreads();
    symrail_fence_sys();
}
static __device__ bool asks(const parameters& p, symrail_u64 rank) {
    return group_words(p) <= MOST_GROUP_WORDS && rank != p.me && !is_far(p, rank) && symrail_ld_acquire(asks_at(p, rank)) == p.combine;
}

// Sixteen lanes store a group of a row, encoded where it can be, and note that in `encoded`. Each has one piece of the
// row, or none if that is not before `end`. All lanes of a warp call this.
static __device__ void store_group(const float* logs, char* row, symrail_u32 piece, symrail_u32 end, const symrail_u32* two,
                                   symrail_u32* encoded) {
    __shared__ symrail_wide staged[32][ENCODED_PIECES];
    symrail_u32 lane = threadIdx.x % GROUP_PIECES, group = piece / GROUP_PIECES, largest = 0, smallest = 0x7fff;
    bool some = piece < end;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        symrail_u32 size = two[i / 2] >> (i % 2 * 16) & 0x7fff;
        largest = size > largest ? size : largest, smallest = size < smallest ? size : smallest;
    }
    if (!some) largest = 0, smallest = 0x7fff;
#pragma unroll
    for (int step = GROUP_PIECES / 2; step > 0; step /= 2) {
        symrail_u32 of_largest = __shfl_xor_sync(~0u, largest, step), of_smallest = __shfl_xor_sync(~0u, smallest, step);
        largest = of_largest > largest ? of_largest : largest, smallest = of_smallest < smallest ? of_smallest : smallest;
    }
    if (largest > INFINITE) largest = smallest = NO_NUMBER;
    log_scale scale;
    bool encodes = scale_of(logs, largest, smallest, scale);
    symrail_wide* its = staged[threadIdx.x / GROUP_PIECES];
    if (encodes && some) {
        symrail_u32 last, at = 2 + 5 * lane;
        symrail_u64 codes = codes_of(logs, scale, two, last);
        unsigned short* to = (unsigned short*)its;
#pragma unroll
        for (int i = 0; i < 4; i++) to[at + i] = (unsigned short)(codes >> (16 * i));
        to[at + 4] = (unsigned short)last;
        if (lane == 0) to[0] = (unsigned short)largest, to[1] = (unsigned short)smallest;
    }
    __syncwarp();
    symrail_u32 left = end - group * GROUP_PIECES, pieces = left < GROUP_PIECES ? left : GROUP_PIECES;
    if (encodes && 16 * lane < 4 + 10 * pieces) {
        symrail_store((symrail_wide*)row + group * GROUP_PIECES + lane, its[lane]);
    } else if (!encodes && some) {
        symrail_store((symrail_wide*)row + piece, {two[0] | (symrail_u64)two[1] << 32, two[2] | (symrail_u64)two[3] << 32});
    }
    if (encodes && lane == 0) atomicOr(&encoded[group / 32], 1u << group % 32);
    __syncwarp();
}
// A warp notes at a rank which groups of a row are encoded.
static __device__ void store_format(const parameters& p, symrail_u64 rank, symrail_u64 number, const symrail_u32* encoded) {
    volatile symrail_u32* to = (symrail_u32*)symrail_ptr(format_at(p, p.me, number), (int)rank);
    symrail_u32 lane = threadIdx.x % 32;
    if (lane == 0) to[0] = (symrail_u32)p.combine;
    if (lane < group_words(p)) to[1 + lane] = encoded[lane];
}

// Which groups of a returned row are encoded.
struct row_format {
    const symrail_u32* words;
    symrail_u32 kept[KEPT_WORDS];
    // `come`: the row has come.
    __device__ void find(const parameters& p, symrail_u64 rank, symrail_u64 number, bool come) {
        words = nullptr;
        if (!come || rank == p.me || is_far(p, rank)) return;
        const volatile symrail_u32* found = format_at(p, rank, number);
        symrail_u32 many = group_words(p), combine = found[0];
        for (symrail_u32 i = 0; i < KEPT_WORDS; i++) kept[i] = i < many ? found[1 + i] : 0;
        if (combine == (symrail_u32)p.combine) words = (const symrail_u32*)found + 1;
    }
    __device__ bool has_encoded(symrail_u32 group) const {
        if (words == nullptr) return false;
        symrail_u32 word = group / 32;
        return (word < KEPT_WORDS ? kept[word] : words[word]) >> group % 32 & 1;
    }
};
// A piece of a returned row: as it came, or the words that have a lane's codes, and the group's limits.
static __device__ symrail_wide load_piece(const char* row, symrail_u32 piece, bool encoded) {
    if (!encoded) return symrail_own_source::load((const symrail_wide*)row + piece);
    const symrail_u32* group = (const symrail_u32*)(row + piece / GROUP_PIECES * GROUP_PIECES * 16);
    const symrail_u32* codes = group + (4 + 10 * (piece % GROUP_PIECES)) / 4;
    return {codes[0] | (symrail_u64)codes[1] << 32, codes[2] | (symrail_u64)group[0] << 32};
}
static __device__ void decode_piece(const float* logs, symrail_wide found, symrail_u32 piece, float* values) {
    log_scale scale;
    symrail_u32 limits = (symrail_u32)(found.b >> 32), last = (symrail_u32)found.b;
    scale_of(logs, limits & 0x7fff, limits >> 16 & 0x7fff, scale);
    symrail_u64 codes = found.a;
    // Each second lane's codes begin in the middle of a word.
    if (piece % 2 == 1) codes = codes >> 16 | (symrail_u64)last << 48, last >>= 16;
#pragma unroll
    for (int i = 0; i < 6; i++) values[i] = value_of(scale, (symrail_u32)(codes >> (10 * i)) & 0x3ff);
    values[6] = value_of(scale, (symrail_u32)(codes >> 60) | (last & 0x3f) << 4);
    values[7] = value_of(scale, last >> 6 & 0x3ff);
}

#endif
