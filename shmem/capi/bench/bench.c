/* Times what OpenSHMEM programs wait for, by the calls of the specification only, so that the same file serves every library.
 *
 *   bench pairs               operations of PE 0 on PE 1; needs 2 PEs
 *   bench collectives         any number of PEs; needs OpenSHMEM 1.5
 *   bench sets                the same by active sets, of all PEs, with two arrays in turn
 *   bench threads THREADS     puts by threads of PE 0, with a context for each and with one for all; needs 2 PEs
 *
 * PE 0 prints a line for each figure: name, bytes, median of the batches, unit. How many operations a batch has is decided by a
 * trial of how long they take. */

#define _GNU_SOURCE
#include <pthread.h>
#include <shmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCHES = 7, LARGEST = 1 << 20, WINDOW = 16, MOST_THREADS = 16 };
static const double BATCH_US = 30e3;

static int me, n;
static long calls, done, word, turn;
static char *source, *dest;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, size_t bytes, double *figures, const char *unit)
{
    if (me) return;
    qsort(figures, BATCHES, sizeof *figures, by_size);
    printf("%s %zu %.4g %s\n", name, bytes, figures[BATCHES / 2], unit);
    fflush(stdout);
}

/* PE 0 decides for all PEs how many calls make a batch, from the time that `tried` calls took. */
static long agree(long tried, double us)
{
    if (me == 0) {
        const double wanted = tried * BATCH_US / (us > 0 ? us : 1);
        const long count = wanted < 4 ? 4 : wanted > 400e3 ? 400000 : (long)wanted;
        for (int pe = n - 1; pe >= 0; pe--) shmem_long_p(&calls, count, pe);
        shmem_quiet();
    }
    shmem_barrier_all();
    return calls;
}

/* PE 0 has finished; the other PEs waited in a call meanwhile, as programs do. */
static void meet(void)
{
    turn++;
    if (me == 0) {
        shmem_quiet();
        shmem_long_p(&done, turn, 1);
        shmem_quiet();
    } else {
        shmem_long_wait_until(&done, SHMEM_CMP_GE, turn);
    }
    shmem_barrier_all();
}

/* ---- pairs ---- */

typedef void (*Operation)(size_t bytes, long i);

static volatile long sink;

static void put_quiet(size_t bytes, long i)
{
    (void)i;
    shmem_putmem(dest, source, bytes, 1);
    shmem_quiet();
}

static void get(size_t bytes, long i)
{
    (void)i;
    shmem_getmem(dest, source, bytes, 1);
}

static void fetch_add(size_t bytes, long i)
{
    (void)bytes, (void)i;
    sink = shmem_long_atomic_fetch_add(&word, 1, 1);
}

static void p(size_t bytes, long i)
{
    (void)bytes;
    shmem_long_p((long *)dest + i % 64, i, 1);
    if (i % 64 == 63) shmem_quiet();
}

static void put_nbi(size_t bytes, long i)
{
    const long window = bytes <= 4096 ? 1024 : WINDOW;
    shmem_putmem_nbi(dest + bytes * (i % (bytes <= 4096 ? 64 : WINDOW)), source, bytes, 1);
    if (i % window == window - 1) shmem_quiet();
}

static void get_nbi(size_t bytes, long i)
{
    const long window = bytes <= 4096 ? 64 : WINDOW;
    shmem_getmem_nbi(dest + bytes * (i % window), source, bytes, 1);
    if (i % window == window - 1) shmem_quiet();
}

static double operations(Operation operation, size_t bytes, long count)
{
    const double start = now_us();
    if (me == 0) {
        for (long i = 0; i < count; i++) operation(bytes, i);
        shmem_quiet();
    }
    const double took = now_us() - start;
    meet();
    return took;
}

static void pair(const char *name, Operation operation, size_t bytes, const char *unit)
{
    double figures[BATCHES];
    operations(operation, bytes, 64);
    const long count = agree(64, operations(operation, bytes, 64));
    for (int b = 0; b < BATCHES; b++) {
        const double us = operations(operation, bytes, count);
        figures[b] = *unit == 'u' ? us / count : *unit == 'M' ? count / us : bytes * (double)count / us;
    }
    print(name, bytes, figures, unit);
}

