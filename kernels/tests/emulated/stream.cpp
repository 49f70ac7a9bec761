// Runs the kernels of cu/stream.cu on threads: what stands behind a wait whose time is over, or another failure,
// changes nothing. Prints what is wrong.
#include <cstdio>
#include <functional>
#include <thread>

#include "../../cu/stream.cu"

static const symrail_u64 HEAP = 2 << 20, DATA = 0, SOURCE = 1 << 20;
static const symrail_u64 TAKEN = HEAP - 128, WORD = HEAP - 64, ENDED = HEAP - 8;
static const symrail_u64 SIZE = 3 * LOOK + 5;

static void launch(unsigned blocks, unsigned number, const std::function<void()>& kernel) {
    for (unsigned b = 0; b < blocks; b++) {
        threads of_block(number);
        std::vector<std::jthread> running;
        for (unsigned t = 0; t < number; t++)
            running.emplace_back([&, b, t] {
                be(0), block = &of_block;
                threadIdx.x = t, blockIdx.x = b, blockDim.x = number, gridDim.x = blocks;
                kernel();
            });
    }
}

static std::vector<symrail_wide> memory[2];
static symrail_u64& word(int pe, symrail_u64 at) { return *(symrail_u64*)(the_job.heaps[pe] + at); }
static symrail_u64* at(symrail_u64 offset) { return &word(0, offset); }
static char *dest, *source;
static bool well = true;
static void expect(bool holds, const char* what, symrail_u64 of = 0) {
    if (!holds) printf("%s: %llu\n", what, of), well = false;
}
static void reset() {
    the_job.heaps.clear();
    the_job.devices.clear();
    for (int pe = 0; pe < 2; pe++) {
        memory[pe].assign(HEAP / 16, symrail_wide{});
        the_job.heaps.push_back((char*)memory[pe].data());
        the_job.devices[pe];
    }
    the_job.mapped.assign(2, std::vector<bool>(2, true));
    the_job.barrier = std::make_unique<std::barrier<>>(1);
    the_job.heap_bytes = HEAP;
    dest = the_job.heaps[0] + DATA, source = the_job.heaps[0] + SOURCE;
    memset(source, 'x', SIZE);
}
static symrail_u64 changed(int pe) {
    symrail_u64 number = 0;
    for (symrail_u64 i = 0; i < SIZE; i++) number += the_job.heaps[pe][DATA + i] != 0;
    return number;
}

// Every operation, as enqueued in an era; what of it has happened.
enum { PUT, GET, PUT_SIGNAL, SIGNAL, WAIT, BARRIER, META };
static void start(int what, symrail_u64 era, symrail_u64 told = 0) {
    switch (what) {
        case PUT: return launch(2, 3, [&] { put_on_stream(dest, source, SIZE, 1, nullptr, era, told); });
        case GET: return launch(3, 3, [&] { get_on_stream(dest, source, SIZE, 1, era, told); });
        case PUT_SIGNAL:
            return launch(1, 3, [&] { put_signal_on_stream(dest, source, 64, at(WORD), 7, 9, 1, nullptr, era, told); });
        case SIGNAL:
            return launch(1, 1, [&] { put_signal_on_stream(0, 0, 0, at(WORD), 7, 9, 1, nullptr, era, told); });
        case WAIT: return launch(1, 1, [&] { wait_on_stream(at(TAKEN), 0, 1, era, told); });
        default: return launch(1, 32, [&] { barrier_on_stream(nullptr, era, told); });
    }
}
static bool has_happened(int what) {
    switch (what) {
        case PUT: return changed(1) == SIZE;
        case GET: return changed(0) == SIZE;
        case PUT_SIGNAL: return changed(1) == 64 && word(1, WORD) == 7;
        case SIGNAL: return word(1, WORD) == 7;
        case WAIT: return the_job.devices[0].record[0] == SYMRAIL_ERROR_TIMEOUT;
        default: return the_job.devices[0].met == 1;
    }
}
static bool nothing_has_happened() {
    const device& it = the_job.devices[0];
    return changed(0) + changed(1) == 0 && word(1, WORD) == 0 && it.met == 0 && it.record[0] != SYMRAIL_ERROR_TIMEOUT;
}

