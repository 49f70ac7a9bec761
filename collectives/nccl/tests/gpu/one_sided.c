/* Windows, puts with signals, signals and waits, in processes that may share a GPU: checks each byte, each order and
 * 100 replays of a graph; and that puts behind a wait that has ended without its signals change nothing. Each rank
 * prints "through" at the end.
 *
 *     cc -O2 -o one_sided one_sided.c -ldl
 *     one_sided LIBRARY [RANKS]    a library with NCCL's interface; 2 ranks, or up to 8 */
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 8
#define ROUNDS 100
#define LARGE ((size_t)3 << 20)
#define SMALL ((size_t)4096)
#define GUARD 0xEE
enum { BYTE = 1, F32 = 7, SYMMETRIC = 1, NOT_READY = 600, ARGUMENT = 4, USAGE = 5, REMOTE = 6, CONTEXTS = 4, IDS = 6 };
/* Indices of signals: data, acknowledgements, barriers, a call without data, and one that no rank sends. */
enum { DATA = 0, ACK = 1, BARRIER = 2, ALONE = 3, NEVER = 15 };

typedef void *Comm, *Window, *Stream;
typedef unsigned long long Device;
typedef struct {
    char bytes[128];
} Id;
typedef struct {
    int count, peer, signal, context;
} Wait;

static void *cuda, *nccl;
static int rank, ranks;
static Comm comm;
static Stream stream, aside, third;
/* How often processes have met, in memory of all. */
static int* arrived;

static void fail(const char* what, long long got, long long expected) {
    fprintf(stderr, "rank %d: %s: %lld, not %lld\n", rank, what, got, expected);
    exit(1);
}

static void* function(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (!found) fail(name, 0, 1);
    return found;
}

#define CU_CODE(name, types, ...) ((int (*) types)function(cuda, #name)) (__VA_ARGS__)
#define NCCL_CODE(name, types, ...) ((int (*) types)function(nccl, #name)) (__VA_ARGS__)
#define CU(name, types, ...) check(#name, CU_CODE(name, types, __VA_ARGS__))
#define NCCL(name, types, ...) check(#name, NCCL_CODE(name, types, __VA_ARGS__))

static const char* reason(void) { return ((const char* (*)(Comm))function(nccl, "ncclGetLastError"))(NULL); }

static void check(const char* name, int code) {
    if (code) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, name, name[0] == 'n' ? reason() : "");
        fail(name, code, 0);
    }
}

static void refused(const char* what, int code, int expected, const char* words) {
    if (code != expected) fail(what, code, expected);
    if (!strstr(reason(), words)) {
        fprintf(stderr, "rank %d: %s: \"%s\" lacks \"%s\"\n", rank, what, reason(), words);
        exit(1);
    }
}

static int try_put(Device from, size_t bytes, int peer, Window window, size_t offset, int signal, int context) {
    return NCCL_CODE(ncclPutSignal, (Device, size_t, int, int, Window, size_t, int, int, unsigned, Comm, Stream), from,
                     bytes, BYTE, peer, window, offset, signal, context, 0, comm, stream);
}
static void put(Device from, size_t bytes, int peer, Window window, size_t offset, int signal, int context) {
    check("ncclPutSignal", try_put(from, bytes, peer, window, offset, signal, context));
}
static void send_signal(int peer, int signal, int context) {
    NCCL(ncclSignal, (int, int, int, unsigned, Comm, Stream), peer, signal, context, 0, comm, stream);
}
static void wait_for_all(int number, Wait* waits) {
    NCCL(ncclWaitSignal, (int, Wait*, Comm, Stream), number, waits, comm, stream);
}
static void wait_for(int count, int peer, int signal, int context) {
    Wait wait = {count, peer, signal, context};
    wait_for_all(1, &wait);
}

static void drain(void) {
    CU(cuStreamSynchronize, (Stream), stream);
    int error = 0;
    NCCL(ncclCommGetAsyncError, (Comm, int*), comm, &error);
    check("a call on the stream", error);
}

