// High-throughput dispatch and combine by kernels, for ep/src/cuda/high_throughput.rs: where tokens go, how a call
// begins and ends, rows on their way, sums of what comes back.
#include "sums.cuh"
