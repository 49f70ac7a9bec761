/* The functions for device programs, with the names, arguments and meanings of OpenSHMEM and NVSHMEM, one function per
 * type. Thread forms have no suffix; warp and block forms are symrailx_…_warp and symrailx_…_block. */
#ifndef SYMRAIL_API_CUH
#define SYMRAIL_API_CUH

#include "batch.cuh"
#include "team.cuh"

#define SYMRAIL_CMP_EQ 0
#define SYMRAIL_CMP_NE 1
#define SYMRAIL_CMP_GT 2
#define SYMRAIL_CMP_LE 3
#define SYMRAIL_CMP_LT 4
#define SYMRAIL_CMP_GE 5

template <class T>
struct symrail_compare {
    int cmp;
    T value;
    __device__ bool operator()(T now) const {
        switch (cmp) {
            case SYMRAIL_CMP_EQ: return now == value;
            case SYMRAIL_CMP_NE: return now != value;
            case SYMRAIL_CMP_GT: return now > value;
            case SYMRAIL_CMP_LE: return now <= value;
            case SYMRAIL_CMP_LT: return now < value;
            default: return now >= value;
        }
    }
};

/* Bytes. */
#define SYMRAIL_RMA_MEM(BEFORE, AFTER, SCOPE)                                                                                 \
    SYMRAIL_DEVICE void BEFORE##putmem##AFTER(void* dest, const void* source, size_t bytes, int pe) {                         \
        symrail_put_bytes<SCOPE>(dest, source, bytes, pe, true);                                                     \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##putmem_nbi##AFTER(void* dest, const void* source, size_t bytes, int pe) {                     \
        symrail_put_bytes<SCOPE>(dest, source, bytes, pe, false);                                                    \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##getmem##AFTER(void* dest, const void* source, size_t bytes, int pe) {                         \
        symrail_get_bytes<SCOPE>(dest, source, bytes, pe, true);                                                     \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##getmem_nbi##AFTER(void* dest, const void* source, size_t bytes, int pe) {                     \
        symrail_get_bytes<SCOPE>(dest, source, bytes, pe, false);                                                    \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##putmem_signal##AFTER(void* dest, const void* source, size_t bytes, symrail_u64* signal,       \
                                            symrail_u64 value, int op, int pe) {                                     \
        symrail_put_signal_bytes<SCOPE>(dest, source, bytes, signal, value, op, pe, true);                           \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##putmem_signal_nbi##AFTER(void* dest, const void* source, size_t bytes, symrail_u64* signal,   \
                                                symrail_u64 value, int op, int pe) {                                 \
        symrail_put_signal_bytes<SCOPE>(dest, source, bytes, signal, value, op, pe, false);                          \
    }

/* Elements: the same for n values of a type. */
#define SYMRAIL_TYPED(P, N, TYPE)                                                                                       \
    SYMRAIL_TYPED_GROUP(P##_##N##_, , TYPE, symrail_thread_scope)                                                \
    SYMRAIL_TYPED_GROUP(P##x_##N##_, _warp, TYPE, symrail_warp_scope)                                            \
    SYMRAIL_TYPED_GROUP(P##x_##N##_, _block, TYPE, symrail_block_scope)                                          \
    SYMRAIL_DEVICE void P##_##N##_p(TYPE* dest, const TYPE value, int pe) {                                      \
        symrail_put_value<TYPE>(dest, value, pe);                                                                    \
    }                                                                                                                \
    SYMRAIL_DEVICE TYPE P##_##N##_g(const TYPE* source, int pe) { return symrail_get_value<TYPE>(source, pe); }

#define SYMRAIL_TYPED_GROUP(BEFORE, AFTER, TYPE, SCOPE)                                                              \
    SYMRAIL_DEVICE void BEFORE##put##AFTER(TYPE* dest, const TYPE* source, size_t n, int pe) {                       \
        symrail_put_bytes<SCOPE>(dest, source, n * sizeof(TYPE), pe, true);                                          \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##put_nbi##AFTER(TYPE* dest, const TYPE* source, size_t n, int pe) {                   \
        symrail_put_bytes<SCOPE>(dest, source, n * sizeof(TYPE), pe, false);                                         \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##get##AFTER(TYPE* dest, const TYPE* source, size_t n, int pe) {                       \
        symrail_get_bytes<SCOPE>(dest, source, n * sizeof(TYPE), pe, true);                                          \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##get_nbi##AFTER(TYPE* dest, const TYPE* source, size_t n, int pe) {                   \
        symrail_get_bytes<SCOPE>(dest, source, n * sizeof(TYPE), pe, false);                                         \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##put_signal##AFTER(TYPE* dest, const TYPE* source, size_t n, symrail_u64* signal,     \
                                                  symrail_u64 value, int op, int pe) {                               \
        symrail_put_signal_bytes<SCOPE>(dest, source, n * sizeof(TYPE), signal, value, op, pe, true);                \
    }                                                                                                                \
    SYMRAIL_DEVICE void BEFORE##put_signal_nbi##AFTER(TYPE* dest, const TYPE* source, size_t n, symrail_u64* signal, \
                                                      symrail_u64 value, int op, int pe) {                           \
        symrail_put_signal_bytes<SCOPE>(dest, source, n * sizeof(TYPE), signal, value, op, pe, false);               \
    }

