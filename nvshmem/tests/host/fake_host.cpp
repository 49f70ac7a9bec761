// A stand-in for NVSHMEM's host library: loads the transport as that does, fills in what that fills in, and calls every
// function from a host thread and a proxy thread at the same time, in two processes. Everything is verified at the other end.
//
//     fake_host VERSION [die]     VERSION: 3 to 7, the version of the interface. die: PE 1 ends without a word, half way.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <queue>
#include <string>
#include <thread>

#include "abi.hpp"

static int me, line;

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "PE %d: %s:%d: %s\n", me, __FILE__, __LINE__, #condition);     \
            _exit(1);                                                                      \
        }                                                                                  \
    } while (0)

static int allgather(const void *mine, void *all, int bytes, bootstrap_t *) {
    char *of = static_cast<char *>(all);
    memcpy(of + me * bytes, mine, bytes);
    CHECK(write(line, mine, bytes) == bytes);
    CHECK(recv(line, of + (1 - me) * bytes, bytes, MSG_WAITALL) == bytes);
    return 0;
}
static int barrier(bootstrap_t *) {
    char here = 1, both[2];
    return allgather(&here, both, 1, nullptr);
}

constexpr size_t CHUNK = 16 << 20, HEAP = 2 * CHUNK, WORDS_AT = HEAP - 65536;

