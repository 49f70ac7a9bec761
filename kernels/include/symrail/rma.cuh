/* Puts, gets, single values and puts with a signal.
 *
 * Blocking forms return when the source may be used again (put) or the destination holds the data (get); nbi forms need
 * a quiet for that. Delivery needs a quiet in either case. Warp and block forms are called by all threads of the group
 * with the same arguments. Blocking forms and those with a signal begin and end with the group in step; nbi forms may not
 * wait at all: synchronise the group before them if it wrote the source, and after them before one thread is quiet. */
#ifndef SYMRAIL_RMA_CUH
#define SYMRAIL_RMA_CUH

#include "route.cuh"

#define SYMRAIL_SIGNAL_SET 9
#define SYMRAIL_SIGNAL_ADD 10

/* One value as bits, of 1, 2, 4 or 8 bytes. */
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

/* Puts and gets of bytes through the proxy, by one thread. */
static __device__ __noinline__ void symrail_rma_proxied(symrail_u64 opcode, symrail_u64 offset, const void* local,
                                                        size_t bytes, int pe, bool wait) {
    if (!symrail_has_channel(SYMRAIL_WHAT_RMA, pe) || bytes == 0) return;
    if (opcode == SYMRAIL_OP_PUT && symrail_is_value(local, bytes)) {
        symrail_push_value(offset, symrail_bits(local, bytes), __ffs((int)bytes) - 1, pe);
        return;
    }
    symrail_u64 kind;
    symrail_request r;
    r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_LOCAL;
    r.w[3] = symrail_local(local, kind);
    r.w[0] = symrail_head(opcode, kind, 0, r.mask, pe);
    r.w[1] = offset;
    r.w[2] = bytes;
    /* The proxy reads the source (and overwrites the destination of a get) after everything that was done to it. */
    symrail_fence_sys();
    const symrail_channel_view& c = symrail_my_channel();
    symrail_u64 position = symrail_push(c, r);
    if (wait) symrail_wait_delivered(c, position + 1);
}

template <class S>
SYMRAIL_DEVICE void symrail_put_bytes(void* dest, const void* source, size_t bytes, int pe, bool wait) {
    symrail_place place = symrail_find(dest, bytes, pe, SYMRAIL_WHAT_RMA);
    if (place.mapped != 0) {
        if (wait) S::sync();
        symrail_copy<S>((void*)place.mapped, source, bytes);
        if (wait) S::sync();
        return;
    }
    S::sync();
    if (place.ok && S::rank() == 0) {
        symrail_rma_proxied(SYMRAIL_OP_PUT, place.offset, source, bytes, pe, wait);
    }
    S::sync();
}

template <class S>
SYMRAIL_DEVICE void symrail_get_bytes(void* dest, const void* source, size_t bytes, int pe, bool wait) {
    symrail_place place = symrail_find(source, bytes, pe, SYMRAIL_WHAT_RMA);
    if (place.mapped != 0) {
        if (wait) S::sync();
        symrail_copy<S>(dest, (const void*)place.mapped, bytes);
        if (wait) S::sync();
        return;
    }
    S::sync();
    if (place.ok && S::rank() == 0) {
        symrail_rma_proxied(SYMRAIL_OP_GET, place.offset, dest, bytes, pe, wait);
    }
    S::sync();
}

template <class T>
SYMRAIL_DEVICE void symrail_put_value(T* dest, T value, int pe) {
    symrail_place place = symrail_find(dest, sizeof(T), pe, SYMRAIL_WHAT_RMA);
    if (place.mapped != 0) {
        symrail_store_value((T*)place.mapped, value);
    } else if (place.ok && symrail_has_channel(SYMRAIL_WHAT_RMA, pe)) {
        symrail_push_value(place.offset, symrail_bits(&value, sizeof(T)), __ffs((int)sizeof(T)) - 1, pe);
    }
}