#define SYMRAIL_FOR_RMA_TYPES(DO, P)                                                                                    \
    DO(P, float, float) DO(P, double, double) DO(P, char, char) DO(P, schar, signed char) DO(P, short, short) DO(P, int, int)          \
    DO(P, long, long) DO(P, longlong, long long) DO(P, uchar, unsigned char) DO(P, ushort, unsigned short)                       \
    DO(P, uint, unsigned int) DO(P, ulong, unsigned long) DO(P, ulonglong, unsigned long long) DO(P, int8, signed char)          \
    DO(P, int16, short) DO(P, int32, int) DO(P, int64, long) DO(P, uint8, unsigned char) DO(P, uint16, unsigned short)              \
    DO(P, uint32, unsigned int) DO(P, uint64, unsigned long) DO(P, size, size_t) DO(P, ptrdiff, long)

/* Atomics. */
#define SYMRAIL_AMO_STANDARD(P, N, TYPE)                                                                                \
    SYMRAIL_AMO_EXTENDED(P, N, TYPE)                                                                                    \
    SYMRAIL_DEVICE TYPE P##_##N##_atomic_compare_swap(TYPE* dest, TYPE cond, TYPE value, int pe) {               \
        return symrail_amo<SYMRAIL_AMO_COMPARE_SWAP, TYPE>(dest, value, cond, pe, true);                             \
    }                                                                                                                \
    SYMRAIL_DEVICE TYPE P##_##N##_atomic_fetch_inc(TYPE* dest, int pe) {                                         \
        return symrail_amo<SYMRAIL_AMO_ADD, TYPE>(dest, 1, 0, pe, true);                                             \
    }                                                                                                                \
    SYMRAIL_DEVICE void P##_##N##_atomic_inc(TYPE* dest, int pe) {                                               \
        symrail_amo<SYMRAIL_AMO_ADD, TYPE>(dest, 1, 0, pe, false);                                                   \
    }                                                                                                                \
    SYMRAIL_AMO_PAIR(P, N, TYPE, add, SYMRAIL_AMO_ADD)
#define SYMRAIL_AMO_EXTENDED(P, N, TYPE)                                                                                \
    SYMRAIL_DEVICE TYPE P##_##N##_atomic_fetch(const TYPE* source, int pe) {                                     \
        return symrail_amo<SYMRAIL_AMO_FETCH, TYPE>((TYPE*)source, 0, 0, pe, true);                                  \
    }                                                                                                                \
    SYMRAIL_DEVICE void P##_##N##_atomic_set(TYPE* dest, TYPE value, int pe) {                                   \
        symrail_amo<SYMRAIL_AMO_SET, TYPE>(dest, value, 0, pe, false);                                               \
    }                                                                                                                \
    SYMRAIL_DEVICE TYPE P##_##N##_atomic_swap(TYPE* dest, TYPE value, int pe) {                                  \
        return symrail_amo<SYMRAIL_AMO_SET, TYPE>(dest, value, 0, pe, true);                                         \
    }
#define SYMRAIL_AMO_PAIR(P, N, TYPE, NAME, OP)                                                                          \
    SYMRAIL_DEVICE void P##_##N##_atomic_##NAME(TYPE* dest, TYPE value, int pe) {                                \
        symrail_amo<OP, TYPE>(dest, value, 0, pe, false);                                                            \
    }                                                                                                                \
    SYMRAIL_DEVICE TYPE P##_##N##_atomic_fetch_##NAME(TYPE* dest, TYPE value, int pe) {                          \
        return symrail_amo<OP, TYPE>(dest, value, 0, pe, true);                                                      \
    }
