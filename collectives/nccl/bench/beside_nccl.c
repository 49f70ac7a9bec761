/* Times NVIDIA's NCCL and another library with NCCL's interface side by side: the same calls on the same buffers, in
 * turns, by one process for each GPU. Every result is compared, number by number.
 *
 *     cc -O2 -o beside_nccl beside_nccl.c -ldl
 *     beside_nccl NCCL OTHER [--ranks N] [--json FILE] [--only MODE] [--least BYTES] [--most BYTES] [--seconds S]
 *                 [--sockets]
 *
 * NCCL and OTHER are paths of libraries. MODE is the start of modes' names: graph (calls in a CUDA graph), eager, or
 * graph/plain, graph/alloc, graph/window (memory of cuMemAlloc; of ncclMemAlloc, registered; the same as a symmetric
 * window for NCCL). With --sockets neither library maps a peer's memory, and NCCL sends through sockets.
 * A case that fails or hangs is named, and the next one goes on with new processes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_RANKS 8
#define MOST_SAMPLES 256
#define ROUNDS 3
/* A case without progress for so long has failed. */
#define PATIENCE 40.0

/* The required parts of cuda.h and nccl.h. */
typedef struct { char bytes[128]; } Id;
typedef void* Comm;
typedef unsigned long long Device;
enum { SUM = 0, BF16 = 9, F32 = 7 };

static struct {
    int (*init)(unsigned), (*get)(int*, int), (*count)(int*), (*name)(char*, int, int), (*retain)(void**, int);
    int (*set)(void*), (*alloc)(Device*, size_t), (*pinned)(void**, size_t, unsigned), (*stream)(void**, unsigned);
    int (*to_device)(Device, const void*, size_t), (*to_host)(void*, Device, size_t), (*fill)(Device, unsigned char, size_t);
    int (*sync)(void*), (*begin)(void*, int), (*end)(void*, void**), (*instantiate)(void**, void*, unsigned long long);
    int (*launch)(void*, void*), (*graph_free)(void*), (*exec_free)(void*), (*event)(void**, unsigned);
    int (*record)(void*, void*), (*elapsed)(float*, void*, void*), (*error)(int, const char**), (*ctx_sync)(void);
} cu;

/* A library with NCCL's interface. */
typedef struct {
    const char* name;
    int (*version)(int*), (*unique)(Id*), (*join)(Comm*, int, Id, int), (*destroy)(Comm), (*alloc)(void**, size_t);
    int (*reg)(Comm, void*, size_t, void**), (*window)(Comm, void*, size_t, void**, int), (*async)(Comm, int*);
    int (*all_reduce)(const void*, void*, size_t, int, int, Comm, void*);
    int (*all_gather)(const void*, void*, size_t, int, Comm, void*);
    int (*reduce_scatter)(const void*, void*, size_t, int, int, Comm, void*);
    const char* (*error)(int);
    const char* (*last)(Comm);
    Comm comm;
    Device source[3], dest[3];
} Library;

enum { PLAIN, ALLOC, WINDOW };
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER };
static const char* const kinds[] = {"plain", "alloc", "window"};
static const char* const collectives[] = {"all-reduce", "all-gather", "reduce-scatter"};

typedef struct {
    int eager, kind, collective, type;
    size_t bytes; /* of the larger one of input and output */
} Case;

/* State that the processes share. */
static struct {
    volatile int arrived, generation, failed;
    /* The current case; whether its memory is being prepared; whether a round has enough samples. */
    volatile int at, preparing, enough;
    volatile double seen;
    Id ids[2];
    volatile double times[2][MOST_SAMPLES][MOST_RANKS];
    volatile int samples[2];
    char why[512];
}* shared;

static Library libraries[2];
static Case cases[256];
static int n_cases, ranks = 2, me, sockets;
static const char *json, *only = "";
static char device_name[128];
static void* stream;
static void* events[2];
static char* pinned;
static size_t largest, least, most = (size_t)1 << 40;
static int nccl_version;
#define PINNED ((size_t)16 << 20)
/* The input of each type, and the sum of all ranks' inputs. */
static unsigned char *inputs, *sums;
static int prepared = -1;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void fail(const char* format, ...) {
    va_list args;
    va_start(args, format);
    char why[400];
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (__sync_bool_compare_and_swap(&shared->failed, 0, 1))
        snprintf(shared->why, sizeof shared->why, "rank %d: %s", me, why);
    _exit(1);
}

