/* Many requests of one thread with one reservation. A single request costs a round trip to the word with the next
 * position. A batch pays that once for up to 32 requests.
 *
 *     symrailx_batch batch(n);                 // at most n requests follow
 *     for (…) batch.p(&word[i], value, pe);    // or batch.putmem_nbi(…)
 *     batch.end();                             // gives up unused positions
 *
 * A reserved position must be written, otherwise the engine serves no request behind it. So every path has to call
 * end(). */
#ifndef SYMRAIL_BATCH_CUH
#define SYMRAIL_BATCH_CUH

#include "order.cuh"

#define SYMRAIL_BATCH_FN __device__ __forceinline__

struct symrailx_batch {
    symrail_u64 ring, slots, position, room, last;
    bool open;

    SYMRAIL_BATCH_FN explicit symrailx_batch(int requests) : position(0), last(0), open(false) {
        if (symrail_state.n_channels == 0 || requests <= 0) return;
        const symrail_channel_view& c = symrail_my_channel();
        ring = c.ring;
        slots = c.slots;
        room = symrail_ld_gpu(c.own + SYMRAIL_OWN_TAIL) + c.slots;
        position = symrail_add_gpu(c.own + SYMRAIL_OWN_HEAD, requests);
        last = position + requests;
        open = true;
    }
    /* Writes one request. Returns `false` when the batch has no position left, or there was no room in time. */
    SYMRAIL_BATCH_FN bool push(const symrail_request& r) {
        if (!open || position >= last) return false;
        const symrail_channel_view& c = symrail_my_channel();
        if (position >= room) {
            if (!symrail_wait_for_room(c, position)) return open = false;
            room = symrail_ld_gpu(c.own + SYMRAIL_OWN_TAIL) + slots;
        }
        symrail_channel_view here = {ring, c.own, slots, c.replies};
        symrail_write(here, position++, r);
        return true;
    }
    template <class T>
    SYMRAIL_BATCH_FN bool p(T* dest, T value, int pe) {
        symrail_place place = symrail_find(dest, sizeof(T), pe, SYMRAIL_WHAT_RMA);
        if (place.mapped != 0) symrail_store_value((T*)place.mapped, value);
        if (place.mapped != 0 || !place.ok) return place.ok;
        symrail_request r;
        r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_VALUE;
        r.w[0] = symrail_head(SYMRAIL_OP_P, __ffs((int)sizeof(T)) - 1, 0, r.mask, pe);
        r.w[1] = place.offset;
        r.w[4] = 0;
        r.w[5] = symrail_to_bits(value);
        return push(r);
    }
    /* As symrail_putmem_nbi. The caller makes the sources visible once, before the first call (symrail_fence). */
    SYMRAIL_BATCH_FN bool putmem_nbi(void* dest, const void* source, size_t bytes, int pe) {
        symrail_place place = symrail_find(dest, bytes, pe, SYMRAIL_WHAT_RMA);
        if (place.mapped != 0) symrail_copy<symrail_thread_scope>((void*)place.mapped, source, bytes);
        if (place.mapped != 0 || !place.ok || bytes == 0) return place.ok;
        symrail_u64 kind;
        symrail_request r;
        r.mask = SYMRAIL_MASK_HEAD | SYMRAIL_MASK_LOCAL;
        r.w[3] = symrail_local(source, kind);
        r.w[0] = symrail_head(SYMRAIL_OP_PUT, kind, 0, r.mask, pe);
        r.w[1] = place.offset;
        r.w[2] = bytes;
        return push(r);
    }
    SYMRAIL_BATCH_FN void nothing() {
        symrail_request r;
        r.mask = SYMRAIL_MASK_HEAD;
        r.w[0] = symrail_head(SYMRAIL_OP_NOP, 0, 0, r.mask, 0);
        r.w[1] = 0;
        push(r);
    }
    SYMRAIL_BATCH_FN void end() {
        while (open && position < last) nothing();
        open = false;
    }
};

#endif