#define SYMRAIL_AMO_BITWISE(P, N, TYPE)                                                                                 \
    SYMRAIL_AMO_PAIR(P, N, TYPE, and, SYMRAIL_AMO_AND)                                                                  \
    SYMRAIL_AMO_PAIR(P, N, TYPE, or, SYMRAIL_AMO_OR)                                                                    \
    SYMRAIL_AMO_PAIR(P, N, TYPE, xor, SYMRAIL_AMO_XOR)
#define SYMRAIL_FOR_AMO_TYPES(DO, P)                                                                                    \
    DO(P, int, int) DO(P, long, long) DO(P, longlong, long long) DO(P, uint, unsigned int) DO(P, ulong, unsigned long)              \
    DO(P, ulonglong, unsigned long long) DO(P, int32, int) DO(P, int64, long) DO(P, uint32, unsigned int)                        \
    DO(P, uint64, unsigned long) DO(P, size, size_t) DO(P, ptrdiff, long)
#define SYMRAIL_FOR_BITWISE_TYPES(DO, P)                                                                                \
    DO(P, int, int) DO(P, long, long) DO(P, longlong, long long) DO(P, uint, unsigned int) DO(P, ulong, unsigned long)              \
    DO(P, ulonglong, unsigned long long) DO(P, int32, int) DO(P, int64, long) DO(P, uint32, unsigned int)                        \
    DO(P, uint64, unsigned long) DO(P, size, size_t)

/* Waits for words of this PE. */
#define SYMRAIL_WAIT(P, N, TYPE)                                                                                        \
    SYMRAIL_DEVICE void P##_##N##_wait_until(TYPE* word, int cmp, TYPE value) {                                  \
        symrail_compare<TYPE> holds = {cmp, value};                                                                  \
        symrail_wait_for(word, holds);                                                                               \
    }                                                                                                                \
    SYMRAIL_DEVICE int P##_##N##_test(TYPE* word, int cmp, TYPE value) {                                             \
        symrail_compare<TYPE> holds = {cmp, value};                                                                  \
        return holds(symrail_ld_acquire(word)) ? 1 : 0;                                                              \
    }                                                                                                                \
    SYMRAIL_DEVICE void P##_##N##_wait_until_all(TYPE* words, size_t n, const int* status, int cmp, TYPE value) {\
        symrail_compare<TYPE> holds = {cmp, value};                                                                  \
        for (size_t i = 0; i < n; i++)                                                                               \
            if (status == nullptr || status[i] == 0) symrail_wait_for(words + i, holds);                             \
    }                                                                                                                \
    SYMRAIL_DEVICE size_t P##_##N##_wait_until_any(TYPE* words, size_t n, const int* status, int cmp,            \
                                                       TYPE value) {                                                 \
        symrail_compare<TYPE> holds = {cmp, value};                                                                  \
        return symrail_wait_for_any(words, n, status, holds);                                                        \
    }

/* Signals. */
#define SYMRAIL_SIGNALS(P) \
    SYMRAIL_DEVICE void P##x_signal_op(symrail_u64* signal, symrail_u64 value, int op, int pe) { \
        symrail_signal(signal, value, op, pe); \
    } \
    SYMRAIL_DEVICE symrail_u64 P##_signal_fetch(const symrail_u64* signal) { \
        return symrail_ld_acquire(signal); \
    } \
    SYMRAIL_DEVICE symrail_u64 P##_signal_wait_until(symrail_u64* signal, int cmp, symrail_u64 value) { \
        symrail_compare<symrail_u64> holds = {cmp, value}; \
        return symrail_wait_for(signal, holds); \
    }

/* Order. */
#define SYMRAIL_ORDER_GROUP(P, AFTER, SCOPE)                                                                  \
    SYMRAIL_DEVICE void P##barrier_all##AFTER() { symrail_barrier_of<SCOPE>(SYMRAIL_TEAM_WORLD, true); }      \
    SYMRAIL_DEVICE void P##sync_all##AFTER() { symrail_barrier_of<SCOPE>(SYMRAIL_TEAM_WORLD, false); }        \
    SYMRAIL_DEVICE void P##barrier##AFTER(symrail_team_t team) { symrail_barrier_of<SCOPE>(team, true); }     \
    SYMRAIL_DEVICE void P##team_sync##AFTER(symrail_team_t team) { symrail_barrier_of<SCOPE>(team, false); }
