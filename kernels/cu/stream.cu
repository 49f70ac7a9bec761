// Operations in the order of a stream: small kernels that start them, for kernels/src/cuda/on_stream.rs and chain.rs.
#include "symrail_device.cuh"
#include "on_stream.cuh"

// Bytes that a block copies until it looks again whether the operation goes on. The proxy's work is one request.
#define LOOK 0x40000ull
template <class F>
static __device__ void in_steps(symrail_u64 bytes, F copies) {
    symrail_u64 part = ((bytes + gridDim.x - 1) / gridDim.x + 127) & ~127ull;
    symrail_u64 step = gridDim.x == 1 || part < LOOK ? part : LOOK;
    for (symrail_u64 at = step * blockIdx.x; at < bytes; at += step * gridDim.x)
        if (!copies(at, bytes - at < step ? bytes - at : step)) return;
}

// Later work on the stream may overwrite the source.
extern "C" __global__ void __launch_bounds__(1024)
    put_on_stream(char* dest, const char* source, symrail_u64 bytes, symrail_u64 pe, symrail_u64* ended,
                  symrail_u64 era, symrail_u64 told) {
    in_steps(bytes, [&](symrail_u64 at, symrail_u64 some) {
        if (!goes_on({era, told}, SYMRAIL_WHAT_RMA, pe, ended)) return false;
        symrailx_putmem_block(dest + at, source + at, some, (int)pe);
        return true;
    });
}
extern "C" __global__ void __launch_bounds__(1024)
    get_on_stream(char* dest, const char* source, symrail_u64 bytes, symrail_u64 pe, symrail_u64 era,
                  symrail_u64 told) {
    in_steps(bytes, [&](symrail_u64 at, symrail_u64 some) {
        if (!goes_on({era, told}, SYMRAIL_WHAT_RMA, pe)) return false;
        symrailx_getmem_block(dest + at, source + at, some, (int)pe);
        return true;
    });
}
// One block, or without bytes one thread: behind all earlier puts of this PE to the same PE.
extern "C" __global__ void __launch_bounds__(1024)
    put_signal_on_stream(char* dest, const char* source, symrail_u64 bytes, symrail_u64* signal, symrail_u64 value,
                         symrail_u64 op, symrail_u64 pe, symrail_u64* ended, symrail_u64 era, symrail_u64 told) {
    // The fence may wait for puts, and they may fail.
    if (threadIdx.x == 0 && !symrail_has_stopped(era)) symrail_fence();
    if (!goes_on({era, told}, bytes == 0 ? SYMRAIL_WHAT_AMO : SYMRAIL_WHAT_RMA, pe, ended)) return;
    if (bytes != 0) symrailx_putmem_signal_block(dest, source, bytes, signal, value, (int)op, (int)pe);
    else if (threadIdx.x == 0) symrailx_signal_op(signal, value, (int)op, (int)pe);
}
extern "C" __global__ void wait_on_stream(symrail_u64* word, symrail_u64 cmp, symrail_u64 value, symrail_u64 era,
                                          symrail_u64 told) {
    if (goes_on({era, told}, SYMRAIL_WHAT_WAIT, symrail_state.me)) symrail_signal_wait_until(word, (int)cmp, value);
}

struct within {
    symrail_u64 least, most;
    __device__ bool operator()(symrail_u64 now) const { return now >= least && now <= most; }
};
// Waits for a word that `pe` sets.
extern "C" __global__ void wait_in_chain(symrail_u64* word, symrail_u64 least, symrail_u64 most, symrail_u64 pe,
                                         symrail_u64* ended, symrail_u64 era, symrail_u64 told) {
    within holds = {least, most};
    if (goes_on({era, told}, SYMRAIL_WHAT_WAIT, pe, ended) && !holds(symrail_wait_for(word, holds))) *ended = FAILED;
}

extern "C" __global__ void fence_on_stream() { symrail_fence(); }
extern "C" __global__ void quiet_on_stream() { symrail_quiet(); }
extern "C" __global__ void barrier_on_stream(symrail_team_t team, symrail_u64 era, symrail_u64 told) {
    meet(team, true, {era, told});
}
extern "C" __global__ void sync_on_stream(symrail_team_t team, symrail_u64 era, symrail_u64 told) {
    meet(team, false, {era, told});
}
