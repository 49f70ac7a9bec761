/* The program can allocate the whole heap that it asked for. */

#include "check.h"
#include <string.h>

enum { ASKED_FOR = 16 << 20 };

int main(void)
{
    shmem_init();
    char *const all = shmem_malloc(ASKED_FOR);
    CHECK(all != NULL);
    memset(all, 1, ASKED_FOR);
    shmem_free(all);
    shmem_finalize();
    return 0;
}
