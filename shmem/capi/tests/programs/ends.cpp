// Ways of a program to end without a finalize in main, while a PE is late: exit handlers and destructors make calls that
// wait, some of them when values of the thread are gone.

#include <shmem.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LATE_S = 2 };

static long about_to_end;

static void finalize() { shmem_finalize(); }
static void meet_and_finalize()
{
    shmem_barrier_all();
    shmem_finalize();
}

struct Meets {
    ~Meets() { shmem_barrier_all(); }
};
struct Finalizes {
    ~Finalizes() { shmem_finalize(); }
};
struct Joins : Finalizes {
    Joins() { shmem_init(); }
};

// The last PE ends two seconds after the others have told that they are about to.
static void be_late()
{
    const int me = shmem_my_pe(), n = shmem_n_pes();
    if (me == n - 1) {
        shmem_long_wait_until(&about_to_end, SHMEM_CMP_EQ, n - 1);
        sleep(LATE_S);
    } else {
        shmem_long_atomic_inc(&about_to_end, n - 1);
        shmem_quiet();
    }
}

int main(int, char **argv)
{
    const char *const way = argv[1];
    const auto is = [way](const char *name) { return strcmp(way, name) == 0; };
    if (is("handler_before_init")) atexit(finalize);
    if (is("static_before_init")) static Finalizes before;
    if (is("thread_local_before_init")) {
        static thread_local Meets before;
        (void)&before;
    }
    if (is("joins")) static Joins joins;
    else shmem_init();
    if (is("handler")) atexit(meet_and_finalize);
    if (is("static")) static Meets after;
    if (is("thread_local")) {
        static thread_local Meets after;
        (void)&after;
    }
    be_late();
    if (is("exit")) exit(0);
    return 0;
}
