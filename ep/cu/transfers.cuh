// High throughput: transfers of rows between hosts, with their side data (scales, slots, the number at the source).
//
// Rows go in chunks, either directly to their place at the destination or to staging memory of the rank that forwards or
// adds them. Ranks of a host read rows in each other's memory instead: near.cuh and reduce.cuh. Each chunk has two words: one for rows and one for side data. No block waits for another one of its kernel.
#ifndef SYMRAIL_EP_TRANSFERS_CUH
#define SYMRAIL_EP_TRANSFERS_CUH

#include "calls.cuh"

// The words that a thread loads ahead.
#define WORDS 4

// The words of a chunk from a rank. If another rank of this host forwards a source's rows, that rank sets the words of
// the source.
static __device__ symrail_u64* chunk_words(const parameters& p, symrail_u64 rank, symrail_u64 chunk) {
    return (symrail_u64*)p.heap.words + (rank * chunks(p.most) + chunk) * 2;
}
// The words of a chunk that a rank of this host has made of a source's rows, and that is gathered here.
static __device__ symrail_u64* gathered_words(const parameters& p, symrail_u64 source, symrail_u64 place,
                                              symrail_u64 chunk) {
    return (symrail_u64*)p.heap.gathered_words + ((source * p.members + place) * chunks(p.most) + chunk) * 2;
}
// A block waits for a chunk.
static __device__ bool has_come(const parameters& p, symrail_u64* words, symrail_u64 call, symrail_u64 rank,
                                symrail_u64 by_way_of) {
    bool late = threadIdx.x < 2 && !has_set(p, words + threadIdx.x, call, rank, by_way_of);
    return !__syncthreads_or(late);
}
// Two threads set the words of a chunk. Their fences (`end_of_rows`) order them behind the writes of the whole block.
static __device__ void set_words(symrail_u64* words, symrail_u64 call, symrail_u64 rank) {
    if (threadIdx.x < 2) symrailx_signal_op(words + threadIdx.x, call, SYMRAIL_SIGNAL_SET, (int)rank);
}
// Makes this block's writes visible before the words that it sets next.
static __device__ void end_of_rows() {
    __syncthreads();
    if (threadIdx.x < 2) symrail_fence_sys();
}

// A transfer from this PE: the number of rows, the destination, the first row here, its index there, and its index in
// the outgoing memory for the proxy.
struct way {
    symrail_u32 rows, to, from, there, out;
    // Whether the destination stages them.
    bool staged;
};
// The transfer of a dispatch to a rank.
static __device__ way way_to(const parameters& p, const routes& r, symrail_u64 rank) {
    way w = {rows_sent(p, r, p.me, rank), (symrail_u32)rank, 0, 0, 0, comes_through(p, p.me, rank)};
    for (symrail_u64 i = 0; i < p.me; i++)
        if (!w.staged || comes_through(p, i, rank)) w.there += w.staged ? rows_sent(p, r, i, rank) : tokens_of(p, r, i, rank);
    for (symrail_u64 i = 0; i < rank; i++) w.out += rows_sent(p, r, p.me, i);
    return w;
}
// The index of a rank's first row at a source of another host, where rows return in the order of such ranks.
static __device__ symrail_u32 first_back(const parameters& p, const routes& r, symrail_u64 source, symrail_u64 rank) {
    symrail_u32 rows = 0;
    for (symrail_u64 i = 0; i < rank; i++)
        if (is_direct(p, source, i) && !is_near(p, source, i)) rows += tokens_of(p, r, source, i);
    return rows;
}
// The transfer of a combine for the rows of another host's source: to the source, or to the rank of this host that adds
// them.
static __device__ way way_back(const parameters& p, const routes& r, symrail_u64 source) {
    symrail_u64 own = host_of(p, p.me);
    way w = {tokens_of(p, r, source, p.me), (symrail_u32)source, first_row(p, r, source, p.me), 0, 0, false};
    w.out = w.from;
    if (is_direct(p, source, p.me)) {
        w.there = first_back(p, r, source, p.me);
        return w;
    }
    w.staged = true;
    w.to = (symrail_u32)through(p, source, own);
    for (symrail_u64 i = 0; i < source; i++)
        if (comes_through(p, i, w.to)) w.there += rows_gathered(p, r, i, own);
    for (symrail_u64 i = 0; i < place_of(p, p.me); i++) w.there += tokens_of(p, r, source, member_of(p, own, i));
    return w;
}

