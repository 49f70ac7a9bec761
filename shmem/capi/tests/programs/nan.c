/* The minimum and the maximum of elements of which one is a NaN are NaN, whichever PE has it, in all algorithms. */

#include "check.h"
#include <math.h>

enum { MOST = 600000 };

static long sync_words[SHMEM_REDUCE_SYNC_SIZE];
static int me, n;

/* Whether PE `pe` has a NaN at `i`: each PE has some, and some elements are numbers on all. */
static int is_nan(int pe, size_t i) { return (int)(i % (size_t)(n + 1)) == pe; }

#define OF_TYPE(T, NAME)                                                                                     \
    static void of_##NAME(size_t count, int of_set)                                                          \
    {                                                                                                        \
        T *const source = shmem_malloc(count * sizeof(T)), *const dest = shmem_malloc(count * sizeof(T));    \
        CHECK(source && dest);                                                                               \
        for (int max = 0; max < 2; max++) {                                                                  \
            for (size_t i = 0; i < count; i++) source[i] = is_nan(me, i) ? (T)NAN : (T)(me + 1);             \
            shmem_barrier_all();                                                                             \
            if (of_set) {                                                                                    \
                if (max) shmem_##NAME##_max_to_all(dest, source, (int)count, 0, 0, n, dest, sync_words);     \
                else shmem_##NAME##_min_to_all(dest, source, (int)count, 0, 0, n, dest, sync_words);         \
            } else if (max) {                                                                                \
                shmem_##NAME##_max_reduce(SHMEM_TEAM_WORLD, dest, source, count);                            \
            } else {                                                                                         \
                shmem_##NAME##_min_reduce(SHMEM_TEAM_WORLD, dest, source, count);                            \
            }                                                                                                \
            for (size_t i = 0; i < count; i++) {                                                             \
                const int none = (int)(i % (size_t)(n + 1)) == n;                                            \
                CHECK(none ? dest[i] == (T)(max ? n : 1) : isnan(dest[i]));                                  \
            }                                                                                                \
            shmem_barrier_all();                                                                             \
        }                                                                                                    \
        shmem_free(dest);                                                                                    \
        shmem_free(source);                                                                                  \
    }
OF_TYPE(float, float)
OF_TYPE(double, double)
OF_TYPE(long double, longdouble)

int main(void)
{
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    static const size_t counts[] = {1, 7, 5000, 70000, MOST};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        of_float(counts[i], 0);
        of_float(counts[i], 1);
        if (counts[i] == MOST) continue;
        of_double(counts[i], 0);
        of_longdouble(counts[i], 0);
        of_longdouble(counts[i], 1);
    }
    shmem_finalize();
    return 0;
}
