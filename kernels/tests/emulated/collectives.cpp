// Runs cu/collectives.cu on threads, and compares with element-wise sums and copies. Prints differences.
#include <complex>
#include <cstdio>
#include <functional>
#include <thread>

#include "../../cu/collectives.cu"

static const symrail_u64 HEAP = 1 << 16, SOURCE = 0, DEST = 24 << 10, SCRATCH = 56 << 10, SCRATCH_BYTES = 512;
static const enqueued NOW = {1, 0};
static int failures = 0;

// The team is every second PE of the job, from 1 on.
static int pe_at(int i) { return 1 + 2 * i; }

enum mapping { ALL, NONE, SOME };

struct world {
    std::vector<std::vector<symrail_wide>> memory;

    world(int n, mapping how) {
        the_job.heaps.clear();
        the_job.mapped.assign(2 * n, std::vector<bool>(2 * n));
        for (int pe = 0; pe < 2 * n; pe++) {
            memory.emplace_back(HEAP / 16);
            the_job.heaps.push_back((char*)memory.back().data());
            for (int other = 0; other < 2 * n; other++)
                the_job.mapped[pe][other] = pe == other || how == ALL || (how == SOME && (pe + other) % 4 == 0);
        }
        the_job.heap_bytes = HEAP;
        the_job.barrier = std::make_unique<std::barrier<>>(n);
        the_job.devices.clear();
        for (int pe = 0; pe < 2 * n; pe++) the_job.devices[pe];
        the_job.wrong = false;
    }
};

// Launches a kernel on this PE: its blocks one after the other, the threads of a block at the same time.
static void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
    int pe = symrail_state.me;
    for (unsigned b = 0; b < blocks; b++) {
        struct threads of_block(threads);
        std::vector<std::jthread> running;
        for (unsigned t = 0; t < threads; t++)
            running.emplace_back([&, b, t] {
                be(pe), block = &of_block;
                threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = blocks;
                kernel();
            });
    }
}

// Runs the work of all PEs of a team at the same time.
static void on_all(int n, const std::function<void(const symrail_device_team&, char*)>& work) {
    std::vector<std::jthread> running;
    for (int i = 0; i < n; i++)
        running.emplace_back([&, i] {
            symrail_device_team team = {i, n, 1, 2};
            be(pe_at(i));
            work(team, the_job.heaps[pe_at(i)]);
        });
}

static void expect(bool well, const char* what, int n, symrail_u64 a, symrail_u64 b, symrail_u64 c) {
    if (well && !the_job.wrong) return;
    failures++;
    printf("%s: %d PEs, %llu, %llu, %llu%s\n", what, n, a, b, c, the_job.wrong ? ": outside or unaligned" : "");
}

static unsigned char byte(int pe, symrail_u64 i) { return (unsigned char)(pe * 89 + i * 7 + 3); }

static void copies(int n, mapping how) {
    for (symrail_u64 bytes : {1, 16, 100, 777})
        for (symrail_u64 step : {(symrail_u64)0, bytes}) {
            world w(n, how);
            on_all(n, [&](const symrail_device_team& team, char* heap) {
                for (symrail_u64 i = 0; i < bytes * n; i++) heap[SOURCE + i] = byte(team.me, i);
                char* dest = heap + DEST + team.me * bytes;
                launch(1, 3, [&] { spread_on_stream(&team, dest, heap + SOURCE, step, bytes, 1, 0); });
            });
            bool well = true;
            for (int to = 0; to < n; to++)
                for (symrail_u64 i = 0; i < bytes * n; i++)
                    well &= (unsigned char)the_job.heaps[pe_at(to)][DEST + i] == byte(i / bytes, i % bytes + to * step);
            for (int pe = 0; pe < 2 * n; pe += 2) well &= the_job.heaps[pe][DEST] == 0;
            expect(well, "spread", n, bytes, step, how);
        }
    for (symrail_u64 room : {symrail_u64(40), symrail_u64(4000)}) {
        world w(n, how);
        auto length = [](int i) { return symrail_u64(i % 3 * 150 + 17 * i); };
        symrail_u64 all = 0;
        for (int i = 0; i < n; i++) all += length(i);
        on_all(n, [&](const symrail_device_team& team, char* heap) {
            for (symrail_u64 i = 0; i < length(team.me); i++) heap[SOURCE + i] = byte(team.me, i);
            auto lengths = (symrail_u64*)(heap + SCRATCH);
            launch(1, 3, [&] { tell_length_on_stream(&team, lengths, length(team.me), 1, 0); });
            launch(how == ALL ? 3 : 1, 2,
                   [&] { collect_on_stream(&team, heap + DEST, room, heap + SOURCE, length(team.me), lengths, 1, 0); });
            launch(1, 1, [&] { meet(&team, true, NOW); });
        });
        bool well = true;
        for (int i = 0; i < n; i++)
            well &= (the_job.devices[pe_at(i)].record[0] == SYMRAIL_ERROR_NO_ROOM) == (all > room);
        for (int to = 0; to < n && all <= room; to++) {
            const char* at = the_job.heaps[pe_at(to)] + DEST;
            for (int i = 0; i < n; i++)
                for (symrail_u64 k = 0; k < length(i); k++) well &= (unsigned char)*at++ == byte(i, k);
        }
        if (all > room) well &= the_job.heaps[pe_at(0)][DEST] == 0;
        expect(well, "collect", n, room, all, how);
    }
}

