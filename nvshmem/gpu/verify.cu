// An NVSHMEM program that verifies, at the other end, all functions of a remote transport for devices: puts and gets of
// many sizes, single words, signals, every AMO, fences, barriers and collectives. It does not depend on Symrail.
//
//     verify [SECONDS] [die]     again and again for SECONDS; die: PE 1 is killed in the second round, and PE 0 has to notice
//
// nvcc -std=c++17 -rdc=true verify.cu -lnvshmem_device -lnvshmem_host …   (scripts/nvshmem-gpu.sh does)
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <nvshmem.h>
#include <nvshmemx.h>

typedef unsigned long long u64;
typedef unsigned char byte;

#define CUDA(call)                                                        \
    do {                                                                  \
        cudaError_t e = (call);                                           \
        if (e != cudaSuccess) {                                           \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));    \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

enum { MOST = 8 << 20, WORDS = 1024, THREADS = 256 };

// Symmetric memory.
struct Area {
    byte *source, *dest, *back;
    uint64_t *words;
    uint32_t *halves;
    uint64_t *flag; // of this kind: flag[0] puts, [1] put_signal, [2] fences; [8] the sum
    uint64_t *in, *out;
};
// The first failure: a line of this file, and the place.
struct Fault {
    int line;
    u64 at, got, expected;
};
__device__ Fault fault;

__device__ void wrong(int line, u64 at, u64 got, u64 expected) {
    if (atomicCAS(&fault.line, 0, line) == 0) fault.at = at, fault.got = got, fault.expected = expected;
}
#define SAME(at, got, expected)                                           \
    do {                                                                  \
        u64 g_ = (u64)(got), e_ = (u64)(expected);                        \
        if (g_ != e_) wrong(__LINE__, (u64)(at), g_, e_);                 \
    } while (0)

__device__ byte pattern(u64 i, u64 seed) { return (byte)(i * 13 + i / 4093 + 101 * seed + (seed >> 8)); }

__device__ void fill(byte *to, u64 n, u64 seed) {
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) to[i] = pattern(i, seed);
    __threadfence_system();
    __syncthreads();
}
__device__ void check(int line, const byte *from, u64 n, u64 seed) {
    const volatile byte *v = from;
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) {
        byte got = v[i];
        if (got != pattern(i, seed)) wrong(line, i, got, pattern(i, seed));
    }
    __syncthreads();
}
__device__ void everybody() {
    __syncthreads();
    if (threadIdx.x == 0) nvshmem_barrier_all();
    __syncthreads();
}

__global__ void accesses(Area a, u64 round, int extra) {
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    const u64 sizes[] = {1, 7, 8, 100, 4096, 5000, 65536, 1000003, (u64)extra};
    for (int s = 0; s < 9; s++) {
        const u64 size = sizes[s], seed = round * 37 + s, mine = seed * 4 + me, theirs = seed * 4 + before, told = round * 9 + s + 1;
        fill(a.source, size, mine);
        if (threadIdx.x == 0) {
            nvshmem_putmem_nbi(a.dest, a.source, size, next);
            nvshmem_quiet();
            nvshmemx_signal_op(a.flag, told, NVSHMEM_SIGNAL_SET, next);
            nvshmem_signal_wait_until(a.flag, NVSHMEM_CMP_EQ, told);
        }
        __syncthreads();
        check(__LINE__, a.dest, size, theirs);
        if (threadIdx.x == 0) {
            nvshmem_getmem(a.back, a.dest, size, next);
        }
        __syncthreads();
        check(__LINE__, a.back, size, mine);
        everybody();
        // Data with a signal. If the signal is visible, its data must be.
        fill(a.source, size, mine + 2);
        if (threadIdx.x == 0) {
            nvshmem_putmem_signal_nbi(a.dest, a.source, size, a.flag + 1, told, NVSHMEM_SIGNAL_SET, next);
            nvshmem_signal_wait_until(a.flag + 1, NVSHMEM_CMP_EQ, told);
        }
        __syncthreads();
        check(__LINE__, a.dest, size, theirs + 2);
        everybody();
        // Data, a fence, and a word.
        fill(a.source, size, mine + 3);
        if (threadIdx.x == 0) {
            nvshmem_putmem_nbi(a.dest, a.source, size, next);
            nvshmem_fence();
            nvshmemx_signal_op(a.flag + 2, told, NVSHMEM_SIGNAL_SET, next);
            nvshmem_signal_wait_until(a.flag + 2, NVSHMEM_CMP_EQ, told);
        }
        __syncthreads();
        check(__LINE__, a.dest, size, theirs + 3);
        everybody();
    }
    // Words by all threads, and by PEs to themselves.
    for (int pe : {next, me}) {
        for (int i = threadIdx.x; i < WORDS; i += blockDim.x) nvshmem_uint64_p(a.words + i, round * 1000 + i + 7 * me, pe);
        everybody();
        const int writer = pe == me ? me : before;
        for (int i = threadIdx.x; i < WORDS; i += blockDim.x) SAME(i, ((volatile uint64_t *)a.words)[i], round * 1000 + i + 7 * writer);
        __syncthreads();
        if (threadIdx.x < 4) SAME(threadIdx.x, nvshmem_uint64_g(a.words + threadIdx.x, pe), round * 1000 + threadIdx.x + 7 * me);
        everybody();
    }
}

