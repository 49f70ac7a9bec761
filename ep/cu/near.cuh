// High throughput: rows to ranks of this host, and rows that have arrived.
//
// Each warp works alone on a few rows at a time. A dispatch stores rows at the ranks that get them. A combine offers
// rows in this PE's memory, where the other ranks read them. The last block of either sets one word at each rank of the
// host, and the reader waits for it.
#ifndef SYMRAIL_EP_NEAR_CUH
#define SYMRAIL_EP_NEAR_CUH

#include "transfers.cuh"

// The words of side data that a thread loads ahead.
#define BESIDE_AHEAD 8

// The word that a rank of this host sets to the number of the call whose rows it has stored or offered.
static __device__ symrail_u64* near_word(const parameters& p, symrail_u64 rank) { return (symrail_u64*)p.near_words + rank; }
// All blocks call this at the end of a kernel that stores or offers rows. The last one notifies the ranks of this host.
static __device__ void end_of_near(const parameters& p, bool made) {
    symrail_u64 own = host_of(p, p.me);
    if (is_last_block(p) && made)
        for (symrail_u64 m = threadIdx.x; m < members_of(p, own); m += blockDim.x)
            symrailx_signal_op(near_word(p, p.me), call_of(p), SYMRAIL_SIGNAL_SET, (int)member_of(p, own, m));
}
// Each lane with `some` waits for its own word. Returns whether all words have arrived.
static __device__ bool warp_has(const parameters& p, symrail_u64* word, bool some, symrail_u64 call, symrail_u64 rank,
                                symrail_u64 by_way_of) {
    bool late = some && !has_set(p, word, call, rank, by_way_of);
    bool all = __ballot_sync(~0u, late) == 0;
    // The writes that one lane has observed become visible to all lanes.
    __syncwarp();
    return all;
}

// A warp stores the side data of a few rows of a dispatch. The first lanes hold the rows' token numbers.
static __device__ void store_beside(const parameters& p, const content& c, const beside& b, symrail_u32 rows,
                                    symrail_u32 many, symrail_u64 rank, char* to) {
    symrail_u32 lane = threadIdx.x % 32, scales = (symrail_u32)b.scales, slots = (symrail_u32)b.indices;
    symrail_u64 side = b.bytes();
    auto place = [&](symrail_u32 row) { return (symrail_u32*)(to + row * side); };
    for (symrail_u32 base = 0; base < many * scales; base += 32 * BESIDE_AHEAD) {
        symrail_u32 found[BESIDE_AHEAD];
#pragma unroll
        for (int n = 0; n < BESIDE_AHEAD; n++) {
            symrail_u32 i = base + 32 * n + lane, row = i / scales;
            symrail_u64 token = (symrail_u32)__shfl_sync(~0u, rows, row < many ? row : 0);
            if (row < many) found[n] = c.scales[token * scales + i % scales];
        }
#pragma unroll
        for (int n = 0; n < BESIDE_AHEAD; n++) {
            symrail_u32 i = base + 32 * n + lane, row = i / scales;
            if (row < many) place(row)[i % scales] = found[n];
        }
    }
    for (symrail_u32 base = 0; base < many * slots; base += 32) {
        symrail_u32 i = base + lane, row = i / slots;
        symrail_u64 token = (symrail_u32)__shfl_sync(~0u, rows, row < many ? row : 0);
        if (row >= many) continue;
        symrail_u32 slot = i % slots, local = local_of(p, c.topk[token * slots + slot], rank);
        symrail_u32 weight = c.weights[token * slots + slot];
        place(row)[scales + slot] = local;
        place(row)[scales + slots + slot] = local == ~0u ? 0 : weight;
    }
    if (lane < many) place(lane)[scales + 2 * slots] = rows;
}

