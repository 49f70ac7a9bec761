// Operations in the order of a stream: small kernels that start them, for kernels/src/cuda/on_stream.rs.
#include "symrail_device.cuh"

// The part of a copy for this block.
static __device__ symrail_u64 part_of(symrail_u64 bytes, symrail_u64& at) {
    symrail_u64 part = ((bytes + gridDim.x - 1) / gridDim.x + 127) & ~127ull;
    at = part * blockIdx.x;
    return at >= bytes ? 0 : at + part < bytes ? part : bytes - at;
}
// Later work on the stream may overwrite the source.
extern "C" __global__ void __launch_bounds__(1024)
    put_on_stream(char* dest, const char* source, symrail_u64 bytes, symrail_u64 pe) {
    symrail_u64 at, part = part_of(bytes, at);
    if (part != 0) symrailx_putmem_block(dest + at, source + at, part, (int)pe);
}
extern "C" __global__ void __launch_bounds__(1024)
    get_on_stream(char* dest, const char* source, symrail_u64 bytes, symrail_u64 pe) {
    symrail_u64 at, part = part_of(bytes, at);
    if (part != 0) symrailx_getmem_block(dest + at, source + at, part, (int)pe);
}
// One block: behind all earlier puts of this PE to the same PE, as the signal alone.
extern "C" __global__ void __launch_bounds__(1024)
    put_signal_on_stream(char* dest, const char* source, symrail_u64 bytes, symrail_u64* signal, symrail_u64 value,
                         symrail_u64 op, symrail_u64 pe) {
    if (threadIdx.x == 0) symrail_fence();
    symrailx_putmem_signal_block(dest, source, bytes, signal, value, (int)op, (int)pe);
}
extern "C" __global__ void signal_on_stream(symrail_u64* signal, symrail_u64 value, symrail_u64 op, symrail_u64 pe) {
    symrail_fence();
    symrailx_signal_op(signal, value, (int)op, (int)pe);
}
extern "C" __global__ void wait_on_stream(symrail_u64* word, symrail_u64 cmp, symrail_u64 value) {
    symrail_signal_wait_until(word, (int)cmp, value);
}

// A chain of operations that ends at the first wait whose time is over: `ended`, a word of this GPU that one stream at
// a time uses, is not 0 from then on. Nothing behind it copies or signals, and each such operation is an error, too.
struct within {
    symrail_u64 least, most;
    __device__ bool operator()(symrail_u64 now) const { return now >= least && now <= most; }
};
static __device__ bool goes_on(const symrail_u64* ended, symrail_u64 pe) {
    if (*ended == 0) return true;
    if (threadIdx.x == 0) symrail_fail(SYMRAIL_ERROR_TIMEOUT, SYMRAIL_WHAT_WAIT, pe, (symrail_u64)ended);
    return false;
}
// Waits for a word that `pe` sets.
extern "C" __global__ void wait_in_chain(symrail_u64* word, symrail_u64 least, symrail_u64 most, symrail_u64* ended,
                                         symrail_u64 pe) {
    within holds = {least, most};
    if (goes_on(ended, pe) && !holds(symrail_wait_for(word, holds))) *ended = 1;
}
extern "C" __global__ void __launch_bounds__(1024)
    put_in_chain(char* dest, const char* source, symrail_u64 bytes, symrail_u64 pe, const symrail_u64* ended) {
    symrail_u64 at, part = part_of(bytes, at);
    if (part != 0 && goes_on(ended, pe)) symrailx_putmem_block(dest + at, source + at, part, (int)pe);
}
// One block, as put_signal_on_stream; the signal is set.
extern "C" __global__ void __launch_bounds__(1024)
    put_signal_in_chain(char* dest, const char* source, symrail_u64 bytes, symrail_u64* signal, symrail_u64 value,
                        symrail_u64 pe, const symrail_u64* ended) {
    if (!goes_on(ended, pe)) return;
    if (threadIdx.x == 0) symrail_fence();
    if (bytes != 0) symrailx_putmem_signal_block(dest, source, bytes, signal, value, SYMRAIL_SIGNAL_SET, (int)pe);
    else if (threadIdx.x == 0) symrailx_signal_op(signal, value, SYMRAIL_SIGNAL_SET, (int)pe);
}

extern "C" __global__ void fence_on_stream() { symrail_fence(); }
extern "C" __global__ void quiet_on_stream() { symrail_quiet(); }
extern "C" __global__ void barrier_on_stream(symrail_team_t team) { symrailx_barrier_block(team); }
extern "C" __global__ void sync_on_stream(symrail_team_t team) { symrailx_team_sync_block(team); }
