/* The path of an operation: a mapped address, or the proxy. */
#ifndef SYMRAIL_ROUTE_CUH
#define SYMRAIL_ROUTE_CUH

#include "channel.cuh"

/* A symmetric address after its look-up. `mapped` is 0 where the proxy is needed. */
struct symrail_place {
    bool ok;
    bool atomics;
    symrail_u64 mapped;
    symrail_u64 offset;
};

/* Finds the mapped address of a symmetric one in the first heap, the path of most operations. Where it returns false,
 * symrail_find decides, and a copy engine may make a large copy. One thread waits for every instruction here. So values
 * that do not depend on the address are loaded unconditionally, and a loop loads them once. */
SYMRAIL_DEVICE bool symrail_reach(const void* ptr, size_t bytes, int pe, symrail_u64& to) {
    const symrail_heap_view& heap = symrail_state.heaps[0];
    symrail_u64 at = (symrail_u64)ptr - heap.base;
    /* Unused entries are 0. */
    symrail_u64 base = heap.first_peers[(symrail_u32)pe % SYMRAIL_FIRST_PES];
    to = base + at;
    bool ok = (symrail_u32)pe < SYMRAIL_FIRST_PES && base != 0 && at < heap.bytes && bytes <= heap.bytes - at;
    return __builtin_expect(ok && bytes < symrail_state.engine_from, 1);
}
/* The same for a single value: no heap is smaller than that. */
template <class T>
SYMRAIL_DEVICE bool symrail_reach_value(const T* ptr, int pe, T*& to) {
    const symrail_heap_view& heap = symrail_state.heaps[0];
    symrail_u64 at = (symrail_u64)ptr - heap.base;
    symrail_u64 base = heap.first_peers[(symrail_u32)pe % SYMRAIL_FIRST_PES];
    to = (T*)(base + at);
    bool ok = (symrail_u32)pe < SYMRAIL_FIRST_PES && base != 0 && at <= heap.bytes - sizeof(T);
    return __builtin_expect(ok, 1);
}
SYMRAIL_DEVICE bool symrail_first_heap_has_atomics() {
    return (symrail_state.heaps[0].flags & SYMRAIL_HEAP_ATOMICS) != 0;
}

static __device__ __noinline__ symrail_place symrail_find(const void* ptr, size_t bytes, int pe, symrail_u64 what) {
    symrail_place place = {false, false, 0, 0};
#pragma unroll
    for (int i = 0; i < SYMRAIL_MAX_HEAPS; i++) {
        const symrail_heap_view& heap = symrail_state.heaps[i];
        symrail_u64 at = (symrail_u64)ptr - heap.base;
        if (at < heap.bytes && bytes <= heap.bytes - at) {
            if ((symrail_u32)pe >= (symrail_u32)symrail_state.n_pes) break;
            symrail_u64 base = pe < SYMRAIL_FIRST_PES ? heap.first_peers[pe] : ((const symrail_u64*)heap.peers)[pe];
            place.ok = true;
            place.atomics = (heap.flags & SYMRAIL_HEAP_ATOMICS) != 0;
            place.mapped = base == 0 ? 0 : base + at;
            place.offset = heap.offset + at;
            return place;
        }
    }
    bool no_pe = (symrail_u32)pe >= (symrail_u32)symrail_state.n_pes;
    symrail_fail(no_pe ? SYMRAIL_ERROR_NO_SUCH_PE : SYMRAIL_ERROR_NOT_SYMMETRIC, what, pe, (symrail_u64)ptr);
    return place;
}

/* The form of this PE's memory in a request: a symmetric offset when it is in a heap. */
SYMRAIL_DEVICE symrail_u64 symrail_local(const void* ptr, symrail_u64& kind) {
#pragma unroll
    for (int i = 0; i < SYMRAIL_MAX_HEAPS; i++) {
        symrail_u64 at = (symrail_u64)ptr - symrail_state.heaps[i].base;
        if (at < symrail_state.heaps[i].bytes) {
            kind = SYMRAIL_LOCAL_SYMMETRIC;
            return symrail_state.heaps[i].offset + at;
        }
    }
    kind = SYMRAIL_LOCAL_ADDRESS;
    return (symrail_u64)ptr;
}

SYMRAIL_DEVICE int symrail_my_pe() { return symrail_state.me; }
SYMRAIL_DEVICE int symrail_n_pes() { return symrail_state.n_pes; }

/* The address of `pe`'s copy of a symmetric object for loads and stores; null where there is none. */
SYMRAIL_DEVICE void* symrail_ptr(const void* ptr, int pe) {
    return (void*)symrail_find(ptr, 1, pe, SYMRAIL_WHAT_RMA).mapped;
}

#endif