// Any number of blocks store this PE's tokens to the ranks of this host that get them, this one included.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_store(const parameters* given, const routes* of, const char* rows, symrail_u64 bytes, const symrail_u32* scales,
             symrail_u64 of_scales, const long long* topk, const symrail_u32* weights, symrail_u64 k) {
    __shared__ way ways[MOST_MEMBERS];
    PARAMETERS_AND_ROUTES(p, r);
    bool made = goes(p);
    symrail_u64 own = host_of(p, p.me), members = members_of(p, own), lane = threadIdx.x % 32;
    if (made) {
        for (symrail_u64 m = threadIdx.x; m < members; m += blockDim.x) ways[m] = way_to(p, r, member_of(p, own, m));
        __syncthreads();
        symrail_u64 most = 0;
        for (symrail_u64 m = 0; m < members; m++) most = ways[m].rows > most ? ways[m].rows : most;
        const content c = {rows, bytes, scales, topk, weights};
        const beside b = of_dispatch(of_scales, k, 0);
        tickets all(p);
        for (symrail_u64 unit = all.take(); unit < near_chunks(most) * members; unit = all.take()) {
            // The other ranks come first, and all ranks take turns.
            const way& w = ways[(place_of(p, p.me) + 1 + unit) % members];
            symrail_u64 first = unit / members * NEAR;
            if (first >= w.rows) continue;
            symrail_u32 many = w.rows - first < NEAR ? (symrail_u32)(w.rows - first) : NEAR, token = 0;
            if (lane < many) token = ((const symrail_u32*)r.lists)[w.to * p.most + first + lane];
            char* to = (char*)symrail_ptr((char*)p.rows + (w.there + first) * bytes, (int)w.to);
            store_beside(p, c, b, token, many, w.to,
                         (char*)symrail_ptr((char*)p.sides + (w.there + first) * b.bytes(), (int)w.to));
            for (symrail_u32 i = 0; i < many; i++)
                copy_row(to + i * bytes, rows + (symrail_u32)__shfl_sync(~0u, token, i) * bytes, bytes);
        }
    }
    end_of_near(p, made);
}

// Any number of blocks offer the rows of a combine, and their weights, to the ranks of this host. Rows that are in the
// offered memory already stay there. This PE's own rows are not copied: it reads them from the caller's memory.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_offer(const parameters* given, const routes* of, const char* rows, symrail_u64 bytes, const symrail_u32* weights,
             symrail_u64 k) {
    PARAMETERS_AND_ROUTES(p, r);
    bool made = goes(p);
    symrail_u64 warps = (symrail_u64)gridDim.x * (blockDim.x / 32), warp = threadIdx.x / 32 * (symrail_u64)gridDim.x + blockIdx.x;
    symrail_u64 side = of_combine(k).bytes();
    for (symrail_u64 source = 0, first = 0; made && source < p.ranks; first += tokens_of(p, r, source, p.me), source++) {
        if (!is_near(p, source, p.me)) continue;
        bool copied = source != p.me && rows != (const char*)p.offered_rows;
        for (symrail_u64 row = first + warp; row < first + tokens_of(p, r, source, p.me); row += warps) {
            if (copied) copy_row((char*)p.offered_rows + row * bytes, rows + row * bytes, bytes);
            for (symrail_u64 i = threadIdx.x % 32; i < k; i += 32)
                ((symrail_u32*)(p.offered_sides + row * side))[i] = weights[row * k + i];
        }
    }
    end_of_near(p, made);
}

