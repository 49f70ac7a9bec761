// High throughput: rows between ranks of a host, and rows that have arrived from other hosts.
//
// A rank copies rows to its own symmetric memory, and the ranks of its host read them there. The rank's fence then waits
// only for writes to its own memory, and for none that cross the link between GPUs. One word at each rank of the host
// tells that the rows are there. Each warp works alone.
#ifndef SYMRAIL_EP_NEAR_CUH
#define SYMRAIL_EP_NEAR_CUH

#include "transfers.cuh"

// The words of side data that a thread has in flight.
#define BESIDE_AHEAD 9

// Each lane with `some` waits for its own word. Returns whether all words have arrived.
static __device__ bool warp_has(const parameters& p, symrail_u64* word, bool some, symrail_u64 call, symrail_u64 rank,
                                symrail_u64 by_way_of) {
    bool late = some && !has_set(p, word, call, rank, by_way_of);
    bool all = __ballot_sync(~0u, late) == 0;
    // The writes that one lane has observed become visible to all lanes.
    __syncwarp();
    return all;
}
// A warp moves the side data of some rows, word by word.
template <class Load, class Store>
static __device__ void move_words(symrail_u32 rows, symrail_u32 words, const Load& load, const Store& store) {
    for (symrail_u32 base = threadIdx.x % 32; base < rows * words; base += 32 * BESIDE_AHEAD) {
        symrail_u32 found[BESIDE_AHEAD];
#pragma unroll
        for (int n = 0; n < BESIDE_AHEAD; n++) {
            symrail_u32 i = base + 32 * n;
            if (i < rows * words) found[n] = load(i / words, i % words);
        }
#pragma unroll
        for (int n = 0; n < BESIDE_AHEAD; n++) {
            symrail_u32 i = base + 32 * n;
            if (i < rows * words) store(i / words, i % words, found[n]);
        }
    }
}

// The word that a rank of this host sets to the number of the call whose rows it offers.
static __device__ symrail_u64* near_word(const parameters& p, symrail_u64 rank) { return (symrail_u64*)p.heap.near_words + rank; }
// All blocks call this at the end of a kernel that offers rows. The last one notifies the ranks of this host.
static __device__ void end_of_offer(const parameters& p, bool made) {
    symrail_u64 own = host_of(p, p.me);
    if (is_last_block(p) && made)
        for (symrail_u64 m = threadIdx.x; m < members_of(p, own); m += blockDim.x)
            symrailx_signal_op(near_word(p, p.me), call_of(p), SYMRAIL_SIGNAL_SET, (int)member_of(p, own, m));
}
// A block waits until all ranks of this host offer rows.
static __device__ bool near_have_offered(const parameters& p, symrail_u64 call) {
    symrail_u64 own = host_of(p, p.me);
    bool late = false;
    for (symrail_u64 m = threadIdx.x; m < members_of(p, own); m += blockDim.x) {
        symrail_u64 rank = member_of(p, own, m);
        late |= !has_set(p, near_word(p, rank), call, rank, rank);
    }
    return !__syncthreads_or(late);
}

// Side data of this PE's tokens, as it offers them: scales, indices of experts among all, and weights.
struct of_tokens {
    const content& c;
    symrail_u32 scales, k;
    __device__ symrail_u32 words() const { return scales + 2 * k; }
    __device__ symrail_u32 operator()(symrail_u64 token, symrail_u32 word) const {
        if (word < scales) return c.scales[token * scales + word];
        word -= scales;
        return word < k ? (symrail_u32)c.topk[token * k + word] : c.weights[token * k + word - k];
    }
};
// Where received rows and their side data go.
struct destination {
    char* rows;
    symrail_u32* scales;
    long long* topk;
    symrail_u32* weights;
    int* sources;
    // Stores a word of a row's side data in the order of `beside`.
    __device__ void store(const beside& b, symrail_u64 row, symrail_u32 word, symrail_u32 v) const {
        symrail_u32 of_scales = (symrail_u32)b.scales, k = (symrail_u32)b.indices;
        if (word < of_scales) scales[row * of_scales + word] = v;
        else if (word < of_scales + k) topk[row * k + word - of_scales] = (int)v;
        else if (word < of_scales + 2 * k) weights[row * k + word - of_scales - k] = v;
        else sources[row] = (int)v;
    }
};
// Any number of blocks offer this PE's tokens to the other ranks of this host.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_offer_tokens(const parameters* given, symrail_u64 tokens, const char* rows, symrail_u64 bytes, const symrail_u32* scales,
                    symrail_u64 of_scales, const long long* topk, const symrail_u32* weights, symrail_u64 k) {
    __shared__ parameters p;
    copy_words(&p, given, sizeof(p));
    __syncthreads();
    const content c = {rows, bytes, scales, topk, weights};
    const beside b = of_dispatch(of_scales, k, 0);
    const of_tokens its = {c, (symrail_u32)of_scales, (symrail_u32)k};
    symrail_u64 side = b.bytes();
    bool made = goes(p);
    if (made && members_of(p, host_of(p, p.me)) > 1) {
        tickets all(p);
        for (symrail_u64 unit = all.take(); unit < near_chunks(tokens); unit = all.take()) {
            symrail_u64 first = unit * NEAR, end = first + NEAR < tokens ? first + NEAR : tokens;
            move_words(
                (symrail_u32)(end - first), its.words(), [&](symrail_u32 i, symrail_u32 word) { return its(first + i, word); },
                [&](symrail_u32 i, symrail_u32 word, symrail_u32 v) { ((symrail_u32*)(p.heap.token_sides + (first + i) * side))[word] = v; });
            for (symrail_u64 token = first; token < end; token++)
                copy_row((char*)p.heap.token_rows + token * bytes, rows + token * bytes, bytes);
        }
    }
    end_of_offer(p, made);
}

