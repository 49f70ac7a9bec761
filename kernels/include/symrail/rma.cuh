/* Puts, gets, single values and puts with a signal.
 *
 * Blocking forms return when the caller may reuse the source (put) or the destination has the data (get); nbi forms
 * need a quiet for that. Delivery needs a quiet in either case. A put with a signal whose data a copy engine copies
 * waits for that copy, even in its nbi form. All threads of the group call warp and block forms with the same
 * arguments. Blocking forms and those with a signal synchronise the group at the start and at the end. Other nbi forms
 * may not synchronise at all: the caller synchronises the group before them if the group wrote the source, and after
 * them before one thread calls quiet. */
#ifndef SYMRAIL_RMA_CUH
#define SYMRAIL_RMA_CUH

#include "route.cuh"

#define SYMRAIL_SIGNAL_SET 9
#define SYMRAIL_SIGNAL_ADD 10

/* One value in memory as bits, of 1, 2, 4 or 8 bytes. */
SYMRAIL_DEVICE symrail_u64 symrail_bits(const void* p, size_t bytes) {
    switch (bytes) {
        case 1: return *(const volatile unsigned char*)p;
        case 2: return *(const volatile unsigned short*)p;
        case 4: return *(const volatile symrail_u32*)p;
        default: return *(const volatile symrail_u64*)p;
    }
}

SYMRAIL_DEVICE bool symrail_is_value(const void* p, size_t bytes) {
    return bytes <= 8 && (bytes & (bytes - 1)) == 0 && bytes != 0 && ((size_t)p & (bytes - 1)) == 0;
}

SYMRAIL_DEVICE void symrail_push_value(symrail_u64 offset, symrail_u64 bits, symrail_u32 log2_bytes, int pe) {
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_VALUE;
    r.w[0] = symrail_head(SYMRAIL_OP_P, log2_bytes, 0, r.mask, pe);
    r.w[1] = offset;
    r.w[4] = 0;
    r.w[5] = bits;
    symrail_push(symrail_my_channel(), r);
}

/* Whether a copy engine makes the copy, which the proxy starts: between mapped memory of another PE and this PE's heap.
 * The more blocks may copy at the same time, the larger the copy has to be, because all of them share one proxy thread
 * and one link. */
SYMRAIL_DEVICE bool symrail_by_engine(const symrail_place& place, const void* local, size_t bytes, int pe) {
    symrail_u64 blocks = (symrail_u64)gridDim.x * gridDim.y * gridDim.z;
    if (place.mapped == 0 || bytes / blocks < symrail_state.engine_from || pe == symrail_state.me) return false;
    const symrail_heap_view& heap = symrail_state.heaps[0];
    symrail_u64 at = (symrail_u64)local - heap.base;
    return at < heap.bytes && bytes <= heap.bytes - at;
}

/* Puts and gets of bytes through the proxy, by one thread. `mapped`: to memory that stores also reach directly. Returns
 * `false` when a wait failed. */
static __device__ __noinline__ bool symrail_rma_proxied(symrail_u64 opcode, symrail_u64 offset, const void* local,
                                                        size_t bytes, int pe, bool wait, bool mapped) {
    if (!symrail_has_channel(SYMRAIL_WHAT_RMA, pe) || bytes == 0) return false;
    if (opcode == SYMRAIL_OP_PUT && !mapped && symrail_is_value(local, bytes)) {
        symrail_push_value(offset, symrail_bits(local, bytes), __ffs((int)bytes) - 1, pe);
        return true;
    }
    symrail_u64 kind;
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_LOCAL;
    r.w[3] = symrail_local(local, kind);
    r.w[0] = symrail_head(opcode, kind, 0, r.mask, pe);
    r.w[1] = offset;
    r.w[2] = bytes;
    /* The fence orders the proxy's read of the source (or its write to a get's destination) behind everything that was
     * done to it. */
    symrail_fence_sys();
    const symrail_channel_view& c = symrail_my_channel();
    symrail_u64 position = symrail_push(c, r);
    if (mapped && opcode == SYMRAIL_OP_PUT) symrail_mixed(c, position);
    return !wait || symrail_wait_delivered(c, position + 1);
}

/* A put by a copy engine, which is awaited. Returns `false` when it failed, because then no signal may follow; or when
 * another request of the same channel failed meanwhile, which the host learns anyhow. */
static __device__ __noinline__ bool symrail_put_by_engine(symrail_u64 offset, const void* local, size_t bytes, int pe) {
    symrail_u64 errors = symrail_ld_sys(symrail_my_channel().ring + SYMRAIL_ERRORS);
    return symrail_rma_proxied(SYMRAIL_OP_PUT, offset, local, bytes, pe, true, true) &&
           symrail_ld_sys(symrail_my_channel().ring + SYMRAIL_ERRORS) == errors;
}

/* Handles an address that is not in the first heap or not mapped, and a large copy: finds the mapped address, or lets
 * the proxy copy and returns 0. All threads of a group call it. Copies stay out of called functions, because such a
 * function may use any number of registers, even in kernels with blocks too large for that. */