static void check_cuda(int answer, const char* what) {
    const char* text = "?";
    if (answer == 0) return;
    if (cu.error) cu.error(answer, &text);
    fail("%s: %s (%d)", what, text, answer);
}
#define CU(call) check_cuda(cu.call, #call)

static void check_nccl(const Library* library, int answer, const char* what) {
    if (answer == 0) return;
    const char* last = library->last ? library->last(library->comm) : "";
    fail("%s: %s: %s: %s", library->name, what, library->error ? library->error(answer) : "?", last ? last : "");
}
#define NCCL(library, call) check_nccl(library, (library)->call, #call)

/* A barrier of all ranks. */
static void meet(void) {
    int generation = shared->generation;
    if (__sync_add_and_fetch(&shared->arrived, 1) == ranks) {
        shared->arrived = 0;
        __sync_synchronize();
        shared->generation = generation + 1;
        return;
    }
    for (unsigned spins = 0; shared->generation == generation; spins++) {
        if (shared->failed) _exit(1);
        if (spins > 2000) sched_yield();
    }
}

static void* symbol(void* library, const char* name, int needed) {
    void* found = dlsym(library, name);
    if (!found && needed) fail("%s is missing", name);
    return found;
}

static void load_cuda(void) {
    void* l = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!l) fail("%s", dlerror());
#define TAKE(field, name) *(void**)&cu.field = symbol(l, name, 1)
    TAKE(init, "cuInit"); TAKE(get, "cuDeviceGet"); TAKE(count, "cuDeviceGetCount"); TAKE(name, "cuDeviceGetName");
    TAKE(retain, "cuDevicePrimaryCtxRetain"); TAKE(set, "cuCtxSetCurrent"); TAKE(alloc, "cuMemAlloc_v2");
    TAKE(pinned, "cuMemHostAlloc"); TAKE(stream, "cuStreamCreate"); TAKE(to_device, "cuMemcpyHtoD_v2");
    TAKE(to_host, "cuMemcpyDtoH_v2"); TAKE(fill, "cuMemsetD8_v2"); TAKE(sync, "cuStreamSynchronize");
    TAKE(begin, "cuStreamBeginCapture_v2"); TAKE(end, "cuStreamEndCapture");
    TAKE(instantiate, "cuGraphInstantiateWithFlags"); TAKE(launch, "cuGraphLaunch"); TAKE(graph_free, "cuGraphDestroy");
    TAKE(exec_free, "cuGraphExecDestroy"); TAKE(event, "cuEventCreate"); TAKE(record, "cuEventRecord");
    TAKE(elapsed, "cuEventElapsedTime"); TAKE(error, "cuGetErrorString"); TAKE(ctx_sync, "cuCtxSynchronize");
#undef TAKE
}

static void load(Library* library, const char* path, const char* name) {
    library->name = name;
    void* l = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l) fail("%s", dlerror());
#define TAKE(field, name, needed) *(void**)&library->field = symbol(l, name, needed)
    TAKE(version, "ncclGetVersion", 1); TAKE(unique, "ncclGetUniqueId", 1); TAKE(join, "ncclCommInitRank", 1);
    TAKE(destroy, "ncclCommDestroy", 1); TAKE(alloc, "ncclMemAlloc", 0); TAKE(reg, "ncclCommRegister", 0);
    TAKE(window, "ncclCommWindowRegister", 0); TAKE(async, "ncclCommGetAsyncError", 0);
    TAKE(all_reduce, "ncclAllReduce", 1); TAKE(all_gather, "ncclAllGather", 1);
    TAKE(reduce_scatter, "ncclReduceScatter", 1); TAKE(error, "ncclGetErrorString", 0); TAKE(last, "ncclGetLastError", 0);
#undef TAKE
}

/* Small whole numbers, whose sums all types hold exactly; neighbouring elements differ. */
static unsigned value(size_t i, int rank) { return ((unsigned)(i * 2654435761u) >> 20 & 15) + (unsigned)rank % 3 * (i % 5 == 0); }

static size_t size_of(int type) { return type == BF16 ? 2 : 4; }

static void put(unsigned char* to, size_t i, int type, unsigned number) {
    float f = (float)number;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (type == BF16) ((uint16_t*)to)[i] = (uint16_t)(bits >> 16);
    else ((uint32_t*)to)[i] = bits;
}