// A warp reads some tokens of a rank. Each of the first lanes holds the row here of one of them, or -1. `from` and
// `sides` are the rank's first token and its side data as offered; for this PE itself, which reads its own memory,
// `sides` is null.
static __device__ void take_tokens(const parameters& p, const content& c, const beside& b, symrail_u64 first, symrail_u32 many,
                                   int row_of_token, const char* from, const char* sides, const destination& to) {
    __shared__ int rows[512 / 32][NEAR];
    int* row = rows[threadIdx.x / 32];
    symrail_u32 lane = threadIdx.x % 32, scales = (symrail_u32)b.scales, k = (symrail_u32)b.indices;
    if (lane < NEAR) row[lane] = row_of_token;
    __syncwarp();
    auto word_of = [&](symrail_u64 token, symrail_u32 word) {
        return sides == nullptr ? of_tokens{c, scales, k}(token, word) : ((const symrail_u32*)(sides + token * b.bytes()))[word];
    };
    auto load = [&](symrail_u32 i, symrail_u32 word) -> symrail_u32 {
        if (row[i] < 0) return 0;
        symrail_u64 token = first + i;
        if (word == scales + 2 * k) return (symrail_u32)token;
        symrail_u32 v = word_of(token, word);
        if (word < scales) return v;
        // Only the slots of this PE's experts count.
        symrail_u32 local = local_of(p, (int)(word < scales + k ? v : word_of(token, word - k)), p.me);
        return word < scales + k ? local : local == ~0u ? 0 : v;
    };
    move_words(many, (symrail_u32)b.words(), load, [&](symrail_u32 i, symrail_u32 word, symrail_u32 v) {
        if (row[i] >= 0) to.store(b, row[i], word, v);
    });
    for (symrail_u32 i = 0; i < many; i++)
        if (row[i] >= 0) copy_row(to.rows + (symrail_u64)row[i] * c.bytes, from + (first + i) * c.bytes, c.bytes);
    // All lanes have read the rows' numbers.
    __syncwarp();
}
// The warps of all blocks read the tokens of the ranks of this host.
static __device__ void take_near(const parameters& p, const routes& r, const content& c, const beside& b, symrail_u64 tokens,
                                 const destination& to) {
    // For each rank of this host its first row here, and the number of its tokens.
    __shared__ symrail_u32 starts[MOST_MEMBERS];
    __shared__ symrail_u64 tokens_there[MOST_MEMBERS];
    symrail_u64 call = call_of(p), own = host_of(p, p.me), members = members_of(p, own), most = 0;
    for (symrail_u64 m = threadIdx.x; m < members; m += blockDim.x) {
        symrail_u64 rank = member_of(p, own, m);
        starts[m] = first_row(p, r, rank, p.me);
        tokens_there[m] = rank == p.me ? tokens : header_of(p, call, rank).tokens;
    }
    __syncthreads();
    for (symrail_u64 m = 0; m < members; m++) most = tokens_there[m] > most ? tokens_there[m] : most;
    tickets all(p);
    // The other ranks come first, and all ranks take turns.
    for (symrail_u64 unit = all.take(); unit < near_chunks(most) * members; unit = all.take()) {
        symrail_u64 first = unit / members * NEAR, m = (place_of(p, p.me) + 1 + unit) % members, rank = member_of(p, own, m);
        symrail_u64 left = tokens_there[m] > first ? tokens_there[m] - first : 0, lane = threadIdx.x % 32;
        symrail_u32 many = left < NEAR ? (symrail_u32)left : NEAR;
        bool is_own = rank == p.me;
        const int* places = is_own ? (const int*)r.places + p.me : near_places(p, call, rank);
        int row = lane < many ? places[(first + lane) * (is_own ? p.ranks : 1)] : -1;
        if (row >= 0) row += starts[m];
        if (__ballot_sync(~0u, row >= 0) == 0) continue;
        const char *from = c.rows, *sides = nullptr;
        if (!is_own) from = (const char*)symrail_ptr((char*)p.heap.token_rows, (int)rank);
        if (!is_own) sides = (const char*)symrail_ptr((char*)p.heap.token_sides, (int)rank);
        take_tokens(p, c, b, first, many, row, from, sides, to);
    }
}

