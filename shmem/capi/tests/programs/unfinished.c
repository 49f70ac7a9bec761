/* A put fails on a context that the program does not destroy, because the connection of this context ends. PE 1 stops
 * itself meanwhile, so that the put is not delivered before. */

#include "stopped.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

enum { BYTES = 32 << 20, FILES = 1024 };

static long pid, stop, word;

/* Whether a file is a connected socket of the network. */
static int is_connection(int file)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    return getpeername(file, (struct sockaddr *)&peer, &len) == 0 &&
           (peer.ss_family == AF_INET || peer.ss_family == AF_INET6);
}

int main(int argc, char **argv)
{
    static int before[FILES];
    int level;
    if (argc == 2 && strcmp(argv[1], "threads") == 0) shmem_init_thread(SHMEM_THREAD_MULTIPLE, &level);
    else shmem_init();
    const int me = shmem_my_pe();
    char *const target = shmem_malloc(BYTES), *const source = calloc(BYTES, 1);
    CHECK(argc == 2 && target && source && shmem_n_pes() == 2);
    if (me == 1) shmem_long_p(&pid, (long)getpid(), 0);
    else shmem_long_p(&word, 1, 1);
    shmem_barrier_all();
    if (me == 0) {
        for (int file = 0; file < FILES; file++) before[file] = is_connection(file);
        shmem_ctx_t context;
        CHECK(shmem_ctx_create(0, &context) == 0);
        shmem_ctx_long_p(context, &word, 2, 1);
        shmem_ctx_quiet(context);
        /* Not completed here: PE 1 may stop itself before it has acknowledged this. */
        shmem_long_p(&stop, 1, 1);
        while (!is_stopped(pid)) {
        }
        shmem_ctx_putmem_nbi(context, target, source, BYTES, 1);
        int ended = 0;
        for (int file = 0; file < FILES; file++)
            if (is_connection(file) && !before[file]) ended += shutdown(file, SHUT_RDWR) == 0;
        CHECK(ended > 0);
        CHECK(kill((pid_t)pid, SIGCONT) == 0);
        /* The default context's connection is another one, over which its operations succeed. */
        shmem_long_p(&word, 3, 1);
        shmem_quiet();
    } else {
        shmem_long_wait_until(&stop, SHMEM_CMP_EQ, 1);
        CHECK(raise(SIGSTOP) == 0);
    }
    if (strcmp(argv[1], "finalize") == 0) shmem_finalize();
    return 0;
}
