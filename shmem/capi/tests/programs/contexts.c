/* A quiet of one context does not wait for the operations of another. PE 2 stops itself, so that nothing sent to it
 * completes, while PE 0 continues with PE 1. */

#include "stopped.h"
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

enum { WORDS = 32 << 10 }; /* large enough for all rails */

static long pids[3];
static long stop, counter = 5, small[100];
static long large[WORDS], source[WORDS], fetched_back[WORDS];

static void go_on_with(shmem_ctx_t ctx, long round)
{
    for (int i = 0; i < 100; i++) shmem_ctx_long_p(ctx, &small[i], round + i, 1);
    shmem_ctx_long_put_nbi(ctx, large, source, WORDS, 1);
    shmem_ctx_quiet(ctx);
    CHECK(shmem_ctx_long_g(ctx, &small[99], 1) == round + 99);
    CHECK(shmem_ctx_long_g(ctx, &large[WORDS - 1], 1) == WORDS);
}

static void start(void)
{
    shmem_ctx_t moving, stuck;
    CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &moving) == 0);
    CHECK(shmem_ctx_create(0, &stuck) == 0);
    for (int i = 0; i < WORDS; i++) source[i] = i + 1;
    shmem_ctx_long_p(moving, &small[0], 1, 2);
    CHECK(shmem_ctx_long_g(stuck, &counter, 2) == 5);
    /* One put over each rail: a rail that must first connect to PE 2 holds back all later puts. */
    for (int i = 0; i < 4; i++) shmem_ctx_long_put_nbi(stuck, large, source, WORDS, 2);
    shmem_ctx_quiet(stuck);
    shmem_ctx_quiet(moving);

    shmem_long_p(&stop, 1, 2);
    shmem_quiet();
    while (!is_stopped(pids[2])) {
    }
    long got = -1, fetched = -1;
    shmem_ctx_long_get_nbi(stuck, &got, &counter, 1, 2);
    shmem_ctx_long_get_nbi(stuck, fetched_back, large, WORDS, 2);
    shmem_ctx_long_atomic_fetch_inc_nbi(stuck, &fetched, &counter, 2);
    for (long round = 0; round < 10; round++) {
        go_on_with(moving, round);
        go_on_with(SHMEM_CTX_DEFAULT, round);
    }
    CHECK(is_stopped(pids[2]) && fetched == -1);
    CHECK(kill((pid_t)pids[2], SIGCONT) == 0);
    shmem_ctx_quiet(stuck);
    CHECK((got == 5 || got == 6) && fetched == 5);
    CHECK(fetched_back[WORDS - 1] == WORDS);
    shmem_ctx_destroy(moving);

    /* The next context reuses the first one's endpoint, and the first one's operations do not block it. */
    for (int i = 0; i < 50; i++) {
        CHECK(shmem_ctx_create(SHMEM_CTX_SERIALIZED, &moving) == 0);
        CHECK(shmem_ctx_long_atomic_fetch_inc(moving, &counter, 1 + i % 2) == (i % 2 ? 6 : 5) + i / 2);
        shmem_ctx_destroy(moving);
    }
    shmem_ctx_destroy(stuck);
}

int main(void)
{
    shmem_init();
    CHECK(shmem_n_pes() == 3);
    const int me = shmem_my_pe();
    shmem_long_p(&pids[me], (long)getpid(), 0);
    shmem_barrier_all();
    if (me == 0) start();
    if (me == 2) {
        shmem_long_wait_until(&stop, SHMEM_CMP_EQ, 1);
        CHECK(raise(SIGSTOP) == 0);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
