/* Conversions by the GPU's own instructions, two elements at a time. Results are those of symrail/number.cuh, which
 * take 6 to 25 instructions for an element, except for the bits of a NaN. */
#ifndef SYMRAIL_CONVERT_CUH
#define SYMRAIL_CONVERT_CUH

#include "symrail/number.cuh"

template <class N, int BYTES>
struct symrail_converted : symrail_elements<N, BYTES> {};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <int BYTES>
struct symrail_converted<symrail_bf16, BYTES> : symrail_elements<symrail_bf16, BYTES> {
    SYMRAIL_WAITER_FN void unpack(const void* bytes) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++) {
            symrail_u32 two;
            memcpy(&two, (const char*)bytes + 4 * i, 4);
            this->v[2 * i] = symrail_float_of(two << 16);
            this->v[2 * i + 1] = symrail_float_of(two & 0xffff0000u);
        }
    }
    SYMRAIL_WAITER_FN void pack(void* bytes) const {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++) {
            symrail_u32 two;
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(this->v[2 * i + 1]), "f"(this->v[2 * i]));
            memcpy((char*)bytes + 4 * i, &two, 4);
        }
    }
};
template <int BYTES>
struct symrail_converted<symrail_f16, BYTES> : symrail_elements<symrail_f16, BYTES> {
    SYMRAIL_WAITER_FN void unpack(const void* bytes) {
#pragma unroll
        for (int i = 0; i < BYTES / 2; i++) {
            unsigned short code;
            memcpy(&code, (const char*)bytes + 2 * i, 2);
            asm("cvt.f32.f16 %0, %1;" : "=f"(this->v[i]) : "h"(code));
        }
    }
    SYMRAIL_WAITER_FN void pack(void* bytes) const {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++) {
            symrail_u32 two;
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(this->v[2 * i + 1]), "f"(this->v[2 * i]));
            memcpy((char*)bytes + 4 * i, &two, 4);
        }
    }
};
#endif

/* The e4m3 codes of an even number of values, at most 8, the first one in the lowest byte. */
template <int COUNT>
SYMRAIL_DEVICE symrail_u64 symrail_e4m3_codes(const float* values) {
    symrail_u64 codes = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        unsigned short two;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(values[i + 1]), "f"(values[i]));
        codes |= (symrail_u64)two << (8 * i);
    }
#else
#pragma unroll
    for (int i = 0; i < COUNT; i++) codes |= (symrail_u64)symrail_e4m3::store(values[i]) << (8 * i);
#endif
    return codes;
}

#endif
