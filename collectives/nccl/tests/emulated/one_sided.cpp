// Runs the kernels of cu/one_sided.cu on threads: what stands behind a wait that has ended without its signals, or
// behind another rank's failure, changes nothing at the peer. Prints what is wrong.
#include <barrier>
#include <cstdio>
#include <functional>
#include <thread>

#include "device.hpp"

static symrail_u64 failed, sent;
static inline symrail_u64 atomicAdd(unsigned long long* at, unsigned long long n) {
    return __atomic_fetch_add(at, n, __ATOMIC_SEQ_CST);
}
static void symrailx_signal_op(symrail_u64* signal, symrail_u64 value, int, int) { sent++, *signal += value; }
// Nothing changes during a kernel of these tests, but what the host has ended: the last look finds that time is over.
template <class F>
static symrail_u64 symrail_wait_for(symrail_u64* word, F holds) {
    for (int looks = 0; looks < 256; looks++)
        if (holds(*word)) return *word;
    failed = 1;
    return *word;
}

#include "../../cu/one_sided.cu"

static void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
    for (unsigned b = 0; b < blocks; b++) {
        Threads of_block;
        pthread_barrier_init(&of_block.barrier, nullptr, threads);
        of_block.votes[0] = 0;
        std::vector<std::jthread> running;
        for (unsigned t = 0; t < threads; t++)
            running.emplace_back([&, b, t] {
                symrail_state.me = 0, block = &of_block, thread_rank = t, block_size = threads;
                threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = blocks;
                kernel();
            });
        running.clear();
        pthread_barrier_destroy(&of_block.barrier);
    }
}

static bool well = true;
static void expect(bool holds, const char* what) {
    if (!holds) printf("%s\n", what), well = false;
}

// A rank's words, and its source and what the peer has.
static const symrail_u64 BYTES = 3 * LOOK + 5, SMALL = 1000;
static std::vector<char> source(BYTES, 'x'), there;
static symrail_u64 arrived, claimed, signal_there, stopped, ended[2];

static void reset() {
    there.assign(BYTES, 0);
    arrived = claimed = signal_there = stopped = ended[0] = ended[1] = failed = sent = 0;
}
static void wait() {
    wait_list list = {&arrived, &claimed, ended, &stopped, 1, {{0, 1}}};
    launch(1, 2, [&] { wait_for_signals(list); });
}
static void put(unsigned blocks) {
    launch(blocks, 3, [&] { put_by_blocks(there.data(), source.data(), BYTES, &stopped, ended); });
    launch(1, 1, [&] { send_signal(&signal_there, 1, &stopped, ended); });
}
static void put_small() {
    launch(1, 3, [&] { put_and_signal(there.data(), source.data(), SMALL, &signal_there, 1, &stopped, ended); });
}
static symrail_u64 changed() {
    symrail_u64 number = 0;
    for (char one : there) number += one != 0;
    return number;
}
static void expect_nothing(const char* what) {
    put(2);
    expect(changed() == 0 && sent == 0, what);
    put_small();
    expect(changed() == 0 && sent == 0, what);
}

int main() {
    for (unsigned blocks : {1, 2, 5, 32}) {
        reset();
        arrived = 1;
        wait();
        put(blocks);
        expect(there == source && signal_there == 1 && failed == 0, "a large put behind a wait with its signal");
    }
    reset();
    put_small();
    expect(changed() == SMALL && signal_there == 1, "a small put");

    reset();
    wait();
    expect(failed == 1 && stopped == 1 && ended[1] == 0, "a wait whose time is over");
    // What comes late changes nothing.
    arrived = 1;
    expect_nothing("a put behind a wait whose time is over");
    expect(ended[1] == 0, "the rank itself, whose wait has failed, is no other rank");

    reset();
    ended[0] = 1;
    wait();
    expect(failed == 0 && stopped == 1, "a wait that the host has ended");
    expect_nothing("a put behind a wait that the host has ended");

    reset();
    stopped = 8;
    expect_nothing("a put behind another rank's failure");
    expect(ended[1] == 8, "the other rank is told to the host");

    // The failure comes during the put: its own bytes set the word of failures, in the first of the steps.
    reset();
    volatile symrail_u64* within = (symrail_u64*)(((size_t)there.data() + 63) & ~(size_t)7);
    launch(1, 3, [&] { put_by_blocks(there.data(), source.data(), BYTES, within, ended); });
    expect(changed() == LOOK, "a put that is under way ends after a step");
    // Other threads may not have stored all bytes of the word when the first one reads it.
    expect(ended[1] != 0, "what ended it");
    if (well) puts("well");
}
