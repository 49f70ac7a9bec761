/* Types of elements: their form in memory, their type for arithmetic, and their reductions. Codes and roundings equal
 * those of collectives/src/number and core/src/fp8.rs, on every architecture. */
#ifndef SYMRAIL_NUMBER_CUH
#define SYMRAIL_NUMBER_CUH

#include "memory.cuh"

/* The operations on elements, by number. */
#define SYMRAIL_REDUCE_SUM 0u
#define SYMRAIL_REDUCE_PROD 1u
#define SYMRAIL_REDUCE_MIN 2u
#define SYMRAIL_REDUCE_MAX 3u

SYMRAIL_DEVICE symrail_u32 symrail_float_bits(float value) {
    symrail_u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}
SYMRAIL_DEVICE float symrail_float_of(symrail_u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
/* 2^n as a normal number. */
SYMRAIL_DEVICE float symrail_power_of_two(int n) { return symrail_float_of((symrail_u32)(n + 127) << 23); }

/* A format with IEEE's layout: bits of mantissa, bias, and the code of the largest finite number. A larger value
 * becomes that. */
template <int MANTISSA, int BIAS, int LARGEST, int NOT_A_NUMBER>
struct symrail_narrow_format {
    /* The value of a finite code without its sign. */
    SYMRAIL_SCOPE_FN float magnitude(symrail_u32 code) {
        return symrail_float_of(code << (23 - MANTISSA)) * symrail_power_of_two(127 - BIAS);
    }
    /* The code of a number; its sign is the bit above all others. */
    SYMRAIL_SCOPE_FN symrail_u32 encode(float value, symrail_u32 sign_bit) {
        symrail_u32 bits = symrail_float_bits(value), sign = (bits >> 31) * sign_bit, size = bits & 0x7fffffffu;
        if (size > 0x7f800000u) return sign | NOT_A_NUMBER;
        symrail_u32 largest = symrail_float_bits(magnitude(LARGEST));
        if (size > largest) size = largest;
        /* The last place of the smallest numbers. */
        float unit = symrail_power_of_two(1 - BIAS - MANTISSA);
        if (size < symrail_float_bits(symrail_power_of_two(1 - BIAS))) {
            /* The sum's last place is that of these codes, so that the addition rounds to them. */
            float sum = symrail_float_of(size) + unit * 8388608.0f;
            return sign | (symrail_float_bits(sum) & ((2u << MANTISSA) - 1u));
        }
        const int dropped = 23 - MANTISSA;
        /* Half a unit, less one if the last bit is even: then a tie does not carry. */
        symrail_u32 rounded = size + (1u << (dropped - 1)) - 1u + ((size >> dropped) & 1u);
        return sign | ((rounded >> dropped) - ((symrail_u32)(127 - BIAS) << MANTISSA));
    }
};

/* IEEE's half precision. */
struct symrail_f16 {
    typedef unsigned short stored;
    typedef float worked;
    SYMRAIL_SCOPE_FN float load(stored code) {
        symrail_u32 size = code & 0x7fffu, sign = (symrail_u32)(code & 0x8000u) << 16;
        symrail_u32 special = size >= 0x7c00u ? 0x7f800000u : 0u;
        float value = symrail_narrow_format<10, 15, 0x7bff, 0x7e00>::magnitude(size);
        return symrail_float_of(sign | special | (special != 0 ? (size & 0x3ffu) << 13 : symrail_float_bits(value)));
    }
    SYMRAIL_SCOPE_FN stored store(float value) {
        /* A value from the middle above the largest number on is infinity. */
        symrail_u32 size = symrail_float_bits(value) & 0x7fffffffu;
        if (size >= 0x477ff000u && size <= 0x7f800000u)
            return (stored)((symrail_float_bits(value) >> 31 << 15) | 0x7c00u);
        return (stored)symrail_narrow_format<10, 15, 0x7bff, 0x7e00>::encode(value, 0x8000u);
    }
};
/* The upper half of a float. */
struct symrail_bf16 {
    typedef unsigned short stored;
    typedef float worked;
    SYMRAIL_SCOPE_FN float load(stored code) { return symrail_float_of((symrail_u32)code << 16); }
    SYMRAIL_SCOPE_FN stored store(float value) {
        symrail_u32 bits = symrail_float_bits(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return (stored)(bits >> 16 | 0x40u);
        return (stored)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
};
struct symrail_e4m3 {
    typedef unsigned char stored;
    typedef float worked;
    typedef symrail_narrow_format<3, 7, 0x7e, 0x7f> format;
    SYMRAIL_SCOPE_FN float load(stored code) {
        symrail_u32 size = code & 0x7fu, sign = (symrail_u32)(code & 0x80u) << 24;
        symrail_u32 bits = size == 0x7fu ? 0x7fc00000u : symrail_float_bits(format::magnitude(size));
        return symrail_float_of(sign | bits);
    }
    SYMRAIL_SCOPE_FN stored store(float value) { return (stored)format::encode(value, 0x80u); }
};
struct symrail_e5m2 {
    typedef unsigned char stored;
    typedef float worked;
    SYMRAIL_SCOPE_FN float load(stored code) { return symrail_f16::load((unsigned short)(code << 8)); }
    SYMRAIL_SCOPE_FN stored store(float value) {
        return (stored)symrail_narrow_format<2, 15, 0x7b, 0x7e>::encode(value, 0x80u);
    }
};
/* A half-precision number without the upper exponent bit; it is rounded to half precision first, and then half up. */
struct symrail_e4m3b15 {
    typedef unsigned char stored;
    typedef float worked;
    SYMRAIL_SCOPE_FN float load(stored code) {
        return symrail_f16::load((unsigned short)((code & 0x80u) << 8 | (code & 0x7fu) << 7));
    }
    SYMRAIL_SCOPE_FN stored store(float value) {
        symrail_u32 half = symrail_f16::store(value), size = half & 0x7fffu;
        if (size > 0x3f80u) size = 0x3f80u;
        symrail_u32 rounded = size * 2u + 0x80u;
        if (rounded > 0x7f80u) rounded = 0x7f80u;
        return (stored)((rounded | (half & 0x8000u)) >> 8);
    }
};
/* Numbers with native arithmetic. */
template <class T>
struct symrail_plain {
    typedef T stored;
    typedef T worked;
    SYMRAIL_SCOPE_FN T load(T value) { return value; }
    SYMRAIL_SCOPE_FN T store(T value) { return value; }
};
typedef symrail_plain<signed char> symrail_i8;
typedef symrail_plain<unsigned char> symrail_u8;
typedef symrail_plain<int> symrail_i32;
typedef symrail_plain<unsigned int> symrail_u32n;
typedef symrail_plain<long long> symrail_i64;
typedef symrail_plain<unsigned long long> symrail_u64n;
typedef symrail_plain<float> symrail_f32;
typedef symrail_plain<double> symrail_f64;

/* Integers wrap: they are added and multiplied as unsigned numbers. */
template <class W>
SYMRAIL_DEVICE W symrail_sum_of(W a, W b) { return (W)((symrail_u64)a + (symrail_u64)b); }
template <class W>
SYMRAIL_DEVICE W symrail_product_of(W a, W b) { return (W)((symrail_u64)a * (symrail_u64)b); }
SYMRAIL_DEVICE float symrail_sum_of(float a, float b) { return a + b; }
SYMRAIL_DEVICE float symrail_product_of(float a, float b) { return a * b; }
SYMRAIL_DEVICE double symrail_sum_of(double a, double b) { return a + b; }
SYMRAIL_DEVICE double symrail_product_of(double a, double b) { return a * b; }

/* The quotient by a number of PEs; integers are truncated. */
template <class W>
SYMRAIL_DEVICE W symrail_quotient_of(W value, symrail_u32 by) { return (W)((long long)value / (long long)by); }
SYMRAIL_DEVICE symrail_u64 symrail_quotient_of(symrail_u64 value, symrail_u32 by) { return value / by; }
SYMRAIL_DEVICE float symrail_quotient_of(float value, symrail_u32 by) { return value / (float)by; }
SYMRAIL_DEVICE double symrail_quotient_of(double value, symrail_u32 by) { return value / (double)by; }

template <class W>
SYMRAIL_DEVICE W symrail_reduced(symrail_u32 op, W a, W b) {
    switch (op) {
        case SYMRAIL_REDUCE_SUM: return symrail_sum_of(a, b);
        case SYMRAIL_REDUCE_PROD: return symrail_product_of(a, b);
        /* A NaN wins on either side, so that all PEs get the same. */
        case SYMRAIL_REDUCE_MIN: return b < a || b != b ? b : a;
        default: return b > a || b != b ? b : a;
    }
}

/* Several elements of a type, side by side. */
template <class N, int BYTES>
struct symrail_elements {
    static const int count = BYTES / (int)sizeof(typename N::stored);
    typename N::worked v[count];

    SYMRAIL_WAITER_FN void unpack(const void* bytes) {
#pragma unroll
        for (int i = 0; i < count; i++) {
            typename N::stored code;
            memcpy(&code, (const char*)bytes + i * sizeof(code), sizeof(code));
            v[i] = N::load(code);
        }
    }
    SYMRAIL_WAITER_FN void pack(void* bytes) const {
#pragma unroll
        for (int i = 0; i < count; i++) {
            typename N::stored code = N::store(v[i]);
            memcpy((char*)bytes + i * sizeof(code), &code, sizeof(code));
        }
    }
    /* Combines with other elements; `own`: rounds to the type after that. */
    SYMRAIL_WAITER_FN void take(symrail_u32 op, const symrail_elements& others, bool own) {
        switch (op) {
            case SYMRAIL_REDUCE_SUM: all<SYMRAIL_REDUCE_SUM>(others); break;
            case SYMRAIL_REDUCE_PROD: all<SYMRAIL_REDUCE_PROD>(others); break;
            case SYMRAIL_REDUCE_MIN: all<SYMRAIL_REDUCE_MIN>(others); break;
            default: all<SYMRAIL_REDUCE_MAX>(others); break;
        }
        if (own) {
#pragma unroll
            for (int i = 0; i < count; i++) v[i] = N::load(N::store(v[i]));
        }
    }
    template <symrail_u32 OP>
    SYMRAIL_WAITER_FN void all(const symrail_elements& others) {
#pragma unroll
        for (int i = 0; i < count; i++) v[i] = symrail_reduced(OP, v[i], others.v[i]);
    }
};

#endif