static void operations() {
    for (int what = 0; what < META; what++) {
        auto with_source = [&] {
            reset();
            if (what == GET) memset(the_job.heaps[1] + SOURCE, 'y', SIZE);
        };
        with_source();
        start(what, 1);
        expect(has_happened(what), "an operation", what);
        // Behind a wait, both in one era.
        with_source();
        launch(1, 1, [&] { wait_on_stream(at(TAKEN), 0, 1, 1, 0); });
        expect(check(0) == SYMRAIL_ERROR_TIMEOUT, "a wait whose time is over", what);
        // The host has read the record meanwhile, and what was awaited has come.
        word(0, TAKEN) = 1;
        start(what, 1);
        expect(nothing_has_happened(), "behind a wait whose time is over", what);
        expect(the_job.devices[0].record[2] == (what < WAIT ? 1 : 0), "the PE of what was left out", what);
        expect(check(0) == SYMRAIL_ERROR_LEFT_OUT, "what was left out is an error", what);
        // What was enqueued when the first failure had been read goes on, though an error has been read since then.
        word(0, TAKEN) = what == WAIT ? 0 : 1;
        start(what, 2);
        expect(has_happened(what), "in the next era", what);
        expect(the_job.devices[0].counted == (what == BARRIER ? 2 : 0), "barriers that are counted", what);
        // Behind a request that the proxy could not complete: until the program has been told.
        with_source();
        the_job.devices[0].failed_requests = 1;
        start(what, 1);
        expect(nothing_has_happened(), "behind a failed request", what);
        expect(check(0) == SYMRAIL_ERROR_LEFT_OUT, "what was left out behind a request", what);
        start(what, 2, 1);
        expect(has_happened(what), "when the request has been told", what);
    }
    // Puts fail in the fence before the signal, and in the quiet of a barrier.
    reset();
    the_job.devices[0].late_fence = true;
    start(SIGNAL, 1);
    expect(word(1, WORD) == 0 && check(0) == SYMRAIL_ERROR_TIMEOUT, "a signal behind puts that are late");
    reset();
    the_job.devices[0].late_quiet = true;
    start(BARRIER, 1);
    expect(the_job.devices[0].met == 0 && the_job.devices[0].counted == 1, "a barrier behind puts that are late");
    reset();
    the_job.devices[0].request_fails = true;
    start(BARRIER, 1);
    expect(the_job.devices[0].met == 0 && the_job.devices[0].counted == 1, "a barrier behind a put that fails");
    start(SIGNAL, 1);
    expect(word(1, WORD) == 0, "a signal behind that barrier");
    // Something fails during a put: its own bytes set the word, in the first of the steps.
    reset();
    launch(1, 3, [&] {
        symrail_state.stopped = (symrail_u64)(the_job.heaps[1] + DATA + 64);
        // More than one block would be needed to look again.
        gridDim.x = 2;
        put_on_stream(dest, source, SIZE, 1, nullptr, 1, 0);
    });
    expect(changed(1) == LOOK, "a put that is under way ends after a step", changed(1));
}

// A sender whose slot PE 1 has emptied up to `taken` of what it waits for, and what it leaves there.
static void chain(symrail_u64 taken, bool goes) {
    reset();
    symrail_u64* ended = at(ENDED);
    word(0, TAKEN) = taken;
    launch(1, 1, [&] { wait_in_chain(at(TAKEN), 3, 4, 1, ended, 1, 0); });
    expect((check(0) == SYMRAIL_ERROR_TIMEOUT) != goes && (*ended == 0) == goes, "a chain's wait", taken);
    // Each operation behind the wait is an error that names the PE, in whatever era it was enqueued.
    auto told = [&](const char* what) {
        expect(goes || the_job.devices[0].record[2] == 1, what, taken);
        expect(check(0) == (goes ? 0 : SYMRAIL_ERROR_LEFT_OUT) && !the_job.wrong, what, taken);
    };
    symrail_u64 era = goes ? 1 : 2;
    // What comes late changes nothing.
    word(0, TAKEN) = 3;
    launch(1, 1, [&] { wait_in_chain(at(TAKEN), 3, 4, 1, ended, era, 0); });
    told("a second wait");
    launch(2, 3, [&] { put_on_stream(dest, source, 1000, 1, ended, era, 0); });
    told("a put of a chain");
    expect(changed(1) == (goes ? 1000 : 0), "the bytes of a chain", taken);
    launch(1, 3, [&] { put_signal_on_stream(dest + 1000, source, 8, at(WORD), 7, 9, 1, ended, era, 0); });
    told("a put with a signal of a chain");
    expect(changed(1) == (goes ? 1008 : 0) && word(1, WORD) == (goes ? 7 : 0), "the signal of a chain", taken);
    launch(1, 1, [&] { put_signal_on_stream(nullptr, nullptr, 0, at(WORD), 8, 9, 1, ended, era, 0); });
    told("a signal of a chain");
    expect(word(1, WORD) == (goes ? 8 : 0), "the second signal of a chain", taken);
    expect(*ended == (goes ? 0 : FAILED), "why a chain has ended", taken);
    // Others go on.
    start(SIGNAL, era);
    expect(word(1, WORD) == 7 && check(0) == 0, "a signal beside a chain", taken);
}

int main() {
    operations();
    chain(3, true);
    chain(4, true);
    chain(2, false);
    chain(5, false);
    // A chain of which one operation was left out ends.
    reset();
    launch(1, 1, [&] { wait_on_stream(at(TAKEN), 0, 1, 1, 0); });
    launch(1, 1, [&] { put_signal_on_stream(nullptr, nullptr, 0, at(WORD), 8, 9, 1, at(ENDED), 1, 0); });
    check(0);
    launch(1, 1, [&] { put_signal_on_stream(nullptr, nullptr, 0, at(WORD), 9, 9, 1, at(ENDED), 2, 0); });
    expect(word(1, WORD) == 0 && word(0, ENDED) == LEFT_OUT, "a chain with a gap");
    expect(!the_job.wrong, "outside of the heap, or a failure that is told too late");
    if (well) puts("well");
}
