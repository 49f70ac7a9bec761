/* Roles: threads of a block that work and synchronise without the others; and words that the block's threads share. */
#ifndef SYMRAIL_ROLES_CUH
#define SYMRAIL_ROLES_CUH

#include "symrail_channels.cuh"

/* QUARTERS quarters of a block, from quarter FIRST on. Blocks have a multiple of 128 threads. */
template <int FIRST, int QUARTERS>
struct symrail_role {
    static const bool one = false;
    SYMRAIL_SCOPE_FN symrail_u32 rank() { return threadIdx.x - FIRST * (blockDim.x / 4); }
    SYMRAIL_SCOPE_FN symrail_u32 size() { return QUARTERS * (blockDim.x / 4); }
    SYMRAIL_SCOPE_FN void sync() { asm volatile("barrier.sync %0, %1;" ::"n"(FIRST + 1), "r"(size()) : "memory"); }
    /* A barrier that returns whether any thread passed true. */
    SYMRAIL_SCOPE_FN bool any(bool yes) {
        symrail_u32 result;
        asm volatile(
            "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}"
            : "=r"(result)
            : "r"(yes ? 1u : 0u), "n"(FIRST + 1), "r"(size())
            : "memory");
        return result != 0;
    }
};

/* The quarter of a block that a thread belongs to: four scopes that work on different things. Blocks have a multiple of
 * 128 threads. */
struct symrail_quarter {
    static const bool one = false;
    SYMRAIL_SCOPE_FN symrail_u32 number() { return 4 * threadIdx.x / blockDim.x; }
    SYMRAIL_SCOPE_FN symrail_u32 rank() { return threadIdx.x - number() * size(); }
    SYMRAIL_SCOPE_FN symrail_u32 size() { return blockDim.x / 4; }
    SYMRAIL_SCOPE_FN void sync() { asm volatile("barrier.sync %0, %1;" ::"r"(number() + 1), "r"(size()) : "memory"); }
    SYMRAIL_SCOPE_FN bool any(bool yes) {
        symrail_u32 result;
        asm volatile(
            "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}"
            : "=r"(result)
            : "r"(yes ? 1u : 0u), "r"(number() + 1), "r"(size())
            : "memory");
        return result != 0;
    }
};

/* A shared word with release and acquire order: writes before the store are visible after the load. */
SYMRAIL_DEVICE void symrail_st_shared(symrail_u64* at, symrail_u64 v) {
    __threadfence_block();
    *(volatile symrail_u64*)at = v;
}
SYMRAIL_DEVICE symrail_u64 symrail_ld_shared(const symrail_u64* at) {
    symrail_u64 v = *(const volatile symrail_u64*)at;
    __threadfence_block();
    return v;
}

#endif