static void barrier(void) {
    Wait waits[MOST];
    for (int peer = 0; peer < ranks; peer++) {
        send_signal(peer, BARRIER, 0);
        waits[peer] = (Wait){1, peer, BARRIER, 0};
    }
    wait_for_all(ranks, waits);
    drain();
}

/* Waits for all processes, without a GPU. */
static void meet(void) {
    static int times;
    __sync_fetch_and_add(arrived, 1);
    for (int all = ++times * ranks; __sync_fetch_and_add(arrived, 0) < all;) sched_yield();
}

static void expect_pending(const char* what) {
    for (int i = 0; i < 1000; i++) {
        int code = CU_CODE(cuStreamQuery, (Stream), stream);
        if (code != NOT_READY) fail(what, code, NOT_READY);
    }
}

/* Keeps what follows on the stream until the flag is set. */
static void until_set(void* flag) {
    while (!__sync_fetch_and_add((int*)flag, 0)) sched_yield();
}
static void keep_until(int* flag) { CU(cuLaunchHostFunc, (Stream, void (*)(void*), void*), stream, until_set, flag); }

static unsigned char pattern(int from, int round, size_t i) {
    return (unsigned char)((i * 2654435761u >> 13) + 31u * (unsigned)from + 7u * (unsigned)round);
}
static unsigned char* host(int from, int round, size_t bytes) {
    unsigned char* all = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) all[i] = pattern(from, round, i);
    return all;
}
static void upload(Device to, int from, int round, size_t bytes) {
    unsigned char* all = host(from, round, bytes);
    CU(cuMemcpyHtoD_v2, (Device, const void*, size_t), to, all, bytes);
    free(all);
}
static void fill(Device at, unsigned char byte, size_t bytes) {
    CU(cuMemsetD8Async, (Device, unsigned char, size_t, Stream), at, byte, bytes, stream);
}
static void copy(Device to, Device from, size_t bytes) {
    CU(cuMemcpyDtoDAsync_v2, (Device, Device, size_t, Stream), to, from, bytes, stream);
}
static unsigned char* download(Device from, size_t bytes) {
    unsigned char* all = malloc(bytes);
    drain();
    CU(cuMemcpyDtoH_v2, (void*, Device, size_t), all, from, bytes);
    return all;
}
static void expect(const char* what, Device at, int from, int round, size_t bytes) {
    unsigned char* all = download(at, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (all[i] != pattern(from, round, i)) {
            fprintf(stderr, "rank %d: %s: byte %zu of %zu\n", rank, what, i, bytes);
            fail(what, all[i], pattern(from, round, i));
        }
    free(all);
}
static void expect_guard(const char* what, Device at, size_t bytes) {
    unsigned char* all = download(at, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (all[i] != GUARD) fail(what, all[i], GUARD);
    free(all);
}

static Device allocate(size_t bytes) {
    Device at;
    CU(cuMemAlloc_v2, (Device*, size_t), &at, bytes);
    return at;
}
static Window reg(Device at, size_t bytes, int flags) {
    Window window = NULL;
    NCCL(ncclCommWindowRegister, (Comm, Device, size_t, Window*, int), comm, at, bytes, &window, flags);
    return window;
}
static void deregister(Window window) { NCCL(ncclCommWindowDeregister, (Comm, Window), comm, window); }

/* No signal is left over: a wait for one more lasts until it is sent, on another stream. */
static void none_left(int signal, int context) {
    Stream kept = stream;
    wait_for(1, (rank + ranks - 1) % ranks, signal, context);
    expect_pending("a wait for a signal that was not sent");
    meet();
    stream = aside;
    send_signal((rank + 1) % ranks, signal, context);
    drain();
    stream = kept;
    drain();
    barrier();
}

/* A wait ends after its signal and not before. The signal is sent when the wait was seen to last. */
static void waits_last(int* pipes) {
    char go = 0;
    if (rank == 0) {
        wait_for(2, 1, ALONE, 3);
        expect_pending("a wait without all of its signals");
        if (write(pipes[1], &go, 1) != 1) fail("write", 0, 1);
    } else if (rank == 1) {
        send_signal(0, ALONE, 3);
        drain();
        if (read(pipes[0], &go, 1) != 1) fail("read", 0, 1);
        send_signal(0, ALONE, 3);
    }
    drain();
    barrier();
}

/* All sizes, at offsets of any alignment, from each rank to the next one; and to itself. */
static void sizes(Device at, Window window, size_t all, Device source) {
    static const size_t some[] = {0, 1, 3, 8, 4097, 32 << 10, (32 << 10) + 1, (1 << 20) + 5, LARGE};
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int self = 0; self < 2; self++)
        for (int i = 0; i < (int)(sizeof some / sizeof *some); i++) {
            size_t bytes = some[i], offset = i % 2 ? 13 : 64;
            int to = self ? rank : next, from = self ? rank : before;
            fill(at, GUARD, all);
            upload(source + i % 3, rank, i, bytes);
            barrier();
            put(source + i % 3, bytes, to, window, offset, DATA, 0);
            wait_for(1, from, DATA, 0);
            expect("a put", at + offset, from, i, bytes);
            expect_guard("before a put", at, offset);
            expect_guard("behind a put", at + offset + bytes, all - offset - bytes);
            barrier();
        }
}

static size_t slot(int from, int context, int i) {
    return ((size_t)(from * CONTEXTS + context) * CONTEXTS + i) * SMALL;
}

/* Several signals of all contexts in one wait; counts above 1; what one wait leaves, the next one takes. */
static void counts(Device at, Window window, size_t all, Device source) {
    Wait waits[MOST * CONTEXTS];
    int number = 0;
    fill(at, GUARD, all);
    upload(source, rank, 0, SMALL);
    barrier();
    for (int peer = 0; peer < ranks; peer++)
        for (int context = 0; context < CONTEXTS; context++) {
            for (int i = 0; i <= context; i++)
                put(source, SMALL, peer, window, slot(rank, context, i), DATA, context);
            waits[number++] = (Wait){context + 1, peer, DATA, context};
        }
    wait_for_all(number, waits);
    for (int peer = 0; peer < ranks; peer++)
        for (int context = 0; context < CONTEXTS; context++)
            for (int i = 0; i <= context; i++)
                expect("one of many puts", at + slot(peer, context, i), peer, 0, SMALL);
    barrier();
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int i = 0; i < 5; i++) {
        upload(source + i * SMALL, rank, i, SMALL);
        put(source + i * SMALL, SMALL, next, window, i * SMALL, DATA, 0);
    }
    wait_for(2, before, DATA, 0);
    for (int i = 0; i < 2; i++) expect("the first two", at + i * SMALL, before, i, SMALL);
    /* Two descriptors of one signal take what is left. */
    Wait rest[] = {{1, before, DATA, 0}, {2, before, DATA, 0}};
    wait_for_all(2, rest);
    for (int i = 0; i < 5; i++) expect("all five", at + i * SMALL, before, i, SMALL);
    barrier();
    none_left(DATA, 0);
}

