// Kernels of high-throughput dispatch and combine, for ep/src/cuda/high_throughput.rs: routes of tokens, start and end
// of a call, rows between ranks of a host and between hosts, sums of returned rows.
#include "reduce.cuh"
