// High throughput in a job of one host: the rows of a combine go to the ranks of their tokens.
//
// The warps of half of the blocks store rows in the memory of the tokens' ranks, while the warps of the others add those
// that have arrived. So rows cross the link between GPUs once, and are not copied before that. The link is busy from the
// beginning, and sums of what has crossed are formed meanwhile. A word tells of a few rows.
//
// No block waits for another one of its kernel: the blocks that run first return rows, until all are taken, and they wait
// for none. All ranks return rows at the same pace to all others, so that sums of tokens are complete in their order.
#ifndef SYMRAIL_EP_RETURNS_CUH
#define SYMRAIL_EP_RETURNS_CUH

#include "near.cuh"

static __device__ symrail_u64 returned_chunks(symrail_u64 rows) { return (rows + RETURNED - 1) / RETURNED; }
// The word of some rows that a rank returns here.
static __device__ symrail_u64* returned_word(const parameters& p, symrail_u64 rank, symrail_u64 chunk) {
    return (symrail_u64*)p.heap.returned_words + rank * returned_chunks(p.most) + chunk;
}
// The index of a rank's first row at a source, which reads its own rows where they are.
static __device__ symrail_u32 first_returned(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 rank) {
    symrail_u32 rows = 0;
    for (symrail_u64 i = 0; i < rank; i++)
        if (i != source) rows += tokens_of(p, r, source, i);
    return rows;
}

// What a combine returns: rows, and their weights.
struct returning {
    const char* rows;
    symrail_u64 bytes;
    const symrail_u32* weights;
    symrail_u64 k;
};
// Whether a block of a kernel is among the first half of those that run.
static __device__ bool is_early(const parameters& p) {
    bool early = threadIdx.x == 0 && 2 * atomicAdd(&((progress*)p.progress)->begun, 1ull) < gridDim.x;
    return __syncthreads_or(early);
}
// All blocks call this. The warps of the first ones that run return the rows of all other ranks' tokens.
static __device__ void return_rows(const parameters& p, const routes& r, const returning& c) {
    // For each rank its first row here, the addresses of that row and of its weights there, and the number of rows.
    __shared__ symrail_u64 first[MOST_MEMBERS], rows_there[MOST_MEMBERS], weights_there[MOST_MEMBERS], count[MOST_MEMBERS];
    if (!is_early(p)) return;
    symrail_u64 call = call_of(p), others = p.ranks - 1, most = 0;
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x) {
        symrail_u64 there = first_returned(p, r, rank, p.me);
        first[rank] = first_row(p, r, rank, p.me);
        count[rank] = rank == p.me ? 0 : tokens_of(p, r, rank, p.me);
        rows_there[rank] = (symrail_u64)symrail_ptr((char*)p.heap.back_rows + there * c.bytes, (int)rank);
        weights_there[rank] = (symrail_u64)symrail_ptr((char*)p.heap.back_sides + there * 4 * c.k, (int)rank);
    }
    __syncthreads();
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) most = count[rank] > most ? count[rank] : most;
    tickets all(&((progress*)p.progress)->returns);
    for (symrail_u64 unit = all.take(); unit < returned_chunks(most) * others; unit = all.take()) {
        symrail_u64 chunk = unit / others, rank = (p.me + 1 + unit % others) % p.ranks, from = chunk * RETURNED;
        if (from >= count[rank]) continue;
        symrail_u64 end = from + RETURNED < count[rank] ? from + RETURNED : count[rank];
        const symrail_u32* weights = c.weights + (first[rank] + from) * c.k;
        symrail_u32* to = (symrail_u32*)weights_there[rank] + from * c.k;
        for (symrail_u64 i = threadIdx.x % 32; i < (end - from) * c.k; i += 32) to[i] = weights[i];
        for (symrail_u64 row = from; row < end; row++)
            copy_row((char*)rows_there[rank] + row * c.bytes, c.rows + (first[rank] + row) * c.bytes, c.bytes);
        // Lets one lane's fence cover the writes of the whole warp.
        __syncwarp();
        if (threadIdx.x % 32 != 0) continue;
        symrail_fence_sys();
        symrailx_signal_op(returned_word(p, p.me, chunk), call, SYMRAIL_SIGNAL_SET, (int)rank);
    }
}

#endif
