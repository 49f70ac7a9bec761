/* Collectives of sizes around the algorithms' limits, back to back without a barrier, on teams of all kinds. */

#include "check.h"
#include <stdint.h>
#include <string.h>

/* Counts of 8-byte elements, around these limits: what a message holds inline (2 KiB); what hosts combine (8 KiB)
 * and what goes by doubling (16 KiB); the scratch of the team of all PEs, and of other teams; and several times
 * that. */
static const size_t COUNTS[] = {1, 2, 7, 255, 256, 257, 505, 512, 1023, 1024, 1025, 1365, 2047, 2048, 2049, 6000,
                                10921, 16383, 16384, 33001, 49152, 49153, 131073};
enum { COUNT_OF_COUNTS = sizeof COUNTS / sizeof COUNTS[0], MOST = 131073, MOST_GATHERED = 49153 };

static long checked;

/* The element `i` of PE `pe` (its index in the team) in the `k`th call. */
static int64_t value(size_t pe, size_t i, size_t k) { return (int64_t)((pe * 7919 + i * 31 + k * 101) % 10007); }
/* Sums of these depend on their order; minima of zeros depend on their signs. */
static double odd(size_t pe, size_t i) { return (i % 3 == 0 ? 1e16 : 1.0) / (double)(pe * 3 + i % 17 + 1); }
static double zero(size_t pe, size_t i) { return (pe + i) % 2 ? -0.0 : 0.0; }

static int64_t *take(size_t elements)
{
    int64_t *block = shmem_malloc(elements * sizeof *block);
    CHECK(block);
    return block;
}

static int64_t *source, *sum, *in_place, *cast, *cast_on, *gathered, *collected, *swapped, *least, *after;
static double *odds, *zeros, *odd_sum, *zero_least, *bits;

/* All PEs have the same bits. */
static void compare(shmem_team_t team, double *mine, size_t count, size_t n)
{
    uint64_t digest = 1469598103934665603u;
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, &mine[i], sizeof word);
        digest = (digest ^ word) * 1099511628211u;
    }
    CHECK(shmem_team_sync(team) == 0);
    static uint64_t own;
    own = digest;
    CHECK(shmem_uint64_fcollect(team, (uint64_t *)bits, &own, 1) == 0);
    for (size_t pe = 0; pe < n; pe++) CHECK(((uint64_t *)bits)[pe] == digest);
}

static void calls(shmem_team_t team, size_t count)
{
    const size_t n = (size_t)shmem_team_n_pes(team), me = (size_t)shmem_team_my_pe(team);
    const size_t few = count < MOST_GATHERED ? count : MOST_GATHERED;
    const size_t block = few / n, mine = few * me / n;
    const int root = (int)(count % n), other = (int)((count + 1) % n);
    for (size_t i = 0; i < count; i++) {
        source[i] = value(me, i, 0);
        in_place[i] = value(me, i, 1);
        odds[i] = odd(me, i);
        zeros[i] = zero(me, i);
        sum[i] = cast[i] = cast_on[i] = least[i] = -1;
    }
    CHECK(shmem_team_sync(team) == 0);

    CHECK(shmem_int64_sum_reduce(team, sum, source, count) == 0);
    CHECK(shmem_int64_broadcast(team, cast, source, count, root) == 0);
    CHECK(shmem_int64_sum_reduce(team, in_place, in_place, count) == 0);
    CHECK(shmem_int64_fcollect(team, gathered, source, few) == 0);
    CHECK(shmem_int64_min_reduce(team, least, source, count) == 0);
    CHECK(shmem_int64_broadcast(team, cast_on, least, count, other) == 0);
    /* Other PEs may have made the call already, without having written their contributions. */
    CHECK(shmem_int64_sum_reduce(team, after, cast_on, count) == 0);
    CHECK(shmem_int64_alltoall(team, swapped, source, block) == 0);
    CHECK(shmem_double_sum_reduce(team, odd_sum, odds, count) == 0);
    CHECK(shmem_int64_collect(team, collected, source, mine) == 0);
    CHECK(shmem_double_min_reduce(team, zero_least, zeros, count) == 0);

    for (size_t i = 0; i < count; i++) {
        int64_t all = 0, again = 0, smallest = INT64_MAX;
        for (size_t pe = 0; pe < n; pe++) {
            const int64_t theirs = value(pe, i, 0);
            all += theirs;
            again += value(pe, i, 1);
            smallest = theirs < smallest ? theirs : smallest;
        }
        CHECK(sum[i] == all);
        CHECK(in_place[i] == again);
        CHECK(least[i] == smallest && cast_on[i] == smallest && after[i] == (int64_t)n * smallest);
        CHECK(cast[i] == value((size_t)root, i, 0));
    }
    for (size_t pe = 0, at = 0; pe < n; pe++) {
        for (size_t i = 0; i < few; i++) CHECK(gathered[pe * few + i] == value(pe, i, 0));
        for (size_t i = 0; i < few * pe / n; i++) CHECK(collected[at++] == value(pe, i, 0));
        for (size_t i = 0; i < block; i++) CHECK(swapped[pe * block + i] == value(pe, me * block + i, 0));
    }
    compare(team, odd_sum, count, n);
    compare(team, zero_least, count, n);
    /* No PE changes its destination while other PEs read theirs. */
    CHECK(shmem_team_sync(team) == 0);
    checked++;
}

