/* Symrail's device API: puts, gets, signals, atomics and order, started by the threads of a kernel.
 *
 * Include this file. It needs no other headers, and compiles with nvcc and with NVRTC. The host fills in
 * `symrail_state` before the first kernel (symrail_kernels::cuda does). Device code neither throws nor traps: it writes
 * an error to a record that the host reads after the kernel, and every wait ends within the time-out.
 *
 * Files in symrail/:
 *   api.cuh      the functions to call
 *   rma.cuh      puts, gets, values, puts with a signal    amo.cuh      atomics
 *   order.cuh    fence, quiet, waits, barrier              route.cuh    mapped address or proxy
 *   batch.cuh    many requests at a time                   team.cuh     broadcast, fcollect, alltoall
 *   channel.cuh  requests to the proxy                     memory.cuh   PTX loads and stores, copies
 *   state.cuh    the device's data from the host           bulk.cuh     copies by one thread
 *   mail.cuh     small deliveries to waiting threads       failure.cuh  errors for the host
 */
#ifndef SYMRAIL_DEVICE_CUH
#define SYMRAIL_DEVICE_CUH

#include "symrail/api.cuh"

#endif
