/* Teams. */

#include "check.h"
#include <string.h>

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
    if (strcmp(argv[1], "none") == 0) none();
    else shmem_global_exit(9);
    shmem_finalize();
    return 0;
}
