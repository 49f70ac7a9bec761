/* Atomic memory operations. All of them on one heap take the same path, so that they are atomic with one another: this
 * device's atomics where the heap allows that, otherwise the proxy, even for this PE's own memory. */
#ifndef SYMRAIL_AMO_CUH
#define SYMRAIL_AMO_CUH

#include "rma.cuh"

template <class T> struct symrail_amo_type;
template <> struct symrail_amo_type<int> { static const symrail_u64 value = SYMRAIL_TYPE_I32; };
template <> struct symrail_amo_type<unsigned int> { static const symrail_u64 value = SYMRAIL_TYPE_U32; };
template <> struct symrail_amo_type<long> { static const symrail_u64 value = SYMRAIL_TYPE_I64; };
template <> struct symrail_amo_type<unsigned long> { static const symrail_u64 value = SYMRAIL_TYPE_U64; };
template <> struct symrail_amo_type<long long> { static const symrail_u64 value = SYMRAIL_TYPE_I64; };
template <> struct symrail_amo_type<unsigned long long> { static const symrail_u64 value = SYMRAIL_TYPE_U64; };
template <> struct symrail_amo_type<float> { static const symrail_u64 value = SYMRAIL_TYPE_F32; };
template <> struct symrail_amo_type<double> { static const symrail_u64 value = SYMRAIL_TYPE_F64; };

/* The operations on a mapped word, at system scope. */
#define SYMRAIL_ATOM_BITWISE(T, K)                                                     \
    template <> SYMRAIL_ATOM_FN T symrail_atom<T, SYMRAIL_AMO_AND>(T * p, T v, T) {    \
        return (T)atomicAnd_system((K*)p, (K)v);                                       \
    }                                                                                  \
    template <> SYMRAIL_ATOM_FN T symrail_atom<T, SYMRAIL_AMO_OR>(T * p, T v, T) {     \
        return (T)atomicOr_system((K*)p, (K)v);                                        \
    }                                                                                  \
    template <> SYMRAIL_ATOM_FN T symrail_atom<T, SYMRAIL_AMO_XOR>(T * p, T v, T) {    \
        return (T)atomicXor_system((K*)p, (K)v);                                       \
    }                                                                                  \
    template <> SYMRAIL_ATOM_FN T symrail_atom<T, SYMRAIL_AMO_COMPARE_SWAP>(T * p, T v, T c) { \
        return (T)atomicCAS_system((K*)p, (K)c, (K)v);                                 \
    }                                                                                  \
    template <> SYMRAIL_ATOM_FN T symrail_atom<T, SYMRAIL_AMO_ADD>(T * p, T v, T) {    \
        return (T)atomicAdd_system((K*)p, (K)v);                                       \
    }
#define SYMRAIL_ATOM_ANY(T, K)                                                         \
    template <> SYMRAIL_ATOM_FN T symrail_atom<T, SYMRAIL_AMO_SET>(T * p, T v, T) {    \
        return symrail_of_bits<T>(atomicExch_system((K*)p, (K)symrail_to_bits(v)));    \
    }                                                                                  \
    template <> SYMRAIL_ATOM_FN T symrail_atom<T, SYMRAIL_AMO_FETCH>(T * p, T, T) {    \
        return symrail_of_bits<T>(*(volatile K*)p);                                    \
    }
#define SYMRAIL_ATOM_FN __device__ __forceinline__
template <class T, symrail_u64 OP> static __device__ T symrail_atom(T* p, T v, T c);
SYMRAIL_ATOM_ANY(int, unsigned int)
SYMRAIL_ATOM_ANY(unsigned int, unsigned int)
SYMRAIL_ATOM_ANY(float, unsigned int)
SYMRAIL_ATOM_ANY(long, unsigned long long)
SYMRAIL_ATOM_ANY(unsigned long, unsigned long long)
SYMRAIL_ATOM_ANY(long long, unsigned long long)
SYMRAIL_ATOM_ANY(unsigned long long, unsigned long long)
SYMRAIL_ATOM_ANY(double, unsigned long long)
SYMRAIL_ATOM_BITWISE(int, unsigned int)
SYMRAIL_ATOM_BITWISE(unsigned int, unsigned int)
SYMRAIL_ATOM_BITWISE(long, unsigned long long)
SYMRAIL_ATOM_BITWISE(unsigned long, unsigned long long)
SYMRAIL_ATOM_BITWISE(long long, unsigned long long)
SYMRAIL_ATOM_BITWISE(unsigned long long, unsigned long long)
template <> SYMRAIL_ATOM_FN float symrail_atom<float, SYMRAIL_AMO_ADD>(float* p, float v, float) {
    return atomicAdd_system(p, v);
}
template <> SYMRAIL_ATOM_FN double symrail_atom<double, SYMRAIL_AMO_ADD>(double* p, double v, double) {
    return atomicAdd_system(p, v);
}

static __device__ __noinline__ symrail_u64 symrail_amo_proxied(symrail_u64 op, symrail_u64 type, const symrail_place& place,
                                                               symrail_u64 operand, symrail_u64 compare, int pe,
                                                               bool fetch) {
    if (!symrail_has_channel(SYMRAIL_WHAT_AMO, pe)) return 0;
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD;
    if (op != SYMRAIL_AMO_FETCH) r.mask |= SYMRAIL_MASK_VALUE;
    if (fetch || op == SYMRAIL_AMO_COMPARE_SWAP) r.mask |= SYMRAIL_MASK_REPLY;
    r.w[0] = symrail_head(fetch ? SYMRAIL_OP_FETCH_AMO : SYMRAIL_OP_AMO, type, op, r.mask, pe);
    r.w[1] = place.offset;
    r.w[4] = 0;
    r.w[5] = operand;
    r.w[6] = 0;
    r.w[7] = compare;
    const symrail_channel_view& c = symrail_my_channel();
    if (fetch) return symrail_ask(c, r, pe);
    symrail_u64 position = symrail_push(c, r);
    if (place.mapped != 0) symrail_mixed(c, position);
    return 0;
}

template <symrail_u64 OP, class T>
SYMRAIL_DEVICE T symrail_amo(T* dest, T value, T compare, int pe, bool fetch) {
    T* mapped;
    if (symrail_reach_value(dest, pe, mapped) && symrail_first_heap_has_atomics()) return symrail_atom<T, OP>(mapped, value, compare);
    symrail_place place = symrail_find(dest, sizeof(T), pe, SYMRAIL_WHAT_AMO);
    if (!place.ok) return T();
    /* Reading and storing a word are atomic with everything, even over PCIe. */
    if (place.mapped != 0 && (place.atomics || OP == SYMRAIL_AMO_FETCH))
        return symrail_atom<T, OP>((T*)place.mapped, value, compare);
    if (place.mapped != 0 && OP == SYMRAIL_AMO_SET && !fetch) {
        *(volatile T*)place.mapped = value;
        return T();
    }
    return symrail_of_bits<T>(symrail_amo_proxied(OP, symrail_amo_type<T>::value, place, symrail_to_bits(value),
                                                  symrail_to_bits(compare), pe, fetch));
}

#endif