// A warp reads a few rows that have arrived, from row `first` on. It copies the rows only if `rows` is not null.
static __device__ void take_few(const parameters& p, const beside& b, symrail_u64 first, symrail_u32 many, symrail_u64 bytes,
                                char* rows, symrail_u32* scales, long long* topk, symrail_u32* weights, int* sources) {
    symrail_u32 lane = threadIdx.x % 32, words = (symrail_u32)b.words(), of_scales = (symrail_u32)b.scales;
    symrail_u32 k = (symrail_u32)b.indices;
    const char* sides = (const char*)p.sides + first * b.bytes();
    for (symrail_u32 base = lane; base < many * words; base += 32 * BESIDE_AHEAD) {
        symrail_u32 found[BESIDE_AHEAD];
#pragma unroll
        for (int n = 0; n < BESIDE_AHEAD; n++) {
            symrail_u32 i = base + 32 * n;
            if (i < many * words) found[n] = ((const symrail_u32*)(sides + i / words * b.bytes()))[i % words];
        }
#pragma unroll
        for (int n = 0; n < BESIDE_AHEAD; n++) {
            symrail_u32 i = base + 32 * n, word = i % words;
            symrail_u64 row = first + i / words;
            if (i >= many * words) break;
            if (word < of_scales) scales[row * of_scales + word] = found[n];
            else if (word < of_scales + k) topk[row * k + word - of_scales] = (int)found[n];
            else if (word < of_scales + 2 * k) weights[row * k + word - of_scales - k] = found[n];
            else sources[row] = (int)found[n];
        }
    }
    for (symrail_u64 row = first; rows != nullptr && row < first + many; row++)
        copy_row(rows + row * bytes, (const char*)p.rows + row * bytes, bytes);
}

// The warps of all blocks share the rows that a dispatch has brought. Returns false if a rank is late.
static __device__ bool take_all(const parameters& p, const routes& r, const beside& b, symrail_u64 bytes, char* rows,
                                symrail_u32* scales, long long* topk, symrail_u32* weights, int* sources) {
    symrail_u64 call = call_of(p), start = 0, unit = 0, own = host_of(p, p.me), lane = threadIdx.x % 32;
    symrail_u64 warps = (symrail_u64)gridDim.x * (blockDim.x / 32), mine = threadIdx.x / 32 * (symrail_u64)gridDim.x + blockIdx.x;
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        symrail_u64 all = tokens_of(p, r, rank, p.me), units = near_chunks(all);
        bool near = is_near(p, rank, p.me), direct = is_direct(p, rank, p.me);
        // A forwarded row may come with any chunk of its source. So the reader waits for all chunks of the source. If
        // this PE forwards them, an earlier kernel (`ep_spread`) has stored them.
        symrail_u64 hand = direct ? p.me : through(p, rank, own), handed = chunks(crossings_of(p, r, rank, own));
        bool is_first = true;
        for (symrail_u64 i = (mine + warps - unit % warps) % warps; i < units; i += warps) {
            if (near && is_first && !warp_has(p, near_word(p, rank), lane == 0, call, rank, rank)) return false;
            if (!near && direct && !warp_has(p, chunk_words(p, rank, i * NEAR / CHUNK) + lane, lane < 2, call, rank, rank))
                return false;
            for (symrail_u64 base = 0; is_first && hand != p.me && base < 2 * handed; base += 32)
                if (!warp_has(p, chunk_words(p, rank, 0) + base + lane, base + lane < 2 * handed, call, rank, hand)) return false;
            is_first = false;
            symrail_u64 first = i * NEAR;
            symrail_u32 many = all - first < NEAR ? (symrail_u32)(all - first) : NEAR;
            take_few(p, b, start + first, many, bytes, rows, scales, topk, weights, sources);
        }
        start += all, unit += units;
    }
    return true;
}

// Any number of blocks read what a dispatch has brought, and end the call.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_receive(const parameters* given, const routes* of, symrail_u64 bytes, symrail_u64 of_scales, symrail_u64 k,
               char* rows, symrail_u32* scales, long long* topk, symrail_u32* weights, int* sources) {
    PARAMETERS_AND_ROUTES(p, r);
    if (goes(p)) take_all(p, r, of_dispatch(of_scales, k, 0), bytes, rows, scales, topk, weights, sources);
    if (is_last_block(p) && threadIdx.x == 0) end_call(p);
}

#endif
