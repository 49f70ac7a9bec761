/* Variables of 1.5 GiB, of which hardly any page is used: joining allocates memory for the used pages alone, by any
 * method. */

#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

enum { KIB = 1024 };
static const size_t MOST_KIB = 400 * 1024;
static char large[1536L << 20];
static long initialised[] = {3, 1, 4};

/* Pages that this process has mapped and touched, and those of files that it has made. */
static size_t taken_kib(void)
{
    char line[256];
    size_t mapped = 0, behind = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmRSS: %zu", &mapped) == 1) break;
    fclose(status);
    DIR *open_files = opendir("/proc/self/fd");
    CHECK(open_files);
    for (struct dirent *file; (file = readdir(open_files));) {
        struct stat found;
        if (fstatat(dirfd(open_files), file->d_name, &found, 0) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 0)
            behind += (size_t)found.st_blocks / 2;
    }
    closedir(open_files);
    return mapped > behind ? mapped : behind;
}

int main(void)
{
    const size_t middle = sizeof large / 2;
    large[5] = 'a';
    large[middle] = 'b';
    large[sizeof large - 1] = 'c';
    /* One page was only read, one was cleared, and one was zero all along. */
    large[100 * KIB] = 'd';
    large[100 * KIB] = 0;
    CHECK(large[200 * KIB] == 0);
    initialised[1] = 17;
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    if (taken_kib() > MOST_KIB) {
        fprintf(stderr, "PE %d: %zu MiB were taken\n", me, taken_kib() / KIB);
        shmem_global_exit(4);
    }
    CHECK(large[5] == 'a' && large[middle] == 'b' && large[sizeof large - 1] == 'c');
    CHECK(large[4] == 0 && large[100 * KIB] == 0 && large[200 * KIB] == 0 && large[middle / 2] == 0);
    CHECK(initialised[0] == 3 && initialised[1] == 17 && initialised[2] == 4);
    shmem_barrier_all();
    char text[24] = "";
    snprintf(text, sizeof text, "from PE %d", me);
    shmem_putmem(large + middle / 2, text, sizeof text, next);
    shmem_putmem(large + sizeof large - sizeof text, text, sizeof text, next);
    shmem_barrier_all();
    snprintf(text, sizeof text, "from PE %d", before);
    CHECK(strcmp(large + middle / 2, text) == 0 && strcmp(large + sizeof large - sizeof text, text) == 0);
    CHECK(taken_kib() <= MOST_KIB);
    shmem_finalize();
    return 0;
}
