// Packing and unpacking for the comparisons of `scripts/gpu.sh transposes`, with the kernels of decomp/cu/copy.cuh: as
// a library for torch_all_to_all.py, and as a part of nvshmem.cu.
#include <algorithm>
#include <vector>

#include <cuda_runtime.h>

typedef unsigned long long symrail_u64;
typedef unsigned int symrail_u32;
#define SYMRAIL_DEVICE static __device__ __forceinline__
struct __align__(16) symrail_wide { symrail_u64 a, b; };
#include "../../kernels/include/symrail/semaphore_layout.cuh"
#include "../cu/copy.cuh"
#include "numbers.cu"

static __global__ void __launch_bounds__(DECOMP_THREADS, DECOMP_AT_ONCE) move_all(const decomp_copy copy) {
    decomp_copy_part<symrail_wide>(copy, copy.to, blockIdx.x, gridDim.x);
}

// Copies elements of 16 bytes. `loops` has for each dimension the number of elements, and the distances of neighbours
// in the source and in the destination, in elements, as in decomp/src/cuda/table.rs.
extern "C" int moves_copy(const void* from, void* to, int n, const symrail_u64* loops, cudaStream_t stream) {
    std::vector<decomp_loop> all;
    for (int i = 0; i < n; i++)
        if (loops[3 * i] != 1) all.push_back({loops[3 * i], loops[3 * i + 1], loops[3 * i + 2]});
    std::sort(all.begin(), all.end(), [](const decomp_loop& a, const decomp_loop& b) { return a.to < b.to; });
    for (size_t i = 1; i < all.size();) {
        decomp_loop &fast = all[i - 1], &slow = all[i];
        if (slow.from == fast.from * fast.count && slow.to == fast.to * fast.count) {
            fast.count *= slow.count;
            all.erase(all.begin() + i);
        } else {
            i++;
        }
    }
    auto less = [](const decomp_loop& a, const decomp_loop& b) { return a.from < b.from; };
    bool tiled = false;
    if (all.size() > 1) {
        auto fastest = std::min_element(all.begin() + 1, all.end(), less);
        tiled = fastest->from < all[0].from;
        if (tiled) std::iter_swap(all.begin() + 1, fastest);
    }
    decomp_copy copy = {(symrail_u64)from, (symrail_u64)to, ~0ull, 0, tiled, 0, {}};
    symrail_u64 elements = 1;
    for (int i = 0; i < DECOMP_LOOPS; i++) {
        copy.loops[i] = i < (int)all.size() ? all[i] : decomp_loop{1, 1, 1};
        elements *= copy.loops[i].count;
    }
    int device = 0, multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    symrail_u64 blocks = std::min<symrail_u64>((elements + 4 * DECOMP_THREADS - 1) / (4 * DECOMP_THREADS), multiprocessors * DECOMP_AT_ONCE);
    blocks = std::max<symrail_u64>(blocks, (elements + 16 * DECOMP_THREADS - 1) / (16 * DECOMP_THREADS));
    move_all<<<(unsigned)std::max<symrail_u64>(blocks, 1), DECOMP_THREADS, 0, stream>>>(copy);
    return (int)cudaGetLastError();
}

extern "C" int moves_fill(const numbers* it, int bytes, cudaStream_t stream) {
    if (bytes == 8) numbers_fill_8<<<1056, 256, 0, stream>>>(*it);
    else numbers_fill_16<<<1056, 256, 0, stream>>>(*it);
    return (int)cudaGetLastError();
}

// The number of elements that differ.
extern "C" long long moves_wrong(numbers it, int bytes, cudaStream_t stream) {
    symrail_u64 found = 0, *count;
    if (cudaMalloc(&count, 8) != cudaSuccess || cudaMemset(count, 0, 8) != cudaSuccess) return -1;
    it.wrong = (symrail_u64)count;
    if (bytes == 8) numbers_check_8<<<1056, 256, 0, stream>>>(it);
    else numbers_check_16<<<1056, 256, 0, stream>>>(it);
    cudaStreamSynchronize(stream);
    if (cudaMemcpy(&found, count, 8, cudaMemcpyDeviceToHost) != cudaSuccess) return -1;
    cudaFree(count);
    return (long long)found;
}