/* Many more broadcasts than a PE may be ahead of others. */
static void broadcasts(shmem_team_t team)
{
    const int n = shmem_team_n_pes(team), me = shmem_team_my_pe(team);
    enum { TIMES = 40 };
    for (size_t i = 0; i < TIMES; i++) source[i] = value((size_t)me, i, 2), cast[i] = -1;
    CHECK(shmem_team_sync(team) == 0);
    for (int i = 0; i < TIMES; i++) {
        CHECK(shmem_int64_broadcast(team, &cast[i], &source[i], 1, i % 5 % n) == 0);
        if (i % 7 == 0) CHECK(shmem_int64_fcollect(team, &gathered[i * n], &source[i], 1) == 0);
    }
    for (int i = 0; i < TIMES; i++) CHECK(cast[i] == value((size_t)(i % 5 % n), (size_t)i, 2));
    CHECK(shmem_team_sync(team) == 0);
    /* The root sends and waits for nothing, while the other PEs are busy before their calls. */
    static volatile long busy;
    for (long i = 0; me && i < 2000000; i++) busy += i;
    for (int i = 0; i < TIMES; i++) CHECK(shmem_int64_broadcast(team, &cast_on[i], &source[i], 1, 0) == 0);
    for (int i = 0; i < TIMES; i++) CHECK(cast_on[i] == value(0, (size_t)i, 2));
    CHECK(shmem_team_sync(team) == 0);
}

/* Blocks that are still in flight when the next call begins. */
static void streams(shmem_team_t team)
{
    const size_t n = (size_t)shmem_team_n_pes(team), me = (size_t)shmem_team_my_pe(team), block = 2048;
    const size_t times = MOST / (n * block);
    for (size_t i = 0; i < times * n * block; i++) source[i] = value(me, i, 3);
    CHECK(shmem_team_sync(team) == 0);
    for (size_t k = 0, at = 0; k < times; k++, at += n * block) {
        CHECK(shmem_int64_alltoall(team, gathered + at, source + at, block) == 0);
        /* The source belongs to the caller again. */
        for (size_t i = 0; i < n * block; i++) source[at + i] = -1;
    }
    for (size_t k = 0; k < times; k++)
        for (size_t pe = 0; pe < n; pe++)
            for (size_t i = 0; i < block; i++)
                CHECK(gathered[(k * n + pe) * block + i] == value(pe, (k * n + me) * block + i, 3));
    CHECK(shmem_team_sync(team) == 0);
}

static void all_calls(shmem_team_t team, int step)
{
    if (team == SHMEM_TEAM_INVALID) return;
    for (int i = 0; i < COUNT_OF_COUNTS; i += step) calls(team, COUNTS[i]);
    broadcasts(team);
    for (int i = 0; i < 5; i++) streams(team);
}

int main(void)
{
    shmem_init();
    const int n = shmem_n_pes();
    const size_t together = (size_t)n * MOST_GATHERED + 64;
    source = take(MOST), sum = take(MOST), in_place = take(MOST), cast = take(MOST), cast_on = take(MOST), least = take(MOST);
    after = take(MOST);
    gathered = take(together), collected = take(together), swapped = take(together);
    odds = (double *)take(MOST), zeros = (double *)take(MOST), odd_sum = (double *)take(MOST), zero_least = (double *)take(MOST);
    bits = (double *)take((size_t)n);

    all_calls(SHMEM_TEAM_WORLD, 1);
    shmem_team_t team;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, NULL, 0, &team) == 0);
    all_calls(team, 2);
    shmem_team_destroy(team);
    /* From here on a PE may be ahead of a PE that is not in the team. */
    shmem_barrier_all();
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n - 1, NULL, 0, &team) == 0);
    all_calls(team, 3);
    shmem_team_destroy(team);
    shmem_barrier_all();
    if (shmem_my_pe() == 0) printf("%ld rounds with %d PEs\n", checked, n);
    shmem_finalize();
    return 0;
}
