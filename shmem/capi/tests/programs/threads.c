/* Threads with private contexts put, get and count concurrently. Then each splits its own team and uses its own
 * array, while the other threads do the same. */

#include "check.h"
#include <pthread.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 200, WORDS = 100 };

static long slots[THREADS][WORDS];
static long counts[THREADS];
static long total;

static void *work(void *argument)
{
    const long thread = (long)argument;
    const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;
    shmem_ctx_t ctx;
    CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &ctx) == 0);
    for (long round = 0; round < ROUNDS; round++) {
        long own[WORDS], back[WORDS];
        for (int i = 0; i < WORDS; i++) own[i] = (thread << 40) + (round << 20) + (long)me * 1000 + i;
        shmem_ctx_long_put_nbi(ctx, slots[thread], own, WORDS, next);
        shmem_ctx_quiet(ctx);
        memset(back, 0, sizeof back);
        shmem_ctx_long_get_nbi(ctx, back, slots[thread], WORDS, next);
        shmem_ctx_quiet(ctx);
        CHECK(memcmp(own, back, sizeof own) == 0);
        /* This thread alone counts there. */
        CHECK(shmem_ctx_long_atomic_fetch_inc(ctx, &counts[thread], next) == round);
        shmem_ctx_long_atomic_inc(ctx, &total, (int)((me + thread) % n));
    }
    shmem_ctx_quiet(ctx);
    shmem_ctx_destroy(ctx);
    return NULL;
}

static shmem_team_t parents[THREADS];
static long arrays[THREADS][SHMEM_REDUCE_SYNC_SIZE], scratch[THREADS][SHMEM_REDUCE_MIN_WRKDATA_SIZE];
static long own[THREADS], sums[THREADS];

static void *together(void *argument)
{
    const long thread = (long)argument;
    const long n = shmem_n_pes(), expected = n * (n - 1) / 2 + n * thread;
    own[thread] = shmem_my_pe() + thread;
    for (long round = 0; round < 20; round++) {
        shmem_team_t team;
        CHECK(shmem_team_split_strided(parents[thread], 0, 1, (int)n, NULL, 0, &team) == 0);
        for (int i = 0; i < 10; i++) {
            sums[thread] = 0;
            CHECK(shmem_long_sum_reduce(team, &sums[thread], &own[thread], 1) == 0 && sums[thread] == expected);
        }
        shmem_team_destroy(team);
        sums[thread] = 0;
        shmem_sync(0, 0, (int)n, arrays[thread]);
        shmem_long_sum_to_all(&sums[thread], &own[thread], 1, 0, 0, (int)n, scratch[thread], arrays[thread]);
        CHECK(sums[thread] == expected);
    }
    return NULL;
}

int main(void)
{
    int provided = -1;
    CHECK(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided) == 0 && provided == SHMEM_THREAD_MULTIPLE);
    pthread_t threads[THREADS];
    for (long t = 0; t < THREADS; t++) CHECK(pthread_create(&threads[t], NULL, work, (void *)t) == 0);
    for (long t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t], NULL) == 0);
    shmem_barrier_all();
    for (int t = 0; t < THREADS; t++) CHECK(counts[t] == ROUNDS);
    static long sum;
    CHECK(shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &sum, &total, 1) == 0);
    CHECK(sum == (long)shmem_n_pes() * THREADS * ROUNDS);
    for (int t = 0; t < THREADS; t++)
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, shmem_n_pes(), NULL, 0, &parents[t]) == 0);
    for (long t = 0; t < THREADS; t++) CHECK(pthread_create(&threads[t], NULL, together, (void *)t) == 0);
    for (long t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t], NULL) == 0);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
