// Runs the chains of cu/stream.cu on threads: what stands behind a wait whose time is over changes nothing. Prints what
// is wrong.
#include <cstdio>
#include <functional>
#include <thread>

#include "../../cu/stream.cu"

static const symrail_u64 HEAP = 4096, DATA = 0, SOURCE = 2048, TAKEN = 3072, WORD = 3080, ENDED = 3088;

static void launch(unsigned blocks, const std::function<void()>& kernel) {
    const unsigned threads = 3;
    for (unsigned b = 0; b < blocks; b++) {
        std::barrier<> all(threads);
        std::vector<std::jthread> running;
        for (unsigned t = 0; t < threads; t++)
            running.emplace_back([&, b, t] {
                symrail_state.me = 0, block = &all;
                threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = blocks;
                kernel();
            });
    }
}
static void launch_one(const std::function<void()>& kernel) {
    symrail_state.me = 0;
    threadIdx.x = 0, blockIdx.x = 0, blockDim.x = 1, gridDim.x = 1;
    kernel();
}

static symrail_u64& word(int pe, symrail_u64 at) { return *(symrail_u64*)(the_job.heaps[pe] + at); }

// A sender whose slot PE 1 has emptied up to `taken` of what it waits for, and what it leaves there.
static void expect(symrail_u64 taken, bool well) {
    static std::vector<symrail_wide> memory[2];
    the_job.heaps.clear();
    for (auto& one : memory) {
        one.assign(HEAP / 16, symrail_wide{});
        the_job.heaps.push_back((char*)one.data());
    }
    the_job.heap_bytes = HEAP, the_job.failed = the_job.failed_with = 0;
    char* heap = the_job.heaps[0];
    symrail_u64* ended = (symrail_u64*)(heap + ENDED);
    memset(heap + SOURCE, 'x', 1000);
    word(0, TAKEN) = taken;
    launch_one([&] { wait_in_chain((symrail_u64*)(heap + TAKEN), 3, 4, ended, 1); });
    bool is_well = (the_job.failed != 0) != well && (word(0, ENDED) == 0) == well;
    // Each operation behind the wait is an error that names the PE, whoever has read the record meanwhile.
    auto told = [&] {
        is_well &= the_job.failed == (well ? 0 : SYMRAIL_ERROR_TIMEOUT) && the_job.failed_with == (well ? 0 : 1);
        the_job.failed = the_job.failed_with = 0;
    };
    the_job.failed = 0;
    // What comes late changes nothing.
    word(0, TAKEN) = 3;
    launch_one([&] { wait_in_chain((symrail_u64*)(heap + TAKEN), 3, 4, ended, 1); });
    told();
    launch(2, [&] { put_in_chain(heap + DATA, heap + SOURCE, 1000, 1, ended); });
    told();
    is_well &= the_job.heaps[1][DATA + 999] == (well ? 'x' : 0);
    symrail_u64* signal = (symrail_u64*)(heap + WORD);
    launch(1, [&] { put_signal_in_chain(heap + DATA + 1000, heap + SOURCE, 8, signal, 7, 1, ended); });
    told();
    is_well &= the_job.heaps[1][DATA + 1007] == (well ? 'x' : 0) && word(1, WORD) == (well ? 7 : 0);
    launch(1, [&] { put_signal_in_chain(nullptr, nullptr, 0, signal, 8, 1, ended); });
    told();
    is_well &= word(1, WORD) == (well ? 8 : 0) && !the_job.wrong;
    if (!is_well) printf("a chain behind %llu of 3 to 4\n", taken);
    static bool all_well = true;
    all_well &= is_well;
    if (taken == 5 && all_well) puts("well");
}

int main() {
    expect(3, true);
    expect(4, true);
    expect(2, false);
    expect(5, false);
}