#define SYMRAIL_ORDER(P)                                   \
    SYMRAIL_ORDER_GROUP(P##_, , symrail_thread_scope)      \
    SYMRAIL_ORDER_GROUP(P##x_, _warp, symrail_warp_scope)  \
    SYMRAIL_ORDER_GROUP(P##x_, _block, symrail_block_scope)

/* Collectives of a team, of bytes and of elements. */
#define SYMRAIL_TEAM_COPIES(BEFORE, WHAT, AFTER, TYPE, SIZE, SCOPE)                                                  \
    SYMRAIL_DEVICE int BEFORE##broadcast##WHAT##AFTER(symrail_team_t team, TYPE* dest, const TYPE* source, size_t n, \
                                                      int root) {                                                    \
        return symrail_broadcast_bytes<SCOPE>(team, dest, source, n * SIZE, root);                                   \
    }                                                                                                                \
    SYMRAIL_DEVICE int BEFORE##fcollect##WHAT##AFTER(symrail_team_t team, TYPE* dest, const TYPE* source, size_t n) { \
        return symrail_fcollect_bytes<SCOPE>(team, dest, source, n * SIZE);                                          \
    }                                                                                                                \
    SYMRAIL_DEVICE int BEFORE##alltoall##WHAT##AFTER(symrail_team_t team, TYPE* dest, const TYPE* source, size_t n) { \
        return symrail_alltoall_bytes<SCOPE>(team, dest, source, n * SIZE);                                          \
    }
#define SYMRAIL_TEAM_TYPED(P, N, TYPE)                                                        \
    SYMRAIL_TEAM_COPIES(P##_##N##_, , , TYPE, sizeof(TYPE), symrail_thread_scope)             \
    SYMRAIL_TEAM_COPIES(P##x_##N##_, , _warp, TYPE, sizeof(TYPE), symrail_warp_scope)         \
    SYMRAIL_TEAM_COPIES(P##x_##N##_, , _block, TYPE, sizeof(TYPE), symrail_block_scope)
#define SYMRAIL_TEAM_MEM(P)                                                 \
    SYMRAIL_TEAM_COPIES(P##_, mem, , void, 1, symrail_thread_scope)         \
    SYMRAIL_TEAM_COPIES(P##x_, mem, _warp, void, 1, symrail_warp_scope)     \
    SYMRAIL_TEAM_COPIES(P##x_, mem, _block, void, 1, symrail_block_scope)

/* All of them, under one prefix. */
#define SYMRAIL_DEFINE_API(P)                                  \
    SYMRAIL_RMA_MEM(P##_, , symrail_thread_scope)              \
    SYMRAIL_RMA_MEM(P##x_, _warp, symrail_warp_scope)          \
    SYMRAIL_RMA_MEM(P##x_, _block, symrail_block_scope)        \
    SYMRAIL_FOR_RMA_TYPES(SYMRAIL_TYPED, P)                    \
    SYMRAIL_FOR_AMO_TYPES(SYMRAIL_AMO_STANDARD, P)             \
    SYMRAIL_FOR_BITWISE_TYPES(SYMRAIL_AMO_BITWISE, P)          \
    SYMRAIL_AMO_EXTENDED(P, float, float)                      \
    SYMRAIL_AMO_EXTENDED(P, double, double)                    \
    SYMRAIL_AMO_PAIR(P, float, float, add, SYMRAIL_AMO_ADD)    \
    SYMRAIL_AMO_PAIR(P, double, double, add, SYMRAIL_AMO_ADD)  \
    SYMRAIL_SIGNALS(P)                                         \
    SYMRAIL_FOR_AMO_TYPES(SYMRAIL_WAIT, P)                     \
    SYMRAIL_ORDER(P)                                           \
    SYMRAIL_TEAM_MEM(P)                                        \
    SYMRAIL_FOR_RMA_TYPES(SYMRAIL_TEAM_TYPED, P)

SYMRAIL_DEFINE_API(symrail)

#endif