/* A signal of another index is behind the put before it, and a signal of a round never before its data. */
static void orders(Device at, Window window, Device source, Device seen) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = round % 2 ? LARGE : SMALL;
        fill(source, (unsigned char)(round + 1), bytes);
        put(source, bytes, next, window, 0, DATA, 0);
        send_signal(next, ALONE, 0);
        wait_for(1, before, ALONE, 0);
        /* Its first and last bytes, when the signal was seen. */
        copy(seen + 16 * round, at, 8);
        copy(seen + 16 * round + 8, at + bytes - 8, 8);
        wait_for(1, before, DATA, 0);
        send_signal(before, ACK, 0);
        wait_for(1, next, ACK, 0);
    }
    unsigned char* all = download(seen, 16 * ROUNDS);
    for (int i = 0; i < 16 * ROUNDS; i++)
        if (all[i] != (unsigned char)(i / 16 + 1)) fail("the data at a signal", all[i], i / 16 + 1);
    free(all);
    barrier();
}

/* On several streams, a put's signal is behind the puts before it, and waits take signals in their order. */
static void streams(Device at, Window window, Device source) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, sends = 0, waits = 0;
    Stream kept = stream;
    upload(source, rank, 50, LARGE + SMALL);
    fill(at, GUARD, LARGE + SMALL);
    barrier();
    keep_until(&sends);
    put(source, LARGE, next, window, 0, DATA, 3);
    stream = aside;
    put(source + LARGE, SMALL, next, window, LARGE, DATA, 3);
    expect_pending("a put behind one of another stream");
    meet();
    __sync_fetch_and_add(&sends, 1);
    wait_for(1, before, DATA, 3);
    expect("the first of two streams' puts", at, before, 50, LARGE);
    wait_for(1, before, DATA, 3);
    expect("both streams' puts", at, before, 50, LARGE + SMALL);
    stream = kept;
    barrier();
    keep_until(&waits);
    wait_for(2, before, DATA, 3);
    stream = aside;
    wait_for(1, before, DATA, 3);
    stream = third;
    send_signal(next, DATA, 3);
    drain();
    meet();
    stream = aside;
    expect_pending("a wait behind one of another stream");
    __sync_fetch_and_add(&waits, 1);
    stream = third;
    send_signal(next, DATA, 3);
    send_signal(next, DATA, 3);
    drain();
    stream = aside;
    drain();
    stream = kept;
    barrier();
}

