/* What nvcc and NVRTC have built in, for clang without CUDA's headers. Atomics and fences are inline PTX: versions of
 * LLVM differ in the scope that they give to atomic instructions, and in the names of intrinsics. */
#ifndef SYMRAIL_CLANG_CUH
#define SYMRAIL_CLANG_CUH

#define __device__ __attribute__((device))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(BYTES) __attribute__((aligned(BYTES)))

#include <__clang_cuda_builtin_vars.h>

typedef __SIZE_TYPE__ size_t;
#define memcpy __builtin_memcpy
#define __syncthreads symrail_clang_syncthreads

#define SYMRAIL_BUILT_IN static __device__ __forceinline__
SYMRAIL_BUILT_IN void __threadfence() { asm volatile("fence.sc.gpu;" ::: "memory"); }
SYMRAIL_BUILT_IN void __threadfence_system() { asm volatile("fence.sc.sys;" ::: "memory"); }
SYMRAIL_BUILT_IN void __nanosleep(unsigned int ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }
SYMRAIL_BUILT_IN int __ffs(int value) { return __builtin_ffs(value); }
SYMRAIL_BUILT_IN int __popc(unsigned int value) { return __builtin_popcount(value); }
SYMRAIL_BUILT_IN void __syncthreads() { asm volatile("bar.sync 0;" ::: "memory"); }
SYMRAIL_BUILT_IN void __syncwarp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
SYMRAIL_BUILT_IN unsigned int __activemask() {
    unsigned int lanes;
    asm volatile("activemask.b32 %0;" : "=r"(lanes)::"memory");
    return lanes;
}
SYMRAIL_BUILT_IN unsigned long long __shfl_sync(unsigned int lanes, unsigned long long value, int lane) {
    unsigned int low = (unsigned int)value, high = (unsigned int)(value >> 32);
    asm("shfl.sync.idx.b32 %0, %0, %1, 31, %2;" : "+r"(low) : "r"(lane), "r"(lanes));
    asm("shfl.sync.idx.b32 %0, %0, %1, 31, %2;" : "+r"(high) : "r"(lane), "r"(lanes));
    return (unsigned long long)high << 32 | low;
}

/* NAME(T*, value…), and NAME_system. */
#define SYMRAIL_ATOM(NAME, SCOPE, OP, T, PTX, R)                                                                   \
    SYMRAIL_BUILT_IN T NAME(T* at, T value) {                                                                      \
        T old;                                                                                                     \
        asm volatile("atom.relaxed." SCOPE "." OP "." PTX " %0, [%1], %2;" : "=" R(old) : "l"(at), R(value) : "memory"); \
        return old;                                                                                                \
    }
#define SYMRAIL_ATOM_CAS(NAME, SCOPE, T, PTX, R)                                                                   \
    SYMRAIL_BUILT_IN T NAME(T* at, T compare, T value) {                                                           \
        T old;                                                                                                     \
        asm volatile("atom.relaxed." SCOPE ".cas." PTX " %0, [%1], %2, %3;"                                        \
                     : "=" R(old) : "l"(at), R(compare), R(value) : "memory");                                     \
        return old;                                                                                                \
    }
#define SYMRAIL_ATOMS(AFTER, SCOPE, T, BITS, R)                       \
    SYMRAIL_ATOM(atomicAdd##AFTER, SCOPE, "add", T, "u" BITS, R)      \
    SYMRAIL_ATOM(atomicAnd##AFTER, SCOPE, "and", T, "b" BITS, R)      \
    SYMRAIL_ATOM(atomicOr##AFTER, SCOPE, "or", T, "b" BITS, R)        \
    SYMRAIL_ATOM(atomicXor##AFTER, SCOPE, "xor", T, "b" BITS, R)      \
    SYMRAIL_ATOM(atomicExch##AFTER, SCOPE, "exch", T, "b" BITS, R)    \
    SYMRAIL_ATOM_CAS(atomicCAS##AFTER, SCOPE, T, "b" BITS, R)
SYMRAIL_ATOMS(, "gpu", unsigned int, "32", "r")
SYMRAIL_ATOMS(, "gpu", unsigned long long, "64", "l")
SYMRAIL_ATOMS(_system, "sys", unsigned int, "32", "r")
SYMRAIL_ATOMS(_system, "sys", unsigned long long, "64", "l")
SYMRAIL_ATOM(atomicAdd_system, "sys", "add", float, "f32", "f")
SYMRAIL_ATOM(atomicAdd_system, "sys", "add", double, "f64", "d")

#endif
