// Casts of bfloat16 tokens to FP8 (e4m3) with a scale for each 128 elements. Scales may be rounded up to powers of two.
#ifndef SYMRAIL_EP_CAST_CUH
#define SYMRAIL_EP_CAST_CUH

#include "rounds.cuh"

#define FP8_LARGEST 448.0f
// The groups that half a warp loads ahead.
#define GROUPS_AHEAD 4

// Rounds to the nearest e4m3, ties to even. Values above the largest e4m3 become the largest; a NaN stays one, as by
// the instruction that newer GPUs have for it.
static __device__ symrail_u32 to_e4m3(float value) {
    symrail_u32 sign = __float_as_uint(value) >> 24 & 0x80u;
    float size = fabsf(value);
    if (value != value) return 0x7f;
    if (size >= 464.0f) return sign | 0x7e;
    // Below 2^-6 all values are 2^-9 apart; above it, 2^-3 of their power of two.
    if (size < 0.015625f) return sign | (symrail_u32)rintf(size * 512.0f);
    symrail_u32 bits = __float_as_uint(size);
    bits += 0x7ffffu + ((bits >> 20) & 1);
    symrail_u32 found = (bits >> 20) - ((127 - 7) << 3);
    return sign | (found > 0x7e ? 0x7e : found);
}
// Casts two values. The first one goes to the lower byte.
static __device__ symrail_u32 two_to_e4m3(float first, float second) {
#if __CUDA_ARCH__ >= 890
    unsigned short two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
    return two;
#else
    return to_e4m3(first) | to_e4m3(second) << 8;
#endif
}

// Casts a lane's eight elements of a group. `some` is false behind the end of the token.
static __device__ void cast_eight(const parameters& p, symrail_wide eight, bool some, char* row, symrail_u64 group,
                                  bool power_of_two) {
    symrail_u32 parts[4] = {(symrail_u32)eight.a, (symrail_u32)(eight.a >> 32), (symrail_u32)eight.b,
                            (symrail_u32)(eight.b >> 32)};
    float values[8], most = 1e-4f;
    for (int i = 0; i < 4; i++) values[2 * i] = low(parts[i]), values[2 * i + 1] = high(parts[i]);
    for (int i = 0; i < 8; i++) {
        if (!some) values[i] = 0.0f;
        most = fmaxf(most, fabsf(values[i]));
    }
    for (int step = 8; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    if (!some) return;
    float factor = __fdiv_rn(most, FP8_LARGEST), inverse = __fdiv_rn(FP8_LARGEST, most);
    if (power_of_two) {
        factor = __uint_as_float((__float_as_uint(factor) + 0x7fffffu) & ~0x7fffffu);
        inverse = __fdiv_rn(1.0f, factor);
    }
    symrail_u64 cast = 0;
    for (int i = 0; i < 8; i += 2) {
        symrail_u64 two = two_to_e4m3(__fmul_rn(values[i], inverse), __fmul_rn(values[i + 1], inverse));
        cast |= two << (8 * i);
    }
    symrail_u32 lane = threadIdx.x % 16;
    *(symrail_u64*)(row + group * FP8_GROUP + 8 * lane) = cast;
    if (lane == 0) ((float*)(row + scales_at(p)))[group] = factor;
}

// A block casts tokens to consecutive rows. Half a warp casts one group.
static __device__ void cast_rows(const parameters& p, const unsigned short* x, const symrail_u32* tokens, symrail_u32 many,
                                 char* to, bool power_of_two) {
    symrail_u32 of_row = (symrail_u32)groups(p), all = many * of_row, halves = blockDim.x / 16;
    symrail_u64 bytes = row_bytes(p);
    for (symrail_u32 base = threadIdx.x / 32 * 2; base < all; base += halves * GROUPS_AHEAD) {
        symrail_wide eight[GROUPS_AHEAD];
        symrail_u32 mine = base + threadIdx.x % 32 / 16, lane = threadIdx.x % 16;
        auto is_there = [&](symrail_u32 at) { return at < all && at % of_row * FP8_GROUP + 8 * lane < p.hidden; };
#pragma unroll
        for (int i = 0; i < GROUPS_AHEAD; i++) {
            symrail_u32 at = mine + i * halves;
            eight[i] = {0, 0};
            if (!is_there(at)) continue;
            const unsigned short* token = x + tokens[at / of_row] * p.hidden;
            eight[i] = symrail_own_source::load((const symrail_wide*)(token + at % of_row * FP8_GROUP + 8 * lane));
        }
#pragma unroll
        for (int i = 0; i < GROUPS_AHEAD; i++) {
            symrail_u32 at = mine + i * halves;
            cast_eight(p, eight[i], is_there(at), to + at / of_row * bytes, at % of_row, power_of_two);
        }
    }
}

#endif
