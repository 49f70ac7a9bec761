/* C11's generic routines choose by type, with and without a context. Each PE works on the next one's memory. */

#include "check.h"
#include <stdint.h>

#define RMA_TYPES(X)                                                                                         \
    X(float) X(double) X(long double) X(char) X(signed char) X(short) X(int) X(long) X(long long)            \
    X(unsigned char) X(unsigned short) X(unsigned int) X(unsigned long) X(unsigned long long)                \
    X(int8_t) X(int16_t) X(int32_t) X(int64_t) X(uint8_t) X(uint16_t) X(uint32_t) X(uint64_t)                \
    X(size_t) X(ptrdiff_t)
#define AMO_TYPES(X)                                                                                         \
    X(int) X(long) X(long long) X(unsigned int) X(unsigned long) X(unsigned long long) X(int32_t) X(int64_t) \
    X(uint32_t) X(uint64_t) X(size_t) X(ptrdiff_t)
#define BITWISE_TYPES(X) X(unsigned int) X(unsigned long) X(unsigned long long) X(int32_t) X(uint64_t)

static shmem_ctx_t ctx;
static int me, next, before;

#define RMA(type)                                                                                            \
    {                                                                                                        \
        static type word, array[8];                                                                          \
        type own[8], back[8] = {0};                                                                          \
        for (int i = 0; i < 8; i++) own[i] = (type)(me + i + 1);                                             \
        shmem_p(&word, (type)(me + 1), next);                                                                \
        shmem_put(array, own, 8, next);                                                                      \
        shmem_barrier_all();                                                                                 \
        CHECK(word == (type)(before + 1) && array[7] == (type)(before + 8));                                 \
        CHECK(shmem_g(&word, next) == (type)(me + 1));                                                       \
        shmem_get(back, array, 8, next);                                                                     \
        CHECK(back[7] == (type)(me + 8));                                                                    \
        shmem_barrier_all();                                                                                 \
        shmem_p(ctx, &word, (type)(me + 2), next);                                                           \
        shmem_iput(ctx, array, own, 2, 1, 4, next);                                                          \
        shmem_ctx_quiet(ctx);                                                                                \
        shmem_barrier_all();                                                                                 \
        CHECK(word == (type)(before + 2) && array[6] == (type)(before + 4) && array[5] == (type)(before + 6)); \
        CHECK(shmem_g(ctx, &word, next) == (type)(me + 2));                                                  \
        shmem_iget(ctx, back, array, 1, 2, 4, next);                                                         \
        CHECK(back[3] == (type)(me + 4));                                                                    \
        shmem_barrier_all();                                                                                 \
        shmem_put_nbi(array, own, 8, next);                                                                  \
        shmem_put_nbi(ctx, array, own, 8, next);                                                             \
        shmem_quiet();                                                                                       \
        shmem_ctx_quiet(ctx);                                                                                \
        shmem_get_nbi(back, array, 8, next);                                                                 \
        shmem_quiet();                                                                                       \
        CHECK(back[7] == (type)(me + 8));                                                                    \
        static uint64_t signal;                                                                              \
        shmem_put_signal(array, own, 8, &signal, 1, SHMEM_SIGNAL_ADD, next);                                 \
        shmem_put_signal_nbi(ctx, array, own, 8, &signal, 1, SHMEM_SIGNAL_ADD, next);                        \
        CHECK(shmem_signal_wait_until(&signal, SHMEM_CMP_EQ, 2) == 2);                                       \
        CHECK(array[3] == (type)(before + 4));                                                               \
        shmem_quiet();                                                                                       \
        shmem_ctx_quiet(ctx);                                                                                \
        shmem_barrier_all();                                                                                 \
    }

#define AMO(type)                                                                                            \
    {                                                                                                        \
        static type word, fetched;                                                                           \
        shmem_atomic_set(&word, (type)10, next);                                                             \
        CHECK(shmem_atomic_fetch_add(&word, (type)5, next) == 10);                                           \
        CHECK(shmem_atomic_fetch_inc(ctx, &word, next) == 15);                                               \
        shmem_atomic_add(&word, (type)4, next);                                                              \
        shmem_atomic_inc(ctx, &word, next);                                                                  \
        shmem_quiet();                                                                                       \
        shmem_ctx_quiet(ctx);                                                                                \
        CHECK(shmem_atomic_fetch(&word, next) == 21);                                                        \
        CHECK(shmem_atomic_compare_swap(&word, (type)20, (type)1, next) == 21);                              \
        CHECK(shmem_atomic_compare_swap(ctx, &word, (type)21, (type)2, next) == 21);                         \
        CHECK(shmem_atomic_swap(&word, (type)3, next) == 2);                                                 \
        shmem_atomic_fetch_add_nbi(&fetched, &word, (type)6, next);                                          \
        shmem_quiet();                                                                                       \
        CHECK(fetched == 3);                                                                                 \
        shmem_barrier_all();                                                                                 \
        CHECK(word == 9);                                                                                    \
        shmem_barrier_all();                                                                                 \
        shmem_atomic_set(&word, (type)11, next);                                                             \
        shmem_wait_until(&word, SHMEM_CMP_EQ, (type)11);                                                     \
        CHECK(shmem_test(&word, SHMEM_CMP_GE, (type)11));                                                    \
        CHECK(shmem_wait_until_any(&word, 1, NULL, SHMEM_CMP_NE, (type)0) == 0);                             \
        shmem_barrier_all();                                                                                 \
    }

#define BITWISE(type)                                                                                        \
    {                                                                                                        \
        static type word;                                                                                    \
        shmem_atomic_set(&word, (type)12, next);                                                             \
        CHECK(shmem_atomic_fetch_or(&word, (type)3, next) == 12);                                            \
        CHECK(shmem_atomic_fetch_and(ctx, &word, (type)6, next) == 15);                                      \
        CHECK(shmem_atomic_fetch_xor(&word, (type)2, next) == 6);                                            \
        shmem_atomic_or(&word, (type)8, next);                                                               \
        /* The other context's is not ordered with these: any order gives the same value. */                 \
        shmem_atomic_and(&word, (type)13, next);                                                             \
        shmem_atomic_xor(ctx, &word, (type)1, next);                                                         \
        shmem_quiet();                                                                                       \
        shmem_ctx_quiet(ctx);                                                                                \
        CHECK(shmem_atomic_fetch(&word, next) == 13);                                                        \
        shmem_barrier_all();                                                                                 \
    }

int main(void)
{
    shmem_init();
    me = shmem_my_pe();
    next = (me + 1) % shmem_n_pes();
    before = (me + shmem_n_pes() - 1) % shmem_n_pes();
    CHECK(shmem_ctx_create(0, &ctx) == 0);
    RMA_TYPES(RMA)
    AMO_TYPES(AMO)
    BITWISE_TYPES(BITWISE)
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return 0;
}