/* The exchange of `orders` in a graph, with other bytes in each replay. */
static void graphs(Device at, Window window, Device source, Device seen) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    void *graph, *executable;
    CU(cuStreamBeginCapture_v2, (Stream, int), stream, 1);
    put(source, LARGE, next, window, 0, DATA, 1);
    put(source, SMALL, next, window, LARGE, DATA, 1);
    wait_for(2, before, DATA, 1);
    copy(seen, at, LARGE + SMALL);
    send_signal(before, ACK, 1);
    wait_for(1, next, ACK, 1);
    CU(cuStreamEndCapture, (Stream, void**), stream, &graph);
    CU(cuGraphInstantiateWithFlags, (void**, void*, unsigned long long), &executable, graph, 0);
    Device ends = seen + LARGE + SMALL;
    for (int round = 0; round < ROUNDS; round++) {
        fill(source, (unsigned char)(round + 1), LARGE);
        CU(cuGraphLaunch, (void*, Stream), executable, stream);
        /* Whole every tenth time, ends each time. */
        copy(ends + 24 * round, seen, 8);
        copy(ends + 24 * round + 8, seen + LARGE - 8, 8);
        copy(ends + 24 * round + 16, seen + LARGE + SMALL - 8, 8);
        if (round % 10 == 0) {
            unsigned char* all = download(seen, LARGE + SMALL);
            for (size_t i = 0; i < LARGE + SMALL; i++)
                if (all[i] != (unsigned char)(round + 1)) fail("a replay", all[i], round + 1);
            free(all);
        }
    }
    unsigned char* all = download(ends, 24 * ROUNDS);
    for (int i = 0; i < 24 * ROUNDS; i++)
        if (all[i] != (unsigned char)(i / 24 + 1)) fail("the end of a replay's data", all[i], i / 24 + 1);
    free(all);
    barrier();
    none_left(DATA, 1);
    none_left(ACK, 1);
    CU(cuGraphExecDestroy, (void*), executable);
    CU(cuGraphDestroy, (void*), graph);
}

/* A group begins at its end. */
static void group(Device at, Window window, Device source) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    upload(source, rank, 77, SMALL);
    barrier();
    NCCL(ncclGroupStart, (void));
    for (int i = 0; i < 3; i++) put(source, SMALL, next, window, i * SMALL, DATA, 2);
    wait_for(3, before, DATA, 2);
    NCCL(ncclGroupEnd, (void));
    for (int i = 0; i < 3; i++) expect("a put of a group", at + i * SMALL, before, 77, SMALL);
    barrier();
}

