/* Locks by shmem_set_lock and shmem_test_lock exclude all other PEs, also while their holder tests them. */

#include "check.h"

enum { TURNS = 60 };

static long lock, locks[3];
static long turns[3];
static uint64_t queued;

/* A PE that holds the lock learns from a test that it is held, and the PEs that queue behind it get it. */
static void tested_by_its_holder(int me, int n)
{
    if (me == 0) {
        CHECK(shmem_test_lock(&lock) == 0);
        CHECK(shmem_test_lock(&lock) == 1);
    }
    shmem_barrier_all();
    if (me == 0) {
        /* The others are about to queue; tests before, between and after that change nothing. */
        while (shmem_uint64_atomic_fetch(&queued, 0) < (uint64_t)(n - 1)) CHECK(shmem_test_lock(&lock) == 1);
        for (int i = 0; i < 2000; i++) CHECK(shmem_test_lock(&lock) == 1);
        shmem_clear_lock(&lock);
    } else {
        shmem_uint64_atomic_inc(&queued, 0);
        shmem_set_lock(&lock);
        CHECK(shmem_test_lock(&lock) == 1);
        shmem_clear_lock(&lock);
    }
    shmem_barrier_all();
    /* Nobody holds it now, and nobody's entry is left behind. */
    CHECK(lock == 0);
    shmem_barrier_all();
}

/* Each turn reads, changes and writes a number of PE 0 that only the lock protects. */
static void taken_in_both_ways(int me, int n)
{
    for (int i = 0; i < TURNS; i++) {
        const int which = (i + me) % 3;
        if ((i + me) % 2) shmem_set_lock(&locks[which]);
        else while (shmem_test_lock(&locks[which])) {}
        shmem_long_p(&turns[which], shmem_long_g(&turns[which], 0) + 1, 0);
        shmem_clear_lock(&locks[which]);
    }
    shmem_barrier_all();
    if (me == 0) CHECK(turns[0] + turns[1] + turns[2] == (long)TURNS * n);
    for (int i = 0; i < 3; i++) CHECK(locks[i] == 0);
}

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    tested_by_its_holder(me, n);
    taken_in_both_ways(me, n);
    shmem_finalize();
    return 0;
}