template <class T>
SYMRAIL_DEVICE T symrail_get_value(const T* source, int pe) {
    symrail_place place = symrail_find(source, sizeof(T), pe, SYMRAIL_WHAT_RMA);
    if (place.mapped != 0) return *(const volatile T*)place.mapped;
    symrail_u64 bits = 0;
    if (place.ok && symrail_has_channel(SYMRAIL_WHAT_RMA, pe)) {
        symrail_request r;
        r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_REPLY;
        r.w[0] = symrail_head(SYMRAIL_OP_G, __ffs((int)sizeof(T)) - 1, 0, r.mask, pe);
        r.w[1] = place.offset;
        r.w[7] = 0;
        bits = symrail_ask(symrail_my_channel(), r, pe);
    }
    T value;
    memcpy(&value, &bits, sizeof(T));
    return value;
}

/* A signal word's update, where it is mapped and this device may do it; with `release`, after everything that the group
 * did before (also when the proxy has to do it). */
SYMRAIL_DEVICE bool symrail_signal_directly(const symrail_place& place, symrail_u64 value, int op, bool release) {
    if (place.mapped == 0) return false;
    if (release && op == SYMRAIL_SIGNAL_SET) {
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(place.mapped), "l"(value) : "memory");
        return true;
    }
    if (release && place.atomics) {
        asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(place.mapped), "l"(value) : "memory");
        return true;
    }
    if (release) symrail_fence_sys();
    if (op == SYMRAIL_SIGNAL_SET) {
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(place.mapped), "l"(value) : "memory");
        return true;
    }
    if (!place.atomics) return false;
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(place.mapped), "l"(value) : "memory");
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
    r.w[3] = bytes == 0 ? 0 : symrail_local(local, kind);
    symrail_u64 amo = op == SYMRAIL_SIGNAL_SET ? SYMRAIL_AMO_SET : SYMRAIL_AMO_ADD;
    r.w[0] = symrail_head(SYMRAIL_OP_PUT_SIGNAL, kind, amo, r.mask, pe);
    r.w[1] = offset;
    r.w[2] = bytes;
    r.w[4] = signal;
    r.w[5] = value;
    symrail_fence_sys();
    const symrail_channel_view& c = symrail_my_channel();
    symrail_u64 position = symrail_push(c, r);
    if (wait && bytes != 0) symrail_wait_delivered(c, position + 1);
}

/* Whether 8 bytes of data and their signal lie in one aligned piece of 16 bytes of device memory. */
SYMRAIL_DEVICE bool symrail_is_beside(const symrail_place& to, const symrail_place& word, size_t bytes, int op) {
    return bytes == 8 && op == SYMRAIL_SIGNAL_SET && to.atomics && to.mapped != 0 && word.mapped != 0 &&
           (to.mapped ^ word.mapped) == 8;
}

template <class S>
SYMRAIL_DEVICE void symrail_put_signal_bytes(void* dest, const void* source, size_t bytes, symrail_u64* signal,
                                             symrail_u64 value, int op, int pe, bool wait) {
    symrail_place to = symrail_find(dest, bytes, pe, SYMRAIL_WHAT_RMA);
    symrail_place word = symrail_find(signal, 8, pe, SYMRAIL_WHAT_AMO);
    if (S::one && symrail_is_beside(to, word, bytes, op)) {
        /* One store of 16 bytes carries both, so that nothing has to wait between them. */
        symrail_u64 data = *(const volatile symrail_u64*)source;
        bool first = to.mapped < word.mapped;
        symrail_st_pair(first ? to.mapped : word.mapped, first ? data : value, first ? value : data);
        return;
    }
    S::sync();
    if (to.ok && word.ok) {
        if (to.mapped != 0) {
            symrail_copy<S>((void*)to.mapped, source, bytes);
            S::sync();
            if (S::rank() == 0) {
                if (!symrail_signal_directly(word, value, op, bytes != 0)) symrail_signal_proxied(word, value, op, pe);
            }
        } else if (S::rank() == 0) {
            symrail_put_signal_proxied(to.offset, source, bytes, word.offset, value, op, pe, wait);
        }
    }
    S::sync();
}

#endif