static void peers(Device at, Window window, Device seen) {
    int next = (rank + 1) % ranks;
    void *user, *there, *none = &user;
    upload(at, rank, 9, SMALL);
    barrier();
    NCCL(ncclWinGetUserPtr, (Comm, Window, void**), comm, window, &user);
    if ((Device)user != at) fail("the user's pointer", (long long)user, (long long)at);
    NCCL(ncclGetPeerDevicePointer, (Window, size_t, int, void**), window, 0, next, &there);
    copy(seen, (Device)there, SMALL);
    expect("a peer's memory", seen, next, 9, SMALL);
    NCCL(ncclGetLsaDevicePointer, (Window, size_t, int, void**), window, 16, next, &there);
    NCCL(ncclGetPeerDevicePointer, (Window, size_t, int, void**), window, 16, next, &user);
    if (there != user) fail("the pointers of both getters", (long long)there, (long long)user);
    NCCL(ncclGetLsaMultimemDevicePointer, (Window, size_t, void**), window, 0, &none);
    if (none) fail("a multicast pointer", 1, 0);
    barrier();
}

static void errors(Device source, Window window, size_t least) {
    Device plain = allocate(SMALL);
    Window foreign = reg(plain, SMALL, SYMMETRIC), own = reg(plain, SMALL, 0);
    Wait wait = {0, 0, 0, 0};
    refused("a peer", try_put(source, 8, ranks, window, 0, 0, 0), ARGUMENT, "the peer is");
    refused("a signal", try_put(source, 8, 0, window, 0, 16, 0), ARGUMENT, "sigIdx is 16");
    refused("a context", try_put(source, 8, 0, window, 0, 0, 4), ARGUMENT, "ctx is 4");
    refused("no window", try_put(source, 8, 0, NULL, 0, 0, 0), ARGUMENT, "the window is a null pointer");
    refused("an offset", try_put(source, 8, 0, window, least + 4096 * MOST, 0, 0), ARGUMENT, "rank 0's window");
    refused("no source", try_put(0, 8, 0, window, 0, 0, 0), ARGUMENT, "localbuff is a null pointer");
    refused("other memory", try_put(source, 8, 0, foreign, 0, 0, 0), ARGUMENT, "ncclMemAlloc");
    refused("an own window", try_put(source, 8, 0, own, 0, 0, 0), ARGUMENT, "NCCL_WIN_COLL_SYMMETRIC");
    int flags = NCCL_CODE(ncclSignal, (int, int, int, unsigned, Comm, Stream), 0, 0, 0, 1, comm, stream);
    refused("flags", flags, ARGUMENT, "flags is 1");
    int count = NCCL_CODE(ncclWaitSignal, (int, Wait*, Comm, Stream), 1, &wait, comm, stream);
    refused("no count", count, ARGUMENT, "opCnt is 0");
    deregister(own);
    deregister(foreign);
    refused("a window that was", try_put(source, 8, 0, foreign, 0, 0, 0), ARGUMENT, "none any more");
    CU(cuMemFree_v2, (Device), plain);
    barrier();
}

static void join(Id id, Comm* to) { NCCL(ncclCommInitRank, (Comm*, int, Id, int), to, ranks, id, rank); }

