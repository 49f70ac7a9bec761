// A stand-in for NVSHMEM's host library: it calls every function of a transport in two processes, and verifies every
// result at the other end.
//
//     fake_host VERSION [killed | open [CORE]]     VERSION: 3 to 7, the version of the interface
//
// killed: PE 1 is killed during operation. open: the PEs only open the transport; if CORE is given, on this core only.
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>

#include "host.hpp"

using clock_type = std::chrono::steady_clock;

template <int V> struct job : host<V> {
    using host<V>::t, host<V>::boot, host<V>::heap, host<V>::handles, host<V>::stop;
    using host<V>::open, host<V>::close, host<V>::proxy, host<V>::device, host<V>::remote, host<V>::rma, host<V>::rma_status;
    using host<V>::p, host<V>::amo_status, host<V>::quiet, host<V>::word, host<V>::byte;

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

    // Data, a fence, and a word that signals all of the data.
    void fences(int peer, uint64_t rounds) {
        // One access, too large for a socket's buffer, and the flag on the next rail: without an order the flag
        // overtakes.
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
            // The last byte is checked first, as the rest may be arriving meanwhile.
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
                        // Most of it is in the first chunk, the rest in the second.
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

    // PE 1 is killed while both put without a pause. PE 0's operations fail in time, and PE 0 can end.
    void a_peer_is_killed(int peer) {
        std::vector<char> data(CHUNK / 2);
        int status = 0;
        clock_type::duration took{};
        for (int round = 0; status == 0; round++) {
            device([&] {
                const auto start = clock_type::now();
                status = rma_status(peer, OP_PUT, 0, data.data(), data.size(), QP_DEFAULT, true);
                if (me == 1 && round == 5) kill(getpid(), SIGKILL);
                if (status == 0) status = t->ops.quiet(t, peer, QP_ALL);
                took = clock_type::now() - start;
            });
        }
        printf("noticed after %.1f s\n", std::chrono::duration<double>(took).count());
    }

    void run(const std::string &what) {
        open();
        std::thread thread([this] { proxy(); });
        if (what == "killed") a_peer_is_killed(1 - me);
        if (what.empty()) every_function(1 - me);
        stop = true;
        thread.join();
        close();
    }

    void every_function(const int peer) {
        device([&] { accesses(peer, QP_DEFAULT); });
        accesses(peer, QP_HOST);
        barrier(&boot);
        for (size_t i = 0; i < 1200000; i++) CHECK(heap[CHUNK - 600000 + i] == byte(i, peer));
        barrier(&boot);
        device([&] { accesses(me, QP_DEFAULT); }); // on the PE itself
        barrier(&boot);
        for (int pe : {peer, me}) device([&] { amos<uint64_t>(pe, WORDS_AT + 16 * me), amos<uint32_t>(pe, WORDS_AT + 16 * me + 8); }), barrier(&boot);
        fences(peer, 4);
        put_signals(peer);
        queue_pairs(peer);
        // Both threads of both PEs at once, on PE 0: all add to the same words, and each makes a large put.
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
        // Quiets without operations to wait for.
        auto start = clock_type::now();
        device([&] { for (int i = 0; i < 5000; i++) quiet(QP_ALL); });
        double each = std::chrono::duration<double, std::micro>(clock_type::now() - start).count() / 10000;
        CHECK(each < 100); // well below a round trip, even on a busy machine
        // Invalid calls are refused, without harm to other operations.
        handle_t nothing{};
        rma_memdesc_t far{heap, 0, &nothing}, near{a.data(), 0, nullptr}, outside = remote(peer, CHUNK - 1);
        CHECK(t->ops.rma(t, peer, {OP_PUT, 1, 0, nullptr}, &far, &near, {8, 1, 1, 1}, QP_DEFAULT) != 0);
        CHECK(t->ops.rma(t, peer, {OP_PUT, 1, 0, nullptr}, &outside, &near, {8, 1, 1, 1}, QP_DEFAULT) != 0);
        CHECK(t->ops.rma(t, me, {OP_PUT, 1, 0, nullptr}, &outside, &near, {1, 1, 1, 1}, QP_DEFAULT) != 0);
        CHECK(t->ops.rma(t, peer, {99, 1, 0, nullptr}, &outside, &near, {1, 1, 1, 1}, QP_DEFAULT) != 0);
        barrier(&boot);
    }
};

int main(int argc, char **argv) {
    int lines[2], status = 0, version = argc > 1 ? atoi(argv[1]) : 0;
    const std::string what = argc > 2 ? argv[2] : "";
    if (argc > 3) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(atoi(argv[3]), &cores);
        if (sched_setaffinity(0, sizeof cores, &cores) != 0) return 1;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, lines) != 0) return 1;
    pid_t child = fork();
    me = child == 0;
    line = lines[me];
    close(lines[1 - me]);
    alarm(100);
    switch (version) {
        case 3: (new job<3>)->run(what); break;
        case 4: (new job<4>)->run(what); break;
        case 5: (new job<5>)->run(what); break;
        case 6: (new job<6>)->run(what); break;
        case 7: (new job<7>)->run(what); break;
        default: return 2;
    }
    if (me == 1) return 0;
    if (waitpid(child, &status, 0) != child) return 1;
    if (what == "killed") return !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    if (status != 0) return 1;
    if (what.empty()) printf("version %d: every function verified\n", version);
    return 0;
}