/* The host's numbers of a type, and the sources of both libraries. */
static void prepare(int type, int kind) {
    if (prepared != type) {
        for (size_t i = 0; i < largest / size_of(type); i++) {
            unsigned sum = 0;
            for (int rank = 0; rank < ranks; rank++) sum += value(i, rank);
            put(inputs, i, type, value(i, me));
            put(sums, i, type, sum);
        }
        prepared = type;
        for (int l = 0; l < 2; l++)
            for (int k = 0; k < 3; k++)
                if (libraries[l].source[k]) CU(to_device(libraries[l].source[k], inputs, largest));
        shared->seen = now();
    }
    for (int l = 0; l < 2; l++) {
        Library* library = &libraries[l];
        if (library->source[kind]) continue;
        /* Both libraries work on the same plain memory. */
        if (kind == PLAIN && l == 1) {
            library->source[kind] = libraries[0].source[kind];
            library->dest[kind] = libraries[0].dest[kind];
            continue;
        }
        void *from = NULL, *to = NULL, *handle;
        if (kind == PLAIN) {
            CU(alloc(&library->source[kind], largest));
            CU(alloc(&library->dest[kind], largest));
        } else {
            if (!library->alloc) fail("%s has no ncclMemAlloc", library->name);
            NCCL(library, alloc(&from, largest));
            NCCL(library, alloc(&to, largest));
            library->source[kind] = (Device)(uintptr_t)from;
            library->dest[kind] = (Device)(uintptr_t)to;
            int window = kind == WINDOW && l == 0;
            if (window && !library->window) fail("%s has no windows", library->name);
            if (window) {
                NCCL(library, window(library->comm, from, largest, &handle, 1));
                NCCL(library, window(library->comm, to, largest, &handle, 1));
            } else if (library->reg) {
                NCCL(library, reg(library->comm, from, largest, &handle));
                NCCL(library, reg(library->comm, to, largest, &handle));
            }
        }
        CU(to_device(library->source[kind], inputs, largest));
        shared->seen = now();
    }
}

static void call(Library* library, const Case* c) {
    void *from = (void*)(uintptr_t)library->source[c->kind], *to = (void*)(uintptr_t)library->dest[c->kind];
    size_t count = c->bytes / size_of(c->type);
    if (c->collective == ALL_REDUCE) NCCL(library, all_reduce(from, to, count, c->type, SUM, library->comm, stream));
    else if (c->collective == ALL_GATHER) NCCL(library, all_gather(from, to, count / ranks, c->type, library->comm, stream));
    else NCCL(library, reduce_scatter(from, to, count / ranks, c->type, SUM, library->comm, stream));
}

/* Compares every byte of the result of a fresh call. */
static void verify(Library* library, const Case* c, const char* what) {
    size_t part = c->bytes / ranks, element = size_of(c->type);
    size_t bytes = c->collective == REDUCE_SCATTER ? part : c->bytes;
    for (size_t at = 0; at < bytes; at += PINNED) {
        size_t some = bytes - at < PINNED ? bytes - at : PINNED;
        CU(to_host(pinned, library->dest[c->kind] + at, some));
        const unsigned char* expected = sums + at + (c->collective == REDUCE_SCATTER ? me * part : 0);
        if (c->collective != ALL_GATHER) {
            if (memcmp(pinned, expected, some) == 0) continue;
        }
        for (size_t i = 0; i < some / element; i++) {
            unsigned char right[4];
            if (c->collective == ALL_GATHER) put(right, 0, c->type, value((at / element + i) % (part / element), (int)((at + i * element) / part)));
            else memcpy(right, expected + i * element, element);
            if (memcmp(pinned + i * element, right, element) != 0)
                fail("%s, %s: wrong number at %zu of %zu", library->name, what, at / element + i, bytes / element);
        }
        shared->seen = now();
    }
    if (library->async) {
        int found = 0;
        NCCL(library, async(library->comm, &found));
        check_nccl(library, found, "ncclCommGetAsyncError");
    }
}

static size_t calls_of(const Case* c) {
    size_t most = sockets ? 20 : 64, of_bytes = ((size_t)(sockets ? 64 : 512) << 20) / (c->bytes + 1);
    return of_bytes > most ? most : of_bytes < 2 ? 2 : of_bytes;
}

static void* capture(Library* library, const Case* c, size_t calls) {
    void *graph, *made;
    CU(begin(stream, 2));
    for (size_t i = 0; i < calls; i++) call(library, c);
    CU(end(stream, &graph));
    CU(instantiate(&made, graph, 0));
    CU(graph_free(graph));
    return made;
}

