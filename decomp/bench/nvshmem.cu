// The four transposes of an array of complex numbers, and halos of three fields, in the way of programs on NVSHMEM:
// pack, nvshmemx_putmem_on_stream, nvshmemx_barrier_all_on_stream, unpack. Each pencil's own axis is the fastest.
//
//   nvcc -O3 -std=c++17 -rdc=true -arch=sm_90 … nvshmem.cu      (scripts/gpu.sh transposes does)
//   mpirun -n N … ./nvshmem EDGE …
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "moves.cu"
#include <nvshmem.h>
#include <nvshmemx.h>

#define CUDA(call)                                                                      \
    do {                                                                                \
        cudaError_t e = (call);                                                         \
        if (e != cudaSuccess) {                                                         \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));                  \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static cudaStream_t stream;
static cudaEvent_t marks[2];
static double* scratch;
static int me, pes;

static double largest(double mine) {
    CUDA(cudaMemcpy(scratch, &mine, 8, cudaMemcpyHostToDevice));
    nvshmem_double_max_reduce(NVSHMEM_TEAM_WORLD, scratch + 1, scratch, 1);
    CUDA(cudaMemcpy(&mine, scratch + 1, 8, cudaMemcpyDeviceToHost));
    return mine;
}

template <class F>
static double batch(int rounds, const F& round) {
    CUDA(cudaStreamSynchronize(stream));
    nvshmem_barrier_all();
    CUDA(cudaEventRecord(marks[0], stream));
    for (int i = 0; i < rounds; i++) round();
    CUDA(cudaEventRecord(marks[1], stream));
    CUDA(cudaStreamSynchronize(stream));
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, marks[0], marks[1]));
    return largest(ms * 1e3 / rounds);
}

// Microseconds of a round on the slowest PE: the median of seven batches.
template <class F>
static double timed(const F& round) {
    batch(3, round);
    double once = batch(3, round);
    int rounds = std::max(1, std::min(100, (int)(5000 / once)));
    std::vector<double> times;
    for (int i = 0; i < 7; i++) times.push_back(batch(rounds, round));
    std::sort(times.begin(), times.end());
    return times[3];
}

static void say(const char* what, symrail_u64 edge, double us, symrail_u64 bytes, long long wrong) {
    double all = largest((double)(wrong != 0));
    if (me == 0)
        printf("{\"system\": \"NVSHMEM\", \"what\": \"%s\", \"edge\": %llu, \"us\": %.2f, \"moved\": %llu, \"right\": %s}\n", what,
               edge, us, bytes, all == 0 ? "true" : "false");
    fflush(stdout);
}

static void copy(const void* from, void* to, const std::vector<symrail_u64>& loops) {
    CUDA((cudaError_t)moves_copy(from, to, (int)loops.size() / 3, loops.data(), stream));
}

// Calls `each` with all PEs but this one.
template <class F>
static void others(const F& each) {
    for (int pe = 0; pe < pes; pe++)
        if (pe != me) each((symrail_u64)pe);
}

// Elements of 16 bytes. Pencils are [z/pes][y][x], [x][z/pes][y] and [y/pes][x][z].
static void transposes(symrail_u64 n) {
    const symrail_u64 h = n / pes, own = n * n * h, block = n * h * h;
    symrail_wide *a, *b, *send = (symrail_wide*)nvshmem_malloc(own * 16);
    symrail_wide* receive[2] = {(symrail_wide*)nvshmem_malloc(own * 16), (symrail_wide*)nvshmem_malloc(own * 16)};
    if (cudaMalloc(&a, own * 16) != cudaSuccess || cudaMalloc(&b, own * 16) != cudaSuccess || !send || !receive[1]) {
        if (me == 0) printf("no memory for %llu^3\n", n);
        exit(1);
    }
    auto x_to_y = [&] { copy(a, b, {n, 1, h * n, h, n * n, n, n, n, 1}); };
    auto y_to_x = [&] { copy(b, a, {n, h * n, 1, h, n, n * n, n, 1, n}); };
    auto exchange = [&](int which) {
        others([&](symrail_u64 peer) {
            nvshmemx_putmem_on_stream(receive[which] + me * block, send + peer * block, block * 16, (int)peer, stream);
        });
        nvshmemx_barrier_all_on_stream(stream);
    };
    // Loops along X, the receiver's part of Y and the sender's of Z.
    auto y_to_z = [&] {
        others([&](symrail_u64 peer) { copy(b + peer * h, send + peer * block, {n, h * n, h, h, 1, n * h, h, n, 1}); });
        copy(b + me * h, a + me * h, {n, h * n, n, h, 1, n * n, h, n, 1});
        exchange(0);
        others([&](symrail_u64 peer) { copy(receive[0] + peer * block, a + peer * h, {n, h, n, h, n * h, n * n, h, 1, 1}); });
    };
    auto z_to_y = [&] {
        others([&](symrail_u64 peer) { copy(a + peer * h, send + peer * block, {n, n, h * h, h, n * n, 1, h, 1, h}); });
        copy(a + me * h, b + me * h, {n, n, h * n, h, n * n, 1, h, 1, n});
        exchange(1);
        others([&](symrail_u64 peer) { copy(receive[1] + peer * block, b + peer * h, {n, h * h, h * n, h, 1, 1, h, h, n}); });
    };
    symrail_u64 z = me * h;
    numbers x_pencil = {(symrail_u64)a, 0, n, {0, 0, z}, {n, n, h}, {1, n, n * n}, 0, 1, own, 0, 0};
    numbers y_pencil = {(symrail_u64)b, 0, n, {0, 0, z}, {n, n, h}, {h * n, 1, n}, 0, 1, own, 0, 0};
    numbers z_pencil = {(symrail_u64)a, 0, n, {0, z, 0}, {n, h, n}, {n, n * n, 1}, 0, 1, own, 0, 0};
    long long wrong = 0;
    auto check = [&](const numbers& pencil) { wrong += moves_wrong(pencil, 16, stream) != 0; };
    moves_fill(&x_pencil, 16, stream);
    x_to_y(), check(y_pencil);
    y_to_z(), check(z_pencil);
    CUDA(cudaMemsetAsync(b, 0xEE, own * 16, stream));
    z_to_y(), check(y_pencil);
    y_to_x(), check(x_pencil);
    double all = timed([&] { x_to_y(), y_to_z(), z_to_y(), y_to_x(); });
    check(x_pencil);
    double crossing = timed([&] { z_to_y(), y_to_z(); });
    double put = timed([&] { exchange(0); });
    symrail_u64 moved = (pes - 1) * block * 16;
    say("four transposes", n, all, 2 * moved, wrong);
    say("the two that cross", n, crossing, 2 * moved, wrong);
    say("put and barrier alone", n, put, moved, wrong);
    CUDA(cudaStreamSynchronize(stream));
    cudaFree(a), cudaFree(b);
    nvshmem_free(send), nvshmem_free(receive[0]), nvshmem_free(receive[1]);
}