template <class S>
SYMRAIL_DEVICE symrail_u64 symrail_rma_elsewhere(symrail_u64 opcode, const void* symmetric, const void* local,
                                                 size_t bytes, int pe, bool wait) {
    symrail_place place = symrail_find(symmetric, bytes, pe, SYMRAIL_WHAT_RMA);
    bool by_engine = symrail_by_engine(place, local, bytes, pe);
    if (place.mapped != 0 && !by_engine) return place.mapped;
    S::sync();
    if (place.ok && S::rank() == 0) symrail_rma_proxied(opcode, place.offset, local, bytes, pe, wait, by_engine);
    S::sync();
    return 0;
}

template <class S>
SYMRAIL_DEVICE void symrail_put_bytes(void* dest, const void* source, size_t bytes, int pe, bool wait) {
    symrail_u64 to;
    if (!symrail_reach(dest, bytes, pe, to)) {
        to = symrail_rma_elsewhere<S>(SYMRAIL_OP_PUT, dest, source, bytes, pe, wait);
        if (to == 0) return;
    }
    if (wait) S::sync();
    symrail_copy<S>((void*)to, source, bytes);
    if (wait) S::sync();
}

template <class S>
SYMRAIL_DEVICE void symrail_get_bytes(void* dest, const void* source, size_t bytes, int pe, bool wait) {
    symrail_u64 from;
    if (!symrail_reach(source, bytes, pe, from)) {
        from = symrail_rma_elsewhere<S>(SYMRAIL_OP_GET, source, dest, bytes, pe, wait);
        if (from == 0) return;
    }
    if (wait) S::sync();
    symrail_copy<S, symrail_peer_source>(dest, (const void*)from, bytes);
    if (wait) S::sync();
}

static __device__ __noinline__ void symrail_put_value_slowly(void* dest, symrail_u64 bits, symrail_u32 log2_bytes,
                                                             int pe) {
    symrail_place place = symrail_find(dest, 1ull << log2_bytes, pe, SYMRAIL_WHAT_RMA);
    if (place.mapped != 0) {
        switch (log2_bytes) {
            case 0: return symrail_store_value((unsigned char*)place.mapped, (unsigned char)bits);
            case 1: return symrail_store_value((unsigned short*)place.mapped, (unsigned short)bits);
            case 2: return symrail_store_value((symrail_u32*)place.mapped, (symrail_u32)bits);
            default: return symrail_store_value((symrail_u64*)place.mapped, bits);
        }
    }
    if (place.ok && symrail_has_channel(SYMRAIL_WHAT_RMA, pe)) symrail_push_value(place.offset, bits, log2_bytes, pe);
}

template <class T>
SYMRAIL_DEVICE void symrail_put_value(T* dest, T value, int pe) {
    T* to;
    if (symrail_reach_value(dest, pe, to)) return symrail_store_value(to, value);
    symrail_put_value_slowly(dest, symrail_to_bits(value), __ffs((int)sizeof(T)) - 1, pe);
}

static __device__ __noinline__ symrail_u64 symrail_get_value_slowly(const void* source, symrail_u32 log2_bytes, int pe) {
    symrail_place place = symrail_find(source, 1ull << log2_bytes, pe, SYMRAIL_WHAT_RMA);
    if (place.mapped != 0) return symrail_bits((const void*)place.mapped, 1ull << log2_bytes);
    if (!place.ok || !symrail_has_channel(SYMRAIL_WHAT_RMA, pe)) return 0;
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_REPLY;
    r.w[0] = symrail_head(SYMRAIL_OP_G, log2_bytes, 0, r.mask, pe);
    r.w[1] = place.offset;
    r.w[7] = 0;
    return symrail_ask(symrail_my_channel(), r, pe);
}

template <class T>
SYMRAIL_DEVICE T symrail_get_value(const T* source, int pe) {
    T* from;
    if (symrail_reach_value(source, pe, from)) return *(const volatile T*)from;
    return symrail_of_bits<T>(symrail_get_value_slowly(source, __ffs((int)sizeof(T)) - 1, pe));
}

/* Updates a signal word where it is mapped and this device may update it. With `release` the update comes after
 * everything that the group did before (also when the proxy has to make it). */
SYMRAIL_DEVICE bool symrail_signal_directly(const symrail_place& place, symrail_u64 value, int op, bool release) {
    if (place.mapped == 0) return false;
    if (release && op == SYMRAIL_SIGNAL_SET) {
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(place.mapped), "l"(value) : "memory");
        return true;
    }
    if (release && place.atomics) {
        symrail_add_release_sys(place.mapped, value);
        return true;
    }
    if (release) symrail_fence_sys();
    if (op == SYMRAIL_SIGNAL_SET) {
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(place.mapped), "l"(value) : "memory");
        return true;
    }
    if (!place.atomics) return false;
    symrail_add_relaxed_sys(place.mapped, value);
    return true;
}

