/* One mistake, named by the first argument. */

#include "check.h"
#include <shmemx.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int word, words[64], others[64];
static long lock, sync_words[SHMEM_REDUCE_SYNC_SIZE];

/* Locks a stream and keeps the lock. */
static int held;
static void *hold(void *stream)
{
    flockfile(stream);
    __atomic_store_n(&held, 1, __ATOMIC_RELEASE);
    for (;;) pause();
    return NULL;
}

/* An address of the symmetric heap behind its memory, which is 64 MiB and grows by as much. */
static void *behind(void) { return (char *)shmem_malloc(64) + ((size_t)300 << 20); }

/* Makes calls for ever, also while the process ends. */
static int calls;
static void *call(void *unused)
{
    for (;;) {
        shmem_int_atomic_inc(&word, shmem_my_pe());
        __atomic_store_n(&calls, 1, __ATOMIC_RELEASE);
    }
    return unused;
}

/* The last PE makes a mistake while the others wait. */
static void last_is_wrong(int me, int n)
{
    static long target;
    if (me == n - 1) shmem_long_p(&target, 1, 99);
    shmem_barrier_all();
}

#define MISTAKE(name) else if (strcmp(which, #name) == 0)

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "before_init") == 0) shmem_my_pe();
    if (strcmp(which, "others_call") == 0) {
        int level;
        CHECK(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &level) == 0);
    } else {
        shmem_init();
    }
    const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;
    int on_stack = 0;
    shmem_ctx_t ctx;
    shmem_team_t evens;
    CHECK(shmem_ctx_create(0, &ctx) == 0);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, NULL, 0, &evens) == 0);
    if (0) {}
    /* A power of two that the heap does not have is no mistake. */
    MISTAKE(none) CHECK(shmem_align((size_t)1 << 40, 8) == NULL);
    MISTAKE(wrong_pe) shmem_int_p(&word, 1, n);
    MISTAKE(negative_pe) (void)shmem_int_atomic_fetch_add(&word, 1, -1);
    MISTAKE(wrong_pe_of_context) shmem_ctx_int_put(ctx, words, words, 1, n);
    MISTAKE(not_symmetric) shmem_int_p(&on_stack, 1, next);
    MISTAKE(half_symmetric) shmem_putmem(words, others, (size_t)1 << 40, next);
    MISTAKE(null_source) shmem_int_put(words, NULL, 4, next);
    MISTAKE(null_dest) shmem_int_get(NULL, words, 4, next);
    MISTAKE(null_target) shmem_int_put(NULL, words, 4, next);
    MISTAKE(null_wait) shmem_int_wait_until(NULL, SHMEM_CMP_EQ, 1);
    MISTAKE(behind_wait) shmem_long_wait_until(behind(), SHMEM_CMP_EQ, 1);
    MISTAKE(behind_wait_any) {
        const size_t found = shmem_int_wait_until_any(behind(), 4, NULL, SHMEM_CMP_EQ, 1);
        CHECK(found == 0);
    }
    MISTAKE(behind_test) shmem_int_test(behind(), SHMEM_CMP_EQ, 1);
    MISTAKE(behind_test_all) shmem_int_test_all(behind(), 4, NULL, SHMEM_CMP_EQ, 1);
    MISTAKE(behind_signal) shmem_signal_wait_until(behind(), SHMEM_CMP_EQ, 1);
    MISTAKE(behind_signal_fetch) (void)shmem_signal_fetch(behind());
    MISTAKE(behind_p) shmem_int_p(behind(), 1, next);
    MISTAKE(behind_g) (void)shmem_int_g(behind(), next);
    MISTAKE(behind_amo) shmem_int_atomic_inc(behind(), next);
    MISTAKE(behind_source) shmem_putmem(words, behind(), 64, next);
    MISTAKE(behind_dest) shmem_getmem(behind(), words, 64, next);
    MISTAKE(behind_put_signal) {
        static uint64_t s;
        shmem_putmem_signal(words, behind(), 8, &s, 1, SHMEM_SIGNAL_SET, next);
    }
    MISTAKE(behind_fetch) { shmem_int_atomic_fetch_nbi(behind(), words, next); shmem_quiet(); }
    MISTAKE(behind_iput) shmem_int_iput(words, behind(), 1, 2, 4, next);
    MISTAKE(behind_lock) shmem_set_lock(behind());
    MISTAKE(behind_sync) shmem_sync(0, 0, n, behind());
    MISTAKE(misaligned_sync) shmem_sync(0, 0, n, (long *)((char *)sync_words + 4));
    MISTAKE(misaligned_wait) shmem_long_wait_until((long *)((char *)words + 1), SHMEM_CMP_EQ, 1);
    /* Sources and destinations that begin in the heap's memory and end behind it. */
    MISTAKE(over_alltoallsmem) {
        const char *const end = (char *)shmem_malloc(60 << 20) + (60 << 20);
        shmem_alltoallsmem(SHMEM_TEAM_WORLD, words, end - 64, 1, 100 << 20, 1);
    }
    MISTAKE(over_alltoallmem) shmem_alltoallmem(SHMEM_TEAM_WORLD, words, behind(), 8);
    MISTAKE(over_broadcastmem) shmem_broadcastmem(SHMEM_TEAM_WORLD, words, behind(), 8, me);
    MISTAKE(over_broadcast_dest) shmem_broadcastmem(SHMEM_TEAM_WORLD, behind(), words, 8, 0);
    MISTAKE(over_collectmem) shmem_collectmem(SHMEM_TEAM_WORLD, words, behind(), 8);
    MISTAKE(over_fcollectmem) shmem_fcollectmem(SHMEM_TEAM_WORLD, behind(), words, 8);
    MISTAKE(over_reduce) shmem_int_sum_reduce(SHMEM_TEAM_WORLD, words, behind(), 4);
    MISTAKE(over_scan) shmemx_int_sum_inscan(SHMEM_TEAM_WORLD, words, behind(), 4);
    MISTAKE(over_broadcast64) shmem_broadcast64(behind(), words, 4, 0, 0, 0, n, sync_words);
    MISTAKE(over_sum_to_all) shmem_int_sum_to_all(words, behind(), 4, 0, 0, n, others, sync_words);
    MISTAKE(misaligned) (void)shmem_int_atomic_fetch((int *)((char *)words + 1), next);
    MISTAKE(second_init) shmem_init();
    MISTAKE(after_finalize) { shmem_finalize(); shmem_barrier_all(); }
    MISTAKE(second_finalize) { shmem_finalize(); shmem_finalize(); }
    MISTAKE(comparison) shmem_int_wait_until(&word, 99, 1);
    MISTAKE(signal) { static uint64_t s; shmem_int_put_signal(words, others, 1, &s, 1, 7, next); }
    MISTAKE(destroyed_context) { shmem_ctx_destroy(ctx); shmem_ctx_int_p(ctx, &word, 1, next); }
    MISTAKE(context_of_destroyed_team) {
        shmem_team_t all;
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &all) == 0);
        CHECK(shmem_team_create_ctx(all, 0, &ctx) == 0);
        shmem_team_destroy(all);
        shmem_ctx_int_p(ctx, &word, 1, next);
    }
    MISTAKE(invalid_context) shmem_ctx_int_p(SHMEM_CTX_INVALID, &word, 1, next);
    MISTAKE(invalid_team) shmem_int_sum_reduce(SHMEM_TEAM_INVALID, words, others, 1);
    MISTAKE(not_in_team) { if (me % 2 == 1) shmem_int_sum_reduce(evens, words, others, 1); }
    MISTAKE(root) shmem_int_broadcast(SHMEM_TEAM_WORLD, words, others, 1, n);
    MISTAKE(overlap) shmem_int_sum_reduce(SHMEM_TEAM_WORLD, words + 1, words, 8);
    /* Products that overflow: to 4 bytes, to a multiple of the address space, and to the first element. */
    MISTAKE(too_many) shmem_int_sum_reduce(SHMEM_TEAM_WORLD, words, words, ((size_t)1 << 62) + 1);
    MISTAKE(too_many_blocks) shmem_int_fcollect(SHMEM_TEAM_WORLD, words, others, (size_t)1 << 61);
    MISTAKE(too_far_apart) shmem_int_alltoalls(SHMEM_TEAM_WORLD, words, others, (ptrdiff_t)1 << 62, 1, 2);
    MISTAKE(overlap_of_collect) shmem_int_fcollect(SHMEM_TEAM_WORLD, words, words + 8, 8);
    MISTAKE(destroy_world) shmem_team_destroy(SHMEM_TEAM_WORLD);
    MISTAKE(active_set) shmem_int_sum_to_all(words, others, 1, 0, 0, n + 1, words, sync_words);
    MISTAKE(overlap_of_set) shmem_int_sum_to_all(words + 1, words, 8, 0, 0, n, others, sync_words);
    MISTAKE(overlap_of_fcollect64) shmem_fcollect64(words, words + 8, 4, 0, 0, n, sync_words);
    MISTAKE(free_middle) shmem_free((char *)shmem_malloc(100) + 8);
    MISTAKE(free_static) shmem_free(words);
    MISTAKE(different_sizes) shmem_malloc((size_t)(me + 1) * 1000);
    MISTAKE(alignment) shmem_align(24, 100);
    MISTAKE(lock_not_held) shmem_clear_lock(&lock);
    MISTAKE(lock_of_another) {
        if (me == 0) shmem_set_lock(&lock);
        shmem_barrier_all();
        if (me == 1) shmem_clear_lock(&lock);
        shmem_barrier_all();
    }
    MISTAKE(lock_not_zero) { lock = 0x7000000; shmem_barrier_all(); shmem_set_lock(&lock); }
    MISTAKE(tested_lock_not_zero) { lock = 0x7000000; shmem_barrier_all(); shmem_test_lock(&lock); }
    MISTAKE(lock_with_an_entry) { lock = 5L << 32; shmem_barrier_all(); shmem_set_lock(&lock); }
    MISTAKE(lock_held_twice) { shmem_set_lock(&lock); shmem_set_lock(&lock); }
    MISTAKE(held_lock) {
        if (me == 0) shmem_set_lock(&lock);
        shmem_barrier_all();
        if (me == 0) sleep(6);
        else shmem_set_lock(&lock);
        shmem_clear_lock(&lock);
    }
    /* The third element would be in front of the first one, if its place were computed modulo 2^64. */
    MISTAKE(far_iput) shmem_int_iput(words + 4, others, PTRDIFF_MAX, 1, 3, next);
    MISTAKE(far_iget) shmem_int_iget(others, words + 4, 1, PTRDIFF_MAX, 3, next);
    MISTAKE(stride) shmem_int_iput(words, others, 0, 1, 4, next);
    /* The output printed before comes out, into pipes and files, unless another thread holds the stream's lock. */
    MISTAKE(after_printing) {
        FILE *const file = argc > 2 && me == n - 1 ? fopen(argv[2], "w") : NULL;
        if (file) fputs("into a file", file);
        printf("printed by PE %d", me);
        last_is_wrong(me, n);
    }
    MISTAKE(while_printing) {
        flockfile(stdout);
        printf("printed by PE %d", me);
        last_is_wrong(me, n);
    }
    MISTAKE(stream_is_held) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, hold, stdout) == 0);
        while (!__atomic_load_n(&held, __ATOMIC_ACQUIRE)) usleep(100);
        last_is_wrong(me, n);
    }
    MISTAKE(exit_after_printing) {
        printf("printed by PE %d", me);
        if (me == n - 1) shmem_global_exit(1);
        shmem_barrier_all();
    }
    /* Calls that differ, for SYMRAIL_CHECK_COLLECTIVES. */
    MISTAKE(other_collective) {
        if (me == 0) shmem_int_broadcast(SHMEM_TEAM_WORLD, words, others, 4, 0);
        else shmem_int_fcollect(SHMEM_TEAM_WORLD, words, others, 4);
    }
    MISTAKE(other_of_a_set) {
        if (me == 0) shmem_broadcast32(words, others, 4, 0, 0, 0, n, sync_words);
        else shmem_fcollect32(words, others, 4, 0, 0, n, sync_words);
    }
    MISTAKE(other_root) shmem_int_broadcast(SHMEM_TEAM_WORLD, words, others, 4, me == 0);
    MISTAKE(other_size) shmem_int_sum_reduce(SHMEM_TEAM_WORLD, words, others, (size_t)(me == 0 ? 4 : 5));
    MISTAKE(other_operation) {
        if (me == 0) shmem_int_sum_reduce(SHMEM_TEAM_WORLD, words, others, 4);
        else shmem_int_max_reduce(SHMEM_TEAM_WORLD, words, others, 4);
    }
    MISTAKE(other_type) {
        if (me == 0) shmem_int_sum_reduce(SHMEM_TEAM_WORLD, words, others, 4);
        else shmem_float_sum_reduce(SHMEM_TEAM_WORLD, (float *)words, (float *)others, 4);
    }
    MISTAKE(other_type_of_alltoall) {
        if (me == 0) shmem_int_alltoall(SHMEM_TEAM_WORLD, words, others, 2);
        else shmem_long_alltoall(SHMEM_TEAM_WORLD, (long *)words, (long *)others, 1);
    }
    MISTAKE(other_type_of_broadcast) {
        if (me == 0) shmem_uint_broadcast(SHMEM_TEAM_WORLD, (unsigned *)words, (unsigned *)others, 2, 0);
        else shmem_int_broadcast(SHMEM_TEAM_WORLD, words, others, 2, 0);
    }
    MISTAKE(other_type_of_collect) {
        if (me == 0) shmem_int_collect(SHMEM_TEAM_WORLD, words, others, 2);
        else shmem_double_collect(SHMEM_TEAM_WORLD, (double *)words, (double *)others, 1);
    }
    MISTAKE(other_type_of_a_team) {
        shmem_team_t all;
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &all) == 0);
        if (me == 0) shmem_int_max_reduce(all, words, others, 4);
        else shmem_float_max_reduce(all, (float *)words, (float *)others, 4);
    }
    MISTAKE(other_type_of_a_set) {
        if (me == 0) shmem_alltoall32(words, others, 2, 0, 0, n, sync_words);
        else shmem_alltoall64(words, others, 1, 0, 0, n, sync_words);
    }
    MISTAKE(other_type_of_sum_to_all) {
        if (me == 0) shmem_int_sum_to_all(words, others, 4, 0, 0, n, others, sync_words);
        else shmem_float_sum_to_all((float *)words, (float *)others, 4, 0, 0, n, (float *)others, sync_words);
    }
    MISTAKE(other_strides) {
        shmem_int_alltoalls(SHMEM_TEAM_WORLD, words, others, me == 0 ? 1 : 2, 1, 2);
    }
    MISTAKE(barrier_or_not) {
        if (me == 0) shmem_barrier_all();
        else shmem_int_alltoall(SHMEM_TEAM_WORLD, words, others, 1);
    }
    MISTAKE(memory_or_barrier) {
        if (me == 0) shmem_malloc(80);
        else shmem_barrier_all();
    }
    MISTAKE(end_or_barrier) {
        if (me == 0) shmem_finalize();
        else shmem_barrier_all();
        return 0;
    }
    /* Not mistakes, but other ways to end. */
    MISTAKE(fork) {
        const pid_t leaves = fork();
        if (leaves == 0) {
            shmem_finalize();
            exit(0);
        }
        const pid_t puts = fork();
        if (puts == 0) shmem_int_p(words, 1, next);
        int left, put;
        CHECK(waitpid(leaves, &left, 0) == leaves && waitpid(puts, &put, 0) == puts);
        CHECK(WIFEXITED(left) && WEXITSTATUS(left) == 0);
        CHECK(WIFEXITED(put) && WEXITSTATUS(put) == 1);
        shmem_barrier_all();
        CHECK(words[0] == 0);
        shmem_barrier_all();
        shmem_int_p(words, 5, next);
        shmem_barrier_all();
        CHECK(words[0] == 5);
    }
    MISTAKE(global_exit) { if (me == n - 1) shmem_global_exit(7); shmem_barrier_all(); }
    MISTAKE(no_finalize) return 0;
    MISTAKE(others_call) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, call, NULL) == 0);
        while (!__atomic_load_n(&calls, __ATOMIC_ACQUIRE)) usleep(100);
        return 0;
    }
    MISTAKE(exhausted) { CHECK(shmem_malloc((size_t)1 << 50) == NULL); CHECK(shmem_malloc(0) == NULL); }
    else {
        fprintf(stderr, "no mistake %s\n", which);
        return 9;
    }
    shmem_team_destroy(evens);
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return 0;
}
