/* PE 0 puts words back to back and then computes without a call. The last ones may wait for more puts to share a
 * doorbell with, but not until the proxy thread polls, which it does every 20 ms. */
#define _GNU_SOURCE
#include "check.h"
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 31, BATCHES = 20, WORDS = 16 };
static const double SOON_US = 3000;

static long words[WORDS], seen, ends;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    static double late[ROUNDS];
    shmem_init();
    const int me = shmem_my_pe();
    long round = 0;
    for (int batch = 0; batch < BATCHES && !ends; batch++) {
        for (int i = 0; i < ROUNDS; i++) {
            round++;
            if (me == 0) {
                /* At any moment of the proxy thread's sleep. */
                usleep(5000 + round * 7 % 20 * 1000);
                for (int w = 0; w < WORDS; w++) shmem_long_p(&words[w], round, 1);
                for (const double until = now_us() + 25e3; now_us() < until;) {}
                shmem_long_wait_until(&seen, SHMEM_CMP_EQ, round);
            } else {
                shmem_long_wait_until(&words[0], SHMEM_CMP_EQ, round);
                const double first = now_us();
                shmem_long_wait_until(&words[WORDS - 1], SHMEM_CMP_EQ, round);
                late[i] = now_us() - first;
                shmem_long_p(&seen, round, 0);
            }
        }
        if (me == 1) {
            qsort(late, ROUNDS, sizeof *late, by_size);
            if (late[ROUNDS / 2] < SOON_US) {
                printf("the last put came %.0f us behind the first\n", late[ROUNDS / 2]);
                ends = 1;
            }
            shmem_long_p(&ends, ends, 0);
        }
        shmem_barrier_all();
    }
    CHECK(ends);
    shmem_finalize();
    return 0;
}
