// The actions of NVSHMEM's host library on a transport: it loads it, fills in the structure, and calls it from a host
// thread and a proxy thread at the same time.
#pragma once
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
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

    // The proxy thread: requests, and repeated progress.
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
    int rma_status(int pe, int op, size_t at, void *local, size_t size, int qp, bool nbi) {
        rma_memdesc_t far = remote(pe, at), near{local, 0, nullptr};
        return t->ops.rma(t, pe, {op, nbi, 0, nullptr}, &far, &near, {size, 1, 1, 1}, qp);
    }
    // No operation spans two chunks, as in the host library.
    void rma(int pe, int op, size_t at, void *local, size_t size, int qp, bool nbi) {
        while (size > 0) {
            size_t piece = std::min(size, CHUNK - at % CHUNK);
            CHECK(rma_status(pe, op, at, local, piece, qp, nbi) == 0);
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
        // Heaps at different addresses, so that a mix-up is detected.
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
        // The first version passes three arguments, and the plugin must not read values in place of the others.
        int *const junk = reinterpret_cast<int *>(V == 3 ? 16 : 0);
        CHECK(t->ops.connect_endpoints(t, &device, 1, junk, V == 3 ? 1 << 30 : 0) == 0);
        barrier(&boot);
        handle_t mine[2];
        for (int i = 0; i < 2; i++) CHECK(t->ops.get_mem_handle(&mine[i], heap + i * CHUNK, CHUNK, t, false) == 0);
        allgather(mine, handles, sizeof mine, &boot);
        void *base = heap;
        allgather(&base, bases, sizeof base, &boot);
    }

    void close() {
        for (handle_t &handle : handles[me]) CHECK(t->ops.release_mem_handle(&handle, t) == 0);
        free(t->cap);
        CHECK(t->ops.finalize(t) == 0);
    }
};
