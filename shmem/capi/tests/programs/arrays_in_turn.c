/* Two pSync arrays and two destinations alternate, without a barrier between. No PE begins with an array before all
 * PEs have left its previous use, and received data stays until its reader calls with the other array. PEs arrive
 * late, and read late, each at its own times. */

#define _GNU_SOURCE
#include "check.h"
#include <unistd.h>

enum { WORDS = 4, MOST_PES = 8, BROADCASTS = 40, CALLS = 300, LATE_US = 300 };

static long arrays[2][SHMEM_REDUCE_SYNC_SIZE + SHMEM_COLLECT_SYNC_SIZE + SHMEM_ALLTOALL_SYNC_SIZE + SHMEM_BCAST_SYNC_SIZE];
static long work[2][SHMEM_REDUCE_MIN_WRKDATA_SIZE];
static long dests[2][WORDS * MOST_PES], sources[2][WORDS * MOST_PES];
static unsigned chance, own_chance;
static int me, n;

static unsigned next(unsigned *state, unsigned below)
{
    *state = *state * 1103515245u + 12345u;
    return (*state >> 16) % below;
}

/* Delays some of the PEs some of the time. */
static void be_late(void)
{
    if (next(&own_chance, 3) == 0) usleep(next(&own_chance, LATE_US));
}

/* The word that PE `from` sends to `to` in a call. */
static long word(long call, int from, int to, int i) { return call * 1000000 + from * 10000 + to * 100 + i; }

static int all_from(const long *got, long call, int from, int to)
{
    for (int i = 0; i < WORDS; i++)
        if (got[i] != word(call, from, to, i)) return 0;
    return 1;
}

enum { BROADCAST, FCOLLECT, COLLECT, ALLTOALL, SUM, KINDS };

static int came(int kind, int root, long call, const long *dest)
{
    if (kind == BROADCAST) return me == root || all_from(dest, call, root, 0);
    for (int from = 0; from < n; from++) {
        if (kind == SUM) {
            for (int i = 0; i < WORDS; i++) {
                long sum = 0;
                for (int pe = 0; pe < n; pe++) sum += word(call, pe, 0, i);
                if (dest[i] != sum) return 0;
            }
        } else if (!all_from(dest + from * WORDS, call, from, kind == ALLTOALL ? me : 0)) {
            return 0;
        }
    }
    return 1;
}

static void one(int kind, int root, long call, int turn)
{
    long *const dest = dests[turn], *const source = sources[turn], *const psync = arrays[turn];
    for (int to = 0; to < n; to++)
        for (int i = 0; i < WORDS; i++) source[to * WORDS + i] = word(call, me, to, i);
    be_late();
    switch (kind) {
    case BROADCAST: shmem_broadcast64(dest, source, WORDS, root, 0, 0, n, psync); break;
    case FCOLLECT: shmem_fcollect64(dest, source, WORDS, 0, 0, n, psync); break;
    case COLLECT: shmem_collect64(dest, source, WORDS, 0, 0, n, psync); break;
    case ALLTOALL: shmem_alltoall64(dest, source, WORDS, 0, 0, n, psync); break;
    default: shmem_long_sum_to_all(dest, source, WORDS, 0, 0, n, work[turn], psync); break;
    }
    CHECK(came(kind, root, call, dest));
    be_late();
    CHECK(came(kind, root, call, dest));
}

int main(int argc, char **argv)
{
    /* Threads are allowed to call, but do not. */
    int provided;
    shmem_init_thread(argc > 1 && argv[1][0] == 't' ? SHMEM_THREAD_MULTIPLE : SHMEM_THREAD_SINGLE, &provided);
    me = shmem_my_pe(), n = shmem_n_pes();
    CHECK(n <= MOST_PES);
    own_chance = (unsigned)me * 7919 + 1;
    chance = 42;
    long call = 0;
    for (int i = 0; i < BROADCASTS; i++, call++) one(BROADCAST, 0, call, (int)(call % 2));
    shmem_barrier_all();
    for (int i = 0; i < CALLS; i++, call++) {
        /* Broadcasts are more frequent than other calls, and keep the same root for a while. */
        const int kind = next(&chance, 2) ? BROADCAST : (int)next(&chance, KINDS), root = (int)(call / 20 % n);
        one(kind, root, call, (int)(call % 2));
        switch (next(&chance, 16)) {
        case 0: shmem_barrier_all(); break;
        case 1: {
            static long barrier[SHMEM_BARRIER_SYNC_SIZE];
            shmem_barrier(0, 0, n, barrier);
            break;
        }
        }
    }
    shmem_barrier_all();
    if (me == 0) printf("%ld calls by two arrays in turn\n", call);
    shmem_finalize();
    return 0;
}
