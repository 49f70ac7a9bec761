/* What all programs share. */
#ifndef CHECK_H
#define CHECK_H

#include <shmem.h>
#include <stdio.h>

#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "PE %d: %s:%d: not so: %s\n", shmem_my_pe(), __FILE__, __LINE__, #what);         \
            shmem_global_exit(3);                                                                            \
        }                                                                                                    \
    } while (0)

#endif