static int by_size(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return x < y ? -1 : x > y;
}

/* The median over samples of the slowest rank's time, in microseconds. */
static double median(int l) {
    double all[MOST_SAMPLES];
    int n = shared->samples[l];
    for (int i = 0; i < n; i++) {
        all[i] = 0;
        for (int rank = 0; rank < ranks; rank++)
            if (shared->times[l][i][rank] > all[i]) all[i] = shared->times[l][i][rank];
    }
    qsort(all, n, sizeof *all, by_size);
    return n % 2 ? all[n / 2] : (all[n / 2 - 1] + all[n / 2]) / 2;
}

static const char* mode_of(const Case* c) {
    static char mode[32];
    snprintf(mode, sizeof mode, "%s/%s", c->eager ? "eager" : "graph", kinds[c->kind]);
    return mode;
}

static void report(const Case* c) {
    double nccl = median(0), other = median(1), moved = (double)c->bytes * (ranks - 1) / ranks;
    if (c->collective == ALL_REDUCE) moved *= 2;
    printf("%-12s %-14s %-4s %11zu %11.2f %11.2f %7.3f %9.1f %9.1f\n", sockets ? "sockets" : mode_of(c), collectives[c->collective],
           c->type == BF16 ? "bf16" : "f32", c->bytes, nccl, other, other / nccl, moved / nccl / 1e3, moved / other / 1e3);
    fflush(stdout);
    FILE* file = json ? fopen(json, "a") : NULL;
    if (!file) return;
    fprintf(file,
            "{\"device\": \"%s\", \"ranks\": %d, \"nccl_version\": %d, \"time\": %ld, \"mode\": \"%s\", \"sockets\": %s, \"collective\": "
            "\"%s\", \"type\": \"%s\", \"bytes\": %zu, \"nccl_us\": %.3f, \"symrail_us\": %.3f}\n",
            device_name, ranks, nccl_version, (long)time(NULL), mode_of(c), sockets ? "true" : "false",
            collectives[c->collective], c->type == BF16 ? "bf16" : "f32", c->bytes, nccl, other);
    fclose(file);
}

static void run_case(const Case* c) {
    void* graphs[2] = {NULL, NULL};
    size_t calls = calls_of(c);
    shared->preparing = 1;
    prepare(c->type, c->kind);
    meet();
    shared->preparing = 0;
    for (int l = 0; l < 2; l++) {
        Library* library = &libraries[l];
        CU(fill(library->dest[c->kind], 0xee, c->bytes));
        CU(ctx_sync());
        meet();
        call(library, c);
        CU(sync(stream));
        verify(library, c, "a first call");
        meet();
        shared->samples[l] = 0;
        if (c->eager) {
            for (size_t i = 0; i < calls; i++) call(library, c);
            CU(sync(stream));
        } else {
            graphs[l] = capture(library, c, calls);
            meet();
            CU(launch(graphs[l], stream));
            CU(sync(stream));
        }
        shared->seen = now();
        meet();
    }
    /* The libraries alternate. The first rank decides how often. */
    double begun = now(), patience = sockets ? 0.6 : 0.25;
    for (int round = 0; round < ROUNDS; round++)
        for (int l = 0; l < 2; l++) {
            int most = MOST_SAMPLES / ROUNDS;
            for (int i = 0; i < most; i++) {
                meet();
                CU(record(events[0], stream));
                if (c->eager) for (size_t k = 0; k < calls; k++) call(&libraries[l], c);
                else CU(launch(graphs[l], stream));
                CU(record(events[1], stream));
                CU(sync(stream));
                float ms = 0;
                CU(elapsed(&ms, events[0], events[1]));
                int sample = shared->samples[l];
                shared->times[l][sample][me] = ms * 1e3 / calls;
                meet();
                if (me == 0) {
                    shared->samples[l] = sample + 1;
                    shared->seen = now();
                    /* At least three samples of each in every round. */
                    shared->enough = i >= 2 && now() - begun > patience * (2 * round + l + 1) / (2 * ROUNDS);
                }
                meet();
                if (shared->enough) break;
            }
        }
    for (int l = 0; l < 2; l++) {
        CU(fill(libraries[l].dest[c->kind], 0xee, c->bytes));
        CU(ctx_sync());
        meet();
        if (c->eager) call(&libraries[l], c);
        else CU(launch(graphs[l], stream));
        CU(sync(stream));
        verify(&libraries[l], c, "repeated calls");
        if (graphs[l]) CU(exec_free(graphs[l]));
        meet();
    }
    if (me == 0) report(c);
}