template <int V> struct host {
    using T = transport<V>;
    using amo_verb_t = typename verb<V>::type;
    T *t = nullptr;
    bootstrap_t boot{};
    char *heap = nullptr;
    void *bases[2];
    handle_t handles[2][2]; // of each PE's chunks
    std::atomic<bool> stop{false};
    std::mutex lock;
    std::queue<std::function<void()>> requests;

    // The proxy thread: requests, and progress again and again.
    void proxy() {
        while (!stop) {
            std::function<void()> request;
            {
                std::lock_guard<std::mutex> held(lock);
                if (!requests.empty()) request = std::move(requests.front()), requests.pop();
            }
            if (request) request();
            CHECK(t->ops.progress(t) == 0);
        }
    }
    // A device's request, and the wait for it.
    void device(std::function<void()> body) {
        std::atomic<bool> done{false};
        {
            std::lock_guard<std::mutex> held(lock);
            requests.push([&] { body(), done = true; });
        }
        while (!done) std::this_thread::yield();
    }

    rma_memdesc_t remote(int pe, size_t at) {
        return {static_cast<char *>(bases[pe]) + at, at, &handles[pe][at / CHUNK]};
    }
    // As the host library does: no operation spans two chunks.
    void rma(int pe, int op, size_t at, void *local, size_t size, int qp, bool nbi) {
        while (size > 0) {
            size_t piece = std::min(size, CHUNK - at % CHUNK);
            rma_memdesc_t far = remote(pe, at), near{local, 0, nullptr};
            CHECK(t->ops.rma(t, pe, {op, nbi, 0, nullptr}, &far, &near, {piece, 1, 1, 1}, qp) == 0);
            local = static_cast<char *>(local) + piece, at += piece, size -= piece;
        }
    }
    void p(int pe, size_t at, uint64_t value, int qp) {
        uint64_t gone = value; // as in the proxy thread's stack
        rma_memdesc_t far = remote(pe, at), near{&gone, 0, nullptr};
        CHECK(t->ops.rma(t, pe, {OP_P, 0, 0, nullptr}, &far, &near, {1, 8, 1, 1}, qp) == 0);
        gone = ~value;
    }
    int amo_status(int pe, int op, size_t at, int size, uint64_t val, uint64_t cmp, void *old, bool is_float = false) {
        amo_verb_t verb{};
        verb.op = op;
        if constexpr (V >= 6) verb.is_float = is_float;
        amo_memdesc_t word{remote(pe, at), 7, old, nullptr, nullptr, val, cmp, nullptr};
        return t->ops.amo(t, pe, nullptr, verb, &word, {0, size}, QP_DEFAULT);
    }
    void quiet(int qp) {
        for (int pe = 0; pe < 2; pe++) CHECK(t->ops.quiet(t, pe, qp) == 0);
    }
    uint64_t word(size_t at) { return __atomic_load_n(reinterpret_cast<uint64_t *>(heap + at), __ATOMIC_ACQUIRE); }
    static char byte(size_t i, int seed) { return static_cast<char>(i * 13 + i / 4093 + 101 * seed); }

    void open() {
        std::string name = "nvshmem_transport_libfabric.so." + std::to_string(V);
        void *library = dlopen(name.c_str(), RTLD_NOW);
        if (!library) fprintf(stderr, "%s\n", dlerror());
        CHECK(library);
        auto init = reinterpret_cast<int (*)(T **, void *, int)>(dlsym(library, "nvshmemt_init"));
        CHECK(init);
        CHECK(init(&t, nullptr, 20000) != 0 && init(&t, nullptr, 80000) != 0 && t == nullptr);
        CHECK(init(&t, nullptr, V * 10000) == 0 && t);
        CHECK(t->api_version == V * 10000 && t->type == 0 && t->f.is_successfully_initialized && !t->f.no_proxy);
        CHECK((t->f.attr & 2) && t->f.max_op_len == 0 && t->f.atomics_complete_on_quiet && t->f.n_devices == 0);
        CHECK(t->f.atomic_host_endian_min_size <= 4 && !t->last.enforce_cst_at_target);
        boot.rank = me, boot.size = 2, boot.local_pe = me, boot.local_pes = 2;
        boot.allgather = allgather, boot.barrier = barrier;
        // Heaps at different addresses, so that one cannot pass for the other.
        heap = static_cast<char *>(mmap(reinterpret_cast<void *>(0x600000000000 + me * 0x10000000000), HEAP,
                                        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        CHECK(heap != MAP_FAILED);
        t->cap = static_cast<int *>(calloc(2, sizeof(int)));
        t->f.boot_handle = &boot, t->f.heap_base = heap, t->f.my_pe = me, t->f.n_pes = 2, t->f.index = 0;
        for (int pe = 0; pe < 2; pe++) {
            pe_info_t info{{0, 0, 0}, pe, 1, {0}};
            CHECK(t->ops.can_reach_peer(&t->cap[pe], &info, t) == 0 && t->cap[pe] == 0x70);
        }
        int device = -1;
        // The first version passes three arguments; what comes in the place of the others is not for reading.
        int *const junk = reinterpret_cast<int *>(V == 3 ? 16 : 0);
        CHECK(t->ops.connect_endpoints(t, &device, 1, junk, V == 3 ? 1 << 30 : 0) == 0);
        barrier(&boot);
        handle_t mine[2];
        for (int i = 0; i < 2; i++) CHECK(t->ops.get_mem_handle(&mine[i], heap + i * CHUNK, CHUNK, t, false) == 0);
        allgather(mine, handles, sizeof mine, &boot);
        void *base = heap;
        allgather(&base, bases, sizeof base, &boot);
    }

    void accesses(int pe, int qp) {
        const size_t most = 1200000, first = CHUNK - most / 2; // across two chunks
        std::vector<char> data(most), back(most);
        for (size_t i = 0; i < most; i++) data[i] = byte(i, me);
        handle_t local;
        CHECK(t->ops.get_mem_handle(&local, data.data(), most, t, true) == 0);
        for (size_t at = 0, n = 1; at + n <= most; at += n, n = n * 4 + 3) rma(pe, OP_PUT, first + at, &data[at], n, qp, true);
        quiet(qp);
        rma(pe, OP_PUT, first, data.data(), most, qp, false);
        rma(pe, OP_GET, first, back.data(), most, qp, false);
        CHECK(back == data);
        std::fill(back.begin(), back.end(), 0);
        rma(pe, OP_GET, first + 5, &back[5], most - 5, qp, true);
        quiet(qp);
        CHECK(!memcmp(&back[5], &data[5], most - 5));
        CHECK(t->ops.release_mem_handle(&local, t) == 0);
        for (uint64_t i = 0; i < 100; i++) p(pe, WORDS_AT + 8 * i, i * 0x0101010101010101, qp);
        quiet(qp);
        uint64_t g = 0;
        rma(pe, OP_G, WORDS_AT + 8 * 77, &g, 8, qp, true);
        quiet(qp);
        CHECK(g == 77 * 0x0101010101010101);
    }

    template <class U> void amos(int pe, size_t at) {
        U value = 0, old = 0;
        auto step = [&](int op, U val, U cmp, U expect, bool fetch) {
            old = static_cast<U>(~value);
            CHECK(amo_status(pe, op, at, sizeof(U), val, cmp, fetch ? &old : nullptr) == 0);
            quiet(QP_ALL);
            CHECK(!fetch || old == value);
            value = expect;
        };
        rma(pe, OP_PUT, at, &value, sizeof value, QP_DEFAULT, false);
        step(AMO_SET, 41, 0, 41, false);
        step(AMO_INC, 9, 0, 42, false);
        step(AMO_ADD, 100, 0, 142, false);
        step(AMO_AND, 0xfe, 0, 142, false);
        step(AMO_OR, 0x301, 0, 0x38f, false);
        step(AMO_XOR, 0xff, 0, 0x370, false);
        step(AMO_FETCH, 1, 0, 0x370, true);
        step(AMO_FETCH_INC, 9, 0, 0x371, true);
        step(AMO_FETCH_ADD, U(-1), 0, 0x370, true);
        step(AMO_FETCH_AND, 0xff0, 0, 0x370, true);
        step(AMO_FETCH_OR, 1, 0, 0x371, true);
        step(AMO_FETCH_XOR, 0x70, 0, 0x301, true);
        step(AMO_CSWAP, 5, 0x300, 0x301, true);
        step(AMO_CSWAP, 5, 0x301, 5, true);
        step(AMO_SWAP, U(-2), 0, U(-2), true);
        step(AMO_SIGNAL_SET, 11, 0, 11, false);
        step(AMO_SIGNAL_ADD, 4, 0, 15, false);
        step(AMO_SIGNAL, 3, 0, 3, false);
        step(AMO_FETCH, 0, 0, 3, true);
        CHECK(amo_status(pe, AMO_ADD, at, 2, 1, 0, nullptr) != 0 && amo_status(pe, AMO_ACK, at, 8, 1, 0, nullptr) != 0);
        if constexpr (V >= 6 && sizeof(U) == 8) {
            double half = 0.5, got = 0;
            uint64_t bits;
            memcpy(&bits, &half, 8);
            CHECK(amo_status(pe, AMO_SET, at, 8, bits, 0, nullptr, true) == 0);
            quiet(QP_ALL);
            CHECK(amo_status(pe, AMO_FETCH_ADD, at, 8, bits, 0, &got, true) == 0);
            quiet(QP_ALL);
            CHECK(got == 0.5);
            CHECK(amo_status(pe, AMO_FETCH, at, 8, 0, 0, &got, true) == 0);
            quiet(QP_ALL);
            CHECK(got == 1.0);
        }
    }

    // Data, a fence, and a word that says that all of it is there.
    void fences(int peer, uint64_t rounds) {
        // One access, too large for a socket to swallow, and the flag on the next rail: what is not ordered overtakes.
        const size_t flag = WORDS_AT + 4096, size = 12000000;
        std::vector<char> data[2] = {std::vector<char>(size), std::vector<char>(size)};
        for (uint64_t round = 1; round <= rounds; round++) {
            std::vector<char> &now = data[round % 2];
            device([&] {
                for (size_t i = 0; i < size; i++) now[i] = byte(i, static_cast<int>(round) + me);
                rma(peer, OP_PUT, 100, now.data(), size, QP_DEFAULT, true);
                CHECK(t->ops.fence(t, peer, QP_DEFAULT, 0) == 0);
                if (round % 2) CHECK(amo_status(peer, AMO_SIGNAL_SET, flag, 8, round, 0, nullptr) == 0);
                else p(peer, flag, round, QP_DEFAULT);
            });
            while (word(flag) != round) std::this_thread::yield();
            // What comes last first: the rest may be arriving meanwhile.
            for (size_t i = size; i-- > 0;) CHECK(heap[100 + i] == byte(i, static_cast<int>(round) + 1 - me));
            device([&] { quiet(QP_ALL); });
            barrier(&boot);
        }
    }

    void put_signals(int peer) {
        if constexpr (V >= 4) {
            const size_t flag = WORDS_AT + 8192;
            uint64_t expect = 0;
            std::vector<char> data(12 << 20);
            for (size_t size : {0ul, 8ul, 4000ul, 5000ul, 1000003ul, 12ul << 20}) {
                for (int op : {AMO_SIGNAL_SET, AMO_SIGNAL_ADD}) {
                    expect += 3;
                    const size_t first = size - size / 16;
                    device([&] {
                        for (size_t i = 0; i < size; i++) data[i] = byte(i, static_cast<int>(expect) + me);
                        std::vector<rma_memdesc_t> far, near;
                        std::vector<rma_bytesdesc_t> sizes;
                        // Most of it in the first chunk, the rest in the second.
                        for (size_t done = 0; done < size;) {
                            size_t piece = done == 0 ? first : size - done;
                            far.push_back(remote(peer, CHUNK - first + done));
                            near.push_back({&data[done], 0, nullptr});
                            sizes.push_back({piece, 1, 1, 1});
                            done += piece;
                        }
                        typename verb<V>::type verb{};
                        verb.op = op;
                        amo_memdesc_t word{remote(peer, flag), 0, nullptr, nullptr, nullptr, op == AMO_SIGNAL_SET ? expect : 3, 0, nullptr};
                        CHECK(t->ps.put_signal(t, peer, {OP_PUT, 1, 0, nullptr}, far, near, sizes, verb, &word, {0, 8}, QP_DEFAULT) == 0);
                    });
                    while (word(flag) != expect) std::this_thread::yield();
                    for (size_t i = size; i-- > 0;)
                        CHECK(heap[CHUNK - first + i] == byte(i, static_cast<int>(expect) + 1 - me));
                    device([&] { quiet(QP_ALL); });
                    barrier(&boot);
                }
            }
        }
    }

    void queue_pairs(int peer) {
        if constexpr (V >= 4) {
            int qps[3] = {0, 0, 0};
            CHECK(t->ops.connect_endpoints(t, nullptr, 0, qps, 3) == 0);
            CHECK(qps[0] > 1 && qps[1] > 1 && qps[2] > 1 && qps[0] != qps[1] && qps[1] != qps[2] && qps[0] != qps[2]);
            for (int i = 0; i < 3; i++) device([&] { p(peer, WORDS_AT + 9000 + 8 * i, 1000 + i, qps[i]), quiet(qps[i]); });
            barrier(&boot);
            for (int i = 0; i < 3; i++) CHECK(word(WORDS_AT + 9000 + 8 * i) == static_cast<uint64_t>(1000 + i));
        }
    }

    int run(bool die) {
        open();
        std::thread thread([this] { proxy(); });
        const int peer = 1 - me;
        if (die) {
            barrier(&boot);
            if (me == 1) _exit(0);
            std::vector<char> data(1000);
            int status = 0;
            auto start = std::chrono::steady_clock::now();
            device([&] {
                rma_memdesc_t far = remote(peer, 0), near{data.data(), 0, nullptr};
                for (int i = 0; i < 50 && !status; i++) {
                    status = t->ops.rma(t, peer, {OP_PUT, 1, 0, nullptr}, &far, &near, {1000, 1, 1, 1}, QP_DEFAULT);
                    if (!status) status = t->ops.quiet(t, peer, QP_ALL);
                }
            });
            CHECK(status != 0 && std::chrono::steady_clock::now() - start < std::chrono::seconds(40));
            printf("the dead PE was noticed\n");
            fflush(stdout);
            _exit(0);
        }
        device([&] { accesses(peer, QP_DEFAULT); });
        accesses(peer, QP_HOST);
        barrier(&boot);
        for (size_t i = 0; i < 1200000; i++) CHECK(heap[CHUNK - 600000 + i] == byte(i, peer));
        barrier(&boot);
        device([&] { accesses(me, QP_DEFAULT); }); // itself
        barrier(&boot);
        for (int pe : {peer, me}) device([&] { amos<uint64_t>(pe, WORDS_AT + 16 * me), amos<uint32_t>(pe, WORDS_AT + 16 * me + 8); }), barrier(&boot);
        fences(peer, 4);
        put_signals(peer);
        queue_pairs(peer);
        // Both threads of both PEs at once, on PE 0: words that all add to, and a large put each.
        const size_t sum = WORDS_AT + 10000;
        std::vector<char> a(100000, 'a'), b(100000, 'b');
        std::thread host_thread([&] {
            for (int i = 0; i < 200; i++) rma(peer, OP_PUT, 0, a.data(), a.size(), QP_HOST, i % 2);
            quiet(QP_HOST);
        });
        device([&] {
            for (int i = 0; i < 5000; i++) {
                CHECK(amo_status(0, AMO_ADD, sum, 8, 1, 0, nullptr) == 0);
                if (i % 50 == 0) rma(peer, OP_PUT, 200000, b.data(), b.size(), QP_DEFAULT, true);
            }
            quiet(QP_ALL);
        });
        host_thread.join();
        barrier(&boot);
        if (me == 0) CHECK(word(sum) == 10000);
        CHECK(heap[99999] == 'a' && heap[299999] == 'b');
        // Quiets with nothing to wait for.
        auto start = std::chrono::steady_clock::now();
        device([&] { for (int i = 0; i < 5000; i++) quiet(QP_ALL); });
        double each = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 10000;
        CHECK(each < 100); // well below a round trip, on a machine that does other things too
        // What is wrong is refused, and harms nobody.
        handle_t nothing{};
        rma_memdesc_t far{heap, 0, &nothing}, near{a.data(), 0, nullptr}, outside = remote(peer, CHUNK - 1);
        CHECK(t->ops.rma(t, peer, {OP_PUT, 1, 0, nullptr}, &far, &near, {8, 1, 1, 1}, QP_DEFAULT) != 0);
        CHECK(t->ops.rma(t, peer, {OP_PUT, 1, 0, nullptr}, &outside, &near, {8, 1, 1, 1}, QP_DEFAULT) != 0);
        CHECK(t->ops.rma(t, me, {OP_PUT, 1, 0, nullptr}, &outside, &near, {1, 1, 1, 1}, QP_DEFAULT) != 0);
        CHECK(t->ops.rma(t, peer, {99, 1, 0, nullptr}, &outside, &near, {1, 1, 1, 1}, QP_DEFAULT) != 0);
        barrier(&boot);
        stop = true;
        thread.join();
        for (handle_t &handle : handles[me]) CHECK(t->ops.release_mem_handle(&handle, t) == 0);
        free(t->cap);
        CHECK(t->ops.finalize(t) == 0);
        barrier(&boot);
        return 0;
    }
};

int main(int argc, char **argv) {
    int lines[2], status = 0, version = argc > 1 ? atoi(argv[1]) : 0;
    bool die = argc > 2 && !strcmp(argv[2], "die");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, lines) != 0) return 1;
    pid_t child = fork();
    me = child == 0;
    line = lines[me];
    close(lines[1 - me]);
    alarm(100);
    switch (version) {
        case 3: (new host<3>)->run(die); break;
        case 4: (new host<4>)->run(die); break;
        case 5: (new host<5>)->run(die); break;
        case 6: (new host<6>)->run(die); break;
        case 7: (new host<7>)->run(die); break;
        default: return 2;
    }
    if (me == 1) return 0;
    if (waitpid(child, &status, 0) != child || status != 0) return 1;
    printf("version %d: every function verified\n", version);
    return 0;
}
