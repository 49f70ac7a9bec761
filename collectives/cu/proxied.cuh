/* Operations through the proxy. */
#ifndef SYMRAIL_PROXIED_CUH
#define SYMRAIL_PROXIED_CUH

#include "symrail_channels.cuh"

/* Copies to or from a PE that only the proxy reaches. Called by one thread. */
static __device__ __noinline__ void symrail_copy_elsewhere(symrail_u64 opcode, symrail_u64 symmetric, symrail_u64 local,
                                                           symrail_u64 bytes, symrail_u64 pe) {
    symrail_place there = symrail_find((const void*)symmetric, bytes, (int)pe, SYMRAIL_WHAT_RMA);
    if (there.ok) symrail_rma_proxied(opcode, there.offset, (const void*)local, bytes, (int)pe, opcode == SYMRAIL_OP_GET, false);
}

/* A put with a signal behind its own data; no other operation waits for it. Called by one thread. */
static __device__ __noinline__ void symrail_put_signal_elsewhere(symrail_u64 symmetric, symrail_u64 local, symrail_u64 bytes,
                                                                 symrail_u64 signal, symrail_u64 pe) {
    symrail_place there = symrail_find((const void*)symmetric, bytes, (int)pe, SYMRAIL_WHAT_RMA);
    symrail_place word = symrail_find((const void*)signal, 8, (int)pe, SYMRAIL_WHAT_AMO);
    if (there.ok && word.ok)
        symrail_put_signal_proxied(there.offset, (const void*)local, bytes, word.offset, 1, SYMRAIL_SIGNAL_ADD, (int)pe, false);
}

/* Tells a PE, if this device can access it, that this PE has given up, unless another PE made it give up. The PE's
 * memory is `distance` from this one's; `stop` is an alarm's. Called by one thread. */
static __device__ __noinline__ void symrail_tell_one(symrail_u64 stop, bool reached, symrail_u64 distance, symrail_u64 pe) {
    symrail_u64 who = symrail_ld_sys(stop), me = (symrail_u64)symrail_state.me;
    if (who != me + 1 || pe == me) return;
    if (reached) symrail_st_sys(stop + distance, who);
    else symrail_put_value((symrail_u64*)stop, who, (int)pe);
}

#endif
