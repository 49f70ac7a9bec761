// C++ chooses by overloading where C11 has generic routines. Each PE works on the next one's memory.

#include "check.h"
#include <cstdint>

static shmem_ctx_t ctx;
static int me, next, before;

template <typename T> static void rma()
{
    static T word, array[4];
    const T own[4] = {T(me + 1), T(me + 2), T(me + 3), T(me + 4)};
    T back[4] = {};
    shmem_p(&word, T(me + 1), next);
    shmem_put(ctx, array, own, 4, next);
    shmem_ctx_quiet(ctx);
    shmem_barrier_all();
    CHECK(word == T(before + 1) && array[3] == T(before + 4));
    CHECK(shmem_g(ctx, &word, next) == T(me + 1));
    shmem_get(back, array, 4, next);
    CHECK(back[3] == T(me + 4));
    shmem_barrier_all();
}

template <typename T> static void amo()
{
    static T word;
    shmem_atomic_set(&word, T(10), next);
    CHECK(shmem_atomic_fetch_add(ctx, &word, T(5), next) == T(10));
    CHECK(shmem_atomic_compare_swap(&word, T(15), T(2), next) == T(15));
    CHECK(shmem_atomic_swap(&word, T(7), next) == T(2));
    shmem_barrier_all();
    CHECK(shmem_test(&word, SHMEM_CMP_EQ, T(7)));
    shmem_wait_until(&word, SHMEM_CMP_LE, T(7));
    shmem_barrier_all();
}

template <typename T> static void reduce()
{
    static T source, dest;
    source = T(me + 1);
    shmem_barrier_all();
    CHECK(shmem_sum_reduce(SHMEM_TEAM_WORLD, &dest, &source, 1) == 0);
    const int n = shmem_n_pes();
    CHECK(dest == T(n * (n + 1) / 2));
    shmem_barrier_all();
}

// Constructed before main: static objects keep their values when they become symmetric.
struct Counted {
    long count;
    Counted() : count(42) {}
};
static Counted counted;

int main()
{
    shmem_init();
    me = shmem_my_pe();
    next = (me + 1) % shmem_n_pes();
    before = (me + shmem_n_pes() - 1) % shmem_n_pes();
    CHECK(shmem_ctx_create(0, &ctx) == 0);
    rma<float>(), rma<double>(), rma<long double>(), rma<char>(), rma<short>(), rma<int>(), rma<long>();
    rma<unsigned char>(), rma<std::int8_t>(), rma<std::uint64_t>(), rma<std::size_t>(), rma<std::ptrdiff_t>();
    amo<int>(), amo<long>(), amo<unsigned long long>(), amo<std::int32_t>(), amo<std::uint64_t>();
    reduce<int>(), reduce<double>(), reduce<long>();
    CHECK(shmem_g(&counted.count, next) == 42);
    CHECK(shmem_atomic_fetch_inc(&counted.count, next) == 42);
    shmem_barrier_all();
    CHECK(counted.count == 43);
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return 0;
}