static void add(int eager, int kind, int collective, int type, const size_t* sizes) {
    for (; *sizes; sizes++) {
        Case c = {eager, kind, collective, type, *sizes};
        if (*sizes < least || *sizes > most || strncmp(mode_of(&c), only, strlen(only)) != 0) continue;
        cases[n_cases++] = c;
        if (*sizes > largest) largest = *sizes;
    }
}

#define KIB(n) ((size_t)(n) << 10)
#define MIB(n) ((size_t)(n) << 20)
static void list_cases(void) {
    static const size_t all[] = {8, KIB(1), KIB(8), KIB(24), KIB(64), KIB(256), MIB(1), MIB(2), MIB(4), MIB(8), MIB(16), MIB(64), MIB(256), MIB(1024), 0};
    static const size_t some[] = {KIB(8), KIB(64), KIB(256), MIB(1), MIB(4), MIB(16), MIB(64), MIB(256), 0};
    static const size_t few[] = {8, KIB(24), MIB(1), MIB(16), MIB(256), 0};
    static const size_t wire[] = {KIB(64), KIB(256), MIB(1), MIB(4), MIB(16), MIB(64), MIB(256), 0};
    if (sockets) {
        add(1, PLAIN, ALL_REDUCE, BF16, wire);
        return;
    }
    add(0, PLAIN, ALL_REDUCE, BF16, all);
    add(0, PLAIN, ALL_GATHER, BF16, some);
    add(0, PLAIN, REDUCE_SCATTER, BF16, some);
    add(1, PLAIN, ALL_REDUCE, BF16, few);
    add(0, ALLOC, ALL_REDUCE, BF16, few);
    add(0, PLAIN, ALL_REDUCE, F32, some);
    add(0, WINDOW, ALL_REDUCE, BF16, few);
}

static void child(int rank, int first, char** paths) {
    me = rank;
    load_cuda();
    int count = 0, device;
    void* context;
    CU(init(0));
    CU(count(&count));
    if (count < 1) fail("there is no GPU");
    CU(get(&device, rank % count));
    CU(name(device_name, sizeof device_name, device));
    CU(retain(&context, device));
    CU(set(context));
    CU(stream(&stream, 1));
    CU(event(&events[0], 0));
    CU(event(&events[1], 0));
    CU(pinned((void**)&pinned, PINNED, 0));
    inputs = malloc(largest);
    sums = malloc(largest);
    if (!inputs || !sums) fail("no memory for %zu bytes", largest);
    static const char* const names[] = {"NCCL", "Symrail"};
    for (int l = 0; l < 2; l++) {
        double begun = now();
        load(&libraries[l], paths[l], names[l]);
        if (rank == 0) NCCL(&libraries[l], unique(&shared->ids[l]));
        meet();
        NCCL(&libraries[l], join(&libraries[l].comm, ranks, shared->ids[l], rank));
        shared->seen = now();
        meet();
        if (l == 0) libraries[l].version(&nccl_version);
        if (rank == 0 && first == 0) printf("%s: a communicator of %d ranks took %.1f s\n", paths[l], ranks, now() - begun);
    }
    if (rank == 0 && first == 0) {
        printf("%s, NCCL %d, %d ranks; us: medians of the slower rank\n", device_name, nccl_version, ranks);
        printf("%-12s %-14s %-4s %11s %11s %11s %7s %9s %9s\n", "mode", "collective", "type", "bytes", "NCCL us", "Symrail us", "ratio", "bus GB/s", "bus GB/s");
        fflush(stdout);
    }
    for (int at = first; at < n_cases; at++) {
        meet();
        if (rank == 0) shared->at = at;
        meet();
        run_case(&cases[at]);
    }
    meet();
    for (int l = 1; l >= 0; l--) libraries[l].destroy(libraries[l].comm);
    _exit(0);
}

