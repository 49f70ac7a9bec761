/* How far the root of broadcasts with two alternating pSync arrays gets ahead of a PE that is late: twice the depth of
 * the broadcast's tree, less one, calls. Neither more, nor does it stop earlier. */

#include "check.h"
#include <unistd.h>

enum { ROUNDS = 40, LATE_AT = 7, LOOKS = 200 };

static long arrays[2][SHMEM_BCAST_SYNC_SIZE], source[1], dests[2][1], root_has_ended;

/* The depth of a binomial tree: the most digits of a PE's number that are 1. */
static int depth(int n)
{
    int most = 0;
    for (int pe = 0; pe < n; pe++)
        if (__builtin_popcount((unsigned)pe) > most) most = __builtin_popcount((unsigned)pe);
    return most;
}

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes(), levels = depth(n);
    int late = 0;
    while (__builtin_popcount((unsigned)late) != levels) late++;
    for (long round = 1; round <= ROUNDS; round++) {
        long *const dest = dests[round % 2];
        if (me == 0) source[0] = round;
        if (me == late && round == LATE_AT) {
            const long most = LATE_AT - 1 + 2 * levels - 1;
            shmem_long_wait_until(&root_has_ended, SHMEM_CMP_GE, most);
            for (int look = 0; look < LOOKS; look++, usleep(1000)) {
                CHECK(shmem_long_atomic_fetch(&root_has_ended, me) == most);
                CHECK(dests[(round - 1) % 2][0] == round - 1);
            }
        }
        shmem_broadcast64(dest, source, 1, 0, 0, 0, n, arrays[round % 2]);
        CHECK(me == 0 || dest[0] == round);
        if (me == 0) shmem_long_p(&root_has_ended, round, late), shmem_quiet();
    }
    shmem_finalize();
    return 0;
}
