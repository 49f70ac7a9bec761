/* One thread with a rank on each GPU: it sums, splits, shrinks and destroys communicators of all its ranks, as programs
 * for NCCL do. Prints "through" at the end.
 *
 *     cc -O2 -o one_thread one_thread.c -ldl
 *     one_thread LIBRARY           a library with NCCL's interface */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 8
#define FLOATS 1024
/* Their sum lasts longer than a small copy. */
#define LARGE ((size_t)64 << 20)
enum { SUM = 0, F32 = 7, ABORT = 1 };

typedef void* Comm;
typedef unsigned long long Device;

static void* cuda;
static void* nccl;

static void* function(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "there is no %s\n", name);
        exit(1);
    }
    return found;
}

#define CU(name, types, ...) check(#name, ((int (*) types)function(cuda, #name)) (__VA_ARGS__))
#define NCCL(name, types, ...) check(#name, ((int (*) types)function(nccl, #name)) (__VA_ARGS__))

static void check(const char* name, int code) {
    if (code) {
        fprintf(stderr, "%s: %d\n", name, code);
        exit(1);
    }
}

/* Sums ones over the ranks of some communicators, in a group. */
static void sum(Comm* comms, void** contexts, int ranks) {
    Device memory[MOST];
    float host[FLOATS];
    for (int rank = 0; rank < ranks; rank++) {
        for (int i = 0; i < FLOATS; i++) host[i] = 1;
        CU(cuCtxSetCurrent, (void*), contexts[rank]);
        CU(cuMemAlloc_v2, (Device*, size_t), &memory[rank], sizeof host);
        CU(cuMemcpyHtoD_v2, (Device, const void*, size_t), memory[rank], host, sizeof host);
    }
    NCCL(ncclGroupStart, (void));
    for (int rank = 0; rank < ranks; rank++)
        NCCL(ncclAllReduce, (Device, Device, size_t, int, int, Comm, void*), memory[rank], memory[rank], FLOATS, F32,
             SUM, comms[rank], NULL);
    NCCL(ncclGroupEnd, (void));
    for (int rank = 0; rank < ranks; rank++) {
        CU(cuCtxSetCurrent, (void*), contexts[rank]);
        CU(cuMemcpyDtoH_v2, (void*, Device, size_t), host, memory[rank], sizeof host);
        CU(cuMemFree_v2, (Device), memory[rank]);
        for (int i = 0; i < FLOATS; i++)
            if (host[i] != ranks) {
                fprintf(stderr, "rank %d of %d has %g at %d\n", rank, ranks, host[i], i);
                exit(1);
            }
    }
}

/* The same on the calling thread's own streams (cudaStreamPerThread), whose later work follows the sums. The first group
 * of communicators begins on other threads. */
static void sum_on_own_streams(Comm* comms, void** contexts, int ranks) {
    void* own = (void*)2;
    Device memory[MOST];
    float last[MOST];
    for (int rank = 0; rank < ranks; rank++) {
        CU(cuCtxSetCurrent, (void*), contexts[rank]);
        CU(cuMemAlloc_v2, (Device*, size_t), &memory[rank], LARGE * sizeof(float));
        /* Ones. */
        CU(cuMemsetD32Async, (Device, unsigned, size_t, void*), memory[rank], 0x3f800000, LARGE, own);
    }
    NCCL(ncclGroupStart, (void));
    for (int rank = 0; rank < ranks; rank++)
        NCCL(ncclAllReduce, (Device, Device, size_t, int, int, Comm, void*), memory[rank], memory[rank], LARGE, F32,
             SUM, comms[rank], own);
    NCCL(ncclGroupEnd, (void));
    for (int rank = 0; rank < ranks; rank++) {
        CU(cuCtxSetCurrent, (void*), contexts[rank]);
        CU(cuMemcpyDtoHAsync_v2, (void*, Device, size_t, void*), &last[rank],
           memory[rank] + (LARGE - 1) * sizeof(float), sizeof(float), own);
    }
    for (int rank = 0; rank < ranks; rank++) {
        CU(cuCtxSetCurrent, (void*), contexts[rank]);
        CU(cuStreamSynchronize, (void*), own);
        CU(cuMemFree_v2, (Device), memory[rank]);
        if (last[rank] != ranks) {
            fprintf(stderr, "rank %d of %d has %g at the end, behind the sum on its own stream\n", rank, ranks,
                    last[rank]);
            exit(1);
        }
    }
}

static void destroy(Comm* comms, int ranks) {
    for (int rank = 0; rank < ranks; rank++) NCCL(ncclCommDestroy, (Comm), comms[rank]);
}

int main(int count, char** arguments) {
    int gpus = 0;
    void* contexts[MOST];
    Comm all[MOST], split[MOST], fewer[MOST];
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    nccl = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    if (!nccl) {
        fprintf(stderr, "usage: %s LIBRARY (%s)\n", arguments[0], count > 1 ? dlerror() : "none was given");
        return 2;
    }
    if (cuda && !((int (*)(unsigned))function(cuda, "cuInit"))(0)) CU(cuDeviceGetCount, (int*), &gpus);
    if (gpus < 2) {
        printf("SKIPPED: %d GPUs, and two are needed\n", gpus);
        return 0;
    }
    if (gpus > MOST) gpus = MOST;
    for (int gpu = 0; gpu < gpus; gpu++) CU(cuDevicePrimaryCtxRetain, (void**, int), &contexts[gpu], gpu);
    NCCL(ncclCommInitAll, (Comm*, int, const int*), all, gpus, NULL);
    sum_on_own_streams(all, contexts, gpus);
    sum(all, contexts, gpus);

    NCCL(ncclGroupStart, (void));
    for (int rank = 0; rank < gpus; rank++)
        NCCL(ncclCommSplit, (Comm, int, int, Comm*, void*), all[rank], 0, rank, &split[rank], NULL);
    NCCL(ncclGroupEnd, (void));
    sum(split, contexts, gpus);

    int excluded = gpus - 1;
    NCCL(ncclGroupStart, (void));
    for (int rank = 0; rank < excluded; rank++)
        NCCL(ncclCommShrink, (Comm, int*, int, Comm*, void*, int), split[rank], &excluded, 1, &fewer[rank], NULL,
             ABORT);
    NCCL(ncclGroupEnd, (void));
    sum(fewer, contexts, excluded);

    destroy(fewer, excluded);
    destroy(split, gpus);
    for (int rank = 0; rank < gpus; rank++) NCCL(ncclCommFinalize, (Comm), all[rank]);
    destroy(all, gpus);
    printf("through\n");
    return 0;
}
