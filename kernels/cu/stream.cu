// Operations in the order of a stream: small kernels that start them, for kernels/src/cuda/on_stream.rs.
#include "symrail_device.cuh"

// The source may be used again by what follows in the stream.
extern "C" __global__ void put_on_stream(char* dest, const char* source, symrail_u64 bytes, symrail_u64 pe) {
    symrailx_putmem_block(dest, source, bytes, (int)pe);
}
// Behind everything that this PE has put to the same PE before.
extern "C" __global__ void signal_on_stream(symrail_u64* signal, symrail_u64 value, symrail_u64 op, symrail_u64 pe) {
    symrail_fence();
    symrailx_signal_op(signal, value, (int)op, (int)pe);
}
extern "C" __global__ void quiet_on_stream() { symrail_quiet(); }
extern "C" __global__ void barrier_on_stream() { symrailx_barrier_all_block(); }
