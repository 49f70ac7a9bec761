/* Copies by one thread through a few KiB of its block's shared memory, moved by the multiprocessor's own copy unit
 * (compute capability 9.0 and later). The unit has whole chunks under way, whereas a thread's registers hold a few
 * 16-byte loads.
 *
 * A kernel that calls puts or gets of one thread has SYMRAIL_BULK_BYTES of static shared memory for that. A kernel that
 * needs all of its shared memory itself defines SYMRAIL_BULK_BYTES as 0 before it includes the API. */
#ifndef SYMRAIL_BULK_CUH
#define SYMRAIL_BULK_CUH

#include "state.cuh"

#ifndef SYMRAIL_BULK_BYTES
#define SYMRAIL_BULK_BYTES 4096
#endif
/* Copies of fewer bytes are not worthwhile. */
#define SYMRAIL_BULK_LEAST 512

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && SYMRAIL_BULK_BYTES > 0

/* One chunk is stored while others are loaded. */
#define SYMRAIL_BULK_CHUNKS 4
#define SYMRAIL_BULK_AHEAD 3
#define SYMRAIL_BULK_CHUNK (SYMRAIL_BULK_BYTES / SYMRAIL_BULK_CHUNKS)

SYMRAIL_DEVICE symrail_u32 symrail_shared_at(const void* p) { return (symrail_u32)__cvta_generic_to_shared(p); }
SYMRAIL_DEVICE void symrail_bulk_load(symrail_u32 chunk, symrail_u64 from, symrail_u32 bytes, symrail_u32 arrival) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrival), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(chunk),
                 "l"(from), "r"(bytes), "r"(arrival)
                 : "memory");
}
SYMRAIL_DEVICE void symrail_bulk_loaded(symrail_u32 arrival, symrail_u32 parity) {
    symrail_u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(arrival), "r"(parity)
                     : "memory");
    } while (done == 0);
}
SYMRAIL_DEVICE void symrail_bulk_store(symrail_u64 to, symrail_u32 chunk, symrail_u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(chunk), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
SYMRAIL_DEVICE size_t symrail_bulk_part(size_t left) { return left < SYMRAIL_BULK_CHUNK ? left : SYMRAIL_BULK_CHUNK; }

/* The chunks of a block, and the barriers for their arrival. They belong to the first thread that requests them, as
 * long as the block lives. */
struct __align__(128) symrail_bulk {
    unsigned char chunks[SYMRAIL_BULK_BYTES];
    symrail_u64 arrivals[SYMRAIL_BULK_CHUNKS];
    symrail_u64 owner;
    /* The number of chunks used so far. */
    symrail_u32 laps;
};

/* Whether the chunks are this thread's. Shared memory is uninitialized at the start, and may hold values of an earlier
 * block, so the owner includes the grid and the block. */
SYMRAIL_DEVICE bool symrail_bulk_mine(symrail_bulk& bulk) {
    symrail_u64 grid, block = blockIdx.x + (symrail_u64)gridDim.x * (blockIdx.y + (symrail_u64)gridDim.y * blockIdx.z);
    asm("mov.u64 %0, %%gridid;" : "=l"(grid));
    symrail_u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    symrail_u64 me = grid << 42 | (block & 0xffffffffull) << 10 | thread;
    symrail_u64 now = atomicCAS(&bulk.owner, me, me);
    if ((now ^ me) >> 10 == 0) return now == me;
    if (atomicCAS(&bulk.owner, now, me) != now) return false;
    for (int k = 0; k < SYMRAIL_BULK_CHUNKS; k++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(symrail_shared_at(bulk.arrivals + k)) : "memory");
    bulk.laps = 0;
    return true;
}

/* Copies a multiple of 16 bytes between aligned addresses; all bytes are written on return. Returns false, and does
 * nothing, where the chunks are another thread's. */
static __device__ __noinline__ bool symrail_copy_bulk(symrail_u64 to, symrail_u64 from, size_t bytes) {
    __shared__ symrail_bulk bulk;
    if (!symrail_bulk_mine(bulk)) return false;
    symrail_u32 chunks = symrail_shared_at(bulk.chunks), arrivals = symrail_shared_at(bulk.arrivals);
    /* The fence makes the barriers, and this thread's writes to the source, visible to the copy unit. */
    asm volatile("fence.proxy.async;" ::: "memory");
    symrail_u32 lap = bulk.laps, asking = lap;
    size_t asked = 0;
    for (size_t done = 0; done < bytes; lap++) {
        for (; asked < bytes && asked < done + SYMRAIL_BULK_AHEAD * SYMRAIL_BULK_CHUNK; asking++) {
            symrail_u32 k = asking % SYMRAIL_BULK_CHUNKS;
            /* The chunk's former bytes have left it: only the last stores may still be reading theirs. */
            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(SYMRAIL_BULK_CHUNKS - SYMRAIL_BULK_AHEAD) : "memory");
            size_t part = symrail_bulk_part(bytes - asked);
            symrail_bulk_load(chunks + k * SYMRAIL_BULK_CHUNK, from + asked, (symrail_u32)part, arrivals + 8 * k);
            asked += part;
        }
        symrail_u32 k = lap % SYMRAIL_BULK_CHUNKS;
        size_t part = symrail_bulk_part(bytes - done);
        symrail_bulk_loaded(arrivals + 8 * k, lap / SYMRAIL_BULK_CHUNKS & 1u);
        symrail_bulk_store(to + done, chunks + k * SYMRAIL_BULK_CHUNK, (symrail_u32)part);
        done += part;
    }
    bulk.laps = lap;
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    return true;
}

#else
SYMRAIL_DEVICE bool symrail_copy_bulk(symrail_u64, symrail_u64, size_t) { return false; }
#endif

#endif
