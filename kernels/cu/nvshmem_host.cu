// The measurements of bench.cu on NVSHMEM, for a comparison on the same machine at the same time:
//   nvcc -DBENCH_ON_NVSHMEM -rdc=true -arch=sm_90 bench.cu nvshmem_host.cu …   (scripts/gpu.sh does)
#include <algorithm>
#include <cstdio>
#include <vector>

#include <nvshmem.h>
#include <nvshmemx.h>

typedef unsigned long long u64;
extern "C" __global__ void ping_pong(char*, u64*, u64, u64, u64*);
extern "C" __global__ void signal_ping_pong(u64*, u64, u64*);
extern "C" __global__ void put_quiet(char*, u64, u64, u64*);
extern "C" __global__ void block_put(char*, char*, u64, u64);
extern "C" __global__ void p_rate(int*, u64, u64*);
extern "C" __global__ void g_latency(int*, u64, u64*);
extern "C" __global__ void fetch_add_latency(int*, u64, u64*);

#define CUDA(call)                                                                      \
    do {                                                                                \
        cudaError_t e = (call);                                                         \
        if (e != cudaSuccess) {                                                         \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));                  \
            return 1;                                                                   \
        }                                                                               \
    } while (0)

template <class F>
double median(u64* out, F launch) {
    std::vector<double> times;
    for (int i = 0; i < 5; i++) {
        launch();
        cudaDeviceSynchronize();
        u64 t = 0;
        cudaMemcpy(&t, out, 8, cudaMemcpyDeviceToHost);
        times.push_back((double)t);
    }
    std::sort(times.begin(), times.end());
    return times[2];
}

int main() {
    int gpus = 0;
    CUDA(cudaGetDeviceCount(&gpus));
    nvshmem_init();
    int me = nvshmem_my_pe();
    CUDA(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus));
    char* area = (char*)nvshmem_malloc(160u << 20);
    u64* out;
    CUDA(cudaMalloc(&out, 4096));
    CUDA(cudaMemset(area, 0, 16u << 20));
    u64* signal = (u64*)(area + (64 << 10));
    const u64 rounds = 2000;
    auto fresh = [&] {
        cudaMemset(signal, 0, 64);
        cudaDeviceSynchronize();
        nvshmem_barrier_all();
    };
    double ns = median(out, [&] { fresh(); signal_ping_pong<<<1, 1>>>(signal, rounds, out); });
    if (me == 0) printf("signal ping-pong, round trip                    %9.2f us\n", ns / rounds / 1e3);
    for (u64 bytes : {8, 1024}) {
        ns = median(out, [&] { fresh(); ping_pong<<<1, 1>>>(area, signal, bytes, rounds, out); });
        if (me == 0) printf("put_signal ping-pong %5llu B, round trip         %9.2f us\n", bytes, ns / rounds / 1e3);
    }
    nvshmem_barrier_all();
    if (me == 0) {
        for (u64 bytes : {8, 1024}) {
            ns = median(out, [&] { put_quiet<<<1, 1>>>(area, bytes, rounds, out); });
            printf("put %llu B + quiet                                 %9.2f us\n", bytes, ns / rounds / 1e3);
        }
        ns = median(out, [&] { g_latency<<<1, 1>>>((int*)area, rounds, out); });
        printf("g 4 B                                           %9.2f us\n", ns / rounds / 1e3);
        ns = median(out, [&] { fetch_add_latency<<<1, 1>>>((int*)area + 16, rounds, out); });
        printf("fetch_add 4 B                                   %9.2f us\n", ns / rounds / 1e3);
        for (int threads : {1, 32, 1024}) {
            ns = median(out, [&] { p_rate<<<1, threads>>>((int*)area, 20000, out); });
            printf("p 4 B, %4d threads                             %9.2f M/s\n", threads, 20000.0 * threads / ns * 1e3);
        }
        ns = median(out, [&] { put_quiet<<<1, 1>>>(area + (1 << 20), 1 << 20, 20, out); });
        printf("put 1 MiB by one thread                         %9.2f GB/s\n", 20.0 * (1 << 20) / ns);
        cudaEvent_t a, b;
        CUDA(cudaEventCreate(&a));
        CUDA(cudaEventCreate(&b));
        char* to = area + (1 << 20);
        for (u64 bytes : {4ull << 10, 64ull << 10, 1ull << 20, 8ull << 20, 64ull << 20}) {
            char* from = to + std::max(bytes, 1ull << 20);
            u64 n = std::min(std::max((8ull << 30) / bytes, 2ull), 2000ull);
            double best = 0;
            int grid = 0;
            for (int blocks : {1, 4, 16, 32, 64, 128}) {
                if ((u64)blocks * 1024 > bytes) continue;
                block_put<<<blocks, 1024>>>(to, from, bytes, 2);
                CUDA(cudaEventRecord(a));
                block_put<<<blocks, 1024>>>(to, from, bytes, n);
                CUDA(cudaEventRecord(b));
                CUDA(cudaDeviceSynchronize());
                float ms;
                CUDA(cudaEventElapsedTime(&ms, a, b));
                double speed = (double)bytes * n / ms / 1e6;
                if (speed > best) best = speed, grid = blocks;
            }
            printf("block put %9llu B, best of grids (%3d blocks) %9.2f GB/s\n", bytes, grid, best);
        }
    }
    nvshmem_barrier_all();
    nvshmem_free(area);
    nvshmem_finalize();
    return 0;
}
