/* Connects ahead of time to no PE, to all PEs, or to a team of every third PE; then puts to all, or to the team, and
 * counts the descriptors that this opens. */

#include "check.h"
#include <dirent.h>
#include <shmemx.h>
#include <string.h>

static int descriptors(void)
{
    int count = 0;
    DIR *open = opendir("/proc/self/fd");
    CHECK(open != NULL);
    while (readdir(open)) count++;
    closedir(open);
    return count;
}

static long words[64];

int main(int argc, char **argv)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const char *ahead = argc > 1 ? argv[1] : "";
    shmem_team_t third;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 3, (n + 2) / 3, NULL, 0, &third) == 0);
    const int to_team = strcmp(ahead, "team") == 0;
    if (strcmp(ahead, "all") == 0) shmemx_connect_all();
    if (to_team && third != SHMEM_TEAM_INVALID) shmemx_team_connect(third);
    shmem_barrier_all();
    const int before = descriptors();
    shmem_barrier_all();
    for (int pe = 0; pe < n; pe++)
        if (!to_team || (me % 3 == 0 && pe % 3 == 0)) shmem_long_p(&words[me], pe + 1, pe);
    shmem_barrier_all();
    const int opened = descriptors() - before;
    for (int pe = 0; pe < n; pe++)
        CHECK(words[pe] == (!to_team || (me % 3 == 0 && pe % 3 == 0) ? me + 1 : 0));
    if (strcmp(ahead, "nobody") == 0)
        CHECK(opened > 0);
    else
        CHECK(opened == 0);
    shmem_finalize();
    return 0;
}
