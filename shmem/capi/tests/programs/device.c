/* A program that would use GPUs, on a machine without one: calls fail with a message, and the job continues. */
#include <stdio.h>
#include <shmem.h>
#include <shmemx.h>
#include "check.h"

int main(void) {
    shmem_init();
    long local = 0, *word = shmem_calloc(1, sizeof(long));
    char state[16];
    CHECK(shmemx_device_attach(state, sizeof state) != 0);
    CHECK(shmemx_device_check() != 0);
    CHECK(shmemx_device_ptr(&local) == NULL);
    CHECK(shmemx_device_ptr(word) == NULL);
    shmem_long_atomic_inc(word, 0);
    shmem_barrier_all();
    CHECK(shmem_my_pe() != 0 || *word == shmem_n_pes());
    if (shmem_my_pe() == 0) printf("%d PEs without GPUs\n", shmem_n_pes());
    shmem_finalize();
    return 0;
}