// The side data of a row, in words: scales, indices and weights of slots, the number at the source, and, for a
// forwarded row, its position at each rank of the host. Absent parts have 0 words.
struct beside {
    symrail_u64 scales, indices, weights, number, places;
    __device__ symrail_u64 places_at() const { return scales + indices + weights + number; }
    __device__ symrail_u64 words() const { return places_at() + places; }
    __device__ symrail_u64 bytes() const { return up16(4 * words()); }
};
static __device__ beside of_dispatch(symrail_u64 scales, symrail_u64 k, symrail_u64 places) {
    return beside{scales, k, k, 1, places};
}
static __device__ beside of_combine(symrail_u64 k) { return beside{0, 0, k, 0, 0}; }

// An expert in a rank's numbering: counted from its own first one, or all bits set if it is another rank's.
static __device__ symrail_u32 local_of(const parameters& p, long long expert, symrail_u64 rank) {
    long long local = expert - (long long)(rank * p.share);
    return local >= 0 && local < (long long)p.share ? (symrail_u32)local : ~0u;
}

// The rows of a rank and their side data.
struct content {
    const char* rows;
    symrail_u64 bytes;
    const symrail_u32* scales;
    const long long* topk;
    const symrail_u32* weights;
};
// One word of a row's side data in transfer. A destination gets the numbers of its own experts only; a forwarding rank
// gets those of all.
static __device__ symrail_u32 word_beside(const parameters& p, const routes& r, const content& c, const beside& b,
                                          symrail_u64 i, symrail_u64 row, const way& w) {
    if (i < b.scales) return c.scales[row * b.scales + i];
    i -= b.scales;
    if (i < b.indices) {
        long long expert = c.topk[row * b.indices + i];
        return w.staged ? (symrail_u32)expert : local_of(p, expert, w.to);
    }
    i -= b.indices;
    if (i < b.weights) {
        bool others = b.indices != 0 && !w.staged && local_of(p, c.topk[row * b.indices + i], w.to) == ~0u;
        return others ? 0 : c.weights[row * b.weights + i];
    }
    i -= b.weights;
    if (i < b.number) return (symrail_u32)row;
    return ((const symrail_u32*)r.places)[row * p.ranks + member_of(p, host_of(p, w.to), i - b.number)];
}

// Any number of blocks send rows to other hosts, or through a rank of this host to them. `back`: the rows of all
// sources return there, in order; else this PE's tokens go to the ranks that get them.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_send(const parameters* given, const routes* of, symrail_u64 back, const char* rows, symrail_u64 bytes,
            const symrail_u32* scales, symrail_u64 of_scales, const long long* topk, const symrail_u32* weights,
            symrail_u64 k) {
    __shared__ way ways[MOST_RANKS];
    PARAMETERS_AND_ROUTES(p, r);
    if (!goes(p)) return;
    for (symrail_u64 rank = threadIdx.x; rank < p.ranks; rank += blockDim.x)
        ways[rank] = back ? way_back(p, r, rank) : way_to(p, r, rank);
    __syncthreads();
    const content c = {rows, bytes, scales, topk, weights};
    symrail_u64 call = call_of(p), units = p.ranks * chunks(p.most), warps = blockDim.x / 32;
    char *rows_there = (char*)(back ? p.heap.back_rows : p.heap.rows), *sides_there = (char*)(back ? p.heap.back_sides : p.heap.sides);
    // The second pass sets the words of rows in mapped memory: one fence covers all of them.
    for (int time = 0; time < 2; time++) {
        for (symrail_u64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
            symrail_u64 index = (p.me + unit) % p.ranks, chunk = unit / p.ranks, first = chunk * CHUNK;
            const way w = ways[index];
            if (first >= w.rows || is_near(p, index, p.me)) continue;
            symrail_u64 count = w.rows - first < CHUNK ? w.rows - first : CHUNK, host = host_of(p, w.to);
            const beside b = back ? of_combine(k) : of_dispatch(of_scales, k, w.staged ? members_of(p, host) : 0);
            symrail_u64 side = b.bytes(), list = w.staged ? p.ranks + host : w.to;
            char* there = (w.staged ? (char*)p.heap.staged_rows : rows_there) + (w.there + first) * bytes;
            char* side_there = (w.staged ? (char*)p.heap.staged_sides : sides_there) + (w.there + first) * side;
            char *to = (char*)symrail_ptr(there, (int)w.to), *side_to = (char*)symrail_ptr(side_there, (int)w.to);
            symrail_u64* words =
                back && w.staged ? gathered_words(p, index, place_of(p, p.me), chunk) : chunk_words(p, p.me, chunk);
            bool mapped = to != nullptr;
            if (time == 1) {
                if (mapped) set_words(words, call, w.to);
                continue;
            }
            if (!mapped) {
                to = (char*)p.heap.out_rows + (w.out + first) * bytes;
                side_to = (char*)p.heap.out_sides + w.out * p.side + first * side;
            }
            for (symrail_u64 i = threadIdx.x / 32; i < count; i += warps) {
                symrail_u64 at = first + i, row = back ? w.from + at : ((const symrail_u32*)r.lists)[list * p.most + at];
                copy_row(to + i * bytes, rows + row * bytes, bytes);
                symrail_u32* of_row = (symrail_u32*)(side_to + i * side);
                for (symrail_u64 base = threadIdx.x % 32; base < b.words(); base += 32 * WORDS) {
                    symrail_u32 found[WORDS];
#pragma unroll
                    for (int n = 0; n < WORDS; n++)
                        if (base + 32 * n < b.words()) found[n] = word_beside(p, r, c, b, base + 32 * n, row, w);
#pragma unroll
                    for (int n = 0; n < WORDS; n++)
                        if (base + 32 * n < b.words()) of_row[base + 32 * n] = found[n];
                }
            }
            if (mapped) continue;
            deliver(there, to, count * bytes, words, call, w.to, false);
            deliver(side_there, side_to, count * side, words + 1, call, w.to, false);
        }
        end_of_rows();
    }
}

