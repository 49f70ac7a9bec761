/* Static and global variables of the executable are symmetric: initialised, zero, large, and within functions. */

#include "check.h"
#include <string.h>

static long initialised = 17;
long zero;
static char large[3 << 20];
char text[64] = "before";
static long queue_lock;

static int *counter(void)
{
    static int count = 5;
    return &count;
}

int main(void)
{
    const long on_stack = 0;
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;

    CHECK(initialised == 17 && zero == 0 && strcmp(text, "before") == 0);
    CHECK(shmem_addr_accessible(&initialised, next) && shmem_addr_accessible(large, next));
    CHECK(!shmem_addr_accessible(&on_stack, next));
    CHECK(shmem_long_g(&initialised, next) == 17);
    shmem_barrier_all();

    shmem_long_p(&zero, 100 + me, next);
    memset(large, 'a' + me % 26, sizeof large / 2);
    shmem_putmem(large + sizeof large / 2, large, sizeof large / 2, next);
    for (int pe = 0; pe < n; pe++) CHECK(shmem_int_atomic_fetch_add(counter(), 1, pe) >= 5);
    shmem_long_atomic_set(&initialised, me, next);
    shmem_barrier_all();
    const int before = (me + n - 1) % n;
    CHECK(zero == 100 + before);
    CHECK(large[sizeof large - 1] == 'a' + before % 26 && large[0] == 'a' + me % 26);
    CHECK(*counter() == 5 + n);
    shmem_long_wait_until(&initialised, SHMEM_CMP_EQ, before);
    shmem_barrier_all();

    /* A lock and the variable that it guards. */
    for (int i = 0; i < 20; i++) {
        shmem_set_lock(&queue_lock);
        long count = shmem_long_g(&zero, 0);
        shmem_long_p(&zero, count + 1, 0);
        shmem_quiet();
        shmem_clear_lock(&queue_lock);
    }
    shmem_barrier_all();
    if (me == 0) {
        CHECK(zero == 100 + before + 20 * n);
        printf("%d PEs share their variables\n", n);
    }
    shmem_finalize();
    CHECK(initialised == before && zero != 0);
    return 0;
}
