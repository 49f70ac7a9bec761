// Kernels of high-throughput dispatch and combine, for ep/src/cuda/high_throughput.rs: routes of tokens, start and end
// of a call, transfers of rows, sums of returned rows.
#include "reduce.cuh"
