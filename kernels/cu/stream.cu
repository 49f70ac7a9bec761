// Operations in the order of a stream: small kernels that start them, for kernels/src/cuda/on_stream.rs.
#include "symrail_device.cuh"

// The source may be used again by what follows in the stream. Each block puts its part.
extern "C" __global__ void __launch_bounds__(1024)
    put_on_stream(char* dest, const char* source, symrail_u64 bytes, symrail_u64 pe) {
    symrail_u64 part = ((bytes + gridDim.x - 1) / gridDim.x + 127) & ~127ull, at = part * blockIdx.x;
    if (at < bytes) symrailx_putmem_block(dest + at, source + at, at + part < bytes ? part : bytes - at, (int)pe);
}
// Behind everything that this PE has put to the same PE before.
extern "C" __global__ void signal_on_stream(symrail_u64* signal, symrail_u64 value, symrail_u64 op, symrail_u64 pe) {
    symrail_fence();
    symrailx_signal_op(signal, value, (int)op, (int)pe);
}
extern "C" __global__ void quiet_on_stream() { symrail_quiet(); }
extern "C" __global__ void barrier_on_stream() { symrailx_barrier_all_block(); }
