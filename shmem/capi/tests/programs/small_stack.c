/* A thread with a small stack can call all routines but shmem_init. The documentation requires 64 KiB; this program
 * uses half of that. */

#define _GNU_SOURCE
#include "check.h"
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STACK = 32 << 10, LARGE = 256 << 10 };

static long word, counter, arrays[2][SHMEM_REDUCE_SYNC_SIZE], work[SHMEM_REDUCE_MIN_WRKDATA_SIZE];
static long lock;
static uint64_t flag;

static void collectives(shmem_team_t team, char *dest, char *source)
{
    const int n = shmem_n_pes();
    /* Sizes for which different algorithms are used. */
    static const size_t sizes[] = {8, 1 << 10, 16 << 10, LARGE};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t bytes = sizes[i], part = bytes / 8 / (size_t)n * 8;
        CHECK(shmem_long_sum_reduce(team, (long *)dest, (long *)source, bytes / 8) == 0);
        CHECK(shmem_broadcastmem(team, dest, source, bytes, 0) == 0);
        CHECK(shmem_fcollectmem(team, dest, source, part) == 0);
        CHECK(shmem_collectmem(team, dest, source, part) == 0);
        CHECK(shmem_alltoallmem(team, dest, source, part) == 0);
        shmem_sync(0, 0, n, arrays[i % 2]);
        shmem_long_sum_to_all((long *)dest, (long *)source, (int)(bytes / 8), 0, 0, n, work, arrays[i % 2]);
        CHECK(shmem_team_sync(team) == 0);
    }
}

static void *all(void *unused)
{
    const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;
    shmem_ctx_t ctx;
    CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &ctx) == 0);
    shmem_ctx_long_p(ctx, &word, 7, next);
    shmem_ctx_quiet(ctx);
    CHECK(shmem_ctx_long_g(ctx, &word, next) == 7);
    (void)shmem_ctx_long_atomic_fetch_inc(ctx, &counter, next);
    char *const source = shmem_calloc(1, LARGE), *const dest = shmem_malloc(LARGE);
    CHECK(source && dest);
    shmem_ctx_putmem_nbi(ctx, dest, source, LARGE, next);
    shmem_ctx_quiet(ctx);
    shmem_ctx_getmem(ctx, source, dest, LARGE, next);
    shmem_ctx_destroy(ctx);
    shmem_putmem_signal(dest, source, 100, &flag, 1, SHMEM_SIGNAL_ADD, next);
    shmem_signal_wait_until(&flag, SHMEM_CMP_GE, 1);
    shmem_set_lock(&lock);
    shmem_clear_lock(&lock);
    shmem_team_t team;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &team) == 0);
    collectives(team, dest, source);
    shmem_team_destroy(team);
    /* More than was allocated from the heap so far. */
    char *const more = shmem_malloc(100 << 20);
    CHECK(more);
    shmem_free(more);
    shmem_free(dest);
    shmem_free(source);
    shmem_barrier_all();
    return unused;
}

int main(int argc, char **argv)
{
    int provided;
    const long stack = argc > 1 ? atol(argv[1]) : STACK;
    CHECK(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided) == 0);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, (size_t)stack) == 0);
    CHECK(pthread_create(&thread, &attributes, all, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    shmem_finalize();
    return 0;
}