static __device__ __noinline__ void symrail_signal_proxied(const symrail_place& place, symrail_u64 value, int op, int pe) {
    if (!symrail_has_channel(SYMRAIL_WHAT_AMO, pe)) return;
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_VALUE;
    symrail_u64 amo = op == SYMRAIL_SIGNAL_SET ? SYMRAIL_AMO_SET : SYMRAIL_AMO_ADD;
    r.w[0] = symrail_head(SYMRAIL_OP_AMO, SYMRAIL_TYPE_U64, amo, r.mask, pe);
    r.w[1] = place.offset;
    r.w[4] = 0;
    r.w[5] = value;
    const symrail_channel_view& c = symrail_my_channel();
    symrail_u64 position = symrail_push(c, r);
    if (place.mapped != 0) symrail_mixed(c, position);
}

static __device__ __noinline__ void symrail_put_signal_proxied(symrail_u64 offset, const void* local, size_t bytes,
                                                               symrail_u64 signal, symrail_u64 value, int op, int pe,
                                                               bool wait) {
    if (!symrail_has_channel(SYMRAIL_WHAT_RMA, pe)) return;
    symrail_u64 kind = SYMRAIL_LOCAL_SYMMETRIC;
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_LOCAL | SYMRAIL_MASK_VALUE;
    if (symrail_is_value(local, bytes)) {
        kind = SYMRAIL_LOCAL_VALUE; /* the proxy need not copy it from this device's memory */
        r.w[3] = symrail_bits(local, bytes);
    } else {
        r.w[3] = bytes == 0 ? 0 : symrail_local(local, kind);
    }
    symrail_u64 amo = op == SYMRAIL_SIGNAL_SET ? SYMRAIL_AMO_SET : SYMRAIL_AMO_ADD;
    r.w[0] = symrail_head(SYMRAIL_OP_PUT_SIGNAL, kind, amo, r.mask, pe);
    r.w[1] = offset;
    r.w[2] = bytes;
    r.w[4] = signal;
    r.w[5] = value;
    /* The proxy does not read memory for data that travels in the request itself. */
    if (kind != SYMRAIL_LOCAL_VALUE && bytes != 0) symrail_fence_sys();
    const symrail_channel_view& c = symrail_my_channel();
    symrail_u64 position = symrail_push(c, r);
    if (wait && bytes != 0) symrail_wait_delivered(c, position + 1);
}

template <class S>
SYMRAIL_DEVICE void symrail_put_signal_bytes(void* dest, const void* source, size_t bytes, symrail_u64* signal,
                                             symrail_u64 value, int op, int pe, bool wait) {
    symrail_u64 to, *there;
    bool mapped = symrail_reach(dest, bytes, pe, to) & symrail_reach_value(signal, pe, there);
    symrail_place word = {true, symrail_first_heap_has_atomics(), (symrail_u64)there, 0};
    if (S::one && mapped && word.atomics && bytes == 8 && op == SYMRAIL_SIGNAL_SET && (to ^ word.mapped) == 8) {
        /* Data and signal are in one aligned piece of device memory: one store of 16 bytes carries both, so no wait is
         * needed between them. */
        symrail_u64 data = *(const symrail_u64*)source;
        return to < word.mapped ? symrail_st_pair(to, data, value) : symrail_st_pair(word.mapped, value, data);
    }
    bool by_engine = false;
    S::sync();
    if (!mapped || !word.atomics) {
        symrail_place data = symrail_find(dest, bytes, pe, SYMRAIL_WHAT_RMA);
        word = symrail_find(signal, 8, pe, SYMRAIL_WHAT_AMO);
        if (data.mapped == 0 || !word.ok) {
            if (data.ok && word.ok && S::rank() == 0)
                symrail_put_signal_proxied(data.offset, source, bytes, word.offset, value, op, pe, wait);
            S::sync();
            return;
        }
        by_engine = symrail_by_engine(data, source, bytes, pe);
        to = by_engine ? data.offset : data.mapped;
    }
    bool arrived = true;
    if (!by_engine)
        symrail_copy<S>((void*)to, source, bytes);
    else if (S::rank() == 0)
        arrived = symrail_put_by_engine(to, source, bytes, pe);
    S::sync();
    if (S::rank() == 0 && arrived && !symrail_signal_directly(word, value, op, bytes != 0))
        symrail_signal_proxied(word, value, op, pe);
}

SYMRAIL_DEVICE void symrail_signal(symrail_u64* signal, symrail_u64 value, int op, int pe) {
    symrail_u64* word;
    bool mapped = symrail_reach_value(signal, pe, word);
    symrail_place place = {mapped, symrail_first_heap_has_atomics(), (symrail_u64)word, 0};
    if (mapped && symrail_signal_directly(place, value, op, false)) return;
    place = symrail_find(signal, 8, pe, SYMRAIL_WHAT_AMO);
    if (place.ok && !symrail_signal_directly(place, value, op, false)) symrail_signal_proxied(place, value, op, pe);
}

#endif