static double ping_pongs(long count)
{
    const double start = now_us();
    for (long i = 0; i < count; i++) {
        const long k = ++turn;
        if (me) shmem_long_wait_until(&word, SHMEM_CMP_EQ, k);
        shmem_long_p(&word, k, 1 - me);
        if (!me) shmem_long_wait_until(&word, SHMEM_CMP_EQ, k);
    }
    const double took = now_us() - start;
    shmem_barrier_all();
    return took;
}

static void pairs(void)
{
    double figures[BATCHES];
    pair("put+quiet", put_quiet, 8, "us");
    pair("put+quiet", put_quiet, 64, "us");
    pair("get", get, 8, "us");
    pair("fetch_add", fetch_add, 8, "us");
    word = 0;
    shmem_barrier_all();
    const long count = agree(64, ping_pongs(64));
    for (int b = 0; b < BATCHES; b++) figures[b] = ping_pongs(count) / count / 2;
    print("half_ping_pong", 8, figures, "us");
    pair("p_quiet_each_64", p, 8, "M/s");
    pair("put_nbi", put_nbi, 8, "M/s");
    pair("get_nbi", get_nbi, 8, "M/s");
    for (size_t bytes = 4096; bytes <= LARGEST; bytes *= 16) {
        pair("put_nbi", put_nbi, bytes, "B/us");
        pair("get_nbi", get_nbi, bytes, "B/us");
    }
}

/* ---- collectives ---- */

#if SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5

typedef void (*Collective)(size_t bytes);

static void barrier(size_t bytes) { (void)bytes, shmem_barrier_all(); }
static void sum(size_t bytes) { shmem_double_sum_reduce(SHMEM_TEAM_WORLD, (double *)dest, (double *)source, bytes / 8); }
static void broadcast(size_t bytes) { shmem_broadcastmem(SHMEM_TEAM_WORLD, dest, source, bytes, 0); }
static void fcollect(size_t bytes) { shmem_fcollectmem(SHMEM_TEAM_WORLD, dest, source, bytes); }
static void all_to_all(size_t bytes) { shmem_alltoallmem(SHMEM_TEAM_WORLD, dest, source, bytes); }

static double together(Collective collective, size_t bytes, long count)
{
    shmem_barrier_all();
    const double start = now_us();
    for (long i = 0; i < count; i++) collective(bytes);
    /* A root that only sends has not completed when its calls return. */
    shmem_barrier_all();
    return now_us() - start;
}

static void whole(const char *name, Collective collective, size_t bytes)
{
    double figures[BATCHES];
    const long count = agree(4, together(collective, bytes, 4));
    for (int b = 0; b < BATCHES; b++) figures[b] = together(collective, bytes, count) / count;
    print(name, bytes, figures, "us");
}

static void collect(size_t bytes) { shmem_collectmem(SHMEM_TEAM_WORLD, dest, source, bytes); }

struct named {
    const char *name;
    Collective collective;
};

/* All of these collectives, one size after the other. */
static void each_size(const struct named *each, size_t count)
{
    for (size_t bytes = 8; bytes <= 64 << 10; bytes *= bytes < 4096 ? 8 : 4)
        for (size_t i = 0; i < count; i++) whole(each[i].name, each[i].collective, bytes);
}

static void collectives(void)
{
    const struct named each[] = {
        {"sum", sum}, {"broadcast", broadcast}, {"fcollect", fcollect}, {"collect", collect}, {"alltoall", all_to_all},
    };
    whole("barrier_all", barrier, 0);
    each_size(each, sizeof each / sizeof *each);
}

static long arrays[2][SHMEM_BARRIER_SYNC_SIZE + SHMEM_REDUCE_SYNC_SIZE + SHMEM_COLLECT_SYNC_SIZE + SHMEM_ALLTOALL_SYNC_SIZE];
static double work[2][(64 << 10) / 16 + 1 + SHMEM_REDUCE_MIN_WRKDATA_SIZE];
static long uses;

