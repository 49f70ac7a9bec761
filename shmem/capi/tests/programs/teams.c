/* What becomes of teams: of a split that fails, and of no team at all. */

#include "check.h"
#include <string.h>

enum { PLACES = 64 };

static shmem_team_t all_pes(void)
{
    shmem_team_t team;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, shmem_n_pes(), NULL, 0, &team) == 0);
    return team;
}

/* One place is left: a split that needs two makes none, and takes none. */
static void full(void)
{
    shmem_team_t teams[PLACES], row, column;
    const int n = shmem_n_pes();
    int made = 0;
    while (made < PLACES && shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &teams[made]) == 0) made++;
    CHECK(made > 1 && made < PLACES);
    shmem_team_destroy(teams[--made]);
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 2, NULL, 0, &row, NULL, 0, &column) != 0);
    CHECK(row == SHMEM_TEAM_INVALID && column == SHMEM_TEAM_INVALID);
    teams[made++] = all_pes();
    shmem_team_destroy(teams[--made]);
    shmem_team_destroy(teams[--made]);
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 2, NULL, 0, &row, NULL, 0, &column) == 0);
    CHECK(row != SHMEM_TEAM_INVALID && column != SHMEM_TEAM_INVALID);
}

static void none(void)
{
    static int word;
    CHECK(shmem_team_ptr(SHMEM_TEAM_INVALID, &word, 0) == NULL);
    CHECK(shmem_team_ptr(SHMEM_TEAM_WORLD, &word, shmem_my_pe()) == &word);
}

int main(int argc, char **argv)
{
    shmem_init();
    CHECK(argc == 2);
    if (strcmp(argv[1], "full") == 0) full();
    else if (strcmp(argv[1], "none") == 0) none();
    else shmem_global_exit(9);
    shmem_finalize();
    return 0;
}