static int small(int pe, symrail_u64 i) { return (int)((i * 3 + pe * 5) % 7) - 2; }
// Minimum and maximum meet a NaN of each PE in turn.
template <class T>
static T number(unsigned op, int pe, symrail_u64 i) {
    if constexpr (requires(T value) { value.imag(); }) return T(small(pe, i), small(pe, i + 1));
    else if (std::is_floating_point_v<T> && (op == SYMRAIL_MIN || op == SYMRAIL_MAX) && i % 5 == (symrail_u64)pe) return (T)NAN;
    else return (T)small(pe, i);
}
template <class T>
static T combined(unsigned op, T a, T b) {
    if (op == SYMRAIL_SUM) return a + b;
    if (op == SYMRAIL_PRODUCT) return a * b;
    if constexpr (std::is_arithmetic_v<T>) {
        if (a != a || b != b) return a + b;
        if (op == SYMRAIL_MIN) return b < a ? b : a;
        if (op == SYMRAIL_MAX) return b > a ? b : a;
    }
    if constexpr (std::is_integral_v<T>) return op == SYMRAIL_AND ? a & b : op == SYMRAIL_OR ? a | b : a ^ b;
    return a;
}

// `apart`: the misalignment of addresses to 16 bytes. In place: the destination is the source.
template <class T>
static void reduction(unsigned op, unsigned type, int n, mapping how, symrail_u64 count, symrail_u64 apart, bool in_place) {
    symrail_u64 bytes = count * sizeof(T), how_to = op | type << SYMRAIL_ELEMENT_SHIFT;
    for (bool scatter : {false, true}) {
        world w(n, how);
        symrail_u64 all = scatter ? bytes * n : bytes, source = SOURCE + apart, dest = in_place ? source : DEST + apart;
        if (in_place && scatter) continue;
        on_all(n, [&](const symrail_device_team& team, char* heap) {
            for (symrail_u64 i = 0; i < all / sizeof(T); i++) {
                T value = number<T>(op, team.me, i);
                memcpy(heap + source + i * sizeof(T), &value, sizeof(T));
            }
            // The share of each PE, as the host computes it.
            symrail_u64 unit = (bytes + 15) / 16, from = unit * team.me / n * 16, to = unit * (team.me + 1) / n * 16;
            if (to > bytes) to = bytes;
            if (scatter) from = team.me * bytes, to = from + bytes;
            char* scratch = how == ALL ? nullptr : heap + SCRATCH;
            unsigned blocks = how == ALL ? 3 : 1;
            symrail_u64 waits = blocks == 1;
            char* into = heap + dest + (scatter ? 0 : from);
            if (!waits) launch(1, 1, [&] { meet(&team, true, NOW); });
            launch(blocks, 3, [&] {
                reduce_on_stream(&team, into, heap + source + from, to - from, how_to, sizeof(T), !scatter, scratch,
                                 SCRATCH_BYTES, waits, 1, 0);
            });
            if (!waits) launch(1, 1, [&] { meet(&team, true, NOW); });
        });
        bool well = true;
        for (int pe = 0; pe < n; pe++)
            for (symrail_u64 i = 0; i < count; i++) {
                symrail_u64 element = scatter ? pe * count + i : i;
                T wanted = number<T>(op, 0, element), found;
                for (int other = 1; other < n; other++) wanted = combined<T>(op, wanted, number<T>(op, other, element));
                memcpy(&found, the_job.heaps[pe_at(pe)] + dest + i * sizeof(T), sizeof(T));
                well &= found == wanted || (found != found && wanted != wanted);
            }
        // The byte behind the end is unchanged.
        if (!in_place) well &= the_job.heaps[pe_at(0)][dest + bytes] == 0;
        expect(well, scatter ? "reduce_scatter" : "reduce", n, how_to, count, apart);
    }
}

