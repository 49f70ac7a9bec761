/* What becomes of teams: of the contexts of one that is destroyed, of a split that fails, and of no team at all. */

#include "check.h"
#include <stdlib.h>
#include <string.h>

enum { BYTES = 16 << 20, CONTEXTS = 600, PLACES = 64 };

static shmem_team_t all_pes(void)
{
    shmem_team_t team;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, shmem_n_pes(), NULL, 0, &team) == 0);
    return team;
}

/* A context ends with its team: what it has put is delivered, and its place is free. */
static void contexts(void)
{
    const int next = (shmem_my_pe() + 1) % shmem_n_pes();
    char *const target = shmem_calloc(BYTES, 1), *const source = malloc(BYTES);
    CHECK(target && source);
    memset(source, 1, BYTES);
    shmem_team_t team = all_pes();
    shmem_ctx_t context;
    CHECK(shmem_team_create_ctx(team, 0, &context) == 0);
    shmem_ctx_putmem_nbi(context, target, source, BYTES, next);
    shmem_team_destroy(team);
    memset(source, 2, BYTES);
    for (int i = 0; i < BYTES; i++) CHECK(target[i] == 1);
    free(source);

    /* Twice as many as a PE can have at a time; the one of another team remains. */
    shmem_ctx_t other;
    CHECK(shmem_ctx_create(0, &other) == 0);
    for (int round = 0; round < 3; round++) {
        team = all_pes();
        for (int i = 0; i < CONTEXTS; i++) CHECK(shmem_team_create_ctx(team, 0, &context) == 0);
        shmem_team_destroy(team);
    }
    CHECK(shmem_ctx_get_team(other, &team) == 0 && team == SHMEM_TEAM_WORLD);
    shmem_ctx_destroy(other);
    shmem_free(target);
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
    if (strcmp(argv[1], "contexts") == 0) contexts();
    else if (strcmp(argv[1], "full") == 0) full();
    else if (strcmp(argv[1], "none") == 0) none();
    else shmem_global_exit(9);
    shmem_finalize();
    return 0;
}
