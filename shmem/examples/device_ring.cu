/* A block of numbers goes round the ring of PEs, put by kernels; every PE adds one to each number on its way.
 *
 * device_ring.rs compiles this file by NVRTC. It is a C++ program of its own too, compiled by nvcc:
 *
 *   nvcc -O2 -std=c++17 -arch=native -I$PREFIX/include device_ring.cu -o device_ring \
 *        -L$PREFIX/lib -lsymrail -Xlinker -rpath=$PREFIX/lib
 *   SYMRAIL_HEAP_KIND=device symrail run -n 2 -- ./device_ring
 */
#include <symrail_device.cuh>

extern "C" __global__ void ring(double* inbox, double* outbox, symrail_u64* arrived, size_t n,
                                symrail_u64 laps, symrail_u64 next) {
    for (symrail_u64 lap = 1; lap <= laps; lap++) {
        /* All threads of the block copy; a PE that observes the signal observes the data. */
        symrailx_double_put_signal_block(inbox, outbox, n, arrived, lap, SYMRAIL_SIGNAL_SET, (int)next);
        if (threadIdx.x == 0) symrail_signal_wait_until(arrived, SYMRAIL_CMP_GE, lap);
        __syncthreads();
        for (size_t i = threadIdx.x; i < n; i += blockDim.x) outbox[i] = inbox[i] + 1;
        /* No PE puts the next block before all PEs have read this one. */
        symrailx_barrier_all_block();
    }
}

#ifndef __CUDACC_RTC__
#include <cstdio>
#include <vector>
#include <shmem.h>
#include <shmemx.h>

int main() {
    shmem_init();
    int me = shmem_my_pe(), n_pes = shmem_n_pes();
    cudaSetDevice(me % [] { int count = 1; cudaGetDeviceCount(&count); return count; }());
    size_t n = 1000;
    double* inbox = (double*)shmem_malloc(n * sizeof(double));
    double* outbox = (double*)shmem_malloc(n * sizeof(double));
    symrail_u64* arrived = (symrail_u64*)shmem_calloc(1, sizeof(symrail_u64));

    /* Passes the PE's state to the kernels of this file. */
    void* state = nullptr;
    cudaGetSymbolAddress(&state, symrail_state);
    if (shmemx_device_attach(state, sizeof(symrail_device_state)) != 0) return 1;

    /* The kernels' addresses of the symmetric objects. */
    double* in = (double*)shmemx_device_ptr(inbox);
    double* out = (double*)shmemx_device_ptr(outbox);
    symrail_u64* flag = (symrail_u64*)shmemx_device_ptr(arrived);

    std::vector<double> numbers(n);
    for (size_t i = 0; i < n; i++) numbers[i] = me * 10000.0 + (double)i;
    cudaMemcpy(out, numbers.data(), n * sizeof(double), cudaMemcpyDefault);
    shmem_barrier_all();
    ring<<<1, 256>>>(in, out, flag, n, (symrail_u64)n_pes, (symrail_u64)((me + 1) % n_pes));
    cudaDeviceSynchronize();
    if (shmemx_device_check() != 0) return 1;

    /* After as many laps as there are PEs the block is back, and every PE has added one. */
    cudaMemcpy(numbers.data(), out, n * sizeof(double), cudaMemcpyDefault);
    for (size_t i = 0; i < n; i++)
        if (numbers[i] != me * 10000.0 + (double)i + n_pes) {
            printf("PE %d: number %zu is %g\n", me, i, numbers[i]);
            return 1;
        }
    if (me == 0) printf("device ring: %zu numbers round %d PEs by kernels on GPUs\n", n, n_pes);
    shmem_finalize();
    return 0;
}
#endif