template <class T>
static void reductions(unsigned type, unsigned ops, int n, mapping how) {
    for (unsigned op = 0; op < ops; op++) {
        reduction<T>(op, type, n, how, 7, 0, op % 2);
        reduction<T>(op, type, n, how, 61, sizeof(T) < 16 ? sizeof(T) : 8, false);
    }
    reduction<T>(SYMRAIL_SUM, type, n, how, 300, 0, false);
    reduction<T>(SYMRAIL_SUM, type, n, how, 300, 0, true);
    reduction<T>(SYMRAIL_SUM, type, n, how, 1, 0, false);
}

// All types for some teams, and one type of each kind for the others.
static void of_team(int n, mapping how, bool all_types) {
    copies(n, how);
    reductions<int>(SYMRAIL_I32, 7, n, how);
    reductions<double>(SYMRAIL_F64, 4, n, how);
    reductions<std::complex<double>>(SYMRAIL_C128, 2, n, how);
    if (!all_types) return;
    reductions<signed char>(SYMRAIL_I8, 7, n, how);
    reductions<short>(SYMRAIL_I16, 7, n, how);
    reductions<long long>(SYMRAIL_I64, 7, n, how);
    reductions<unsigned char>(SYMRAIL_U8, 7, n, how);
    reductions<unsigned short>(SYMRAIL_U16, 7, n, how);
    reductions<unsigned>(SYMRAIL_U32, 7, n, how);
    reductions<symrail_u64>(SYMRAIL_U64, 7, n, how);
    reductions<float>(SYMRAIL_F32, 4, n, how);
    reductions<std::complex<float>>(SYMRAIL_C64, 2, n, how);
}

// PE 1, the first of three, to which something does not happen in time, in the one launch of a small collective or in
// the launches of a large one. Then no PE gets anything from it, nor meets it in the last barrier; and it counts as
// many barriers as the others.
static void late() {
    enum { SYNC, QUIET, REQUEST, BEFORE, KINDS };
    for (int kind = 0; kind < KINDS; kind++)
        for (int what = 0; what < 4; what++) {
            // A quiet and a request matter to sums of PEs that the proxy reaches.
            bool sums = what >= 2, small = what % 2 == 0;
            if ((kind == QUIET || kind == REQUEST) && !sums) continue;
            world w(3, kind == QUIET || kind == REQUEST ? NONE : ALL);
            be(pe_at(0));
            device& it = here();
            symrail_device_team team = {0, 3, 1, 2};
            char* heap = the_job.heaps[pe_at(0)];
            for (symrail_u64 i = 0; i < 64; i++)
                for (int pe : {1, 3, 5}) the_job.heaps[pe][SOURCE + i] = 1;
            the_job.barrier = std::make_unique<std::barrier<>>(1);
            it.late_barrier = kind == SYNC, it.late_quiet = kind == QUIET, it.request_fails = kind == REQUEST;
            if (kind == BEFORE) symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, 0, 0), check(pe_at(0));
            char* scratch = kind == QUIET || kind == REQUEST ? heap + SCRATCH : nullptr;
            symrail_u64* lengths = (symrail_u64*)(heap + SCRATCH);
            lengths[0] = 64;
            symrail_u64 how = SYMRAIL_SUM | SYMRAIL_I32 << SYMRAIL_ELEMENT_SHIFT;
            if (!small) launch(1, 2, [&] { meet(&team, false, NOW); });
            launch(1, 3, [&] {
                char *dest = heap + DEST, *source = heap + SOURCE;
                if (sums) reduce_on_stream(&team, dest, source, 64, how, 4, 1, scratch, SCRATCH_BYTES, small, 1, 0);
                else if (small) spread_on_stream(&team, dest, source, 0, 64, 1, 0);
                else collect_on_stream(&team, dest, 64, source, 64, lengths, 1, 0);
            });
            if (!small) launch(1, 2, [&] { meet(&team, true, NOW); });
            bool well = it.counted == 2 && it.met == (kind != BEFORE);
            for (int pe : {1, 3, 5}) well &= the_job.heaps[pe][DEST] == 0;
            well &= check(pe_at(0)) == (kind == SYNC || kind == QUIET ? SYMRAIL_ERROR_TIMEOUT : SYMRAIL_ERROR_LEFT_OUT);
            expect(well, "behind what is late", 3, kind, what, it.met);
        }
}

int main() {
    late();
    of_team(1, ALL, false);
    of_team(2, SOME, true);
    for (mapping how : {ALL, NONE, SOME}) of_team(3, how, how == ALL);
    of_team(4, SOME, false);
    printf(failures == 0 ? "well\n" : "%d failures\n", failures);
    return failures != 0;
}