/* As `expect_guard`, also for a communicator that has failed. */
static void expect_kept(const char* what, Device at, size_t bytes) {
    unsigned char* all = malloc(bytes);
    CU(cuMemcpyDtoH_v2, (void*, Device, size_t), all, at, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (all[i] != GUARD) fail(what, all[i], GUARD);
    free(all);
}

/* Puts of one block and of many, all over the next rank's window. */
static void puts_behind(Device source, Window window) {
    int next = (rank + 1) % ranks;
    put(source, LARGE, next, window, 0, DATA, 0);
    put(source, SMALL, next, window, LARGE, DATA, 0);
    put(source, LARGE, next, window, SMALL, DATA, 0);
}

static void all_reduce(Device source) {
    NCCL(ncclAllReduce, (Device, Device, size_t, int, int, Comm, Stream), source, source, 8, F32, 0, comm, stream);
}

static void expect_failed(const char* what) {
    int error = 0;
    CU(cuStreamSynchronize, (Stream), stream);
    NCCL(ncclCommGetAsyncError, (Comm, int*), comm, &error);
    if (error == 0 || error == ARGUMENT || error == USAGE) fail(what, error, REMOTE);
}

/* Behind a wait whose time is over, that of a collective, too, puts of any size change nothing at the peer, and this
 * rank gets an error; the other ranks' collectives fail, too, and never use what it has not received. */
static void late(Id id, Device source, int is_mapped, int by_collective) {
    void* memory;
    setenv("SYMRAIL_TIMEOUT_S", "5", 1);
    join(id, &comm);
    NCCL(ncclMemAlloc, (void**, size_t), &memory, LARGE + SMALL);
    Window window = reg((Device)memory, LARGE + SMALL, SYMMETRIC);
    fill((Device)memory, GUARD, LARGE + SMALL);
    barrier();
    if (rank == 0) {
        if (by_collective) all_reduce(source);
        else wait_for(1, 1, NEVER, 0);
        if (is_mapped) puts_behind(source, window);
        if (is_mapped && !by_collective) all_reduce(source);
        expect_failed("a wait whose time is over");
        int code = NCCL_CODE(ncclSignal, (int, int, int, unsigned, Comm, Stream), 1, DATA, 0, 0, comm, stream);
        if (code == 0) fail("a call behind an error", code, REMOTE);
    }
    meet();
    expect_kept("a put behind a wait whose time is over", (Device)memory, LARGE + SMALL);
    if (rank != 0 && is_mapped && !by_collective) {
        all_reduce(source);
        expect_failed("a collective with a rank that has failed");
    }
    meet();
    NCCL(ncclCommAbort, (Comm), comm);
    NCCL(ncclMemFree, (void*), memory);
}

/* A group that begins in part ends the waits of the other ranks, which learn of it. */
static void told(Comm other) {
    int error = 0;
    if (rank == 0) {
        NCCL(ncclGroupStart, (void));
        send_signal(1, ALONE, 0);
        NCCL(ncclSignal, (int, int, int, unsigned, Comm, Stream), 1, ALONE, 0, 0, other, stream);
        NCCL(ncclCommSuspend, (Comm, int), other, 1);
        refused("a group", NCCL_CODE(ncclGroupEnd, (void)), USAGE, "suspended");
        NCCL(ncclCommResume, (Comm), other);
    } else {
        wait_for(1, 0, NEVER, 0);
        CU(cuStreamSynchronize, (Stream), stream);
        NCCL(ncclCommGetAsyncError, (Comm, int*), comm, &error);
        if (error != REMOTE) fail("the failure of rank 0", error, REMOTE);
    }
    meet();
}

/* The first call loads kernels, so it is refused while the stream captures, which goes on. */
static void first_in_graph(void) {
    void* graph;
    CU(cuStreamBeginCapture_v2, (Stream, int), stream, 1);
    int code = NCCL_CODE(ncclSignal, (int, int, int, unsigned, Comm, Stream), rank, ALONE, 0, 0, comm, stream);
    refused("a first call in a graph", code, USAGE, "is captured");
    CU(cuStreamEndCapture, (Stream, void**), stream, &graph);
    CU(cuGraphDestroy, (void*), graph);
}

static int run(Id* ids, int* pipes) {
    int gpus = 0;
    void* context;
    CU(cuInit, (unsigned), 0);
    CU(cuDeviceGetCount, (int*), &gpus);
    CU(cuDevicePrimaryCtxRetain, (void**, int), &context, rank % gpus);
    CU(cuCtxSetCurrent, (void*), context);
    CU(cuStreamCreate, (Stream*, unsigned), &stream, 1);
    CU(cuStreamCreate, (Stream*, unsigned), &aside, 1);
    CU(cuStreamCreate, (Stream*, unsigned), &third, 1);
    if (rank == 0)
        for (int i = 0; i < IDS; i++) NCCL(ncclGetUniqueId, (Id*), &ids[i]);
    for (int i = 0; rank == 0 && i < ranks - 1; i++)
        if (write(pipes[3], ids, IDS * sizeof *ids) != IDS * sizeof *ids) fail("write", 0, 1);
    if (rank != 0 && read(pipes[2], ids, IDS * sizeof *ids) != IDS * sizeof *ids) fail("read", 0, 1);
    join(ids[0], &comm);

    /* Windows of different sizes, at different places of memory of different sizes. */
    size_t least = LARGE + (1 << 20), all = least + (size_t)rank * 4096, start = (size_t)rank * 8192;
    void* memory;
    NCCL(ncclMemAlloc, (void**, size_t), &memory, start + all + ((size_t)rank << 21));
    Device at = (Device)memory + start, source = allocate(LARGE + SMALL + 64), seen = allocate(LARGE + (1 << 20));
    Window window = reg(at, all, SYMMETRIC);
    void* there;
    NCCL(ncclGetPeerDevicePointer, (Window, size_t, int, void**), window, 0, (rank + 1) % ranks, &there);
    barrier();
    waits_last(pipes);
    if (there) {
        sizes(at, window, all, source);
        counts(at, window, all, source);
        orders(at, window, source, seen);
        streams(at, window, source);
        graphs(at, window, source, seen);
        group(at, window, source);
        peers(at, window, seen);
        errors(source, window, least);
    } else {
        printf("rank %d: not mapped\n", rank);
        refused("a put that nothing carries", try_put(source, 8, (rank + 1) % ranks, window, 0, 0, 0), USAGE,
                "has not mapped rank");
    }
    waits_last(pipes);
    deregister(window);
    barrier();
    NCCL(ncclCommDestroy, (Comm), comm);
    NCCL(ncclMemFree, (void*), memory);

    /* Waits of a communicator that is revoked or aborted end; a window that is left ends with it. */
    join(ids[1], &comm);
    first_in_graph();
    NCCL(ncclMemAlloc, (void**, size_t), &memory, LARGE + SMALL);
    window = reg((Device)memory, LARGE + SMALL, SYMMETRIC);
    fill((Device)memory, GUARD, LARGE + SMALL);
    barrier();
    /* What is behind such a wait is not done. */
    wait_for(1, (rank + 1) % ranks, NEVER, 0);
    if (there) puts_behind(source, window);
    NCCL(ncclCommRevoke, (Comm, int), comm, 0);
    CU(cuStreamSynchronize, (Stream), stream);
    meet();
    expect_kept("a put behind a wait that was ended", (Device)memory, LARGE + SMALL);
    refused("a revoked communicator", try_put(source, 8, rank, window, 0, 0, 0), USAGE, "revoked");
    NCCL(ncclCommAbort, (Comm), comm);
    refused("no communicator", try_put(source, 8, rank, window, 0, 0, 0), ARGUMENT, "is no communicator");
    NCCL(ncclMemFree, (void*), memory);
    Comm other;
    join(ids[2], &other);
    join(ids[3], &comm);
    told(other);
    NCCL(ncclCommAbort, (Comm), other);
    NCCL(ncclCommAbort, (Comm), comm);
    late(ids[4], source, there != NULL, 0);
    if (there) late(ids[5], source, 1, 1);
    printf("rank %d: through\n", rank);
    return 0;
}

int main(int count, char** arguments) {
    int pipes[4], failed = 0;
    Id ids[IDS];
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    ranks = count > 2 ? atoi(arguments[2]) : 2;
    if (count < 2 || ranks < 2 || ranks > MOST) {
        fprintf(stderr, "usage: %s LIBRARY [RANKS]\n", arguments[0]);
        return 2;
    }
    if (!cuda) {
        printf("SKIPPED: no driver\n");
        return 0;
    }
    arrived = mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pipe(pipes) || pipe(pipes + 2) || arrived == MAP_FAILED) return 2;
    for (rank = 0; rank < ranks; rank++)
        if (fork() == 0) {
            alarm(150);
            nccl = dlopen(arguments[1], RTLD_NOW);
            if (!nccl) {
                fprintf(stderr, "%s\n", dlerror());
                return 2;
            }
            return run(ids, pipes);
        }
    for (int status; wait(&status) > 0;) failed |= !WIFEXITED(status) || WEXITSTATUS(status);
    return failed;
}
