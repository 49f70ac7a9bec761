/* Loads, stores and atomics with explicit order, as in PTX; and copies by a thread, a warp or a block. */
#ifndef SYMRAIL_MEMORY_CUH
#define SYMRAIL_MEMORY_CUH

#include "bulk.cuh"

#define SYMRAIL_WAITER_FN __device__ __forceinline__
#define SYMRAIL_SCOPE_FN static __device__ __forceinline__

SYMRAIL_DEVICE symrail_u64 symrail_ld_gpu(symrail_u64 at) {
    symrail_u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
SYMRAIL_DEVICE void symrail_st_gpu(symrail_u64 at, symrail_u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
SYMRAIL_DEVICE symrail_u64 symrail_add_gpu(symrail_u64 at, symrail_u64 n) {
    symrail_u64 v;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(v) : "l"(at), "l"(n) : "memory");
    return v;
}
SYMRAIL_DEVICE void symrail_max_gpu(symrail_u64 at, symrail_u64 n) {
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(at), "l"(n) : "memory");
}
/* Raises a counter's copy for other threads of this device, and loads it: what was visible before the first is visible
 * after the second. */
SYMRAIL_DEVICE void symrail_note(symrail_u64 at, symrail_u64 n) {
    asm volatile("red.release.gpu.global.max.u64 [%0], %1;" ::"l"(at), "l"(n) : "memory");
}
SYMRAIL_DEVICE symrail_u64 symrail_ld_noted(symrail_u64 at) {
    symrail_u64 v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
SYMRAIL_DEVICE symrail_u64 symrail_ld_sys(symrail_u64 at) {
    symrail_u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
SYMRAIL_DEVICE void symrail_st_sys(symrail_u64 at, symrail_u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
/* Loads a word that others change. Earlier writes of the thread that changed it are visible after the load. */
template <class T>
SYMRAIL_DEVICE T symrail_ld_acquire(const T* at) {
    T value;
    if (sizeof(T) == 8) {
        symrail_u64 v;
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
        memcpy(&value, &v, sizeof(T));
    } else {
        symrail_u32 v;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
        memcpy(&value, &v, sizeof(T));
    }
    return value;
}
/* One 16-byte load. Earlier writes of the thread that changed the words are visible after it. */
SYMRAIL_DEVICE void symrail_ld_pair_acquire(symrail_u64 at, symrail_u64& a, symrail_u64& b) {
    asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
}
/* The same without order. */
SYMRAIL_DEVICE void symrail_ld_pair(symrail_u64 at, symrail_u64& a, symrail_u64& b) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
}
/* One 16-byte store. */
SYMRAIL_DEVICE void symrail_st_pair(symrail_u64 at, symrail_u64 a, symrail_u64 b) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(a), "l"(b) : "memory");
}
SYMRAIL_DEVICE void symrail_add_relaxed_sys(symrail_u64 at, symrail_u64 n) {
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(at), "l"(n) : "memory");
}
/* The same, ordered behind everything that this thread has done and observed. */
SYMRAIL_DEVICE void symrail_add_release_sys(symrail_u64 at, symrail_u64 n) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(at), "l"(n) : "memory");
}
/* A store that is ordered behind everything that this thread has done and observed. */
SYMRAIL_DEVICE void symrail_st_release_sys(symrail_u64 at, symrail_u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
SYMRAIL_DEVICE void symrail_fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

SYMRAIL_DEVICE symrail_u64 symrail_now() {
    symrail_u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Counts the rounds of a wait, and ends it in time. It reads the timer only at intervals. */
struct symrail_waiter {
    symrail_u64 deadline;
    symrail_u32 rounds;
    SYMRAIL_WAITER_FN symrail_waiter() : deadline(0), rounds(0) {}
    SYMRAIL_WAITER_FN bool over() {
        if ((++rounds & 255u) != 0) return false;
        symrail_u64 now = symrail_now();
        if (deadline == 0) deadline = now + symrail_state.timeout_ns;
        return now >= deadline;
    }
};

/* Converts a value of up to 8 bytes to bits, and back. The value stays in registers, whatever else is done with it. */
template <class T>
SYMRAIL_DEVICE symrail_u64 symrail_to_bits(T value) {
    symrail_u64 bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <class T>
SYMRAIL_DEVICE T symrail_of_bits(symrail_u64 bits) {
    T value;
    memcpy(&value, &bits, sizeof(T));
    return value;
}

/* The threads that perform an operation together. */
struct symrail_thread_scope {
    static const bool one = true;
    SYMRAIL_SCOPE_FN symrail_u32 rank() { return 0; }
    SYMRAIL_SCOPE_FN symrail_u32 size() { return 1; }
    SYMRAIL_SCOPE_FN void sync() {}
};
struct symrail_warp_scope {
    static const bool one = false;
    SYMRAIL_SCOPE_FN symrail_u32 rank() {
        symrail_u32 lane;
        asm("mov.u32 %0, %%laneid;" : "=r"(lane));
        return lane;
    }
    SYMRAIL_SCOPE_FN symrail_u32 size() { return 32; }
    SYMRAIL_SCOPE_FN void sync() { __syncwarp(); }
};
struct symrail_block_scope {
    static const bool one = false;
    SYMRAIL_SCOPE_FN symrail_u32 rank() {
        return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
    SYMRAIL_SCOPE_FN symrail_u32 size() { return blockDim.x * blockDim.y * blockDim.z; }
    SYMRAIL_SCOPE_FN void sync() { __syncthreads(); }
};

struct __align__(16) symrail_wide { symrail_u64 a, b; };

/* How a source is read: normally, since it does not change during a copy; or, for peers' memory, past the first-level
 * cache, which is not coherent with writes of other GPUs. */
struct symrail_own_source {
    SYMRAIL_SCOPE_FN symrail_wide load(const symrail_wide* p) {
        symrail_wide v;
        asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.a), "=l"(v.b) : "l"(p) : "memory");
        return v;
    }
    template <class T>
    SYMRAIL_SCOPE_FN T value(const T* p) { return *p; }
};
struct symrail_peer_source {
    SYMRAIL_SCOPE_FN symrail_wide load(const symrail_wide* p) {
        symrail_wide v;
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.a), "=l"(v.b) : "l"(p) : "memory");
        return v;
    }
    template <class T>
    SYMRAIL_SCOPE_FN T value(const T* p) { return *(const volatile T*)p; }
};