// Every AMO on a word of `pe` that only this PE uses.
#define AMOS(T, name)                                                                      \
    __device__ void amos_##name(T *w, int pe) {                                            \
        nvshmem_##name##_atomic_set(w, 41, pe);                                            \
        nvshmem_quiet();                                                                   \
        SAME(1, nvshmem_##name##_atomic_fetch(w, pe), 41);                                 \
        nvshmem_##name##_atomic_inc(w, pe);                                                \
        nvshmem_##name##_atomic_add(w, 100, pe);                                           \
        nvshmem_quiet();                                                                   \
        SAME(2, nvshmem_##name##_atomic_fetch_inc(w, pe), 142);                            \
        SAME(3, nvshmem_##name##_atomic_fetch_add(w, (T)-3, pe), 143);                     \
        nvshmem_##name##_atomic_and(w, 0xfc, pe);                                          \
        nvshmem_quiet();                                                                   \
        nvshmem_##name##_atomic_or(w, 0x301, pe);                                          \
        nvshmem_quiet();                                                                   \
        nvshmem_##name##_atomic_xor(w, 0xff, pe);                                          \
        nvshmem_quiet();                                                                   \
        SAME(4, nvshmem_##name##_atomic_fetch_and(w, 0xff0, pe), 0x372);                   \
        SAME(5, nvshmem_##name##_atomic_fetch_or(w, 1, pe), 0x370);                        \
        SAME(6, nvshmem_##name##_atomic_fetch_xor(w, 0x70, pe), 0x371);                    \
        SAME(7, nvshmem_##name##_atomic_compare_swap(w, 0x300, 5, pe), 0x301);             \
        SAME(8, nvshmem_##name##_atomic_compare_swap(w, 0x301, 5, pe), 0x301);             \
        SAME(9, nvshmem_##name##_atomic_swap(w, 77, pe), 5);                               \
        SAME(10, nvshmem_##name##_atomic_fetch(w, pe), 77);                                \
    }
AMOS(uint64_t, uint64)
AMOS(uint32_t, uint32)

__global__ void atomics(Area a, u64 round) {
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    if (threadIdx.x == 0)
        for (int pe = 0; pe < n; pe++) {
            amos_uint64(a.words + me, pe);
            amos_uint32(a.halves + me, pe);
        }
    everybody();
    // All threads of all PEs on one word of PE 0.
    nvshmem_uint64_atomic_add(a.flag + 8, 1, 0);
    u64 old = nvshmem_uint64_atomic_fetch_add(a.flag + 8, 2, 0);
    if (old >= (round + 1) * 3 * THREADS * n) wrong(__LINE__, 0, old, 0);
    everybody();
    if (me == 0 && threadIdx.x == 0) SAME(0, *(volatile uint64_t *)(a.flag + 8), (round + 1) * 3 * THREADS * n);
    everybody();
}

__global__ void collectives(Area a, u64 round) {
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes(), count = 512;
    auto set = [&](u64 base) {
        for (int i = threadIdx.x; i < count * n; i += blockDim.x) a.in[i] = base + i, a.out[i] = 0;
        everybody();
    };
    set(round + 1000 * me);
    if (threadIdx.x == 0) nvshmem_uint64_sum_reduce(NVSHMEM_TEAM_WORLD, a.out, a.in, count);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        SAME(i, ((volatile uint64_t *)a.out)[i], n * (round + i) + 1000ull * n * (n - 1) / 2);
    set(round + 1000 * me);
    if (threadIdx.x == 0) nvshmem_uint64_fcollect(NVSHMEM_TEAM_WORLD, a.out, a.in, count);
    __syncthreads();
    for (int i = threadIdx.x; i < count * n; i += blockDim.x)
        SAME(i, ((volatile uint64_t *)a.out)[i], round + 1000ull * (i / count) + i % count);
    set(round + 1000 * me);
    if (threadIdx.x == 0) nvshmem_uint64_alltoall(NVSHMEM_TEAM_WORLD, a.out, a.in, count);
    __syncthreads();
    for (int i = threadIdx.x; i < count * n; i += blockDim.x)
        SAME(i, ((volatile uint64_t *)a.out)[i], round + 1000ull * (i / count) + (u64)me * count + i % count);
    set(round + 1000 * me);
    if (threadIdx.x == 0) nvshmem_uint64_broadcast(NVSHMEM_TEAM_WORLD, a.out, a.in, count, 1 % n);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        SAME(i, ((volatile uint64_t *)a.out)[i], round + 1000ull * (1 % n) + i);
    everybody();
}

// PE 0 announces whether there is another round.
__global__ void go_on(Area a, u64 word) {
    if (nvshmem_my_pe() == 0)
        for (int pe = 0; pe < nvshmem_n_pes(); pe++) nvshmem_uint64_p(a.flag + 16, word, pe);
    nvshmem_barrier_all();
}

// One thread: signals there and back.
__global__ void ping_pong(uint64_t *flag, u64 first, int rounds, u64 *ns) {
    const int me = nvshmem_my_pe(), peer = me ^ 1;
    u64 from, to;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(from));
    for (u64 i = first; i < first + rounds; i++) {
        if (me == 1) nvshmem_signal_wait_until(flag, NVSHMEM_CMP_EQ, i);
        nvshmemx_signal_op(flag, i, NVSHMEM_SIGNAL_SET, peer);
        if (me == 0) nvshmem_signal_wait_until(flag, NVSHMEM_CMP_EQ, i);
    }
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(to));
    *ns = (to - from) / rounds;
}

// One thread: a put of 8 bytes and a quiet. Then a block: puts of MOST bytes and a quiet for each.
__global__ void puts(Area a, int small, int large, u64 *ns) {
    u64 from, to;
    if (nvshmem_my_pe() != 0) return;
    if (threadIdx.x == 0) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(from));
        for (int i = 0; i < small; i++) {
            nvshmem_putmem_nbi(a.dest, a.source, 8, 1);
            nvshmem_quiet();
        }
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(to));
        ns[0] = (to - from) / small;
        from = to;
    }
    __syncthreads();
    for (int i = 0; i < large; i++) {
        nvshmemx_putmem_nbi_block(a.dest, a.source, MOST, 1);
        if (threadIdx.x == 0) nvshmem_quiet();
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(to));
        ns[1] = (to - from) / large;
    }
}

static void finish(const char *what, int me) {
    CUDA(cudaDeviceSynchronize());
    Fault f;
    CUDA(cudaMemcpyFromSymbol(&f, fault, sizeof f));
    if (f.line == 0) return;
    fprintf(stderr, "PE %d, %s: line %d at %llu: %llx instead of %llx\n", me, what, f.line, f.at, f.got, f.expected);
    exit(1);
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? atof(argv[1]) : 0;
    const bool die = argc > 2 && !strcmp(argv[2], "die");
    int gpus = 0;
    CUDA(cudaGetDeviceCount(&gpus));
    nvshmem_init();
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
    CUDA(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus));
    Area a;
    a.source = (byte *)nvshmem_malloc(MOST), a.dest = (byte *)nvshmem_malloc(MOST), a.back = (byte *)nvshmem_malloc(MOST);
    a.words = (uint64_t *)nvshmem_calloc(WORDS, 8), a.halves = (uint32_t *)nvshmem_calloc(WORDS, 4);
    a.flag = (uint64_t *)nvshmem_calloc(64, 8);
    a.in = (uint64_t *)nvshmem_calloc(WORDS * 8, 8), a.out = (uint64_t *)nvshmem_calloc(WORDS * 8, 8);
    if (!a.source || !a.dest || !a.back || !a.words || !a.halves || !a.flag || !a.in || !a.out) return 1;
    nvshmem_barrier_all();
    if (me == 0) printf("%d PEs are up\n", n), fflush(stdout);

    // The same by host threads.
    uint64_t *there = (uint64_t *)malloc(4096);
    for (int i = 0; i < 512; i++) there[i] = 31 * i + me;
    nvshmemx_buffer_register(there, 4096);
    nvshmem_putmem(a.in, there, 4096, (me + 1) % n);
    nvshmem_quiet();
    nvshmem_barrier_all();
    uint64_t here[512];
    CUDA(cudaMemcpy(here, a.in, 4096, cudaMemcpyDefault));
    for (int i = 0; i < 512; i++)
        if (here[i] != (uint64_t)(31 * i + (me + n - 1) % n)) return fprintf(stderr, "PE %d: host put, word %d: %lu\n", me, i, here[i]), 1;
    nvshmem_barrier_all();

    const auto start = std::chrono::steady_clock::now();
    u64 round = 0;
    for (bool more = true; more; round++) {
        const int extra = 1 + (int)((round * 2654435761u) % MOST);
        accesses<<<1, THREADS>>>(a, round, round == 0 ? MOST : extra);
        if (die && me == 1 && round == 1) kill(getpid(), SIGKILL);
        finish("accesses", me);
        if (round == 0 && me == 0) printf("puts, gets, signals, fences, words verified\n"), fflush(stdout);
        atomics<<<1, THREADS>>>(a, round);
        finish("atomics", me);
        if (round == 0 && me == 0) printf("AMOs verified\n"), fflush(stdout);
        collectives<<<1, THREADS>>>(a, round);
        finish("collectives", me);
        nvshmemx_barrier_all_on_stream(0);
        CUDA(cudaDeviceSynchronize());
        const bool wish = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
        go_on<<<1, 1>>>(a, 2 * round + wish);
        finish("go_on", me);
        uint64_t word = 0;
        CUDA(cudaMemcpy(&word, a.flag + 16, 8, cudaMemcpyDefault));
        more = word & 1;
    }
    u64 *ns, took = 0, put[2] = {0, 1};
    CUDA(cudaMalloc(&ns, 16));
    nvshmem_barrier_all();
    if (n == 2) {
        ping_pong<<<1, 1>>>(a.flag + 32, 1, 50, ns);
        finish("ping_pong", me);
        nvshmem_barrier_all();
        ping_pong<<<1, 1>>>(a.flag + 32, 51, 200, ns);
        finish("ping_pong", me);
        CUDA(cudaMemcpy(&took, ns, 8, cudaMemcpyDeviceToHost));
        nvshmem_barrier_all();
        for (int warm = 0; warm < 2; warm++) {
            puts<<<1, THREADS>>>(a, 200, 20, ns);
            finish("puts", me);
        }
        if (me == 0) CUDA(cudaMemcpy(put, ns, 16, cudaMemcpyDeviceToHost));
        nvshmem_barrier_all();
    }
    nvshmem_barrier_all();
    nvshmemx_buffer_unregister(there);
    if (me == 0)
        printf("VERIFIED %llu rounds; a signal there and back %.1f us, put and quiet of 8 bytes %.1f us, of %d MiB %.0f MB/s\n", round,
               took / 1e3, put[0] / 1e3, MOST >> 20, MOST * 1e3 / put[1]),
            fflush(stdout);
    nvshmem_finalize();
    return 0;
}
