/* The combination of two elements of a reduction, in pieces of 16 bytes. Types and results equal those of the host's
 * reductions (shmem/src/collective/reduction.rs): integers wrap, and the minimum and the maximum of a NaN and any other
 * number are NaN. */
#ifndef SYMRAIL_COMBINE_CUH
#define SYMRAIL_COMBINE_CUH

#include "memory.cuh"

/* kernels/src/cuda/collectives.rs has the same numbers: an operation, and a shifted type. */
#define SYMRAIL_SUM 0u
#define SYMRAIL_PRODUCT 1u
#define SYMRAIL_MIN 2u
#define SYMRAIL_MAX 3u
#define SYMRAIL_AND 4u
#define SYMRAIL_OR 5u
#define SYMRAIL_XOR 6u
#define SYMRAIL_ELEMENT_SHIFT 8u
#define SYMRAIL_I8 0u
#define SYMRAIL_I16 1u
#define SYMRAIL_I32 2u
#define SYMRAIL_I64 3u
#define SYMRAIL_U8 4u
#define SYMRAIL_U16 5u
#define SYMRAIL_U32 6u
#define SYMRAIL_U64 7u
#define SYMRAIL_F32 8u
#define SYMRAIL_F64 9u
#define SYMRAIL_C64 10u
#define SYMRAIL_C128 11u

template <class T>
struct symrail_complex {
    T re, im;
};

/* Elements that are plain bits: integers, whose sums and products are those of unsigned numbers. */
template <class T>
SYMRAIL_DEVICE T symrail_plus(T a, T b) { return (T)(a + b); }
template <class T>
SYMRAIL_DEVICE T symrail_times(T a, T b) { return (T)((symrail_u64)a * (symrail_u64)b); }
SYMRAIL_DEVICE float symrail_times(float a, float b) { return a * b; }
SYMRAIL_DEVICE double symrail_times(double a, double b) { return a * b; }
template <class T>
SYMRAIL_DEVICE symrail_complex<T> symrail_plus(symrail_complex<T> a, symrail_complex<T> b) {
    return {a.re + b.re, a.im + b.im};
}
template <class T>
SYMRAIL_DEVICE symrail_complex<T> symrail_times(symrail_complex<T> a, symrail_complex<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

struct symrail_arithmetic {
    bool sum;
    template <class T>
    __device__ T operator()(T a, T b) const { return sum ? symrail_plus(a, b) : symrail_times(a, b); }
};
struct symrail_ordered {
    bool least;
    template <class T>
    __device__ T operator()(T a, T b) const {
        return (least ? b < a : b > a) || b != b ? b : a;
    }
};

template <class T, class F>
SYMRAIL_DEVICE symrail_wide symrail_each(symrail_wide a, symrail_wide b, F combine) {
    T x[sizeof(a) / sizeof(T)], y[sizeof(a) / sizeof(T)];
    memcpy(x, &a, sizeof(a));
    memcpy(y, &b, sizeof(b));
#pragma unroll
    for (unsigned i = 0; i < sizeof(a) / sizeof(T); i++) x[i] = combine(x[i], y[i]);
    memcpy(&a, x, sizeof(a));
    return a;
}

/* The function is not inlined, because it has all types. */
static __device__ __noinline__ symrail_wide symrail_combine(symrail_wide a, symrail_wide b, symrail_u32 how) {
    symrail_u32 op = how & ((1u << SYMRAIL_ELEMENT_SHIFT) - 1), type = how >> SYMRAIL_ELEMENT_SHIFT;
    switch (op) {
        case SYMRAIL_AND: return {a.a & b.a, a.b & b.b};
        case SYMRAIL_OR: return {a.a | b.a, a.b | b.b};
        case SYMRAIL_XOR: return {a.a ^ b.a, a.b ^ b.b};
    }
    if (op == SYMRAIL_MIN || op == SYMRAIL_MAX) {
        symrail_ordered f = {op == SYMRAIL_MIN};
        switch (type) {
            case SYMRAIL_I8: return symrail_each<signed char>(a, b, f);
            case SYMRAIL_I16: return symrail_each<short>(a, b, f);
            case SYMRAIL_I32: return symrail_each<int>(a, b, f);
            case SYMRAIL_I64: return symrail_each<long long>(a, b, f);
            case SYMRAIL_U8: return symrail_each<unsigned char>(a, b, f);
            case SYMRAIL_U16: return symrail_each<unsigned short>(a, b, f);
            case SYMRAIL_U32: return symrail_each<symrail_u32>(a, b, f);
            case SYMRAIL_U64: return symrail_each<symrail_u64>(a, b, f);
            case SYMRAIL_F32: return symrail_each<float>(a, b, f);
            default: return symrail_each<double>(a, b, f);
        }
    }
    symrail_arithmetic f = {op == SYMRAIL_SUM};
    switch (type) {
        case SYMRAIL_I8:
        case SYMRAIL_U8: return symrail_each<unsigned char>(a, b, f);
        case SYMRAIL_I16:
        case SYMRAIL_U16: return symrail_each<unsigned short>(a, b, f);
        case SYMRAIL_I32:
        case SYMRAIL_U32: return symrail_each<symrail_u32>(a, b, f);
        case SYMRAIL_I64:
        case SYMRAIL_U64: return symrail_each<symrail_u64>(a, b, f);
        case SYMRAIL_F32: return symrail_each<float>(a, b, f);
        case SYMRAIL_F64: return symrail_each<double>(a, b, f);
        case SYMRAIL_C64: return symrail_each<symrail_complex<float>>(a, b, f);
        default: return symrail_each<symrail_complex<double>>(a, b, f);
    }
}

#endif