/* Writes are ordered per thread, as in the loop, and not otherwise. */
SYMRAIL_DEVICE void symrail_store(symrail_wide* p, symrail_wide v) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.a), "l"(v.b) : "memory");
}

/* The number of 16-byte loads under way in each thread that covers the latency of a link. */
#ifndef SYMRAIL_UNROLL
#define SYMRAIL_UNROLL 4
#endif

template <class S, class FROM>
SYMRAIL_DEVICE void symrail_copy_wide(symrail_wide* to, const symrail_wide* from, size_t n) {
    size_t bytes = n * sizeof(symrail_wide);
    if (S::one && bytes >= SYMRAIL_BULK_LEAST && symrail_copy_bulk((symrail_u64)to, (symrail_u64)from, bytes)) return;
    size_t size = S::size(), i = S::rank(), lap = SYMRAIL_UNROLL * size;
    /* The same number of laps for every thread of the group. */
    for (size_t done = lap; done <= n; done += lap, i += lap) {
        symrail_wide v[SYMRAIL_UNROLL];
#pragma unroll
        for (int k = 0; k < SYMRAIL_UNROLL; k++) v[k] = FROM::load(from + i + k * size);
#pragma unroll
        for (int k = 0; k < SYMRAIL_UNROLL; k++) symrail_store(to + i + k * size, v[k]);
        /* Warps that drift apart access memory in more places at a time. */
        S::sync();
    }
    for (; i < n; i += size) symrail_store(to + i, FROM::load(from + i));
}

/* One value of 1, 2, 4 or 8 bytes. It is never torn, and only fences order it, because an ordered access is slower. */
template <class T>
SYMRAIL_DEVICE void symrail_store_value(T* p, T value) {
    if (sizeof(T) == 8) {
        symrail_u64 v;
        memcpy(&v, &value, sizeof(T));
        asm volatile("st.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
    } else if (sizeof(T) == 4) {
        symrail_u32 v;
        memcpy(&v, &value, sizeof(T));
        asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
    } else if (sizeof(T) == 2) {
        unsigned short v;
        memcpy(&v, &value, sizeof(T));
        asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(v) : "memory");
    } else {
        unsigned char c;
        memcpy(&c, &value, sizeof(T));
        symrail_u32 v = c;
        asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(v) : "memory");
    }
}

template <class S, class FROM, class T>
SYMRAIL_DEVICE void symrail_copy_as(T* to, const T* from, size_t n) {
    for (size_t i = S::rank(); i < n; i += S::size()) symrail_store_value<T>(to + i, FROM::value(from + i));
}

/* Copies bytes that do not overlap, in the widest pieces that both addresses allow. */
template <class S, class FROM = symrail_own_source>
SYMRAIL_DEVICE void symrail_copy(void* dest, const void* source, size_t bytes) {
    char* to = (char*)dest;
    const char* from = (const char*)source;
    size_t apart = ((size_t)to ^ (size_t)from) & 15;
    if ((((size_t)to | (size_t)from | bytes) & 15) == 0) {
        symrail_copy_wide<S, FROM>((symrail_wide*)to, (const symrail_wide*)from, bytes / 16);
    } else if (apart == 0) {
        size_t head = (16 - ((size_t)to & 15)) & 15;
        if (head > bytes) head = bytes;
        if (head != 0) symrail_copy_as<S, FROM>(to, from, head);
        to += head, from += head, bytes -= head;
        symrail_copy_wide<S, FROM>((symrail_wide*)to, (const symrail_wide*)from, bytes / 16);
        size_t done = bytes & ~(size_t)15;
        /* A rest of 8 bytes or more goes as one word, so that values of 8 bytes are never torn. */
        if (bytes - done >= 8) {
            symrail_copy_as<S, FROM>((symrail_u64*)(to + done), (const symrail_u64*)(from + done), 1);
            done += 8;
        }
        if (done < bytes) symrail_copy_as<S, FROM>(to + done, from + done, bytes - done);
    } else if (((apart | (size_t)to | bytes) & 7) == 0) {
        symrail_copy_as<S, FROM>((symrail_u64*)to, (const symrail_u64*)from, bytes / 8);
    } else if (((apart | (size_t)to | bytes) & 3) == 0) {
        symrail_copy_as<S, FROM>((symrail_u32*)to, (const symrail_u32*)from, bytes / 4);
    } else {
        symrail_copy_as<S, FROM>(to, from, bytes);
    }
}

#endif