/* Runs cases from `first` on; returns the next case to run. */
static int generation(int first, char** paths, double until) {
    pid_t pids[MOST_RANKS];
    memset(shared, 0, sizeof *shared);
    shared->at = first;
    shared->seen = now();
    fflush(stdout);
    for (int rank = 0; rank < ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) child(rank, first, paths);
    }
    int left = ranks, bad = 0;
    while (left > 0) {
        for (int rank = 0; rank < ranks; rank++) {
            int status;
            if (pids[rank] <= 0 || waitpid(pids[rank], &status, WNOHANG) != pids[rank]) continue;
            pids[rank] = 0;
            left--;
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                bad = 1;
                if (__sync_bool_compare_and_swap(&shared->failed, 0, 1))
                    snprintf(shared->why, sizeof shared->why, "rank %d ended with status %#x", rank, status);
            }
        }
        int late = now() - shared->seen > PATIENCE, over = now() > until;
        if (!bad && (late || over)) {
            bad = 1;
            if (__sync_bool_compare_and_swap(&shared->failed, 0, 1))
                snprintf(shared->why, sizeof shared->why, over ? "the time is over" : "nothing happened for %.0f s", PATIENCE);
        }
        if (bad) {
            usleep(300000);
            for (int rank = 0; rank < ranks; rank++)
                if (pids[rank] > 0) kill(pids[rank], SIGKILL);
            bad = 2;
        }
        usleep(2000);
    }
    if (!bad && !shared->failed) return n_cases;
    int at = shared->at;
    const Case* c = &cases[at];
    printf("FAILED: %s %s %s of %zu bytes: %s\n", sockets ? "sockets" : mode_of(c), collectives[c->collective],
           c->type == BF16 ? "bf16" : "f32", c->bytes, shared->why);
    fflush(stdout);
    /* If memory of a kind is missing, all such cases are skipped. */
    int next = at + 1;
    while (shared->preparing && next < n_cases && cases[next].kind == c->kind && c->kind != PLAIN) next++;
    return next;
}

int main(int argc, char** argv) {
    double seconds = 150;
    if (argc < 3) {
        fprintf(stderr, "usage: %s NCCL OTHER [--ranks N] [--json FILE] [--only MODE] [--least BYTES] [--most BYTES] [--seconds S] [--sockets]\n", argv[0]);
        return 2;
    }
    for (int i = 3; i < argc; i++) {
        const char* next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--sockets") == 0) sockets = 1;
        else if (strcmp(argv[i], "--ranks") == 0) ranks = atoi(next), i++;
        else if (strcmp(argv[i], "--json") == 0) json = next, i++;
        else if (strcmp(argv[i], "--only") == 0) only = next, i++;
        else if (strcmp(argv[i], "--least") == 0) least = strtoull(next, NULL, 10), i++;
        else if (strcmp(argv[i], "--most") == 0) most = strtoull(next, NULL, 10), i++;
        else if (strcmp(argv[i], "--seconds") == 0) seconds = atof(next), i++;
        else return fprintf(stderr, "what is %s?\n", argv[i]), 2;
    }
    if (ranks < 2 || ranks > MOST_RANKS) return fprintf(stderr, "2 to %d ranks\n", MOST_RANKS), 2;
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("SYMRAIL_TIMEOUT_S", "20", 0);
    if (sockets) {
        setenv("NCCL_P2P_DISABLE", "1", 1);
        setenv("NCCL_SHM_DISABLE", "1", 1);
        setenv("NCCL_IB_DISABLE", "1", 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 0);
        setenv("SYMRAIL_DISABLE_P2P", "1", 1);
        setenv("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm", 0);
        /* The setting of `symrail run --rails 4`: each address is a rail, with its own connection to the other rank.
         * NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD give NCCL more connections. */
        setenv("SYMRAIL_NIC_LIST", "127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5", 0);
        setenv("FI_OFI_RXM_BUFFER_SIZE", "4304", 0);
        setenv("FI_OFI_RXM_MSG_RX_SIZE", "256", 0);
        setenv("FI_OFI_RXM_RX_SIZE", "256", 0);
        setenv("FI_UNIVERSE_SIZE", "16", 0);
    }
    list_cases();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return perror("mmap"), 1;
    double until = now() + seconds;
    int failures = 0;
    for (int at = 0; at < n_cases;) {
        int next = generation(at, argv + 1, until);
        if (shared->failed) failures++;
        at = next;
        if (now() > until && at < n_cases) {
            printf("FAILED: %d cases were not run: the time is over\n", n_cases - at);
            failures++;
            break;
        }
        if (failures >= 8) {
            printf("FAILED: too much went wrong, %d cases were not run\n", n_cases - at);
            break;
        }
    }
    return failures != 0;
}