// The warps of all blocks share the rows that a dispatch has brought from other hosts.
static __device__ void take_far(const parameters& p, const routes& r, const content& c, const beside& b, const destination& to) {
    symrail_u64 call = call_of(p), start = 0, unit = 0, own = host_of(p, p.me), lane = threadIdx.x % 32;
    symrail_u64 warps = (symrail_u64)gridDim.x * (blockDim.x / 32), mine = threadIdx.x / 32 * (symrail_u64)gridDim.x + blockIdx.x;
    for (symrail_u64 rank = 0; rank < p.ranks; rank++) {
        symrail_u64 all = tokens_of(p, r, rank, p.me), units = is_near(p, rank, p.me) ? 0 : near_chunks(all);
        bool direct = is_direct(p, rank, p.me), is_first = true;
        // A forwarded row may come with any chunk of its source. So the reader waits for all chunks of the source. If
        // this PE forwards them, an earlier kernel (`ep_spread`) has stored them.
        symrail_u64 hand = direct ? p.me : through(p, rank, own), handed = chunks(crossings_of(p, r, rank, own));
        for (symrail_u64 i = (mine + warps - unit % warps) % warps; i < units; i += warps) {
            if (direct && !warp_has(p, chunk_words(p, rank, i * NEAR / CHUNK) + lane, lane < 2, call, rank, rank)) return;
            for (symrail_u64 base = 0; is_first && hand != p.me && base < 2 * handed; base += 32)
                if (!warp_has(p, chunk_words(p, rank, 0) + base + lane, base + lane < 2 * handed, call, rank, hand)) return;
            is_first = false;
            symrail_u64 first = start + i * NEAR;
            symrail_u32 many = all - i * NEAR < NEAR ? (symrail_u32)(all - i * NEAR) : NEAR;
            const char* sides = (const char*)p.heap.sides + first * b.bytes();
            move_words(
                many, (symrail_u32)b.words(),
                [&](symrail_u32 row, symrail_u32 word) { return ((const symrail_u32*)(sides + row * b.bytes()))[word]; },
                [&](symrail_u32 row, symrail_u32 word, symrail_u32 v) { to.store(b, first + row, word, v); });
            for (symrail_u64 row = first; row < first + many; row++)
                copy_row(to.rows + row * c.bytes, (const char*)p.heap.rows + row * c.bytes, c.bytes);
        }
        start += all, unit += units;
    }
}

// Any number of blocks bring the rows of a dispatch to their destination, and end the call.
extern "C" __global__ void __launch_bounds__(512, 1)
    ep_receive(const parameters* given, const routes* of, symrail_u64 tokens, const char* rows, symrail_u64 bytes,
               const symrail_u32* scales, symrail_u64 of_scales, const long long* topk, const symrail_u32* weights, symrail_u64 k,
               char* rows_to, symrail_u32* scales_to, long long* topk_to, symrail_u32* weights_to, int* sources) {
    PARAMETERS_AND_ROUTES(p, r);
    if (goes(p)) {
        const content c = {rows, bytes, scales, topk, weights};
        const beside b = of_dispatch(of_scales, k, 0);
        const destination to = {rows_to, scales_to, topk_to, weights_to, sources};
        if (near_have_offered(p, call_of(p))) take_near(p, r, c, b, tokens, to);
        if (p.hosts > 1) take_far(p, r, c, b, to);
    }
    if (is_last_block(p) && threadIdx.x == 0) end_call(p);
}

#endif
