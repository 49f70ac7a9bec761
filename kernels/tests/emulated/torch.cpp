// Runs the kernels of python/src/torch.cu on threads: a wait whose time is over ends the context, and names the PE and
// the limit. Prints what is wrong.
#include <cstdio>
#include <thread>

#include "symrail_device.cuh"

// What the kernels print, which is no result of this program.
#define printf(...) ((void)snprintf(nullptr, 0, __VA_ARGS__))
static symrail_u64 symrail_now() {
    // A look takes a millisecond.
    static std::atomic<symrail_u64> now;
    return now += 1000000;
}
static unsigned atomicCAS_system(unsigned* at, unsigned old, unsigned value) {
    __atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return old;
}
struct trapped {};
static void __trap() { throw trapped(); }

#include "../../../python/src/torch.cu"
#undef printf

static const symrail_u64 RANKS = 3, CHANNEL = 1;
static unsigned pads_of[RANKS][RANKS * (CHANNEL + 1)];
static symrail_u64 table[2 * RANKS];

static void reset() {
    memset(pads_of, 0, sizeof pads_of);
    for (symrail_u64 rank = 0; rank < RANKS; rank++)
        table[rank] = (symrail_u64)pads_of[rank], table[RANKS + rank] = 7 + 2 * rank;
    the_job.devices.clear();
    the_job.devices[0];
}
// Threads of a rank's kernel; whether one has ended the context.
template <class F>
static bool traps(unsigned threads, F kernel) {
    std::atomic<bool> any = false;
    {
        std::vector<std::jthread> running;
        for (unsigned t = 0; t < threads; t++)
            running.emplace_back([&, t] {
                be(0), threadIdx.x = t;
                try {
                    kernel();
                } catch (trapped) {
                    any = true;
                }
            });
    }
    return any;
}
static bool well = true;
static void expect(bool holds, const char* what) {
    if (!holds) printf("%s\n", what), well = false;
}
static void expect_late(bool trapped, symrail_u64 rank, const char* what) {
    const symrail_u64* record = the_job.devices[0].record;
    expect(trapped && record[SYMRAIL_RECORD_CODE] == SYMRAIL_ERROR_CALLERS_LIMIT, what);
    expect(record[SYMRAIL_RECORD_PE] == 7 + 2 * rank && record[SYMRAIL_RECORD_PLACE] == 20, what);
}

int main() {
    unsigned** pads = (unsigned**)table;
    reset();
    {
        std::vector<std::jthread> ranks;
        for (symrail_u64 me = 0; me < RANKS; me++)
            ranks.emplace_back([=] {
                bool ended = traps(32, [=] { barrier(pads, 0, CHANNEL, me, RANKS, 0); });
                expect(!ended, "a barrier that all have come to");
            });
    }
    for (auto& pad : pads_of)
        for (unsigned flag : pad) expect(flag == 0, "a flag that is left");

    reset();
    expect_late(traps(1, [=] { wait_signal(pads, 2, CHANNEL, 0, RANKS, 20); }), 2, "a signal that does not come");
    reset();
    expect(!traps(1, [=] { put_signal(pads, 1, CHANNEL, 0, RANKS, 20); }), "a signal");
    expect(!traps(1, [=] { wait_signal(pads, 0, CHANNEL, 1, RANKS, 20); }), "a signal that has come");
    expect(the_job.devices[0].record[0] == 0, "what is no failure");
    for (int i = 0; i < 2; i++)
        expect(traps(1, [=] { put_signal(pads, 1, CHANNEL, 0, RANKS, 20); }) == (i != 0), "two signals");
    expect_late(true, 1, "a signal that is not taken");
    // Rank 2 does not come.
    reset();
    pads_of[0][RANKS * CHANNEL + 1] = 1;
    bool ended = traps(32, [=] { barrier(pads, 0, CHANNEL, 0, RANKS, 20); });
    expect_late(ended, 2, "a barrier to which a rank does not come");
    if (well) puts("well");
}