// Any number of blocks forward the rows staged here to the ranks of this host that get them, this one included.
// `first`: the routes are new.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_spread(const parameters* given, const routes* of, symrail_u64 first, symrail_u64 bytes, symrail_u64 of_scales,
              symrail_u64 k) {
    __shared__ char *rows_of[MOST_MEMBERS], *sides_of[MOST_MEMBERS];
    PARAMETERS_AND_ROUTES(p, r);
    if (!goes(p)) return;
    symrail_u64 call = call_of(p), own = host_of(p, p.me), members = members_of(p, own), warps = blockDim.x / 32;
    const beside b = of_dispatch(of_scales, k, members), kept = of_dispatch(of_scales, k, 0);
    for (int time = 0; time < 2; time++) {
        symrail_u64 unit = 0, start = 0;
        for (symrail_u64 source = 0; source < p.ranks; source++) {
            if (!comes_through(p, source, p.me)) continue;
            symrail_u64 all = crossings_of(p, r, source, own);
            for (symrail_u64 chunk = 0; chunk < chunks(all); chunk++, unit++) {
                if (unit % gridDim.x != blockIdx.x) continue;
                if (time == 1) {
                    for (symrail_u64 m = 0; m < members; m++)
                        if (member_of(p, own, m) != p.me) set_words(chunk_words(p, source, chunk), call, member_of(p, own, m));
                    continue;
                }
                if (!has_come(p, chunk_words(p, source, chunk), call, source, source)) return;
                for (symrail_u64 m = threadIdx.x; m < members; m += blockDim.x) {
                    symrail_u64 rank = member_of(p, own, m), row = first_row(p, r, source, rank);
                    rows_of[m] = (char*)symrail_ptr((char*)p.heap.rows + row * bytes, (int)rank);
                    sides_of[m] = (char*)symrail_ptr((char*)p.heap.sides + row * kept.bytes(), (int)rank);
                }
                __syncthreads();
                symrail_u64 end = (chunk + 1) * CHUNK < all ? (chunk + 1) * CHUNK : all;
                for (symrail_u64 i = start + chunk * CHUNK + threadIdx.x / 32; i < start + end; i += warps) {
                    const symrail_u32* of_row = (const symrail_u32*)(p.heap.staged_sides + i * b.bytes());
                    const symrail_u32* places = of_row + b.places_at();
                    copy_row_to(rows_of, places, members, (const char*)p.heap.staged_rows + i * bytes, bytes);
                    for (symrail_u64 m = 0; m < members; m++) {
                        if (first && threadIdx.x % 32 == 0) ((symrail_u32*)r.spread)[i * p.members + m] = places[m];
                        if (places[m] == ~0u) continue;
                        symrail_u32* to = (symrail_u32*)(sides_of[m] + places[m] * kept.bytes());
                        for (symrail_u64 word = threadIdx.x % 32; word < kept.words(); word += 32) {
                            symrail_u64 slot = word - b.scales;
                            bool of_slot = slot < 2 * k;
                            symrail_u32 local = of_slot ? local_of(p, (int)of_row[b.scales + slot % k], member_of(p, own, m)) : 0;
                            to[word] = of_slot && slot < k ? local : local == ~0u ? 0 : of_row[word];
                        }
                    }
                }
                // All warps have read the places of this chunk.
                __syncthreads();
            }
            start += all;
        }
        end_of_rows();
    }
}

#endif