static long *array(void) { return arrays[++uses % 2]; }
static void set_barrier(size_t bytes) { (void)bytes, shmem_barrier(0, 0, n, array()); }
static void set_sum(size_t bytes)
{
    long *const psync = array();
    shmem_double_sum_to_all((double *)dest, (double *)source, (int)(bytes / 8), 0, 0, n, work[uses % 2], psync);
}
static void set_broadcast(size_t bytes) { shmem_broadcast64(dest, source, bytes / 8, 0, 0, 0, n, array()); }
static void set_fcollect(size_t bytes) { shmem_fcollect64(dest, source, bytes / 8, 0, 0, n, array()); }
static void set_collect(size_t bytes) { shmem_collect64(dest, source, bytes / 8, 0, 0, n, array()); }
static void set_alltoall(size_t bytes) { shmem_alltoall64(dest, source, bytes / 8, 0, 0, n, array()); }

static void sets(void)
{
    for (size_t i = 0; i < sizeof arrays / sizeof(long); i++) (&arrays[0][0])[i] = SHMEM_SYNC_VALUE;
    const struct named each[] = {
        {"to_all", set_sum}, {"broadcast64", set_broadcast}, {"fcollect64", set_fcollect}, {"collect64", set_collect},
        {"alltoall64", set_alltoall},
    };
    whole("barrier", set_barrier, 0);
    each_size(each, sizeof each / sizeof *each);
}

#else

static void sets(void)
{
    if (!me) fprintf(stderr, "bench: this library has no teams\n");
}

static void collectives(void) { sets(); }

#endif

/* ---- threads ---- */

static shmem_ctx_t contexts[MOST_THREADS];
static long puts_each;

static void *putting(void *context)
{
    shmem_ctx_t ctx = *(shmem_ctx_t *)context;
    long *mine = (long *)dest + 64 * ((shmem_ctx_t *)context - contexts);
    for (long i = 0; i < puts_each; i++) {
        shmem_ctx_long_p(ctx, mine + i % 64, i, 1);
        if (i % 64 == 63) shmem_ctx_quiet(ctx);
    }
    shmem_ctx_quiet(ctx);
    return NULL;
}

static double by_threads(int count, long puts)
{
    pthread_t threads[MOST_THREADS];
    const double start = now_us();
    if (me == 0) {
        puts_each = puts;
        for (int t = 0; t < count; t++) pthread_create(&threads[t], NULL, putting, &contexts[t]);
        for (int t = 0; t < count; t++) pthread_join(threads[t], NULL);
    }
    const double took = now_us() - start;
    meet();
    return took;
}

static void threads(int count, int own)
{
    double figures[BATCHES];
    for (int t = 0; t < count; t++) {
        if (t > 0 && !own) contexts[t] = contexts[0];
        else if (shmem_ctx_create(own ? SHMEM_CTX_PRIVATE : 0, &contexts[t])) shmem_global_exit(1);
    }
    by_threads(count, 640);
    const long puts = agree(640, by_threads(count, 640));
    for (int b = 0; b < BATCHES; b++) figures[b] = count * puts / by_threads(count, puts);
    char name[64];
    snprintf(name, sizeof name, "p_by_%d_threads_%s", count, own ? "a_context_each" : "one_context");
    print(name, 8, figures, "M/s");
    for (int t = 0; t < (own ? count : 1); t++) shmem_ctx_destroy(contexts[t]);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int level;
    if (strcmp(what, "threads") == 0) shmem_init_thread(SHMEM_THREAD_MULTIPLE, &level);
    else shmem_init();
    me = shmem_my_pe();
    n = shmem_n_pes();
    const int all = strcmp(what, "collectives") == 0 || strcmp(what, "sets") == 0;
    const size_t bytes = all ? (size_t)(64 << 10) * n : (size_t)LARGEST * WINDOW;
    source = shmem_align(64, bytes);
    dest = shmem_align(64, bytes);
    if (!source || !dest) return 1;
    memset(source, 0, bytes);
    memset(dest, 0, bytes);
    shmem_barrier_all();
    if (strcmp(what, "pairs") == 0 && n == 2) pairs();
    else if (strcmp(what, "collectives") == 0) collectives();
    else if (strcmp(what, "sets") == 0) sets();
    else if (strcmp(what, "threads") == 0 && n == 2)
        for (int count = 1; count <= (argc > 2 ? atoi(argv[2]) : 4) && count <= MOST_THREADS; count *= 2) threads(count, 1), threads(count, 0);
    else if (!me) fprintf(stderr, "bench: see the first lines of bench.c\n");
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