// Elements of 8 bytes, three fields of [z/pes + 2][y + 2][x + 2]: the halo along Z, whose faces are planes.
static void halos(symrail_u64 n, bool periodic) {
    const symrail_u64 h = n / pes, plane = (n + 2) * (n + 2), field = plane * (h + 2), fields = 3;
    char* a;
    char* room = (char*)nvshmem_malloc(4 * fields * plane * 8);
    if (cudaMalloc(&a, fields * field * 8) != cudaSuccess || !room) exit(1);
    symrail_u64 face = fields * plane * 8, z = me * h;
    auto at = [&](symrail_u64 layer) { return a + layer * plane * 8; };
    numbers pencil = {(symrail_u64)a, 0, n, {0, 0, z}, {n, n, h}, {1, n + 2, plane}, 1, fields, field, 1, periodic};
    CUDA(cudaMemset(a, 0xEE, fields * field * 8));
    moves_fill(&pencil, 8, stream);
    // PE 0 is the lowest: a block that a neighbour has sent up arrives from below.
    auto sends = [&](int up) { return periodic || (up ? me < pes - 1 : me > 0); };
    auto receives = [&](int up) { return sends(!up); };
    auto peer = [&](int up) { return (me + (up ? 1 : pes - 1)) % pes; };
    auto round = [&] {
        for (int up = 0; up < 2; up++)
            if (sends(up)) copy(at(up ? h : 1), room + up * face, {plane / 2, 1, 1, fields, field / 2, plane / 2});
        nvshmemx_barrier_all_on_stream(stream);
        for (int up = 0; up < 2; up++)
            if (sends(up)) nvshmemx_putmem_on_stream(room + (2 + up) * face, room + up * face, face, peer(up), stream);
        nvshmemx_barrier_all_on_stream(stream);
        for (int up = 0; up < 2; up++)
            if (receives(up)) copy(room + (2 + up) * face, at(up ? 0 : h + 1), {plane / 2, 1, 1, fields, plane / 2, field / 2});
    };
    round();
    long long wrong = moves_wrong(pencil, 8, stream);
    double us = timed(round);
    say(periodic ? "halo, periodic" : "halo", n, us, (periodic || pes > 2 ? 2 : 1) * face, wrong);
    CUDA(cudaStreamSynchronize(stream));
    cudaFree(a);
    nvshmem_free(room);
}

int main(int argc, char** argv) {
    int gpus = 0;
    CUDA(cudaGetDeviceCount(&gpus));
    nvshmem_init();
    me = nvshmem_my_pe(), pes = nvshmem_n_pes();
    CUDA(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&marks[0]));
    CUDA(cudaEventCreate(&marks[1]));
    scratch = (double*)nvshmem_malloc(64);
    for (int i = 1; i < argc; i++) transposes(strtoull(argv[i], nullptr, 10));
    for (bool periodic : {false, true}) halos(512, periodic);
    nvshmem_barrier_all();
    nvshmem_free(scratch);
    nvshmem_finalize();
    return 0;
}
