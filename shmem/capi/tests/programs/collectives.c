/* Every collective, on teams of every kind and on active sets, compared with a plain computation. */

#include "check.h"
#include <stdint.h>
#include <stdlib.h>

enum { MOST = 3000, MOST_PES = 8 };
static const size_t COUNTS[] = {1, 3, 130, MOST};
enum { COUNT_OF_COUNTS = sizeof COUNTS / sizeof COUNTS[0] };

/* The element `i` of PE `pe` (its index in the team). */
static long value(int pe, size_t i, int round) { return (long)((pe * 37 + i * 11 + (size_t)round * 5) % 113) + 1; }
/* A value as above, small enough for products. */
static long factor(int pe, size_t i) { return (long)((size_t)pe + i) % 7 + 1; }

/* All PEs of a team count alike. */
static long round_number;
static long rounds;

#define PREPARE(expression)                                                                                  \
    do {                                                                                                     \
        round_number++;                                                                                      \
        for (size_t i = 0; i < 2 * count * (size_t)n; i++) dest[i] = 0;                                            \
        for (size_t i = 0; i < 3 * count * (size_t)n; i++) source[i] = (expression);                      \
        CHECK(shmem_team_sync(team) == 0);                                                                   \
    } while (0)

#define REDUCTION(name, type, op, own, start, combine)                                                       \
    do {                                                                                                     \
        PREPARE((type)(own));                                                                                \
        type *to = in_place ? source : dest;                                                                 \
        CHECK(shmem_##name##_##op##_reduce(team, to, source, count) == 0);                                   \
        for (size_t i = 0; i < count; i++) {                                                                 \
            type expected = (type)(start);                                                                   \
            for (int index = 0; index < n; index++) {                                                        \
                const int me = index;                                                                        \
                const type theirs = (type)(own);                                                             \
                (void)me;                                                                                    \
                expected = (type)(combine);                                                                  \
            }                                                                                                \
            CHECK(to[i] == expected);                                                                        \
        }                                                                                                    \
    } while (0)

#define MOVES(name, type)                                                                                    \
    static void name##_moves(shmem_team_t team, type *dest, type *source, size_t count)                      \
    {                                                                                                        \
        const int n = shmem_team_n_pes(team), me = shmem_team_my_pe(team);                                   \
        const int round = (int)round_number;                                                                 \
        for (int root = 0; root < n; root++) {                                                               \
            PREPARE((type)value(me, i, round));                                                              \
            CHECK(shmem_##name##_broadcast(team, dest, source, count, root) == 0);                           \
            for (size_t i = 0; i < count; i++) CHECK(dest[i] == (type)value(root, i, round));                \
        }                                                                                                    \
        PREPARE((type)value(me, i, round));                                                                  \
        CHECK(shmem_##name##_fcollect(team, dest, source, count) == 0);                                      \
        for (int pe = 0; pe < n; pe++)                                                                       \
            for (size_t i = 0; i < count; i++)                                                               \
                CHECK(dest[(size_t)pe * count + i] == (type)value(pe, i, round));                            \
        /* Each PE has as many elements as its index says, the first none. */                                \
        PREPARE((type)value(me, i, round));                                                                  \
        CHECK(shmem_##name##_collect(team, dest, source, count * (size_t)me / (size_t)n) == 0);              \
        for (size_t pe = 0, at = 0; pe < (size_t)n; pe++)                                                    \
            for (size_t i = 0; i < count * pe / (size_t)n; i++)                                              \
                CHECK(dest[at++] == (type)value((int)pe, i, round));                                         \
        PREPARE((type)value(me, i, round));                                                                  \
        CHECK(shmem_##name##_alltoall(team, dest, source, count) == 0);                                      \
        for (int pe = 0; pe < n; pe++)                                                                       \
            for (size_t i = 0; i < count; i++)                                                               \
                CHECK(dest[(size_t)pe * count + i] == (type)value(pe, (size_t)me * count + i, round));       \
        PREPARE((type)value(me, i, round));                                                                  \
        CHECK(shmem_##name##_alltoalls(team, dest, source, 2, 3, count) == 0);                               \
        for (int pe = 0; pe < n; pe++)                                                                       \
            for (size_t i = 0; i < count; i++) {                                                             \
                const size_t from = ((size_t)me * count + i) * 3, to = ((size_t)pe * count + i) * 2;         \
                CHECK(dest[to] == (type)value(pe, from, round));                                             \
                CHECK(dest[to + 1] == 0);                                                                    \
            }                                                                                                \
    }

#define ARITHMETIC(name, type)                                                                               \
    static void name##_arithmetic(shmem_team_t team, type *dest, type *source, size_t count, int in_place)   \
    {                                                                                                        \
        const int n = shmem_team_n_pes(team), me = shmem_team_my_pe(team);                                   \
        const int round = (int)round_number;                                                                 \
        REDUCTION(name, type, sum, value(me, i, round), 0, expected + theirs);                               \
        REDUCTION(name, type, prod, factor(me, i), 1, expected * theirs);                                    \
    }

#define ORDER(name, type)                                                                                    \
    static void name##_order(shmem_team_t team, type *dest, type *source, size_t count, int in_place)        \
    {                                                                                                        \
        const int n = shmem_team_n_pes(team), me = shmem_team_my_pe(team);                                   \
        const int round = (int)round_number;                                                                 \
        REDUCTION(name, type, min, value(me, i, round), 127, theirs < expected ? theirs : expected);         \
        REDUCTION(name, type, max, value(me, i, round), 0, theirs > expected ? theirs : expected);           \
    }

#define BITS(name, type)                                                                                     \
    static void name##_bits(shmem_team_t team, type *dest, type *source, size_t count, int in_place)         \
    {                                                                                                        \
        const int n = shmem_team_n_pes(team), me = shmem_team_my_pe(team);                                   \
        const int round = (int)round_number;                                                                 \
        REDUCTION(name, type, and, value(me, i, round), ~(type)0, expected & theirs);                        \
        REDUCTION(name, type, or, value(me, i, round), 0, expected | theirs);                                \
        REDUCTION(name, type, xor, value(me, i, round), 0, expected ^ theirs);                               \
    }

#define MOVED(X) X(schar, signed char) X(short, short) X(int, int) X(double, double) X(longdouble, long double) X(size, size_t)
#define COMPARED(X) X(short, short) X(int, int) X(long, long) X(float, float) X(double, double) X(uint64, uint64_t)
#define BITWISE(X) X(uchar, unsigned char) X(ushort, unsigned short) X(uint, unsigned int) X(int64, int64_t)

MOVED(MOVES)
COMPARED(ARITHMETIC)
COMPARED(ORDER)
BITWISE(BITS)

/* Destination and source, in memory that is large enough for each type. */
static void *to, *from;

/* Every type with one count: four turns in a row are all pairs of a type and a count. */
static void team_collectives(shmem_team_t team, int turn)
{
    round_number = 0;
    size_t count;
#define TAKE_TURN count = COUNTS[(size_t)turn++ % COUNT_OF_COUNTS]
#define CALL_MOVES(name, type) TAKE_TURN, name##_moves(team, to, from, count);
    MOVED(CALL_MOVES)
    for (int in_place = 0; in_place < 2; in_place++) {
#define CALL_NUMBERS(name, type)                                                                             \
    TAKE_TURN, name##_arithmetic(team, to, from, count, in_place);                                           \
    name##_order(team, to, from, count, in_place);
#define CALL_BITS(name, type) TAKE_TURN, name##_bits(team, to, from, count, in_place);
        COMPARED(CALL_NUMBERS)
        BITWISE(CALL_BITS)
    }
    /* A collective of no elements is valid. */
    CHECK(shmem_int_broadcast(team, to, from, 0, 0) == 0);
    CHECK(shmem_int_fcollect(team, to, from, 0) == 0);
    CHECK(shmem_int_collect(team, to, from, 0) == 0);
    CHECK(shmem_int_alltoall(team, to, from, 0) == 0);
    CHECK(shmem_int_sum_reduce(team, to, from, 0) == 0);
    rounds += round_number;
}

static long broadcast_sync[SHMEM_BCAST_SYNC_SIZE], collect_sync[SHMEM_COLLECT_SYNC_SIZE];
static long alltoall_sync[SHMEM_ALLTOALL_SYNC_SIZE], alltoalls_sync[SHMEM_ALLTOALLS_SYNC_SIZE];
static long reduce_sync[2][SHMEM_REDUCE_SYNC_SIZE], barrier_sync[SHMEM_BARRIER_SYNC_SIZE];
static int work[MOST / 2 + 1 + SHMEM_REDUCE_MIN_WRKDATA_SIZE];

static void active_set_collectives(int start, int log_stride, int n)
{
    const int stride = 1 << log_stride, me = (shmem_my_pe() - start) / stride;
    if (shmem_my_pe() < start || (shmem_my_pe() - start) % stride != 0 || me >= n) return;
    int *dest = to, *source = from;
    for (size_t c = 0; c < COUNT_OF_COUNTS; c++) {
        const size_t count = COUNTS[c];
        for (size_t i = 0; i < 3 * count * (size_t)n; i++) source[i] = (int)value(me, i, 0);
        for (size_t i = 0; i < 2 * count * (size_t)n; i++) dest[i] = 0;
#define NEXT shmem_barrier(start, log_stride, n, barrier_sync)
        NEXT;
        const int root = n - 1;
        shmem_broadcast32(dest, source, count, root, start, log_stride, n, broadcast_sync);
        for (size_t i = 0; i < count; i++) CHECK(dest[i] == (me == root ? 0 : (int)value(root, i, 0)));
        NEXT;
        shmem_fcollect32(dest, source, count, start, log_stride, n, collect_sync);
        for (int pe = 0; pe < n; pe++)
            for (size_t i = 0; i < count; i++) CHECK(dest[(size_t)pe * count + i] == (int)value(pe, i, 0));
        NEXT;
        shmem_collect32(dest, source, count + (size_t)me, start, log_stride, n, collect_sync);
        for (size_t pe = 0, at = 0; pe < (size_t)n; pe++)
            for (size_t i = 0; i < count + pe; i++) CHECK(dest[at++] == (int)value((int)pe, i, 0));
        NEXT;
        shmem_alltoall32(dest, source, count, start, log_stride, n, alltoall_sync);
        for (int pe = 0; pe < n; pe++)
            for (size_t i = 0; i < count; i++)
                CHECK(dest[(size_t)pe * count + i] == (int)value(pe, (size_t)me * count + i, 0));
        NEXT;
        shmem_alltoalls32(dest, source, 2, 3, count, start, log_stride, n, alltoalls_sync);
        for (int pe = 0; pe < n; pe++)
            for (size_t i = 0; i < count; i++)
                CHECK(dest[((size_t)pe * count + i) * 2] == (int)value(pe, ((size_t)me * count + i) * 3, 0));
        NEXT;
        shmem_int_sum_to_all(dest, source, (int)count, start, log_stride, n, work, reduce_sync[0]);
        for (size_t i = 0; i < count; i++) {
            int sum = 0;
            for (int pe = 0; pe < n; pe++) sum += (int)value(pe, i, 0);
            CHECK(dest[i] == sum);
        }
        shmem_int_max_to_all(source, source, (int)count, start, log_stride, n, work, reduce_sync[1]);
        for (size_t i = 0; i < count; i++) {
            int most = 0;
            for (int pe = 0; pe < n; pe++) most = (int)value(pe, i, 0) > most ? (int)value(pe, i, 0) : most;
            CHECK(source[i] == most);
        }
        NEXT;
    }
}

/* More pSync arrays than there are areas for teams, some of them also for other PEs: all work, the first time and
 * again. */
static void many_arrays(void)
{
    enum { ARRAYS = 40 };
    static long sync[ARRAYS][SHMEM_COLLECT_SYNC_SIZE];
    const int n = shmem_n_pes(), me = shmem_my_pe();
    int *dest = to, *source = from;
    for (int round = 0; round < 3; round++)
        for (int a = 0; a < ARRAYS; a++) {
            const int members = a % 3 == 2 && n > 2 ? n - 1 : n;
            if (me < members) {
                long *s = sync[a];
                source[0] = me + a, source[1] = round;
                shmem_barrier(0, 0, members, s);
                shmem_collect32(dest, source, (size_t)me + 1 < 3 ? (size_t)me + 1 : 2, 0, 0, members, s);
                CHECK(dest[0] == a && dest[1] == 1 + a && dest[2] == round);
                shmem_barrier(0, 0, members, s);
                shmem_int_sum_to_all(dest, source, 2, 0, 0, members, work, s);
                CHECK(dest[0] == members * (members - 1) / 2 + members * a && dest[1] == members * round);
                shmem_barrier(0, 0, members, s);
                dest[0] = -1;
                shmem_sync(0, 0, members, s);
                shmem_broadcast32(dest, source, 1, 1, 0, 0, members, s);
                CHECK(dest[0] == (me == 1 ? -1 : 1 + a));
                shmem_barrier(0, 0, members, s);
                for (int pe = 0; pe < members; pe++) source[pe] = 100 * me + pe;
                shmem_alltoall32(dest, source, 1, 0, 0, members, s);
                for (int pe = 0; pe < members; pe++) CHECK(dest[pe] == 100 * pe + me);
                shmem_barrier(0, 0, members, s);
            }
            if (a % 10 == 9) shmem_barrier_all();
        }
}

/* So many elements that PEs fetch them in several parts; also in place. */
static void large_sum(void)
{
    const size_t count = 700001;
    const int n = shmem_n_pes(), me = shmem_my_pe();
    long *a = shmem_malloc(count * sizeof *a), *b = shmem_malloc(count * sizeof *b);
    CHECK(a && b);
    for (int place = 0; place < 2; place++) {
        for (size_t i = 0; i < count; i++) a[i] = me + (long)(i % 1009);
        shmem_barrier_all();
        long *sum = place ? a : b;
        CHECK(shmem_long_sum_reduce(SHMEM_TEAM_WORLD, sum, a, count) == 0);
        for (size_t i = 0; i < count; i++) CHECK(sum[i] == n * (n - 1) / 2 + n * (long)(i % 1009));
        rounds++;
    }
    shmem_free(b);
    shmem_free(a);
}

int main(void)
{
    shmem_init();
    const int n = shmem_n_pes();
    CHECK(n <= MOST_PES);
    large_sum();
    to = shmem_malloc((size_t)(2 * MOST * n) * sizeof(long double));
    from = shmem_malloc((size_t)(3 * MOST * n) * sizeof(long double));
    CHECK(to && from);

    /* All pairs on teams of all PEs; on smaller teams, turns that depend on the number of PEs. */
    team_collectives(SHMEM_TEAM_WORLD, 0);
    team_collectives(SHMEM_TEAM_WORLD, 2);
    shmem_team_t team, row, column;
    /* Every other PE; all PEs in reverse order; rows and columns. */
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, NULL, 0, &team) == 0);
    if (team != SHMEM_TEAM_INVALID) team_collectives(team, n);
    shmem_team_destroy(team);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &team) == 0);
    CHECK(shmem_team_my_pe(team) == n - 1 - shmem_my_pe());
    team_collectives(team, 1);
    team_collectives(team, 3);
    CHECK(shmem_team_split_2d(team, 2, NULL, 0, &row, NULL, 0, &column) == 0);
    team_collectives(row, n + 1);
    team_collectives(column, n + 2);
    shmem_team_destroy(column);
    shmem_team_destroy(row);
    shmem_team_destroy(team);

    shmem_barrier_all();
    active_set_collectives(0, 0, n);
    shmem_barrier_all();
    active_set_collectives(0, 1, (n + 1) / 2);
    shmem_barrier_all();
    active_set_collectives(1, 0, n - 1);
    shmem_barrier_all();
    many_arrays();
    shmem_barrier_all();
    if (shmem_my_pe() == 0) printf("%ld rounds of collectives with %d PEs\n", rounds, n);
    shmem_free(from);
    shmem_free(to);
    shmem_finalize();
    return 0;
}
